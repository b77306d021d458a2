"""What a synset reveals of the training data: how near its images come, who is recognised, what is reconstructed."""
