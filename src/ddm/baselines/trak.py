"""TRAK (Park et al., 2023) with traker: a linear model in randomly projected gradients.

``τ(z, i) = φ_zᵀ (ΦᵀΦ)⁻¹ φ_i (1 − p_i)`` with φ the projected gradient of ``log p/(1 − p)``, p the probability of the
true class, is what sample i adds to that of z; averaged over a few checkpoints of the trajectory's second half. Without
it the loss of z rises by ``(1 − p_z) τ``. traker divides by a constant of its own, so that τ has no scale.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from ddm.baselines.effects import sums
from ddm.baselines.peers import peer
from ddm.baselines.point import Point
from ddm.baselines.protocol import CannotRun, Question, Scores
from ddm.datasets.samples import Samples

_CHECKPOINTS = 3
_DIMENSION = 512
_BATCH = 200


def trak(question: Question, checkpoints: int = _CHECKPOINTS, dimension: int | None = None) -> Scores:
    """Over ``checkpoints`` checkpoints, in ``dimension`` dimensions: by default so few that ΦᵀΦ is not singular."""
    target = question.target
    if target.loss is not F.cross_entropy:
        raise CannotRun("traker cannot run on this network: it was trained with another loss than cross-entropy.")
    dimension = dimension or max(1, min(_DIMENSION, len(question.train) // 4, target.flat.size // 2))
    last = len(target.trajectory) - 1
    chosen = np.unique(np.linspace(last, (last + 1) // 2, checkpoints).round().astype(int))
    with peer("traker", question.seed), tempfile.TemporaryDirectory() as folder:
        from trak import TRAKer

        point = Point(target)
        method = TRAKer(
            point,
            "image_classification",
            len(question.train),
            save_dir=folder,
            device="cpu",
            proj_dim=dimension,
            logging_level=100,
            use_half_precision=False,
            projector_seed=question.seed,
        )
        for number, t in enumerate(chosen):
            point.move(int(t))
            method.load_checkpoint(point.state_dict(), model_id=number)
            _each(question.train, method.featurize)
        method.finalize_features()
        method.projector.model_id = None  # traker has freed the projection here; this has it drawn again, the same
        test, validation = (
            _scores(method, point, chosen, name, samples)
            for name, samples in (("test", question.test), ("validation", question.validation))
        )
    shift = sums(question.partition, test)
    return Scores(
        np.abs(shift),
        shift * _doubt(question, question.test),
        (sums(question.partition, validation) * _doubt(question, question.validation)).mean(1),
        len(chosen) * len(question.train) * dimension * 4,
    )


def _scores(method: Any, point: Point, chosen: np.ndarray, name: str, samples: Samples) -> np.ndarray:
    """τ of every training sample for some samples ``(n, m)``."""
    for number, t in enumerate(chosen):
        point.move(int(t))
        method.start_scoring_checkpoint(name, point.state_dict(), number, len(samples))
        _each(samples, method.score)
    return np.array(method.finalize_scores(name))  # a copy: the file it is mapped from goes


def _each(samples: Samples, call: Any) -> None:
    for rows in torch.arange(len(samples)).split(_BATCH):
        call(samples.batch(rows), num_samples=len(rows))


def _doubt(question: Question, samples: Samples) -> np.ndarray:
    """1 − p of the true class ``(m,)`` at θ_τ."""
    x, y = samples.batch()
    chances = question.target.outputs(x).cpu().double().softmax(1)
    found: np.ndarray = 1 - chances[torch.arange(len(y)), y].numpy()
    return found
