"""Response matching: the pull of each group, one solve with the curvature, and the encoding in a bank of images."""
