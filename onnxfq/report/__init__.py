"""Reports: what was done, why, and how well it fits, as text, plot and HTML."""
