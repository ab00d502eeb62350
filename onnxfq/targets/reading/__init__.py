"""A Q/DQ model as checks read it: quantizers, promised precision, and what a runtime keeps of it."""
