"""A method's predicted effects and their cost, stored as a file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ddm.compute.tensors import read_metadata, read_tensors, write_tensors
from ddm.compute.validation import check_fields
from ddm.errors import InputError
from ddm.truth.effects import Effects


@dataclass(frozen=True)
class Cost:
    """The cost of a method.

    offline: seconds before the first question
    query:   seconds per test sample
    bytes:   size of the data stored between questions
    """

    offline: float = 0.0
    query: float = 0.0
    bytes: int = 0


@dataclass(frozen=True)
class Outcome:
    """The effects that a method predicts, or the reason why it cannot, and its cost."""

    effects: Effects | None
    cost: Cost
    reason: str = ""

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        arrays = vars(self.effects) if self.effects is not None else {}
        tensors = {name: torch.as_tensor(values) for name, values in arrays.items()}
        write_tensors(path, tensors, {"cost": asdict(self.cost), "reason": self.reason})

    @classmethod
    def load(cls, path: Path) -> Outcome:
        """Read a file that ``save`` wrote."""
        tensors, facts = read_tensors(path), read_metadata(path)
        try:
            arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
            outcome = cls(Effects(**arrays) if arrays else None, Cost(**facts["cost"]), facts["reason"])
            check_fields(outcome.cost)
            check_fields(outcome)
        except (KeyError, TypeError, ValueError) as error:
            why = str(error).rstrip(".")
            raise InputError(
                f"'{path}' is not a benchmark outcome ({why}): delete it, and the benchmark computes it again."
            ) from None
        return outcome
