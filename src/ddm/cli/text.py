"""The text that commands print for people: tables and sentences, with units.

Changes of probabilities, accuracy, precision, recall and F1 are printed in points: a change from 50 % to 53 % is
+3.0 points. JSON holds fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from ddm.answers.attribution import SIGN, Attribution
from ddm.answers.confusions import Confusion
from ddm.answers.diagnosis import Diagnosis, Finding
from ddm.answers.intervals import NO_INTERVALS
from ddm.answers.shares import Shares
from ddm.answers.trace import Trace
from ddm.compute.progress import format_duration
from ddm.data.samples import Samples
from ddm.data.views import shortened
from ddm.distil.plan import Estimate
from ddm.plots import units
from ddm.runs.verify import OTHER, Verification
from ddm.truth.audit import RUNS, Audit, trust_line
from ddm.truth.figures import label_of, meaning_of


def describe_run(out: Console, facts: dict[str, Any], folder: str) -> None:
    """Describe a run in a few sentences."""
    samples, sizes = facts["samples"], facts["group_sizes"]
    out.print(
        f"{facts['network']} with {facts['parameters']:,} parameters, trained on {samples['train']:,} samples "
        f"of {facts['data']}. {_scores(facts)}"
    )
    groups = f"{facts['groups']} groups of {sizes['smallest']} to {sizes['largest']} samples"
    if facts["alignment"] is None:
        out.print(f"{groups}, whose responses are kept. There is no synset: ddm distil makes it.")
    else:
        out.print(
            f"{groups}, distilled by {facts['matching']} matching into {units.size_text(facts['synset_bytes'])}. Mean "
            f"alignment of the synsets with their targets: {facts['alignment']:.2f} (1 is perfect, 0 is unrelated)."
        )
    if facts.get("damping"):
        out.print(describe_damping(facts["damping"]))
    if facts["stopped"]:
        out.print(f"{len(facts['stopped'])} groups could not be distilled: {', '.join(facts['stopped'])}.")
    if "seconds" in facts:
        stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in facts["seconds"].items())
        out.print(f"Time: {stages}.")
    out.print(f"Files: {folder}")


_VIEW = 120
"""Maximum characters of a sample in a table."""

_SCORES = {"accuracy": "Accuracy", "f1": "F1", "absolute-error": "Mean absolute error", "r2": "R²"}
"""What scores are called."""


def _scores(facts: dict[str, Any]) -> str:
    """How good a model is on each split, in a sentence for each score."""
    samples, sentences = facts["samples"], []
    for name, title in _SCORES.items():
        if name in facts:
            scores = facts[name]
            train, validation, test = (score_text(name, scores[split]) for split in ("train", "validation", "test"))
            sentences.append(
                f"{title}: {train} on the training set, {validation} on {samples['validation']:,} validation samples, "
                f"{test} on {samples['test']:,} test samples."
            )
    return " ".join(sentences)


def score_text(name: str, value: float) -> str:
    """A score with its unit."""
    return f"{value:.4g}" if name == "absolute-error" else f"{value:.2f}" if name == "r2" else f"{value:.1%}"


def score_change(name: str, before: float, after: float) -> str:
    """How a score changes, such as ``accuracy 95.0% → 94.0% (-1.0 points)``."""
    title, change = _SCORES[name], after - before
    title = title[0].lower() + title[1:] if title[1:].islower() or " " in title else title
    points = f" ({100 * change:+.1f} points)" if name in ("accuracy", "f1") else f" ({change:+.3g})"
    return f"{title} {score_text(name, before)} → {score_text(name, after)}{points}"


def describe_damping(damping: dict[str, float]) -> str:
    """One sentence about the damping of response matching; ``damping`` is that of a synset."""
    how = "chosen by curvature that the solve has not seen" if len(damping) > 1 else "as set"
    return f"Damping: {damping['scale']:g} × that of the training, {how}."


def describe_estimate(out: Console, estimate: Estimate) -> None:
    """Print the estimate of a fit."""
    stages = ", ".join(f"{stage} {format_duration(seconds)}" for stage, seconds in estimate.seconds.items())
    out.print(f"This fit would take about {format_duration(estimate.total)}: {stages}.")
    workers = f" (including {estimate.workers} workers)" if estimate.workers else ""
    out.print(
        f"It needs about {estimate.memory / 2**30:.1f} GiB of memory{workers} and "
        f"{estimate.disk / 2**20:,.0f} MiB of disk. "
        "Each estimate is within a factor of two. Nothing was written."
    )
    if estimate.kept:
        saving = f" The synset takes {format_duration(estimate.synset)} of the fit; --no-synset leaves it out."
        out.print(f"It keeps {units.size_text(estimate.kept)} of responses.{saving if estimate.synset else ''}")


def describe_release(out: Console, folder: str, names: Sequence[str]) -> None:
    """Print the files of a released run."""
    out.print(f"The released run in {escape(folder)} answers from its synset alone. Its files: {', '.join(names)}.")
    out.print(
        "It has no kept responses, no retrained models, no audit and no earlier checkpoints. Read docs/privacy.md "
        "before you share it."
    )


def describe_effects(out: Console, attribution: Attribution, count: int) -> None:
    """Print whether a group stands out, and the table of the strongest effects."""
    if attribution.no_stand_out is not None:
        out.print(escape(attribution.no_stand_out))
    out.print(effects_table(attribution, count))


def effects_table(attribution: Attribution, count: int) -> Table:
    """A table of the strongest effects of an attribution, with their intervals. Effects within noise are dimmed."""
    unit = ", in points" if attribution.fraction else ""
    table = _table(
        f"Effect of removing each group on: {attribution.measured}\n"
        f"{units.value_text(attribution.baseline[attribution.focus], attribution.fraction)} with all groups",
        ("group removed",),
        ("samples", f"effect{unit}", *((f"90 % interval{unit}", "") if attribution.has_intervals else ())),
        caption="\n".join([SIGN, *attribution.interval_notes(count)]),
    )
    ranked = attribution.sort()
    for i in range(min(count, len(ranked))):
        cells = [ranked.names[i], str(ranked.sizes[i]), units.change_number(ranked.scores[i], ranked.fraction)]
        if ranked.has_intervals:
            cells += [ranked.interval_text(i), ranked.mark(i)]
        table.add_row(*cells, style=None if ranked.stands_out[i] else "dim")
    return table


def describe_trace(out: Console, trace: Trace) -> None:
    """Print the class and the group most responsible, how sure that is, and what the search cost."""
    measured, fraction = trace.clusters.measured.removeprefix("the "), trace.clusters.fraction
    if trace.classes is not None:
        effect = units.change_text(trace.classes.top(1)[0][1], fraction)
        out.print(f"Class with the strongest effect on the {measured}: {trace.class_name} ({effect} without it).")
    if trace.no_stand_out is not None:
        out.print(escape(trace.no_stand_out))
    else:
        out.print(f"Group with the strongest effect on the {measured}: {trace.group}, {trace.effect_text} without it.")
    if trace.verified is not None:
        exact = trace.verified.top(len(trace.verified))
        each = ", ".join(f"{name} {units.change_text(effect, fraction)}" for name, effect in exact)
        out.print(f"Effects measured by retraining without each group: {each}.")
    elif trace.clusters.basis is not None:
        out.print(f"{trace.clusters.basis}.")
    else:
        out.print(NO_INTERVALS)
    if trace.models < trace.full:
        out.print(f"The search took {trace.models} fine-tunings; searching every group takes {trace.full}.")
    out.print(f"{SIGN[0].upper()}{SIGN[1:]}.")


def shares_table(shares: Shares, count: int, train: Samples | None = None) -> Table:
    """A table of the samples of a group that contribute most to its effect, with what they are if they have a view."""
    view = None if train is None else train.view
    table = _table(
        f"Samples of group {shares.group} by their share of its effect on: {shares.output}\n"
        f"{shares.text(shares.effect)} without the group, the sum over its {len(shares)} samples",
        (),
        ("training sample", "share", "percent of the effect"),
        caption=SIGN,
    )
    if view is not None:
        table.add_column("what it is")
    for row, value in shares.top(count):
        cells = [str(row), shares.text(value), f"{value / shares.effect:.1%}"]
        if view is not None and train is not None:
            cells.append(escape(f"{_label_of(train, row)}: {shortened(view.text(row), _VIEW)}"))
        table.add_row(*cells)
    return table


def _label_of(samples: Samples, row: int) -> str:
    """The label of a sample in words."""
    label = samples.labels[row]
    if samples.has_classes:
        return samples.classes[int(label)]
    if label.dim() == 0:
        return f"{samples.classes[0]} {float(label):.6g}"
    return ", ".join(f"{name} {value:g}" for name, value in zip(samples.classes, label.tolist(), strict=True))


def describe_diagnosis(out: Console, diagnosis: Diagnosis, count: int) -> None:
    """Print the findings as sentences, then tables of at most ``count`` rows, then how far to trust them."""
    *found, trust_line = diagnosis.sentences()
    for sentence in found:
        out.print(sentence)
    for table in (
        _findings_table(diagnosis, count),
        _suspects_table(diagnosis, count),
        _confusions_table(diagnosis.confusions[:count]),
        _classes_table(diagnosis),
    ):
        if table.row_count:
            out.print(table)
    out.print(trust_line)


def _findings_table(diagnosis: Diagnosis, count: int) -> Table:
    table = _table(
        "Groups to check, and the effect of removing each",
        ("group", "why"),
        ("size", "label → like", "confirmed", "loss", "accuracy"),
        caption="like: the class that the model without the group predicts most often for other labels.\n"
        "confirmed: share of labels that this model predicts too.\n"
        "loss, accuracy (in points): change if the group is removed",
    )
    for why, findings in (("mislabelled?", diagnosis.noisy), ("harmful", diagnosis.merely_harmful)):
        for finding in findings[:count]:
            table.add_row(finding.group, why, *_cells(finding))
    return table


def _cells(finding: Finding) -> tuple[str, ...]:
    return (
        str(finding.size),
        f"{finding.label or '–'} → {finding.likely or '–'}",
        f"{finding.agreement:.0%}",
        f"{finding.loss:+.2g}",
        units.change_number(finding.accuracy, True),
    )


def _suspects_table(diagnosis: Diagnosis, count: int) -> Table:
    table = _table(
        f"Training samples to check, {min(count, len(diagnosis.suspects))} of {len(diagnosis.suspects)}",
        ("group",),
        ("training sample", "label", "looks like", "probability of its label"),
    )
    for suspect in diagnosis.suspects[:count]:
        table.add_row(suspect.group, str(suspect.row), suspect.label, suspect.likely, f"{suspect.probability:.1%}")
    return table


def _confusions_table(confusions: Sequence[Confusion]) -> Table:
    table = _table(
        "Most frequent errors, and how removing groups changes the probability of the wrong class",
        ("class", "taken for"),
        ("samples",),
    )
    table.add_column("groups that cause it, in points")
    for confusion in confusions:
        causes = ", ".join(
            f"{group} {units.change_number(effect, True)}" for group, effect in confusion.causes[:3] if effect < 0
        )
        table.add_row(confusion.true, confusion.predicted, str(confusion.count), causes or "–")
    return table


def _classes_table(diagnosis: Diagnosis) -> Table:
    table = _table(
        f"Each class, and the group whose removal lowers its F1 most\n"
        f"Accuracy on all {int(diagnosis.counts.sum())} samples: {diagnosis.accuracy:.1%}",
        ("class",),
        ("precision", "recall", "F1", "change of F1, in points"),
    )
    for c, name in enumerate(diagnosis.classes):
        figures = (f"{values[c]:.1%}" for values in (diagnosis.precision, diagnosis.recall, diagnosis.f1))
        table.add_row(name, *figures, _most(diagnosis, c))
    return table


def _most(diagnosis: Diagnosis, c: int) -> str:
    effects = np.nan_to_num(diagnosis.effects["f1"][:, c])
    best = int(effects.argmin())
    return f"{diagnosis.groups[best]} {units.change_number(effects[best], True)}" if effects[best] < 0 else "–"


def _table(title: str, left: Sequence[str], right: Sequence[str], caption: str | None = None) -> Table:
    table = Table(title=title, caption=caption)
    for heading in left:
        table.add_column(heading)
    for heading in right:
        table.add_column(heading, justify="right")
    return table


def describe_audit(out: Console, audit: Audit, verbose: bool = False) -> None:
    """Print the verdict of an audit and what it cost; ``verbose`` shows the figures first."""
    if verbose:
        _describe_figures(out, audit)
    single, many = len(audit.groups), audit.unions
    out.print(
        f"{audit.trainings} retrainings of {audit.seconds:.1f} s each, in {audit.orders} batch orders: without each of "
        f"{single} groups, without {many} random halves of the groups, and with all groups; measured on "
        f"{audit.samples[0]} test and {audit.samples[1]} validation samples."
    )
    out.print(trust_line(audit.sentence))


def _describe_figures(out: Console, audit: Audit) -> None:
    """Print the figures of an audit, and what they mean."""
    for run, figures in audit.figures.items():
        headings = ("datamodel", "95 % interval", "retraining", "ceiling")
        table = _table(f"Against retraining, {run}: {RUNS[run]}", ("figure",), headings)
        for name, figure in figures.items():
            table.add_row(
                label_of(name),
                _number(figure["value"]),
                f"{_number(figure['low'])} to {_number(figure['high'])}",
                _number(figure["retrain"]),
                _number(figure["ceiling"]),
            )
        out.print(table)
    for name in dict.fromkeys(name for figures in audit.figures.values() for name in figures):
        out.print(f"{label_of(name)}: {meaning_of(name)}")
    out.print("retraining: the score of another retraining. ceiling: the score of effects without noise.")


def describe_verification(out: Console, found: Verification) -> None:
    """Print the state of each file of a run; whole files of a folder share one row."""
    table = _table(f"Files of {found.run}", ("file", "state", "why"), ())
    for one in found.checked:
        if one.bad or (one.state != OTHER and "/" not in one.name):
            table.add_row(escape(one.name), one.state, escape(one.why))
    for folder in sorted({one.name.partition("/")[0] for one in found.checked if "/" in one.name}):
        inside = [one.state for one in found.checked if one.name.startswith(f"{folder}/") and not one.bad]
        for state in sorted(set(inside) - {OTHER}):
            table.add_row(f"{escape(folder)}/", state, f"{inside.count(state)} files")
    out.print(table)
    if not found.bad:
        out.print(escape(f"{found.sentence[0].upper()}{found.sentence[1:]}"))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def predictions(logits: Tensor, classes: Sequence[str], count: int = 3) -> str:
    """The most probable classes of one sample ``(L,)``, with their probabilities."""
    probabilities = logits.softmax(-1)
    best = probabilities.argsort(descending=True)[:count].tolist()
    return ", ".join(f"{classes[c]} {float(probabilities[c]):.1%}" for c in best)
