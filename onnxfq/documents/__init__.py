"""What stages hand on, and their files."""
