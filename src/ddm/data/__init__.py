"""Datasets: samples with labels, and the readers that load them."""

from ddm.data.registry import load, names, usual_root
from ddm.data.samples import Data, Samples

__all__ = ["Data", "Samples", "load", "names", "usual_root"]
