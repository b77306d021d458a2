"""Membership inference: was an image among the training data? Scores that say so, and how often they are right.

A higher score says that an image is a member. What an attacker knows decides which scores there are:

    the synset                nearness to its images, and the loss of a network trained on it alone
    the model                 loss, margin, entropy and gradient norm
    both                      how the model's loss on the image moves along the directions d_κ of the synset
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddm.clipping import sample_gradients
from ddm.effects import log_odds
from ddm.target import Target

Scores = dict[str, np.ndarray]
"""A score ``(n,)`` for each of n images, by what it is made of."""

_FOLDS, _DRAWS = 5, 200
"""Of the attacker who knows some members, and of the bootstrap."""

_BATCH = 128
"""Images whose gradients are held at once."""


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """Probability that a member's score exceeds another's; ties count half."""
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    pairs = len(members) * len(others)
    return float((ranks.sum() - len(members) * (len(members) + 1) / 2) / pairs)


def auc_error(area: float, members: int, others: int) -> float:
    """The standard error of an AUC (Hanley and McNeil, 1982)."""
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    variance = area * (1 - area) + (members - 1) * (q1 - area**2) + (others - 1) * (q2 - area**2)
    return float(np.sqrt(max(variance, 0.0) / (members * others)))


def caught(members: np.ndarray, others: np.ndarray, rate: float = 0.01) -> float:
    """The fraction of members above the score that at most ``rate`` of the others exceed."""
    allowed = int(rate * len(others))
    limit = np.sort(others)[::-1][allowed]
    return float((members > limit).mean())


def combined(scores: Mapping[str, np.ndarray], member: np.ndarray) -> np.ndarray:
    """One score ``(n,)`` of many, by an attacker who knows of all other images whether they are members ``(n,)``.

    Logistic regression on the ranks of the scores, fitted on four fifths and asked about the last, in turn.
    """
    from scipy.stats import norm, rankdata
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    ranks = np.stack([rankdata(np.nan_to_num(values)) for values in scores.values()], 1)
    features = norm.ppf((ranks - 0.5) / len(ranks))
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0)
    found = cross_val_predict(LogisticRegression(max_iter=1000), features, member, cv=folds, method="decision_function")
    return np.asarray(found)


def gained(with_it: np.ndarray, without: np.ndarray, member: np.ndarray) -> tuple[float, float]:
    """What one score's AUC has over another's on the same images, and its standard error by bootstrap."""

    def difference(members: np.ndarray, others: np.ndarray) -> float:
        return auc(with_it[members], with_it[others]) - auc(without[members], without[others])

    inside, outside = np.flatnonzero(member), np.flatnonzero(~member)
    rng = np.random.default_rng(0)
    drawn = [difference(rng.choice(inside, len(inside)), rng.choice(outside, len(outside))) for _ in range(_DRAWS)]
    return difference(inside, outside), float(np.std(drawn, ddof=1))


def model_scores(target: Target, x: Tensor, y: Tensor) -> Scores:
    """From the model alone."""
    logits = target.outputs(x)
    chances = logits.log_softmax(1)
    norms = [
        sample_gradients(target, target.theta, target.fixed, *part).norm(dim=1)
        for part in zip(x.split(_BATCH), y.split(_BATCH), strict=True)
    ]
    return {
        "loss": -_losses(logits, y),
        "log-odds": log_odds(logits, y).numpy(),
        "entropy": (chances.exp() * chances).sum(1).double().numpy(),
        "gradient norm": -torch.cat(norms).double().numpy(),
    }


def synset_scores(near: Mapping[str, np.ndarray], student: nn.Module, x: Tensor, y: Tensor) -> Scores:
    """From the synset alone: distances ``(n,)`` to its nearest image, and the loss of a network trained on it."""
    with torch.no_grad():
        losses = _losses(student(x), y)
    return {**{f"nearest image, {name}": -distance for name, distance in near.items()}, "loss of a student": -losses}


def alignment_scores(
    gradients: Mapping[str, tuple[Tensor, Tensor]], parents: np.ndarray | None, labels: np.ndarray
) -> Scores:
    """From directions and gradients, given by name as products g_i·d_κ and cosines ``(n, K)`` each.

    parents: the class of each group ``(K,)``: the groups of an image's own class are looked at; None looks at all
    labels:  of the images ``(n,)``
    """
    own = np.ones((len(labels), 1), bool) if parents is None else labels[:, None] == parents
    scores: Scores = {}
    for name, values in gradients.items():
        for kind, table in zip(("rise of the loss", "cosine"), values, strict=True):
            known = np.where(own, table.double().numpy(), np.nan)
            scores[f"{name}: largest {kind}"] = np.nanmax(known, 1)
            scores[f"{name}: mean {kind}"] = np.nanmean(known, 1)
    return scores


def products(
    target: Target, checkpoints: Sequence[int], weights: Sequence[float], x: Tensor, y: Tensor, directions: Tensor
) -> tuple[Tensor, Tensor]:
    """g_i·d_κ and cosines ``(n, K)`` with g = Σ_t ω_t ∇L(θ_t; x_i, y_i), for directions ``(K, P)``."""
    found, norms = [], []
    for inputs, labels in zip(x.split(_BATCH), y.split(_BATCH), strict=True):
        pulled = torch.zeros(len(inputs), target.flat.size).to(target.theta)
        for t, weight in zip(checkpoints, weights, strict=True):
            pulled += weight * sample_gradients(target, *target.at(t), inputs, labels)
        found.append(pulled @ directions.T)
        norms.append(pulled.norm(dim=1))
    values = torch.cat(found).cpu()
    tiny = torch.finfo(values.dtype).tiny
    lengths = torch.cat(norms)[:, None].cpu() * directions.norm(dim=1).cpu()
    return values, values / lengths.clamp(min=tiny)


def taught(network: nn.Module, images: Tensor, targets: Tensor, steps: int) -> nn.Module:
    """A network trained on images ``(B, ...)`` with soft targets ``(B, L)``, whose negative parts are left out."""
    student = copy.deepcopy(network).train()
    wanted = targets.clamp(min=0)
    wanted = wanted / wanted.sum(1, keepdim=True).clamp(min=1e-12)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(student(images), wanted).backward()
        optimizer.step()
    return student.eval()


def _losses(logits: Tensor, y: Tensor) -> np.ndarray:
    found: np.ndarray = F.cross_entropy(logits, y.to(logits.device), reduction="none").double().cpu().numpy()
    return found
