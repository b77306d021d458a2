"""Answers in words after a refinement: intervals beside effects, and no group that may be noise called the cause."""

from dataclasses import replace

import numpy as np
import pytest

from ddm.answers.objectives import OBJECTIVES


def traces(datamodel, digits, objective):
    return [datamodel.trace(sample, objective) for sample in (digits.test[i] for i in range(60))]


@pytest.fixture(scope="module")
def clear(refined, digits):
    """A trace whose group stands out, by an interval."""
    found = traces(refined, digits, "probabilities")
    return next(one for one in found if one.stands_out and not one.clusters.measured_alone[one.clusters.order()[0]])


@pytest.fixture(scope="module")
def doubtful(refined, digits):
    """A trace whose group does not stand out."""
    return next(one for one in traces(refined, digits, "probabilities") if not one.stands_out)


def points(change):
    return f"{100 * change:+.1f}"


def test_a_trace_has_the_interval_that_attribute_gives_its_group(refined, digits):
    found = refined.trace(digits.test[3], "probabilities")
    every = refined.attribute(digits.test[3], "probabilities")
    number = every.names.index(found.group)
    assert found.interval == pytest.approx(every.interval(number))
    assert found.stands_out == every.stands_out[number]
    assert (found.to_dict()["low"], found.to_dict()["high"]) == found.interval
    assert found.to_dict()["stands_out"] == found.stands_out


def test_a_trace_of_a_clear_cause_names_it_with_its_interval(clear):
    low, high = clear.interval
    assert low > 0 or high < 0
    words = f"{points(clear.effect)} points (90 % interval {points(low)} to {points(high)})"
    for text in (repr(clear), clear._repr_html_()):
        assert words in text
        assert "stands out" not in text
    assert clear.no_stand_out is None


def test_a_trace_of_noise_says_that_no_group_stands_out(doubtful):
    low, high = doubtful.interval
    assert low <= 0 <= high
    assert doubtful.no_stand_out.startswith("No single group stands out: the strongest effect in class ")
    assert f"90 % interval {points(low)} to {points(high)}" in doubtful.no_stand_out
    assert doubtful.no_stand_out in doubtful._repr_html_()
    assert "no single group stands out" in repr(doubtful)
    assert doubtful.to_dict()["stands_out"] is False


def test_before_any_retraining_nothing_is_said_about_intervals(datamodel, digits):
    found = datamodel.trace(digits.test[3], "probabilities")
    assert (found.interval, found.stands_out, found.no_stand_out) == (None, True, None)
    assert {found.to_dict()[name] for name in ("low", "high", "stands_out")} == {None}
    for text in (repr(found), repr(found.clusters), found._repr_html_(), found.clusters._repr_html_()):
        assert "interval" not in text
        assert "noise" not in text


def test_other_designs_say_nothing_about_intervals(refined, digits):
    found = refined.attribute(digits.test[3], "probabilities", design="random")
    assert found.stands_out.all()
    assert found.no_stand_out is None
    assert "interval" not in found._repr_html_()
    assert "interval" not in repr(found)


def test_groups_that_were_left_out_alone_are_measured_not_estimated(refined, digits):
    found = refined.attribute(digits.test[3], "probabilities")
    assert found.measured_alone.tolist() == refined.evidence.alone.tolist()
    assert 0 < found.measured_alone.sum() < len(found)
    for group in np.flatnonzero(found.measured_alone):
        assert found.interval(group) == pytest.approx((found.scores[group],) * 2, abs=1e-6)
        assert found.interval_text(group) == "measured"
        assert found.effect_text(group).endswith("(measured by retraining)")


@pytest.mark.parametrize("objective", ["prediction", "stability"])
def test_values_that_only_move_one_way_are_compared_with_the_median_of_all_groups(refined, digits, objective):
    assert OBJECTIVES[objective].one_way
    every = refined.attribute(digits.test[3], objective)
    sign = 1 if objective == "prediction" else -1
    assert (sign * every.scores >= 0).all()
    nearer = np.where(sign > 0, every.low[:, 0], every.high[:, 0])
    np.testing.assert_array_equal(every.stands_out, sign * nearer > sign * np.median(every.scores))
    inside = refined.trace(digits.test[3], objective).clusters
    for i, name in enumerate(inside.names):
        assert inside.stands_out[i] == every.stands_out[every.names.index(name)]


def test_a_table_marks_what_is_within_noise_and_says_what_that_means(refined, digits):
    found = refined.attribute(digits.validation, "loss").sort()
    shown = found._repr_html_()
    marked = [bool(found.mark(i)) for i in range(10)]
    assert marked == [found.low[i, 0] <= 0 <= found.high[i, 0] and not found.measured_alone[i] for i in range(10)]
    assert shown.count("within noise</td>") == sum(marked) > 0
    assert "Within noise: the interval includes 0." in shown
    assert found.basis in shown


def test_only_effects_beyond_noise_are_called_strongest(refined, digits):
    found = refined.attribute(digits.validation, "loss").sort()
    assert {bool(found.stands_out[i]) for i in range(3)} == {True, False}
    for i in range(3):
        assert (f"{found.names[i]} {found.effect_text(i)}" in repr(found)) == found.stands_out[i]
    noise = found.of(np.flatnonzero(~found.stands_out))
    assert "none stands out" in repr(noise)
    assert noise.no_stand_out.startswith("No single group stands out: the strongest effect, ")


def test_a_group_that_stands_out_with_a_comparable_effect_is_enough(refined, digits):
    found = refined.attribute(digits.validation, "loss").sort()
    clear, noise = (int(np.flatnonzero(found.stands_out == value)[0]) for value in (True, False))
    pair, low, high = found.of(np.array([noise, clear])), found.low.copy(), found.high.copy()
    low[[0, 1], 0], high[[0, 1], 0] = (-1.0, 0.5), (3.0, 0.9)
    for second, said in ((0.6, False), (0.4, True)):
        one = replace(pair, matrix=np.array([[1.0], [second]]), low=low[:2], high=high[:2])
        assert one.stands_out.tolist() == [False, True]
        assert (one.no_stand_out is not None) == said


def test_a_diagnosis_calls_no_group_harmful_whose_effect_may_be_noise(refined, digits):
    found = refined.diagnose(digits.validation)
    effects = refined.attribute(digits.validation, "loss")
    np.testing.assert_allclose(found.intervals["loss"].low, effects.low, atol=1e-6)
    assert found.harmful
    for finding in found.harmful:
        assert effects.high[effects.names.index(finding.group), 0] < 0
    first = found.to_dict()["groups"][0]["intervals"]
    assert first["loss"] == pytest.approx(effects.interval(0), abs=1e-6)
    unclear = replace(found, noisy=(replace(found.harmful[0], clear=False),))
    assert "Removing the group changes the loss within noise." in unclear.sentences()[0]
