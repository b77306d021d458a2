"""Split the training set into groups."""
