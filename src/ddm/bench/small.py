"""Privacy attacks on synsets of small groups (1, 4 and 16 samples), compared with groups of normal size.

The attacker has the whole run: the model, its checkpoints and the synset. The attacker also has fresh images, from
which to estimate the curvature Ĝ and undo the solve of response matching: ĝ_κ = (Ĝ + Λ) d_κ.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ddm.bench.output import Row
from ddm.bench.problem import Problem
from ddm.counterfactual.counterfactuals import Counterfactuals
from ddm.curvature.rows import CurvatureRows
from ddm.curvature.step_weights import StepWeights
from ddm.data.inputs import tensor_of
from ddm.distil import Settings, distil
from ddm.distil.checkpoints import real_checkpoints
from ddm.distil.response.pull import GroupSamples, group_pulls
from ddm.groups.features import features_of
from ddm.groups.partition import Partition
from ddm.privacy.distances import psnr, ssim, to_images
from ddm.privacy.membership import auc, gradient_alignments
from ddm.privacy.reconstruction import invert_gradients

SIZES = (1, 4, 16)
"""Sizes of small groups, in samples."""

_GROUPS = 6
"""Number of groups of each size; each lies within one class."""

_IMAGES = 4
"""Number of images to reconstruct for each size, from at least two groups."""

_MOST_IMAGES = 8
"""Maximum number of images to reconstruct per group."""

_CHECKPOINTS, _CURVATURE_ROWS = 3, 4096
"""Number of checkpoints that the attack uses, and maximum rows of the estimated curvature."""

_STEPS_FACTOR = 2
"""Steps of a reconstruction per step of the distillation."""

_FRESH = 100
"""Maximum number of test images of a class to compare a group's members with."""


def guess_pulls(
    problem: Problem, directions: Mapping[str, Tensor], settings: Mapping[str, Settings]
) -> dict[str, Tensor]:
    """The pulls ``(K, P)`` that an attacker estimates from directions ``(K, P)``, by kind of synset.

    For response matching the estimate multiplies by the curvature of public images; otherwise it is the direction.
    """
    target, public = problem.target, problem.data.validation
    responses = [name for name in directions if settings[name].matching == "response"]
    stacked = torch.cat([directions[name] for name in responses])
    checkpoints = real_checkpoints(Settings(), len(target.trajectory) - 1)
    weights = StepWeights(target, checkpoints, public)
    total = stacked * weights.damping(target)
    count = min(_CURVATURE_ROWS, problem.setup.settings.curvature or _CURVATURE_ROWS)
    for rows in CurvatureRows(target, public, checkpoints, _uniform(weights), count, problem.setup.seed).batches():
        total += (stacked @ rows.T) @ rows
    undone = dict(zip(responses, total.split([len(directions[name]) for name in responses]), strict=True))
    return {name: undone.get(name, directions[name]) for name in directions}


def _uniform(weights: StepWeights) -> Tensor:
    """ω ``(T,)``: this benchmark trains with SGD, for which all parameters have the same."""
    uniform = weights.uniform
    assert uniform is not None
    return uniform


def small_partition(problem: Problem) -> Partition:
    """Groups of each size, each within one class and named ``SIZE-NUMBER``, and one group of all other samples."""
    labels = problem.train.labels.numpy()
    rng = np.random.default_rng([problem.setup.seed, 17])
    unused = [rng.permutation(np.flatnonzero(labels == label)).tolist() for label in np.unique(labels)]
    groups, names = np.full(len(labels), -1), list[str]()
    for size in SIZES:
        for rows in [rows for rows in unused if len(rows) > size][:_GROUPS]:
            groups[[rows.pop() for _ in range(size)]] = len(names)
            names.append(f"{size}-{len(names)}")
    groups[groups < 0] = len(names)
    return Partition(groups, (*names, "others"), None, problem.train.classes)


class SmallGroups:
    """Attacks on small groups and on two of normal size, by kind of synset.

    settings: distillation settings of each kind
    normal:   estimated pulls ``(K, P)`` of the groups of normal size, by kind
    """

    def __init__(self, problem: Problem, settings: Mapping[str, Settings], normal: Mapping[str, Tensor]) -> None:
        self.problem, self.partition = problem, small_partition(problem)
        self.settings, self._normal = settings, normal
        spaced = np.linspace(0, len(problem.target.trajectory) - 1, _CHECKPOINTS).round().astype(int)
        self.checkpoints = [int(t) for t in np.unique(spaced)]
        self.weights = _uniform(StepWeights(problem.target, self.checkpoints, problem.train)).tolist()

    @cached_property
    def pulls(self) -> dict[str, Tensor]:
        """Pulls ``(K, P)`` of the small groups: estimated from every kind of synset, and the true ones (``pulls``)."""
        directions = {name: self._directions(kind) for name, kind in self.settings.items()}
        return {**guess_pulls(self.problem, directions, self.settings), "pulls": self._true_pulls(self.partition)}

    @cached_property
    def normal(self) -> dict[str, Tensor]:
        """The same for the groups of normal size."""
        return {**self._normal, "pulls": self._true_pulls(self.problem.partition)}

    def _directions(self, settings: Settings) -> Tensor:
        problem = self.problem
        folder = problem.distillation_folder(settings).with_suffix(".small")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fewer than")  # small on purpose
            distilled = distil(problem.target, problem.train, self.partition, settings, folder, "serial")
        return Counterfactuals(problem.target, distilled.made_synset).directions(None)

    def _true_pulls(self, partition: Partition) -> Tensor:
        """True pulls ``(K, P)``, from at most as many samples per group as the distillation uses."""
        target, settings = self.problem.target, self.problem.setup.settings
        checkpoints = real_checkpoints(settings, len(target.trajectory) - 1)
        groups = [GroupSamples(partition.rows(k)[: settings.samples], 1.0) for k in range(len(partition))]
        weights = StepWeights(target, checkpoints, self.problem.train)
        return group_pulls(target, self.problem.train, checkpoints, weights, groups, "serial")

    def groups_of_size(self, size: int) -> list[int]:
        """Numbers of the small groups of a size."""
        return [k for k, name in enumerate(self.partition.names) if name.startswith(f"{size}-")]

    def group_label(self, rows: np.ndarray) -> int:
        """The class of the group with these rows."""
        return int(self.problem.train.labels[int(rows[0])])

    def test_inputs(self, label: int) -> Tensor:
        """Inputs of test samples of a class."""
        test = self.problem.data.test
        return test.tensors(np.flatnonzero(test.labels.numpy() == label)[:_FRESH])[0]

    def similar_test_inputs(self, group: int) -> Tensor:
        """Inputs of test samples that would belong to a group of normal size.

        They have its class, and in features its centre is the nearest of that class.
        """
        problem, test = self.problem, self.problem.data.test
        partition = problem.partition
        label = self.group_label(partition.rows(group))
        of_class = np.flatnonzero(test.labels.numpy() == label)
        if partition.parents is None:
            return test.tensors(of_class[:_FRESH])[0]
        rivals = np.flatnonzero(partition.parents == label)
        features = features_of(problem.train, None, problem.target)
        centres = np.stack([features[partition.rows(int(k))].mean(0) for k in rivals])
        points = features_of(test[of_class], None, problem.target)
        nearest = rivals[((points[:, None] - centres) ** 2).sum(2).argmin(1)]
        inside = of_class[nearest == group]
        return test.tensors((inside if len(inside) else of_class)[:_FRESH])[0]

    # --- membership ---

    @cached_property
    def membership_aucs(self) -> dict[int, dict[str, list[float]]]:
        """Membership AUC of each small group, by size and kind: by the cosine of gradients with the group's pull."""
        aucs: dict[int, dict[str, list[float]]] = {}
        for size in SIZES:
            aucs[size] = {name: [] for name in self.pulls}
            for k in self.groups_of_size(size):
                rows = self.partition.rows(k)
                x, others = self.problem.train.tensors(rows)[0], self.test_inputs(self.group_label(rows))
                y = torch.full((len(x) + len(others),), self.group_label(rows))
                directions = torch.stack([pulls[k] for pulls in self.pulls.values()])
                _, cosines = gradient_alignments(
                    self.problem.target, self.checkpoints, self.weights, torch.cat([x, others]), y, directions
                )
                for name, column in zip(self.pulls, cosines.T.numpy(), strict=True):
                    aucs[size][name].append(auc(column[: len(x)], column[len(x) :]))
        return aucs

    # --- reconstruction ---

    @cached_property
    def reconstructions(self) -> dict[int | str, list[_Reconstruction]]:
        """Reconstructed groups, by size (``normal`` for those of normal size)."""
        rebuilt: dict[int | str, list[_Reconstruction]] = {}
        for size in SIZES:
            chosen = self.groups_of_size(size)[: max(2, _IMAGES // size)]
            members = [self.partition.rows(k) for k in chosen]
            fresh = [self.test_inputs(self.group_label(rows)) for rows in members]
            rebuilt[size] = self._reconstruct(
                members, fresh, {name: pulls[chosen] for name, pulls in self.pulls.items()}
            )
        chosen = [0, len(self.problem.partition) - 1]
        members = [self.problem.partition.rows(k) for k in chosen]
        fresh = [self.similar_test_inputs(k) for k in chosen]
        rebuilt["normal"] = self._reconstruct(
            members, fresh, {name: pulls[chosen] for name, pulls in self.normal.items()}
        )
        return rebuilt

    def _reconstruct(
        self, members: list[np.ndarray], fresh: list[Tensor], pulls: Mapping[str, Tensor]
    ) -> list[_Reconstruction]:
        """Reconstruct G groups, given by their members' rows, from the pulls ``(G, P)`` of every kind at once."""
        if not members:
            return []
        problem, count = self.problem, min(_MOST_IMAGES, *(len(rows) for rows in members))
        labels = torch.tensor([[self.group_label(rows)] * count for rows in members]).repeat(len(pulls), 1)
        steps = _STEPS_FACTOR * problem.setup.settings.steps
        images = invert_gradients(
            problem.target,
            self.checkpoints,
            self.weights,
            torch.cat(list(pulls.values())),
            labels,
            problem.train.shape,
            _input_range(problem),
            steps,
            problem.setup.seed,
        )
        parts = images.split(len(members))
        return [
            self._compare(name, rows, others, to_images(problem.train, image))
            for name, part in zip(pulls, parts, strict=True)
            for rows, others, image in zip(members, fresh, part, strict=True)
        ]

    def _compare(self, name: str, rows: np.ndarray, others: Tensor, images: Tensor) -> _Reconstruction:
        """Compare reconstructed images with the group's members and with fresh test images."""
        train = self.problem.train
        own = to_images(train, train.tensors(rows)[0])
        fresh = to_images(train, others)
        member_ssim, fresh_ssim = (ssim(images, shown).amax(0).numpy() for shown in (own, fresh))
        member_psnr, fresh_psnr = (psnr(images, shown).amax(0).numpy() for shown in (own, fresh))
        return _Reconstruction(
            name,
            images,
            own,
            {
                "auc": auc(member_ssim, fresh_ssim),
                "ssim": float(member_ssim.mean()),
                "fresh_ssim": float(fresh_ssim.mean()),
                "psnr": float(member_psnr.mean()),
                "fresh_psnr": float(fresh_psnr.mean()),
            },
        )

    # --- rows, notes and images of the report ---

    def row(self, name: str) -> Row:
        """Membership and reconstruction columns of a kind of synset, by group size."""
        row: Row = {}
        for size in SIZES:
            areas = self.membership_aucs[size][name]
            row |= {f"member_{size}": _mean(areas), f"member_{size}_error": _standard_error(areas)}
        for kind, groups in self.reconstructions.items():
            own = [group.figures for group in groups if group.kind == name]
            figures = {key: _mean([values[key] for values in own]) for key in (own[0] if own else ())}
            row |= {f"rebuilt_{kind}_{key}": value for key, value in figures.items()}
            if figures:
                row[f"rebuilt_{kind}"] = (
                    f"{figures['auc']:.2f} ({figures['ssim']:.2f}, fresh {figures['fresh_ssim']:.2f})"
                )
        return row

    def notes(self) -> list[str]:
        """Explanations of these columns."""
        sizes = ", ".join(str(size) for size in SIZES)
        return [
            f"Groups of {sizes}: a second synset of the same target, with {_GROUPS} groups of each size, each within "
            f"one class. The attacker has the whole run, including {len(self.checkpoints)} checkpoints. AUC tells a "
            f"group's members from up to {_FRESH} test images of its class, by the cosine of their gradients with the "
            "group's; it is averaged over groups, and its standard error is in the JSON.",
            "Reconstruction: gradient inversion (Geiping et al., 2020) with known labels and "
            f"{_STEPS_FACTOR * self.problem.setup.settings.steps} steps, for at least two groups and {_IMAGES} images "
            f"of each size, and at most {_MOST_IMAGES} images per group; *normal* are two of the usual groups. Each "
            "image is compared with its most similar reconstruction by SSIM. AUC tells members from fresh test images "
            "of the class (for normal groups: test images that would belong to the group by their features). The mean "
            "SSIM of both follows in brackets; PSNR is in the JSON.",
        ]

    def strips(self, titles: Mapping[str, str]) -> list[tuple[str, Tensor]]:
        """Image strips: training images of groups of 1, and their reconstructions from every kind of synset."""
        groups = self.reconstructions[SIZES[0]]
        first = [group for group in groups if group.kind == "pulls"]
        strips = [("groups of 1: training image", torch.cat([group.own for group in first]))]
        for name in self.pulls:
            images = torch.cat([group.images for group in groups if group.kind == name])
            strips.append((f"reconstruction: {titles.get(name, 'from its true gradient')}", images))
        return strips


@dataclass(frozen=True, eq=False)
class _Reconstruction:
    """A reconstructed group.

    kind:    kind of synset
    images:  reconstructions ``(m, C, H, W)``
    own:     the group's training images ``(n, C, H, W)``
    figures: how similar both are, by name
    """

    kind: str
    images: Tensor
    own: Tensor
    figures: dict[str, float]


def _input_range(problem: Problem) -> tuple[Tensor, Tensor]:
    """The lowest and highest values of an input, ``(C, 1, 1)`` each."""
    train = problem.train
    low, high = (0, 255) if train.pixels.dtype == torch.uint8 else (train.pixels.min(), train.pixels.max())
    whole = [torch.full((1, train.shape[0], 1, 1), float(end)).to(train.pixels.dtype) for end in (low, high)]
    black, white = (tensor_of(train.normalise(image))[0] for image in whole)
    return black, white


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def _standard_error(values: list[float]) -> float:
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")
