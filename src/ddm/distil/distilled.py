"""The results of a distillation, from which answers come: kept responses, synsets, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddm.distil.kept import KeptResponses
from ddm.distil.synset import Synset
from ddm.errors import InputError
from ddm.plots.units import size_text


@dataclass(frozen=True)
class Distilled:
    """The results of a distillation. Answers come from the kept responses if there are any, else from the synsets.

    synset:       the synset of every group; None if it is still to be distilled
    class_synset: the synset of every class; None if groups cut across classes, or without a synset
    responses:    the kept responses; None if they do not fit the budget, and for reverse and forward matching
    """

    synset: Synset | None
    class_synset: Synset | None
    responses: KeptResponses | None = None

    def __post_init__(self) -> None:
        if self.synset is None and self.responses is None:
            raise InputError("a datamodel answers from a synset or from kept responses: give one of them.")

    @property
    def made_synset(self) -> Synset:
        """The synset of every group; refused if it is still to be distilled."""
        if self.synset is None:
            raise InputError("this datamodel has no synset yet: make it with distil(), or with ddm distil RUN.")
        return self.synset

    @property
    def damping(self) -> dict[str, float]:
        """How the damping of response matching was chosen: the multiple ``scale``, and the gain of each tried."""
        made = self.responses or self.synset
        assert made is not None
        return made.damping

    @property
    def stopped(self) -> dict[str, str]:
        """By name of a group, why its matching was stopped; such a group cannot be removed."""
        return {} if self.responses is not None or self.synset is None else self.synset.stopped

    def check_made_for(self, origin: Mapping[str, str]) -> None:
        """Refuse results of another network, target or data, and say what differs."""
        for each in (self.synset, self.class_synset, self.responses):
            if each is not None:
                each.check_made_for(origin)

    @property
    def sentence(self) -> str:
        """One sentence that says where answers come from, and how much of the change the synset misses."""
        if self.responses is None:
            return f"Answers come from the synset{self._described_synset}."
        kept = f"Answers come from kept responses ({size_text(self.responses.nbytes)})"
        return f"{kept}; " + (
            "there is no synset yet." if self.synset is None else f"the synset{self._described_synset}."
        )

    @property
    def _described_synset(self) -> str:
        """The size of the synset, and what it misses if that was measured."""
        if self.synset is None:
            return ""
        size, link = f" ({size_text(self.synset.nbytes)})", "" if self.responses is not None else ", which"
        return size + (
            f"{link} misses {float(self.synset.error.mean()):.1%} of the change" if self.synset.shared else ""
        )
