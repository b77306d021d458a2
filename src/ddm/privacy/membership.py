"""Membership inference: attack scores that tell training images (members) from other images, and their success.

A higher score means that an image is more likely a member. The scores depend on what the attacker has:

    the synset                distance to its images, and the loss of a student network trained only on it
    the model                 loss, log-odds, entropy and gradient norm
    both                      also the change of the model's loss on the image along the synset's directions d_κ
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddm.curvature.clipping import sample_gradients
from ddm.training.target import Target
from ddm.truth.effects import log_odds

Scores = dict[str, np.ndarray]
"""Scores ``(n,)`` of n images, by the name of the attack."""

_Fold = tuple[np.ndarray, np.ndarray]
"""Values for the members and for the other images of a fold."""

_FOLDS, _DRAWS = 5, 100
"""Number of cross-validation folds and of bootstrap draws."""

_BATCH = 128
"""Number of images whose gradients are computed at once."""


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """Probability that a member scores higher than another image; ties count half."""
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([members, others]))[: len(members)]
    pairs = len(members) * len(others)
    return float((ranks.sum() - len(members) * (len(members) + 1) / 2) / pairs)


def true_positive_rate(members: np.ndarray, others: np.ndarray, false_positive_rate: float = 0.01) -> float:
    """Fraction of members above the threshold that at most ``false_positive_rate`` of the other images exceed."""
    allowed = int(false_positive_rate * len(others))
    threshold = np.sort(others)[::-1][allowed]
    return float((members > threshold).mean())


@dataclass(frozen=True, eq=False)
class AttackResult:
    """How well an attack tells members from other images.

    auc:                area under the ROC curve
    bootstrap_aucs:     AUC ``(D,)`` on resampled images; attacks on the same images use the same draws
    true_positive_rate: fraction of members found at 1 % false positives
    """

    auc: float
    bootstrap_aucs: np.ndarray
    true_positive_rate: float

    @property
    def error(self) -> float:
        """The standard error of the AUC."""
        return float(np.std(self.bootstrap_aucs, ddof=1))

    def gain_over(self, other: AttackResult) -> tuple[float, float]:
        """The AUC gained over another attack on the same images, and the standard error of that gain."""
        return self.auc - other.auc, float(np.std(self.bootstrap_aucs - other.bootstrap_aucs, ddof=1))


def attack_membership(scores: Mapping[str, np.ndarray], member: np.ndarray) -> AttackResult:
    """Combine scores by logistic regression on their ranks, cross-validated; ``member (n,)`` is the truth.

    The attacker knows the membership of four fifths of the images and guesses the rest, in turn for each fold. Each
    fold has its own regression, whose scores have no common scale, so the AUC is averaged over folds.

    The bootstrap resamples images within folds, so that no regression is tested on an image it was fitted on. Every
    draw fits the regressions again, so the error includes how much they depend on the images. It tends to be too large
    rather than too small.
    """
    features, folds = _normal_ranks(scores), _folds(member)
    held_out = _held_out_scores(features, folds)
    rng = np.random.default_rng(0)
    aucs = [_mean_auc(_held_out_scores(features, _resample(folds, rng))) for _ in range(_DRAWS)]
    rate = float(np.mean([true_positive_rate(*fold) for fold in held_out]))
    return AttackResult(_mean_auc(held_out), np.array(aucs), rate)


def _normal_ranks(scores: Mapping[str, np.ndarray]) -> np.ndarray:
    """Ranks of the scores, mapped to quantiles of a normal distribution ``(n, scores)``."""
    from scipy.stats import norm, rankdata

    ranks = np.stack([rankdata(np.nan_to_num(values)) for values in scores.values()], 1)
    quantiles: np.ndarray = norm.ppf((ranks - 0.5) / len(ranks))
    return quantiles


def _folds(member: np.ndarray) -> list[_Fold]:
    """Positions of the members and of the other images of each fold."""
    from sklearn.model_selection import StratifiedKFold

    split = StratifiedKFold(_FOLDS, shuffle=True, random_state=0).split(member, member)
    return [(rows[member[rows]], rows[~member[rows]]) for _, rows in split]


def _resample(folds: Sequence[_Fold], rng: np.random.Generator) -> list[_Fold]:
    """Draw as many images from each fold as it has, with replacement."""
    return [(rng.choice(members, len(members)), rng.choice(others, len(others))) for members, others in folds]


def _held_out_scores(features: np.ndarray, folds: Sequence[_Fold]) -> list[_Fold]:
    """Scores of the members and of the other images of each fold, by a regression fitted on the other folds."""
    from sklearn.linear_model import LogisticRegression

    held_out = []
    for held, (members, others) in enumerate(folds):
        known = [fold for number, fold in enumerate(folds) if number != held]
        inside, outside = (np.concatenate(rows) for rows in zip(*known, strict=True))
        rows, labels = np.concatenate([inside, outside]), np.repeat([1, 0], [len(inside), len(outside)])
        regression = LogisticRegression(max_iter=1000).fit(features[rows], labels)
        held_out.append(
            (regression.decision_function(features[members]), regression.decision_function(features[others]))
        )
    return held_out


def _mean_auc(held_out: Sequence[_Fold]) -> float:
    return float(np.mean([auc(members, others) for members, others in held_out]))


def model_scores(target: Target, x: Tensor, y: Tensor) -> Scores:
    """Scores of an attacker who has only the model."""
    logits = target.outputs(x)
    log_probabilities = logits.log_softmax(1)
    norms = [
        sample_gradients(target, target.theta, target.fixed, *part).norm(dim=1)
        for part in zip(x.split(_BATCH), y.split(_BATCH), strict=True)
    ]
    return {
        "loss": -_losses(logits, y),
        "log-odds": log_odds(logits, y).numpy(),
        "entropy": (log_probabilities.exp() * log_probabilities).sum(1).double().numpy(),
        "gradient norm": -torch.cat(norms).double().numpy(),
    }


def synset_scores(near: Mapping[str, np.ndarray], student: nn.Module, x: Tensor, y: Tensor) -> Scores:
    """Scores of an attacker who has only the synset.

    near:    distances ``(n,)`` to the nearest synthetic image, by measure
    student: a network trained on the synset
    """
    with torch.no_grad():
        losses = _losses(student(x), y)
    return {**{f"nearest image, {name}": -distance for name, distance in near.items()}, "loss of a student": -losses}


def alignment_scores(
    gradients: Mapping[str, tuple[Tensor, Tensor]], parents: np.ndarray | None, labels: np.ndarray
) -> Scores:
    """Scores of an attacker who has both, from products g_i·d_κ and cosines ``(n, K)``, by name.

    parents: the class of each group ``(K,)``. Only groups of the image's class count; None counts all groups.
    labels:  labels of the images ``(n,)``
    """
    own = np.ones((len(labels), 1), bool) if parents is None else labels[:, None] == parents
    scores: Scores = {}
    for name, values in gradients.items():
        for kind, table in zip(("rise of the loss", "cosine"), values, strict=True):
            in_class = np.where(own, table.double().numpy(), np.nan)
            scores[f"{name}: largest {kind}"] = np.nanmax(in_class, 1)
            scores[f"{name}: mean {kind}"] = np.nanmean(in_class, 1)
    return scores


def gradient_alignments(
    target: Target, checkpoints: Sequence[int], weights: Sequence[float], x: Tensor, y: Tensor, directions: Tensor
) -> tuple[Tensor, Tensor]:
    """g_i·d_κ and cosines ``(n, K)`` with g = Σ_t ω_t ∇L(θ_t; x_i, y_i), for directions ``(K, P)``."""
    products, norms = [], []
    for inputs, labels in zip(x.split(_BATCH), y.split(_BATCH), strict=True):
        gradients = torch.zeros(len(inputs), target.flat.size).to(target.theta)
        for t, weight in zip(checkpoints, weights, strict=True):
            gradients += weight * sample_gradients(target, *target.at(t), inputs, labels)
        products.append(gradients @ directions.T)
        norms.append(gradients.norm(dim=1))
    values = torch.cat(products).cpu()
    tiny = torch.finfo(values.dtype).tiny
    lengths = torch.cat(norms)[:, None].cpu() * directions.norm(dim=1).cpu()
    return values, values / lengths.clamp(min=tiny)


def train_student(network: nn.Module, images: Tensor, targets: Tensor, steps: int) -> nn.Module:
    """Train a copy of the network on images ``(B, ...)`` with soft targets ``(B, L)``; negative targets count as 0."""
    student = copy.deepcopy(network).train()
    targets = targets.clamp(min=0)
    targets = targets / targets.sum(1, keepdim=True).clamp(min=1e-12)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(student(images), targets).backward()
        optimizer.step()
    return student.eval()


def _losses(logits: Tensor, y: Tensor) -> np.ndarray:
    losses: np.ndarray = F.cross_entropy(logits, y.to(logits.device), reduction="none").double().cpu().numpy()
    return losses
