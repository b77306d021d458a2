"""Digits: the 1,797 handwritten digits that come with scikit-learn, 1×8×8, no files needed.

scikit-learn stores values 0 … 16; they are stretched to 0 … 255. There is no published test split.
"""

from __future__ import annotations

import numpy as np

from ddm.datasets.published import Published
from ddm.datasets.samples import Samples


def read() -> Published:
    """All the digits, as one split."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return Published(Samples.make(images[:, None], bunch.target, [str(digit) for digit in range(10)], what="digits"))
