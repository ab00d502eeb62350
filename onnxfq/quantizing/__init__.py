"""The command `quantize`: the pipeline, the observation that its remedies share, its result."""
