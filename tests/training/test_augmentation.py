"""Flips and shifts are drawn for each image separately, reproducible and differentiable."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from ddm.training.augmentation import KINDS, augment, check


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count=16, channels=2, height=9, width=8):
    return 1 + torch.rand(count, channels, height, width, generator=generator(1))  # no zeros, so zeros come from shifts


def shift(image, down, right):
    """An image ``(C, H, W)`` shifted by whole pixels and filled with zeros."""
    height, width = image.shape[-2:]
    padded = F.pad(image, (width, width, height, height))
    return padded[:, height - down : 2 * height - down, width - right : 2 * width - right]


def test_none_changes_nothing_and_uses_no_random_numbers():
    x, rng = images(), generator()
    before = rng.get_state()
    assert torch.equal(augment(x, "none", rng), x)
    assert torch.equal(rng.get_state(), before)


def test_flip_mirrors_some_images_and_leaves_the_others():
    x = images()
    y = augment(x, "flip", generator())
    same, mirrored = (x == y).flatten(1).all(1), (x.flip(-1) == y).flatten(1).all(1)
    assert (same ^ mirrored).all()
    assert same.any()
    assert mirrored.any()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 3), st.integers(0, 1000))
def test_shift_moves_each_image_by_whole_pixels_up_to_an_eighth(height, width, channels, seed):
    x = images(4, channels, height, width)
    y = augment(x, "shift", generator(seed))
    reach = max(1, min(height, width) // 8)
    offsets = [(down, right) for down in range(-reach, reach + 1) for right in range(-reach, reach + 1)]
    assert y.shape == x.shape
    for before, after in zip(x, y, strict=True):
        assert any(torch.equal(shift(before, *offset), after) for offset in offsets)


def test_each_image_gets_its_own_shift():
    x = images(1).repeat(16, 1, 1, 1)
    assert len({tuple(image.flatten().tolist()) for image in augment(x, "shift", generator())}) > 3


def test_flip_shift_does_both():
    x = images(64)
    y = augment(x, "flip-shift", generator())
    offsets = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]

    def is_shifted(before, after):
        return any(torch.equal(shift(before, *offset), after) for offset in offsets)

    plain = [is_shifted(before, after) for before, after in zip(x, y, strict=True)]
    mirrored = [is_shifted(before.flip(-1), after) for before, after in zip(x, y, strict=True)]
    assert all(one != other for one, other in zip(plain, mirrored, strict=True))
    assert any(plain)
    assert any(mirrored)


@pytest.mark.parametrize("kind", KINDS)
def test_images_depend_on_the_given_generator_and_not_on_the_global_one(kind):
    x = images()
    torch.manual_seed(0)
    one = augment(x, kind, generator(3))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert torch.equal(augment(x, kind, generator(3)), one)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", ["flip", "shift", "flip-shift"])
def test_another_seed_gives_other_images(kind):
    x = images()
    assert not torch.equal(augment(x, kind, generator(0)), augment(x, kind, generator(1)))


@pytest.mark.parametrize("kind", KINDS)
def test_random_flips_and_shifts_do_not_depend_on_the_images(kind):
    x = images()
    torch.testing.assert_close(augment(2 * x, kind, generator()), 2 * augment(x, kind, generator()))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_exactly_the_pixels_that_stay_visible(kind):
    x = images().requires_grad_()
    y = augment(x, kind, generator())
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert set(gradient.unique().tolist()) <= {0.0, 1.0}
    assert gradient.sum() == (y != 0).sum()


def test_the_input_images_are_not_changed():
    x = images()
    before = x.clone()
    augment(x, "flip-shift", generator())
    assert torch.equal(x, before)


def test_unknown_kinds_are_refused(refused):
    with refused("'rotate'", *KINDS):
        check("rotate")
