"""Scores: how good a model is, in the one or two numbers that its task is usually judged by."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddm.answers.objectives import Objective, resolve
from ddm.data.samples import Samples
from ddm.data.tasks import Task
from ddm.training.target import dtype_of

_JUDGED_BY = {"multilabel": ("accuracy", "f1"), "regression": ("absolute-error", "r2"), "tokens": ("accuracy",)}


def objectives_judging(task: Task) -> list[Objective]:
    """The objectives that a task is judged by: accuracy where samples have classes."""
    return [resolve(name, task) for name in _JUDGED_BY.get(task.kind, ("accuracy",))]


def score(network: nn.Module, samples: Samples, task: Task, batch_size: int = 512) -> dict[str, float]:
    """Each of these objectives for a network in evaluation mode, on all samples."""
    outputs = outputs_of(network, samples, task, batch_size)
    labels = samples.labels.to(outputs.device)
    judged = {each.name: each.values([outputs[None]], outputs, labels) for each in objectives_judging(task)}
    return {name: float(value) for name, value in judged.items()}


def outputs_of(network: nn.Module, samples: Samples, task: Task, batch_size: int = 512) -> Tensor:
    """Outputs ``(n, L)`` of a network in evaluation mode."""
    device, dtype = next(network.parameters()).device, dtype_of(network)
    parts = torch.arange(len(samples)).split(batch_size)
    with torch.no_grad():
        return torch.cat([task.outputs(network, samples.batch(rows)[0].to(device, dtype)) for rows in parts])
