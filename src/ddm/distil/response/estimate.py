"""Time and memory of response matching.

Tasks compute the pulls. This process computes the rows of the matrices and their products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ddm.compute.backends import Backend
from ddm.compute.engine import Engine, count_cores
from ddm.compute.stopwatch import time_mean
from ddm.distil.blocks import Block
from ddm.distil.estimate import MatchingEstimate, backward_seconds, multiplication_seconds
from ddm.distil.kept import keeps_responses, kept_bytes
from ddm.distil.matching import engine_for
from ddm.distil.response.encode import Encoder, least_squares_bytes
from ddm.groups.partition import Partition

if TYPE_CHECKING:
    from ddm.distil.response.matching import ResponseMatching


def estimate_response(
    matching: ResponseMatching,
    partition: Partition,
    upper: Partition | None,
    blocks: Sequence[Block],
    engine: Engine,
) -> MatchingEstimate:
    """Estimate the time, memory and disk space of response matching for these blocks."""
    work = _Work(matching, partition, blocks)
    passes = sum(matching.cost(partition, upper, block) for block in blocks)
    backend = Backend.parse(engine_for(engine, matching.target, passes))
    count = 1 if backend.kind == "serial" else count_cores()
    samples = matching.samples
    return MatchingEstimate(
        seconds=work.seconds(passes, count) + work.encoding_seconds,
        encoding=work.encoding_seconds,
        memory=work.memory,
        workers=0 if backend.remote or count == 1 else count,
        worker_bytes=samples.nbytes // len(partition),
        synset_bytes=work.synset_bytes,
        kept_bytes=work.kept_bytes,
    )


class _Work:
    """Counts and times the work of response matching."""

    def __init__(self, matching: ResponseMatching, partition: Partition, blocks: Sequence[Block]) -> None:
        self.matching, self.partition, self.blocks = matching, partition, blocks
        self.responses = matching.responses
        self.size = matching.target.flat.size
        self.groups = sum(block.size for block in blocks)
        self.encoding = _Encoding(matching.bank.encoder, self.size, self.groups, len(blocks)) if matching.bank else None

    def seconds(self, passes: float, count: int) -> float:
        """Seconds of the responses, with ``passes`` backward passes of samples spread over ``count`` cores."""
        cost = self.responses.curvature.cost
        rows = cost.rows + cost.rows_per_solve * len(self.blocks)
        products = cost.multiplications + self.groups * cost.multiplications_per_vector
        work = rows * self._row_seconds + products * self._multiplication_seconds
        return passes * self._backward_seconds / count + work

    @cached_property
    def encoding_seconds(self) -> float:
        """Seconds of the encoding in synsets."""
        if self.encoding is None:
            return 0.0
        products = self.encoding.multiplications * self._multiplication_seconds
        return self.encoding.rows * self._row_seconds + products

    @cached_property
    def _backward_seconds(self) -> float:
        rows = self.partition.rows(0)[: self.matching.settings.samples]
        return backward_seconds(self.matching.target, self.matching.samples, rows)

    @cached_property
    def _multiplication_seconds(self) -> float:
        return multiplication_seconds()

    @cached_property
    def _row_seconds(self) -> float:
        """Seconds of a row of the curvature, or of a Jacobian."""
        computed: list[int] = []
        passed = time_mean(lambda: computed.append(self.responses.curvature.try_rows()))
        return passed / computed[0]

    @property
    def memory(self) -> int:
        """Peak bytes. Curvature rows that do not stay in memory are freed before the bank is built."""
        block = max(block.size for block in self.blocks) * self.matching.bytes_per_group
        cost, bank = self.responses.curvature.cost, self.encoding.memory if self.encoding is not None else 0
        rows = cost.row_bytes + bank if cost.keeps_rows else max(cost.row_bytes, bank)
        return block + cost.factor_bytes + rows + self.kept_bytes + self._read_bytes

    @property
    def _read_bytes(self) -> int:
        """Bytes of the samples of a task that are read from a dataset which is not in memory."""
        samples = self.matching.samples
        if samples.nbytes >= samples.bytes_each * len(samples):
            return 0
        most = min(int(self.partition.sizes.max()), self.matching.settings.samples) * samples.bytes_each
        return 2 * max(most, min(4 * most, 2**28))

    @property
    def kept_bytes(self) -> int:
        """Bytes of the kept responses; 0 if they exceed the budget."""
        kept = keeps_responses(self.matching.settings, self.groups, self.size)
        return kept_bytes(self.groups, self.size) if kept else 0

    @property
    def synset_bytes(self) -> int:
        """Bytes of the images and of each group's targets on them."""
        if self.encoding is None:
            return 0
        pixels = math.prod(self.matching.samples.shape)
        return 4 * self.encoding.images * (pixels + self.groups * len(self.matching.samples.classes))


class _Encoding:
    """Counts the work of encoding K groups of a target with P parameters, in a number of blocks."""

    def __init__(self, encoder: Encoder, parameters: int, groups: int, blocks: int) -> None:
        self.encoder, self.parameters, self.groups, self.blocks = encoder, parameters, groups, blocks

    @property
    def rows(self) -> float:
        """Rows of Jacobians and of the metric, recomputations included."""
        parts = len(self.encoder.slices(self.encoder.min_images))
        return (self._bank_rows + len(self.encoder.metric)) * (parts if parts == 1 else parts + self.blocks)

    @property
    def multiplications(self) -> float:
        """Multiplications of the least squares and of its matrices."""
        bank, metric = self._bank_rows, len(self.encoder.metric)
        squares = bank**2 * (metric + bank / 3)  # half of each, in double precision
        return squares + self.parameters * bank * (bank / 2 + metric + self.groups)

    @property
    def images(self) -> int:
        """Images of the bank: the geometric mean of the smallest and the largest bank that is allowed."""
        return int((self.encoder.min_images * self.encoder.max_images) ** 0.5)

    @property
    def _bank_rows(self) -> int:
        """Rows of the bank's Jacobian: images × classes."""
        return self.images * self.encoder.classes

    @property
    def memory(self) -> int:
        """Bytes of the bank's Jacobian, of the metric's rows and of the least-squares problem."""
        jacobian = min(4 * self._bank_rows * self.parameters, int(self.encoder.settings.memory * 2**29))
        metric = len(self.encoder.metric)
        return jacobian + self.encoder.metric_bytes + least_squares_bytes(self._bank_rows, metric)
