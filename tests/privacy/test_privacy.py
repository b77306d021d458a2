"""Privacy measures against plain implementations and known values, gradient clipping, and private synsets."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

import ddm
import ddm.distil.response.solve
import ddm.groups.partition
from ddm import bench
from ddm.bench.privacy import Attack
from ddm.bench.problem import Problem
from ddm.bench.small import SIZES, SmallGroups, guess_pulls, small_partition
from ddm.curvature import clipping
from ddm.curvature.gradients import group_gradients, loss_gradient
from ddm.curvature.step_weights import StepWeights
from ddm.distil import Settings, distil, private
from ddm.distil.gradient.start import draw_members
from ddm.distil.response.pull import GroupSamples, group_pulls
from ddm.privacy import distances, membership
from ddm.privacy.reconstruction import invert_gradients, total_variation
from ddm.runs.config import Config


@pytest.fixture
def images():
    return torch.rand(5, 3, 9, 8, generator=torch.Generator().manual_seed(0))


# --- distances ---


def plain_ssim(a, b):
    """SSIM of a pair of images, window by window."""
    values = []
    for channel in range(a.shape[0]):
        for top in range(a.shape[1] - 6):
            for left in range(a.shape[2] - 6):
                x = a[channel, top : top + 7, left : left + 7].double().numpy().ravel()
                y = b[channel, top : top + 7, left : left + 7].double().numpy().ravel()
                both = np.cov(x, y)
                upper = (2 * x.mean() * y.mean() + 1e-4) * (2 * both[0, 1] + 9e-4)
                lower = (x.mean() ** 2 + y.mean() ** 2 + 1e-4) * (both[0, 0] + both[1, 1] + 9e-4)
                values.append(upper / lower)
    return np.mean(values)


def test_ssim_matches_a_window_by_window_implementation(images):
    found = distances.ssim(images[:2], images[2:])
    expected = [[plain_ssim(a, b) for b in images[2:]] for a in images[:2]]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_ssim_of_constant_images_depends_only_on_brightness():
    found = distances.ssim(torch.full((1, 1, 8, 8), 0.2), torch.full((1, 1, 8, 8), 0.6))
    assert float(found) == pytest.approx((2 * 0.2 * 0.6 + 1e-4) / (0.2**2 + 0.6**2 + 1e-4), rel=1e-3)
    assert float(distances.ssim(torch.rand(1, 1, 1, 1), torch.rand(1, 1, 1, 1))) <= 1


def test_an_image_is_its_own_nearest_neighbour_at_distance_zero(images):
    for measure in (distances.rms_distance, distances.ssim_distance):
        found = distances.find_nearest(images[[3, 1]], images, measure)
        assert found.row.tolist() == [3, 1]
        np.testing.assert_allclose(found.distance, 0, atol=1e-6)


def test_nearest_neighbours_do_not_depend_on_the_batch_size(images, monkeypatch):
    queries = torch.rand(7, 3, 9, 8, generator=torch.Generator().manual_seed(1))
    for measure in (distances.rms_distance, distances.ssim_distance):
        monkeypatch.setattr(distances, "_BATCH", 3)
        found = distances.find_nearest(queries, images, measure)
        for i, query in enumerate(queries):
            distance, row = measure(query[None], images)[0].min(0)
            assert (found.row[i], found.distance[i]) == (int(row), pytest.approx(float(distance), rel=1e-6))


def test_a_difference_of_a_tenth_of_the_range_is_20_db():
    flat = torch.full((1, 1, 4, 4), 0.3)
    assert float(distances.rms_distance(flat, flat + 0.1)) == pytest.approx(0.1, rel=1e-5)
    assert float(distances.psnr(flat, flat + 0.1)) == pytest.approx(20, rel=1e-4)
    assert float(distances.psnr(flat, flat)) == 99


def test_to_images_recovers_stored_images_and_clamps_other_values(digits):
    shown = distances.to_images(digits.train, digits.train.batch([0, 1])[0])
    stored = digits.train.raw[:2].float()
    torch.testing.assert_close(shown, stored / (255 if digits.train.raw.dtype == torch.uint8 else stored.max()))
    beyond = distances.to_images(digits.train, torch.full((1, *digits.train.shape), 1e3))
    assert beyond.max() == 1


# --- membership ---


def test_auc_counts_ordered_pairs_and_half_of_the_ties():
    assert membership.auc(np.array([3.0, 1.0]), np.array([2.0, 1.0])) == (1 + 1 + 0 + 0.5) / 4
    rng = np.random.default_rng(0)
    scores, member = rng.integers(0, 9, 200).astype(float), rng.random(200) < 0.4
    assert membership.auc(scores[member], scores[~member]) == pytest.approx(roc_auc_score(member, scores))


def test_true_positive_rate_uses_the_threshold_of_one_percent_false_positives():
    others = np.arange(100.0)
    assert membership.true_positive_rate(np.array([98.0, 98.5, 99.5, 3.0]), others) == 0.5
    assert membership.true_positive_rate(others, others) == 0.01


def test_an_attack_with_random_scores_is_at_chance_within_its_standard_error(monkeypatch):
    monkeypatch.setattr(membership, "_DRAWS", 10)
    member, rng = np.repeat([True, False], 60), np.random.default_rng(0)
    found = [
        membership.attack_membership({name: rng.normal(size=120) for name in ("one", "two")}, member) for _ in range(25)
    ]
    areas, errors = np.array([each.auc for each in found]), np.array([each.error for each in found])
    assert abs(areas.mean() - 0.5) < 2 * areas.std() / len(areas) ** 0.5
    assert areas.std() < 1.2 * errors.mean() < 2 * areas.std()


def test_an_attack_gains_from_informative_scores_and_not_from_noise(monkeypatch):
    monkeypatch.setattr(membership, "_DRAWS", 25)
    rng = np.random.default_rng(0)
    member = np.repeat([True, False], 400)
    model = {"loss": member + rng.normal(size=800)}
    other = {"more": member + rng.normal(size=800)}
    alone, both = membership.attack_membership(model, member), membership.attack_membership(model | other, member)
    assert alone.auc == pytest.approx(roc_auc_score(member, model["loss"]), abs=0.01)
    gain, error = both.gain_over(alone)
    assert gain == pytest.approx(both.auc - alone.auc)
    assert gain > 3 * error > 0
    assert both.true_positive_rate > alone.true_positive_rate > 0.02
    noisy = membership.attack_membership(model | {"noise": rng.normal(size=800)}, member)
    gain, error = noisy.gain_over(alone)
    assert abs(gain) < min(0.02, 2 * error)


def pixel_distance_auc(digits, images):
    """Membership AUC of 100 training against 100 test images, by pixel distance to the nearest of some images."""
    x = torch.cat([digits.train.batch(np.arange(100))[0], digits.test.batch(np.arange(100))[0]])
    near = distances.find_nearest(x, images, distances.rms_distance).distance
    return membership.auc(-near[:100], -near[100:])


def test_a_synset_of_training_images_reveals_its_members_and_noise_does_not(digits):
    assert pixel_distance_auc(digits, digits.train.batch(np.arange(100))[0]) > 0.99
    noise = torch.randn(40, *digits.train.shape, generator=torch.Generator().manual_seed(0))
    assert abs(pixel_distance_auc(digits, noise) - 0.5) < 0.1


def test_synsets_that_start_from_training_images_lead_back_to_them(target, digits):
    partition = ddm.groups.partition.classwise(digits.train)
    settings = Settings(matching="reverse", steps=0)
    synset = distil(target, digits.train, partition, settings).synset
    starts = np.concatenate(
        [draw_members(partition.rows(k), name, settings)[0] for k, name in enumerate(partition.names)]
    )
    found = distances.find_nearest(synset.images[:, 0], digits.train.batch()[0], distances.rms_distance)
    assert found.row.tolist() == starts.tolist()


def test_gradient_alignments_match_gradients_of_single_images(target, digits):
    x, y = digits.train.batch([0, 5, 9])
    directions = torch.randn(4, target.flat.size, generator=torch.Generator().manual_seed(0))
    found, cosines = membership.gradient_alignments(target, [1, 3], [0.25, 0.75], x, y, directions)
    for i in range(3):
        one = (x[i : i + 1], y[i : i + 1])
        pull = 0.25 * loss_gradient(target, *target.at(1), *one) + 0.75 * loss_gradient(target, *target.at(3), *one)
        torch.testing.assert_close(found[i], directions @ pull, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(cosines[i], F.cosine_similarity(directions, pull[None]), rtol=1e-3, atol=1e-4)


def test_alignment_scores_use_only_groups_of_the_images_class():
    table = torch.tensor([[1.0, 5.0, 2.0], [3.0, 4.0, 9.0]])
    found = membership.alignment_scores({"d": (table, table)}, np.array([0, 1, 0]), np.array([0, 1]))
    assert found["d: largest cosine"].tolist() == [2.0, 4.0]
    assert found["d: mean rise of the loss"].tolist() == [1.5, 4.0]


# --- reconstruction ---


def test_a_single_image_is_reconstructed_from_its_gradient(target, digits):
    rows = [3, 4]
    x, y = digits.train.batch(rows)
    wanted = torch.stack([loss_gradient(target, *target.at(0), x[i : i + 1], y[i : i + 1]) for i in range(2)])
    within = (x.amin().view(1, 1, 1), x.amax().view(1, 1, 1))
    found = invert_gradients(target, [0], [1.0], wanted, y[:, None], digits.train.shape, within, steps=150)[:, 0]
    rebuilt, fresh = (distances.to_images(digits.train, part) for part in (found, digits.test.batch()[0]))
    own = distances.ssim(rebuilt, distances.to_images(digits.train, x)).diagonal()
    assert (own > distances.ssim(rebuilt, fresh).quantile(0.98, 1)).all()
    assert found.min() >= x.min()
    assert found.max() <= x.max()


def test_total_variation_is_the_mean_difference_of_neighbouring_pixels():
    image = torch.tensor([[0.0, 1.0], [0.0, 3.0]]).view(1, 1, 1, 2, 2)
    assert float(total_variation(image)) == pytest.approx((1 + 3 + 0 + 2) / 4)


# --- clipping ---


def mean_of_clipped(target, digits, rows, t, limit):
    """The mean gradient with each sample's clipped to a norm, one sample at a time."""
    theta, fixed = target.at(t)
    total = torch.zeros_like(theta)
    for row in rows:
        gradient = loss_gradient(target, theta, fixed, *digits.train.batch([int(row)]))
        total += gradient * min(1.0, limit / float(gradient.norm()))
    return total / len(rows)


def test_clipped_gradients_match_a_loop_over_samples(target, digits):
    rows, checkpoints = np.arange(7), [0, 4]
    allowed = clipping.limits(target, digits.train, checkpoints, 0.5)
    found = clipping.clipped_gradients(target, digits.train, [rows], checkpoints, 0.5)[0]
    for column, t in enumerate(checkpoints):
        expected = mean_of_clipped(target, digits, rows, t, allowed[column])
        torch.testing.assert_close(found[column], expected, rtol=1e-3, atol=1e-6)
        assert float(found[column].norm()) <= allowed[column] * (1 + 1e-5)


def test_a_limit_that_no_gradient_exceeds_changes_nothing(target, digits):
    batch, (theta, fixed) = digits.train.batch(np.arange(9)), target.at(2)
    found = clipping.clipped_gradient(target, theta, fixed, *batch, 1e6)
    torch.testing.assert_close(found, loss_gradient(target, theta, fixed, *batch), rtol=1e-3, atol=1e-6)


def test_the_default_limit_is_near_the_median_norm(target, digits):
    (found,) = clipping.limits(target, digits.train, [3], 0.5)
    norms = [float(loss_gradient(target, *target.at(3), *digits.train.batch([i])).norm()) for i in range(60)]
    assert np.quantile(norms, 0.2) < found < np.quantile(norms, 0.8)


def test_pulls_sum_clipped_gradients_over_checkpoints(target, digits):
    groups = [GroupSamples(np.arange(5), 0.5), GroupSamples(np.arange(5, 8), 0.2)]
    weights = StepWeights(target, [1, 5], digits.train)  # half of the steps between them belongs to each checkpoint
    found = group_pulls(target, digits.train, [1, 5], weights, groups, "serial", limits=[0.5, 0.1])
    for pull, group in zip(found, groups, strict=True):
        parts = [0.5 * mean_of_clipped(target, digits, group.rows, t, c) for t, c in ((1, 0.5), (5, 0.1))]
        torch.testing.assert_close(pull, group.share * sum(parts), rtol=1e-3, atol=1e-6)


# --- private synsets ---


def test_private_settings_start_from_noise_and_clip_at_the_median(refused):
    found = private(Settings(matching="reverse"))
    assert (found.start_images, found.clip) == ("noise", 0.5)
    assert private(Settings(clip=0.2)).clip == 0.2
    with refused("init"):
        private(Settings(init="real"))
    with refused("clip"):
        Settings(clip=1.5)


@pytest.mark.parametrize("matching", ["response", "reverse"])
def test_a_private_fit_gives_a_different_synset_of_the_same_groups(matching, target, digits):
    how = {"clusters": 1, "matching": matching, "curvature": 64, "bank": 10, "steps": 2}
    plain = ddm.DistilledDatamodel.fit(target, digits.train, **how)
    found = ddm.DistilledDatamodel.fit(target, digits.train, private=True, **how)
    assert found.settings == private(plain.settings)
    assert found.synset.names == plain.synset.names
    assert not torch.equal(found.synset.targets, plain.synset.targets)
    assert found.outputs(digits.test.batch([0])[0]).isfinite().all()


def test_a_private_fit_warns_of_groups_too_small_to_be_private(target, digits):
    groups = np.repeat(["large", "small"], [len(digits.train) - 3, 3])
    how = {"partition": groups, "curvature": 64, "bank": 10}
    for is_private in (True, False):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            ddm.DistilledDatamodel.fit(target, digits.train, private=is_private, **how)
        assert any("1 of 2 groups have fewer than 16 samples" in str(one.message) for one in said)
        assert any("even with private settings" in str(one.message) for one in said) == is_private


def test_a_private_fit_is_recorded_in_its_config_and_replayed(command, digits):
    words = ["--limit", 120, "--option", "width=4", "--option", "depth=1", "--epochs", 1, "--clusters", 1]
    words += ["--setting", "curvature=64", "--setting", "bank=8"]
    assert command("fit", "digits", *words, "--private", "--out", "one").code == 0
    settings = json.loads(Path("one/config.json").read_text())["settings"]
    assert (settings["init"], settings["clip"]) == ("noise", 0.5)
    assert command("fit", "--config", "one/config.json", "--out", "two").code == 0
    assert Path("one/synset.safetensors").read_bytes() == Path("two/synset.safetensors").read_bytes()
    refused = command("fit", "digits", *words, "--private", "--setting", "init=real", "--out", "three")
    assert refused.code == 2
    assert "leave out init=real" in refused.err


def test_a_config_without_clip_is_unchanged_and_one_with_clip_round_trips():
    config = Config()
    assert "clip" not in config.to_dict()["settings"]
    assert Config.from_dict(config.to_dict()) == config
    clipped = replace(config, settings=Settings(clip=0.5))
    assert Config.from_dict(json.loads(json.dumps(clipped.to_dict()))) == clipped
    assert "clip" not in bench.preset("digits").to_dict()["settings"]


# --- the benchmark ---


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    return Problem(bench.preset("digits", scale="tiny"), tmp_path_factory.mktemp("work"))


def test_an_attack_distils_synsets_only_when_they_are_needed(problem):
    attack = Attack(problem)
    small = SmallGroups(problem, attack.settings, {})
    assert list(attack.settings) == ["forward", "reverse", "reverse-noise", "response", "private"]
    assert "distilled" not in vars(attack)
    assert "pulls" not in vars(small)


def test_small_groups_have_the_size_in_their_name_and_one_class(problem):
    partition, labels = small_partition(problem), problem.train.labels.numpy()
    assert partition.names[-1] == "others"
    assert (np.sort(np.unique(partition.groups)) == np.arange(len(partition))).all()
    for k, name in enumerate(partition.names[:-1]):
        assert partition.sizes[k] == int(name.split("-")[0]) in SIZES
        assert len(np.unique(labels[partition.rows(k)])) == 1


def test_an_attacker_with_the_exact_curvature_recovers_the_pull(problem):
    target, train = problem.target, problem.train
    pulls = group_gradients(target, train, [np.arange(9), np.arange(9, 30)], [2])[:, 0]
    curvature = ddm.distil.response.solve.Responses(target, problem.data.validation, Settings(curvature=64)).curvature
    directions = curvature.solve(pulls)
    settings = {"a": Settings(), "b": Settings(matching="reverse")}
    found = guess_pulls(problem, {"a": directions, "b": directions}, settings)
    torch.testing.assert_close(found["a"], pulls, rtol=1e-2, atol=1e-4)
    assert torch.equal(found["b"], directions)
