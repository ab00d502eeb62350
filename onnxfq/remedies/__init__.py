"""What can be done for a loss: each remedy turns a candidate into a better one, or says why not."""
