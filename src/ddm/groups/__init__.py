"""Groups: how the training set is split."""
