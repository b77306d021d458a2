"""What commands print about intervals: a column, dim rows within noise, and the command that gives intervals."""

import io

import numpy as np
import pytest
from rich.console import Console

from ddm.answers.intervals import NO_INTERVALS
from ddm.cli.text import describe_effects, describe_trace, effects_table


def printed(describe, *arguments):
    """The text that a function prints, in one line."""
    out = Console(file=io.StringIO(), width=200)
    describe(out, *arguments)
    return " ".join(out.file.getvalue().split())


def test_a_table_has_an_interval_for_each_effect_and_dims_those_within_noise(refined, digits):
    found = refined.attribute(digits.validation, "accuracy").sort()
    table = effects_table(found, 12)
    names, _, effects, intervals, marks = ([*column.cells] for column in table.columns)
    assert names == list(found.names[:12])
    assert {row.style == "dim" for row in table.rows} == {True, False}
    assert "measured" in intervals
    for i in range(12):
        low, high = (f"{100 * end:+.1f}" for end in found.interval(i))
        assert effects[i] == f"{100 * found.scores[i]:+.1f}"
        assert intervals[i] == ("measured" if found.measured_alone[i] else f"{low} to {high}")
        assert marks[i] == ("" if found.stands_out[i] or found.measured_alone[i] else "within noise")
        assert (table.rows[i].style == "dim") == (not found.stands_out[i])
    for sentence in (found.basis, "Within noise: the interval includes 0", "Measured: by retraining"):
        assert sentence in table.caption


def test_a_table_without_intervals_has_no_column_for_them(datamodel, refined, digits):
    for found in (
        datamodel.attribute(digits.test[3], "probabilities"),
        refined.attribute(digits.test[3], "probabilities", design="random"),
    ):
        table = effects_table(found, 5)
        assert [column.header for column in table.columns] == ["group removed", "samples", "effect, in points"]
        assert {row.style for row in table.rows} == {None}


def test_a_question_without_a_clear_cause_says_so_first(refined, digits):
    found = refined.attribute(digits.validation, "loss")
    clear = found.stands_out
    for groups, said in ((np.flatnonzero(clear), False), (np.flatnonzero(~clear), True)):
        text = printed(describe_effects, found.of(groups), 5)
        assert text.startswith("No single group stands out: the strongest effect, ") == said
        assert ("stands out" in text) == said


@pytest.mark.parametrize("stands_out", [True, False])
def test_a_trace_names_the_cause_with_its_interval_or_says_that_none_stands_out(refined, digits, stands_out):
    found = [refined.trace(digits.test[i], "probabilities") for i in range(60)]
    one = next(trace for trace in found if trace.stands_out == stands_out)
    text = printed(describe_trace, one)
    named = f"Group with the strongest effect on the {one.clusters.measured}: {one.group}, {one.effect_text} without it"
    assert (named in text) == stands_out
    assert ("No single group stands out" in text) != stands_out
    assert one.clusters.basis in text
    assert NO_INTERVALS not in text


def test_before_any_retraining_commands_name_the_one_that_gives_intervals(command, finished_run):
    asked = ("attribute", finished_run, "--index", 1)
    for arguments, named in (
        (asked, True),
        ((*asked, "--design", "random"), False),
        ((*asked, "--level", "class"), False),
        (("trace", finished_run, "--index", 1), True),
    ):
        said = command(*arguments)
        assert said.code == 0
        assert ("ddm refine RUN --retrain 20" in " ".join(said.out.split())) == named
        assert "90 % interval" not in said.out
