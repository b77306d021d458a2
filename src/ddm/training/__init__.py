"""Training a target: the recipe, the loop, the recorder for loops of your own, and what they leave behind."""
