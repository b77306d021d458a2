"""Groups near a sample, in what the target makes of both: the paper's two baselines without gradients.

predict-based:    ``p̄_κ``, the mean of the probabilities that ℳ predicts for the group, against those of the sample
clustering-based: the centroid of the group in ℳ's penultimate features, against those of the sample

Neither says how a loss moves; for that the similarity ``1/(1 + distance)`` is taken, positive where the group is of the
sample's true class and negative where it is not.
"""

from __future__ import annotations

import numpy as np

from ddm.baselines.effects import means, own
from ddm.baselines.protocol import Question, Scores
from ddm.datasets.samples import Samples
from ddm.partition import features_of


def predict(question: Question) -> Scores:
    """Shift ``−‖p̄_κ − p(x)‖²``."""

    def probabilities(samples: Samples) -> np.ndarray:
        found: np.ndarray = question.target.outputs(samples.batch()[0]).softmax(1).cpu().double().numpy()
        return found

    centres = means(question.partition, probabilities(question.train))
    test, validation = (_distances(centres, probabilities(s)) ** 2 for s in (question.test, question.validation))
    return _scores(question, test, validation, centres.nbytes)


def centroid(question: Question) -> Scores:
    """Shift ``−‖c_κ − f(x)‖`` for the centroid ``c_κ`` of the group's features."""

    def features(samples: Samples) -> np.ndarray:
        return features_of(samples, None, question.target)

    centres = means(question.partition, features(question.train))
    test, validation = (_distances(centres, features(s)) for s in (question.test, question.validation))
    return _scores(question, test, validation, centres.nbytes)


def _distances(centres: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Euclidean distances ``(K, m)`` from centres ``(K, F)`` to points ``(m, F)``."""
    found = [np.linalg.norm(points - centre, axis=1) for centre in centres]  # K at a time would be K·m·F numbers
    return np.stack(found)


def _scores(question: Question, test: np.ndarray, validation: np.ndarray, kept: int) -> Scores:
    return Scores(
        -test,
        own(question, question.test.labels) / (1 + test),
        (own(question, question.validation.labels) / (1 + validation)).mean(1),
        kept,
    )
