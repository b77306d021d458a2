"""EK-FAC influence functions (Grosse et al., 2023) with kronfluence.

H is approximated by the Fisher information, with one block per layer in the eigenbasis of a Kronecker product. Only
convolutions and linear layers are tracked; the parameters of normalisation layers are treated as constant.
"""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ddm.baselines.group_scores import scores_from_loss_effects, sum_over_groups
from ddm.baselines.peers import isolated_library
from ddm.baselines.protocol import CannotRun, ScoreRequest, Scores
from ddm.data.samples import Samples
from ddm.data.tasks import Regression, Task

_TRAIN_BATCH = 128
_QUERY_BATCH = 32

_HALF = 0.5**0.5
"""Standard deviation for which the squared error is minus the log-likelihood."""


def ekfac(request: ScoreRequest, damping: float | None = None) -> Scores:
    """``(1/n) Σ_{i∈κ} g_iᵀ (F + λI)⁻¹ g_z``; by default λ is a tenth of each layer's mean eigenvalue."""
    network = _Wrapped(request).float()
    layers = _trained_layers(network)
    if not layers:
        raise CannotRun("kronfluence cannot run on this network: it has no trained convolution and no linear layer.")
    with isolated_library("kronfluence", request.seed), tempfile.TemporaryDirectory() as folder:
        from kronfluence.analyzer import Analyzer, prepare_model

        task = _kronfluence_task(request, layers)
        analyzer = Analyzer(
            "ekfac", prepare_model(network, task), task, cpu=True, disable_tqdm=True, output_dir=folder, log_level=100
        )
        loss, validation = _loss_effects(analyzer, request, damping)
        stored_bytes = _factor_bytes(analyzer)
    return scores_from_loss_effects(loss, validation[:, 0] / len(request.validation), stored_bytes)


def _loss_effects(analyzer: Any, request: ScoreRequest, damping: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Effects on each test loss ``(K, m)`` and on the summed validation loss ``(K, 1)``."""
    from kronfluence.arguments import ScoreArguments

    train, test, validation = (
        _dataset(request, samples) for samples in (request.train, request.test, request.validation)
    )
    analyzer.fit_all_factors("factors", train, per_device_batch_size=_TRAIN_BATCH)
    for name, queries in (("test", test), ("validation", validation)):
        analyzer.compute_pairwise_scores(
            name,
            "factors",
            queries,
            train,
            per_device_query_batch_size=_QUERY_BATCH,
            per_device_train_batch_size=_TRAIN_BATCH,
            score_args=ScoreArguments(damping_factor=damping, aggregate_query_gradients=name == "validation"),
        )
    loss, total = (
        sum_over_groups(request.partition, analyzer.load_pairwise_scores(name)["all_modules"].T) / len(train)
        for name in ("test", "validation")
    )
    return loss, total


class _Wrapped(nn.Module):
    """The target on packed inputs ``(b, ...)``. kronfluence cannot replace a network that is a single layer."""

    def __init__(self, request: ScoreRequest) -> None:
        super().__init__()
        self.network = copy.deepcopy(request.target.network)
        self._task, self._packing = request.target.task, request.packing

    def forward(self, x: Tensor) -> Tensor:
        return self._task.outputs(self.network, self._packing.unpack(x))


def _dataset(request: ScoreRequest, samples: Samples) -> TensorDataset:
    x, y = samples.batch()
    return TensorDataset(request.packing.pack(x), y)


def _factor_bytes(analyzer: Any) -> int:
    """Size of the factors that kronfluence stores between queries, in bytes."""
    factors = analyzer.load_eigendecomposition("factors") | analyzer.load_lambda_matrices("factors")
    return sum(tensor.nbytes for part in factors.values() for tensor in part.values())


def _trained_layers(network: nn.Module) -> list[str]:
    """Names of the trained layers that kronfluence supports."""
    return [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and all(p.requires_grad for p in module.parameters(recurse=False))
    ]


def _draw_labels(task: Task, outputs: Tensor) -> Tensor:
    """Labels drawn from what the outputs ``(b, L)`` predict; the squared error is that of a normal distribution."""
    if task.has_classes:
        return torch.multinomial(outputs.softmax(1), 1).flatten()
    if isinstance(task, Regression) and task.loss.name == task.usual_name:
        return outputs + _HALF * torch.randn_like(outputs)
    raise CannotRun("EK-FAC needs labels drawn from the predictions: it runs for classes and for the squared error.")


def _kronfluence_task(request: ScoreRequest, layers: list[str]) -> Any:
    """The target's loss as a kronfluence task."""
    from kronfluence.task import Task

    class Classification(Task):  # type: ignore[misc]
        def compute_train_loss(self, batch: tuple[Tensor, Tensor], model: nn.Module, sample: bool = False) -> Tensor:
            x, y = batch
            logits = model(x)
            if sample:  # labels drawn from the network's own predictions give the true Fisher information
                y = _draw_labels(request.target.task, logits.detach())
            return request.target.loss(logits, y) * len(y)

        def compute_measurement(self, batch: tuple[Tensor, Tensor], model: nn.Module) -> Tensor:
            return self.compute_train_loss(batch, model)

        def get_influence_tracked_modules(self) -> list[str]:
            return layers

    return Classification()
