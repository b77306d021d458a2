"""Inputs behave like a tensor whose rows are samples, whatever they nest."""

import json

import pytest
import torch
from refusals import refused
from torch import nn
from torch.func import vmap

from ddm.data.inputs import Inputs, arguments, call, equal, join, rebuild, skeleton, unwrap, wrap


@pytest.fixture
def text():
    ids = torch.arange(12).view(3, 4)
    return Inputs({"input_ids": ids, "attention_mask": ids % 2, "extra": (torch.rand(3, 2), [torch.rand(3)])})


def test_slices_split_and_iteration_select_samples(text):
    assert len(text) == 3
    assert torch.equal(text[1:].tree["input_ids"], text.tree["input_ids"][1:])
    assert [len(part) for part in text.split(2)] == [2, 1]
    assert torch.equal(next(iter(text)).tree["extra"][0], text.tree["extra"][0][0])
    assert equal(text[torch.tensor([2, 0])][[1]], text[[0]])


def test_types_change_only_for_floating_point_numbers(text):
    moved = text.to(torch.float64)
    assert moved.tree["input_ids"].dtype == torch.int64
    assert moved.tree["extra"][0].dtype == torch.float64
    assert text.to(torch.rand(1, dtype=torch.float64)).tree["extra"][1][0].dtype == torch.float64
    assert text.to("cpu").tree["attention_mask"].dtype == torch.int64


def test_joined_batches_are_padded_to_the_longest():
    short, long = (
        Inputs({"input_ids": torch.ones(2, 3, dtype=torch.int64)}),
        Inputs({"input_ids": torch.full((1, 5), 7)}),
    )
    joined = join([short, long]).tree["input_ids"]
    assert joined.tolist() == [[1, 1, 1, 0, 0]] * 2 + [[7] * 5]
    assert torch.equal(join([torch.ones(2, 3), torch.zeros(1, 3)]), torch.cat([torch.ones(2, 3), torch.zeros(1, 3)]))


def test_a_nesting_can_be_described_and_rebuilt(text):
    tensors = text.named_leaves()
    assert set(tensors) == {"input_ids", "attention_mask", "extra.0", "extra.1.0"}
    again = rebuild(json.loads(json.dumps(skeleton(text))), tensors.__getitem__)
    assert again.named_leaves().keys() == tensors.keys()
    assert all(torch.equal(leaf, tensors[name]) for name, leaf in again.named_leaves().items())
    with pytest.raises(ValueError, match="damaged"):
        rebuild({"input_ids": 3}, tensors.__getitem__)


def test_only_ids_and_nestings_are_wrapped():
    floats, ids = torch.rand(2, 3), torch.ones(2, 3, dtype=torch.int64)
    assert wrap(floats) is floats
    assert torch.equal(unwrap(wrap(ids)), ids)
    with refused("nesting of tensors"):
        wrap({"text": ["a", "b"]})
    with refused("2, 3 rows", "one row for each sample"):
        wrap((torch.ones(2), torch.ones(3)))


def test_a_network_gets_dicts_as_keywords_and_tuples_as_arguments():
    class Sum(nn.Module):
        def forward(self, first, second):
            return first + 2 * second

    first, second = torch.rand(2, 3), torch.rand(2, 3)
    expected = first + 2 * second
    assert torch.equal(call(Sum(), Inputs({"second": second, "first": first})), expected)
    assert torch.equal(call(Sum(), Inputs((first, second))), expected)
    assert arguments(first) == ((first,), {})


def test_vmap_maps_over_the_samples(text):
    def one(sample):
        assert isinstance(sample, Inputs)
        return sample[None].tree["input_ids"].sum()

    assert vmap(one)(text).tolist() == text.tree["input_ids"].sum(1).tolist()


def test_batches_differ_by_values_types_and_nesting(text):
    assert equal(text, text.clone())
    assert not equal(text, text.to(torch.float64))
    assert not equal(text, Inputs({"input_ids": text.tree["input_ids"]}))
    assert not equal(text, torch.rand(3))
