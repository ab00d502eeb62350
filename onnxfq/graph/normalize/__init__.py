"""What a model is brought to when it is loaded, one step a file."""
