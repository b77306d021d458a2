"""Digits: the 1,797 handwritten digits that come with scikit-learn, 1×8×8, no files needed.

scikit-learn stores values 0 … 16; they are stretched to 0 … 255. There is no published test split.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from ddm.data.readers.published import Published
from ddm.data.samples import Samples


def read() -> Published:
    """All the digits, as one split."""
    values, labels = _values()
    images = np.rint(values.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    return Published(Samples.from_arrays(images, labels, [str(digit) for digit in range(10)], what="digits"))


def _values() -> tuple[np.ndarray, np.ndarray]:
    """Values ``(n, 64)`` and labels ``(n,)``."""
    package = importlib.util.find_spec("sklearn")
    folders = package.submodule_search_locations if package is not None else None
    file = Path(folders[0], "datasets", "data", "digits.csv.gz") if folders else None
    if file is not None and file.exists():  # reading the file takes a tenth of the time that importing its package does
        table = np.loadtxt(file, delimiter=",")
        return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.data, bunch.target
