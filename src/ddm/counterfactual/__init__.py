"""Models without some groups: which groups to remove, and the networks that result."""
