"""Diagnosis: which training data to look at first, which errors they cause, and which could be left out.

One pass over the K models without a group gives all effects: value without the group − value with all groups, as in
``Attribution``. ``labels`` judges the labels of groups, and ``confusions`` explains kinds of errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ddm.answers.attribution import SIGN, Attribution, attribute, fit_attribution
from ddm.answers.confusions import (
    ConfusedPair,
    Confusion,
    confusion_matrix,
    frequent_pairs,
    wrong_class_probabilities,
)
from ddm.answers.labels import (
    LabelCheck,
    Suspect,
    check_labels,
    check_predictions,
    find_mislabelled,
    find_suspects,
)
from ddm.answers.objectives import OBJECTIVES, Measure, Objective, resolve
from ddm.answers.question import Batch
from ddm.answers.saving import save
from ddm.counterfactual import designs
from ddm.counterfactual.displaced import Models
from ddm.data.inputs import X
from ddm.data.losses import SampleLoss
from ddm.data.samples import Samples
from ddm.data.tasks import Task
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.plots import html
from ddm.truth.audit import trust_line
from ddm.truth.effects import cross_entropy
from ddm.truth.refined import RefinedModels

if TYPE_CHECKING:
    import pandas as pd

_NOTICEABLE_LOSS, _NOTICEABLE_ACCURACY = 0.01, 0.005
"""Smallest changes that matter: 1 % of the loss, half a point of accuracy."""

_SIGNIFICANT = 2.0
"""Standard errors over held-out samples beyond which a change of the loss is unlikely to be chance."""

_EFFECTS = ("loss", "accuracy", "precision", "recall", "f1")
"""Values whose effects a diagnosis reports."""

_NAMED = 3
"""Maximum number of groups that a sentence names."""

_MIN_ACCURACY = 0.75
"""Minimum accuracy for label checks: in trials, less accurate models did not find planted wrong labels."""


@dataclass(frozen=True)
class Finding:
    """A group that stands out.

    group, size: its name and number of training samples
    loss:      effect of removing it on the mean loss of the samples asked about
    accuracy:  effect of removing it on their accuracy, a fraction
    agreement: fraction of its samples whose label the model without the group predicts
    likely:    the class that this model predicts for most of the other samples; None if there are none
    label:     the class of the group; None if it cuts across classes
    clear:     False if the effect on the loss may be noise, by the intervals that retrainings give
    """

    group: str
    size: int
    loss: float
    accuracy: float
    agreement: float
    likely: str | None
    label: str | None
    clear: bool = True


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """The errors of a model, and the training data that cause them.

    classes, groups: names of the L classes and the K groups
    sizes:      ``(K,)`` training samples of each group
    counts:     ``(L, L)`` samples asked about, by true class and predicted class
    accuracy, loss: of the samples asked about
    precision, recall, f1: ``(L,)`` of each class, 0 where the denominator is 0
    effects:    of removing each group on ``loss (K,)``, ``accuracy (K,)``, and ``precision``, ``recall`` and ``f1``
                ``(K, L)``; NaN for groups whose matching was stopped
    agreement:  ``(K,)`` fraction of a group's training samples whose label the model without the group predicts
    harmful:    groups without which the loss is clearly lower, strongest first
    useless:    groups without which neither loss nor accuracy changes noticeably, smallest change first
    noisy:      groups that look mislabelled, most likely first
    confusions: kinds of errors, most frequent first
    suspects:   training samples of harmful and noisy groups, the least likely label first
    trust:      the audit's sentence; None without an audit
    intervals:  the effects on ``loss`` and ``accuracy`` with their intervals; empty without retrainings
    doubt:      a sentence that says why the audit rejects the order of harmful groups; None if it does not
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
    intervals: Mapping[str, Attribution] = field(default_factory=dict)
    doubt: str | None = None

    def sentences(self) -> list[str]:
        """The findings in words, the most important first, and how far to trust them last."""
        return [
            *_mislabelled_sentences(self.noisy),
            *_weakness_sentences(self.accuracy),
            *([f"Harmful and useless groups are not named. {self.doubt}"] if self.doubt is not None else []),
            *_harmful_sentences(self.merely_harmful),
            *_confusion_sentences(self.confusions, int(self.counts.sum())),
            *([] if self.doubt is not None else _useless_sentences(self.useless)),
            trust_line(self.trust),
        ]

    @property
    def merely_harmful(self) -> tuple[Finding, ...]:
        """Harmful groups that do not look mislabelled; none if the audit rejects the order of harmful groups."""
        if self.doubt is not None:
            return ()
        noisy = {finding.group for finding in self.noisy}
        return tuple(finding for finding in self.harmful if finding.group not in noisy)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values; null where an effect could not be measured."""
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
            "confusions": [confusion.to_dict() for confusion in self.confusions],
            "suspects": [asdict(suspect) for suspect in self.suspects],
            "trust": self.trust,
            "doubt": self.doubt,
        }

    def _group(self, k: int) -> dict[str, Any]:
        return {
            "group": self.groups[k],
            "samples": int(self.sizes[k]),
            "agreement": _plain(self.agreement[k]),
            "effects": {name: _plain(effects[k]) for name, effects in self.effects.items()},
            "intervals": {name: effects.interval(k) for name, effects in self.intervals.items()},
        }

    def to_dataframe(self) -> pd.DataFrame:
        """One row per group: name, samples, agreement with its labels, and the effect of its removal on each value."""
        import pandas as pd

        columns: dict[str, Any] = {"group": self.groups, "samples": self.sizes, "agreement": self.agreement}
        for name, effects in self.effects.items():
            if effects.ndim == 1:
                columns[f"effect on {name}"] = effects
            else:
                columns |= {f"effect on {name} of {c}": effects[:, i] for i, c in enumerate(self.classes)}
        return pd.DataFrame(columns)

    def suspects_to_dataframe(self) -> pd.DataFrame:
        """One row per suspect training sample: its position, name, group, label, likely label and probability."""
        import pandas as pd

        names = {"row": "sample", "id": "id", "group": "group", "label": "label", "likely": "likely label"}
        columns = {title: [getattr(suspect, name) for suspect in self.suspects] for name, title in names.items()}
        return pd.DataFrame(columns | {"probability of the label": [suspect.probability for suspect in self.suspects]})

    def save(self, path: Path | str) -> None:
        """Write the groups as a table if the path ends in .csv or .parquet, else everything as JSON."""
        save(self, path)

    def __repr__(self) -> str:
        return (
            f"Diagnosis: accuracy {self.accuracy:.1%} on {int(self.counts.sum()):,} samples; of {len(self.groups):,} "
            f"groups {len(self.noisy):,} look mislabelled, {len(self.harmful):,} are harmful and "
            f"{len(self.useless):,} useless"
        )

    def _repr_html_(self) -> str:
        return "".join(html.paragraph(sentence) for sentence in self.sentences())


def check_has_classes(task: Task) -> None:
    """Refuse a task whose samples have no class: there are no classes to confuse or to mislabel."""
    if not task.has_classes:
        raise InputError(
            f"a diagnosis looks for wrong classes, which {task.kind} does not have: ask dm.attribute for the effect of "
            "each group on the loss of held-out samples instead."
        )


def diagnose(models: Models, partition: Partition, batch: Batch, train: Samples, trust: str | None) -> Diagnosis:
    """Diagnose the target of ``models`` on a batch of held-out samples.

    train: the training set, in the order of the partition
    trust: the audit's sentence
    """
    if not models.usable.any():
        raise InputError("no group can be removed, as all their matchings were stopped: fit with other settings.")
    check_has_classes(models.target.task)
    if batch[1] is None:
        raise InputError("a diagnosis compares predictions with labels: give samples with labels.")
    baseline, labels = models.target.outputs(batch[0]), batch[1].to(models.target.device)
    check_predictions(baseline, len(partition.classes))
    counts = confusion_matrix(baseline, labels, len(partition.classes))
    pairs = frequent_pairs(baseline, labels, counts)
    values, effects = _measure(models, partition, (batch[0], labels), baseline, pairs)
    checks = check_labels(models, partition, train)
    intervals = _find_intervals(models, partition, batch)
    clear = intervals["loss"].stands_out if intervals else np.ones(len(partition), dtype=bool)
    findings = {k: _finding(partition, k, effects, check, bool(clear[k])) for k, check in checks.items()}
    noisy = tuple(findings[k] for k in find_mislabelled(checks, effects, partition, counts.sum(1) > 0))
    harmful = _find_harmful(findings, effects["significance"], float(values["loss"]))
    return Diagnosis(
        classes=partition.classes,
        groups=partition.names,
        sizes=partition.sizes,
        counts=counts,
        accuracy=float(values["accuracy"]),
        loss=float(values["loss"]),
        precision=values["precision"],
        recall=values["recall"],
        f1=values["f1"],
        effects={name: effects[name] for name in _EFFECTS},
        agreement=np.array([findings[k].agreement if k in findings else np.nan for k in range(len(partition))]),
        harmful=harmful,
        useless=_find_useless(findings.values(), (*noisy, *harmful), float(values["loss"])),
        noisy=noisy,
        confusions=tuple(pair.explain(partition, effects["errors"][:, i]) for i, pair in enumerate(pairs)),
        suspects=tuple(
            replace(suspect, id=train.id(suspect.row))
            for suspect in find_suspects(checks, partition, {finding.group for finding in (*harmful, *noisy)})
        ),
        trust=trust,
        intervals=intervals,
    )


def _find_intervals(models: Models, partition: Partition, batch: Batch) -> dict[str, Attribution]:
    """The effects on loss and accuracy with their intervals; empty without retrainings."""
    if not isinstance(models, RefinedModels):
        return {}
    removed = designs.leave_one_out(len(partition))
    return {name: attribute(models, partition, removed, batch, name) for name in ("loss", "accuracy")}


def _measure(
    models: Models,
    partition: Partition,
    batch: tuple[X, Tensor],
    baseline: Tensor,
    pairs: Sequence[ConfusedPair],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Values with all groups ``(...)`` and effects of removing each group ``(K, ...)``, by the name of the measure."""
    x, labels = batch
    usable = np.flatnonzero(models.usable)
    removed, every = designs.leave_one_out(len(partition))[usable], np.arange(len(partition))
    measures = _measures(models.target.loss, pairs)
    shapes = {name: torch.as_tensor(measure(baseline, baseline, labels)).shape for name, measure in measures.items()}
    objective = Objective("diagnosis", _concatenate(measures), "all measures of a diagnosis")
    fit = fit_attribution(
        objective, models.stacks(removed, x), labels, partition, removed, np.ones(len(removed)), usable, every
    )
    return _split(fit.baseline, shapes), _split(fit.matrix, shapes)


def _measures(loss: SampleLoss, pairs: Sequence[ConfusedPair]) -> dict[str, Measure]:
    """The measures that each model is evaluated by, by name: one value, or one for each class or kind of error."""
    return {
        "loss": resolve("loss", loss).measure,
        "accuracy": OBJECTIVES["accuracy"].measure,
        **{name: OBJECTIVES[f"class-{name}"].measure for name in ("precision", "recall", "f1")},
        "class loss": _class_losses(loss),
        "significance": _significance,
        "errors": wrong_class_probabilities(pairs),
    }


def _concatenate(measures: Mapping[str, Measure]) -> Measure:
    """One measure whose values are those of all measures, one after another."""

    def measure(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        values = (torch.as_tensor(part(outputs, baseline, labels)) for part in measures.values())
        return torch.cat([value.reshape(-1).double() for value in values])

    return measure


def _split(values: np.ndarray, shapes: Mapping[str, torch.Size]) -> dict[str, np.ndarray]:
    """The values ``(..., O)`` of concatenated measures, by measure."""
    ends = np.cumsum([shape.numel() for shape in shapes.values()])
    parts = zip(shapes.items(), np.split(values, ends[:-1], axis=-1), strict=True)
    return {name: part if shape else part[..., 0] for (name, shape), part in parts}


def _class_losses(loss: SampleLoss) -> Measure:
    """Measures the loss of the samples of each class ``(L,)``, 0 for a class without samples."""

    def measure(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        losses = outputs.new_zeros(outputs.shape[1], dtype=torch.float64)
        for label in labels.unique().tolist():
            losses[label] = loss(outputs[labels == label], labels[labels == label]).double()
        return losses

    return measure


def _significance(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
    """Mean change of the samples' cross-entropy in standard errors; 0 if no sample changes."""
    change = cross_entropy(outputs, labels) - cross_entropy(baseline, labels)
    error = change.std(correction=0) / len(change) ** 0.5
    return torch.where(error > 0, change.mean() / error.clamp(min=1e-300), 0.0)


def _finding(
    partition: Partition, k: int, effects: Mapping[str, np.ndarray], check: LabelCheck, clear: bool
) -> Finding:
    return Finding(
        group=partition.names[k],
        size=len(check.rows),
        loss=float(effects["loss"][k]),
        accuracy=float(effects["accuracy"][k]),
        agreement=check.agreement,
        likely=None if check.likely_instead is None else partition.classes[check.likely_instead],
        label=None if partition.parents is None else partition.classes[partition.parents[k]],
        clear=clear,
    )


def _find_harmful(findings: Mapping[int, Finding], significance: np.ndarray, loss: float) -> tuple[Finding, ...]:
    """Groups without which the loss is noticeably, significantly and clearly lower."""
    harmful = [
        finding
        for k, finding in findings.items()
        if finding.loss < -_NOTICEABLE_LOSS * loss and significance[k] < -_SIGNIFICANT and finding.clear
    ]
    return tuple(sorted(harmful, key=lambda finding: finding.loss))


def _find_useless(findings: Iterable[Finding], others: Sequence[Finding], loss: float) -> tuple[Finding, ...]:
    """Groups that are not among ``others`` and without which nothing changes noticeably."""
    useless = [
        finding
        for finding in findings
        if finding not in others
        and abs(finding.loss) < _NOTICEABLE_LOSS * loss
        and abs(finding.accuracy) < _NOTICEABLE_ACCURACY
    ]
    return tuple(sorted(useless, key=lambda finding: abs(finding.loss)))


def _mislabelled_sentences(noisy: Sequence[Finding]) -> list[str]:
    """A sentence for each of the first groups that look mislabelled, and one for the others."""
    if not noisy:
        return ["No group looks mislabelled."]
    sentences = [_mislabelled_sentence(finding) for finding in noisy[:_NAMED]]
    rest = noisy[_NAMED:]
    if rest:
        names = _names([finding.group for finding in rest])
        sentences.append(f"{_count(len(rest), 'more group')} may be mislabelled: {names}.")
    return sentences


def _mislabelled_sentence(finding: Finding) -> str:
    labelled = "" if finding.label is None else f" labelled {finding.label}"
    like = "" if finding.likely is None else f" that look like {finding.likely}"
    agreed = round(finding.agreement * finding.size)
    return (
        f"Group {finding.group} looks mislabelled: {_count(finding.size, 'sample')}{labelled}{like}. The model without "
        f"the group predicts the given label for {agreed} of {finding.size}. Removing the group {_changes(finding)}."
    )


def _weakness_sentences(accuracy: float) -> list[str]:
    """A warning that a model of low accuracy cannot judge labels."""
    if accuracy >= _MIN_ACCURACY:
        return []
    return [
        f"Do not rely on these label checks: the model is right on only {accuracy:.0%} of the samples. Train it "
        "better, then diagnose again."
    ]


def _harmful_sentences(harmful: Sequence[Finding]) -> list[str]:
    if not harmful:
        return []
    each = "; ".join(f"{finding.group} {_changes(finding)}" for finding in harmful[:_NAMED])
    more = "" if len(harmful) <= _NAMED else f"; and {len(harmful) - _NAMED} more"
    return [f"The model would do better without some groups: removing {each}{more}."]


def _confusion_sentences(confusions: Sequence[Confusion], samples: int) -> list[str]:
    if not confusions:
        return [f"All {samples} samples are classified correctly."]
    worst = confusions[0]
    error = (
        f"Most frequent error: {worst.true} taken for {worst.predicted}, {_count(worst.count, 'sample')} of {samples}."
    )
    causes = [(group, effect) for group, effect in worst.causes[:_NAMED] if effect < 0]
    if not causes:
        return [f"{error} No group causes it."]
    each = ", ".join(f"{group} by {-100 * effect:.1f} points" for group, effect in causes)
    return [f"{error} Removing one of these groups lowers the probability of {worst.predicted} there: {each}."]


def _useless_sentences(useless: Sequence[Finding]) -> list[str]:
    if not useless:
        return []
    held = sum(finding.size for finding in useless)
    return [
        f"{_count(len(useless), 'group')} with {_count(held, 'training sample')} could be left out one at a time and "
        f"nothing noticeable would change: {_names([finding.group for finding in useless])}."
    ]


def _changes(finding: Finding) -> str:
    """A clause that says how removing a group changes loss and accuracy."""
    if not finding.clear:
        return "changes the loss within noise"
    verb = "lowers" if finding.loss < 0 else "raises"
    loss = f"{verb} the loss by {abs(finding.loss):.2g}"
    if finding.accuracy == 0:
        return f"{loss} and leaves the accuracy as it is"
    verb = "raises" if finding.accuracy > 0 else "lowers"
    return f"{loss} and {verb} the accuracy by {100 * abs(finding.accuracy):.1f} points"


def _names(names: Sequence[str], shown: int = 10) -> str:
    return ", ".join(names[:shown]) + (", …" if len(names) > shown else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _plain(values: Any) -> Any:
    """Numbers as JSON values, null for NaN and infinity."""
    if np.ndim(values):
        return [_plain(value) for value in values]
    return float(values) if np.isfinite(values) else None
