"""Tensors are read as they were written, and broken files are refused in one sentence."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_dicts import same_tensors

from ddm.compute.tensors import read_metadata, read_tensors, write_tensors

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2])}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_tensors_and_metadata_are_read_as_they_were_written(dtype, tmp_path):
    tensors = {
        "a": (torch.randn(3, 4) * 10).to(dtype),
        "empty": torch.zeros(0, 2, dtype=dtype),
        "zero": torch.tensor(1),
    }
    metadata = {"names": ["ä", "b/1"], "step": 3, "length": 0.1, "nested": {"none": None}}
    write_tensors(tmp_path / "file", tensors, metadata)
    assert same_tensors(read_tensors(tmp_path / "file"), tensors)
    assert read_metadata(tmp_path / "file") == metadata


def test_views_of_other_tensors_can_be_written(tmp_path):
    whole = torch.arange(12.0).view(3, 4)
    tensors = {"turned": whole.T, "column": whole[:, 1], "repeated": torch.ones(1).expand(5)}
    write_tensors(tmp_path / "file", tensors)
    assert same_tensors(read_tensors(tmp_path / "file"), tensors)


def test_the_same_contents_give_the_same_bytes(tmp_path):
    write_tensors(tmp_path / "a", TENSORS, {"x": 1, "y": 2})
    write_tensors(tmp_path / "b", {name: TENSORS[name] for name in ("b", "a")}, {"y": 2, "x": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_truncated_file_of_tensors_is_refused_wherever_it_ends(tmp_path_factory, refused, data):
    path = tmp_path_factory.getbasetemp() / "cut.safetensors"
    write_tensors(path, TENSORS, {"step": 1})
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    for read in (read_tensors, read_metadata):
        with refused("cut.safetensors"):
            read(path)


@pytest.mark.parametrize("content", [bytes(range(256)) * 4, b"\xff" * 64, json.dumps({}).encode()])
def test_a_file_without_tensors_is_refused(content, tmp_path, refused):
    (tmp_path / "file").write_bytes(content)
    for read in (read_tensors, read_metadata):
        with refused(str(tmp_path / "file")):
            read(tmp_path / "file")


def test_a_pickle_is_never_read(tmp_path, refused):
    torch.save(TENSORS, tmp_path / "file")
    with refused(str(tmp_path / "file")):
        read_tensors(tmp_path / "file")
