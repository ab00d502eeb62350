"""Statistics and calibrators: pure functions."""
