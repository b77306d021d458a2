"""``privacy``: how much synsets reveal about training images, compared with the model alone.

Three measures: distances to training images, membership inference, and reconstruction from small groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ddm import networks
from ddm.bench.fidelity import describe_problem
from ddm.bench.methods import settings_of
from ddm.bench.output import Report, Row
from ddm.bench.problem import Problem
from ddm.bench.small import SIZES, SmallGroups, guess_pulls
from ddm.counterfactual.counterfactuals import Counterfactuals
from ddm.data.inputs import tensor_of
from ddm.distil import Settings
from ddm.distil.gradient.start import draw_members
from ddm.distil.synset import Synset
from ddm.networks import penultimate
from ddm.plots.images import pixels
from ddm.privacy.distances import Measure, Nearest, find_nearest, rms_distance, ssim_distance, to_images
from ddm.privacy.membership import (
    AttackResult,
    Scores,
    alignment_scores,
    attack_membership,
    auc,
    gradient_alignments,
    model_scores,
    synset_scores,
    train_student,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CANDIDATES, _TESTS = 1500, 200
"""Maximum number of members (and of other images) to attack, and of test images whose distances are the reference."""

_NEAR = 0.01
"""An image is near a training image if fewer than this share of the test images is as close to one."""

_STUDENT_STEPS = 4
"""Training steps of a student of the synset, per step of the distillation."""

_MODEL_FREE = ("pixels", "1 − SSIM")
"""Distances that need no model."""

_IMAGES_PER_STRIP = 8


def run(problem: Problem) -> Report:
    """Attack every kind of synset."""
    attack = Attack(problem)
    small = SmallGroups(problem, attack.settings, attack.pulls)
    rows = [attack.row(name) | small.row(name) for name in attack.distilled]
    rows.append({"method": "pulls", "title": "the true summed gradients of the groups", **small.row("pulls")})
    rows.append({"method": "model", "title": "the model alone", **attack.model_row()})
    reference_distances = attack.test_distances
    return Report(
        "privacy",
        f"How much a synset reveals about the training images: {describe_problem(problem)}",
        rows,
        COLUMNS,
        notes=[*_notes(attack), *small.notes()],
        reference={
            "training accuracy of the target": problem.target.accuracy(problem.train),
            "test accuracy of the target": problem.target.accuracy(problem.data.test),
            "smallest group": int(problem.partition.sizes.min()),
            "members": int(attack.member.sum()),
            "others": int((~attack.member).sum()),
            **{
                f"median nearest of test images, {kind}": float(np.median(n.distance))
                for kind, n in reference_distances.items()
            },
        },
        figure=_figure(attack, small),
    )


COLUMNS = {
    "title": "released",
    "pixels_ratio": "distance in pixels, relative to test images",
    "features_ratio": "in features",
    "1 − SSIM_ratio": "by 1 − SSIM",
    "nearer": "nearer than 99 % of test images (pixels, features, SSIM)",
    "start_found": "starting image identified",
    "alone": "membership AUC, synset alone",
    "alone_caught": "members found at 1 % false positives",
    "both": "AUC, synset and model",
    "both_caught": "members found at 1 % false positives",
    "adds": "AUC gained over the model alone",
    **{f"member_{size}": f"AUC, groups of {size}" for size in SIZES},
    **{f"rebuilt_{size}": f"reconstruction AUC (SSIM), groups of {size}" for size in (*SIZES, "normal")},
}


@dataclass(frozen=True)
class DistilledKind:
    """A kind of synset: its title, its distillation settings, the synset and its directions ``(K, P)``."""

    title: str
    settings: Settings
    synset: Synset
    directions: Tensor


def _kinds(problem: Problem) -> dict[str, tuple[str, Settings]]:
    """The title and the distillation settings of each kind of synset."""
    reverse = settings_of(problem, "ddm")
    return {
        "forward": ("forward matching, from training images", settings_of(problem, "ddm-match")),
        "reverse": ("reverse matching, from training images", reverse),
        "reverse-noise": ("reverse matching, from noise", replace(reverse, init="noise")),
        "response": ("response matching (the default)", settings_of(problem, "ddm-response")),
        "private": ("response matching, --private", settings_of(problem, "ddm-private")),
    }


class Attack:
    """Attacks on candidate images, half of which are members of the training set."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        train, test = problem.train, problem.data.test
        count = min(_CANDIDATES, len(train), len(test))
        members, others = train.subsample(count, problem.setup.seed), test.subsample(count, problem.setup.seed)
        (x, y), (x_other, y_other) = members.batch(), others.batch()
        self.x, self.y = torch.cat([tensor_of(x), tensor_of(x_other)]), torch.cat([y, y_other])
        self.member = np.repeat([True, False], [len(members), len(others)])
        self.parents = problem.partition.parents

    @cached_property
    def distilled(self) -> dict[str, DistilledKind]:
        """Every kind of synset, distilled."""
        return {name: self._distil(title, settings) for name, (title, settings) in _kinds(self.problem).items()}

    def _distil(self, title: str, settings: Settings) -> DistilledKind:
        synset = self.problem.datamodel(settings).synset
        return DistilledKind(title, settings, synset, Counterfactuals(self.problem.target, synset).directions(None))

    @property
    def settings(self) -> dict[str, Settings]:
        """The distillation settings of each kind."""
        return {name: settings for name, (_, settings) in _kinds(self.problem).items()}

    # --- distances ---

    def views(self, x: Tensor) -> dict[str, tuple[Tensor, Measure]]:
        """Inputs in the representation of each measure, with the measure."""
        images = to_images(self.problem.train, x)
        with torch.no_grad():
            features = penultimate(self.problem.target.network, x)
        return {
            "pixels": (images, rms_distance),
            "features": (features, rms_distance),
            "1 − SSIM": (images, ssim_distance),
        }

    @cached_property
    def _training_views(self) -> dict[str, tuple[Tensor, Measure]]:
        return self.views(self.problem.train.tensors()[0])

    def nearest_training(self, x: Tensor) -> dict[str, Nearest]:
        """The nearest training image of each input, by every measure."""
        views = self.views(x)
        return {kind: find_nearest(views[kind][0], others, by) for kind, (others, by) in self._training_views.items()}

    @cached_property
    def test_distances(self) -> dict[str, Nearest]:
        """The nearest training images of test images, as a reference."""
        return self.nearest_training(self.problem.data.test.subsample(_TESTS, self.problem.setup.seed).tensors()[0])

    def distance_row(self, name: str) -> Row:
        """Distances of the synthetic images to training images, relative to those of test images."""
        synset = self.distilled[name].synset
        near = self.nearest_training(synset.pictures.flatten(0, 1))
        row: Row = {}
        for kind, own in near.items():
            test = self.test_distances[kind].distance
            row |= {
                f"{kind}_ratio": float(np.median(own.distance) / np.median(test)),
                f"{kind}_nearer": float((own.distance < np.quantile(test, _NEAR)).mean()),
            }
        row["nearer"] = ", ".join(f"{100 * row[f'{kind}_nearer']:.0f} %" for kind in near)
        if self.distilled[name].settings.start_images == "real":
            starts = self.starting_rows(name)
            row["start_found"] = max(float((own.row == starts).mean()) for own in near.values())
        return row

    def starting_rows(self, name: str) -> np.ndarray:
        """The row of the training image that each synthetic image started from."""
        partition, settings = self.problem.partition, self.distilled[name].settings
        starts = [draw_members(partition.rows(k), group, settings)[0] for k, group in enumerate(partition.names)]
        return np.concatenate(starts)

    # --- membership ---

    @cached_property
    def model_only(self) -> Scores:
        """Scores of the candidates from the model alone."""
        return model_scores(self.problem.target, self.x, self.y)

    @cached_property
    def _alignments(self) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
        """Products and cosines of the candidates' gradients with the directions and pulls of every kind."""
        named = [(name, "direction", kind.directions) for name, kind in self.distilled.items()]
        named += [(name, "pull", pulls) for name, pulls in self.pulls.items() if self.distilled[name].synset.shared]
        last = [len(self.problem.target.trajectory) - 1]
        values = gradient_alignments(
            self.problem.target, last, [1.0], self.x, self.y, torch.cat([d for *_, d in named])
        )
        split = zip(*(table.split([len(d) for *_, d in named], 1) for table in values), strict=True)
        tables: dict[str, dict[str, tuple[Tensor, Tensor]]] = {name: {} for name in self.distilled}
        for (name, what, _), (product, cosine) in zip(named, split, strict=True):
            tables[name][what] = (product, cosine)
        return tables

    @cached_property
    def pulls(self) -> dict[str, Tensor]:
        """The pull of each group as estimated by an attacker, by kind."""
        directions = {name: kind.directions for name, kind in self.distilled.items()}
        return guess_pulls(self.problem, directions, self.settings)

    def synset_only(self, name: str) -> Scores:
        """Scores of the candidates from the synset alone."""
        synset = self.distilled[name].synset
        candidates, synthetic = self.views(self.x), self.views(synset.pictures.flatten(0, 1))
        near = {
            kind: find_nearest(candidates[kind][0], synthetic[kind][0], candidates[kind][1]).distance
            for kind in _MODEL_FREE
        }
        return synset_scores(near, self._student(synset), self.x, self.y)

    def _student(self, synset: Synset) -> nn.Module:
        """A new network trained on a synset."""
        problem = self.problem
        options = {**problem.setup.options, "seed": problem.setup.seed + 1}
        network = networks.build(problem.setup.model, problem.train.shape, len(problem.data.classes), **options)
        steps = _STUDENT_STEPS * problem.setup.settings.steps
        return train_student(network, synset.pictures.flatten(0, 1), self._student_targets(synset), steps)

    def _student_targets(self, synset: Synset) -> Tensor:
        """Soft targets ``(B, L)`` of the images of a synset: the class of their group, if it is known."""
        if synset.shared:
            return synset.targets.mean(0)
        if self.parents is None:
            return synset.targets.flatten(0, 1)
        classes = torch.as_tensor(self.parents).repeat_interleave(synset.count)
        return torch.nn.functional.one_hot(classes, len(self.problem.data.classes)).float()

    @cached_property
    def _model_attack(self) -> AttackResult:
        return attack_membership(self.model_only, self.member)

    def membership_row(self, name: str) -> Row:
        """Success of membership inference with the synset, and the gain over the model alone."""
        alone = self.synset_only(name)
        aligned = alignment_scores(self._alignments[name], self.parents, self.y.numpy())
        both = attack_membership(self.model_only | alone | aligned, self.member)
        added, error = both.gain_over(self._model_attack)
        return {
            **_attack_columns("alone", attack_membership(alone, self.member)),
            **_attack_columns("both", both),
            "adds": f"{added:+.3f} ± {error:.3f}",
            "adds_auc": added,
            "adds_error": error,
            "attacks": self._single_aucs(alone | aligned),
        }

    def _single_aucs(self, scores: Scores) -> dict[str, float]:
        return {name: auc(values[self.member], values[~self.member]) for name, values in scores.items()}

    def row(self, name: str) -> Row:
        """All columns of a kind of synset, except those of small groups."""
        facts: Row = {"method": name, "title": self.distilled[name].title, "bytes": self.distilled[name].synset.nbytes}
        return facts | self.distance_row(name) | self.membership_row(name)

    def model_row(self) -> Row:
        """Columns of the model without any synset."""
        return {**_attack_columns("both", self._model_attack), "attacks": self._single_aucs(self.model_only)}


def _attack_columns(prefix: str, result: AttackResult) -> Row:
    return {
        prefix: f"{result.auc:.3f} ± {result.error:.3f}",
        f"{prefix}_auc": result.auc,
        f"{prefix}_error": result.error,
        f"{prefix}_caught": result.true_positive_rate,
    }


def _notes(attack: Attack) -> list[str]:
    return [
        "Distances: the median distance of synthetic images to their nearest training image, divided by that of "
        f"{min(_TESTS, len(attack.problem.data.test))} test images; 1 is as far as a test image, 0 is a copy. The next "
        "columns give the share of synthetic images that are nearer to a training image than 99 % of the test images, "
        "and the share whose nearest training image, by the best measure, is the one that the distillation started "
        "from.",
        "Membership inference: training images against as many test images. AUC is shown with its standard error, from "
        "a bootstrap of the whole attack that tends to overestimate it; 0.5 is chance. A logistic regression combines "
        "all scores of an attacker. It is fitted on images whose membership is known and tested on the others (mean "
        "over 5 folds). The AUC of single scores is in the JSON.",
        "Synset alone: distance to the nearest synthetic image in pixels and by SSIM, and the loss of a network "
        "trained on the synset. Model alone: loss, log-odds, entropy and gradient norm. Both: also the candidate's "
        "gradient along the synset's directions. The last of these columns is the AUC gained over the model alone.",
        "For response matching, the attacker also undoes the curvature, which is estimated from validation images. The "
        "attack uses both the directions and these estimates of the pulls.",
    ]


def _figure(attack: Attack, small: SmallGroups) -> Figure:
    """Strips of images: test and synthetic images with their nearest training images, and reconstructions."""
    from matplotlib.figure import Figure

    train = attack.problem.train
    training = to_images(train, train.tensors()[0])
    test = to_images(train, attack.problem.data.test.subsample(_TESTS, attack.problem.setup.seed).tensors()[0])
    strips: list[tuple[str, Tensor]] = [
        ("test image", test),
        ("nearest training image", training[attack.test_distances["1 − SSIM"].row]),
    ]
    for kind in attack.distilled.values():
        images = kind.synset.pictures.flatten(0, 1)[:_IMAGES_PER_STRIP]
        rows = attack.nearest_training(images)["1 − SSIM"].row
        strips += [(kind.title, to_images(train, images)), ("nearest training image", training[rows])]
    strips += small.strips({name: kind.title for name, kind in attack.distilled.items()})
    figure = Figure(figsize=(3.2 + 0.62 * _IMAGES_PER_STRIP, 0.62 * len(strips)), layout="constrained")
    grid = figure.subplots(len(strips), _IMAGES_PER_STRIP, squeeze=False)
    for line, (title, images) in zip(grid, strips, strict=True):
        for axes in line:
            axes.axis("off")
        for axes, image in zip(line, images, strict=False):
            axes.imshow(pixels(image), cmap="gray", interpolation="nearest")
        line[0].text(-0.15, 0.5, title, transform=line[0].transAxes, ha="right", va="center", fontsize=7)
    return figure
