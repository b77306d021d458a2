"""Datasets: samples with labels, and the readers that load them."""

from ddm.data.registry import default_root, is_table, load, names
from ddm.data.samples import Data, Samples

__all__ = ["Data", "Samples", "default_root", "is_table", "load", "names"]
