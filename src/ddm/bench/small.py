"""Small groups under attack: a synset of groups of 1, 4 and 16 samples, beside those of normal size.

The attacker has the whole run: the model, its checkpoints and the synset; and fresh images, with which the curvature of
response matching is undone: ĝ_κ = (Ĝ + Λ) d_κ.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ddm.bench.problem import Problem
from ddm.bench.report import Row
from ddm.counterfactual import Counterfactuals
from ddm.matching import Settings, distil
from ddm.matching.calibration import dampings
from ddm.matching.pairs import real_checkpoints
from ddm.matching.pulls import Pulled, pulls_of
from ddm.matching.response import Responses, pooled_weights
from ddm.partition import Partition, features_of
from ddm.privacy.distances import pictures, psnr, ssim
from ddm.privacy.membership import auc, products
from ddm.privacy.reconstruction import inverted

SIZES = (1, 4, 16)
"""Samples of small groups."""

_GROUPS = 6
"""Groups of each size, of one class each."""

_IMAGES = 4
"""Images that are reconstructed of each size, at least two groups."""

_MOST = 8
"""Images that are sought of a group, at most."""

_LOOKS, _ROWS = 3, 4096
"""Checkpoints of the attack, and rows of the curvature that is undone."""

_STEPS = 2
"""Steps of an attack for each step of a distillation."""

_FRESH = 100
"""Test images of a class, at most, that the members of a group are compared with."""


def pulls_from(
    problem: Problem, directions: Mapping[str, Tensor], settings: Mapping[str, Settings]
) -> dict[str, Tensor]:
    """The pulls ``(K, P)`` that an attacker guesses from directions ``(K, P)``: those of responses less curvature."""
    target, public = problem.target, problem.data.validation
    bent = [name for name in directions if settings[name].matching == "response"]
    stacked = torch.cat([directions[name] for name in bent])
    total = stacked * dampings(target, public)
    known = Settings(curvature=min(_ROWS, problem.setup.settings.curvature or _ROWS), seed=problem.setup.seed)
    for rows in Responses(target, public, known).curvature.rows():
        total += (stacked @ rows.T) @ rows
    undone = dict(zip(bent, total.split([len(directions[name]) for name in bent]), strict=True))
    return {name: undone.get(name, directions[name]) for name in directions}


def small_partition(problem: Problem) -> Partition:
    """Groups of each size and of one class each, named by size and number, and one of all other samples."""
    labels = problem.train.labels.numpy()
    rng = np.random.default_rng([problem.setup.seed, 17])
    left = [rng.permutation(np.flatnonzero(labels == label)).tolist() for label in np.unique(labels)]
    groups, names = np.full(len(labels), -1), list[str]()
    for size in SIZES:
        for rows in [rows for rows in left if len(rows) > size][:_GROUPS]:
            groups[[rows.pop() for _ in range(size)]] = len(names)
            names.append(f"{size}-{len(names)}")
    groups[groups < 0] = len(names)
    return Partition(groups, (*names, "others"), None, problem.train.classes)


class SmallGroups:
    """Attacks on small groups and on some of normal size, by kind of synset.

    settings: of each kind
    normal:   the guessed pulls ``(K, P)`` of the groups of normal size, by kind
    """

    def __init__(self, problem: Problem, settings: Mapping[str, Settings], normal: Mapping[str, Tensor]) -> None:
        self.problem, self.partition = problem, small_partition(problem)
        self.settings, self._normal = settings, normal
        spaced = np.linspace(0, len(problem.target.trajectory) - 1, _LOOKS).round().astype(int)
        self.checkpoints = [int(t) for t in np.unique(spaced)]
        self.weights = pooled_weights(problem.target, self.checkpoints).tolist()

    @cached_property
    def pulls(self) -> dict[str, Tensor]:
        """The pulls ``(K, P)`` of the small groups, guessed from every kind, and the true ones."""
        directions = {name: self._directions(kind) for name, kind in self.settings.items()}
        return {**pulls_from(self.problem, directions, self.settings), "pulls": self._true(self.partition)}

    @cached_property
    def normal(self) -> dict[str, Tensor]:
        """The same of the groups of normal size."""
        return {**self._normal, "pulls": self._true(self.problem.partition)}

    def _directions(self, settings: Settings) -> Tensor:
        problem = self.problem
        folder = problem.parts(settings).with_suffix(".small")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fewer than")  # they are small on purpose
            synset, _ = distil(problem.target, problem.train, self.partition, settings, folder, "serial")
        return Counterfactuals(problem.target, synset).directions(None)

    def _true(self, partition: Partition) -> Tensor:
        """The pulls themselves, of at most so many samples as are ever looked at."""
        target, settings = self.problem.target, self.problem.setup.settings
        checkpoints = real_checkpoints(settings, len(target.trajectory) - 1)
        groups = [Pulled(partition.rows(k)[: settings.samples], 1.0) for k in range(len(partition))]
        weights = pooled_weights(target, checkpoints)
        return pulls_of(target, self.problem.train, checkpoints, weights, groups, "serial")

    def numbers(self, size: int) -> list[int]:
        """The groups of a size."""
        return [k for k, name in enumerate(self.partition.names) if name.startswith(f"{size}-")]

    def label(self, rows: np.ndarray) -> int:
        """The class of a group at ``rows``."""
        return int(self.problem.train.labels[int(rows[0])])

    def fresh(self, label: int) -> Tensor:
        """Test images of a class, as inputs."""
        test = self.problem.data.test
        return test.batch(np.flatnonzero(test.labels.numpy() == label)[:_FRESH])[0]

    def alike(self, group: int) -> Tensor:
        """Test images that would be in a group of normal size: of its class, and nearest its centre in features."""
        problem, test = self.problem, self.problem.data.test
        partition = problem.partition
        label = self.label(partition.rows(group))
        of_class = np.flatnonzero(test.labels.numpy() == label)
        if partition.parents is None:
            return test.batch(of_class[:_FRESH])[0]
        rivals = np.flatnonzero(partition.parents == label)
        features = features_of(problem.train, None, problem.target)
        centres = np.stack([features[partition.rows(int(k))].mean(0) for k in rivals])
        found = features_of(test[of_class], None, problem.target)
        nearest = rivals[((found[:, None] - centres) ** 2).sum(2).argmin(1)]
        inside = of_class[nearest == group]
        return test.batch((inside if len(inside) else of_class)[:_FRESH])[0]

    # --- membership ---

    @cached_property
    def recognised(self) -> dict[int, dict[str, list[float]]]:
        """AUC of each group of each size by the cosine of a gradient with the group's pull, for every kind."""
        found: dict[int, dict[str, list[float]]] = {}
        for size in SIZES:
            found[size] = {name: [] for name in self.pulls}
            for k in self.numbers(size):
                rows = self.partition.rows(k)
                x, others = self.problem.train.batch(rows)[0], self.fresh(self.label(rows))
                y = torch.full((len(x) + len(others),), self.label(rows))
                directions = torch.stack([pulls[k] for pulls in self.pulls.values()])
                _, cosines = products(
                    self.problem.target, self.checkpoints, self.weights, torch.cat([x, others]), y, directions
                )
                for name, column in zip(self.pulls, cosines.T.numpy(), strict=True):
                    found[size][name].append(auc(column[: len(x)], column[len(x) :]))
        return found

    # --- reconstruction ---

    @cached_property
    def rebuilt(self) -> dict[int | str, list[_Rebuilt]]:
        """Reconstructed groups of each size and of normal size, of all kinds."""
        found: dict[int | str, list[_Rebuilt]] = {}
        for size in SIZES:
            chosen = self.numbers(size)[: max(2, _IMAGES // size)]
            members = [self.partition.rows(k) for k in chosen]
            fresh = [self.fresh(self.label(rows)) for rows in members]
            found[size] = self._attack(members, fresh, {name: pulls[chosen] for name, pulls in self.pulls.items()})
        chosen = [0, len(self.problem.partition) - 1]
        members = [self.problem.partition.rows(k) for k in chosen]
        fresh = [self.alike(k) for k in chosen]
        found["normal"] = self._attack(members, fresh, {name: pulls[chosen] for name, pulls in self.normal.items()})
        return found

    def _attack(self, members: list[np.ndarray], fresh: list[Tensor], pulls: Mapping[str, Tensor]) -> list[_Rebuilt]:
        """Reconstruct the groups at ``members`` of every kind at once, from their pulls ``(G, P)``."""
        if not members:
            return []
        problem, count = self.problem, min(_MOST, *(len(rows) for rows in members))
        labels = torch.tensor([[self.label(rows)] * count for rows in members]).repeat(len(pulls), 1)
        steps = _STEPS * problem.setup.settings.steps
        images = inverted(
            problem.target,
            self.checkpoints,
            self.weights,
            torch.cat(list(pulls.values())),
            labels,
            problem.train.shape,
            _range(problem),
            steps,
            problem.setup.seed,
        )
        parts = images.split(len(members))
        return [
            self._judged(name, rows, others, pictures(problem.train, image))
            for name, part in zip(pulls, parts, strict=True)
            for rows, others, image in zip(members, fresh, part, strict=True)
        ]

    def _judged(self, name: str, rows: np.ndarray, others: Tensor, images: Tensor) -> _Rebuilt:
        train = self.problem.train
        own = pictures(train, train.batch(rows)[0])
        fresh = pictures(train, others)
        alike, unlike = (ssim(images, shown).amax(0).numpy() for shown in (own, fresh))
        clear, unclear = (psnr(images, shown).amax(0).numpy() for shown in (own, fresh))
        return _Rebuilt(
            name,
            images,
            own,
            {
                "auc": auc(alike, unlike),
                "ssim": float(alike.mean()),
                "fresh_ssim": float(unlike.mean()),
                "psnr": float(clear.mean()),
                "fresh_psnr": float(unclear.mean()),
            },
        )

    # --- what is shown ---

    def row(self, name: str) -> Row:
        """What is recognised and reconstructed from a kind of synset, by the size of groups."""
        row: Row = {}
        for size in SIZES:
            areas = self.recognised[size][name]
            row |= {f"member_{size}": _mean(areas), f"member_{size}_error": _error(areas)}
        for kind, groups in self.rebuilt.items():
            own = [group.figures for group in groups if group.kind == name]
            figures = {key: _mean([values[key] for values in own]) for key in (own[0] if own else ())}
            row |= {f"rebuilt_{kind}_{key}": value for key, value in figures.items()}
            if figures:
                row[f"rebuilt_{kind}"] = (
                    f"{figures['auc']:.2f} ({figures['ssim']:.2f}, fresh {figures['fresh_ssim']:.2f})"
                )
        return row

    def notes(self) -> list[str]:
        """How to read these columns."""
        sizes = ", ".join(str(size) for size in SIZES)
        return [
            f"Groups of {sizes}: another synset of the same target, of {_GROUPS} groups of each size, each of one "
            f"class. The attacker has the whole run, {len(self.checkpoints)} checkpoints included. AUC: members of a "
            f"group against up to {_FRESH} test images of its class, by the cosine of their gradient with the group's, "
            "mean over groups; the standard error is in the JSON.",
            "Reconstruction: gradient inversion (Geiping et al., 2020), "
            f"{_STEPS * self.problem.setup.settings.steps} steps, labels known, at least two groups and "
            f"{_IMAGES} images of each size, at most {_MOST} images a group; *normal* are two of the usual groups. "
            "AUC: whether a member is more alike its best reconstruction than fresh test images of its class (of "
            "normal groups: those that would be in the group by their features) are to theirs, by SSIM, and the mean "
            "SSIM of both; PSNR is in the JSON.",
        ]

    def strips(self, titles: Mapping[str, str]) -> list[tuple[str, Tensor]]:
        """Lone training images, and what was reconstructed of them from every kind."""
        groups = self.rebuilt[SIZES[0]]
        first = [group for group in groups if group.kind == "pulls"]
        strips = [("groups of 1: training image", torch.cat([group.own for group in first]))]
        for name in self.pulls:
            images = torch.cat([group.images for group in groups if group.kind == name])
            strips.append((f"rebuilt: {titles.get(name, 'from its gradient itself')}", images))
        return strips


class _Rebuilt:
    """A reconstructed group: the kind of synset, pictures ``(m, C, H, W)``, its own ``(n, C, H, W)``, and figures."""

    def __init__(self, kind: str, images: Tensor, own: Tensor, figures: dict[str, float]) -> None:
        self.kind, self.images, self.own, self.figures = kind, images, own, figures


def _range(problem: Problem) -> tuple[Tensor, Tensor]:
    """The least and largest values of an input ``(C, 1, 1)``."""
    train = problem.train
    low, high = (0, 255) if train.raw.dtype == torch.uint8 else (train.raw.min(), train.raw.max())
    ends = [
        train.normalise(torch.full((1, train.shape[0], 1, 1), float(end)).to(train.raw.dtype))[0] for end in (low, high)
    ]
    return ends[0], ends[1]


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def _error(values: list[float]) -> float:
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")
