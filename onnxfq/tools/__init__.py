"""Tools that commands enter: check, compare, convert, inspect, hand over."""
