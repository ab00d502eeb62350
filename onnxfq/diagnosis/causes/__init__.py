"""What can be wrong with a quantized file, a family of causes a file."""
