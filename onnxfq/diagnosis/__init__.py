"""What is wrong with a quantized file that somebody else made: reading, measuring, causes, repairs."""
