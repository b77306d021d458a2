"""EK-FAC influence functions (Grosse et al., 2023) with kronfluence.

H is taken to be the Fisher information, a block a layer, each with the eigenvectors of a Kronecker product. Only
convolutions and linear layers are tracked: the parameters of normalisation layers are taken not to move.
"""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ddm.baselines.effects import influences, sums
from ddm.baselines.peers import peer
from ddm.baselines.protocol import CannotRun, Question, Scores

_BATCH = 128
_QUERIES = 32


def ekfac(question: Question, damping: float | None = None) -> Scores:
    """``(1/n) Σ_{i∈κ} g_iᵀ (F + λI)⁻¹ g_z``, with λ a tenth of the mean eigenvalue of each layer unless it is given."""
    target = question.target
    # Inside another, because kronfluence cannot replace a network that is a single layer.
    network = nn.Sequential(copy.deepcopy(target.network)).float()
    layers = _layers(network)
    if not layers:
        raise CannotRun("kronfluence cannot run on this network: it has no trained convolution and no linear layer.")
    with peer("kronfluence", question.seed), tempfile.TemporaryDirectory() as folder:
        from kronfluence.analyzer import Analyzer, prepare_model
        from kronfluence.arguments import ScoreArguments

        task = _task(question, layers)
        analyzer = Analyzer(
            "ekfac", prepare_model(network, task), task, cpu=True, disable_tqdm=True, output_dir=folder, log_level=100
        )
        train, test, validation = (
            TensorDataset(*samples.batch()) for samples in (question.train, question.test, question.validation)
        )
        analyzer.fit_all_factors("factors", train, per_device_batch_size=_BATCH)
        for name, queries in (("test", test), ("validation", validation)):
            analyzer.compute_pairwise_scores(
                name,
                "factors",
                queries,
                train,
                per_device_query_batch_size=_QUERIES,
                per_device_train_batch_size=_BATCH,
                score_args=ScoreArguments(damping_factor=damping, aggregate_query_gradients=name == "validation"),
            )
        loss, mean = (
            sums(question.partition, analyzer.load_pairwise_scores(name)["all_modules"].T) / len(train)
            for name in ("test", "validation")
        )
        factors = analyzer.load_eigendecomposition("factors") | analyzer.load_lambda_matrices("factors")
        kept = sum(tensor.nbytes for part in factors.values() for tensor in part.values())
    return influences(loss, mean[:, 0] / len(question.validation), kept)


def _layers(network: nn.Module) -> list[str]:
    """The layers that kronfluence knows and that were trained."""
    return [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and all(p.requires_grad for p in module.parameters(recurse=False))
    ]


def _task(question: Question, layers: list[str]) -> Any:
    """The target's loss in kronfluence's terms."""
    from kronfluence.task import Task

    class Classification(Task):  # type: ignore[misc]
        def compute_train_loss(self, batch: tuple[Tensor, Tensor], model: nn.Module, sample: bool = False) -> Tensor:
            x, y = batch
            logits = model(x)
            if sample:  # labels drawn from what the network predicts make this the Fisher information
                y = torch.multinomial(logits.detach().softmax(1), 1).flatten()
            return question.target.loss(logits, y) * len(y)

        def compute_measurement(self, batch: tuple[Tensor, Tensor], model: nn.Module) -> Tensor:
            return self.compute_train_loss(batch, model)

        def get_influence_tracked_modules(self) -> list[str]:
            return layers

    return Classification()
