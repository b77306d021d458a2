"""The size of a group: removing more data changes more."""

import numpy as np

from ddm.baselines.effects import own
from ddm.baselines.protocol import Question, Scores


def size(question: Question) -> Scores:
    """``n_κ`` for every sample; for the loss ``+n_κ`` where the group is of the sample's class, else ``−n_κ``."""
    sizes = question.partition.sizes.astype(np.float64)[:, None]
    return Scores(
        np.repeat(sizes, len(question.test), axis=1),
        sizes * own(question, question.test.labels),
        (sizes * own(question, question.validation.labels)).mean(1),
        sizes.nbytes,
    )
