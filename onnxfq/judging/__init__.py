"""The measurement that judges every remedy: candidates, one split of the samples, one trial, the budget."""
