"""Train a target by a recipe, or record it in the user's own training loop."""
