"""Distil the influence of each group, a cluster or a class, into its synset."""

from ddm.distil.driver import MATCHINGS, distil, estimate_matching
from ddm.distil.estimate import MatchingEstimate
from ddm.distil.settings import Settings, changed, paper, private

__all__ = ["MATCHINGS", "MatchingEstimate", "Settings", "changed", "distil", "estimate_matching", "paper", "private"]
