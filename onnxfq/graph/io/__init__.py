"""Reading and writing models."""
