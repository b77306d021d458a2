"""Response matching: responses against closed forms, their encoding, and the resulting models."""

import itertools
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ddm
from ddm.counterfactual.counterfactuals import Counterfactuals
from ddm.counterfactual.displaced import Models
from ddm.curvature.damping import Damping
from ddm.curvature.gradients import jacobian, loss_gradient, output_gradients
from ddm.curvature.step_weights import StepWeights
from ddm.data.samples import Samples
from ddm.distil import Settings, distil
from ddm.distil.blocks import Block
from ddm.distil.response.encode import Encoder, Encoding
from ddm.distil.response.matching import ResponseMatching
from ddm.distil.response.solve import Responses
from ddm.distil.synset import Synset
from ddm.groups.partition import classwise, sequential

QUICK = Settings(curvature=512, checkpoints=4)


@pytest.fixture(scope="module")
def partition(digits):
    return sequential(digits.train, 2)


def synsets_of(*given):
    """The synsets of groups and of classes that a distillation makes."""
    found = distil(*given)
    return found.synset, found.class_synset


@pytest.fixture(scope="module")
def synsets(target, digits, partition):
    return synsets_of(target, digits.train, partition, QUICK)


def everything(partition):
    return Block(list(range(len(partition))), [])


def test_a_checkpoint_is_weighted_by_its_share_of_the_learning_rates_around_it(target):
    rates = target.trajectory.cumulative_rates
    weights = StepWeights(target, [0, 2, 6], None).uniform
    wanted = np.array([rates[2] / 2, rates[6] / 2, (rates[6] - rates[2]) / 2]) / rates[6]
    np.testing.assert_allclose(weights, wanted, rtol=1e-9)


@pytest.mark.parametrize("augment", ["none", "flip"])
def test_pulls_and_curvature_see_inputs_as_the_training_augmented_them(augment):
    x, y = torch.zeros(40, 1, 4, 4), torch.arange(40) % 2
    x[..., 0] = torch.randn(40, 1, 4)  # only the left edge has content, and flipped images have it at the right edge
    samples = Samples.from_arrays(x, y)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    target = ddm.train(network, samples, ddm.Recipe(epochs=2, lr=0.1, batch_size=10, augment=augment))
    responses = Responses(target, samples, Settings(curvature=40, checkpoints=2))
    right_edge = torch.arange(32) % 4 == 3
    for rows in (responses.pulls([np.arange(20)]), torch.cat(list(responses.curvature.rows.batches()))):
        assert bool(rows[:, :32][:, right_edge].any()) == (augment == "flip")


def test_a_pull_is_the_weighted_gradient_of_its_group(target, digits, partition):
    responses = Responses(target, digits.train, replace(QUICK, checkpoints=2))
    rows = partition.rows(3)
    wanted = sum(
        0.5 * len(rows) / len(digits.train) * loss_gradient(target, *target.at(t), *digits.train.batch(rows))
        for t in (0, 6)
    )
    torch.testing.assert_close(responses.pulls([rows])[0], wanted)


def test_the_samples_of_a_large_group_take_turns_at_the_checkpoints(target, digits, monkeypatch):
    monkeypatch.setattr("ddm.distil.response.pull._MIN_TURN", 64)
    responses, rows = Responses(target, digits.train, QUICK), np.arange(150)
    weights, wanted = responses.weights, torch.zeros(target.flat.size)
    for position, t in enumerate(responses.checkpoints):
        x, y = digits.train.batch(rows[position % 2 :: 2])
        wanted += weights.at(target, position) * loss_gradient(target, *target.at(t), x, y)
    torch.testing.assert_close(
        responses.pulls([rows])[0], len(rows) / len(digits.train) * wanted / weights.total(target)
    )


def test_a_large_group_is_represented_by_a_sample_of_its_rows(target, digits):
    responses = Responses(target, digits.train, replace(QUICK, samples=10))
    rows = np.arange(50)
    used = responses.used_rows(rows)
    assert len(used) == 10
    assert set(used) <= set(rows)
    assert np.array_equal(used, responses.used_rows(rows))
    assert np.array_equal(responses.used_rows(rows[:10]), rows[:10])
    share = responses.pulls([rows])[0] / len(rows)  # the sample has the weight of the complete group
    few = Responses(target, digits.train, QUICK).pulls([used])[0] / len(used)
    torch.testing.assert_close(share, few)


def test_the_unscaled_response_of_a_class_is_the_sum_of_its_clusters_unscaled_responses(target, digits, partition):
    work = ResponseMatching(target, digits.train, QUICK)
    upper = partition.by_class()
    members = [partition.rows(k) for k in range(len(partition))]
    parts = work.responses.curvature.solve(work.responses.pulls(members))
    whole = work.responses.curvature.solve(work.responses.pulls([upper.rows(k) for k in range(len(upper))]))
    sums = torch.stack([parts[np.asarray(partition.parents) == k].sum(0) for k in range(len(upper))])
    torch.testing.assert_close(whole, sums, rtol=1e-3, atol=1e-4)


def test_a_linear_model_responds_as_ridge_regression_without_the_group(monkeypatch):
    """With squared loss, one checkpoint and groups of equal curvature, the response has a closed form."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 6, generator=generator)
    y = (x @ torch.randn(6, 2, generator=generator)).argmax(1)
    samples = Samples.from_dataset(torch.utils.data.TensorDataset(x, y))
    network = nn.Linear(6, 2, bias=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    recorder = ddm.Recorder(network, optimizer)

    def squared(logits, labels):
        return 0.5 * (logits - F.one_hot(labels, 2).to(logits)).square().sum(1).mean()

    for _ in range(400):
        optimizer.zero_grad()
        squared(network(x), y).backward()
        optimizer.step()
    target = recorder.target(loss=squared)
    assert target.trajectory.cumulative_rates[-1] == pytest.approx(200.0)
    settings = replace(QUICK, checkpoints=2, curvature=200_000)
    groups = sequential(samples, 4)
    monkeypatch.setattr("ddm.distil.response.solve.real_checkpoints", lambda *_: [1])  # at the optimum it is exact
    work = ResponseMatching(target, samples, settings)
    found = work.responses_of(groups, None, everything(groups))
    for group in range(len(groups)):
        rows = groups.rows(group)
        kept = np.setdiff1d(np.arange(len(x)), rows)
        best = torch.linalg.solve(x[kept].T @ x[kept], x[kept].T @ F.one_hot(y, 2).float()[kept]).T.flatten()
        move = best - target.theta
        cosine = float(F.cosine_similarity(found[group], move, dim=0))
        assert cosine > 0.9
        assert float(found[group].norm() / move.norm()) == pytest.approx(1.0, abs=0.35)


def test_a_response_leaves_the_curvature_of_its_group_out(target, digits, partition):
    responses = Responses(target, digits.train, replace(QUICK, curvature=2048))
    members = [partition.rows(k) for k in range(len(partition))]
    pulls = responses.pulls(members)
    responses.choose_damping(pulls)
    found, own = responses.without_own(pulls, members)
    curvature = responses.curvature
    rows = torch.cat(list(curvature.rows.batches()))
    others = rows[~np.isin(curvature.rows.positions.numpy(), members[3])]
    pushed = others.T @ (others @ found[3]) + curvature.scale * curvature.damping * found[3]
    torch.testing.assert_close(pushed, pulls[3], rtol=0.02, atol=0.02 * float(pulls[3].abs().max()))
    assert ((own > 0) & (own < 1)).all()
    longer = (found * pulls).sum(1) / (curvature.solve(pulls) * pulls).sum(1)
    torch.testing.assert_close(own, 1 - 1 / longer)


def test_the_settings_can_fix_the_damping(target, digits, partition):
    rows = [partition.rows(3)]
    responses = Responses(target, digits.train, replace(QUICK, damping=30.0))
    pulls = responses.pulls(rows)
    assert responses.choose_damping(pulls) == Damping(30.0)
    residual = responses.curvature.solve(pulls) * 30 * responses.curvature.damping
    for batch in responses.curvature.rows.batches():
        residual += (responses.curvature.solve(pulls) @ batch.T) @ batch
    torch.testing.assert_close(residual, pulls, rtol=1e-3, atol=1e-3 * float(pulls.abs().max()))


def test_a_synset_says_how_its_damping_was_chosen(synsets, tmp_path):
    clusters, classes = synsets
    for kind in ("gain at ", "missed at "):
        tried = [float(name.removeprefix(kind)) for name in clusters.damping if name.startswith(kind)]
        assert min(tried) <= clusters.damping["scale"] <= max(tried)
    assert classes.damping == clusters.damping
    clusters.save(tmp_path / "synset.safetensors")
    assert Synset.load(tmp_path / "synset.safetensors").damping == clusters.damping


def test_encoding_errors_shrink_with_the_bank_and_are_measured_on_unseen_inputs(target, digits, partition):
    work = ResponseMatching(target, digits.train, QUICK)
    found = work.responses_of(partition, None, everything(partition))
    errors = []
    for bank in (4, 64):
        encoder = Encoder(target, digits.train, replace(QUICK, bank=bank))
        images, encoding = encoder.choose(found)
        assert len(images) == bank
        errors.append(float(encoding.error.mean()))
    assert errors[1] < 0.1
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("count", [2, 20, 300])
def test_the_encoding_is_validated_on_inputs_that_it_was_not_fitted_to(target, digits, monkeypatch, count):
    encoder = Encoder(target, digits.train[:count], replace(QUICK, bank=4))
    seen = []
    batch = Samples.batch

    def watched(samples, rows):
        seen.extend(rows.tolist())
        return batch(samples, rows)

    monkeypatch.setattr(Samples, "batch", watched)
    rows = sum(len(part) for part in encoder.metric.batches())
    assert rows == len(seen) == len(encoder.metric)
    fitted, checked = set(seen[: encoder.references]), set(seen[encoder.references :])
    assert checked
    assert fitted
    assert not fitted & checked
    assert fitted | checked == set(range(count))


def test_a_bank_built_in_slices_encodes_like_one_that_fits_the_memory(target, digits, partition):
    work = ResponseMatching(target, digits.train, QUICK)
    found = work.responses_of(partition, None, everything(partition))
    encoders = [Encoder(target, digits.train, replace(QUICK, bank=32, memory=memory)) for memory in (1.0, 1e-3)]
    assert [len(encoder.slices(32)) > 1 for encoder in encoders] == [False, True]
    (images, whole), (_, sliced) = (encoder.choose(found) for encoder in encoders)
    torch.testing.assert_close(sliced.residuals, whole.residuals, rtol=1e-3, atol=1e-3 * float(whole.residuals.max()))
    later = encoders[1].encode(images, found[4:6])
    torch.testing.assert_close(later.residuals, sliced.residuals[4:6], rtol=1e-3, atol=1e-6)


def test_merged_slices_of_rows_do_not_keep_complete_rows_in_memory(target, digits, partition, monkeypatch):
    found = ResponseMatching(target, digits.train, QUICK).responses_of(partition, None, everything(partition))
    encoder = Encoder(target, digits.train, replace(QUICK, bank=32, memory=1e-3))
    held = []

    def merge_rows(parts, least):
        for part in parts:
            held.append(part.untyped_storage().nbytes() - part.nbytes)
            yield part

    monkeypatch.setattr("ddm.distil.response.encode.merge_rows", merge_rows)
    encoder.choose(found)
    assert set(held) == {0}


def test_a_bank_that_does_not_fit_the_memory_does_not_grow(target, digits, partition):
    found = ResponseMatching(target, digits.train, QUICK).responses_of(partition, None, everything(partition))
    strict = replace(QUICK, tolerance=1e-6)
    sizes = [len(Encoder(target, digits.train, replace(strict, memory=m)).choose(found)[0]) for m in (1.0, 1e-3)]
    assert sizes[0] > sizes[1]


def test_rows_computed_one_by_one_agree_with_rows_computed_together(target, digits, monkeypatch):
    x, vectors = digits.train.batch(range(3))[0], torch.randn(3, 2, 10, generator=torch.Generator().manual_seed(0))
    together = output_gradients(target, target.theta, target.fixed, x, vectors)
    whole = jacobian(target, target.theta, target.fixed, x[:1])
    monkeypatch.setattr("ddm.curvature.gradients._TOGETHER", 1)
    alone = output_gradients(target, target.theta, target.fixed, x, vectors)
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(jacobian(target, target.theta, target.fixed, x[:1]), whole, rtol=1e-4, atol=1e-5)


def test_removing_a_group_takes_one_gradient_step_on_its_synset(target, digits, synsets):
    synset, _ = synsets
    models = Counterfactuals(target, synset)
    loss = F.cross_entropy(
        target.flat(theta := target.theta.clone().requires_grad_(), target.fixed, synset.images[0]), synset.targets[5]
    )
    step = -synset.step_sizes[5] * torch.autograd.grad(loss, theta)[0]
    scale = float(step.abs().max())
    torch.testing.assert_close(models.directions(None)[5], step, rtol=1e-3, atol=1e-3 * scale)
    alone = Counterfactuals(target, synset).parameters(np.eye(len(synset), dtype=bool)[5:6])[0] - target.theta
    torch.testing.assert_close(alone, step, rtol=1e-3, atol=1e-3 * scale)


def test_targets_sum_to_one_and_images_are_not_training_samples(synsets, digits):
    synset, _ = synsets
    torch.testing.assert_close(synset.targets.sum(-1), torch.ones(synset.targets.shape[:2]), atol=1e-4, rtol=0)
    x = digits.train.batch()[0].flatten(1)
    x = x - x.mean(1, keepdim=True)
    images = synset.images[0].flatten(1)
    images = images - images.mean(1, keepdim=True)
    cosines = F.normalize(images) @ F.normalize(x).T
    assert float(cosines.abs().max()) < 0.7


def test_the_bank_can_consist_of_real_images(target, digits, partition):
    synset, _ = synsets_of(target, digits.train, partition, replace(QUICK, init="real", bank=20))
    x = digits.train.batch()[0]
    assert all(any(torch.equal(image, sample) for sample in x) for image in synset.images[0])


def test_a_synset_survives_saving(tmp_path, target, digits, synsets):
    synset, upper = synsets
    synset.save(tmp_path / "synset.safetensors")
    again = Synset.load(tmp_path / "synset.safetensors")
    assert again.shared
    torch.testing.assert_close(again.targets, synset.targets)
    removed = np.eye(len(synset), dtype=bool)[:3]
    found, wanted = (Counterfactuals(target, one).parameters(removed) for one in (again, synset))
    torch.testing.assert_close(found, wanted)
    assert upper.shared


@pytest.mark.slow
def test_smaller_blocks_give_nearly_the_same_models(target, digits, partition, synsets, tmp_path):
    # The damping is fixed, because blocks choose it by four groups only.
    few = replace(QUICK, memory=13 * 6 * target.flat.size * 4 / 2**30, bank=synsets[0].images.shape[1], damping=1.0)
    whole, upper = synsets_of(target, digits.train, partition, replace(few, memory=2.0))
    parts, classes = synsets_of(target, digits.train, partition, few, tmp_path)
    assert len(list(tmp_path.glob("*-cluster.safetensors"))) > 1
    x = digits.test.batch(slice(0, 20))[0]
    for one, other in ((whole, parts), (upper, classes)):
        removed = np.eye(len(one), dtype=bool)
        found, wanted = (Counterfactuals(target, s).outputs(removed, x) - target.outputs(x) for s in (other, one))
        assert float((found - wanted).norm() / wanted.norm()) < 0.05


def test_a_killed_matching_resumes_to_the_same_synset(target, digits, partition, tmp_path, monkeypatch):
    few = replace(QUICK, memory=13 * 6 * target.flat.size * 4 / 2**30, bank=20)
    wanted, _ = synsets_of(target, digits.train, partition, few)
    pulls, calls = Responses.pulls, []

    def dying(self, members, advance=lambda amount: None):
        calls.append(len(members))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return pulls(self, members, advance)

    monkeypatch.setattr(Responses, "pulls", dying)
    with pytest.raises(KeyboardInterrupt):
        distil(target, digits.train, partition, few, tmp_path)
    monkeypatch.undo()
    found, _ = synsets_of(target, digits.train, partition, few, tmp_path)
    assert torch.equal(found.targets, wanted.targets)
    assert torch.equal(found.images, wanted.images)


def test_only_the_synset_of_classes_closes_outputs_if_groups_are_classes(target, digits):
    synset, upper = synsets_of(target, digits.train, classwise(digits.train), QUICK)
    assert synset.names == upper.names
    x, y = digits.train.batch()
    everyone = np.eye(10, dtype=bool)
    first, closed = (Counterfactuals(target, each).outputs(everyone, x).softmax(2) for each in (synset, upper))
    first, closed = (torch.cat([each[k, y == k, k] for k in range(10)]) for each in (first, closed))
    assert closed.max() < 0.05 < first.max()


def test_the_fast_path_agrees_with_models_if_steps_are_small(target, digits, synsets):
    synset, _ = synsets
    models = Counterfactuals(target, synset)
    x = digits.test.batch(slice(0, 10))[0]
    removed = np.eye(len(synset), dtype=bool)
    base, apart = target.outputs(x), []
    for scale in (0.01, 0.1):
        small = Models(target, scale * models.directions(None))
        exact, fast = small.outputs(removed, x) - base, small.outputs(removed, x, fast=True) - base
        apart.append(float((exact - fast).norm() / exact.norm()))
    assert apart[0] < 0.05
    assert apart[0] < apart[1] / 2  # the error is of second order, so a tenth is expected, apart from rounding


def test_the_fast_path_adds_up_over_unions(target, digits, synsets):
    models = Counterfactuals(target, synsets[0])
    x = digits.test.batch(slice(0, 4))[0]
    removed = np.zeros((3, len(synsets[0])), dtype=bool)
    removed[0, 1] = removed[1, 4] = removed[2, [1, 4]] = True
    one, other, both = models.outputs(removed, x, fast=True) - target.outputs(x)
    torch.testing.assert_close(one + other, both, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("loss", ["smoothed", "squared"])
def test_the_user_may_choose_the_loss(digits, loss):
    losses = {
        "smoothed": lambda logits, y: F.cross_entropy(logits, y, label_smoothing=0.1),
        "squared": lambda logits, y: (logits - F.one_hot(y, 10).to(logits)).square().mean(),
    }
    network = ddm.networks.ConvNet(digits.train.shape, 10, width=4, depth=1)
    target = ddm.train(network, digits.train, ddm.Recipe(epochs=2, lr=0.05), loss=losses[loss])
    datamodel = ddm.DistilledDatamodel.fit(target, digits.train, clusters=1, curvature=256, checkpoints=2)
    x, y = digits.test.batch(slice(0, 50))
    zeros = datamodel.counterfactual(["0"])(x)[y == 0, 0] - target.outputs(x)[y == 0, 0]
    assert float(zeros.mean()) < 0  # without zeros the network is less sure of them


@pytest.mark.parametrize("name", ["simplevit", pytest.param("resnet18ap", marks=pytest.mark.slow), "batchnorm", "tanh"])
def test_any_differentiable_network_can_be_distilled(digits, name):
    networks = {
        "simplevit": lambda: ddm.networks.SimpleViT((1, 8, 8), 10, dim=16, depth=1, heads=2, patch=4),
        "resnet18ap": lambda: ddm.networks.ResNet18AP((1, 8, 8), 10, width=4),
        "batchnorm": lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
        ),
        "tanh": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10)),
    }
    torch.manual_seed(0)
    target = ddm.train(networks[name](), digits.train, ddm.Recipe(epochs=3, lr=0.05, batch_size=32))
    settings = {"curvature": 200, "checkpoints": 2, "bank": 30}
    datamodel = ddm.DistilledDatamodel.fit(target, digits.train, partition="class", **settings)
    assert float(datamodel.synset.error.mean()) < 0.5
    x, y = digits.test.batch(slice(0, 60))
    base = F.cross_entropy(target.outputs(x)[y == 3], y[y == 3])
    without = F.cross_entropy(datamodel.counterfactual(["3"])(x)[y == 3], y[y == 3])
    assert without > base


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": "hard"}, ["labels"]),
        ({"step_size": 0.1}, ["step_size"]),
        ({"finetune_steps": 3}, ["finetune_steps"]),
        ({"tolerance": 0.0}, ["tolerance"]),
        ({"bank": 0}, ["bank"]),
        ({"curvature": 0}, ["curvature"]),
        ({"samples": 0}, ["samples"]),
    ],
)
def test_invalid_settings_are_refused(refused, changes, words):
    with refused(*words):
        Settings(**changes)


def test_a_bank_grows_by_at_least_a_tenth(target, digits, monkeypatch):
    """Each enlargement encodes all images again, so enlarging by one image costs as much as all of them."""
    encoder, counts = Encoder(target, digits.train, replace(QUICK, bank=None)), []

    def useless(encoder, images, responses, advance):
        counts.append(len(images))
        return Encoding(torch.zeros(1), torch.zeros(1))

    monkeypatch.setattr(Encoder, "encode", useless)
    encoder.choose(torch.zeros(1, target.flat.size))
    assert len(counts) > 1
    assert all(later >= 1.1 * earlier for earlier, later in itertools.pairwise(counts))


def test_a_network_of_which_the_rows_see_hardly_anything_is_warned_of(target, digits, partition):
    for rows, rough in ((2, True), (1024, False)):
        responses = Responses(target, digits.train, replace(QUICK, curvature=rows))
        pulls = responses.pulls([partition.rows(k) for k in range(len(partition))])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            responses.choose_damping(pulls)
        assert any("too few rows" in str(one.message) for one in caught) == rough
