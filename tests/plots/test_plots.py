"""Pictures and notebook tables show the numbers of the results, and names literally."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from PIL import Image

import ddm
from ddm.plots import NEUTRAL, WITHIN_NOISE, save
from ddm.plots.shared_synset import pulls
from ddm.truth.audit import Audit

NASTY = "$x^2$ <b>_a_ & $y$"
"""A formula to matplotlib and markup to a browser; to us, a name."""


@pytest.fixture(scope="module")
def answer(datamodel, digits):
    return datamodel.attribute(digits.test[3], "probabilities")


@pytest.fixture(scope="module")
def trace(datamodel, digits):
    return datamodel.trace(digits.test[3], "probabilities")


@pytest.fixture(scope="module")
def verified(trace):
    """A trace whose exact effects turn the order of the two best around."""
    first, second = trace.clusters.order()[:2]
    clusters = trace.clusters
    exact = replace(
        clusters,
        names=(clusters.names[first], clusters.names[second]),
        matrix=clusters.matrix[[second, first]],
        errors=clusters.errors[[first, second]],
        sizes=clusters.sizes[[first, second]],
    )
    return replace(trace, verified=exact)


@pytest.fixture(scope="module")
def audit():
    figure = {"value": 0.5, "low": 0.25, "high": 0.75, "retrain": 0.625, "ceiling": None}
    names = ("oracle_fraction", "rho", "rho_global", "lds")
    return Audit({"same run": dict.fromkeys(names, figure)}, ("a", "b"), 2, 2, (9, 9), 10, 1.5)


def renamed(attribution):
    return replace(attribution, names=tuple(f"{NASTY}/{i}" for i in range(len(attribution))), outputs=(NASTY,) * 10)


def lengths(axes):
    return [bar.get_width() for bar in axes.patches]


def labels(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def drawn(figure):
    """The picture's pixels: it can be drawn at all."""
    with io.BytesIO() as file:
        figure.savefig(file, format="png")
        return np.asarray(Image.open(io.BytesIO(file.getvalue())).convert("L"))


# --- pictures ---


def test_bars_are_as_long_as_the_effects_and_their_colour_does_not_depend_on_the_sign(answer):
    axes = answer.plot(12).axes[0]
    ranked = answer.sort()
    assert lengths(axes) == pytest.approx(100 * ranked.scores[:12])
    assert labels(axes) == list(ranked.names[:12])
    assert min(lengths(axes)) < 0 < max(lengths(axes))
    assert {to_hex(bar.get_facecolor()).upper() for bar in axes.patches} == {NEUTRAL}
    assert answer.measured in axes.get_title()
    assert f"{answer.baseline[answer.focus]:.1%}" in axes.get_title()


@pytest.mark.parametrize(
    ("objective", "factor", "label"),
    [("probabilities", 100, "points"), ("accuracy", 100, "points"), ("class-f1", 100, "points"), ("loss", 1, "value")],
)
def test_effects_on_fractions_are_drawn_in_points_and_others_as_they_are(datamodel, digits, objective, factor, label):
    found = datamodel.attribute(digits.test[:40], objective)
    axes = found.plot(8).axes[0]
    assert lengths(axes) == pytest.approx(factor * found.sort().scores[:8])
    assert label in axes.get_xlabel()
    assert ("%" in axes.get_title()) == (factor == 100)


def test_an_objective_of_ones_own_has_no_unit_unless_it_says_that_it_is_a_fraction(datamodel, digits):
    def accuracy(outputs, baseline, labels):  # in percent, whatever its name
        return 100 * (outputs.argmax(-1) == labels).double().mean()

    assert "points" not in repr(datamodel.attribute(digits.test[:40], accuracy))
    share = ddm.Objective("mine", lambda outputs, baseline, labels: outputs.softmax(-1).max(), "mine", fraction=True)
    assert "points" in repr(datamodel.attribute(digits.test[:40], share))


def test_a_group_without_a_measured_effect_says_so(answer):
    scores = answer.matrix.copy()
    scores[0] = np.nan
    axes = replace(answer, matrix=scores).plot(len(answer)).axes[0]
    assert labels(axes)[-1] == answer.names[0]
    assert [(text.get_text().strip(), text.get_position()[1]) for text in axes.texts] == [
        ("not measured", len(answer) - 1)
    ]


def test_a_trace_shows_classes_then_clusters_and_marks_its_result(trace):
    left, right = trace.plot().axes
    for axes, level in ((left, trace.classes), (right, trace.clusters)):
        assert lengths(axes) == pytest.approx(100 * level.sort().scores)
        assert labels(axes) == list(level.sort().names)
        marked = [bar.get_label() == "found" for bar in axes.patches]
        assert marked == [True] + [False] * (len(level) - 1)
        assert [label.get_fontweight() == "bold" for label in axes.get_yticklabels()] == marked
        assert "raises" in axes.get_xlabel()
    assert trace.group in trace.plot().get_suptitle()
    assert f"{100 * trace.effect:+.1f} points" in trace.plot().get_suptitle()


def test_exact_effects_are_diamonds_on_their_groups_and_decide_what_is_marked(verified):
    right = verified.plot().axes[1]
    (diamonds,) = [line for line in right.get_lines() if line.get_marker() == "D"]
    exact = verified.verified
    names = [labels(right)[int(row)] for row in diamonds.get_ydata()]
    assert dict(zip(names, diamonds.get_xdata(), strict=True)) == pytest.approx(
        dict(zip(exact.names, 100 * exact.scores, strict=True))
    )
    assert labels(right)[[bar.get_label() for bar in right.patches].index("found")] == verified.group
    legend = [text.get_text() for text in verified.plot().legends[0].get_texts()]
    assert legend == ["found", "exact effect, by retraining"]


def test_a_full_trace_has_one_panel_with_at_most_the_groups_asked_for(datamodel, digits):
    full = datamodel.trace(digits.test[3], full=True)
    (axes,) = full.plot(7).axes
    assert labels(axes) == list(full.clusters.sort().names[:7])
    assert axes.get_ylabel() == "group removed"


def test_a_result_outside_the_shown_bars_is_named_in_the_title(verified):
    worst = verified.clusters.names[verified.clusters.order()[-1]]
    exact = replace(verified.verified, names=(worst, verified.verified.names[1]))
    found = replace(verified, verified=exact)
    figure = found.plot(1)
    assert len(figure.axes[1].patches) == 1
    assert found.group in figure.get_suptitle()
    drawn(figure)


def test_a_shared_synset_shows_every_image_and_what_its_targets_ask_of_each_class(datamodel):
    synset = datamodel.synset
    assert synset.shared
    figure = synset.plot()
    maps = [axes for axes in figure.axes if axes.get_ylabel() == "group removed"]
    assert sum(1 for axes in figure.axes if axes.images and axes not in maps) == synset.images.shape[1]
    (heat,) = maps
    shown = heat.images[0].get_array()
    np.testing.assert_allclose(shown, pulls(synset).numpy(), rtol=1e-6)
    assert labels(heat) == list(synset.names)
    # Forgetting a group of a class asks for less of that class, on average, than forgetting the others does.
    own = np.array([shown[row, parent] for row, parent in enumerate(datamodel.partition.parents)])
    assert own.mean() < -3 * own.std() / len(own) ** 0.5


def test_a_synset_of_groups_with_images_of_their_own_names_each(datamodel):
    synset = datamodel.synset
    own = replace(synset, images=synset.images[0, : len(synset), None], shared=False)
    assert [axes.get_title() for axes in own.plot().axes][: len(own)] == list(own.names)


def test_a_trajectory_shows_how_far_it_has_gone_and_has_left(target):
    trajectory = target.trajectory
    axes = trajectory.plot().axes[0]
    gone, left = (line.get_ydata() for line in axes.get_lines())
    thetas = torch.stack([target.at(t)[0] for t in range(len(trajectory))])
    np.testing.assert_allclose(gone, (thetas - thetas[0]).norm(dim=1), rtol=1e-4)
    np.testing.assert_allclose(left, (thetas - thetas[-1]).norm(dim=1), rtol=1e-4, atol=1e-6)
    assert gone[-1] == left[0] > 0
    assert list(axes.get_lines()[0].get_xdata()) == trajectory.steps


def test_a_trajectory_of_one_checkpoint_is_refused(refused):
    trajectory = ddm.Trajectory()
    trajectory.append({"weight": torch.ones(2)}, 0, 0.0)
    with refused("two checkpoints"):
        trajectory.plot()


def test_shares_say_whose_they_are_beneath_their_numbers(datamodel, digits):
    found = datamodel.shares(digits.test[3], objective="probabilities")
    figure = found.plot(digits.train, 3)
    assert figure.axes[0].get_title() == f"{found.rows[0]}: {100 * found.values[0]:+.2f}"
    assert f"{100 * found.effect:+.2f} points" in figure.get_suptitle()
    assert found.group in figure.get_suptitle()


def test_names_are_shown_literally(answer, trace, verified, datamodel):
    nasty = renamed(answer)
    figure = nasty.plot(5)
    assert labels(figure.axes[0])[0] == nasty.sort().names[0]
    for text in (*figure.axes[0].get_yticklabels(), figure.axes[0].title):
        assert NASTY in text.get_text()
        assert not text.get_parse_math()
    # "$\frac$" is not a formula that can be drawn; as a name it can.
    broken = replace(answer, names=tuple(rf"$\frac$ {i}" for i in range(len(answer))))
    assert drawn(broken.plot(3)).min() == 0
    names = broken.names[: len(trace.clusters)]
    trail = replace(trace, clusters=replace(trace.clusters, names=names))
    exact = replace(verified, clusters=trail.clusters, verified=replace(verified.verified, names=names[:2]))
    drawn(trail.plot())
    drawn(exact.plot())
    drawn(replace(datamodel.synset, names=broken.names).plot())


def test_pictures_show_themselves_in_notebooks_and_are_saved(answer, tmp_path):
    figure = answer.plot(3)
    assert figure._repr_png_().startswith(b"\x89PNG")
    save(figure, tmp_path / "a.png")
    assert Image.open(tmp_path / "a.png").width > 100


def whiskers(axes):
    """The ends of each whisker, by the row of its bar."""
    (lines,) = [part for part in axes.collections if isinstance(part, LineCollection)]
    return {round(y): (left, right) for (left, y), (right, _) in lines.get_segments()}


def test_whiskers_are_intervals_and_bars_within_noise_are_light(refined, digits):
    ranked = refined.attribute(digits.validation, "accuracy").sort()
    axes = ranked.plot(12).axes[0]
    known = ranked.measured_alone[:12]
    assert known.any()
    assert whiskers(axes) == {
        i: pytest.approx((100 * ranked.low[i, 0], 100 * ranked.high[i, 0])) for i in range(12) if not known[i]
    }
    colours = [to_hex(bar.get_facecolor()).upper() for bar in axes.patches]
    assert colours == [NEUTRAL if clear else WITHIN_NOISE for clear in ranked.stands_out[:12]]
    assert set(colours) == {NEUTRAL, WITHIN_NOISE}
    assert "whiskers: 90 % intervals, none if measured" in axes.get_xlabel()


def test_without_intervals_there_are_no_whiskers(answer, refined, digits):
    for found in (answer, refined.attribute(digits.test[3], "probabilities", design="random")):
        axes = found.plot(12).axes[0]
        assert whiskers(axes) == {}
        assert "whiskers" not in axes.get_xlabel()
        assert {to_hex(bar.get_facecolor()).upper() for bar in axes.patches} == {NEUTRAL}


def test_a_trail_marks_no_group_that_may_be_noise_and_says_so(refined, digits):
    found = [refined.trace(digits.test[i], "probabilities") for i in range(60)]
    assert {one.stands_out for one in found} == {True, False}
    for stands_out in (True, False):
        one = next(trace for trace in found if trace.stands_out == stands_out)
        figure = one.plot()
        classes, clusters = figure.axes
        assert whiskers(classes) == {}
        assert len(whiskers(clusters)) == np.sum(~one.clusters.measured_alone)
        assert [bar.get_label() == "found" for bar in clusters.patches].count(True) == int(stands_out)
        assert ("No single group stands out" in figure.get_suptitle()) != stands_out
        drawn(figure)


# --- notebook tables ---


def test_tables_have_the_strongest_effects(answer, trace, verified):
    table = answer._repr_html_()
    for name, effect in answer.top(10):
        assert f">{name}</td>" in table
        assert f">{100 * effect:+.1f} points</td>" in table
    assert f"10 of {len(answer)} groups" in table
    for found in (trace, verified):
        assert f">{found.group}</td>" in found._repr_html_()
        assert f">{100 * found.effect:+.1f} points</td>" in found._repr_html_()
    assert "Verified by retraining" in verified._repr_html_()
    assert "Verified by retraining" not in trace._repr_html_()


def test_tables_of_shares_audits_synsets_and_datamodels_have_their_numbers(datamodel, digits, audit):
    shares = datamodel.shares(digits.test[3], objective="probabilities")
    assert f">{shares.rows[0]}</td>" in shares._repr_html_()
    assert f">{100 * shares.values[0]:+.2f} points</td>" in shares._repr_html_()
    assert "0.25 to 0.75" in audit._repr_html_()
    assert audit.sentence in audit._repr_html_()
    assert f"{datamodel.synset.images.shape[1]} images that all groups share" in datamodel.synset._repr_html_()
    assert f"{len(datamodel.target.trajectory)} checkpoints" in datamodel.target.trajectory._repr_html_()
    assert f">{len(datamodel.partition)}, of " in datamodel._repr_html_()


def test_a_datamodel_says_whether_it_was_audited(datamodel, audit):
    parts = (datamodel.target, datamodel.partition, datamodel.synset, None, datamodel.settings, datamodel.data)
    assert "Not audited" in ddm.DistilledDatamodel(*parts)._repr_html_()
    assert audit.sentence in ddm.DistilledDatamodel(*parts, audited=audit)._repr_html_()


def test_names_cannot_be_markup(answer, trace, datamodel, digits):
    shares = replace(datamodel.shares(digits.test[3], objective="probabilities"), group=NASTY, output=NASTY)
    stopped = replace(datamodel.synset, stopped={NASTY: "why"})
    full = replace(trace, classes=None, clusters=renamed(trace.clusters))
    for found in (renamed(answer), full, shares, stopped):
        text = found._repr_html_()
        assert "<b>" not in text
        assert "&lt;b&gt;_a_ &amp; $y$" in text
