"""Groups of nodes that mean one thing together: one pattern a file, matched without an edit."""
