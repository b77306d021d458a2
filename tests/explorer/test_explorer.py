"""What the explorer's page answers, without the page."""

import io
import os
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
from ddm.explorer import address, answers, panels, phrases, serving, upload
from ddm.explorer import opened as opening
from ddm.explorer import quota as room
from ddm.explorer.opened import Opened
from ddm.explorer.state import OBJECTIVES, State
from ddm.truth.retraining import Retraining


@pytest.fixture
def opened(tmp_path, datamodel, digits) -> Opened:
    return Opened(tmp_path, datamodel, digits)


def file_of(pixels, kind="PNG", **options):
    """Pixels as the bytes of a picture file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def group_of(opened, class_):
    """The first group of a class."""
    return next(name for name in opened.datamodel.partition.names if name.startswith(f"{class_}/"))


def test_a_prediction_without_groups_is_that_of_the_counterfactual(opened):
    remove = (group_of(opened, 3), group_of(opened, 5))
    state = State(index=7, remove=remove)
    found = answers.prediction(opened, state, answers.ask(opened, state))
    x = opened.data.test[7][0][None]
    network = opened.datamodel.counterfactual(remove)
    assert found.after == pytest.approx(network(x).detach().double().softmax(1)[0].numpy(), abs=1e-6)
    assert found.before == pytest.approx(opened.datamodel.target.outputs(x).double().softmax(1)[0].numpy(), abs=1e-6)
    assert np.abs(found.after - found.before).max() > 1e-4


def test_with_nothing_removed_nothing_changes(opened):
    state = State(index=7)
    found = answers.prediction(opened, state, answers.ask(opened, state))
    assert np.array_equal(found.before, found.after)
    matrices = answers.confusions(opened, state)
    assert np.array_equal(matrices.before, matrices.after)


def test_confusion_matrices_count_every_test_image_and_their_diagonal_is_the_accuracy(opened):
    remove = tuple(name for name in opened.datamodel.partition.names if name.startswith("4/"))
    found = answers.confusions(opened, State(remove=remove))
    network, test = opened.datamodel.counterfactual(remove), opened.data.test
    assert found.before.sum() == found.after.sum() == len(test)
    assert found.accuracy[0] == pytest.approx(opened.datamodel.target.accuracy(test))
    assert found.accuracy[1] == pytest.approx(ddm.training.target.accuracy_of(network, test))
    assert found.after[4].sum() == int((test.labels == 4).sum())
    assert found.accuracy[1] < found.accuracy[0]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_of_the_page_is_answered(opened, name):
    state = State(index=3, objective=name)
    asked = answers.ask(opened, state)
    ranking = answers.ranking(opened, state, asked)
    assert set(ranking.names) == set(opened.datamodel.partition.names)
    assert np.isfinite(ranking.scores).all()
    assert answers.trail(opened, state, asked).group in ranking.names


def test_a_class_in_focus_is_what_is_measured(opened):
    state = State(index=3, output="8")
    ranking = answers.ranking(opened, state, answers.ask(opened, state))
    x, y = opened.data.test[3]
    whole = opened.datamodel.attribute((x[None], torch.tensor([y])), "probabilities").on("8").sort()
    assert ranking.names == whole.names
    assert ranking.scores == pytest.approx(whole.scores, abs=1e-9)
    assert "class 8" in ranking.measured


def test_the_predicted_class_is_in_focus_where_none_is_chosen(opened):
    state = State(index=3)
    asked = answers.ask(opened, state)
    assert answers.focus(opened, state, asked) == opened.classes[asked.predicted]
    assert answers.focus(opened, replace(state, output="8"), asked) == "8"


def test_shares_of_the_page_add_up_to_the_effect_on_the_class_in_focus(opened):
    state = State(index=3, output="8")
    asked = answers.ask(opened, state)
    group = answers.trail(opened, state, asked).group
    found = answers.shares(opened, state, asked, group)
    effects = dict(answers.ranking(opened, state, asked).top(1000))
    assert found.values.sum() == pytest.approx(effects[group], abs=1e-6)
    assert set(found.rows) == set(opened.datamodel.partition.members(group))


def test_filters_offer_wrong_images_those_of_a_class_or_all(opened):
    test, logits = opened.data.test, opened.datamodel.target.outputs(opened.data.test.batch()[0])
    wrong = (logits.argmax(1) != test.labels).nonzero()[:, 0].tolist()
    assert wrong
    assert answers.offered(opened, "wrong").tolist() == wrong
    assert answers.offered(opened, "class 6").tolist() == (test.labels == 6).nonzero()[:, 0].tolist()
    assert answers.offered(opened, "all").tolist() == list(range(len(test)))


def test_pages_hold_every_offered_image_once(opened):
    count = answers.pages(opened, "all")
    assert count > 1
    rows = np.concatenate([answers.shown(opened, State(show="all", page=page)) for page in range(count)])
    assert rows.tolist() == list(range(len(opened.data.test)))


def test_a_visitor_begins_at_a_wrong_prediction(opened):
    state = answers.start(opened)
    asked = answers.ask(opened, state)
    assert asked.label != opened.classes[asked.predicted]


def test_a_saved_model_is_the_counterfactual_and_stays_in_the_run(opened):
    remove = (group_of(opened, 2),)
    path = answers.save(opened, State(remove=remove))
    assert path.parent == opened.run / "counterfactuals"
    x = opened.data.test.batch()[0]
    assert torch.equal(ddm.networks.load(path)(x), opened.datamodel.counterfactual(remove)(x))


def test_names_of_models_are_safe_and_tell_groups_apart():
    odd = ("../../etc/passwd", "ü/1", "a" * 500)
    for remove in [odd, ("…",), ("a/b",), ("a-b",)]:
        name = answers.model_name(remove)
        assert name.isascii()
        assert len(name) < 100
        assert not set(name) & set("/\\. ")
    assert answers.model_name(("a/b",)) != answers.model_name(("a-b",))
    assert answers.model_name(("a", "b")) == answers.model_name(("b", "a"))


def test_saving_or_comparing_needs_a_group(opened, refused):
    with refused("tick"):
        answers.save(opened, State())
    with refused("tick"):
        answers.compare(opened, State())


def test_visitors_cannot_fill_the_disk_with_models(tmp_path, datamodel, digits, refused, monkeypatch):
    (tmp_path / "exact").mkdir()
    (tmp_path / "exact" / "of an audit").write_bytes(bytes(10_000))
    monkeypatch.setattr(opening, "MOST_KEPT", 5000)
    opened = Opened(tmp_path, datamodel, digits)
    one, two = (State(remove=(group_of(opened, class_),)) for class_ in (2, 3))
    first = answers.save(opened, one)
    assert first.stat().st_size > 5000
    for more in (answers.save, answers.compare):
        with refused("counterfactuals and exact", "delete"):
            more(opened, two)
    assert answers.save(opened, one) == first
    assert list(first.parent.iterdir()) == [first]
    assert len(list((tmp_path / "exact").iterdir())) == 1
    assert not opened.retraining.locked()
    first.unlink()
    assert answers.save(opened, two).exists()


def test_what_vanishes_while_it_is_counted_counts_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(bytes(3000))
    before = room.taken(tmp_path)
    assert before >= 3000
    (tmp_path / "folder" / "gone").symlink_to(tmp_path / "nowhere")
    assert room.taken(tmp_path) == before
    assert room.taken(tmp_path / "nowhere") == 0


def test_the_comparison_is_with_a_real_retraining(opened):
    remove = (group_of(opened, 3), group_of(opened, 5))
    state = State(index=3, remove=remove)
    found = answers.compare(opened, state)
    target, partition = opened.datamodel.target, opened.datamodel.partition
    rows = np.flatnonzero(partition.mask(remove)[partition.groups])
    start = target.flat.module(*target.at(0))
    true = ddm.train(start, opened.data.train, target.recipe, without=rows)
    asked = answers.ask(opened, state)
    after = true.outputs(asked.x)[0].double().softmax(0).numpy()
    assert found.probabilities[2] == pytest.approx(after, abs=1e-5)
    assert found.accuracy[2] == pytest.approx(true.accuracy(opened.data.test))
    assert found.effects[1] == pytest.approx(after[asked.predicted] - found.value, abs=1e-5)
    predicted = answers.prediction(opened, state, asked)
    assert found.effects[0] == pytest.approx((predicted.after - predicted.before)[asked.predicted], abs=1e-6)
    assert list((opened.run / "exact").iterdir())


def test_the_exact_effect_compares_two_retrainings_not_one_with_the_model(opened, monkeypatch):
    """A retraining may differ from the model for other reasons than the removal, such as its number of threads."""
    target = opened.datamodel.target

    class Biased(Retraining):
        def _trainer(self):
            def retrain(rows, order):
                network = target.flat.module(target.theta, target.fixed)
                with torch.no_grad():
                    list(network.parameters())[-1].add_(torch.arange(10.0) + (len(rows) > 0))
                return network

            return retrain

    monkeypatch.setattr(opening, "Retraining", Biased)
    state = State(index=3, remove=(group_of(opened, 3),), objective="logits")
    found = answers.compare(opened, state)
    assert found.effects[1] == pytest.approx(1.0, abs=1e-4)
    assert len(found.probabilities) == len(found.accuracy) == 4
    asked = answers.ask(opened, state)
    assert "retrained with all groups" in panels.comparison(opened, state, asked, found)


def test_a_comparison_says_that_it_takes_two_retrainings_and_keeps_them(opened):
    state = State(index=3, remove=(group_of(opened, 3),))
    assert "and one with all groups" in phrases.cost(opened)
    assert answers.seconds_of_comparing(opened, state) == 2 * opened.seconds
    answers.compare(opened, state)
    assert answers.seconds_of_comparing(opened, state) == 0


def test_effects_are_said_with_their_direction_and_unit():
    state = State(objective="probabilities")
    assert phrases.effect(state, "5", -0.087) == "lowers the probability of 5 by 8.7 points"
    assert phrases.effect(state, "5", 0.087) == "raises the probability of 5 by 8.7 points"
    assert phrases.amount(state, -0.087) == "-8.7 points"
    assert phrases.effect(replace(state, objective="loss"), "5", 0.25) == "raises the loss on this image by 0.25"


def test_names_are_escaped_on_the_page(opened):
    assert "<script>" not in panels.notice(["<script>alert(1)</script>"])
    bars = panels.bars(opened, State(remove=("<b>x</b>",)), answers.Prediction(np.eye(10)[0], np.eye(10)[1]))
    assert "<b>x</b>" not in bars


# The address


def test_an_address_gives_back_its_state(opened):
    state = State(
        index=12,
        objective="logits",
        output="8",
        remove=(group_of(opened, 3), group_of(opened, 5)),
        show="class 6",
        page=0,
    )
    query = address.write(state)
    assert f"remove={group_of(opened, 3)}" in query
    assert address.read(query, opened, State()) == (state, [])


def test_a_picture_of_ones_own_is_in_the_address(opened):
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    text = upload.as_text(torch.from_numpy(pixels)[None])
    state = State(picture=text, label="4")
    read, said = address.read(address.write(state), opened, State())
    assert said == []
    assert read == state
    assert torch.equal(answers.ask(opened, read).raw[0], torch.from_numpy(pixels))


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
def test_nonsense_in_an_address_gets_a_sentence_and_changes_nothing(opened, query, word):
    state, said = address.read(query, opened, State(index=5))
    assert state == State(index=5)
    assert len(said) == 1
    assert word in said[0]
    assert said[0].endswith(".")
    assert len(said[0]) < 300


def test_an_address_that_removes_every_group_gets_a_sentence(opened):
    query = "&".join(f"remove={name}" for name in opened.datamodel.partition.names)
    state, said = address.read(query, opened, State())
    assert state.remove == ()
    assert "every group" in said[0]


def test_an_address_with_too_many_parts_is_left_alone(opened):
    assert address.read("?" + "remove=0&" * 5000, opened, State())[1] == ["The address has too many parts to be read."]


def test_unknown_parts_of_an_address_are_ignored(opened):
    assert address.read("?__theme=dark&index=4", opened, State()) == (State(index=4), [])


# Pictures of one's own


def test_a_picture_becomes_what_the_runs_images_are(opened):
    colours = np.zeros((32, 48, 3), np.uint8)
    colours[:, :24] = 255
    image = upload.decode(file_of(colours, "JPEG", quality=95), opened.data.train)
    assert image.shape == opened.data.train.shape
    assert image.dtype == torch.uint8
    assert image[0, :, 0].min() > 240
    assert image[0, :, -1].max() < 15


def test_a_test_image_as_a_file_is_asked_like_the_test_image(opened):
    raw = opened.data.test.raw[9]
    text = upload.as_text(upload.decode(file_of(raw[0].numpy()), opened.data.train))
    label = opened.classes[int(opened.data.test.labels[9])]
    own, test = answers.ask(opened, State(picture=text, label=label)), answers.ask(opened, State(index=9))
    assert torch.equal(own.x, test.x)
    assert torch.equal(own.y, test.y)


def test_an_unknown_class_is_taken_for_the_predicted_one(opened):
    text = upload.as_text(opened.data.test.raw[9])
    asked = answers.ask(opened, State(picture=text))
    assert asked.label is None
    assert int(asked.y) == asked.predicted
    assert "unknown" in phrases.verdict(opened, State(picture=text), asked)


def test_see_through_parts_are_white_and_sixteen_bits_are_scaled(opened):
    clear = np.zeros((8, 8, 4), np.uint8)
    assert int(upload.decode(file_of(clear), opened.data.train).min()) == 255
    deep = np.full((8, 8), 32896, np.uint16)
    assert int(upload.decode(file_of(deep), opened.data.train)[0, 0, 0]) == 128


@pytest.mark.parametrize("content", [b"", b"not a picture", b"<svg xmlns='http://www.w3.org/2000/svg'/>"])
def test_what_is_no_picture_is_refused(opened, refused, content):
    with refused("not a picture"):
        upload.decode(content, opened.data.train)


def test_a_damaged_picture_is_refused(opened, refused):
    whole = file_of(np.random.default_rng(0).integers(0, 255, (64, 64), dtype=np.uint8))
    with refused("damaged"):
        upload.decode(whole[: len(whole) // 2], opened.data.train)


def test_pictures_that_are_too_large_are_refused(opened, refused):
    with refused("MB"):
        upload.decode(b"0" * (upload.MOST_BYTES + 1), opened.data.train)
    with refused("million pixels"):
        upload.decode(file_of(np.zeros((5000, 5000), np.uint8)), opened.data.train)


def test_runs_of_other_inputs_than_images_are_refused(tmp_path, datamodel, digits, refused):
    flat = ddm.Samples.from_arrays(digits.train.raw.flatten(1).float(), digits.train.labels, digits.classes)
    with refused("images", "ddm trace"):
        Opened(tmp_path, datamodel, ddm.Data("flat", flat, flat, flat, len(flat)))


def test_the_loss_of_an_unknown_picture_is_that_of_the_predicted_class(opened):
    state = State(picture=upload.as_text(opened.data.test.raw[9]), objective="loss")
    asked = answers.ask(opened, state)
    ranking = answers.ranking(opened, state, asked)
    assert ranking.baseline[0] == pytest.approx(float(F.cross_entropy(asked.logits, asked.logits.argmax(1))), abs=1e-6)


# The command


def test_a_taken_port_is_refused(opened, refused):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with refused(str(port), "--port"), serving.served(opened, port):
            pass


@pytest.mark.parametrize("checkout", [True, False])
def test_without_gradio_the_command_that_installs_it_is_named(opened, refused, monkeypatch, tmp_path, checkout):
    for name in ("gradio", "starlette", "fastapi", "uvicorn"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("page", "gate"):
        monkeypatch.delitem(sys.modules, f"ddm.explorer.{name}", raising=False)
    if not checkout:
        monkeypatch.setattr(serving, "__file__", str(tmp_path / "lib" / "ddm" / "explorer" / "serving.py"))
    words = ("pip install -c", "[explore]") if checkout else ("pip install 'distilled-datamodel[explore]'",)
    with refused(*words), serving.served(opened, None):
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


def test_the_next_explorer_removes_pictures_of_one_that_was_killed(opened, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    unrelated, linked = tmp_path / "ddm-explore-notes", tmp_path / "ddm-explore-link"
    unrelated.mkdir()
    working, held = folder_of_a_process(ended=False)
    _, killed = folder_of_a_process(ended=True)
    linked.symlink_to(held)
    try:
        assert (killed / "picture.png").exists()
        with serving.served(opened, None):
            assert not killed.exists()
            assert (held / "picture.png").exists()
            assert len(list(tmp_path.glob("ddm-explore-*"))) == 4
        assert set(tmp_path.glob("ddm-explore-*")) == {unrelated, linked, held}
    finally:
        working.kill()
        working.communicate()


def test_the_library_does_not_import_gradio():
    code = "import sys, ddm.cli, ddm.explorer.serving, ddm.explorer.answers; sys.exit('gradio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=600).returncode == 0


def test_the_page_is_on_this_machine_until_it_is_ended(opened):
    import httpx

    before = dict(os.environ)
    with serving.served(opened, None) as page:
        assert page.startswith("http://127.0.0.1:")
        assert httpx.get(page, trust_env=False).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(page, trust_env=False)
    assert dict(os.environ) == before
