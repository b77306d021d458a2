"""Gradients and the curvature of the training loss, and solves with it."""
