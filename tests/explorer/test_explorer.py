"""The answers of the explorer, computed without its page."""

import io
import os
import re
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import ddm
import ddm.compute.folders
import ddm.training.target
from ddm.cli.explore import explore
from ddm.explorer import (
    explored_run,
    gallery,
    influences,
    panels,
    quota,
    removal,
    retraining_check,
    sentences,
    server,
    upload,
)
from ddm.explorer.explored_run import ExploredRun
from ddm.explorer.page import Page
from ddm.explorer.query import read_query, write_query
from ddm.explorer.question import class_in_focus, pose_question
from ddm.explorer.state import State, objectives_of
from ddm.truth.retraining import Retraining


@pytest.fixture
def run(tmp_path, datamodel, digits) -> ExploredRun:
    return ExploredRun(tmp_path, datamodel, digits)


def file_of(pixels, kind="PNG", **options):
    """Pixels as the bytes of a picture file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def group_of(run, class_):
    """The first group of a class."""
    return next(name for name in run.datamodel.partition.names if name.startswith(f"{class_}/"))


def test_a_prediction_without_groups_is_that_of_the_counterfactual(run):
    remove = (group_of(run, 3), group_of(run, 5))
    state = State(index=7, remove=remove)
    found = removal.predict(run, state, pose_question(run, state))
    x = run.data.test[7][0][None]
    network = run.datamodel.counterfactual(remove)
    assert found.after == pytest.approx(network(x).detach().double().softmax(1)[0].numpy(), abs=1e-6)
    assert found.before == pytest.approx(run.datamodel.target.outputs(x).double().softmax(1)[0].numpy(), abs=1e-6)
    assert np.abs(found.after - found.before).max() > 1e-4


def test_every_answer_to_a_removal_beyond_reach_says_so_on_the_page(run):
    remove = tuple(name for name in run.datamodel.partition.names if name[0] in "358")
    for state, words in ((State(index=7, remove=remove), "3 whole classes"), (State(index=7, remove=remove[:1]), None)):
        question = pose_question(run, state)
        bars = panels.bars(run, state, removal.predict(run, state, question))
        test_set = panels.test_set(run, state, removal.compare_confusions(run, state))
        saved = Page(run)._save(state)
        for panel in (bars, test_set, saved):
            assert ("data-beyond" in panel) == (words is not None)
            assert words is None or words in panel


def test_single_groups_beyond_reach_are_said_beside_their_effects(tmp_path, target, digits):
    datamodel = ddm.DistilledDatamodel.fit(
        target, digits.train, partition=uneven_groups(digits.train), curvature=64, bank=8
    )
    run, state = ExploredRun(tmp_path, datamodel, digits), State(index=7)
    question = pose_question(run, state)
    ranking = influences.rank_groups(run, state, question)
    assert ranking.beyond in panels.strongest(state, "3", ranking)
    trace = influences.trace_answer(run, state, question)
    said = datamodel.beyond(trace.group)
    assert ("data-beyond" in panels.trail(run, state, question, trace)) == (said is not None)


def uneven_groups(samples):
    """Two groups in each class, one of them with a quarter of the samples."""
    rank = np.array([np.count_nonzero(samples.labels[:row] == label) for row, label in enumerate(samples.labels)])
    return [f"{label}/{int(place % 4 == 0)}" for label, place in zip(samples.labels.tolist(), rank, strict=True)]


def test_with_nothing_removed_nothing_changes(run):
    state = State(index=7)
    found = removal.predict(run, state, pose_question(run, state))
    assert np.array_equal(found.before, found.after)
    matrices = removal.compare_confusions(run, state)
    assert np.array_equal(matrices.before, matrices.after)


def test_confusion_matrices_count_every_test_image_and_their_diagonal_is_the_accuracy(run):
    remove = tuple(name for name in run.datamodel.partition.names if name.startswith("4/"))
    found = removal.compare_confusions(run, State(remove=remove))
    network, test = run.datamodel.counterfactual(remove), run.data.test
    assert found.before.sum() == found.after.sum() == len(test)
    assert found.accuracy[0] == pytest.approx(run.datamodel.target.accuracy(test))
    assert found.accuracy[1] == pytest.approx(ddm.training.target.accuracy_of(network, test))
    assert found.after[4].sum() == int((test.labels == 4).sum())
    assert found.accuracy[1] < found.accuracy[0]


@pytest.mark.parametrize("name", objectives_of("classification"))
def test_every_objective_of_the_page_is_answered(run, name):
    state = State(index=3, objective=name)
    question = pose_question(run, state)
    ranking = influences.rank_groups(run, state, question)
    assert set(ranking.names) == set(run.datamodel.partition.names)
    assert np.isfinite(ranking.scores).all()
    assert influences.trace_answer(run, state, question).group in ranking.names


def test_a_class_in_focus_is_what_is_measured(run):
    state = State(index=3, output="8")
    ranking = influences.rank_groups(run, state, pose_question(run, state))
    x, y = run.data.test[3]
    whole = run.datamodel.attribute((x[None], torch.tensor([y])), "probabilities").on("8").sort()
    assert ranking.names == whole.names
    assert ranking.scores == pytest.approx(whole.scores, abs=1e-9)
    assert "class 8" in ranking.measured


def test_the_predicted_class_is_in_focus_where_none_is_chosen(run):
    state = State(index=3)
    question = pose_question(run, state)
    assert class_in_focus(run, state, question) == run.classes[question.predicted]
    assert class_in_focus(run, replace(state, output="8"), question) == "8"


def test_shares_of_the_page_add_up_to_the_effect_on_the_class_in_focus(run):
    state = State(index=3, output="8")
    question = pose_question(run, state)
    group = influences.trace_answer(run, state, question).group
    found = influences.compute_shares(run, state, question, group)
    effects = dict(influences.rank_groups(run, state, question).top(1000))
    assert found.values.sum() == pytest.approx(effects[group], abs=1e-6)
    assert set(found.rows) == set(run.datamodel.partition.members(group))


def test_filters_offer_wrong_images_those_of_a_class_or_all(run):
    test, logits = run.data.test, run.datamodel.target.outputs(run.data.test.batch()[0])
    wrong = (logits.argmax(1) != test.labels).nonzero()[:, 0].tolist()
    assert wrong
    assert gallery.matching_rows(run, "wrong").tolist() == wrong
    assert gallery.matching_rows(run, "class 6").tolist() == (test.labels == 6).nonzero()[:, 0].tolist()
    assert gallery.matching_rows(run, "all").tolist() == list(range(len(test)))


def test_pages_hold_every_offered_image_once(run):
    count = gallery.count_pages(run, "all")
    assert count > 1
    rows = np.concatenate([gallery.page_rows(run, State(show="all", page=page)) for page in range(count)])
    assert rows.tolist() == list(range(len(run.data.test)))


def test_a_visitor_begins_at_a_wrong_prediction(run):
    state = gallery.first_state(run)
    question = pose_question(run, state)
    assert question.label != run.classes[question.predicted]


def test_a_saved_model_is_the_counterfactual_and_stays_in_the_run(run):
    remove = (group_of(run, 2),)
    path = removal.save_model(run, State(remove=remove))
    assert path.parent == run.folder / "counterfactuals"
    x = run.data.test.batch()[0]
    assert torch.equal(ddm.networks.load(path)(x), run.datamodel.counterfactual(remove)(x))


def test_names_of_models_are_safe_and_tell_groups_apart():
    odd = ("../../etc/passwd", "ü/1", "a" * 500)
    for remove in [odd, ("…",), ("a/b",), ("a-b",)]:
        name = removal.model_name(remove)
        assert name.isascii()
        assert len(name) < 100
        assert not set(name) & set("/\\. ")
    assert removal.model_name(("a/b",)) != removal.model_name(("a-b",))
    assert removal.model_name(("a", "b")) == removal.model_name(("b", "a"))


def test_saving_or_comparing_needs_a_group(run, refused):
    with refused("tick"):
        removal.save_model(run, State())
    with refused("tick"):
        retraining_check.compare_with_retraining(run, State())


def test_visitors_cannot_fill_the_disk_with_models(tmp_path, datamodel, digits, refused, monkeypatch):
    (tmp_path / "exact").mkdir()
    (tmp_path / "exact" / "of an audit").write_bytes(bytes(10_000))
    monkeypatch.setattr(explored_run, "MAX_SAVED_BYTES", 5000)
    run = ExploredRun(tmp_path, datamodel, digits)
    one, two = (State(remove=(group_of(run, class_),)) for class_ in (2, 3))
    first = removal.save_model(run, one)
    assert first.stat().st_size > 5000
    for more in (removal.save_model, retraining_check.compare_with_retraining):
        with refused("counterfactuals and exact", "delete"):
            more(run, two)
    assert removal.save_model(run, one) == first
    assert list(first.parent.iterdir()) == [first]
    assert len(list((tmp_path / "exact").iterdir())) == 1
    assert not run.retraining_lock.locked()
    first.unlink()
    assert removal.save_model(run, two).exists()


def test_what_vanishes_while_it_is_counted_counts_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(bytes(3000))
    before = quota.folder_bytes(tmp_path)
    assert before >= 3000
    (tmp_path / "folder" / "gone").symlink_to(tmp_path / "nowhere")
    assert quota.folder_bytes(tmp_path) == before
    assert quota.folder_bytes(tmp_path / "nowhere") == 0


def test_the_comparison_is_with_a_real_retraining(run):
    remove = (group_of(run, 3), group_of(run, 5))
    state = State(index=3, remove=remove)
    found = retraining_check.compare_with_retraining(run, state)
    target, partition = run.datamodel.target, run.datamodel.partition
    rows = np.flatnonzero(partition.mask(remove)[partition.groups])
    start = target.flat.module(*target.at(0))
    true = ddm.train(start, run.data.train, target.recipe, without=rows)
    question = pose_question(run, state)
    after = true.outputs(question.x)[0].double().softmax(0).numpy()
    assert found.probabilities[2] == pytest.approx(after, abs=1e-5)
    assert found.scores[2]["accuracy"] == pytest.approx(true.accuracy(run.data.test))
    assert found.effects[1] == pytest.approx(after[question.predicted] - found.value, abs=1e-5)
    predicted = removal.predict(run, state, question)
    assert found.effects[0] == pytest.approx((predicted.after - predicted.before)[question.predicted], abs=1e-6)
    assert list((run.folder / "exact").iterdir())


def test_the_exact_effect_compares_two_retrainings_not_one_with_the_model(run, monkeypatch):
    """A retraining may differ from the model for other reasons than the removal, such as its number of threads."""
    target = run.datamodel.target

    class Biased(Retraining):
        def _trainer(self):
            def retrain(rows, order):
                network = target.flat.module(target.theta, target.fixed)
                with torch.no_grad():
                    list(network.parameters())[-1].add_(torch.arange(10.0) + (len(rows) > 0))
                return network

            return retrain

    monkeypatch.setattr(explored_run, "Retraining", Biased)
    state = State(index=3, remove=(group_of(run, 3),), objective="logits")
    found = retraining_check.compare_with_retraining(run, state)
    assert found.effects[1] == pytest.approx(1.0, abs=1e-4)
    assert len(found.probabilities) == len(found.scores) == 4
    question = pose_question(run, state)
    assert "retrained with all groups" in panels.comparison(run, state, question, found)


def test_a_comparison_says_that_it_takes_two_retrainings_and_keeps_them(run):
    state = State(index=3, remove=(group_of(run, 3),))
    assert "once with all groups" in sentences.retraining_cost(run)
    assert retraining_check.estimate_seconds(run, state) == 2 * run.retraining_seconds
    retraining_check.compare_with_retraining(run, state)
    assert retraining_check.estimate_seconds(run, state) == 0


def test_effects_are_said_with_their_direction_and_unit():
    state = State(objective="probabilities")
    assert sentences.effect_clause(state, "5", -0.087) == "lowers the probability of 5 by 8.7 points"
    assert sentences.effect_clause(state, "5", 0.087) == "raises the probability of 5 by 8.7 points"
    assert sentences.signed_effect(state, -0.087) == "−8.7 points"
    assert (
        sentences.effect_clause(replace(state, objective="loss"), "5", 0.25) == "raises the loss on this sample by 0.25"
    )


def test_names_are_escaped_on_the_page(run):
    assert "<script>" not in panels.notice(["<script>alert(1)</script>"])
    bars = panels.bars(run, State(remove=("<b>x</b>",)), removal.Prediction(np.eye(10)[0], np.eye(10)[1]))
    assert "<b>x</b>" not in bars


# Intervals, after a refinement


@pytest.fixture
def sure(tmp_path, refined, digits) -> ExploredRun:
    """A run with ten retrainings."""
    return ExploredRun(tmp_path, refined, digits)


def question_of(run, stands_out):
    """The first state, question and trace whose group stands out, or does not."""
    for index in range(len(run.data.test)):
        state = State(index=index)
        question = pose_question(run, state)
        trace = influences.trace_answer(run, state, question)
        if trace.stands_out == stands_out:
            return state, question, trace
    raise AssertionError("there is no such question")


def test_effects_on_the_page_are_in_points_and_have_the_intervals_of_the_library(sure):
    state = State(index=3)
    question = pose_question(sure, state)
    ranking = influences.rank_groups(sure, state, question)
    found = sure.datamodel.attribute(sure.data.test[3], "probabilities").on(sure.classes[question.predicted]).sort()
    np.testing.assert_allclose(ranking.low[:, 0], found.low[:, found.focus], atol=1e-6)
    assert ranking.fraction
    choices = Page(sure)._tick_choices(state, Page(sure)._update_answer(state)[1])
    assert len(choices) == 12
    for i, (label, name) in enumerate(choices):
        low, high = (f"{100 * end:+.1f}".replace("-", "−") for end in found.interval(i))
        known = "measured" if found.measured_alone[i] else f"{low} to {high}"
        assert name == found.names[i]
        assert label.endswith(f" points ({known})")


def test_strongest_groups_within_noise_are_marked_and_not_numbered(sure):
    state, question, _ = question_of(sure, True)
    ranking = influences.rank_groups(sure, state, question)
    shown = panels.strongest(state, "3", ranking, 12)
    rows = re.findall(r"<li( class='ddm-noise')?>Removing <strong>(.*?)</strong>(.*?)</li>", shown)
    assert [name for _, name, _ in rows] == list(ranking.names[:12])
    assert [bool(noise) for noise, _, _ in rows] == [not clear for clear in ranking.stands_out[:12]]
    assert {bool(noise) for noise, _, _ in rows} == {True, False}
    for i, (_, _, words) in enumerate(rows):
        assert (", within noise" in words) == bool(ranking.mark(i))
    assert ranking.basis in shown


@pytest.mark.parametrize("stands_out", [True, False])
def test_the_trail_says_when_no_group_stands_out(sure, stands_out):
    state, question, trace = question_of(sure, stands_out)
    shown = panels.trail(sure, state, question, trace)
    assert ("No single group stands out" in shown) != stands_out
    assert ("data-doubt" in shown) != stands_out
    best = int(trace.clusters.order()[0])
    assert trace.clusters.interval_text(best).replace("-", "−") in shown


def test_the_head_of_the_page_counts_retrainings_or_says_how_to_make_them(run, sure):
    assert "11 retrainings refine the effects" in sentences.evidence_sentence(sure)
    assert "ddm refine RUN --retrain 20" in sentences.evidence_sentence(run)
    state = State(index=3)
    question = pose_question(run, state)
    ranking = influences.rank_groups(run, state, question)
    for shown in (
        panels.strongest(state, "3", ranking),
        panels.trail(run, state, question, influences.trace_answer(run, state, question)),
    ):
        assert "interval" not in shown
        assert "noise" not in shown


# The address


def test_an_address_gives_back_its_state(run):
    state = State(
        index=12,
        objective="logits",
        output="8",
        remove=(group_of(run, 3), group_of(run, 5)),
        show="class 6",
        page=0,
    )
    query = write_query(state)
    assert f"remove={group_of(run, 3)}" in query
    assert read_query(query, run, State()) == (state, [])


def test_a_picture_of_ones_own_is_in_the_address(run):
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    text = upload.as_text(torch.from_numpy(pixels)[None])
    state = State(picture=text, label="4")
    read, problems = read_query(write_query(state), run, State())
    assert problems == []
    assert read == state
    assert torch.equal(pose_question(run, read).samples.raw[0, 0], torch.from_numpy(pixels))


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("?index=abc", "abc"),
        ("?index=-1", "-1"),
        ("?index=999999999999999999999", "test image"),
        ("?index=²", "²"),
        ("?objective=beauty", "beauty"),
        ("?output=banana", "banana"),
        ("?remove=nothing/9", "nothing/9"),
        (f"?remove={'x' * 5000}", "…"),
        ("?show=me", "me"),
        ("?page=1e3", "1e3"),
        ("?picture=%00%00", "picture"),
        ("?picture=AAAA", "picture"),
        ("?label=<b>", "<b>"),
    ],
)
def test_nonsense_in_an_address_gets_a_sentence_and_changes_nothing(run, query, word):
    state, problems = read_query(query, run, State(index=5))
    assert state == State(index=5)
    assert len(problems) == 1
    assert word in problems[0]
    assert problems[0].endswith(".")
    assert len(problems[0]) < 300


def test_an_address_that_removes_every_group_gets_a_sentence(run):
    query = "&".join(f"remove={name}" for name in run.datamodel.partition.names)
    state, problems = read_query(query, run, State())
    assert state.remove == ()
    assert "every group" in problems[0]


def test_an_address_with_too_many_parts_is_left_alone(run):
    assert read_query("?" + "remove=0&" * 5000, run, State())[1] == ["The address has too many parts to be read."]


def test_unknown_parts_of_an_address_are_ignored(run):
    assert read_query("?__theme=dark&index=4", run, State()) == (State(index=4), [])


# Pictures of one's own


def test_a_picture_becomes_what_the_runs_images_are(run):
    colours = np.zeros((32, 48, 3), np.uint8)
    colours[:, :24] = 255
    image = upload.decode(file_of(colours, "JPEG", quality=95), run.data.train)
    assert image.shape == run.data.train.shape
    assert image.dtype == torch.uint8
    assert image[0, :, 0].min() > 240
    assert image[0, :, -1].max() < 15


def test_a_test_image_as_a_file_is_asked_like_the_test_image(run):
    raw = run.data.test.raw[9]
    text = upload.as_text(upload.decode(file_of(raw[0].numpy()), run.data.train))
    label = run.classes[int(run.data.test.labels[9])]
    own, test = pose_question(run, State(picture=text, label=label)), pose_question(run, State(index=9))
    assert torch.equal(own.x, test.x)
    assert torch.equal(own.y, test.y)


def test_an_unknown_class_is_taken_for_the_predicted_one(run):
    text = upload.as_text(run.data.test.raw[9])
    question = pose_question(run, State(picture=text))
    assert question.label is None
    assert int(question.y) == question.predicted
    assert "unknown" in sentences.verdict(run, State(picture=text), question)


def test_see_through_parts_are_white_and_sixteen_bits_are_scaled(run):
    clear = np.zeros((8, 8, 4), np.uint8)
    assert int(upload.decode(file_of(clear), run.data.train).min()) == 255
    deep = np.full((8, 8), 32896, np.uint16)
    assert int(upload.decode(file_of(deep), run.data.train)[0, 0, 0]) == 128


@pytest.mark.parametrize("content", [b"", b"not a picture", b"<svg xmlns='http://www.w3.org/2000/svg'/>"])
def test_what_is_no_picture_is_refused(run, refused, content):
    with refused("not a picture"):
        upload.decode(content, run.data.train)


def test_a_damaged_picture_is_refused(run, refused):
    whole = file_of(np.random.default_rng(0).integers(0, 255, (64, 64), dtype=np.uint8))
    with refused("damaged"):
        upload.decode(whole[: len(whole) // 2], run.data.train)


def test_pictures_that_are_too_large_are_refused(run, refused):
    with refused("MB"):
        upload.decode(b"0" * (upload.MAX_BYTES + 1), run.data.train)
    with refused("million pixels"):
        upload.decode(file_of(np.zeros((5000, 5000), np.uint8)), run.data.train)


def test_the_loss_of_an_unknown_picture_is_that_of_the_predicted_class(run):
    state = State(picture=upload.as_text(run.data.test.raw[9]), objective="loss")
    question = pose_question(run, state)
    ranking = influences.rank_groups(run, state, question)
    assert ranking.baseline[0] == pytest.approx(
        float(F.cross_entropy(question.logits, question.logits.argmax(1))), abs=1e-6
    )


# The command


def test_a_taken_port_is_refused(run, refused):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with refused(str(port), "--port"), server.serve(run, port):
            pass


@pytest.mark.parametrize("checkout", [True, False])
def test_without_gradio_the_command_that_installs_it_is_named(run, refused, monkeypatch, tmp_path, checkout):
    for name in ("gradio", "starlette", "fastapi", "uvicorn"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("page", "gate"):
        monkeypatch.delitem(sys.modules, f"ddm.explorer.{name}", raising=False)
    if not checkout:
        monkeypatch.setattr(server, "__file__", str(tmp_path / "lib" / "ddm" / "explorer" / "server.py"))
    words = ("pip install -c", "[explore]") if checkout else ("pip install 'distilled-datamodel[explore]'",)
    with refused(*words), server.serve(run, None):
        pass


def test_without_gradio_the_command_says_so_before_it_reads_the_run(monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with refused("Gradio", "[explore]"):
        explore(Path("nowhere"))


def folder_of_a_process(*, ended: bool):
    """A process with a folder for pictures, killed or still at work."""
    code = (
        "import time, ddm.compute.files\nwith ddm.compute.folders.temporary_folder('ddm-explore-') as folder:"
        "\n (folder / 'picture.png').touch(); print(folder, flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    folder = Path(process.stdout.readline().strip())
    if ended:
        process.kill()
        process.wait()
    return process, folder


def test_the_next_explorer_removes_pictures_of_one_that_was_killed(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    unrelated, linked = tmp_path / "ddm-explore-notes", tmp_path / "ddm-explore-link"
    unrelated.mkdir()
    working, held = folder_of_a_process(ended=False)
    _, killed = folder_of_a_process(ended=True)
    linked.symlink_to(held)
    try:
        assert (killed / "picture.png").exists()
        with server.serve(run, None):
            assert not killed.exists()
            assert (held / "picture.png").exists()
            assert len(list(tmp_path.glob("ddm-explore-*"))) == 4
        assert set(tmp_path.glob("ddm-explore-*")) == {unrelated, linked, held}
    finally:
        working.kill()
        working.communicate()


def test_the_library_does_not_import_gradio():
    code = "import sys, ddm.cli, ddm.explorer.server, ddm.explorer.removal; sys.exit('gradio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=600).returncode == 0


def test_the_page_is_on_this_machine_until_it_is_ended(run):
    import httpx

    before = dict(os.environ)
    with server.serve(run, None) as page:
        assert page.startswith("http://127.0.0.1:")
        assert httpx.get(page, trust_env=False).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(page, trust_env=False)
    assert dict(os.environ) == before
