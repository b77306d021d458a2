"""Distilling the influence of every group into its synset, the clusters' and the classes' in one go."""

from ddm.matching.distil import distil
from ddm.matching.gradient_work import MATCHINGS
from ddm.matching.settings import Settings, changed, paper, private

__all__ = ["MATCHINGS", "Settings", "changed", "distil", "paper", "private"]
