"""Tools that only commands enter: check, compare, convert, inspect and hand over models."""
