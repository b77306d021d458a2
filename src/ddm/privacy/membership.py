"""Membership inference: was an image among the training data? Scores that say so, and how often they are right.

A higher score says that an image is a member. What an attacker knows decides which scores there are:

    the synset                nearness to its images, and the loss of a network trained on it alone
    the model                 loss, margin, entropy and gradient norm
    both                      how the model's loss on the image moves along the directions d_κ of the synset
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddm.clipping import sample_gradients
from ddm.effects import log_odds
from ddm.target import Target

Scores = dict[str, np.ndarray]
"""A score ``(n,)`` for each of n images, by what it is made of."""

_Fold = tuple[np.ndarray, np.ndarray]
"""What there is of its members and of its others."""

_FOLDS, _DRAWS = 5, 100
"""Of the attacker who knows some members, and of the bootstrap."""

_BATCH = 128
"""Images whose gradients are held at once."""


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """Probability that a member's score exceeds another's; ties count half."""
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    pairs = len(members) * len(others)
    return float((ranks.sum() - len(members) * (len(members) + 1) / 2) / pairs)


def caught(members: np.ndarray, others: np.ndarray, rate: float = 0.01) -> float:
    """The fraction of members above the score that at most ``rate`` of the others exceed."""
    allowed = int(rate * len(others))
    limit = np.sort(others)[::-1][allowed]
    return float((members > limit).mean())


@dataclass(frozen=True, eq=False)
class Attacked:
    """How well an attacker tells members from others.

    area:   AUC
    drawn:  AUC ``(D,)`` of the same attack on images drawn again; the same draws for every attacker of the same images
    caught: members caught at one false alarm in a hundred
    """

    area: float
    drawn: np.ndarray
    caught: float

    @property
    def error(self) -> float:
        """The standard error of the AUC."""
        return float(np.std(self.drawn, ddof=1))

    def gain(self, other: Attacked) -> tuple[float, float]:
        """What this AUC has over that of another attacker of the same images, and its standard error."""
        return self.area - other.area, float(np.std(self.drawn - other.drawn, ddof=1))


def attacked(scores: Mapping[str, np.ndarray], member: np.ndarray) -> Attacked:
    """An attacker who combines scores, and knows of four fifths of the images whether they are members ``(n,)``.

    Logistic regression on the ranks of the scores, asked about the last fifth, in turn. Each fold has an attacker of
    its own, so an AUC is the mean of those within folds: scores of two attackers have no common scale, and one that
    knows an image ranks the others against it. An image drawn again stays in its fold, so that no attacker is asked
    about what it knows, and every draw is attacked anew: how far the attackers themselves depend on the images is part
    of the error, which is rather too large than too small.
    """
    features, folds = _normal_ranks(scores), _folds(member)
    answers = _answers(features, folds)
    rng = np.random.default_rng(0)
    drawn = [_mean_auc(_answers(features, _drawn_again(folds, rng))) for _ in range(_DRAWS)]
    return Attacked(_mean_auc(answers), np.array(drawn), float(np.mean([caught(*fold) for fold in answers])))


def _normal_ranks(scores: Mapping[str, np.ndarray]) -> np.ndarray:
    """Ranks of the scores as quantiles of a normal distribution ``(n, scores)``."""
    from scipy.stats import norm, rankdata

    ranks = np.stack([rankdata(np.nan_to_num(values)) for values in scores.values()], 1)
    quantiles: np.ndarray = norm.ppf((ranks - 0.5) / len(ranks))
    return quantiles


def _folds(member: np.ndarray) -> list[_Fold]:
    """Positions of the members and of the others of each fold."""
    from sklearn.model_selection import StratifiedKFold

    split = StratifiedKFold(_FOLDS, shuffle=True, random_state=0).split(member, member)
    return [(rows[member[rows]], rows[~member[rows]]) for _, rows in split]


def _drawn_again(folds: Sequence[_Fold], rng: np.random.Generator) -> list[_Fold]:
    """As many images of each fold, drawn with replacement."""
    return [(rng.choice(members, len(members)), rng.choice(others, len(others))) for members, others in folds]


def _answers(features: np.ndarray, folds: Sequence[_Fold]) -> list[_Fold]:
    """Scores of the members and of the others of each fold, by an attacker who knows those of the other folds."""
    from sklearn.linear_model import LogisticRegression

    found = []
    for held, (members, others) in enumerate(folds):
        known = [fold for number, fold in enumerate(folds) if number != held]
        inside, outside = (np.concatenate(rows) for rows in zip(*known, strict=True))
        rows, labels = np.concatenate([inside, outside]), np.repeat([1, 0], [len(inside), len(outside)])
        attacker = LogisticRegression(max_iter=1000).fit(features[rows], labels)
        found.append((attacker.decision_function(features[members]), attacker.decision_function(features[others])))
    return found


def _mean_auc(answers: Sequence[_Fold]) -> float:
    return float(np.mean([auc(members, others) for members, others in answers]))


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
