"""Scores drawn at random: what any method must beat."""

import numpy as np

from ddm.baselines.protocol import Question, Scores


def chance(question: Question) -> Scores:
    """Scores from a standard normal distribution, the same for the same seed."""
    generator = np.random.default_rng(question.seed)
    shape = len(question.partition), len(question.test)
    return Scores(
        generator.standard_normal(shape), generator.standard_normal(shape), generator.standard_normal(shape[0])
    )
