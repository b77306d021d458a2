"""The state of the random number generators that a training draws from, to train again with the same numbers."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_STRIDE = 1_000_003
"""Difference between the seeds of two batch orders, larger than the number of epochs that samplers add to a seed."""


@dataclass(frozen=True)
class Randomness:
    """The generators of Python, numpy and torch at one moment, with that of the sampler of a loader, if it has one.

    sampler: its seed and the state of its generator; None for those that it lacks
    """

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch: Tensor
    cuda: list[Tensor]
    sampler: tuple[int | None, Tensor | None] = (None, None)

    @classmethod
    def now(cls, loader: Any = None) -> Randomness:
        """The state at this moment."""
        sampler = sampler_of(loader)
        generator = getattr(sampler, "generator", None)
        facts = getattr(sampler, "initial_seed", None), None if generator is None else generator.get_state()
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return cls(random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state(), cuda, facts)  # noqa: NPY002

    def restore(self, loader: Any = None, order: int = 0) -> None:
        """Continue from this state. Batch orders other than 0 have seeds of their own."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        if order:
            torch.manual_seed(torch.initial_seed() + _STRIDE * order)
        self._restore(sampler_of(loader), order)

    def _restore(self, sampler: Any, order: int) -> None:
        """Give a sampler the seed and the generator's state."""
        seed, state = self.sampler
        if seed is not None:
            sampler.initial_seed = seed
        if state is not None:
            sampler.generator = torch.Generator()
            sampler.generator.set_state(state)
        reseed(sampler, order)


def reseed(sampler: Any, order: int) -> None:
    """Give a sampler that has a seed of its own another one for each batch order; order 0 changes nothing."""
    if not order:
        return
    if hasattr(sampler, "initial_seed"):
        sampler.initial_seed += _STRIDE * order
    generator = getattr(sampler, "generator", None)
    if generator is not None:
        generator.manual_seed(generator.initial_seed() + _STRIDE * order)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Leave the random numbers outside of this block as they would be without it."""
    before = Randomness.now()
    try:
        yield
    finally:
        before.restore()


def sampler_of(loader: Any) -> Any:
    """The sampler that decides the order of a loader's samples; None if there is none."""
    return getattr(getattr(loader, "batch_sampler", None), "sampler", None) or getattr(loader, "sampler", None)
