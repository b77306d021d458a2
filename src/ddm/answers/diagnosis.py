"""Diagnosis: which training data to look at first, which errors they cause, and which could be left out.

Effects are those of ``Attribution``: a value without the group less the value with all groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ddm.answers.attribution import SIGN
from ddm.plots import html
from ddm.truth.audit import trust_line

if TYPE_CHECKING:
    import pandas as pd

_NAMED = 3
"""Groups that a sentence names."""

_KNOWS = 0.75
"""Accuracy below which planted labels were not found."""


@dataclass(frozen=True)
class Finding:
    """A group that stands out.

    group, size: its name and training samples
    loss:      effect of removing it on the mean loss of the samples asked about
    accuracy:  the same on their accuracy, a fraction
    agreement: fraction of its samples whose label the model without the group predicts
    likely:    the class that model gives to most of the others, None where there are none
    label:     the class it lies in, None where it cuts across classes
    """

    group: str
    size: int
    loss: float
    accuracy: float
    agreement: float
    likely: str | None
    label: str | None


@dataclass(frozen=True)
class Confusion:
    """An error of one kind: samples of class ``true`` that are given to class ``predicted``.

    rows:   their positions among the samples asked about
    causes: groups with the effect of removing each on the mean probability of the wrong class over these samples, most
            negative first (negative: removing the group makes the error less likely)
    """

    true: str
    predicted: str
    count: int
    rows: tuple[int, ...]
    causes: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Suspect:
    """A training sample whose label is doubted.

    row:         its position in the training set
    group:       the harmful or noisy group it lies in
    label:       the label it has
    likely:      the class the model without its group gives to it
    probability: what that model gives to its label
    """

    row: int
    group: str
    label: str
    likely: str
    probability: float


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What is wrong with a model, and which of its training data make it so.

    classes, groups: names of the L classes and the K groups
    sizes:      ``(K,)`` training samples of each group
    counts:     ``(L, L)`` samples asked about, by true class and predicted class
    accuracy, loss: of the samples asked about
    precision, recall, f1: ``(L,)`` of each class, 0 where it has none to divide by
    effects:    of removing each group on ``loss (K,)``, ``accuracy (K,)``, and ``precision``, ``recall`` and ``f1``
                ``(K, L)``; NaN for groups whose matching was stopped
    agreement:  ``(K,)`` fraction of a group's training samples whose label the model without the group predicts
    harmful:    groups without which the loss is clearly lower, strongest first
    useless:    groups without which neither loss nor accuracy change noticeably, least first
    noisy:      groups that look mislabelled, most likely first
    confusions: errors by kind, most frequent first
    suspects:   training samples of harmful and noisy groups, the least likely label first
    trust:      the audit's sentence, None without one
    """

    classes: tuple[str, ...]
    groups: tuple[str, ...]
    sizes: np.ndarray
    counts: np.ndarray
    accuracy: float
    loss: float
    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    effects: Mapping[str, np.ndarray]
    agreement: np.ndarray
    harmful: tuple[Finding, ...]
    useless: tuple[Finding, ...]
    noisy: tuple[Finding, ...]
    confusions: tuple[Confusion, ...]
    suspects: tuple[Suspect, ...]
    trust: str | None

    def sentences(self) -> list[str]:
        """The findings in words, what to look at first in the first."""
        return [
            *_on_noisy(self.noisy),
            *_on_weakness(self.accuracy),
            *_on_harmful(self.merely_harmful),
            *_on_confusions(self.confusions, int(self.counts.sum())),
            *_on_useless(self.useless),
            trust_line(self.trust),
        ]

    @property
    def merely_harmful(self) -> tuple[Finding, ...]:
        """Harmful groups that do not look mislabelled."""
        noisy = {finding.group for finding in self.noisy}
        return tuple(finding for finding in self.harmful if finding.group not in noisy)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain JSON values; what could not be measured is null."""
        return {
            "sentences": self.sentences(),
            "sign": SIGN,
            "classes": list(self.classes),
            "samples": int(self.counts.sum()),
            "accuracy": self.accuracy,
            "loss": self.loss,
            "counts": self.counts.tolist(),
            "precision": _plain(self.precision),
            "recall": _plain(self.recall),
            "f1": _plain(self.f1),
            "groups": [self._group(k) for k in range(len(self.groups))],
            "harmful": [asdict(finding) for finding in self.harmful],
            "useless": [asdict(finding) for finding in self.useless],
            "noisy": [asdict(finding) for finding in self.noisy],
            "confusions": [_confusion(confusion) for confusion in self.confusions],
            "suspects": [asdict(suspect) for suspect in self.suspects],
            "trust": self.trust,
        }

    def _group(self, k: int) -> dict[str, Any]:
        return {
            "group": self.groups[k],
            "samples": int(self.sizes[k]),
            "agreement": _plain(self.agreement[k]),
            "effects": {name: _plain(effects[k]) for name, effects in self.effects.items()},
        }

    def to_dataframe(self) -> pd.DataFrame:
        """A row a group: its name, samples, agreement with its labels, and the effect of removing it on each value."""
        import pandas as pd

        columns: dict[str, Any] = {"group": self.groups, "samples": self.sizes, "agreement": self.agreement}
        for name, effects in self.effects.items():
            if effects.ndim == 1:
                columns[f"effect on {name}"] = effects
            else:
                columns |= {f"effect on {name} of {c}": effects[:, i] for i, c in enumerate(self.classes)}
        return pd.DataFrame(columns)

    def __repr__(self) -> str:
        return (
            f"Diagnosis: accuracy {self.accuracy:.1%} on {int(self.counts.sum()):,} samples; of {len(self.groups):,} "
            f"groups {len(self.noisy):,} look mislabelled, {len(self.harmful):,} are harmful and "
            f"{len(self.useless):,} useless"
        )

    def _repr_html_(self) -> str:
        return "".join(html.paragraph(sentence) for sentence in self.sentences())


def _on_noisy(noisy: Sequence[Finding]) -> list[str]:
    """A sentence for each of the first groups that look mislabelled, and one for the others."""
    if not noisy:
        return ["No group looks mislabelled."]
    found = [f"{'Look first at' if i == 0 else 'Then at'} {_doubted(group)}." for i, group in enumerate(noisy[:_NAMED])]
    rest = noisy[_NAMED:]
    if rest:
        found.append(f"{len(rest)} more groups may be mislabelled: {_names([group.group for group in rest])}.")
    return found


def _on_weakness(accuracy: float) -> list[str]:
    """Labels are doubted by models: those that know little cannot."""
    if accuracy >= _KNOWS:
        return []
    return [
        f"The model is right on {accuracy:.0%} only, too few to tell wrong labels: train it better, then ask again."
    ]


def _doubted(finding: Finding) -> str:
    labelled = "samples" if finding.label is None else f"samples labelled {finding.label}"
    looks = "" if finding.likely is None else f" that look like {finding.likely}"
    right = round(finding.agreement * finding.size)
    return (
        f"group {finding.group}: {finding.size} {labelled}{looks}; the model without it gives {right} of them their "
        f"label, and removing it {_moves(finding)}"
    )


def _on_harmful(harmful: Sequence[Finding]) -> list[str]:
    if not harmful:
        return []
    each = "; ".join(f"{finding.group} {_moves(finding)}" for finding in harmful[:_NAMED])
    more = "" if len(harmful) <= _NAMED else f"; and {len(harmful) - _NAMED} more"
    return [f"The model would do better without some groups: removing {each}{more}."]


def _on_confusions(confusions: Sequence[Confusion], samples: int) -> list[str]:
    if not confusions:
        return [f"All {samples} samples are classified correctly."]
    worst = confusions[0]
    said = (
        f"Most frequent error: {worst.true} taken for {worst.predicted}, {_count(worst.count, 'sample')} of {samples}"
    )
    causes = [(group, effect) for group, effect in worst.causes[:_NAMED] if effect < 0]
    if not causes:
        return [f"{said}; no group causes it."]
    each = ", ".join(f"{group} ({100 * effect:+.1f} points)" for group, effect in causes)
    return [
        f"{said}. Groups that cause it, with what the probability of {worst.predicted} does there without each: {each}."
    ]


def _on_useless(useless: Sequence[Finding]) -> list[str]:
    if not useless:
        return []
    held = sum(finding.size for finding in useless)
    return [
        f"{_count(len(useless), 'group')} with {_count(held, 'training sample')} could be left out one at a time and "
        f"nothing noticeable would change: {_names([finding.group for finding in useless])}."
    ]


def _moves(finding: Finding) -> str:
    """What removing a group does, in words."""
    way = "lowers" if finding.loss < 0 else "raises"
    loss = f"{way} the loss by {abs(finding.loss):.2g}"
    if finding.accuracy == 0:
        return f"{loss} and leaves the accuracy as it is"
    accuracy = "raises" if finding.accuracy > 0 else "lowers"
    return f"{loss} and {accuracy} the accuracy by {100 * abs(finding.accuracy):.1f} points"


def _names(names: Sequence[str], shown: int = 10) -> str:
    return ", ".join(names[:shown]) + (", …" if len(names) > shown else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _confusion(confusion: Confusion) -> dict[str, Any]:
    causes = [{"group": group, "effect": effect} for group, effect in confusion.causes]
    return asdict(confusion) | {"rows": list(confusion.rows), "causes": causes}


def _plain(values: Any) -> Any:
    """Numbers as JSON values, those that could not be measured as null."""
    if np.ndim(values):
        return [_plain(value) for value in values]
    return float(values) if np.isfinite(values) else None
