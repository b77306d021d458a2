"""Networks can be saved and loaded; other files are refused."""

import os
import stat

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ddm.errors import InputError
from ddm.networks import ConvNet, load, save

from .conftest import small


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
    x = torch.randn(2, 3, 9, 7)
    assert type(again) is type(network)
    assert again.spec == network.spec
    assert torch.equal(again(x), network(x))
    assert all(parameter.requires_grad for parameter in again.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_loaded_network_has_the_dtype_of_the_saved_one(name, dtype, tmp_path):
    network = trained(name).to(dtype)
    save(network, tmp_path / "network.safetensors")
    again = load(tmp_path / "network.safetensors")
    x = torch.randn(2, 3, 9, 7, dtype=dtype)
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
