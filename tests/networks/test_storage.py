"""Networks can be saved and loaded; other files are refused."""

import os
import stat

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ddm.compute.tensors import read_metadata, read_tensors, write_tensors
from ddm.errors import InputError
from ddm.networks import ConvNet, load, save
from ddm.networks.weighted_sum import WeightedSum

from .conftest import random_inputs, small


def trained(name, **options):
    network = small(name, (3, 9, 7), 4, **options)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.5
    return network


def test_a_loaded_network_equals_the_saved_one(name, tmp_path):
    network = trained(name, seed=3)
    save(network, tmp_path / "network.safetensors")
    again = load(str(tmp_path / "network.safetensors"))
    x = random_inputs(network)
    assert type(again) is type(network)
    assert again.spec == network.spec
    assert torch.equal(again(x), network(x))
    assert all(parameter.requires_grad for parameter in again.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_loaded_network_has_the_dtype_of_the_saved_one(name, dtype, tmp_path):
    network = trained(name).to(dtype)
    save(network, tmp_path / "network.safetensors")
    again = load(tmp_path / "network.safetensors")
    x = random_inputs(network, dtype=dtype)
    assert torch.equal(again(x), network(x))


def test_running_statistics_are_saved(tmp_path):
    network = ConvNet((1, 8, 8), 2, width=4, norm="batch")
    network(torch.randn(8, 1, 8, 8) + 3)
    save(network, tmp_path / "network.safetensors")
    assert torch.equal(
        load(tmp_path / "network.safetensors").blocks[0][1].running_mean, network.blocks[0][1].running_mean
    )


def test_a_network_in_channels_last_format_can_be_saved(tmp_path):
    network = ConvNet((3, 8, 8), 2).to(memory_format=torch.channels_last)
    save(network, tmp_path / "network.safetensors")
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(load(tmp_path / "network.safetensors")(x), network(x))


def test_saving_replaces_the_old_file_and_leaves_no_temporary_files(tmp_path):
    path = tmp_path / "network.safetensors"
    path.write_text("old")
    save(ConvNet(), path)
    assert os.listdir(tmp_path) == ["network.safetensors"]
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_failed_save_changes_no_files(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot write"):
        save(ConvNet(), tmp_path / "folder")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write"):
        save(ConvNet(), tmp_path / "file" / "network.safetensors")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_saving_a_users_module_is_refused(tmp_path):
    with pytest.raises(InputError, match="state_dict"):
        save(nn.Linear(2, 2), tmp_path / "network.safetensors")


# --- weighted sums ---


def weighted_sum(name="convnet", dtype=torch.float32, **options):
    """A weighted sum of three networks that differ in their parameters."""
    networks = [trained(name, **options) for _ in range(3)]
    with torch.no_grad():
        for number, network in enumerate(networks):
            network.classifier.weight += number
    return WeightedSum([network.to(dtype) for network in networks], [1.0, -0.25, 1 / 3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_loaded_weighted_sum_equals_the_saved_one(name, dtype, tmp_path):
    network = weighted_sum(name, dtype, seed=3)
    save(network, tmp_path / "network.safetensors")
    again = load(tmp_path / "network.safetensors")
    x = random_inputs(network.networks[0], dtype=dtype)
    assert isinstance(again, WeightedSum)
    assert not again.training
    assert torch.equal(again.weights, network.weights)
    assert torch.equal(again(x), network(x))
    assert [part.spec for part in again.networks] == [part.spec for part in network.networks]
    save(again, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "network.safetensors").read_bytes()


def test_the_networks_of_a_weighted_sum_get_all_arguments_of_a_batch():
    network = WeightedSum([nn.Bilinear(2, 3, 4) for _ in range(2)], [1.0, -0.5])
    one, other = torch.randn(5, 2), torch.randn(5, 3)
    first, second = network.networks
    torch.testing.assert_close(network(one, input2=other), first(one, other) - 0.5 * second(one, other))


def test_each_network_of_a_weighted_sum_keeps_its_running_statistics(tmp_path):
    networks = [ConvNet((1, 8, 8), 2, width=4, norm="batch") for _ in range(2)]
    for shift, network in enumerate(networks):
        network(torch.randn(8, 1, 8, 8) + 3 * shift)
    network = WeightedSum(networks, [0.5, 0.5])
    save(network, tmp_path / "network.safetensors")
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(load(tmp_path / "network.safetensors")(x), network(x))


@pytest.mark.parametrize(
    "network",
    [
        WeightedSum([nn.Linear(2, 2)], [1.0]),
        WeightedSum([ConvNet(), nn.Linear(2, 2)], [1.0, 1.0]),
        WeightedSum([ConvNet(), ConvNet(width=4)], [1.0, 1.0]),
        WeightedSum([], []),
    ],
    ids=["users module", "one users module", "two architectures", "nothing"],
)
def test_saving_another_weighted_sum_is_refused(network, tmp_path):
    with pytest.raises(InputError, match="state_dict"):
        save(network, tmp_path / "network.safetensors")
    assert not os.listdir(tmp_path)


def _changed_sum(change):
    """Damage that changes the tensors, and the metadata, of a weighted sum."""

    def write(path):
        save(weighted_sum(), path)
        tensors, metadata = read_tensors(path), read_metadata(path)
        change(tensors, metadata)
        write_tensors(path, tensors, metadata)

    return write


@pytest.mark.parametrize(
    "damage",
    [
        _changed_sum(lambda tensors, metadata: tensors.pop("weights")),
        _changed_sum(lambda tensors, metadata: tensors.update(weights=torch.tensor(1.0))),
        _changed_sum(lambda tensors, metadata: tensors.update(weights=torch.ones(0))),
        _changed_sum(lambda tensors, metadata: tensors.update(weights=torch.ones(2))),
        _changed_sum(lambda tensors, metadata: tensors.update(weights=torch.ones(3, 1))),
        _changed_sum(lambda tensors, metadata: tensors.update(weights=torch.full((3,), torch.nan))),
        _changed_sum(lambda tensors, metadata: tensors.pop("networks.1.classifier.bias")),
        _changed_sum(lambda tensors, metadata: tensors.update(more=torch.ones(1))),
        _changed_sum(
            lambda tensors, metadata: tensors.update({"networks.3.bias": tensors.pop("networks.2.classifier.bias")})
        ),
        _changed_sum(lambda tensors, metadata: tensors.update({"networks.1.classifier.bias": torch.ones(5)})),
        _changed_sum(lambda tensors, metadata: metadata.update(weighted_sum=3)),
        _changed_sum(lambda tensors, metadata: metadata.update(weighted_sum={})),
        _changed_sum(lambda tensors, metadata: metadata["weighted_sum"].update(classes=5)),
        _changed_sum(lambda tensors, metadata: metadata.update(network=metadata.pop("weighted_sum"))),
    ],
)
def test_a_broken_weighted_sum_is_refused(damage, tmp_path):
    path = tmp_path / "network.safetensors"
    damage(path)
    with pytest.raises(InputError, match=r"network\.safetensors"):
        load(path)


# --- broken files ---


def _truncated(path):
    path.write_bytes(path.read_bytes()[:-10])


def _empty(path):
    path.write_bytes(b"")


def _noise(path):
    path.write_bytes(bytes(range(256)) * 4)


def _without_spec(path):
    save_file(ConvNet().state_dict(), path)


def _spec_is(text):
    def write(path):
        save_file(ConvNet().state_dict(), path, metadata={"ddm": f'{{"network": {text}}}'})

    return write


def _without_weights(path):
    save_file({}, path, metadata={"ddm": '{"network": {"name": "convnet", "shape": [1, 8, 8], "classes": 10}}'})


def _pickled(path):
    torch.save(ConvNet().state_dict(), path)


@pytest.mark.parametrize(
    "damage",
    [
        _truncated,
        _empty,
        _noise,
        _without_spec,
        _without_weights,
        _pickled,
        _spec_is("{"),
        _spec_is("3"),
        _spec_is("[]"),
        _spec_is("{}"),
        _spec_is('{"name": "vgg", "shape": [1, 8, 8], "classes": 10}'),
        _spec_is('{"name": "convnet", "shape": [1, 8, 8], "classes": 11}'),
        _spec_is('{"name": "simplevit", "shape": [1, 8, 8], "classes": 10}'),
    ],
)
def test_a_broken_or_foreign_file_is_refused(damage, tmp_path):
    path = tmp_path / "network.safetensors"
    save(ConvNet(), path)
    damage(path)
    with pytest.raises(InputError, match=r"network\.safetensors"):
        load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        load(tmp_path / "network.safetensors")
