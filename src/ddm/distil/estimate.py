"""The time, memory and disk space that a matching needs, estimated before it starts.

Short trials measure the seconds of each kind of work. Each matching counts how often it does that work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ddm.compute.one_thread import one_thread
from ddm.compute.stopwatch import time_mean
from ddm.curvature.gradients import loss_gradient
from ddm.data.samples import Samples
from ddm.training.target import Target


@dataclass(frozen=True)
class MatchingEstimate:
    """The time, memory and disk space that a matching needs for all groups of a partition.

    seconds:      time of all blocks
    encoding:     part of it that encodes the synsets, which a fit without a synset saves
    memory:       peak bytes of all processes together, without the samples and the network
    workers:      processes that it starts on this machine
    worker_bytes: bytes of samples that each worker holds
    synset_bytes: bytes of the synsets of groups and classes
    kept_bytes:   bytes of the kept responses
    """

    seconds: float
    memory: int
    workers: int
    worker_bytes: int
    synset_bytes: int
    kept_bytes: int = 0
    encoding: float = 0.0


def backward_seconds(target: Target, samples: Samples, rows: np.ndarray) -> float:
    """Seconds per sample of a backward pass, measured on the samples at ``rows`` and on one thread, as in a task."""
    x, y = samples.batch(rows)
    theta, fixed = target.at(0)
    with one_thread():
        return time_mean(lambda: loss_gradient(target, theta, fixed, x, y)) / len(x)


def multiplication_seconds() -> float:
    """Seconds of a multiplication and addition within a product of matrices."""
    side = 512
    matrix = torch.ones(side, side)
    return time_mean(lambda: matrix @ matrix) / side**3
