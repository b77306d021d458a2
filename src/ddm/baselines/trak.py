"""TRAK (Park et al., 2023) with traker: a linear model in randomly projected gradients.

``τ(z, i) = φ_zᵀ (ΦᵀΦ)⁻¹ φ_i (1 − p_i)`` is what sample i adds to the log-odds ``log p/(1 − p)`` of query z. Here p is
the probability of the true class and φ the projected gradient of the log-odds. τ is averaged over a few checkpoints of
the trajectory's second half. Without sample i, the loss of z rises by ``(1 − p_z) τ``. traker divides τ by a constant
of its own, so only relative sizes are meaningful.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ddm.baselines.group_scores import sum_over_groups
from ddm.baselines.peers import isolated_library
from ddm.baselines.point import FlatModel
from ddm.baselines.protocol import CannotRun, ScoreRequest, Scores
from ddm.data.samples import Samples

_CHECKPOINTS = 3
_DIMENSION = 512
_BATCH = 200


def trak(request: ScoreRequest, checkpoints: int = _CHECKPOINTS, dimension: int | None = None) -> Scores:
    """Use ``checkpoints`` checkpoints and ``dimension`` projected dimensions.

    The default dimension is small enough to keep ΦᵀΦ from being singular.
    """
    target = request.target
    if not target.loss.is_cross_entropy:
        raise CannotRun("traker cannot run on this network: it supports only targets trained with cross-entropy.")
    dimension = dimension or max(1, min(_DIMENSION, len(request.train) // 4, target.flat.size // 2))
    last = len(target.trajectory) - 1
    chosen = np.unique(np.linspace(last, (last + 1) // 2, checkpoints).round().astype(int))
    with isolated_library("traker", request.seed), tempfile.TemporaryDirectory() as folder:
        test, validation = _sample_scores(request, chosen, dimension, folder)
    shift = sum_over_groups(request.partition, test)
    return Scores(
        np.abs(shift),
        shift * _error_probabilities(request, request.test),
        (sum_over_groups(request.partition, validation) * _error_probabilities(request, request.validation)).mean(1),
        len(chosen) * len(request.train) * dimension * 4,
    )


def _sample_scores(
    request: ScoreRequest, checkpoints: np.ndarray, dimension: int, folder: str
) -> tuple[np.ndarray, np.ndarray]:
    """τ of every training sample for the test samples ``(n, m)`` and for the validation samples."""
    from trak import TRAKer

    model = FlatModel(request.target, request.packing)
    method = TRAKer(
        model,
        "image_classification",
        len(request.train),
        save_dir=folder,
        device="cpu",
        proj_dim=dimension,
        logging_level=100,
        use_half_precision=False,
        projector_seed=request.seed,
    )
    for number, t in enumerate(checkpoints):
        model.load_checkpoint(int(t))
        method.load_checkpoint(model.state_dict(), model_id=number)
        _for_each_batch(request.train, model, method.featurize)
    method.finalize_features()
    method.projector.model_id = None  # traker has freed the projection; this makes it draw the same one again
    test, validation = (
        _query_scores(method, model, checkpoints, name, samples)
        for name, samples in (("test", request.test), ("validation", request.validation))
    )
    return test, validation


def _query_scores(method: Any, model: FlatModel, checkpoints: np.ndarray, name: str, samples: Samples) -> np.ndarray:
    """τ ``(n, m)`` of every training sample for m queries."""
    for number, t in enumerate(checkpoints):
        model.load_checkpoint(int(t))
        method.start_scoring_checkpoint(name, model.state_dict(), number, len(samples))
        _for_each_batch(samples, model, method.score)
    return np.array(method.finalize_scores(name))  # copied, because the memory-mapped file will be deleted


def _for_each_batch(samples: Samples, model: FlatModel, call: Callable[..., object]) -> None:
    for rows in torch.arange(len(samples)).split(_BATCH):
        x, y = samples.batch(rows)
        call((model.packing.pack(x), y), num_samples=len(rows))


def _error_probabilities(request: ScoreRequest, samples: Samples) -> np.ndarray:
    """1 − p of the true class ``(m,)`` at θ_τ."""
    x, y = samples.batch()
    probabilities = request.target.outputs(x).cpu().double().softmax(1)
    errors: np.ndarray = 1 - probabilities[torch.arange(len(y)), y].numpy()
    return errors
