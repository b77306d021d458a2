"""The panels of the page as HTML. Names come from data, so all text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from ddm.answers.attribution import Attribution
from ddm.answers.shares import Shares
from ddm.answers.trace import Trace
from ddm.data.shown import label_text
from ddm.explorer import sentences, shown
from ddm.explorer.explored_run import ExploredRun
from ddm.explorer.question import Question, class_in_focus
from ddm.explorer.removal import Confusions, Prediction, compare_confusions
from ddm.explorer.retraining_check import Comparison
from ddm.explorer.state import State

MAX_BARS = 10
"""Maximum number of classes with probability bars."""

MAX_MATRIX_CLASSES = 12
"""Up to this many classes the panel shows the whole confusion matrix; above, the cells that change most."""

THUMBNAILS = 8


def notice(sentences: Sequence[str]) -> str:
    """Warnings, one sentence each."""
    return "".join(f"<p class='ddm-notice' role='alert'>{escape(sentence)}</p>" for sentence in sentences)


def rough(sentence: str | None) -> str:
    """The sentence that an answer is beyond reach, beside the answer; empty for one within reach."""
    return "" if sentence is None else f"<p class='ddm-notice' data-beyond>{escape(sentence)}</p>"


def doubt(sentence: str | None) -> str:
    """The sentence that no group stands out; empty if one does."""
    return "" if sentence is None else f"<p data-doubt>{escape(sentence.replace('-', '−'))}</p>"


def image(run: ExploredRun, state: State, question: Question) -> str:
    """The sample of the question, with the verdict."""
    sentence = escape(sentences.verdict(run, state, question))
    return (
        f"<div class='ddm-question'>{shown.in_full(question.samples, question.row)}"
        f"<p data-verdict class='{_tone(run, question)}'>{sentence}</p></div>"
    )


def _tone(run: ExploredRun, question: Question) -> str:
    """The style of the verdict: good for a right prediction, bad for a wrong one."""
    if question.label is None or not run.has_classes:
        return ""
    return "ddm-good" if question.label == run.classes[question.predicted] else "ddm-bad"


def bars(run: ExploredRun, state: State, prediction: Prediction) -> str:
    """The model's answers before and after the removal: probabilities as bars, one row per class, or numbers."""
    order = _likeliest(prediction)
    names = ("loss",) if run.task.by_position else run.classes
    head = "class" if run.has_classes else ""
    row = _number_row if run.task.by_position or run.task.kind == "regression" else _bar_row
    rows = "".join(row(names[c], float(prediction.before[c]), float(prediction.after[c])) for c in order)
    sentence = escape(sentences.removal_sentence(state, run, prediction.before, prediction.after))
    hidden = len(prediction.before) - len(order)
    rest = f"<p class='ddm-small'>{hidden} less likely classes are not shown.</p>" if hidden else ""
    return (
        f"<p data-removal>{sentence}</p>{rough(prediction.beyond)}<table class='ddm-bars'>"
        f"<thead><tr><th>{head}</th>"
        f"<th><i class='ddm-key ddm-before'></i>with all groups</th>"
        f"<th><i class='ddm-key ddm-after'></i>without the ticked groups</th>"
        f"</tr></thead><tbody>{rows}</tbody></table>{rest}"
    )


def _likeliest(prediction: Prediction) -> np.ndarray:
    largest = np.maximum(prediction.before, prediction.after)
    order: np.ndarray = np.sort(np.argsort(-largest, kind="stable")[:MAX_BARS])
    return order


def _bar_row(name: str, before: float, after: float) -> str:
    cells = "".join(
        f"<td data-when='{when}' data-value='{value:.6f}'><span class='ddm-bar ddm-{when}' "
        f"style='width:{100 * value:.2f}%'></span><b>{value:.1%}</b></td>"
        for when, value in (("before", before), ("after", after))
    )
    return f"<tr data-class='{escape(name, quote=True)}'><th>{escape(name)}</th>{cells}</tr>"


def _number_row(name: str, before: float, after: float) -> str:
    cells = "".join(
        f"<td data-when='{when}' data-value='{value:.6g}'><b>{_minus(f'{value:.4g}')}</b></td>"
        for when, value in (("before", before), ("after", after))
    )
    return f"<tr data-class='{escape(name, quote=True)}'><th>{escape(name)}</th>{cells}</tr>"


def _minus(text: str) -> str:
    return text.replace("-", "−")


def trail(run: ExploredRun, state: State, question: Question, trace: Trace) -> str:
    """HTML that leads from the sample to the class to the group behind the answer, with samples of each."""
    partition, name = run.datamodel.partition, class_in_focus(run, state, question)
    steps = [_step(run.kind, shown.sample(question.samples, question.row, f"the {run.kind} in question"), "", "")]
    upper = partition.by_class()
    if trace.classes is not None and upper is not None and trace.class_name is not None:
        change = sentences.effect_clause(state, name, trace.classes.top(1)[0][1])
        members = upper.rows(upper.names.index(trace.class_name))
        steps.append(_step("class", _members(run, members, 3), trace.class_name, f"removing it {change}"))
    words = f"removing it {sentences.effect_clause(state, name, trace.effect)}"
    if trace.verified is None:
        words += sentences.certainty(trace.clusters, int(trace.clusters.order()[0]))
    steps.append(_step("group", _members(run, partition.members(trace.group), 3), trace.group, words))
    cost = f"Computed with {trace.models} fine-tunings instead of {trace.full}." if trace.models < trace.full else ""
    return (
        f"{doubt(trace.no_stand_out)}"
        f"<div class='ddm-trail' data-group='{escape(trace.group, quote=True)}'>{'<b>→</b>'.join(steps)}</div>"
        f"<p class='ddm-small'>{cost}</p>{rough(run.beyond((trace.group,)))}"
    )


def _step(what: str, inside: str, name: str, words: str) -> str:
    title = f"{what} <strong>{escape(name)}</strong>" if name else what
    return f"<figure><div>{inside}</div><figcaption>{title}<br>{escape(words)}</figcaption></figure>"


def _members(run: ExploredRun, rows: np.ndarray, count: int) -> str:
    """``count`` training samples, evenly spaced among ``rows``; of texts and rows at most two."""
    count = count if run.kind == "image" or count > 3 else 2
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int))]
    return "".join(_training(run, int(row)) for row in chosen)


def _training(run: ExploredRun, row: int) -> str:
    return shown.sample(run.data.train, row, _training_name(run, row))


def _training_name(run: ExploredRun, row: int) -> str:
    """The position of a training sample, and its name and label where it has these."""
    train = run.data.train
    named = "" if train.ids is None else f", {train.ids[row]}"
    label = "" if run.kind == "image" else label_text(train, row)
    return f"training sample {row}{named}{f', {label}' if label else ''}"


def strongest(state: State, name: str, effects: Attribution, count: int = 5) -> str:
    """The groups with the strongest effects, in words. Those within noise are not numbered."""
    rows = "".join(_effect_row(state, name, effects, int(group)) for group in effects.order()[:count])
    basis = "" if effects.basis is None else f"<p class='ddm-small'>{escape(effects.basis)}.</p>"
    return (
        f"<p>{escape(sentences.objective_noun(state, name).capitalize())} is "
        f"<b data-baseline>{sentences.value_text(state, float(effects.baseline[0]))}</b> with all groups.</p>"
        f"<ol class='ddm-list'>{rows}</ol>{basis}{rough(effects.beyond)}"
    )


def _effect_row(state: State, name: str, effects: Attribution, group: int) -> str:
    clause = sentences.effect_clause(state, name, float(effects.scores[group])) + sentences.certainty(effects, group)
    noise = "" if effects.stands_out[group] else " class='ddm-noise'"
    return f"<li{noise}>Removing <strong>{escape(effects.names[group])}</strong> {escape(clause)}.</li>"


def samples(run: ExploredRun, state: State, shares: Shares) -> str:
    """The training samples that contribute most to a group's effect."""
    figures = "".join(
        f"<figure>{_training(run, row)}<figcaption>{_caption(run, row)}<br>{value / shares.effect:.0%}"
        f"</figcaption></figure>"
        for row, value in shares.top(THUMBNAILS)
    )
    return (
        f"<p>Training samples of <strong>{escape(shares.group)}</strong>, by their share of its effect "
        f"({sentences.signed_effect(state, shares.effect)}):</p><div class='ddm-thumbnails'>{figures}</div>"
    )


def _caption(run: ExploredRun, row: int) -> str:
    return str(row) if run.kind == "image" else escape(_training_name(run, row).removeprefix("training sample "))


def members(run: ExploredRun, group: str, sentence: str) -> str:
    """Some training samples of a group whose shares are not known."""
    inside = _members(run, run.datamodel.partition.members(group), THUMBNAILS)
    return f"<p>{escape(sentence)}</p><div class='ddm-thumbnails'>{inside}</div>"


def tested(run: ExploredRun, state: State) -> str:
    """The test samples before and after the removal."""
    return test_set(run, state, compare_confusions(run, state)) if run.has_classes else test_scores(run, state)


def test_scores(run: ExploredRun, state: State) -> str:
    """The figures of the test samples before and after the removal, where samples have no class."""
    before, after = run.scores_without(()), run.scores_without(state.remove)
    rows = "".join(
        f"<tr><td>{escape(sentences.score_name(name))}</td><td>{sentences.score_text(name, before[name])}</td>"
        f"<td data-score='{escape(name, quote=True)}'>{sentences.score_text(name, after[name])}</td></tr>"
        for name in before
    )
    return (
        f"<table class='ddm-table'><thead><tr><th>{_tested(run)}</th><th>with all groups</th>"
        f"<th>without the ticked groups</th></tr></thead><tbody>{rows}</tbody></table>{rough(run.beyond(state.remove))}"
    )


def _tested(run: ExploredRun) -> str:
    """How many test samples are judged."""
    count, total = len(run.rows), len(run.data.test)
    return f"{total} test {run.kind}s" if count == total else f"{count} of {total} test {run.kind}s"


def test_set(run: ExploredRun, state: State, confusions: Confusions) -> str:
    """Accuracy and confusion matrix of the test samples, before and after the removal."""
    before, after = confusions.accuracy
    head = (
        f"<p>Accuracy on {_tested(run)}: <b data-accuracy='before'>{before:.2%}</b> → "
        f"<b data-accuracy='after'>{after:.2%}</b> ({_points(after - before)}).</p>{rough(confusions.beyond)}"
    )
    if len(run.classes) > MAX_MATRIX_CLASSES:
        return head + _changed_cells(run, confusions)
    tables = _matrix(run, "with all groups", confusions.before, confusions.before)
    if state.remove:
        tables += _matrix(run, "without the ticked groups", confusions.after, confusions.before)
    key = "<p class='ddm-small'>Solid frame: worse. Dashed frame: better.</p>" if state.remove else ""
    return f"{head}<div class='ddm-matrices'>{tables}</div>{key}"


def _points(change: float) -> str:
    return f"{100 * change:+.2f} points".replace("-", "−", 1)


def _matrix(run: ExploredRun, title: str, counts: np.ndarray, before: np.ndarray) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in run.classes)
    largest = max(1, int(counts.max()))
    rows = "".join(
        f"<tr><th>{escape(name)}</th>"
        + "".join(_cell(int(counts[i, j]), int(before[i, j]), largest, right=i == j) for j in range(len(run.classes)))
        + "</tr>"
        for i, name in enumerate(run.classes)
    )
    return (
        f"<table class='ddm-matrix'><caption>{escape(title)}: true class (row), predicted class (column)</caption>"
        f"<thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _cell(count: int, before: int, largest: int, *, right: bool) -> str:
    """A count, marked as better or worse if it changed: more right predictions are better, more errors are worse."""
    marks = ""
    if count != before:
        better = (count > before) == right
        marks = f" class='{'ddm-better' if better else 'ddm-worse'}' title='{before} with all groups'"
    return f"<td{marks} style='--part:{count / largest:.2f}'>{count or ''}</td>"


def _changed_cells(run: ExploredRun, confusions: Confusions) -> str:
    """The cells that change most, for more classes than fit into a table."""
    change = (confusions.after - confusions.before).ravel()
    order = [cell for cell in np.argsort(-np.abs(change), kind="stable")[:10] if change[cell]]
    if not order:
        return "<p class='ddm-small'>No prediction on the test samples changes.</p>"
    size = len(run.classes)
    rows = "".join(
        f"<tr><td>{escape(run.classes[cell // size])}</td><td>{escape(run.classes[cell % size])}</td>"
        f"<td>{confusions.before.flat[cell]}</td><td>{confusions.after.flat[cell]}</td></tr>"
        for cell in order
    )
    return (
        "<table class='ddm-table'><thead><tr><th>true class</th><th>predicted class</th><th>with all groups</th>"
        f"<th>without the ticked groups</th></tr></thead><tbody>{rows}</tbody></table>"
    )


def comparison(run: ExploredRun, state: State, question: Question, result: Comparison) -> str:
    """The prediction and the retraining, side by side."""
    name = class_in_focus(run, state, question)
    predicted, exact = (sentences.signed_effect(state, effect) for effect in result.effects)
    rows = _comparison_row(f"effect on {sentences.objective_noun(state, name)}", "0", predicted, exact, "0")
    if run.has_classes:
        for c in np.unique(result.probabilities.argmax(1)):
            values = (f"{p:.1%}" for p in result.probabilities[:, c])
            rows += _comparison_row(f"probability of {run.classes[c]}", *values)
    for figure in result.scores[0]:
        values = (sentences.score_text(figure, scores[figure]) for scores in result.scores)
        rows += _comparison_row(f"{sentences.score_name(figure)} on the test {run.kind}s", *values)
    return (
        f"<table class='ddm-table' data-exact='{result.effects[1]:.6f}'><thead><tr><th>without "
        f"{escape(', '.join(state.remove))}</th><th>with all groups</th><th>predicted</th><th>retrained</th>"
        f"<th>retrained with all groups</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def _comparison_row(what: str, *values: str) -> str:
    return f"<tr><td>{escape(what)}</td>{''.join(f'<td>{value}</td>' for value in values)}</tr>"


def progress(elapsed: float, expected: float | None) -> str:
    """Progress of a retraining, from its estimated time."""
    part = "" if expected is None else f" value='{min(elapsed / max(expected, 0.1), 0.99):.2f}'"
    about = "" if expected is None else f" of about {max(expected, 0.1):.1f} s"
    return f"<p>Retraining: {elapsed:.1f} s{about}.</p><progress{part}></progress>"
