"""Resizing images."""

import numpy as np
import pytest
import torch
from published_files import pixels, write_mnist
from refusals import refused

import ddm.runs.config
import ddm.runs.run
from ddm.compute import memory
from ddm.compute.files import read_json
from ddm.data import Samples, load


@pytest.mark.parametrize("factor", [2, 4, 7])
def test_smaller_images_are_averages_of_blocks(tmp_path, factor):
    write_mnist(tmp_path)
    small, whole = load("mnist", tmp_path, size=28 // factor), load("mnist", tmp_path)
    for split in ("train", "validation", "test"):
        before, after = whole.split(split), small.split(split)
        side = 28 // factor
        blocks = before.raw.numpy().reshape(len(before), 1, side, factor, side, factor).mean((3, 5))
        assert after.raw.dtype == torch.uint8
        assert after.raw.numpy() == pytest.approx(blocks, abs=0.501)
        assert torch.equal(after.labels, before.labels)
        assert torch.equal(after.origin, before.origin)


def test_images_are_normalised_after_resizing():
    data = load("digits", limit=120, size=4)
    x, _ = data.train.batch()
    assert x.shape == (120, 1, 4, 4)
    assert float(x.mean()) == pytest.approx(0, abs=1e-4)
    assert float(x.std(correction=0)) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("size", [1, 3, 8, 11, 32])
def test_any_size_keeps_the_type_and_the_range(size):
    whole = pixels(20, 3, 8, 10)
    for raw in (whole, whole / np.float32(255)):
        samples = Samples.from_arrays(raw, np.arange(20) % 2)
        resized = samples.resize(size)
        assert resized.shape == (3, size, size)
        assert resized.raw.dtype == samples.raw.dtype
        assert samples.raw.min() <= resized.raw.min() <= resized.raw.max() <= samples.raw.max()


def test_resizing_to_the_same_size_changes_nothing():
    samples = load("digits", limit=60).train
    assert torch.equal(samples.resize(8).raw, samples.raw)


def test_larger_images_are_interpolated():
    ramp = np.tile(np.arange(0, 80, 10, dtype=np.uint8), (2, 1, 8, 1))
    large = Samples.from_arrays(ramp, [0, 1]).resize(16).raw[0, 0].int()
    assert (large == large[0]).all()
    assert (large[0].diff() >= 0).all()
    assert large[0].unique().numel() > 8


def test_resizing_in_batches_gives_the_same_images():
    samples = Samples.from_arrays(pixels(1500, 1, 4, 4), np.arange(1500) % 3)
    assert torch.equal(samples.resize(2).raw[1200:], samples[1200:].resize(2).raw)


def test_vectors_cannot_be_resized():
    with refused("(36,)", "--size"):
        Samples.from_arrays(np.random.default_rng(0).random((4, 36)), np.arange(4)).resize(3)


def test_resizing_changes_the_fingerprint():
    prints = {load("digits", limit=60, size=size).train.fingerprint() for size in (None, 4, 6, 12)}
    assert len(prints) == 4
    assert load("digits", limit=60, size=8).train.fingerprint() in prints


def test_a_run_stores_its_image_size_in_its_config(tmp_path):
    config = ddm.runs.config.Config(
        limit=40,
        size=4,
        options={"width": 4, "depth": 1},
        recipe=ddm.Recipe(epochs=1),
        partition="class",
        settings=ddm.Settings(steps=1),
    )
    ddm.runs.run.fit(config, tmp_path / "run")
    again = ddm.runs.config.Config.from_dict(read_json(tmp_path / "run" / "config.json"))
    assert again == config
    datamodel, data = ddm.runs.run.open_run(tmp_path / "run")
    assert data.train.shape == (1, 4, 4)
    assert datamodel.data == load("digits", limit=40, size=4).train.fingerprint()
    with refused("size", "4 there, 6 now"):
        ddm.runs.run.fit(ddm.runs.config.Config(**{**config.__dict__, "size": 6}), tmp_path / "run")


def test_the_memory_check_uses_the_size_after_resizing(monkeypatch):
    monkeypatch.setattr(memory, "usable_bytes", lambda: 100_000)
    assert load("digits", limit=60, size=16).train.shape == (1, 16, 16)
    with refused("digits", "memory", "--size"):
        load("digits", limit=60, size=64)
