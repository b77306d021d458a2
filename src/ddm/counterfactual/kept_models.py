"""Models that are displaced by kept responses."""

from __future__ import annotations

from torch import Tensor

from ddm.compute.once import Once
from ddm.counterfactual.displaced import Models
from ddm.distil.kept import Displacements
from ddm.training.target import Target


class KeptModels(Models):
    """The models θ_τ + Σ_κ m_κ Δ_κ for displacements Δ_κ in half precision; m_κ is 1 for a removed group."""

    def __init__(self, target: Target, displacements: Displacements) -> None:
        self.target, self.displacements, self.own = target, displacements, displacements.own
        self._all_directions: Once[Tensor] = Once()

    def __len__(self) -> int:
        """K, the number of groups."""
        return len(self.displacements)

    def directions(self, groups: Tensor | None) -> Tensor:
        """Δ_κ ``(B, P)`` of some groups, or of all. Cached if all fit the memory budget."""
        if groups is not None and not self._fits_budget:
            return self.displacements.part(groups.cpu()).rows().to(self.target.theta)
        every = self._all_directions.get(lambda: self.displacements.rows().to(self.target.theta))
        return every if groups is None else every[groups]
