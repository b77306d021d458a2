"""Distil the influence of each group, a cluster or a class, into its synset."""

from ddm.distil.distilled import Distilled
from ddm.distil.driver import MATCHINGS, distil, distil_kept, estimate_matching
from ddm.distil.estimate import MatchingEstimate
from ddm.distil.settings import Settings, changed, paper, private

__all__ = [
    "MATCHINGS",
    "Distilled",
    "MatchingEstimate",
    "Settings",
    "changed",
    "distil",
    "distil_kept",
    "estimate_matching",
    "paper",
    "private",
]
