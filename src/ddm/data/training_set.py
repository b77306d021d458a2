"""The training set of a datamodel: loaded when it is first needed, and checked to be the datamodel's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.data import Dataset

from ddm.compute.once import Once
from ddm.data.samples import Samples
from ddm.data.tasks import Task
from ddm.errors import InputError


class TrainingSet:
    """The training set of a datamodel.

    fingerprint: identifies it
    samples:     the samples, if they are loaded
    find:        loads them when they are first needed; None if no place is known
    name:        name of the dataset, for messages
    task:        how the labels of a dataset that the user gives are read
    """

    def __init__(
        self,
        fingerprint: str,
        samples: Samples | None = None,
        described: Mapping[str, Any] | None = None,
        find: Callable[[], Samples] | None = None,
        name: str = "",
        task: Task | None = None,
    ) -> None:
        self.task = task
        self.fingerprint, self.samples, self.find, self.name = fingerprint, samples, find, name
        self._described = described
        self._found: Once[Samples] = Once()

    @property
    def described(self) -> Mapping[str, Any] | None:
        """Facts about the training set, used to say how another training set differs."""
        return self.samples.fingerprint_parts() if self.samples is not None else self._described

    def get(self, given: Samples | Dataset[Any] | None = None) -> Samples:
        """The training set that the user gives, checked, or the one that was found."""
        if given is not None:
            samples = Samples.from_dataset(given, task=self.task)
            self._check(samples, "this")
            return samples
        if self.samples is None:
            self.samples = self._found.get(self._load)
        return self.samples

    def _load(self) -> Samples:
        """Load the training set that the run names, and check that it is unchanged."""
        if self.find is None:
            raise InputError(
                "this run was saved from Python and does not name its data: give the training set as train=…."
            )
        try:
            samples = self.find()
        except InputError as error:
            why = str(error).rstrip(".")
            raise InputError(f"the training set of this run cannot be read: give it as train=… ({why}).") from error
        self._check(samples, f"'{self.name}'")
        return samples

    def _check(self, samples: Samples, what: str) -> None:
        """Refuse a training set other than the one of the datamodel, and say what differs."""
        if samples.fingerprint() != self.fingerprint:
            raise InputError(
                f"{what} is another training set than the datamodel was made with "
                f"({samples.difference_from(self.described)}): give the datamodel's own training set."
            )
