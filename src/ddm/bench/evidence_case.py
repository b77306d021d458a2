"""A problem with stored evidence: its retrainings by kind, the designs that are compared, and their figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ddm.answers.objectives import OBJECTIVES, Objective
from ddm.bench.evidence_files import StoredEvidence
from ddm.bench.problem import Problem
from ddm.bench.refined_changes import RefinedChanges, Trials
from ddm.bench.timing import question_seconds
from ddm.bench.truths import StoredTruth
from ddm.counterfactual.designs import leave_one_out
from ddm.datamodel import DistilledDatamodel
from ddm.distil import Settings
from ddm.truth.effects import EffectQuery, Effects, effects_of_outputs, log_odds, shift
from ddm.truth.evidence import Evidence
from ddm.truth.figures import FIGURES, mean_spearman
from ddm.truth.posterior import GENERAL

SCORES = ("oracle_fraction", "rho", "rho_global", "slope")
"""The figures that are compared."""

_SINGLES = 1 / 3
"""Share of single groups in the mixture, as ``ddm refine`` plans it."""

_QUESTIONS = 15
"""Questions that are timed."""

_LOG_ODDS = Objective(
    "log-odds", lambda outputs, base, y: log_odds(outputs, y), "log-odds of each sample", stacked=True
)
_SHIFT = Objective("Dist_1", lambda outputs, base, y: shift(outputs, base), "Dist_1 of each sample", stacked=True)

OF_SAMPLES = {"log-odds": _LOG_ODDS, "Dist_1": _SHIFT}
"""Values of each test sample that have intervals."""

OF_ALL = {"loss": OBJECTIVES["correctness"], "accuracy": OBJECTIVES["accuracy"]}
"""Values of all validation samples together that have intervals."""


@dataclass(frozen=True, eq=False)
class Case:
    """A stored problem with its evidence.

    problem:  the problem, with its stored truth
    evidence: the stored evidence
    """

    problem: Problem
    evidence: StoredEvidence

    def __post_init__(self) -> None:
        self.evidence.check_fits(self.truth)

    @property
    def truth(self) -> StoredTruth:
        """The stored truth."""
        assert self.problem.stored is not None
        return self.problem.stored

    @property
    def count(self) -> int:
        """K, the number of groups."""
        return len(self.problem.partition)

    @property
    def budgets(self) -> list[int]:
        """The numbers R of retrainings that are compared."""
        return sorted({number for number in (0, 5, 10, 20, self.enough, self.count) if number <= self.count})

    @property
    def enough(self) -> int:
        """0.4 K, the number of retrainings at which designs are judged."""
        return round(0.4 * self.count)

    @property
    def test(self) -> slice:
        """The test samples among all."""
        return slice(0, self.truth.facts.tests)

    @property
    def validation(self) -> slice:
        """The validation samples among all."""
        return slice(self.truth.facts.tests, None)

    @cached_property
    def datamodel(self) -> DistilledDatamodel:
        """The datamodel, whose answers come from kept responses."""
        return self.problem.datamodel(self.settings)

    @property
    def settings(self) -> Settings:
        """Those of the problem, without the synset."""
        return replace(self.problem.setup.settings, matching="response", synset=False)

    @property
    def base(self) -> Tensor:
        """Logits ``(N, L)`` with all groups, in the target's batch order."""
        return self.truth.logits[0, 0]

    @cached_property
    def everything(self) -> np.ndarray:
        """All removals ``(M, K)`` that are predicted: single groups, then pairs, then all unions of the evidence."""
        removed: np.ndarray = np.vstack([leave_one_out(self.count), self.truth.pairs, self.evidence.removed])
        return removed

    @cached_property
    def prior(self) -> Tensor:
        """Predicted changes of the logits by these removals ``(M, N, L)``."""
        x = self.problem.effect_query.inputs()
        outputs: Tensor = self.datamodel.models.outputs(self.everything, x).cpu() - self.problem.target.outputs(x).cpu()
        return outputs

    @property
    def prior_of_singles(self) -> Tensor:
        """Predicted changes of the logits by removing each group ``(K, N, L)``."""
        return self.prior[: self.count]

    def prior_of(self, removed: np.ndarray) -> Tensor:
        """Predicted changes of the logits by some of these removals."""
        places = {row.tobytes(): place for place, row in enumerate(self.everything)}
        return self.prior[[places[row.tobytes()] for row in removed]]

    @cached_property
    def importance(self) -> np.ndarray:
        """How much the removal of each group is predicted to change validation samples ``(K,)``."""
        base = self.base[self.validation]
        moved: np.ndarray = shift(base + self.prior_of_singles[:, self.validation], base).mean(1).numpy()
        return moved

    # --- retrainings ---

    @cached_property
    def singles(self) -> Trials:
        """Those without one group in the target's batch order, the most important first."""
        changes = self.truth.logits[0, 1 : self.count + 1] - self.base
        return self._trials(leave_one_out(self.count), changes).take(np.argsort(-self.importance, kind="stable"))

    @cached_property
    def pairs(self) -> Trials:
        """Those without two groups that leave a group of each class."""
        first = self.count + 1
        found = self._trials(self.truth.pairs, self.truth.logits[0, first : first + len(self.truth.pairs)] - self.base)
        parents = np.asarray(self.problem.partition.parents)
        classes = np.unique(parents)[:, None] == parents
        return found.take((~found.removed[:, None] & classes).any(2).all(1))

    @cached_property
    def unions(self) -> Trials:
        """Those without a tenth of the groups."""
        return self._of_size(min)

    @cached_property
    def larger(self) -> Trials:
        """Those without a sixth of the groups."""
        return self._of_size(max)

    def _of_size(self, choose: Callable[[np.ndarray], int]) -> Trials:
        stored, own = self.evidence, self.evidence.orders == 0
        sizes = stored.removed.sum(1)
        rows = own & (sizes == choose(sizes[own]))
        return self._trials(stored.removed[rows], stored.changes[torch.as_tensor(rows)])

    def _trials(self, removed: np.ndarray, changes: Tensor) -> Trials:
        return Trials(removed, np.zeros(len(removed), dtype=np.int64), changes)

    def mixture(self, number: int, draw: int = 0) -> Trials:
        """As ``ddm refine`` plans it: a third leave out one group, the others a tenth of the groups."""
        alone = _alone(number)
        return _first(self.singles, alone).join(_first(self.unions, number - alone, draw))

    def elsewhere(self, number: int, alone: int | None = None) -> Trials:
        """In other batch orders, ``alone`` leave out one group (default: a third), the others a sixth of the groups.

        The most important groups come first, and unions of each batch order take turns.
        """
        stored = self.evidence
        other = stored.orders != 0
        trials = Trials(stored.removed[other], stored.orders[other], stored.changes[torch.as_tensor(other)])
        single = trials.removed.sum(1) == 1
        alone = _alone(number) if alone is None else alone
        rows = np.flatnonzero(single)
        ranked = rows[np.argsort(-self.importance[trials.removed[rows].argmax(1)], kind="stable")]
        turns = np.flatnonzero(~single)
        turn = np.array([(trials.orders[:row] == trials.orders[row])[~single[:row]].sum() for row in turns])
        rounds = turns[np.argsort(turn, kind="stable")]
        return trials.take(np.concatenate([ranked[:alone], rounds[: number - alone]]))

    def designs(self, number: int, draw: int = 0) -> dict[str, Trials]:
        """Retrainings in the target's batch order, by name of the design.

        draw: which stored unions come first
        """
        return {
            "mixture": self.mixture(number, draw),
            "singles": _first(self.singles, number),
            "unions": _first(self.unions, number, draw),
            "larger unions": _first(self.larger, number, draw),
        }

    # --- figures ---

    @cached_property
    def query(self) -> EffectQuery:
        """The effects that are scored: those of single groups."""
        return replace(self.problem.effect_query, unions=np.empty((0, self.count), dtype=bool))

    @cached_property
    def true(self) -> list[Effects]:
        """True effects, one for each batch order: the target's, and one that no evidence has."""
        return self.truth.effects(self.query)

    def refined(self, trials: Trials, prior: Tensor | None = None) -> RefinedChanges:
        """Predicted changes, corrected by retrainings; ``prior`` replaces the datamodel's for single groups."""
        return RefinedChanges(trials, self.prior_of_singles if prior is None else prior, self.validation)

    def effects(self, refined: RefinedChanges, order: int = 0, prior: Tensor | None = None) -> Effects:
        """Effects of all groups, in a batch order or in general."""
        predicted = self.prior_of_singles if prior is None else prior
        changes = refined.of(leave_one_out(self.count), predicted, order)
        return effects_of_outputs(self.base + changes, self.base, self.query)

    def same_run(self, trials: Trials, prior: Tensor | None = None) -> dict[str, float]:
        """Figures in the target's batch order: of all groups, and of those never retrained alone with ``new_``."""
        found = self.effects(self.refined(trials, prior), 0, prior)
        new = np.flatnonzero(~trials.alone)
        unrefined = effects_of_outputs(self.base + self.prior_of_singles, self.base, self.query)
        few = len(new) < 4
        return {
            **_score(found, self.true[0]),
            **{f"new_{name}": np.nan if few else value for name, value in self._score_of(found, new).items()},
            "new_unrefined_rho": np.nan if few else self._score_of(unrefined, new)["rho"],
        }

    def _score_of(self, found: Effects, groups: np.ndarray) -> dict[str, float]:
        return _score(found.of(groups), self.true[0].of(groups))

    def other_run(self, trials: Trials) -> dict[str, float]:
        """Figures in a batch order that no evidence has."""
        return _score(self.effects(self.refined(trials), GENERAL), self.true[1])

    def hits(self, trials: Trials) -> dict[str, dict[str, np.ndarray]]:
        """How often intervals hold the true value, by kind of removal and by objective, for each retraining."""
        refined = self.refined(trials)
        used = {row.tobytes() for row in trials.removed}
        kinds = {
            "singles": self.singles.take(~trials.alone[self.singles.removed.argmax(1)]),
            "pairs": self.pairs,
            "unions": self.unions,
        }
        left = {
            kind: asked.take(np.array([row.tobytes() not in used for row in asked.removed], dtype=bool))
            for kind, asked in kinds.items()
        }
        return {kind: self._hits(refined, asked) for kind, asked in left.items() if len(asked)}

    def _hits(self, refined: RefinedChanges, asked: Trials) -> dict[str, np.ndarray]:
        predicted, problem = self.prior_of(asked.removed), self.problem
        parts: list[tuple[Mapping[str, Objective], Tensor, slice]] = [
            (OF_SAMPLES, problem.test.labels, self.test),
            (OF_ALL, problem.validation.labels, self.validation),
        ]
        return {
            name: refined.hits(objective, asked, predicted, self.base, labels, samples)
            for objectives, labels, samples in parts
            for name, objective in objectives.items()
        }

    def log_odds_only(self, trials: Trials, prior: np.ndarray) -> dict[str, float]:
        """``rho`` if only the log-odds of test samples are predicted, as ``prior (K, m)``.

        Scores of other methods have no unit, so they are multiplied by the number that fits the retrainings best. The
        posterior's parameters are estimated on the same test samples, whose retrained outputs a user also has.
        """
        y, base = self.problem.test.labels, self.base[self.test]
        changes = log_odds(base + trials.changes[:, self.test], y) - log_odds(base, y)
        predicted = torch.as_tensor(prior).double()
        seen = torch.as_tensor(trials.removed).double() @ predicted
        if len(trials) and float(seen.square().sum()):
            predicted = predicted * (seen * changes).sum() / seen.square().sum()
        small = Trials(trials.removed, trials.orders, changes[..., None])
        refined = RefinedChanges(small, predicted[..., None], slice(None))
        found = refined.of(leave_one_out(self.count), predicted[..., None])[..., 0].numpy()
        new, true = np.flatnonzero(~trials.alone), self.true[0].margin
        return {
            "rho": mean_spearman(found, true),
            "new_rho": mean_spearman(found[new], true[new]) if len(new) >= 4 else np.nan,
        }

    def question_seconds(self) -> tuple[float, float]:
        """CPU seconds of a question before and after refining with K retrainings.

        They depend on the number and the size of networks, not on their weights, so the datamodel's own models stand
        in for retrained ones.
        """
        removed = np.vstack([np.zeros((1, self.count), dtype=bool), self.mixture(self.count).removed])
        mine, target = self.datamodel, self.problem.target
        evidence = Evidence(
            names=self.problem.partition.names,
            removed=removed,
            orders=np.zeros(len(removed), dtype=np.int64),
            theta=mine.models.parameters(removed).cpu(),
            fixed={name: torch.stack([part] * len(removed)).cpu() for name, part in target.fixed.items()},
            origin=target.origin(mine.data),
        )
        after = DistilledDatamodel(
            target, mine.partition, None, None, mine.settings, mine.data, responses=mine.responses, evidence=evidence
        )
        first, second = (question_seconds(one, self.problem.test, _QUESTIONS).whole for one in (mine, after))
        return first, second


def _alone(number: int) -> int:
    """How many of some retrainings leave out one group in a mixture."""
    return max(1, round(_SINGLES * number)) if number else 0


def _first(trials: Trials, number: int, draw: int = 0) -> Trials:
    """The first of some retrainings, after those of ``draw`` rounds, in each of which every group is once."""
    size = round(trials.removed.shape[1] / trials.removed[0].sum())
    return trials.take(np.roll(np.arange(len(trials)), -draw * size)[:number])


def _score(found: Effects, true: Effects) -> dict[str, float]:
    return {name: FIGURES[name].score(FIGURES[name].effects(found), FIGURES[name].effects(true)) for name in SCORES}
