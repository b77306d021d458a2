"""The explorer of texts and tables, with and without classes, computed without its page."""

import json

import pytest
import torch
from other_data import EVIL, table, texts

from ddm.explorer import gallery, influences, panels, removal, retraining_check, sentences, shown, typed
from ddm.explorer.explored_run import ExploredRun, warm_up
from ddm.explorer.page import Page
from ddm.explorer.query import read_query, write_query
from ddm.explorer.question import pose_question
from ddm.explorer.state import State, objectives_of


@pytest.fixture
def prices(tmp_path) -> ExploredRun:
    return ExploredRun(tmp_path, *table())


@pytest.fixture
def news(tmp_path) -> ExploredRun:
    return ExploredRun(tmp_path, *texts())


def everything(run, state):
    """All panels of the page for a state."""
    question = pose_question(run, state)
    trace, ranking = influences.trace_answer(run, state, question), influences.rank_groups(run, state, question)
    return "".join(
        [
            panels.image(run, state, question),
            panels.trail(run, state, question, trace),
            panels.strongest(state, "price", ranking),
            panels.members(run, trace.group, "some"),
            panels.bars(run, state, removal.predict(run, state, question)),
            panels.tested(run, state),
        ]
    )


@pytest.mark.parametrize(
    ("made", "task"),
    [(texts, "classification"), (texts, "tokens"), (table, "regression"), (table, "multilabel")],
)
def test_every_kind_of_run_opens_and_answers_every_question_of_its_task(made, task, tmp_path):
    run = ExploredRun(tmp_path, *made(task))
    warm_up(run)
    first = gallery.first_state(run)
    for objective in objectives_of(task):
        state = State(index=first.index, objective=objective, remove=run.datamodel.partition.names[:1])
        page = everything(run, state)
        assert EVIL not in page
        assert "<img" not in page
    assert first.objective == next(iter(objectives_of(task)))


def test_a_predicted_number_without_a_group_is_that_of_the_counterfactual(prices):
    remove = prices.datamodel.partition.names[:1]
    state = State(index=3, objective="value", remove=remove)
    found = removal.predict(prices, state, pose_question(prices, state))
    x = prices.data.test.batch([3])[0]
    with torch.no_grad():
        assert found.after == pytest.approx(prices.datamodel.counterfactual(remove)(x)[0].numpy(), abs=1e-5)
    assert abs(found.after - found.before).max() > 1e-4


def test_without_classes_the_largest_error_comes_first(prices):
    x, y = prices.data.test.batch()
    losses = (prices.datamodel.target.outputs(x)[:, 0] - y).square()
    assert gallery.first_state(prices).index == int(losses.argmax())
    assert gallery.matching_rows(prices, "wrong").tolist() == losses.argsort(descending=True).tolist()


def test_the_scores_of_the_test_rows_are_those_of_the_counterfactual(prices):
    remove = prices.datamodel.partition.names[:1]
    x, y = prices.data.test.batch()
    with torch.no_grad():
        error = (prices.datamodel.counterfactual(remove)(x)[:, 0] - y).abs().mean()
    assert prices.scores_without(remove)["absolute-error"] == pytest.approx(float(error), rel=1e-4)


def test_a_typed_text_is_asked_about_and_stands_in_the_address(news):
    state = State(typed="star planet moon today")
    question = pose_question(news, state)
    assert "your text" in sentences.verdict(news, state, question)
    assert news.classes[question.predicted] == "sky"
    assert read_query(write_query(state), news, State()) == (state, [])


def test_an_edited_row_is_asked_about_and_stands_in_the_address(prices):
    columns = typed.columns_of(prices, prices.data.test, 2)
    values = {name: "9" if name == "rooms" else value for name, value in columns}
    state = State(typed=typed.as_text(list(values.items())), objective="value")
    assert json.loads(state.typed)["rooms"] == "9"
    question = pose_question(prices, state)
    assert "rooms 9" in shown.in_full(question.samples, question.row)
    assert "your row" in sentences.verdict(prices, state, question)
    assert read_query(write_query(state), prices, State()) == (state, [])


def test_what_cannot_be_read_gets_a_sentence(prices, news):
    start = State()
    for run, query in ((prices, "typed=nonsense"), (prices, "typed=[1]"), (news, f"typed={'x' * 30_000}")):
        state, problems = read_query(query, run, start)
        assert state == start
        assert len(problems) == 1


def test_a_snippet_is_one_line_of_plain_text_with_the_label(news):
    line = shown.line(news.data.test, 0)
    assert news.classes[int(news.data.test.labels[0])] in line
    assert "\n" not in line


def test_the_page_lists_snippets_and_the_columns_of_the_row(prices):
    page, state = Page(prices), gallery.first_state(prices)
    updates = page._updates(None, state, ())
    lines = updates[page.on.snippets]["choices"]
    assert [row for _, row in lines] == gallery.page_rows(prices, state).tolist()
    assert updates[page.on.snippets]["value"] == state.index
    assert [name for name, _ in updates[page.on.columns]] == ["rooms", "size", "street"]
    own = page._updates(state, page._choose_typed(state, "", updates[page.on.columns]), ())
    assert own[page.on.snippets] is None


def test_a_comparison_with_retraining_shows_the_scores_of_the_task(prices):
    state = State(index=3, objective="value", remove=prices.datamodel.partition.names[:1])
    found = retraining_check.compare_with_retraining(prices, state)
    page = panels.comparison(prices, state, pose_question(prices, state), found)
    assert "mean absolute error on the test rows" in page
    assert len(found.scores) == 4
