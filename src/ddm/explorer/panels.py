"""Answers as HTML. Names are data, so every one is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from torch import Tensor

from ddm.answers.attribution import Attribution
from ddm.answers.shares import Shares
from ddm.answers.trace import Trace
from ddm.explorer import phrases, pictures
from ddm.explorer.answers import Asked, Comparison, Confusions, Prediction, focus
from ddm.explorer.opened import Opened
from ddm.explorer.state import State

MOST_BARS = 10
"""Classes whose probabilities are shown."""

MOST_CLASSES = 12
"""Classes up to which the confusion matrix is shown whole; else the cells that change most."""

THUMBNAILS = 8


def notice(sentences: Sequence[str]) -> str:
    """Sentences about what could not be done."""
    return "".join(f"<p class='ddm-notice' role='alert'>{escape(sentence)}</p>" for sentence in sentences)


def image(opened: Opened, state: State, asked: Asked) -> str:
    """The image asked about, with the verdict."""
    sentence = escape(phrases.verdict(opened, state, asked))
    return (
        f"<div class='ddm-asked'><img src='{pictures.inline(asked.raw)}' alt='the image asked about'>"
        f"<p data-verdict>{sentence}</p></div>"
    )


def bars(opened: Opened, state: State, found: Prediction) -> str:
    """Probabilities before and after, a row a class."""
    order = _bars_shown(found)
    rows = "".join(_bar_row(opened.classes[c], float(found.before[c]), float(found.after[c])) for c in order)
    sentence = escape(phrases.removal(state, opened, found.before, found.after))
    hidden = len(found.before) - len(order)
    rest = f"<p class='ddm-small'>{hidden} less likely classes are not shown.</p>" if hidden else ""
    return (
        f"<p data-removal>{sentence}</p><table class='ddm-bars'><thead><tr><th>class</th>"
        f"<th><i class='ddm-key ddm-before'></i>all groups</th><th><i class='ddm-key ddm-after'></i>without</th>"
        f"</tr></thead><tbody>{rows}</tbody></table>{rest}"
    )


def _bars_shown(found: Prediction) -> np.ndarray:
    largest = np.maximum(found.before, found.after)
    shown: np.ndarray = np.sort(np.argsort(-largest, kind="stable")[:MOST_BARS])
    return shown


def _bar_row(name: str, before: float, after: float) -> str:
    cells = "".join(
        f"<td data-when='{when}' data-value='{value:.6f}'><span class='ddm-bar ddm-{when}' "
        f"style='width:{100 * value:.2f}%'></span><b>{value:.1%}</b></td>"
        for when, value in (("before", before), ("after", after))
    )
    return f"<tr data-class='{escape(name, quote=True)}'><th>{escape(name)}</th>{cells}</tr>"


def trail(opened: Opened, state: State, asked: Asked, found: Trace) -> str:
    """From the image to the class to the group, with pictures of each."""
    partition, name = opened.datamodel.partition, focus(opened, state, asked)
    steps = [_step("image", _thumbnail(asked.raw, "the image asked about"), "", "")]
    upper = partition.by_class()
    if found.classes is not None and upper is not None and found.class_name is not None:
        change = phrases.effect(state, name, found.classes.top(1)[0][1])
        members = upper.rows(upper.names.index(found.class_name))
        steps.append(_step("class", _members(opened, members, 3), found.class_name, f"removing it {change}"))
    change = phrases.effect(state, name, found.effect)
    steps.append(
        _step("group", _members(opened, partition.members(found.group), 3), found.group, f"removing it {change}")
    )
    took = f"{found.models} fine-tunings instead of {found.full}." if found.models < found.full else ""
    return (
        f"<div class='ddm-trail' data-group='{escape(found.group, quote=True)}'>{'<b>→</b>'.join(steps)}</div>"
        f"<p class='ddm-small'>{took}</p>"
    )


def _step(what: str, inside: str, name: str, words: str) -> str:
    title = f"{what} <strong>{escape(name)}</strong>" if name else what
    return f"<figure><div>{inside}</div><figcaption>{title}<br>{escape(words)}</figcaption></figure>"


def _members(opened: Opened, rows: np.ndarray, count: int) -> str:
    """Pictures of some training samples, evenly spaced among ``rows``."""
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int))]
    return "".join(_training(opened, int(row)) for row in chosen)


def _training(opened: Opened, row: int) -> str:
    return _thumbnail(opened.data.train.raw[row], f"training sample {row}")


def _thumbnail(raw: Tensor, words: str) -> str:
    return f"<img src='{pictures.inline(raw)}' alt='{words}' title='{words}'>"


def strongest(state: State, name: str, found: Attribution, count: int = 5) -> str:
    """The groups with the strongest effects, in words."""
    rows = "".join(
        f"<li>Removing <strong>{escape(group)}</strong> {escape(phrases.effect(state, name, change))}.</li>"
        for group, change in found.top(count)
    )
    return (
        f"<p>{escape(phrases.subject(state, name).capitalize())} is "
        f"<b data-baseline>{phrases.value(state, float(found.baseline[0]))}</b> with all groups.</p>"
        f"<ol class='ddm-list'>{rows}</ol>"
    )


def samples(opened: Opened, state: State, found: Shares) -> str:
    """The training samples that contribute most to a group's effect."""
    figures = "".join(
        f"<figure>{_training(opened, row)}<figcaption>{row}<br>{value / found.effect:.0%}</figcaption></figure>"
        for row, value in found.top(THUMBNAILS)
    )
    return (
        f"<p>Training samples of <strong>{escape(found.group)}</strong>, by their share of its effect "
        f"({phrases.amount(state, found.effect)}):</p><div class='ddm-thumbnails'>{figures}</div>"
    )


def members(opened: Opened, group: str, sentence: str) -> str:
    """Some training samples of a group, where their shares are not known."""
    inside = _members(opened, opened.datamodel.partition.members(group), THUMBNAILS)
    return f"<p>{escape(sentence)}</p><div class='ddm-thumbnails'>{inside}</div>"


def test_set(opened: Opened, state: State, found: Confusions) -> str:
    """Accuracy and confusion matrix of the test set, before and after."""
    before, after = found.accuracy
    count, total = len(opened.rows), len(opened.data.test)
    which = f"{total} test images" if count == total else f"{count} of {total} test images"
    head = (
        f"<p>Accuracy on {which}: <b data-accuracy='before'>{before:.2%}</b> → "
        f"<b data-accuracy='after'>{after:.2%}</b> ({100 * (after - before):+.2f} points).</p>"
    )
    if len(opened.classes) > MOST_CLASSES:
        return head + _changed_cells(opened, found)
    tables = _matrix(opened, "all groups", found.before, found.before)
    if state.remove:
        tables += _matrix(opened, "without the ticked groups", found.after, found.before)
    return f"{head}<div class='ddm-matrices'>{tables}</div>"


def _matrix(opened: Opened, title: str, counts: np.ndarray, before: np.ndarray) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in opened.classes)
    most = max(1, int(counts.max()))
    rows = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(_cell(int(n), int(b), most) for n, b in zip(row, old, strict=True))}</tr>"
        for name, row, old in zip(opened.classes, counts, before, strict=True)
    )
    return (
        f"<table class='ddm-matrix'><caption>{escape(title)}: true class (row), predicted class (column)</caption>"
        f"<thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _cell(count: int, before: int, most: int) -> str:
    way = "" if count == before else " class='ddm-more'" if count > before else " class='ddm-less'"
    words = "" if count == before else f" title='{before} with all groups'"
    return f"<td{way}{words} style='--part:{count / most:.2f}'>{count or ''}</td>"


def _changed_cells(opened: Opened, found: Confusions) -> str:
    """The cells that change most, for more classes than a table can hold."""
    change = (found.after - found.before).ravel()
    order = [cell for cell in np.argsort(-np.abs(change), kind="stable")[:10] if change[cell]]
    if not order:
        return "<p class='ddm-small'>No prediction of the test images changes.</p>"
    size = len(opened.classes)
    rows = "".join(
        f"<tr><td>{escape(opened.classes[cell // size])}</td><td>{escape(opened.classes[cell % size])}</td>"
        f"<td>{found.before.flat[cell]}</td><td>{found.after.flat[cell]}</td></tr>"
        for cell in order
    )
    return (
        "<table class='ddm-table'><thead><tr><th>true class</th><th>predicted class</th><th>all groups</th>"
        f"<th>without</th></tr></thead><tbody>{rows}</tbody></table>"
    )


def comparison(opened: Opened, state: State, asked: Asked, found: Comparison) -> str:
    """What was predicted and what retraining shows, beside each other."""
    name = focus(opened, state, asked)
    predicted, exact = (phrases.amount(state, effect) for effect in found.effects)
    rows = _compared(f"effect on {phrases.subject(state, name)}", "0", predicted, exact, "0")
    likely = np.unique(found.probabilities.argmax(1))
    for c in likely:
        rows += _compared(f"probability of {opened.classes[c]}", *(f"{p:.1%}" for p in found.probabilities[:, c]))
    rows += _compared("accuracy on the test images", *(f"{part:.2%}" for part in found.accuracy))
    return (
        f"<table class='ddm-table' data-exact='{found.effects[1]:.6f}'><thead><tr><th>without "
        f"{escape(', '.join(state.remove))}</th><th>all groups</th><th>predicted</th><th>retrained</th>"
        f"<th>retrained with all groups</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def _compared(what: str, *values: str) -> str:
    return f"<tr><td>{escape(what)}</td>{''.join(f'<td>{value}</td>' for value in values)}</tr>"


def progress(elapsed: float, expected: float | None) -> str:
    """How far a retraining is, by the clock."""
    part = "" if expected is None else f" value='{min(elapsed / max(expected, 0.1), 0.99):.2f}'"
    about = "" if expected is None else f" of about {max(expected, 0.1):.1f} s"
    return f"<p>Retraining: {elapsed:.1f} s{about}.</p><progress{part}></progress>"
