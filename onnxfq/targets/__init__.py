"""Checking a Q/DQ model against its target: rules by idea, one list of them, and the target's own builder."""
