"""Reports as text, plot and HTML."""
