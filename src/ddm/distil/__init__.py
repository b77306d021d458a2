"""Distilling the influence of every group into its synset, the clusters' and the classes' in one go."""

from ddm.distil.driver import distil
from ddm.distil.gradient.matching import MATCHINGS
from ddm.distil.settings import Settings, changed, paper, private

__all__ = ["MATCHINGS", "Settings", "changed", "distil", "paper", "private"]
