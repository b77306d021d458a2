"""``privacy``: what a synset reveals of the training images, by three measures, beside what the model alone reveals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ddm import networks
from ddm.bench.fidelity import described
from ddm.bench.methods import settings_of
from ddm.bench.problem import Problem
from ddm.bench.report import Report, Row
from ddm.bench.small import SIZES, SmallGroups, pulls_from
from ddm.counterfactual import Counterfactuals
from ddm.matching import Settings
from ddm.matching.start import drawn
from ddm.networks import penultimate
from ddm.plots.images import pixels
from ddm.privacy.distances import Measure, Nearest, apart, nearest, pictures, unlike
from ddm.privacy.membership import (
    Attacked,
    Scores,
    alignment_scores,
    attacked,
    auc,
    model_scores,
    products,
    synset_scores,
    taught,
)
from ddm.synset import Synset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CANDIDATES, _TESTS = 1500, 200
"""Members, and as many others, whose membership is guessed; test images whose nearest training image is looked for."""

_NEAR = 0.01
"""As near as this share of the test images comes to a training image."""

_LESSONS = 4
"""Training steps of a network that has the synset alone, for each step of a distillation."""

_SEEN_ALONE = ("pixels", "1 − SSIM")
"""Measures of who has the synset alone: the others need the model."""

_COLUMNS_SHOWN = 8


def run(problem: Problem) -> Report:
    """Measure every kind of synset."""
    attack = Attack(problem)
    small = SmallGroups(problem, attack.settings, attack.pulls)
    rows = [attack.row(name) | small.row(name) for name in attack.found]
    rows.append({"method": "pulls", "title": "the summed gradients of the groups themselves", **small.row("pulls")})
    rows.append({"method": "model", "title": "the model alone", **attack.model_row()})
    near = attack.tests
    return Report(
        "privacy",
        f"What a synset reveals of the training images: {described(problem)}",
        rows,
        COLUMNS,
        notes=[*_notes(attack), *small.notes()],
        reference={
            "training accuracy of the target": problem.target.accuracy(problem.train),
            "test accuracy of the target": problem.target.accuracy(problem.data.test),
            "smallest group": int(problem.partition.sizes.min()),
            "members": int(attack.member.sum()),
            "others": int((~attack.member).sum()),
            **{f"median nearest of test images, {kind}": float(np.median(n.distance)) for kind, n in near.items()},
        },
        figure=_figure(attack, small),
    )


COLUMNS = {
    "title": "released",
    "pixels_ratio": "distance in pixels, of test images'",
    "features_ratio": "in features",
    "1 − SSIM_ratio": "by 1 − SSIM",
    "nearer": "nearer than 1 % of test images (pixels, features, SSIM)",
    "start_found": "training image found that it started from",
    "alone": "membership AUC, synset alone",
    "alone_caught": "members caught at 1 % false alarms",
    "both": "AUC, synset and model",
    "both_caught": "caught at 1 %",
    "adds": "what the synset adds to the model's AUC",
    **{f"member_{size}": f"AUC, groups of {size}" for size in SIZES},
    **{f"rebuilt_{size}": f"reconstruction AUC (SSIM), groups of {size}" for size in (*SIZES, "normal")},
}


@dataclass(frozen=True)
class Found:
    """A kind of synset: its title, how it was distilled, the synset and its directions ``(K, P)``."""

    title: str
    settings: Settings
    synset: Synset
    directions: Tensor


def _kinds(problem: Problem) -> dict[str, tuple[str, Settings]]:
    reverse = settings_of(problem, "ddm")
    return {
        "forward": ("forward matching, from training images", settings_of(problem, "ddm-match")),
        "reverse": ("reverse matching, from training images", reverse),
        "reverse-noise": ("reverse matching, from noise", replace(reverse, init="noise")),
        "response": ("response matching (the default)", settings_of(problem, "ddm-response")),
        "private": ("response matching, --private", settings_of(problem, "ddm-private")),
    }


class Attack:
    """Candidates, half of them members, and what can be said of them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        train, test = problem.train, problem.data.test
        count = min(_CANDIDATES, len(train), len(test))
        members, others = train.few(count, problem.setup.seed), test.few(count, problem.setup.seed)
        (x, y), (x_other, y_other) = members.batch(), others.batch()
        self.x, self.y = torch.cat([x, x_other]), torch.cat([y, y_other])
        self.member = np.repeat([True, False], [len(members), len(others)])
        self.parents = problem.partition.parents

    @cached_property
    def found(self) -> dict[str, Found]:
        """Every kind of synset, distilled."""
        return {name: self._distilled(title, settings) for name, (title, settings) in _kinds(self.problem).items()}

    def _distilled(self, title: str, settings: Settings) -> Found:
        synset = self.problem.datamodel(settings).synset
        return Found(title, settings, synset, Counterfactuals(self.problem.target, synset).directions(None))

    @property
    def settings(self) -> dict[str, Settings]:
        """How each kind is distilled."""
        return {name: settings for name, (_, settings) in _kinds(self.problem).items()}

    # --- distances ---

    def views(self, x: Tensor) -> dict[str, tuple[Tensor, Measure]]:
        """Inputs as each measure sees them."""
        shown = pictures(self.problem.train, x)
        with torch.no_grad():
            features = penultimate(self.problem.target.network, x)
        return {"pixels": (shown, apart), "features": (features, apart), "1 − SSIM": (shown, unlike)}

    @cached_property
    def _training(self) -> dict[str, tuple[Tensor, Measure]]:
        return self.views(self.problem.train.batch()[0])

    def to_training(self, x: Tensor) -> dict[str, Nearest]:
        """The nearest training image of each input, by every measure."""
        seen = self.views(x)
        return {kind: nearest(seen[kind][0], others, by) for kind, (others, by) in self._training.items()}

    @cached_property
    def tests(self) -> dict[str, Nearest]:
        """The same of fresh test images."""
        return self.to_training(self.problem.data.test.few(_TESTS, self.problem.setup.seed).batch()[0])

    def distance_row(self, name: str) -> Row:
        """How near the synthetic images come, against how near fresh test images do."""
        synset = self.found[name].synset
        near = self.to_training(synset.images.flatten(0, 1))
        row: Row = {}
        for kind, own in near.items():
            test = self.tests[kind].distance
            row |= {
                f"{kind}_ratio": float(np.median(own.distance) / np.median(test)),
                f"{kind}_nearer": float((own.distance < np.quantile(test, _NEAR)).mean()),
            }
        row["nearer"] = ", ".join(f"{100 * row[f'{kind}_nearer']:.0f} %" for kind in near)
        if self.found[name].settings.start_images == "real":
            starts = self.starts(name)
            row["start_found"] = max(float((own.row == starts).mean()) for own in near.values())
        return row

    def starts(self, name: str) -> np.ndarray:
        """The training image that each synthetic image started from."""
        partition, settings = self.problem.partition, self.found[name].settings
        found = [drawn(partition.rows(k), group, settings)[0] for k, group in enumerate(partition.names)]
        return np.concatenate(found)

    # --- membership ---

    @cached_property
    def model(self) -> Scores:
        """What the model alone says of the candidates."""
        return model_scores(self.problem.target, self.x, self.y)

    @cached_property
    def _aligned(self) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
        """Products and cosines of the candidates' gradients with the directions and pulls of every kind."""
        named = [(name, "direction", found.directions) for name, found in self.found.items()]
        named += [(name, "pull", pulls) for name, pulls in self.pulls.items() if self.found[name].synset.shared]
        last = [len(self.problem.target.trajectory) - 1]
        values = products(self.problem.target, last, [1.0], self.x, self.y, torch.cat([d for *_, d in named]))
        split = zip(*(table.split([len(d) for *_, d in named], 1) for table in values), strict=True)
        tables: dict[str, dict[str, tuple[Tensor, Tensor]]] = {name: {} for name in self.found}
        for (name, what, _), (product, cosine) in zip(named, split, strict=True):
            tables[name][what] = (product, cosine)
        return tables

    @cached_property
    def pulls(self) -> dict[str, Tensor]:
        """The pull of each group as an attacker guesses it, by kind."""
        directions = {name: found.directions for name, found in self.found.items()}
        return pulls_from(self.problem, directions, self.settings)

    def alone(self, name: str) -> Scores:
        """What the synset alone says of the candidates."""
        synset = self.found[name].synset
        mine, theirs = self.views(self.x), self.views(synset.images.flatten(0, 1))
        near = {kind: nearest(mine[kind][0], theirs[kind][0], mine[kind][1]).distance for kind in _SEEN_ALONE}
        return synset_scores(near, self._student(synset), self.x, self.y)

    def _student(self, synset: Synset) -> nn.Module:
        """A fresh network that was trained on a synset."""
        problem = self.problem
        options = {**problem.setup.options, "seed": problem.setup.seed + 1}
        network = networks.build(problem.setup.model, problem.train.shape, len(problem.data.classes), **options)
        steps = _LESSONS * problem.setup.settings.steps
        return taught(network, synset.images.flatten(0, 1), self._lessons(synset), steps)

    def _lessons(self, synset: Synset) -> Tensor:
        """What each image of a synset ``(B, L)`` is taken for: its group's class where that is known."""
        if synset.shared:
            return synset.targets.mean(0)
        if self.parents is None:
            return synset.targets.flatten(0, 1)
        classes = torch.as_tensor(self.parents).repeat_interleave(synset.images.shape[1])
        return torch.nn.functional.one_hot(classes, len(self.problem.data.classes)).float()

    @cached_property
    def _model_attacked(self) -> Attacked:
        return attacked(self.model, self.member)

    def membership_row(self, name: str) -> Row:
        """How well members are told from others with the synset, and what it adds to the model."""
        alone = self.alone(name)
        aligned = alignment_scores(self._aligned[name], self.parents, self.y.numpy())
        both = attacked(self.model | alone | aligned, self.member)
        added, error = both.gain(self._model_attacked)
        return {
            **_judged("alone", attacked(alone, self.member)),
            **_judged("both", both),
            "adds": f"{added:+.3f} ± {error:.3f}",
            "adds_auc": added,
            "adds_error": error,
            "attacks": self._each(alone | aligned),
        }

    def _each(self, scores: Scores) -> dict[str, float]:
        return {name: auc(values[self.member], values[~self.member]) for name, values in scores.items()}

    def row(self, name: str) -> Row:
        """Everything but small groups of a kind of synset."""
        facts: Row = {"method": name, "title": self.found[name].title, "bytes": self.found[name].synset.nbytes}
        return facts | self.distance_row(name) | self.membership_row(name)

    def model_row(self) -> Row:
        """What the model reveals without any synset."""
        return {**_judged("both", self._model_attacked), "attacks": self._each(self.model)}


def _judged(what: str, found: Attacked) -> Row:
    return {
        what: f"{found.area:.3f} ± {found.error:.3f}",
        f"{what}_auc": found.area,
        f"{what}_error": found.error,
        f"{what}_caught": found.caught,
    }


def _notes(attack: Attack) -> list[str]:
    return [
        "Distances: the median over synthetic images of the distance to the nearest training image, over the same of "
        f"{min(_TESTS, len(attack.problem.data.test))} fresh test images; 1 is as far as a test image, 0 is a copy. "
        "Then how many synthetic images are nearer to a training image than 1 % of the test images are, and for how "
        "many the nearest training image, by the best of the measures, is the one that it started from.",
        "Membership: training images against as many test images, AUC with its standard error by bootstrap of the "
        "whole attack, rather too large than too small; 0.5 is chance. All scores of an attacker are combined by "
        "logistic regression, fitted with members known and asked about others (the mean within 5 folds); single "
        "scores are in the JSON.",
        "The synset alone: distance to the nearest synthetic image in pixels and by SSIM, and the loss of a network "
        "trained on the synset. The model alone: loss, log-odds, entropy, gradient norm. Both: also the candidate's "
        "gradient along the synset's directions; the last column of these is the gain over the model.",
        "Of response matching an attacker undoes the curvature with that of validation images; both the directions "
        "and these guesses are used.",
    ]


def _figure(attack: Attack, small: SmallGroups) -> Figure:
    """Synthetic images above their nearest training images, a test image and its own, and reconstructions."""
    from matplotlib.figure import Figure

    train = attack.problem.train
    shown = pictures(train, train.batch()[0])
    test = pictures(train, attack.problem.data.test.few(_TESTS, attack.problem.setup.seed).batch()[0])
    strips: list[tuple[str, Tensor]] = [
        ("test image", test),
        ("nearest training image", shown[attack.tests["1 − SSIM"].row]),
    ]
    for found in attack.found.values():
        images = found.synset.images.flatten(0, 1)[:_COLUMNS_SHOWN]
        rows = attack.to_training(images)["1 − SSIM"].row
        strips += [(found.title, pictures(train, images)), ("nearest training image", shown[rows])]
    strips += small.strips({name: found.title for name, found in attack.found.items()})
    figure = Figure(figsize=(3.2 + 0.62 * _COLUMNS_SHOWN, 0.62 * len(strips)), layout="constrained")
    grid = figure.subplots(len(strips), _COLUMNS_SHOWN, squeeze=False)
    for line, (title, images) in zip(grid, strips, strict=True):
        for axes in line:
            axes.axis("off")
        for axes, image in zip(line, images, strict=False):
            axes.imshow(pixels(image), cmap="gray", interpolation="nearest")
        line[0].text(-0.15, 0.5, title, transform=line[0].transAxes, ha="right", va="center", fontsize=7)
    return figure
