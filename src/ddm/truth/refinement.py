"""Refinement: which retrainings to make next, and what they brought.

A third of the retrainings leave out one group: those whose removal is predicted to change the outputs most. The others
leave out a tenth of the groups at a time, from different classes. Every group is in one of these unions before any
group is in a second one, so they also correct groups that are never left out alone. Unions of more groups, or of groups
of one class, do more together than the sum of what they do alone (docs/method.md has the figures).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from typing import Any

import numpy as np
from torch import Tensor

from ddm.compute import progress
from ddm.counterfactual.designs import leave_one_out
from ddm.counterfactual.displaced import Models
from ddm.data.inputs import X
from ddm.errors import InputError
from ddm.groups.partition import Partition
from ddm.truth.evidence import Evidence, Removal, informative
from ddm.truth.posterior import fit_spread
from ddm.truth.refined import Residuals
from ddm.truth.retraining import Retraining, group_rows

_SINGLES = 1 / 3
"""Share of the retrainings that leave out one group."""

_UNION = 0.1
"""Share of the groups that a union leaves out."""

_REPEATED = 20
"""From this number of retrainings on, a tenth of them repeat others in a second batch order."""

_PER_ORDER = 5
"""Retrainings in each new batch order, for the model in general."""

_ROUNDS = 100
"""Unions that are drawn for each group until enough are new."""

Request = tuple[np.ndarray, int]
"""A retraining to make: the mask of its removed groups ``(K,)``, and its batch order."""


@dataclass(frozen=True)
class Refinement:
    """The result of a refinement: the retrainings that were made, and the error before and after.

    singles:    number of new retrainings without one group
    unions:     number of new retrainings without several groups
    bases:      number of new retrainings on all groups, one for each new batch order, to compare the others with
    retrained:  number of all retrainings without some groups that the datamodel has
    size:       s, by which predicted effects are multiplied
    before:     root mean square of what the predictions missed of the retrainings' changes of outputs
    after:      the same if each retraining is predicted with the help of the others
    """

    singles: int
    unions: int
    bases: int
    retrained: int
    size: float
    before: float
    after: float

    @property
    def sentence(self) -> str:
        """Two sentences: the retrainings that were made, and how much they reduced the error."""
        left = 1 - self.after / self.before if self.before else 0.0
        better = f"{left:.0%} smaller" if left >= 0.005 else "no smaller"
        kinds = describe(self.singles, self.unions, self.bases)
        return (
            f"{self.singles + self.unions + self.bases} retrainings: {kinds}. Predicted from all others, the changes "
            f"that a retraining shows are missed by an error that is {better} than without them."
        )

    def to_dict(self) -> dict[str, Any]:
        """All fields and the sentence as JSON values."""
        return asdict(self) | {"sentence": self.sentence}

    def __str__(self) -> str:
        return self.sentence


def describe(singles: int, unions: int, bases: int) -> str:
    """The kinds of some retrainings, in words."""
    kinds = [
        (singles, f"{singles} without one group each"),
        (unions, f"{unions} without several groups at a time"),
        (bases, f"{bases} with all groups to compare with"),
    ]
    return ", ".join(text for count, text in kinds if count) or "none"


def plan(
    partition: Partition,
    importance: np.ndarray,
    count: int,
    made: Sequence[Removal] = (),
    *,
    general: bool = False,
    seed: int = 0,
) -> list[Request]:
    """At most ``count`` retrainings that were not made yet.

    importance: how much the removal of each group is predicted to change ``(K,)``
    made:       the retrainings that exist
    general:    spend all of them on batch orders that were not used yet
    """
    if not isinstance(count, (int, np.integer)) or count < 0:
        raise InputError("refining needs a whole number of retrainings, 0 or more (--retrain).")
    if len(partition) < 2:
        raise InputError("refining needs at least 2 groups: fit with more clusters.")
    if not count:
        return []
    done = set(made)
    if general:
        return _plan_general(partition, importance, count, done)
    repeats = count // 10 if count >= _REPEATED else 0
    requests = _plan_order(partition, importance, count - repeats, done, 0, seed)
    if not requests:
        raise InputError(
            "every group, and every union of groups that is small enough, was retrained already: ask your questions, "
            "or retrain in other batch orders (--general)."
        )
    again = [(row, 1) for row, _ in requests if (row.tobytes(), 1) not in done]
    return [*requests, *again[:repeats]]


def _plan_general(partition: Partition, importance: np.ndarray, count: int, done: set[Removal]) -> list[Request]:
    """Single groups in new batch orders, a few in each, the most important first, then all again.

    Unions did worse here: another batch order has other effects, and a union shows their sum only.
    """
    first = 1 + max((order for _, order in done), default=0)
    singles = leave_one_out(len(partition))[np.argsort(-importance, kind="stable")]
    singles = singles[informative(partition, singles)]
    each = min(_PER_ORDER, max(1, len(singles)))
    return [(row, first + number // each) for number, row in enumerate(islice(cycle(singles), count))]


def _plan_order(
    partition: Partition, importance: np.ndarray, count: int, done: set[Removal], order: int, seed: int
) -> list[Request]:
    """``count`` retrainings in one batch order, or fewer if all were made."""

    def new(rows: Iterable[np.ndarray]) -> Iterator[Request]:
        return ((row, order) for row in rows if (row.tobytes(), order) not in done)

    singles = leave_one_out(len(partition))[np.argsort(-importance, kind="stable")]
    singles = singles[informative(partition, singles)]
    unions = list(islice(new(_unions(partition, np.random.default_rng([seed, order]))), count))
    alone = max(1, round(_SINGLES * count), count - len(unions))
    chosen = list(islice(new(singles), alone))
    return [*chosen, *unions[: count - len(chosen)]]


def _unions(partition: Partition, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Different masks ``(K,)`` of small unions of groups that say something about single groups."""
    groups, seen = len(partition), set()
    for union in islice(deal_unions(partition, max(2, round(_UNION * groups)), generator), _ROUNDS * groups):
        if union.tobytes() not in seen and union.sum() > 1 and informative(partition, union[None])[0]:
            seen.add(union.tobytes())
            yield union


def deal_unions(partition: Partition, size: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Masks ``(K,)`` of unions of about ``size`` groups, without end. Each round has every group once."""
    groups = len(partition)
    parents = np.zeros(groups, dtype=np.int64) if partition.parents is None else np.asarray(partition.parents)
    count = max(2, min(round(groups / size), groups // 2))
    while True:
        ranks = generator.permutation(int(parents.max()) + 1)[parents]
        order = np.lexsort((generator.random(groups), ranks))
        unions = np.zeros((count, groups), dtype=bool)
        unions[np.arange(groups) % count, order] = True  # dealt like cards: groups of one class come apart
        yield from unions


def announce(retraining: Retraining, partition: Partition, requests: Sequence[Request]) -> None:
    """Say before they start how many retrainings there will be, and how long they take."""
    nothing = np.zeros((1, len(partition)), dtype=bool)
    orders = {order for _, order in requests}
    bases = sum(retraining.count_missing(group_rows(partition, nothing), order) for order in orders)
    sizes = [
        int(row.sum()) for row, order in requests if retraining.count_missing(group_rows(partition, row[None]), order)
    ]
    if not sizes and not bases:
        return
    kinds = describe(sizes.count(1), len(sizes) - sizes.count(1), bases)
    seconds = retraining.estimate_seconds()
    cost = "" if seconds is None else f" Each takes about {max(seconds, 0.1):.1f} s."
    progress.note(f"Retraining {len(sizes) + bases} times: {kinds}.{cost}")


def learn(groups: Models, evidence: Evidence | None, new: Evidence, x: X) -> tuple[Evidence, Refinement]:
    """All retrainings with the parameters of their posterior, and what the new ones brought.

    groups:   the unrefined models without some groups
    evidence: the retrainings so far; None if there are none
    x:        inputs ``(n, ...)`` on whose outputs the parameters are estimated
    """
    joined = new if evidence is None else evidence.join(new)
    added = joined.removed[0 if evidence is None else len(evidence.orders) :].sum(1)
    residuals, posterior = Residuals(groups, joined), joined.posterior
    changes, predicted = (centred(part) for part in (residuals.changes(x), residuals.predicted(x)))
    fitted = replace(joined, spread=fit_spread(posterior.removed, posterior.orders, changes, predicted))
    left, _ = fitted.posterior.left_out()
    missed = np.einsum("rs,snl->rnl", left, changes - fitted.spread.scale * predicted)
    return fitted, Refinement(
        singles=int((added == 1).sum()),
        unions=int((added > 1).sum()),
        bases=int((added == 0).sum()),
        retrained=len(fitted),
        size=fitted.spread.scale,
        before=float(np.sqrt(np.square(changes - predicted).mean())),
        after=float(np.sqrt(np.square(missed).mean())),
    )


def centred(logits: Tensor) -> np.ndarray:
    """Logits ``(R, n, L)`` minus their mean over classes, on which probabilities do not depend."""
    found: np.ndarray = (logits - logits.mean(-1, keepdim=True)).double().cpu().numpy()
    return found
