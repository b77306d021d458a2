"""How much a synset reveals about the training data: distances, membership inference and reconstruction."""
