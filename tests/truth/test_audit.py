"""The audit: its figures, its verdict in words, its JSON, and the files it writes."""

import copy
import io
import json
import math
import os
import tempfile
from dataclasses import replace

import numpy as np
import pytest

import ddm
from ddm.cli.text import describe_audit
from ddm.compute.terminal import console
from ddm.report.trust import trust_section
from ddm.truth.audit import OTHER, SAME, Audit, compare_effects, draw_stratified
from ddm.truth.effects import EffectQuery, Effects, measure_effects, predict_effects
from ddm.truth.figures import FIGURES, Figure, label_of, noise_ceilings, probability_error, score_figures
from ddm.truth.retraining import Retraining
from ddm.truth.verdict import growth


def figure(value, low, high, retrain, ceiling=None):
    return {"value": value, "low": low, "high": high, "retrain": retrain, "ceiling": ceiling}


GOOD = figure(0.8, 0.6, 0.9, 0.9, 0.95)
BAD = figure(0.05, -0.02, 0.08, 0.9, 0.95)
WIDE = figure(0.3, -0.3, 0.8, 0.9, 0.95)
NOISE = figure(0.8, 0.6, 0.9, 0.05, 0.2)
NONE = figure(None, None, None, None)

USES = {
    "oracle_fraction": "Finds the group behind a prediction",
    "rho": "Orders groups by their effect on a prediction",
    "rho_global": "Orders harmful groups",
    "lds": "Foresees the removal of many groups",
}


SIZED = figure(1.0, 0.8, 1.2, 0.5)


def made(other=True, **figures):
    """An audit with the given figures; all other figures are good."""
    table = {name: figures.get(name, SIZED if name == "slope" else GOOD) for name in FIGURES}
    runs = {SAME: table} | ({OTHER: table} if other else {})
    return Audit(runs, ("0/1", "é/[2]"), 3, 2, (20, 30), 12, 0.25)


# --- groups ---


@pytest.mark.parametrize("count", [2, 3, 7, 20])
def test_one_group_is_drawn_from_each_range_of_effects(count):
    effects = np.random.default_rng(0).normal(size=20)
    strata = np.array_split(np.argsort(effects), count)
    drawn = {tuple(draw_stratified(effects, count, seed)) for seed in range(10)}
    for chosen in drawn:
        assert list(chosen) == sorted(set(chosen))
        assert all(len(np.intersect1d(chosen, stratum)) == 1 for stratum in strata)
    assert (len(drawn) == 1) == (count == 20)
    assert np.array_equal(draw_stratified(effects, count, 5), draw_stratified(effects, count, 5))


# --- figures ---


def effects(values):
    return Effects(np.abs(values), values, values[:, 0], values, values[0])


@pytest.mark.parametrize("orders", [1, 2, 3])
def test_figures_of_the_same_and_of_other_batch_orders_are_compared_with_another_retraining(orders):
    random = np.random.default_rng(0)
    truth = random.normal(size=(12, 6))
    found, *true = (effects(truth + random.normal(size=(12, 6))) for _ in range(1 + orders))
    table = compare_effects(found, true)
    same = score_figures(found, true[0])
    assert {name: one["value"] for name, one in table[SAME].items()} == pytest.approx(same)
    assert table[SAME]["oracle_fraction"]["ceiling"] is None
    if orders == 1:
        assert list(table) == [SAME]
        assert all(one["retrain"] is None and one["ceiling"] is None for one in table[SAME].values())
        return
    assert table[SAME]["rho"]["retrain"] == pytest.approx(score_figures(true[1], true[0])["rho"])
    assert table[SAME]["lds"]["ceiling"] == pytest.approx(noise_ceilings(true)["lds"])
    others = [score_figures(found, one)["rho"] for one in true[1:]]
    assert table[OTHER]["rho"]["value"] == pytest.approx(np.mean(others))
    against = score_figures(true[0], true[1]) if orders == 2 else score_figures(true[2], true[1])
    assert table[OTHER]["rho"]["retrain"] == pytest.approx(against["rho"])


# --- the sentence ---


LARGER = "(groups would have to be about"


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize(
    ("judged", "answer"),
    [
        (GOOD, "yes"),
        (BAD, "no"),
        (figure(-0.5, -0.8, -0.2, 0.9, 0.95), "no"),
        (WIDE, "not known yet, retrain more"),
        (figure(0.9, None, None, 0.9, 0.95), "not known yet, retrain more"),
        (NOISE, f"not here, retrainings disagree {LARGER} 2.5 times larger)"),
        (
            figure(0.8, 0.6, 0.9, -0.1, 0.0),
            "not here, retrainings disagree (groups would have to be more than 10 times larger)",
        ),
    ],
    ids=["yes", "no", "reversed", "unsure", "without interval", "noise", "all noise"],
)
def test_each_use_is_judged_by_its_figure(name, judged, answer):
    others = {other: NONE for other in FIGURES if other != name}
    assert made(**others, **{name: judged}).sentence == f"{USES[name]}: {answer}."


def test_the_verdict_is_one_line_with_an_answer_for_each_use_and_the_warnings():
    audit = made(oracle_fraction=GOOD, rho=BAD, rho_global=WIDE, lds=NOISE, slope=figure(0.2, 0.1, 0.3, 0.5))
    audit = replace(audit, error=0.041)
    parts = audit.sentence.split(". ")
    openings = (*USES.values(), "Effects on a prediction: right within ±4.1 points", "Before these")
    assert all(part.startswith(opening) for part, opening in zip(parts, openings, strict=True))
    assert "0.2 times the predicted ones" in parts[-1]
    assert str(audit) == audit.sentence
    assert "\n" not in audit.sentence


@pytest.mark.parametrize("agreement", [0.02, 0.05, 0.1, 0.2])
def test_groups_that_grow_as_advised_make_retrainings_agree(agreement):
    signal, noise = agreement, 1 - agreement  # the correlation of two retrainings is signal / (signal + noise)
    grown = signal * growth(agreement) ** 2
    assert grown / (grown + noise) == pytest.approx(0.25)
    assert growth(0.5) == 1


def test_what_the_audit_rejects_is_doubted():
    audit = made(oracle_fraction=GOOD, rho=BAD, rho_global=WIDE, lds=NOISE)
    assert audit.doubt("oracle_fraction") is None
    assert audit.doubt("rho_global") is None
    assert str(audit.doubt("rho")) == (
        "The audit rejects it: orders groups by their effect on a prediction? No, its predictions disagree with "
        "retraining."
    )
    assert "retrainings disagree" in str(audit.doubt("lds"))
    assert audit.doubt("slope") is None


def test_the_error_is_the_distance_within_which_nine_of_ten_probabilities_are_predicted():
    random = np.random.default_rng(0)
    base = random.normal(size=50)
    true, found = (replace(effects(random.normal(size=(20, 50))), base=base) for _ in range(2))
    p = [1 / (1 + np.exp(-(base + one.margin))) for one in (true, found)]
    within = probability_error(found, true)
    assert (np.abs(p[0] - p[1]) <= within).mean() == pytest.approx(0.9, abs=1e-3)


@pytest.mark.parametrize("slope", [0.5, 1, 2])
def test_a_slope_between_one_half_and_two_needs_no_warning(slope):
    assert "times the predicted" not in made(slope=figure(slope, 0.1, 3, 0.5)).sentence


def test_a_figure_without_a_value_is_not_judged():
    sentence = made(lds=NONE).sentence
    assert "many groups" not in sentence
    nothing = made(**dict.fromkeys(FIGURES, NONE)).sentence
    assert "nothing could be measured" in nothing.lower()


@pytest.mark.parametrize("name", USES)
def test_a_poor_score_is_not_trusted_even_if_another_retraining_is_as_poor(name):
    others = {other: NONE for other in USES if other != name}
    poor = made(**others, **{name: figure(0.11, 0.01, 0.2, 0.1)}).sentence
    assert poor.startswith(f"{USES[name]}: as well as another retraining, which is poorly here {LARGER} 1.7 times")


@pytest.mark.parametrize("name", USES)
def test_a_score_below_the_floor_is_never_trusted_however_poor_another_retraining_is(name):
    others = {other: NONE for other in USES if other != name}
    floor, yes = FIGURES[name].floor, f"{USES[name]}: yes"
    for retrain in (0.11, floor, 0.7, 0.99):
        below = figure(floor - 0.01, floor / 2, floor + 0.01, retrain)
        assert not made(**others, **{name: below}).sentence.startswith(yes)
        assert made(**others, **{name: figure(0.99, 0.9, 1, retrain)}).sentence.startswith(yes)
    better = figure(floor, floor / 2, 1, 0.11)  # better than another retraining, and good enough
    assert made(**others, **{name: better}).sentence.startswith(yes)


# --- as JSON ---


def test_the_repr_of_an_audit_shows_its_verdict():
    audit = made()
    assert repr(audit) == f"Audit: {audit.sentence}"


@pytest.mark.parametrize("audit", [made(), made(lds=NONE, other=False), made(**dict.fromkeys(FIGURES, NONE))])
def test_an_audit_survives_json(audit):
    text = json.dumps(audit.to_dict(), allow_nan=False)
    again = Audit.from_dict(json.loads(text))
    assert again == audit
    assert again.sentence == json.loads(text)["sentence"]


@pytest.mark.parametrize(
    "change",
    [
        {"figures": {}},
        {"figures": []},
        {"figures": {SAME: {}}},
        {"figures": {SAME: dict.fromkeys(FIGURES, 0.5)}},
        {"figures": {SAME: {name: {"value": 0.5} for name in FIGURES}}},
        {"figures": {SAME: dict.fromkeys(FIGURES, figure("high", 0, 1, 1, 1))}},
        {"figures": {SAME: dict.fromkeys(FIGURES, figure(math.nan, 0, 1, 1, 1))}},
        {"figures": {SAME: dict.fromkeys(FIGURES, GOOD), OTHER: {}}},
        {"figures": {SAME: dict.fromkeys(FIGURES, GOOD), "third run": dict.fromkeys(FIGURES, GOOD)}},
        {"figures": {SAME: {"rho\x1b[2J": GOOD}}},
        {"figures": {SAME: {"new": 0.5}}},
        {"figures": {SAME: {"new": figure(math.inf, 0, 1, 1, 1)}}},
        {"groups": 3},
        {"groups": [1, 2]},
        {"samples": 20},
        {"samples": [20]},
        {"samples": ["a", "b"]},
        {"orders": "two"},
        {"unions": None},
        {"trainings": 1.5},
        {"seconds": "long"},
    ],
)
def test_json_with_wrong_audit_fields_is_refused(refused, change):
    with refused("not an audit", "ddm audit"):
        Audit.from_dict(made().to_dict() | change)


def test_an_audit_of_an_earlier_version_with_a_size_instead_of_a_slope_is_read():
    values = made().to_dict() | {"size": 0.2}
    for figures in values["figures"].values():
        del figures["slope"]
    audit = Audit.from_dict(values)
    assert list(audit.figures[SAME]) == list(USES)
    assert audit.sentence == made(slope=NONE).sentence
    assert "size" not in audit.to_dict()


def shown(audit, capsys):
    """Every output that shows an audit's figures: table, report, notebook and plot."""
    describe_audit(console(), audit, verbose=True)
    section = trust_section(audit)
    assert len(section["runs"][0]["rows"]) == len(audit.figures[SAME])
    return {
        "table": capsys.readouterr().out,
        "report": str(section["gauges"]),
        "notebook": audit._repr_html_(),
        "plot": str([label.get_text() for label in audit.plot().axes[0].get_yticklabels()]),
    }


def test_an_unknown_figure_is_preserved_and_shown_by_its_name(capsys):
    values = made().to_dict()
    for figures in values["figures"].values():
        figures["later"] = figure(0.42, 0.3, 0.5, None)
    audit = Audit.from_dict(values)
    assert audit.to_dict()["figures"] == values["figures"]
    assert audit.sentence == made().sentence
    for where, text in shown(audit, capsys).items():
        assert "later" in text, where


def test_a_figure_added_to_the_registry_appears_in_every_output(capsys, monkeypatch):
    added = Figure(
        name="added",
        label="my figure",
        meaning="what it is good for",
        effects=lambda effects: effects.margin,
        score=lambda found, true: 0.3,
        use="Does something new",
        floor=0.4,
    )
    monkeypatch.setitem(FIGURES, "added", added)
    one = effects(np.random.default_rng(0).normal(size=(5, 4)))
    audit = replace(made(), figures=compare_effects(one, [one, one]))
    assert Audit.from_dict(json.loads(json.dumps(audit.to_dict()))).figures[SAME]["added"]["value"] == 0.3
    assert "Does something new: as well as another retraining" in audit.sentence
    said = shown(audit, capsys)
    assert "my figure: what it is good for" in said["table"]
    for where, text in said.items():
        assert "my figure" in text, where


@pytest.mark.parametrize("values", [None, [], "text", {}, 3])
def test_json_that_is_not_an_audit_is_refused(refused, values):
    with refused("not an audit"):
        Audit.from_dict(values)


# --- plot ---


@pytest.mark.parametrize("audit", [made(), made(lds=NONE, rho=figure(0.2, None, None, None))])
def test_the_plot_has_a_row_for_each_measured_figure(audit):
    picture = audit.plot()
    measured = [name for name, one in audit.figures[SAME].items() if one["value"] is not None]
    assert [label.get_text() for label in picture.axes[0].get_yticklabels()] == [label_of(name) for name in measured]
    file = io.BytesIO()
    picture.savefig(file, format="png")
    assert file.getvalue().startswith(b"\x89PNG")


# --- auditing ---


@pytest.fixture
def audited(datamodel):
    """A copy of the shared datamodel, because an audit changes its answers."""
    return copy.copy(datamodel)


def test_an_audit_has_figures_for_both_runs_and_leaves_no_temporary_files(audited, digits, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = audited.audit(digits.test[:10], validation=digits.validation, retrain=2, unions=2, workers=1)
    assert audited.audited is found
    assert os.listdir(tmp_path) == []
    assert list(found.figures) == [SAME, OTHER]
    for run in (SAME, OTHER):
        assert list(found.figures[run]) == list(FIGURES)
        for one in found.figures[run].values():
            assert one["value"] is not None
            assert one["retrain"] is not None
    assert len(found.groups) == 2
    assert set(found.groups) <= set(audited.partition.names)
    assert (found.unions, found.orders, found.samples) == (2, 2, (10, len(digits.validation)))
    assert found.trainings == (1 + 2 + 2) * 2
    assert found.seconds > 0
    assert Audit.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_the_figures_of_an_audit_agree_with_its_retrainings(audited, digits, tmp_path):
    test = digits.test[:10]
    models = audited.models  # each retraining is predicted before it is used
    found = audited.audit(test, retrain=3, unions=0, seeds=3, directory=tmp_path, workers=1, seed=2)
    assert len(list(tmp_path.glob("*.safetensors"))) == (1 + 3) * 3 == found.trainings
    assert found == audited.audit(test, retrain=3, unions=0, seeds=3, directory=tmp_path, workers=1, seed=2)
    groups = np.sort([audited.partition.index(name) for name in found.groups])
    asked = EffectQuery(test, test, groups, np.zeros((0, 30), dtype=bool))
    retraining = Retraining(audited.target, digits.train, tmp_path, workers=1)
    mine = predict_effects(models, asked)
    true = [measure_effects(retraining, audited.partition, asked, order) for order in range(3)]
    figures = found.figures[SAME]
    assert figures["rho"]["value"] == pytest.approx(score_figures(mine, true[0])["rho"])
    assert figures["rho_global"]["ceiling"] == pytest.approx(noise_ceilings(true)["rho_global"])
    assert figures["lds"]["value"] is None
    regression = (mine.margin * true[0].margin).sum() / np.square(mine.margin).sum()
    assert figures["slope"]["value"] == pytest.approx(regression)
    assert len(list(tmp_path.glob("*.safetensors"))) == 12


def test_the_audit_of_a_datamodel_with_the_wrong_sign_shows_negative_agreement(tmp_path):
    data = ddm.datasets.load("digits", limit=200)
    recipe = ddm.Recipe(epochs=4, lr=0.1, batch_size=32, momentum=0.9)
    target = ddm.train(ddm.networks.ConvNet(width=4, depth=1), data.train, recipe)
    right = ddm.DistilledDatamodel.fit(target, data.train, partition="class", steps=10)
    synset = replace(right.synset, step_sizes=-right.synset.step_sizes)
    wrong = ddm.DistilledDatamodel(
        target, right.partition, synset, None, right.settings, right.data, samples=right.samples
    )
    rho = [
        one.audit(data.test[:20], retrain=10, unions=0, directory=tmp_path, workers=1).figures[SAME]["rho"]
        for one in (right, wrong)
    ]
    assert rho[0]["value"] > 0.1
    assert rho[1]["value"] < -0.1
    assert rho[1]["high"] < rho[0]["value"]


def test_a_loaded_datamodel_is_audited_with_its_training_set(datamodel, digits, tmp_path, refused):
    datamodel.save(tmp_path / "run")
    loaded = ddm.load(tmp_path / "run")
    assert loaded.audited is None
    with refused("train="):
        loaded.audit(digits.test, retrain=2)
    with refused("another training set"):
        loaded.audit(digits.test, digits.validation, retrain=2)
    found = loaded.audit(digits.test[:5], digits.train, retrain=2, unions=0, workers=1)
    loaded.save(tmp_path / "run")
    assert ddm.load(tmp_path / "run").audited == found


@pytest.mark.parametrize("options", [{"retrain": 1}, {"seeds": 1}, {"unions": -1}])
def test_too_few_retrainings_are_refused(datamodel, digits, refused, options):
    with refused("at least 2 groups", "--retrain"):
        datamodel.audit(digits.test, **options)


def test_absurdly_many_workers_are_refused(datamodel, digits, refused):
    with refused("workers", "at most"):
        datamodel.audit(digits.test[:2], retrain=2, unions=0, workers=10**9)


def test_one_group_cannot_be_audited(target, digits, refused):
    one = ddm.DistilledDatamodel.fit(target, digits.train, partition=np.zeros(len(digits.train)), curvature=32, bank=4)
    with refused("at least 2 groups"):
        one.audit(digits.test)


@pytest.mark.filterwarnings("ignore:the synsets")  # of one step
def test_an_audit_of_few_groups_retrains_without_each_of_them(target, digits):
    two = ddm.DistilledDatamodel.fit(
        target, digits.train, partition=np.arange(len(digits.train)) % 2, curvature=32, bank=4
    )
    found = two.audit(digits.test[:5], retrain=9, unions=3, workers=1)
    assert found.groups == two.partition.names
    assert found.trainings == (1 + 2) * 2  # each union, half of two groups, is one of the single groups


def test_a_target_of_the_users_own_loop_is_audited_with_a_retraining_function(target, digits, refused):
    network = ddm.networks.ConvNet(width=4, depth=1)
    recipe = ddm.Recipe(epochs=1)
    recorder = ddm.Recorder(network)
    network.load_state_dict(ddm.train(network, digits.train, recipe).network.state_dict())
    recorder.snapshot()
    start = ddm.networks.ConvNet(width=4, depth=1)
    own = ddm.DistilledDatamodel.fit(recorder.target(), digits.train, partition="class", curvature=32, bank=4)
    with refused("loop of your own", "by="):
        own.audit(digits.test)
    asked = []

    def by(rows, order):
        asked.append((len(rows), order))
        return ddm.train(start, digits.train, replace(recipe, seed=order), without=rows).network

    assert own.audit(digits.test[:5], retrain=2, unions=0, by=by, workers=1).trainings == len(asked) == 6
    assert asked.count((0, 0)) == asked.count((0, 1)) == 1
