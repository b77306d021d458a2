"""Groups scored by their distance to a sample: the paper's two baselines without gradients.

predict-based:    the group's mean predicted probabilities (or numbers) ``p̄_κ`` against those of the sample
clustering-based: the group's centroid in ℳ's penultimate features against the features of the sample

A distance has no direction, so the effect on the loss is taken to be the similarity ``1/(1 + distance)``: positive
where the group has the sample's true class, or where samples have no class, and negative elsewhere.
"""

from __future__ import annotations

import numpy as np

from ddm.baselines.group_scores import class_signs, mean_over_groups
from ddm.baselines.protocol import ScoreRequest, Scores
from ddm.data.samples import Samples
from ddm.groups.features import features_of


def predict(request: ScoreRequest) -> Scores:
    """Shift ``−‖p̄_κ − p(x)‖²``."""

    def probabilities(samples: Samples) -> np.ndarray:
        outputs = request.target.outputs(samples.batch()[0])
        values: np.ndarray = request.target.task.mean(outputs).cpu().double().numpy()
        return values

    centres = mean_over_groups(request.partition, probabilities(request.train))
    test, validation = (_distances(centres, probabilities(s)) ** 2 for s in (request.test, request.validation))
    return _scores(request, test, validation, centres.nbytes)


def centroid(request: ScoreRequest) -> Scores:
    """Shift ``−‖c_κ − f(x)‖`` for the centroid ``c_κ`` of the group's features."""

    def features(samples: Samples) -> np.ndarray:
        return features_of(samples, None, request.target)

    centres = mean_over_groups(request.partition, features(request.train))
    test, validation = (_distances(centres, features(s)) for s in (request.test, request.validation))
    return _scores(request, test, validation, centres.nbytes)


def _distances(centres: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Euclidean distances ``(K, m)`` from centres ``(K, F)`` to points ``(m, F)``."""
    # One centre at a time: all at once would take K·m·F floats.
    return np.stack([np.linalg.norm(points - centre, axis=1) for centre in centres])


def _scores(request: ScoreRequest, test: np.ndarray, validation: np.ndarray, stored_bytes: int) -> Scores:
    """Scores from distances to the test ``(K, m)`` and the validation samples."""
    return Scores(
        -test,
        class_signs(request, request.test.labels) / (1 + test),
        (class_signs(request, request.validation.labels) / (1 + validation)).mean(1),
        stored_bytes,
    )
