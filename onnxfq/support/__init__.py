"""Files, records, tables, resources, digests."""
