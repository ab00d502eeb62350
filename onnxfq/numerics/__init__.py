"""Number formats, granularity, the arithmetic, scales, specs."""
