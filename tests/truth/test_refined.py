"""A refined datamodel of digits: what retraining showed is answered, by whatever way the retrainings were made."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import ddm
from ddm.networks.weighted_sum import WeightedSum
from ddm.truth import refined
from ddm.truth.evidence import Evidence
from ddm.truth.retraining import Retraining, group_rows

RECIPE = ddm.Recipe(epochs=2, batch_size=32, lr=0.1, momentum=0.9)
QUICK = {"curvature": 256, "checkpoints": 2, "synset": False}
COUNT = 10


def make_datamodel(samples, **options):
    network = ddm.networks.ConvNet(samples.shape, 10, width=4, depth=1, **options)
    target = ddm.train(network, samples, RECIPE)
    return ddm.DistilledDatamodel.fit(target, samples, partition="sequence", clusters=2, engine="serial", **QUICK)


@pytest.fixture(scope="module")
def data():
    return ddm.datasets.load("digits", limit=160)


@pytest.fixture(scope="module")
def plain(data):
    """A datamodel of 20 groups without evidence. Tests copy it before they refine it."""
    return make_datamodel(data.train)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("retrained")


@pytest.fixture(scope="module")
def refined_datamodel(plain, folder):
    dm = copy.copy(plain)
    dm.refine(COUNT, directory=folder, engine="serial")
    return dm


@pytest.fixture
def x(data):
    return data.test.batch(slice(0, 12))[0]


def outputs(network, x):
    with torch.no_grad():
        return network(x)


def same_evidence(one, other):
    """True if both have the same networks bit for bit."""
    return (
        one.keys == other.keys
        and torch.equal(one.theta, other.theta)
        and all(torch.equal(tensor, other.fixed[name]) for name, tensor in one.fixed.items())
        and one.spread == other.spread
    )


def learn(dm, requests, folder):
    """Refine by these retrainings."""
    removed, orders = (np.array(part) for part in zip(*requests, strict=True))
    retraining = Retraining(dm.target, dm.samples, folder, engine="serial")
    dm._learn(retraining, removed, orders)


def singles_of(dm):
    return dm.evidence.removed[(dm.evidence.removed.sum(1) == 1) & (dm.evidence.orders == 0)]


# --- answers ---


def test_a_group_that_was_left_out_alone_has_the_outputs_of_the_retrained_network(refined_datamodel, folder, x):
    dm = refined_datamodel
    singles = singles_of(dm)
    assert len(singles) == 3
    retraining = Retraining(dm.target, dm.samples, folder, engine="serial")
    true = retraining.outputs(group_rows(dm.partition, singles), 0, x)
    torch.testing.assert_close(dm.outputs(x, singles), true, rtol=1e-4, atol=1e-4)
    unrefined = dm._unrefined[0].outputs(singles, x)
    assert float((unrefined - true).abs().max()) > 0.01  # so the test can fail


def questions(dm):
    """Perturbations: a group left out alone, one never left out alone, a union, weights, and nothing."""
    count = len(dm.partition)
    never = int(np.flatnonzero(~dm.evidence.alone)[0])
    weights = np.zeros(count)
    weights[[0, 5]] = 0.5, -1.0
    masks = [singles_of(dm)[0], np.eye(count, dtype=bool)[never], dm.partition.mask([1, 8, 14]), np.zeros(count)]
    return np.array([*masks, weights], dtype=float)


def test_a_counterfactual_network_has_the_outputs_of_the_datamodel(refined_datamodel, x):
    for row in questions(refined_datamodel):
        network = refined_datamodel.models.network(row)
        assert isinstance(network, WeightedSum)
        found = refined_datamodel.outputs(x, row[None])[0]
        torch.testing.assert_close(outputs(network, x), found, rtol=1e-4, atol=1e-4)


def test_counterfactuals_by_name_and_by_weight_are_refined_and_can_be_saved(refined_datamodel, x, tmp_path):
    dm = refined_datamodel
    names = dm.partition.names
    removed, weighted = dm.counterfactual([names[1], names[8]]), dm.counterfactual(weights={names[0]: 0.5})
    expected = dm.outputs(x, np.array([dm.partition.mask([1, 8]), 0.5 * dm.partition.mask(0)]))
    for network, wanted in zip((removed, weighted), expected, strict=True):
        torch.testing.assert_close(outputs(network, x), wanted, rtol=1e-4, atol=1e-4)
        ddm.networks.save(network, tmp_path / "network.safetensors")
        assert torch.equal(outputs(ddm.networks.load(tmp_path / "network.safetensors"), x), outputs(network, x))


def test_the_target_stays_as_it_is(refined_datamodel, x):
    dm = refined_datamodel
    nothing = np.zeros((0, len(dm.partition)), dtype=bool)
    for rows in (nothing, np.eye(len(dm.partition), dtype=bool)):
        first = torch.cat(list(dm.models.stacks(rows, x)))
        assert len(first) == 1 + len(rows)
        torch.testing.assert_close(first[0], dm.target.outputs(x))


def test_a_whole_class_of_several_groups_is_not_corrected(refined_datamodel, x):
    dm = refined_datamodel
    whole = dm.partition.parents == 3
    assert whole.sum() == 2
    prior = dm._unrefined[0].outputs(whole[None], x)
    torch.testing.assert_close(dm.outputs(x, whole[None]), prior)
    assert np.isnan(dm.models.variances(whole[None])).all()
    part = dm.partition.mask(int(np.flatnonzero(whole)[0]))[None]
    assert not torch.allclose(dm.outputs(x, part), dm._unrefined[0].outputs(part, x), atol=1e-4)


def test_inputs_that_are_changed_in_place_are_a_new_question(refined_datamodel, x):
    before = refined_datamodel.outputs(x)
    x += 1
    changed = refined_datamodel.outputs(x)
    assert not torch.allclose(before, changed)
    assert torch.equal(changed, refined_datamodel.outputs(x.clone()))


@pytest.mark.parametrize("fast", [False, True])
def test_logits_that_are_too_large_to_remember_give_the_same_answers(refined_datamodel, x, fast, monkeypatch):
    rows = questions(refined_datamodel)
    expected = refined_datamodel.models.outputs(rows, x, fast=fast)
    refined_datamodel.models.residuals._last = None
    monkeypatch.setattr(refined, "_KEPT", 0)
    torch.testing.assert_close(refined_datamodel.models.outputs(rows, x, fast=fast), expected, rtol=1e-4, atol=1e-5)
    refined_datamodel.models.residuals._last = None


def test_every_question_can_be_asked_after_refine(refined_datamodel, data):
    dm, sample = refined_datamodel, data.test.batch(slice(0, 5))
    for general in (False, True):
        found = dm.attribute(sample, "loss", general=general)
        assert found.has_intervals
        assert (found.low <= found.matrix).all()
        assert (found.matrix <= found.high).all()
    alone = dm.attribute(sample, "loss")
    known = singles_of(dm).any(0)
    assert np.allclose(alone.low[known], alone.high[known])  # retrained, so known
    assert (alone.low[~known] < alone.high[~known]).all()
    assert "too few to be sure" in alone.basis
    np.testing.assert_array_equal(dm.trace(sample, full=True).clusters.matrix, dm.attribute(sample).matrix)
    assert dm.trace(sample).clusters.has_intervals
    shares = dm.shares(sample, 0, "loss")
    assert shares.values.sum() == pytest.approx(shares.effect, rel=1e-4)
    assert np.isfinite(dm.diagnose(data.validation).effects["f1"]).all()


def test_threads_get_the_answers_that_one_thread_gets(refined_datamodel, data):
    asked = [data.test.batch(slice(i, i + 1 + i % 6)) for i in range(6)]

    def ask(number):
        found = refined_datamodel.attribute(asked[number], "loss")
        return np.stack([found.matrix, found.low, found.high])

    expected = [ask(number) for number in range(6)]
    order = np.random.default_rng(0).integers(6, size=60)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(ask, order))
    assert all(np.array_equal(one, expected[number]) for one, number in zip(found, order, strict=True))


def test_a_refined_datamodel_can_be_pickled(refined_datamodel, x):
    again = pickle.loads(pickle.dumps(refined_datamodel))
    torch.testing.assert_close(again.outputs(x), refined_datamodel.outputs(x))


# --- equivalences ---


def test_the_order_of_retrainings_and_their_number_at_a_time_do_not_matter(plain, refined_datamodel, folder, x):
    made = refined_datamodel.evidence
    requests = [(made.removed[i], int(made.orders[i])) for i in made.trials]
    found = []
    for parts in ([requests], [requests[::-1]], [requests[:5], requests[5:]], [requests[7:], requests[:7]]):
        dm = copy.copy(plain)
        for part in parts:
            learn(dm, part, folder)
        assert len(dm.evidence) == COUNT
        found.append(dm)
    for dm in found[1:]:
        for name, value in found[0].evidence.spread.to_dict().items():
            assert dm.evidence.spread.to_dict()[name] == pytest.approx(value, rel=1e-3)
        torch.testing.assert_close(dm.outputs(x), found[0].outputs(x), rtol=1e-3, atol=1e-4)


def test_a_refinement_that_was_killed_halfway_resumes_to_the_same_bits(plain, refined_datamodel, folder, tmp_path):
    stored = sorted(folder.glob("*.safetensors"))
    for path in stored[::2]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert 0 < len(kept) < COUNT
    dm = copy.copy(plain)
    dm.refine(COUNT, directory=tmp_path, engine="serial")
    assert same_evidence(dm.evidence, refined_datamodel.evidence)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.slow
def test_processes_give_the_same_bits(plain, refined_datamodel):
    dm = copy.copy(plain)
    dm.refine(COUNT, workers=2, engine="processes")
    assert same_evidence(dm.evidence, refined_datamodel.evidence)


def test_refining_again_adds_retrainings(refined_datamodel, tmp_path):
    dm = copy.copy(refined_datamodel)
    found = dm.refine(3, directory=tmp_path, engine="serial")
    assert found.retrained == COUNT + 3
    assert (found.singles, found.unions, found.bases) == (1, 2, 0)
    assert dm.evidence.keys[: COUNT + 1] == refined_datamodel.evidence.keys


def test_evidence_from_a_file_gives_the_same_answers(refined_datamodel, plain, x, tmp_path):
    refined_datamodel.evidence.save(tmp_path / "evidence.safetensors")
    dm = copy.copy(plain)
    dm._use(Evidence.load(tmp_path / "evidence.safetensors"))
    assert torch.equal(dm.outputs(x), refined_datamodel.outputs(x))


# --- other targets ---


def test_evidence_of_another_target_is_refused(refined_datamodel, data, refused):
    other = make_datamodel(data.train, seed=1)
    with refused("the evidence was retrained for another training of the same network"):
        other._use(refined_datamodel.evidence)


def test_evidence_of_another_precision_is_refused(refined_datamodel, plain, refused):
    evidence = refined_datamodel.evidence._rows(np.arange(3))
    object.__setattr__(evidence, "theta", evidence.theta.double())
    with refused("other networks"):
        copy.copy(plain)._use(evidence)


def test_a_network_with_running_statistics_uses_those_of_each_retrained_network(data, x, tmp_path):
    dm = make_datamodel(data.train, norm="batch")
    dm.refine(4, directory=tmp_path, engine="serial")
    single = singles_of(dm)[:1]
    retraining = Retraining(dm.target, dm.samples, tmp_path, engine="serial")
    true = retraining.outputs(group_rows(dm.partition, single), 0, x)
    torch.testing.assert_close(dm.outputs(x, single), true, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(outputs(dm.models.network(single[0]), x), true[0], rtol=1e-3, atol=1e-3)
    base = dm.evidence.fixed["blocks.0.1.running_mean"]
    assert not torch.equal(base[0], base[1])


def test_a_loop_of_the_users_own_refines_through_by(data, x):
    samples = data.train

    def loop(rows, order):
        network = ddm.networks.ConvNet(samples.shape, 10, width=4, depth=1)
        return train(network, np.setdiff1d(np.arange(len(samples)), rows), order)

    def train(network, rows, order, recorder=None):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for epoch in range(2):
            for part in np.array_split(np.random.default_rng([order, epoch]).permutation(rows), 4):
                inputs, labels = samples.batch(part)
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(network(inputs), labels).backward()
                optimizer.step()
            if recorder is not None:
                recorder.snapshot()
        return network

    network = ddm.networks.ConvNet(samples.shape, 10, width=4, depth=1)
    recorder = ddm.Recorder(network)
    recorder.snapshot()
    train(network, np.arange(len(samples)), 0, recorder)
    dm = ddm.DistilledDatamodel.fit(
        recorder.target(), samples, partition="sequence", clusters=2, engine="serial", **QUICK
    )
    dm.refine(4, by=loop, workers=1)
    single = singles_of(dm)[:1]
    (rows,) = group_rows(dm.partition, single)
    torch.testing.assert_close(dm.outputs(x, single)[0], outputs(loop(rows, 0).eval(), x), rtol=1e-3, atol=1e-3)
