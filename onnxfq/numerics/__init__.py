"""Number formats, granularity, arithmetic, scales, specs."""
