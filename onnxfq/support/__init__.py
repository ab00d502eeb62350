"""Files, records, tables, resources."""
