"""Groups scored by their size: removing more data changes more."""

import numpy as np

from ddm.baselines.group_scores import class_signs
from ddm.baselines.protocol import ScoreRequest, Scores


def size(request: ScoreRequest) -> Scores:
    """Shift ``n_κ``; loss effect ``+n_κ`` where the group has the sample's class, ``−n_κ`` elsewhere."""
    sizes = request.partition.sizes.astype(np.float64)[:, None]
    return Scores(
        np.repeat(sizes, len(request.test), axis=1),
        sizes * class_signs(request, request.test.labels),
        (sizes * class_signs(request, request.validation.labels)).mean(1),
        sizes.nbytes,
    )
