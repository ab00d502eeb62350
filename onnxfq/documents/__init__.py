"""Values passed between stages, and their files."""
