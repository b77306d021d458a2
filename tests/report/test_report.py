"""The report: one page with the datamodel's numbers, which needs no network and respects --no-images."""

import base64
import copy
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import assert_refused
from torch import nn

import ddm
import ddm.counterfactual.counterfactuals
from ddm import report
from ddm.report.effects import ends
from ddm.report.groups import apart, flat
from ddm.report.numbers import between, percent, points, raised, signed
from ddm.report.pictures import BUDGET, Pictures
from ddm.report.predictions import choose, predictions_section
from ddm.report.shown import Shown
from ddm.report.subject import Subject
from ddm.runs import run
from ddm.truth.audit import OTHER, SAME, Audit
from ddm.truth.figures import FIGURES

SECTIONS = ["model", "trust", "groups", "effects", "errors", "predictions", "synset", "suspects", "cost"]
EVIL = "<script>alert(1)</script>"
TINY = {"curvature": 64, "bank": 8}


class Page(HTMLParser):
    """The content of a page: text and pictures by section, charts, and everything it refers to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.html = path.read_text(encoding="utf-8")
        self.sections: list[str] = []
        self.text: dict[str, str] = {}
        self.pictures: dict[str, list[str]] = {}
        self.charts: dict[str, dict] = {}
        self.tags: list[str] = []
        self.references: list[str] = []
        self._at, self._inside = "header", ""
        self.feed(self.html)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        self.references += [given[name] for name in ("src", "href", "action", "data") if given.get(name)]
        self._inside = f"chart {given['id']}" if given.get("type") == "application/json" else tag
        if tag == "section":
            self._at = given["id"]
            self.sections.append(self._at)
        if tag == "img":
            self.pictures.setdefault(self._at, []).append(given["src"])

    def handle_data(self, data):
        if self._inside.startswith("chart "):
            self.charts[self._inside.removeprefix("chart ")] = json.loads(data)
        elif self._inside not in ("script", "style"):
            self.text[self._at] = " ".join(f"{self.text.get(self._at, '')} {data}".split())

    def handle_endtag(self, tag):
        self._inside = ""


def written(datamodel, data, folder, **options) -> Page:
    path = folder / "page.html"
    report.write(datamodel, data, path, run.summarise(datamodel, data), **options)
    return Page(path)


def pixels(uri):
    """The pixels of a data URI ``(H, W)`` or ``(H, W, 3)``."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,")))))


def audit():
    figure = {"value": 0.5, "low": -0.25, "high": 0.9, "retrain": 0.6, "ceiling": 0.8}
    table = dict.fromkeys(FIGURES, figure)
    return Audit({SAME: table, OTHER: table}, ("0/1", "0/2"), 3, 2, (20, 30), 12, 0.25)


def audited(datamodel):
    found = copy.copy(datamodel)
    found.audited = audit()
    return found


@pytest.fixture(scope="module")
def page(datamodel, digits, tmp_path_factory):
    return written(audited(datamodel), digits, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def bare(datamodel, digits, tmp_path_factory):
    """A page without pictures, of a datamodel that was not audited."""
    return written(datamodel, digits, tmp_path_factory.mktemp("bare"), images=False)


@pytest.fixture(scope="module")
def kept(finished_run, tmp_path_factory):
    """A copy of a run, into which the command may write its page."""
    return Path(shutil.copytree(finished_run, tmp_path_factory.mktemp("kept") / "run"))


def small(samples, network=None, **options):
    """A datamodel that takes a moment."""
    network = network or ddm.networks.ConvNet(samples.shape, len(samples.classes), width=4, depth=1)
    target = ddm.train(network, samples, ddm.Recipe(epochs=2, lr=0.1, batch_size=16))
    return ddm.DistilledDatamodel.fit(target, samples, **({"partition": "class"} | TINY | options))


def data_of(samples, name="own"):
    return ddm.Data(name, samples, samples, samples, len(samples))


# --- numbers ---


def test_the_sections_come_in_order(page):
    assert page.sections == SECTIONS


def test_the_model_section_has_the_accuracies_of_the_run(page, datamodel, digits):
    facts = run.summarise(datamodel, digits)
    for split in ("train", "validation", "test"):
        assert percent(facts["accuracy"][split]) in page.text["model"]
    assert f"{facts['parameters']:,} parameters" in page.text["model"]
    assert f"groups {len(datamodel.partition)} of" in page.text["model"]


def test_the_bars_are_the_effects_that_attribute_gives(page, datamodel, digits):
    found = datamodel.attribute(digits.validation, "loss")
    bars = page.charts["bars-data"]
    names, values = bars["layout"]["yaxis"]["ticktext"], bars["data"][0]["x"]
    assert names[0] == found.names[int(found.scores.argmax())]
    assert names[-1] == found.names[int(found.scores.argmin())]
    expected = dict(zip(found.names, found.scores, strict=True))
    assert len(names) > 4
    for name, value in zip(names, values, strict=True):
        assert value == pytest.approx(expected[name], rel=1e-3)


def test_only_groups_that_clearly_harm_or_look_mislabelled_are_coloured(page, datamodel, digits):
    found = datamodel.diagnose(digits.validation, digits.train)
    bad = {finding.group for finding in (*found.harmful, *found.noisy)}
    bars, circles = page.charts["bars-data"], page.charts["map-data"]["data"][0]
    for names, colours in (
        (bars["layout"]["yaxis"]["ticktext"], bars["data"][0]["marker"]["color"]),
        (circles["text"], circles["marker"]["color"]),
    ):
        assert colours == ["var(--bad)" if name in bad else "var(--neutral)" for name in names]


def test_the_heat_map_is_the_effect_on_the_recall_of_each_class_in_points(page, datamodel, digits):
    found = datamodel.attribute(digits.validation, "class-recall")
    chart = page.charts["classwise-data"]
    rows = [datamodel.partition.index(name) for name in chart["layout"]["yaxis"]["ticktext"]]
    assert np.allclose(chart["data"][0]["z"], 100 * found.matrix[rows], rtol=1e-3)
    assert np.abs(found.matrix[rows]).max() > 0
    f1 = datamodel.attribute(digits.validation, "class-f1")
    assert np.allclose(page.charts["classwise-f1"]["data"][0]["z"], 100 * f1.matrix[rows], rtol=1e-3)


def test_the_confusion_matrix_counts_the_validation_samples(page, datamodel, digits):
    x, y = digits.validation.batch()
    said = datamodel.target.outputs(x).argmax(1)
    shown = page.charts["confusion-data"]["data"][0]["text"]
    counts = np.array([[int(cell or 0) for cell in row] for row in shown])
    assert counts.sum() == len(y)
    for true, predicted in zip(y.tolist(), said.tolist(), strict=True):
        counts[true, predicted] -= 1
    assert not counts.any()


def test_a_story_has_the_groups_of_attribute_and_the_answer_of_the_counterfactual(page, datamodel, digits):
    text = page.text["predictions"]
    stories = re.findall(
        r"test sample (\d+) The model says (\S+) (?:, which is right|; it is (\S+)) ?\. "
        r"Without (.+?) it would say (\S+) \.",
        text,
    )
    assert len(stories) >= 3
    for row, said, label, drivers, after in stories:
        x, y = digits.test[int(row)]
        assert (digits.classes[y], digits.classes[int(datamodel.target.outputs(x[None])[0].argmax())]) == (
            label or said,
            said,
        )
        found = datamodel.attribute((x, y), "probabilities").on(said)
        strongest = int(found.scores.argmin())
        assert drivers.split(", ")[0] == found.names[strongest]
        assert points(float(found.scores[strongest])) in text
        without = datamodel.counterfactual(drivers.split(", "))(x[None])[0]
        assert digits.classes[int(without.argmax())] == after


def test_the_samples_behind_a_story_are_those_of_shares(page, datamodel, digits):
    row, said = re.search(r"test sample (\d+) The model says (\S+)", page.text["predictions"]).groups()
    group = re.search(r"Samples of (\S+) with the largest share", page.text["predictions"])[1]
    shares = datamodel.shares(digits.test[[int(row)]], group, "probabilities", output=said, train=digits.train)
    for sample, value in shares.top(3):
        assert f"sample {sample} {signed(100 * value, 2)} points" in page.text["predictions"]


def test_single_predictions_come_from_the_split_that_is_asked_for(datamodel, digits, tmp_path):
    found = written(datamodel, digits, tmp_path, split="validation")
    assert "validation sample" in found.text["predictions"]
    assert "test sample" not in found.text["predictions"]


def test_an_audited_page_has_the_sentence_and_a_gauge_for_each_figure(page):
    assert audit().sentence in page.text["trust"]
    assert page.html.count('class="gauge"') == len(FIGURES)
    places = re.search(r'class="interval" style="left: ([\d.]+)%; right: ([\d.]+)%"', page.html)
    assert float(places[1]) == 0  # the track begins at the lowest figure
    assert float(places[2]) == pytest.approx(100 * (1 - 0.9) / 1.25)
    assert "Not audited" not in page.text["trust"]


def test_a_page_without_an_audit_says_so_and_how_to_make_one(bare):
    assert "Not audited" in bare.text["trust"]
    assert "ddm audit RUN" in bare.text["trust"]
    assert 'class="gauge"' not in bare.html


# --- intervals, after a refinement ---


@pytest.fixture(scope="module")
def intervals(refined, digits, tmp_path_factory):
    """The page of a refined datamodel."""
    return written(refined, digits, tmp_path_factory.mktemp("intervals"))


def test_bars_have_whiskers_and_are_light_within_noise(intervals, refined, digits):
    found, bars = refined.attribute(digits.validation, "loss"), intervals.charts["bars-data"]
    diagnosis = refined.diagnose(digits.validation)
    bad = {finding.group for finding in (*diagnosis.harmful, *diagnosis.noisy)}
    trace, names = bars["data"][0], bars["layout"]["yaxis"]["ticktext"]
    ends = zip(names, trace["x"], trace["error_x"]["arrayminus"], trace["error_x"]["array"], strict=True)
    for i, (name, value, below, above) in enumerate(ends):
        number = found.names.index(name)
        assert (value - below, value + above) == pytest.approx(found.interval(number), abs=1e-4)
        light = not found.stands_out[number] and name not in bad
        assert (trace["marker"]["color"][i] == "var(--noise)") == light
    assert "var(--noise)" in trace["marker"]["color"]


def test_tables_of_helpful_and_harmful_groups_hold_no_noise(intervals, refined, digits):
    found = refined.attribute(digits.validation, "loss")
    helping, harming = intervals.text["effects"].split("Groups that help most")[1].split("Groups that harm most")
    listed = re.findall(r"(\d/\d) \d+ samples? ([+−][\d.]+) (measured|[+−][\d.]+ to [+−]?[\d.]+)", helping + harming)
    strongest = np.concatenate(ends(found.scores, 8))
    assert {name for name, _, _ in listed} == {found.names[k] for k in strongest if found.stands_out[k]}
    assert 0 < len(listed) < len(strongest)
    for name, effect, known in listed:
        number = found.names.index(name)
        assert effect == signed(float(found.scores[number]))
        assert known == ("measured" if found.measured_alone[number] else between(*found.interval(number)))
    assert found.basis in intervals.text["effects"]


def test_drivers_of_predictions_have_intervals_and_doubts(intervals, refined, digits):
    text = intervals.text["predictions"]
    stories = re.findall(r"test sample (\d+) The model says (\S+)", text)
    assert len(stories) >= 3
    for row, said in stories:
        found = refined.attribute(digits.test[int(row)], "probabilities").on(said)
        best = int(found.scores.argmin())
        low, high = (100 * end for end in found.interval(best))
        known = "measured" if found.measured_alone[best] else between(low, high, 1)
        assert f"{points(float(found.scores[best]))} {known}" in text
    doubts = [drivers for row, said in stories if (drivers := doubt(refined, digits, int(row), said))]
    assert text.count("No single group stands out") == len(doubts)
    for sentence in doubts:
        assert sentence in text


def doubt(datamodel, digits, row, said):
    """The sentence that the strongest driver of a prediction may be noise, or None."""
    found = datamodel.attribute(digits.test[row], "probabilities").on(said)
    strongest = np.argsort(found.scores)[:3]
    return found.of(strongest[found.scores[strongest] < 0]).no_stand_out


def test_a_question_without_a_clear_cause_has_the_sentence(refined, digits):
    x = digits.test.batch()[0]
    logits = refined.target.outputs(x)
    row = next(
        i for i in range(len(x)) if doubt(refined, digits, i, digits.classes[int(logits[i].argmax())]) is not None
    )
    diagnosis = refined.diagnose(digits.validation)
    subject = Subject(refined, digits, diagnosis, "test", digits.test[[row]], Shown(digits.train, False))
    (story,) = predictions_section(subject)["stories"]
    assert story["no_stand_out"] == doubt(refined, digits, row, story["said"])
    assert story["drivers"][0]["certainty"].noise


def test_the_section_on_trust_counts_the_retrainings(intervals, bare, page, refined):
    count = len(refined.evidence.orders)
    assert count == 11
    assert f"{count} retrainings refine the effects of groups" in intervals.text["trust"]
    assert "guesses" not in intervals.text["trust"]
    for other in (bare, page):
        assert "ddm refine RUN --retrain 20" in other.text["trust"]
        assert "retrainings refine" not in other.text["trust"]
        assert "error_x" not in other.charts["bars-data"]["data"][0]
        assert "within noise" not in other.html.split("</style>")[1].split("<script>")[0]


def test_suspects_are_those_of_the_diagnosis(datamodel, digits, tmp_path):
    labels = digits.train.labels.clone()
    wrong = datamodel.partition.members("3/0")
    labels[wrong] = 8
    samples = replace(digits.train, labels=labels)
    groups = np.where(np.isin(np.arange(len(labels)), wrong), "flipped", "rest")
    noisy = small(samples, partition=[f"{g} {c}" for g, c in zip(groups, labels.tolist(), strict=True)])
    data = replace(digits, train=samples)
    found = noisy.diagnose(data.validation, samples)
    page = written(noisy, data, tmp_path)
    assert found.suspects
    assert len(page.pictures.get("suspects", [])) == min(24, len(found.suspects))
    for suspect in found.suspects[:24]:
        assert f"{suspect.label} → {suspect.likely} {percent(suspect.probability)}" in page.text["suspects"]


def test_the_same_datamodel_gives_the_same_page(datamodel, digits, tmp_path, bare):
    assert written(datamodel, digits, tmp_path, images=False).html == bare.html


# --- pictures ---


def test_the_first_thumbnail_is_a_training_sample_of_the_first_group(page, datamodel, digits):
    shown = pixels(page.pictures["groups"][0])
    members = digits.train.raw[datamodel.partition.rows(0)][:, 0].numpy()
    assert (shown == members).all((1, 2)).any()


def test_the_confused_pictures_are_of_the_validation_samples(page, digits):
    shown = pixels(page.pictures["errors"][0])
    assert (shown == digits.validation.raw[:, 0].numpy()).all((1, 2)).any()


def test_without_images_no_picture_of_a_sample_is_left(bare, page, digits):
    assert set(bare.pictures) == {"synset"}  # noise, and targets
    assert "holds no picture of a training, validation or test sample" in bare.text["header"]
    assert "shows training pictures" in page.text["header"]
    known = {image.tobytes() for split in ("train", "validation", "test") for image in digits.split(split).raw.numpy()}
    assert not any(pixels(uri).tobytes() in known for uri in bare.pictures["synset"])
    assert any(pixels(uri).tobytes() in known for uri in page.pictures["groups"])


def test_a_reverse_synset_is_shown_beside_real_samples_and_left_out_without_images(digits, tmp_path):
    found = small(digits.train, matching="reverse", steps=2)
    page = written(found, digits, tmp_path)
    assert len(page.pictures["synset"]) >= 4
    assert "by reverse matching" in page.text["synset"]
    assert "synset" not in written(found, digits, tmp_path, images=False).pictures


def test_two_hundred_groups_of_colour_noise_stay_below_ten_megabytes(tmp_path):
    raw = np.random.default_rng(0).integers(0, 256, (400, 3, 64, 64), dtype=np.uint8)
    samples = ddm.datasets.Samples.from_arrays(raw, np.arange(400) % 4)
    network = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(48, 4))
    page = written(small(samples, network, partition=np.arange(400) // 2), data_of(samples), tmp_path)
    assert len(page.html) < 10_000_000
    assert len(page.charts["map-data"]["data"][0]["x"]) == 200
    assert sum(len(uri) for uris in page.pictures.values() for uri in uris) <= BUDGET
    assert len(page.pictures["groups"]) >= 200


def test_pictures_end_where_their_room_ends(digits):
    one = len(Pictures(digits.train, True).of(digits.train, [0])[0])
    pictures = Pictures(digits.train, True, budget=one)
    assert len(pictures.of(digits.train, [0, 1, 2])) == 1
    assert pictures.room(digits.train.shape) == 0
    assert Pictures(digits.train, False).of(digits.train, [0]) == []


def test_room_is_never_promised_that_is_not_there():
    raw = np.random.default_rng(1).integers(0, 256, (50, 3, 40, 20), dtype=np.uint8)
    samples = ddm.datasets.Samples.from_arrays(raw, np.arange(50) % 2)
    pictures = Pictures(samples, True, budget=60_000)
    room = pictures.room(samples.shape)
    assert 0 < room < 50
    assert len(pictures.of(samples, range(room))) == room


def test_large_pictures_keep_their_proportions():
    raw = np.random.default_rng(1).integers(0, 256, (2, 1, 200, 100), dtype=np.uint8)
    samples = ddm.datasets.Samples.from_arrays(raw, [0, 1])
    assert pixels(Pictures(samples, True).of(samples, [0])[0]).shape == (64, 32)


# --- what is shown may be anything ---


def test_names_are_text_and_never_markup(digits, tmp_path):
    classes = (EVIL, 'a"b', "<b>c</b>", "&amp;", *digits.classes[4:])
    data = replace(
        digits,
        **{split: replace(digits.split(split), classes=classes) for split in ("train", "validation", "test")},
    )
    page, plain = written(small(data.train), data, tmp_path), written(small(digits.train), digits, tmp_path)
    assert "alert(1)</script>" not in page.html
    assert f"Class {EVIL}" in page.text["groups"]
    assert page.tags.count("script") == plain.tags.count("script")
    assert "&lt;b&gt;c&lt;/b&gt;" in page.charts["confusion-data"]["layout"]["xaxis"]["ticktext"]


def test_inputs_that_are_no_images_have_a_page_without_pictures(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    samples = ddm.datasets.Samples.from_arrays(rng.normal(size=(60, 5)).astype(np.float32) + labels[:, None], labels)
    page = written(small(samples, nn.Linear(5, 3), clusters=2, partition="kmeans"), data_of(samples), tmp_path)
    assert page.sections == SECTIONS
    assert set(page.pictures) == {"synset"}  # targets
    assert "training pictures" not in page.text["header"]


def test_groups_across_classes_have_a_purity(digits, tmp_path):
    groups = np.where(np.arange(len(digits.train)) % 2, "odd", "even")
    page = written(small(digits.train, partition=groups), digits, tmp_path)
    even = digits.train.labels.numpy()[groups == "even"]
    assert "purity" in page.text["groups"]
    assert percent(np.bincount(even).max() / len(even), 0) in page.text["groups"]


def test_a_group_that_could_not_be_distilled_is_named_and_has_no_effect(datamodel, digits, tmp_path):
    synset = replace(datamodel.synset, stopped={"4/1": "it diverged."})
    stages = datamodel.target, datamodel.partition, synset, datamodel.class_synset, datamodel.settings, datamodel.data
    found = ddm.DistilledDatamodel(*stages, samples=datamodel.samples)
    page = written(found, digits, tmp_path)
    assert "could not be distilled and have no effects below: 4/1" in page.text["model"]
    assert "4/1" not in page.charts["bars-data"]["layout"]["yaxis"]["ticktext"]


# --- no network ---


def test_the_page_refers_to_nothing_outside_itself(page):
    assert len(page.references) > len(SECTIONS)
    assert all(reference.startswith(("data:", "#")) for reference in page.references)
    style = page.html.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in page.html


def test_plotly_is_in_the_page_once(page):
    assert page.html.count("* plotly.js v") == 1


# --- parts ---


def test_the_chosen_predictions_are_what_their_titles_say():
    logits = torch.tensor([[9.0, 0.0], [0.1, 0.0], [0.0, 5.0], [0.0, 0.2], [0.0, 3.0]])
    chosen = dict(choose(logits, torch.tensor([0, 0, 0, 0, 1])))
    assert chosen == {
        "A wrong and doubtful answer": 3,
        "A wrong but confident answer": 2,
        "A right but doubtful answer": 1,
        "A right and confident answer": 0,
    }


def test_a_perfect_model_has_right_answers_alone():
    assert [title for title, _ in choose(torch.eye(3), torch.arange(3))] == [
        "A right but doubtful answer",
        "A right and confident answer",
    ]


def test_ends_are_the_largest_of_either_sign():
    helping, harming = ends(np.array([0.1, -0.3, np.nan, 0.5, -0.1, 0.0]), 2)
    assert helping.tolist() == [3, 0]
    assert harming.tolist() == [1, 4]
    assert [len(part) for part in ends(np.zeros(3), 2)] == [0, 0]


def test_points_on_a_plane_keep_their_distances():
    plane = np.random.default_rng(0).normal(size=(6, 2)) @ np.array([[1.0, 0, 0, 0], [0, 0.6, 0.8, 0]])
    places, kept = flat(plane)
    assert kept == pytest.approx(1)
    for i in range(6):
        assert np.allclose(np.linalg.norm(places - places[i], axis=1), np.linalg.norm(plane - plane[i], axis=1))


def test_one_group_has_a_place():
    places, kept = flat(np.ones((1, 3)))
    assert places.tolist() == [[0, 0]]
    assert kept == 1
    assert np.isfinite(apart(places, np.array([4]))).all()


def test_circles_at_the_same_place_are_moved_apart():
    moved = apart(np.zeros((3, 2)), np.array([9, 9, 9]))
    distances = np.linalg.norm(moved[:, None] - moved[None], axis=2)[np.triu_indices(3, 1)]
    assert distances.min() > 20


def test_changes_carry_their_sign_and_unit():
    assert points(0.0141) == "+1.4 points"
    assert points(-0.0141) == "−1.4 points"
    assert points(-0.0001) == "0.0 points"
    assert points(float("nan")) == "– points"
    assert raised("accuracy", -0.02) == "lowers accuracy by 2.0 points"
    assert raised("accuracy", 0.0) == "leaves accuracy as it is"


# --- the command ---


def test_the_command_writes_the_page_into_the_run_and_says_where(command, kept):
    answer = command("report", kept, "--json")
    assert answer.json["report"] == str(kept / "report.html")
    assert answer.json["bytes"] == (kept / "report.html").stat().st_size
    page = Page(kept / "report.html")
    assert f"ddm report {kept} --json" in page.text["cost"]
    assert "training" in page.text["cost"]
    assert answer.json["accuracy"] == run.open_run(kept)[0].diagnose(run.open_run(kept)[1].validation).accuracy


def test_the_command_writes_elsewhere_and_without_images(command, kept, tmp_path):
    answer = command("report", kept, "--out", "page.html", "--no-images")
    assert answer.code == 0, answer.err
    assert "Page: page.html" in answer.out
    assert set(Page(tmp_path / "page.html").pictures) == {"synset"}


def test_a_split_that_does_not_exist_is_refused(command, kept):
    assert_refused(command("report", kept, "--split", "tests", "--out", "page.html"), "split", "tests")
    assert not Path("page.html").exists()


@pytest.mark.parametrize("package", ["jinja2", "plotly.offline"])
def test_what_is_missing_can_be_installed(command, kept, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert_refused(command("report", kept, "--out", "page.html"), "Jinja2 and Plotly", "'distilled-datamodel[report]'")


def test_the_command_line_does_not_import_what_a_page_is_made_with():
    code = "import sys, ddm.cli; sys.exit(bool({'jinja2', 'plotly'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=600).returncode == 0
