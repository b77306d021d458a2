"""Every sample is in one group, no group is empty, groups lie within classes, and names are unique."""

import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ddm
from ddm import Samples
from ddm.groups import partition
from ddm.groups.features import features_of
from ddm.groups.partition import make_partition
from ddm.networks import penultimate

CLASSES = ("ant", "bee", "7", "cow/0", "0")


def samples(labels, classes=CLASSES, seed=0):
    labels = torch.tensor(labels)
    raw = torch.randint(0, 256, (len(labels), 1, 4, 4), generator=torch.Generator().manual_seed(seed))
    return Samples.from_arrays(raw.to(torch.uint8), labels, classes)


def features(count, distinct=None, seed=0):
    """Points ``(count, 3)``, all different or drawn from ``distinct`` ones."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(distinct or count, 3))
    return points if distinct is None else points[rng.integers(0, distinct, count)]


labels = st.lists(st.integers(0, len(CLASSES) - 1), min_size=1, max_size=40)
clusters = st.integers(1, 6)


def check(result, data, most):
    """Assert the properties of every partition with at most ``most`` groups per class."""
    assert result.groups.shape == (len(data),)
    assert np.array_equal(np.unique(result.groups), np.arange(len(result)))
    assert result.sizes.sum() == len(data)
    assert result.sizes.min() >= 1
    assert result.shares.sum() == pytest.approx(1)
    assert np.array_equal(result.parents[result.groups], data.labels.numpy())
    assert len(set(result.names)) == len(result)
    for number, name in enumerate(result.names):
        assert name.rpartition("/")[0] == data.classes[result.parents[number]]
        assert result.index(name) == result.index(number) == number
    assert np.bincount(result.parents).max() <= most
    assert sorted(np.concatenate([result.members(k) for k in range(len(result))])) == list(range(len(data)))


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "too few distinct samples")
        yield


@settings(max_examples=25)
@given(labels, clusters, st.sampled_from([1, 2, 5, None]), st.integers(0, 3))
def test_kmeans_puts_every_sample_in_one_group_of_its_class(labels, clusters, distinct, seed):
    data, points = samples(labels), features(len(labels), distinct, seed)
    result = partition.kmeans(data, points, clusters, seed)
    check(result, data, clusters)
    for label in set(labels):
        mine = points[np.array(labels) == label]
        least = partition.least_size(np.array(labels), clusters)
        expected = min(clusters, max(1, len(mine) // least), len(np.unique(mine, axis=0)))
        assert (result.parents == label).sum() == expected


@given(labels, clusters)
def test_sequential_groups_have_equal_size_and_follow_the_order_of_the_training_set(labels, clusters):
    data = samples(labels)
    result = partition.sequential(data, clusters)
    check(result, data, clusters)
    for label in set(labels):
        rows = np.flatnonzero(np.array(labels) == label)
        assert (np.diff(result.groups[rows]) >= 0).all()
        sizes = result.sizes[result.parents == label]
        least = partition.least_size(np.array(labels), clusters)
        assert len(sizes) == min(clusters, max(1, len(rows) // least))
        assert sizes.max() - sizes.min() <= 1


@given(labels)
def test_classwise_makes_one_group_per_class_that_has_samples(labels):
    data = samples(labels)
    result = partition.classwise(data)
    assert result.names == tuple(CLASSES[label] for label in sorted(set(labels)))
    assert result.sizes.tolist() == [labels.count(label) for label in sorted(set(labels))]
    assert np.array_equal(result.parents[result.groups], labels)


@given(labels, clusters)
def test_by_class_joins_the_groups_of_each_class(labels, clusters):
    data = samples(labels)
    upper = partition.sequential(data, clusters).by_class()
    expected = partition.classwise(data)
    assert upper.names == expected.names
    assert np.array_equal(upper.groups, expected.groups)
    assert np.array_equal(upper.parents, expected.parents)
    assert upper.by_class().names == upper.names


@given(labels, clusters, st.data())
def test_a_mask_accepts_numbers_and_names_of_groups(labels, clusters, data):
    result = partition.sequential(samples(labels), clusters)
    chosen = data.draw(st.sets(st.integers(0, len(result) - 1)))
    named = [data.draw(st.sampled_from([k, np.int64(k), result.names[k]])) for k in sorted(chosen)]
    assert np.flatnonzero(result.mask(named)).tolist() == sorted(chosen)
    assert result.mask(named).dtype == bool
    assert np.flatnonzero(result.mask(iter(named))).tolist() == sorted(chosen)


def test_a_mask_of_one_group_needs_no_list():
    result = partition.sequential(samples([0, 0, 1, 1]), 2)
    for group in (2, np.int64(2), "2", "bee/0"):
        assert result.mask(group).tolist() == [False, False, True, False]


def test_a_string_is_a_name_first_and_a_number_that_is_the_name_of_another_group_is_refused(refused):
    result = partition.classwise(samples([0, 2, 4]))
    assert result.names == ("ant", "7", "0")
    assert result.index("0") == 2
    assert result.index("1") == 1
    with refused("'0'", "'ant'"):
        result.index(0)


@pytest.mark.parametrize("group", ["ant/9", "ant", "", "-1", -1, 4, "4", "1.0", 1.5, None, ("ant", 0)])
def test_groups_that_do_not_exist_are_refused(group, refused):
    result = partition.sequential(samples([0, 0, 1, 1]), 2)
    with refused("there is no group", "0 to 3", "ant/0", "bee/1"):
        result.index(group)


def test_kmeans_finds_well_separated_clusters():
    rng = np.random.default_rng(0)
    cluster = rng.integers(0, 3, 60)
    points = np.eye(3)[cluster] * 10 + rng.normal(size=(60, 3)) * 0.1
    result = partition.kmeans(samples([0, 1] * 30), points, 3)
    for label in (0, 1):
        rows = np.arange(60) % 2 == label
        pairs = set(zip(cluster[rows].tolist(), result.groups[rows].tolist(), strict=True))
        assert len(pairs) == 3


def test_kmeans_depends_on_the_seed_alone():
    data, points = samples([0, 1, 2] * 30), features(90)
    np.random.seed(0)  # noqa: NPY002 - the global generator must not matter
    one = partition.kmeans(data, points, 4, seed=5)
    np.random.seed(1)  # noqa: NPY002
    assert np.array_equal(one.groups, partition.kmeans(data, points, 4, seed=5).groups)


@pytest.mark.parametrize("how", ["kmeans", "sequential"])
def test_fewer_samples_than_clusters_gives_fewer_clusters_and_names_the_class(how):
    data = samples([0, 0, 0, 1, 2, 2, 2])
    arguments = (features(7), 3) if how == "kmeans" else (3,)
    with pytest.warns(UserWarning, match=r"3 clusters .* in 1 class.*bee \(1\)"):
        result = getattr(partition, how)(data, *arguments)
    assert np.bincount(result.parents).tolist() == [3, 1, 3]


def test_duplicated_points_give_fewer_clusters_and_name_the_class():
    points = np.array([[0.0], [0.0], [1.0], [1.0], [5.0], [6.0], [7.0], [8.0]])
    with pytest.warns(UserWarning, match=r"ant \(2\)"):
        result = partition.kmeans(samples([0] * 4 + [1] * 4), points, 4)
    assert result.groups[0] == result.groups[1] != result.groups[2] == result.groups[3]


def test_enough_samples_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clustered = partition.kmeans(samples([0, 1] * 6), features(12), 3)
        cut = partition.sequential(samples([0, 1] * 6), 3)
    assert len(clustered) == len(cut) == 6


def imbalanced(rare=5, frequent=500):
    """Two classes, one with a hundredth of the samples, and points with an outlier in the frequent class."""
    labels = [0] * frequent + [1] * rare
    points = features(len(labels))
    points[0] = 1000
    return samples(labels), points


@pytest.mark.parametrize("how", ["kmeans", "sequential"])
def test_a_rare_class_is_not_split_into_single_samples(how):
    data, points = imbalanced()
    result = getattr(partition, how)(data, *([points, 10] if how == "kmeans" else [10]))
    assert result.sizes[result.parents == 1].tolist() == [5]
    assert (result.parents == 0).sum() == 10


def test_an_outlier_shares_its_cluster_with_the_nearest_samples():
    data, points = imbalanced()
    points[1:41] += 100
    result = partition.kmeans(data, points, 2)
    mates = result.members(result.groups[0])
    assert len(mates) == 16
    assert set(mates) <= set(range(41))


@given(labels, clusters)
def test_the_least_size_is_at_most_16_and_at_most_half_of_the_mean_in_the_largest_class(labels, clusters):
    labels = np.repeat(labels, 10)
    least = partition.least_size(labels, clusters)
    assert 1 <= least <= 16
    assert least == 1 or 2 * least * clusters <= np.bincount(labels).max()


@settings(max_examples=25)
@given(st.lists(st.integers(0, 2), min_size=30, max_size=80), st.integers(1, 3), st.integers(0, 3))
def test_no_cluster_is_below_the_least_size_unless_its_class_is(labels, clusters, seed):
    result = partition.kmeans(samples(labels), features(len(labels), seed=seed), clusters, seed)
    least = partition.least_size(np.array(labels), clusters)
    for size, parent in zip(result.sizes, result.parents, strict=True):
        assert size >= min(least, labels.count(parent))


@pytest.mark.parametrize("count", [0, -1])
def test_fewer_than_one_cluster_is_refused(count, refused):
    for how in (
        lambda: partition.sequential(samples([0, 1]), count),
        lambda: partition.kmeans(samples([0, 1]), features(2), count),
    ):
        with refused(f"not {count}"):
            how()


def test_two_classes_with_the_same_name_are_refused(refused):
    with refused("same name"):
        samples([0, 0, 1, 1], classes=("cat", "cat"))


# --- the user's own groups ---


@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=3)), min_size=1, max_size=20))
def test_the_users_groups_keep_their_names_and_samples(pairs):
    labels, groups = [label for label, _ in pairs], [group for _, group in pairs]
    result = partition.from_groups(samples(labels), groups)
    # numpy drops NULs at the end of strings
    assert [result.names[k] for k in result.groups] == [group.rstrip("\0") for group in groups]
    assert result.sizes.min() >= 1
    nested = all(
        len({label for label, other in zip(labels, result.groups, strict=True) if other == k}) == 1
        for k in result.groups
    )
    assert (result.parents is not None) == nested
    if nested:
        assert np.array_equal(result.parents[result.groups], labels)


def test_groups_within_classes_can_be_joined_by_class():
    result = partition.from_groups(samples([0, 0, 1, 2]), ["x", "y", "z", "w"])
    assert result.names == ("w", "x", "y", "z")
    assert result.by_class().names == ("ant", "bee", "7")


def test_groups_that_cut_across_classes_cannot_be_joined_by_class():
    result = partition.from_groups(samples([0, 0, 1, 1]), ["monday", "tuesday", "monday", "tuesday"])
    assert result.parents is None
    assert result.by_class() is None
    assert result.members("monday").tolist() == [0, 2]


def test_groups_may_be_numbers_with_gaps_or_dates():
    result = partition.from_groups(samples([0, 0, 0]), np.array([30, 10, 30]))
    assert result.names == ("10", "30")
    assert result.groups.tolist() == [1, 0, 1]
    assert result.index("30") == 1
    dates = np.array(["2024-01-02", "2023-05-06", "2024-01-02"], dtype="datetime64[D]")
    assert partition.from_groups(samples([0, 0, 0]), dates).names == ("2023-05-06", "2024-01-02")


@pytest.mark.parametrize("groups", [[1, 2], [1, 2, 3, 4], [[1], [2], [3]], [], 5])
def test_groups_must_be_one_per_sample(groups, refused):
    with refused("3 training samples"):
        partition.from_groups(samples([0, 0, 1]), groups)


@pytest.mark.parametrize("groups", [[None, "a", "b"], [{}, {}, {}], [[1], [1, 2], [3]]])
def test_groups_that_cannot_be_sorted_are_refused(groups, refused):
    with refused("groups"):
        partition.from_groups(samples([0, 0, 1]), groups)


# --- partitions by name ---


def test_a_partition_is_made_by_name_from_groups_or_given_directly(target, digits):
    data = digits.train
    assert len(make_partition(target, data, "kmeans", 3)) == 30
    assert len(make_partition(target, data, "sequence", 2)) == 20
    assert len(make_partition(target, data, "class", 7)) == 10
    assert len(make_partition(target, data, np.arange(len(data)) % 4, 7)) == 4
    own = partition.sequential(data, 2)
    assert make_partition(target, data, own, 7) is own


def test_a_partition_of_other_samples_or_an_unknown_kind_is_refused(target, digits, refused):
    with refused("2 samples", "300"):
        make_partition(target, digits.train, partition.classwise(digits.train[:2]), 3)
    with refused("'spectral'", "kmeans"):
        make_partition(target, digits.train, "spectral", 3)


# --- features ---


def test_features_come_from_the_targets_penultimate_layer(target, digits):
    result = features_of(digits.train, None, target, batch_size=64)
    with torch.no_grad():
        expected = penultimate(target.network, digits.train.batch()[0])
    torch.testing.assert_close(torch.from_numpy(result), expected)
    assert result.shape == (300, target.network.classifier.in_features)


def test_features_can_come_from_a_target_in_double_precision(digits):
    network = ddm.networks.ConvNet(digits.train.shape, 10, width=4, depth=1).double()
    target = ddm.train(network, digits.train[:50], ddm.Recipe(epochs=1))
    assert features_of(digits.train[:50], None, target).shape[0] == 50


def test_features_can_come_from_a_callable(digits):
    result = features_of(digits.train, lambda x: x.mean(1), batch_size=7)
    assert result.shape == (300, 64)
    np.testing.assert_array_equal(result, digits.train.batch()[0].flatten(1).numpy())


def test_features_can_come_from_a_module_in_evaluation_mode_which_is_then_restored(digits):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
    one, other = (features_of(digits.train, module) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert one.shape == (300, 5)
    assert one.dtype == np.float32
    assert module.training
    assert int(module[2].num_batches_tracked) == 0


def test_kmeans_uses_the_given_features(target, digits):
    sign = torch.arange(300) % 2
    result = make_partition(target, digits.train, "kmeans", 2, features=lambda x: sign[:, None].float())
    for label in range(10):
        rows = digits.train.labels.numpy() == label
        assert len(set(zip(sign[rows].tolist(), result.groups[rows].tolist(), strict=True))) == 2


@pytest.mark.parametrize(
    "extract",
    [
        lambda x: x * float("nan"),
        lambda x: x / 0,
        lambda x: x[:-1],
        lambda x: x.sum(),
        lambda x: x.tolist(),
    ],
    ids=["nan", "infinite", "too few rows", "a number", "a list"],
)
def test_invalid_features_are_refused(extract, digits, refused):
    with refused("features"):
        features_of(digits.train, extract)


def test_clustering_without_features_and_without_a_target_is_refused(digits, refused):
    with refused("give a target"):
        features_of(digits.train, None)


# --- features from hub models, which the tests store in local folders ---


def saved_vit(folder, **options):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=8,
        patch_size=4,
        **options,
    )
    torch.manual_seed(0)
    transformers.ViTModel(config).save_pretrained(folder)
    return f"hf:{folder}"


@pytest.mark.parametrize("channels", [1, 3])
def test_features_can_come_from_a_pretrained_network(channels, tmp_path, digits):
    name = saved_vit(tmp_path / "vit", num_channels=channels)
    result = features_of(digits.train[:20], name)
    assert result.shape == (20, 8)
    assert len(np.unique(result, axis=0)) == 20
    np.testing.assert_allclose(result, features_of(digits.train[:20], name, batch_size=6), atol=1e-5)


def test_images_are_resized_to_the_input_size_of_the_pretrained_network(tmp_path):
    name = saved_vit(tmp_path / "vit")
    data = Samples.from_arrays(torch.rand(4, 3, 13, 9), torch.tensor([0, 0, 1, 1]))
    assert features_of(data, name).shape == (4, 8)


def test_a_pretrained_convolutional_network_gives_one_feature_vector_per_image(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1], layer_type="basic")
    transformers.ResNetModel(config).save_pretrained(tmp_path / "resnet")
    data = Samples.from_arrays(torch.rand(4, 3, 16, 16), torch.tensor([0, 0, 1, 1]))
    assert features_of(data, f"hf:{tmp_path / 'resnet'}").shape == (4, 6)


def test_a_pretrained_network_that_does_not_accept_images_is_refused(tmp_path, digits, refused):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    with refused("bert", "images"):
        features_of(digits.train[:4], f"hf:{tmp_path / 'bert'}")


def test_unknown_hub_models_are_refused(tmp_path, digits, refused):
    pytest.importorskip("transformers")
    (tmp_path / "empty").mkdir()
    for name in ("nobody/nothing", "not a name", "", str(tmp_path / "empty"), str(tmp_path / "missing")):
        with refused(f"'{name}'"):
            features_of(digits.train[:4], f"hf:{name}")


def test_features_by_a_name_without_the_hub_prefix_are_refused(digits, refused):
    with refused("'resnet'", "hf:NAME"):
        features_of(digits.train[:4], "resnet")


def test_hub_features_without_transformers_say_what_to_install(digits, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with refused("pip install 'distilled-datamodel[hub]'"):
        features_of(digits.train[:4], "hf:anything")
