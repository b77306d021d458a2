"""What the command line says to people: tables and sentences, with signs and units in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

from ddm.attribution import SIGN, Attribution
from ddm.audit import Audit
from ddm.shares import Shares
from ddm.trace import Trace


def console() -> Console:
    """Standard output. Names are data, so nothing in them is taken for markup; long lines are left to the terminal."""
    return Console(markup=False, highlight=False, soft_wrap=True)


def describe_run(out: Console, facts: dict[str, Any], folder: str) -> None:
    """What a run holds."""
    accuracy, samples, sizes = facts["accuracy"], facts["samples"], facts["group_sizes"]
    out.print(
        f"{facts['network']} with {facts['parameters']:,} parameters, trained on {samples['train']:,} samples "
        f"of {facts['data']}: {accuracy['train']:.1%} right on them, {accuracy['validation']:.1%} on "
        f"{samples['validation']:,} validation and {accuracy['test']:.1%} on {samples['test']:,} test samples."
    )
    out.print(
        f"{facts['groups']} groups of {sizes['smallest']} to {sizes['largest']} samples, distilled by "
        f"{facts['matching']} matching into {facts['synset_bytes'] / 1024:,.0f} KiB; mean alignment of the synset's "
        f"step with what it was matched to {facts['alignment']:.2f} (1 is perfect, 0 is unrelated)."
    )
    if facts["stopped"]:
        out.print(f"{len(facts['stopped'])} groups could not be distilled: {', '.join(facts['stopped'])}.")
    if "seconds" in facts:
        out.print("Seconds: " + ", ".join(f"{stage} {value:.1f}" for stage, value in facts["seconds"].items()) + ".")
    out.print(f"Files: {folder}")


def effects_table(attribution: Attribution, count: int) -> Table:
    """The strongest effects of an attribution."""
    table = Table(
        title=f"Effect of removing each group on: {attribution.measured}\n"
        f"{attribution.baseline[attribution.focus]:.4g} with all groups",
        caption=SIGN,
    )
    for heading in ("group removed", "samples", "effect"):
        table.add_column(heading, justify="left" if heading == "group removed" else "right")
    ranked = attribution.sort()
    for name, size, score in list(zip(ranked.names, ranked.sizes, ranked.scores, strict=True))[:count]:
        table.add_row(name, str(size), f"{score:+.4g}")
    return table


def describe_trace(out: Console, trace: Trace) -> None:
    """The trail from class to cluster."""
    measured = trace.clusters.measured
    if trace.classes is not None:
        effect = trace.classes.top(1)[0][1]
        out.print(f"Class with the strongest effect on the {measured}: {trace.class_name} ({effect:+.4g} without it).")
    out.print(f"Group with the strongest effect on the {measured}: {trace.group} ({trace.effect:+.4g} without it).")
    if trace.verified is not None:
        exact = ", ".join(f"{name} {effect:+.4g}" for name, effect in trace.verified.top(len(trace.verified)))
        out.print(f"By retraining without each: {exact}.")
    out.print(f"{trace.models} fine-tunings; searching every group takes {trace.full}. Effect {SIGN}.")


def shares_table(shares: Shares, count: int) -> Table:
    """The samples of a group that contribute most to its effect."""
    table = Table(
        title=f"Samples of group {shares.group} by their share of its effect on: {shares.output}\n"
        f"{shares.effect:+.4g} without the group; {len(shares)} samples add up to it",
        caption=SIGN,
    )
    for heading in ("training sample", "share", "of the effect"):
        table.add_column(heading, justify="right")
    for row, value in shares.top(count):
        table.add_row(str(row), f"{value:+.4g}", f"{value / shares.effect:.1%}")
    return table


def describe_audit(out: Console, audit: Audit) -> None:
    """How far a datamodel can be trusted."""
    single, many = len(audit.groups), audit.unions
    for run, figures in audit.figures.items():
        table = Table(title=f"Against retraining, {run}: {RUNS[run]}")
        table.add_column("figure")
        for heading in ("datamodel", "95 % interval", "retraining", "ceiling"):
            table.add_column(heading, justify="right")
        for name, figure in figures.items():
            table.add_row(
                name,
                _number(figure["value"]),
                f"{_number(figure['low'])} to {_number(figure['high'])}",
                _number(figure["retrain"]),
                _number(figure["ceiling"]),
            )
        out.print(table)
    for name, meaning in MEANINGS.items():
        out.print(f"{name}: {meaning}")
    out.print("retraining: what another retraining scores. ceiling: what the effect without noise would score.")
    out.print(
        f"{audit.trainings} retrainings of {audit.seconds:.1f} s: without each of {single} groups, without {many} "
        f"unions of half of the groups, and with all, in {audit.orders} batch orders; {audit.samples[0]} test and "
        f"{audit.samples[1]} validation samples. Predicted effects have {audit.size:.2f} of their true size."
    )
    out.print(trust(audit))


def trust(audit: Audit | None) -> str:
    """One line on how far the answers can be trusted, for every command that answers."""
    if audit is None:
        return "Not audited: ddm audit RUN says how far this can be trusted."
    return f"Audit: {audit.sentence}"


RUNS = {"same run": "the target's batch order", "other run": "other batch orders"}

MEANINGS = {
    "oracle_fraction": "finding the group that matters most (1 always, 0 as by chance)",
    "rho": "order of groups by their effect on a prediction (1 the same, 0 unrelated)",
    "rho_global": "order of groups by their effect on the validation loss",
    "lds": "order of unions of groups by their effect on a prediction",
}


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def predictions(logits: Tensor, classes: Sequence[str], count: int = 3) -> str:
    """The likeliest classes of one sample ``(L,)`` with their probabilities."""
    probabilities = logits.softmax(-1)
    best = probabilities.argsort(descending=True)[:count].tolist()
    return ", ".join(f"{classes[c]} {float(probabilities[c]):.1%}" for c in best)
