"""Checks of the training: did it change the network for the better, and was it recorded completely?"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch.nn import functional as F

from ddm.distil.checks.case import FEW_SAMPLES, Case, Finding, catching

_CLEAR = 2.0
"""Standard errors by which the trained network must be better than before training, and than chance."""

_LESS = 0.99
"""Training must bring the loss below this fraction of what it was before."""

_GIVE = "give the inputs and labels that it was trained on"


def loss_is_a_mean(case: Case) -> Finding | None:
    """A loss of the user's own that is not a mean over the samples of a batch, or that ``train`` minimised as a sum."""
    loss, device = case.target.loss, case.target.device
    if loss.is_torchs:
        return None
    x, y = case.x[:FEW_SAMPLES], case.y[:FEW_SAMPLES]
    reduction = loss.reduction(case.logits(-1, x).to(device), y.to(device))
    if reduction == "mean" or (reduction == "sum" and case.target.recipe is None):  # a recorder sees the sum
        return None
    return Finding(
        "the loss of a batch is not the mean of its samples' losses: give a loss that returns one value for each "
        "sample, or one of torch's losses, such as nn.CrossEntropyLoss(weight=…).",
        refused=True,
    )


def parameters_moved(case: Case) -> Finding | None:
    """Parameters that are the same before and after training, although they can be trained."""
    target = case.target
    first, last = target.state(0), target.state(-1)
    still = [name for name in target.flat.shapes if torch.equal(first[name], last[name])]
    if len(still) == len(target.flat.shapes):
        remedy = (
            "train from other weights or with another lr"
            if target.recipe is not None
            else "make the recorder before the first optimizer step, and take a snapshot after the last one"
        )
        return Finding(f"the parameters are the same at the first and at the last checkpoint: {remedy}.", refused=True)
    still = _with_gradient(case, still) if still else []
    if not still:
        return None
    named = f"'{still[0]}'" if len(still) == 1 else f"'{still[0]}' and {len(still) - 1:,} other parameters"
    return Finding(
        f"training did not change {named}: call requires_grad_(False) on parameters that the optimizer does not train, "
        "before you make the recorder."
    )


def _with_gradient(case: Case, names: Sequence[str]) -> list[str]:
    """Parameters that get a gradient in training mode. A bias before BatchNorm does not, so it may stay as it is."""
    network = copy.deepcopy(case.target.network).train()
    trained = [parameter for name, parameter in network.named_parameters() if name in case.target.flat.shapes]
    x, y = case.x[:FEW_SAMPLES].to(case.target.theta), case.y[:FEW_SAMPLES].to(case.target.device)
    with catching() as failure, torch.random.fork_rng():
        outputs = case.target.flat.outputs_of(network, x)
        found = torch.autograd.grad(case.target.loss(outputs, y), trained, materialize_grads=True)
    if failure:
        return list(names)
    norms = {name: float(part.norm()) for name, part in zip(case.target.flat.shapes, found, strict=True)}
    return [name for name in names if norms[name] > 1e-5 * max(norms.values())]


def training_did_no_harm(case: Case) -> Finding | None:
    """Samples of which the trained network knows nothing, and on which it is far worse than before training."""
    before, after, clear = case.improvement
    if case.target.data is not None or case.agreement[2] >= _CLEAR or clear > -_CLEAR or after <= 2 * before:
        return None
    return Finding(
        f"training made the network worse on these samples ({_before_and_after(case)}): {_GIVE}.", refused=True
    )


def training_helped(case: Case) -> Finding | None:
    """A network that is hardly better on the samples than before training, or than a guess."""
    before, after, clear = case.improvement
    no_better_than_before = clear < _CLEAR or after > _LESS * before
    if not case.target.task.has_classes:
        return (
            None
            if not no_better_than_before
            else Finding(
                f"training hardly lowered the loss on these samples ({before:.3g} before, {after:.3g} after): "
                f"{_GIVE}, or train it longer or with another lr."
            )
        )
    no_better_than_guess = case.agreement[2] < _CLEAR or F.cross_entropy(case.last, case.y) > 2 * case.chance
    if not no_better_than_before and not no_better_than_guess:
        return None
    remedy = f"{_GIVE}, or train it longer" if case.target.data is None else "train it longer or with another lr"
    return Finding(
        "the trained network is hardly better on these samples than a guess, or than before training "
        f"({_before_and_after(case)}): {remedy}."
    )


def _before_and_after(case: Case) -> str:
    """The facts about the training, for sentences."""
    if not case.target.task.has_classes:
        return "loss {:.3g} before training and {:.3g} after".format(*case.improvement)
    (right, chance, _), (before, after, _) = case.agreement, case.improvement
    return f"{right:.0%} right where chance gives {chance:.0%}, loss {before:.3g} before training and {after:.3g} after"


def recorded_from_the_start(case: Case) -> Finding | None:
    """A recorder that was made late: the network has learnt most of its task before the first checkpoint."""
    if not case.target.task.has_classes:
        return None
    frequencies = torch.bincount(case.y).double() / len(case.y)
    guess = -float(torch.xlogy(frequencies, frequencies).sum())
    start = float(F.cross_entropy(case.first, case.y))
    if case.target.recipe is not None or start > guess / 2:
        return None
    return Finding(
        f"the network already knew these samples at the first checkpoint (cross-entropy {start:.2g}, a guess has "
        f"{guess:.2g}), so answers cover only the training since then: make the recorder before the first optimizer "
        "step."
    )


def checkpoints_below_start(case: Case) -> Finding | None:
    """A checkpoint whose loss is far above that of the start, so that its gradients dominate all others."""
    x, y = case.x[:FEW_SAMPLES], case.y[:FEW_SAMPLES]
    classes = case.target.task.has_classes
    name, measure = ("cross-entropy", F.cross_entropy) if classes else ("loss", case.target.loss)
    limit = 2 * max(float(measure(case.first[: len(y)], y)), case.chance if classes else 0.0)
    for t in case.checkpoints[1:-1]:
        loss = float(measure(case.logits(t, x), y))
        if not loss <= limit:
            return Finding(
                f"checkpoint {t} of {case.checkpoints[-1]} has a {name} of {loss:.3g}, far above {limit / 2:.3g} at "
                "the start, and will dominate the answers: take snapshots at other steps, or train with a lower lr."
            )
    return None
