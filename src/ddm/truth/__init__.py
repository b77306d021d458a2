"""The ground truth: retraining without groups, the effects it shows, and how well predictions agree with them."""
