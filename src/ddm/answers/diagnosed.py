"""From models without groups to a diagnosis.

All effects come from one pass over the K models without a group; the label of a training sample is judged by the model
without its group, which has not learned it.

*Mislabelled.* That model doubts the labels of a rare cluster too, but held-out samples of its class need the cluster;
nothing held out needs wrong labels. With w_κ = Σ (probability of the likeliest class − that of the label) over the
group's samples, about how many of its labels are doubted, and c_κ what removing it costs held-out samples,

    backing_κ = c_κ / (u · w_κ),    u the median of c/w over groups, weighted by w:

1 is usual, 0 is nothing, negative a gain. Little backing for labels that are mostly doubted looks like mislabelling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ddm.answers.attributed import attributed
from ddm.answers.diagnosis import Confusion, Diagnosis, Finding, Suspect
from ddm.answers.objectives import OBJECTIVES, Measure, Objective, resolve
from ddm.compute import progress
from ddm.counterfactual import designs
from ddm.counterfactual.counterfactuals import Counterfactuals
from ddm.data.samples import Samples
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.training.target import Loss
from ddm.truth.effects import cross_entropy

_KINDS = 10
"""Kinds of errors that are looked into."""

_NOTICEABLE_LOSS, _NOTICEABLE_ACCURACY = 0.01, 0.005
"""Changes that matter: a hundredth of the loss, half a point of accuracy."""

_CLEAR = 2.0
"""Standard errors, over the samples asked about, at which a change of the loss is more than chance."""

_AGREEMENT, _DOUBT, _BACKING, _BACKING_AGAIN = 0.5, 0.15, 0.25, 0.5
"""A group looks mislabelled that has less agreement, more doubt a sample and less backing than this; or than the last,
if others with its label look like the same class already. With digits and networks that are right on three quarters or
more, planted groups came first each time and clean ones were rarely named."""

_LEAST_BACKING = -1.0
"""Where backing is cut off, so that a gain counts at most as much as the doubt itself."""

_EFFECTS = ("loss", "accuracy", "precision", "recall", "f1")


def diagnosed(
    models: Counterfactuals,
    partition: Partition,
    batch: tuple[Tensor, Tensor],
    train: Samples,
    trust: str | None,
) -> Diagnosis:
    """The diagnosis of a target on inputs ``(n, ...)`` and labels ``(n,)``.

    train: the training set, in the order of the partition
    trust: the audit's sentence
    """
    if not models.synset.usable.any():
        raise InputError("no group can be removed, as all their matchings were stopped: fit with other settings.")
    baseline, labels = models.target.outputs(batch[0]), batch[1].to(models.target.device)
    _check_predicted(baseline, len(partition.classes))
    counts = _counts(baseline, labels, len(partition.classes))
    kinds = _kinds(baseline, labels, counts)
    values, effects = _measured(models, partition, batch[0], labels, baseline, kinds)
    opinions = _opinions(models, partition, train)
    findings = {k: _finding(partition, k, effects, opinion) for k, opinion in opinions.items()}
    noisy = _noisy(findings, opinions, _backing(opinions, effects), counts.sum(1) > 0)
    harmful = _harmful(findings, effects["clarity"], float(values["loss"]))
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
        useless=_useless(findings, (*noisy, *harmful), float(values["loss"])),
        noisy=noisy,
        confusions=tuple(_confusion(partition, kind, effects["kinds"][:, i]) for i, kind in enumerate(kinds)),
        suspects=_suspects(partition, opinions, {finding.group for finding in (*harmful, *noisy)}),
        trust=trust,
    )


def _check_predicted(outputs: Tensor, classes: int) -> None:
    """Refuse outputs ``(n, L)`` that are largest outside the classes: a network may have more outputs than those."""
    largest = int(outputs.argmax(1).max())
    if largest >= classes:
        raise InputError(
            f"the model predicts class {largest}, but the classes of the data are 0 to {classes - 1}: name all "
            f"{outputs.shape[1]} outputs with classes= when you make the samples, or train a network with {classes} "
            "outputs."
        )


@dataclass(frozen=True, eq=False)
class _Kind:
    """Samples at ``rows (m,)`` that are of one class and given to another, both by number."""

    true: int
    predicted: int
    rows: Tensor


def _counts(baseline: Tensor, labels: Tensor, classes: int) -> np.ndarray:
    """Samples by true and predicted class ``(L, L)``."""
    cells = labels * classes + baseline.argmax(1)
    found: np.ndarray = cells.cpu().bincount(minlength=classes**2).reshape(classes, classes).numpy()
    return found


def _kinds(baseline: Tensor, labels: Tensor, counts: np.ndarray) -> list[_Kind]:
    """The most frequent kinds of errors."""
    errors = counts - np.diag(np.diag(counts))
    cells = np.argsort(-errors, axis=None, kind="stable")[:_KINDS]
    pairs = [divmod(int(cell), len(counts)) for cell in cells if errors.flat[cell] > 0]
    predicted = baseline.argmax(1)
    return [_Kind(t, p, ((labels == t) & (predicted == p)).nonzero()[:, 0]) for t, p in pairs]


def _measured(
    models: Counterfactuals,
    partition: Partition,
    x: Tensor,
    labels: Tensor,
    baseline: Tensor,
    kinds: Sequence[_Kind],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """By name, values with all groups ``(...)`` and effects of removing each ``(K, ...)``."""
    usable = np.flatnonzero(models.synset.usable.numpy())
    removed, each = designs.leave_one_out(len(partition))[usable], np.arange(len(partition))
    measures, outputs = _measures(models.target.loss, kinds), models.stacks(removed, x)
    asked = Objective("diagnosis", _together(measures), "all that a diagnosis looks at")
    found = attributed(asked, outputs, labels, partition, removed, np.ones(len(removed)), usable, each)
    widths = {name: torch.as_tensor(measure(baseline, baseline, labels)).shape for name, measure in measures.items()}
    return _parts(found.baseline, widths), _parts(found.matrix, widths)


def _measures(loss: Loss, kinds: Sequence[_Kind]) -> dict[str, Measure]:
    """What is measured on each model: with one value, or one for each class or kind of error."""
    return {
        "loss": resolve("loss", loss).measure,
        "accuracy": OBJECTIVES["accuracy"].measure,
        **{name: OBJECTIVES[f"class-{name}"].measure for name in ("precision", "recall", "f1")},
        "class loss": _class_losses(loss),
        "clarity": _clarity,
        "kinds": _wrong(kinds),
    }


def _together(measures: Mapping[str, Measure]) -> Measure:
    def measure(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        values = (torch.as_tensor(part(outputs, baseline, labels)) for part in measures.values())
        return torch.cat([value.reshape(-1).double() for value in values])

    return measure


def _parts(values: np.ndarray, widths: Mapping[str, torch.Size]) -> dict[str, np.ndarray]:
    """Values ``(..., O)`` of measures together as those of each."""
    ends = np.cumsum([shape.numel() for shape in widths.values()])
    parts = zip(widths.items(), np.split(values, ends[:-1], axis=-1), strict=True)
    return {name: part if shape else part[..., 0] for (name, shape), part in parts}


def _class_losses(loss: Loss) -> Measure:
    """The loss of the samples of each class ``(L,)``, 0 where there are none."""

    def measure(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        found = outputs.new_zeros(outputs.shape[1], dtype=torch.float64)
        for label in labels.unique().tolist():
            found[label] = loss(outputs[labels == label], labels[labels == label]).double()
        return found

    return measure


def _clarity(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
    """The mean change of the samples' cross-entropy in standard errors; 0 where nothing changes."""
    change = cross_entropy(outputs, labels) - cross_entropy(baseline, labels)
    error = change.std(correction=0) / len(change) ** 0.5
    return torch.where(error > 0, change.mean() / error.clamp(min=1e-300), 0.0)


def _wrong(kinds: Sequence[_Kind]) -> Measure:
    """The mean probability of the wrong class over the samples of each kind of error ``(E,)``."""

    def measure(outputs: Tensor, baseline: Tensor, labels: Tensor) -> Tensor:
        found = [outputs[kind.rows].softmax(1)[:, kind.predicted].mean() for kind in kinds]
        return torch.stack(found) if found else outputs.new_empty(0)

    return measure


def _confusion(partition: Partition, kind: _Kind, effects: np.ndarray) -> Confusion:
    order = [k for k in np.argsort(effects, kind="stable") if np.isfinite(effects[k])]
    return Confusion(
        true=partition.classes[kind.true],
        predicted=partition.classes[kind.predicted],
        count=len(kind.rows),
        rows=tuple(kind.rows.tolist()),
        causes=tuple((partition.names[k], float(effects[k])) for k in order),
    )


@dataclass(frozen=True, eq=False)
class _Opinion:
    """What the model without a group says of the group's own m training samples.

    rows:   their positions in the training set ``(m,)``
    labels: the labels they have ``(m,)``
    probabilities: of each class ``(m, L)``
    """

    rows: np.ndarray
    labels: np.ndarray
    probabilities: np.ndarray

    @property
    def likely(self) -> np.ndarray:
        """The likeliest class of each ``(m,)``."""
        found: np.ndarray = self.probabilities.argmax(1)
        return found

    @property
    def of_label(self) -> np.ndarray:
        """The probability of each label ``(m,)``."""
        found: np.ndarray = self.probabilities[np.arange(len(self.labels)), self.labels]
        return found

    @property
    def agreement(self) -> float:
        """Fraction of labels that are likeliest."""
        return float((self.likely == self.labels).mean())

    @property
    def doubted(self) -> float:
        """w_κ: by how much it is surer of the likeliest class than of the label, over all samples."""
        return float((self.probabilities.max(1) - self.of_label).sum())

    @property
    def doubtful(self) -> bool:
        """Whether most labels are doubted, and not just for want of a better one."""
        return self.agreement < _AGREEMENT and self.doubted > _DOUBT * len(self.rows)

    @property
    def instead(self) -> int | None:
        """The class it gives to most of those it disagrees on."""
        others = self.likely[self.likely != self.labels]
        return int(np.bincount(others).argmax()) if len(others) else None


def _opinions(models: Counterfactuals, partition: Partition, train: Samples) -> dict[int, _Opinion]:
    """By group, for those that can be removed."""
    usable = np.flatnonzero(models.synset.usable.numpy())
    removed = designs.leave_one_out(len(partition))
    found = {}
    with progress.bar("labels of groups", len(usable)) as advance, progress.silent():
        for k in usable.tolist():
            rows = partition.rows(k)
            x, labels = train.batch(rows)
            probabilities = models.outputs(removed[k : k + 1], x)[0].double().softmax(1)
            _check_predicted(probabilities, len(partition.classes))
            found[k] = _Opinion(rows, labels.numpy(), probabilities.cpu().numpy())
            advance(1)
    return found


def _finding(partition: Partition, k: int, effects: Mapping[str, np.ndarray], opinion: _Opinion) -> Finding:
    return Finding(
        group=partition.names[k],
        size=len(opinion.rows),
        loss=float(effects["loss"][k]),
        accuracy=float(effects["accuracy"][k]),
        agreement=opinion.agreement,
        likely=None if opinion.instead is None else partition.classes[opinion.instead],
        label=None if partition.parents is None else partition.classes[partition.parents[k]],
    )


def _backing(opinions: Mapping[int, _Opinion], effects: Mapping[str, np.ndarray]) -> dict[int, float]:
    """How far all samples asked about, and those of a group's classes, back its labels: the mean of both."""
    doubted = np.array([opinion.doubted for opinion in opinions.values()])
    everyone = np.array([effects["loss"][k] for k in opinions])
    alike = np.array([effects["class loss"][k][opinion.labels].mean() for k, opinion in opinions.items()])
    backing = (_relative(everyone, doubted) + _relative(alike, doubted)) / 2
    return dict(zip(opinions, backing.tolist(), strict=True))


def _relative(costs: np.ndarray, doubted: np.ndarray) -> np.ndarray:
    """Costs ``(K,)`` of removing groups, in units of what is usual for as many doubted labels ``(K,)``."""
    rates = costs / np.maximum(doubted, 1e-9)
    order = np.argsort(rates, kind="stable")
    middle = np.searchsorted(np.cumsum(doubted[order]), doubted.sum() / 2)
    usual = rates[order][min(middle, len(order) - 1)]
    found: np.ndarray = np.maximum(rates / max(usual, 1e-9), _LEAST_BACKING)
    return found


def _noisy(
    findings: Mapping[int, Finding],
    opinions: Mapping[int, _Opinion],
    backing: Mapping[int, float],
    present: np.ndarray,
) -> tuple[Finding, ...]:
    """Groups whose labels are mostly doubted and hardly backed, the most such labels first.

    Those of classes that are not ``present (L,)`` among the samples asked about cannot be judged.
    """
    doubtful = [k for k, opinion in opinions.items() if opinion.doubtful and present[opinion.labels].all()]
    mistakes = {_mistake(findings[k]) for k in doubtful if backing[k] < _BACKING}
    found = [k for k in doubtful if backing[k] < (_BACKING_AGAIN if _mistake(findings[k]) in mistakes else _BACKING)]
    return tuple(findings[k] for k in sorted(found, key=lambda k: -opinions[k].doubted * (1 - backing[k])))


def _mistake(finding: Finding) -> tuple[str, ...]:
    """What was labelled as what; groups that cut across classes have mistakes of their own."""
    return (finding.group,) if finding.label is None else (finding.label, str(finding.likely))


def _harmful(findings: Mapping[int, Finding], clarity: np.ndarray, loss: float) -> tuple[Finding, ...]:
    """Groups without which the loss is lower, noticeably and by more than chance."""
    found = [f for k, f in findings.items() if f.loss < -_NOTICEABLE_LOSS * loss and clarity[k] < -_CLEAR]
    return tuple(sorted(found, key=lambda finding: finding.loss))


def _useless(findings: Mapping[int, Finding], others: Sequence[Finding], loss: float) -> tuple[Finding, ...]:
    """Groups that are neither and without which nothing noticeable changes."""
    found = [f for f in findings.values() if f not in others and abs(f.loss) < _NOTICEABLE_LOSS * loss]
    found = [f for f in found if abs(f.accuracy) < _NOTICEABLE_ACCURACY]
    return tuple(sorted(found, key=lambda finding: abs(finding.loss)))


def _suspects(partition: Partition, opinions: Mapping[int, _Opinion], groups: set[str]) -> tuple[Suspect, ...]:
    """The samples of these groups whose label is not the likeliest class."""
    classes, found = partition.classes, []
    for k, opinion in opinions.items():
        if partition.names[k] not in groups:
            continue
        for row, label, likely, p in zip(opinion.rows, opinion.labels, opinion.likely, opinion.of_label, strict=True):
            if label != likely:
                found.append(Suspect(int(row), partition.names[k], classes[label], classes[likely], float(p)))
    return tuple(sorted(found, key=lambda suspect: (suspect.probability, suspect.row)))
