"""Random scores: the floor that every method must beat."""

import numpy as np

from ddm.baselines.protocol import ScoreRequest, Scores


def chance(request: ScoreRequest) -> Scores:
    """Draw scores from a standard normal distribution; the same seed gives the same scores."""
    generator = np.random.default_rng(request.seed)
    shape = len(request.partition), len(request.test)
    return Scores(
        generator.standard_normal(shape), generator.standard_normal(shape), generator.standard_normal(shape[0])
    )
