"""The choice of the damping: by gain and missed curvature, which a brute-force search on known matrices confirms."""

from types import SimpleNamespace

import pytest
import torch

from ddm.curvature.damping import _FLAT, _MOST_MISSED, SCALES, _crossing, choose_damping
from ddm.curvature.protocol import Trial


class KnownCurvature:
    """A curvature given by matrices: the one that the solve sees, and the one of unseen rows."""

    def __init__(self, seen, unseen, damping):
        self.seen, self.unseen, self.damping = seen, unseen, damping
        self.scale, self.tried = 1.0, []
        self.cost = SimpleNamespace(rows_per_solve=0)

    def set_damping(self, scale, *, final=True):
        self.scale = scale
        if not final:
            self.tried.append(scale)

    def solve(self, right):
        return torch.linalg.solve(self.seen + self.scale * torch.diag(self.damping), right.T).T

    def trials(self, pulls, scales):
        found = []
        for scale in scales:
            self.set_damping(scale, final=False)
            directions = self.solve(pulls)
            found.append(Trial.of((directions * pulls).sum(1), self.unseen_quadratic(directions)))
        return found

    def unseen_quadratic(self, directions):
        return torch.einsum("bi,ij,bj->b", directions, self.unseen + torch.diag(self.damping), directions)


def sampled(rows, size=60, true_rank=30, seed=0, damping=1e-2):
    """A curvature of rank 30 from a few random rows, with as many unseen ones, and pulls that lie in its range."""
    generator = torch.Generator().manual_seed(seed)
    factor = torch.randn(true_rank, size, generator=generator, dtype=torch.float64)
    first, second = (torch.randn(rows, true_rank, generator=generator, dtype=torch.float64) @ factor for _ in range(2))
    pulls = 0.1 * torch.randn(8, true_rank, generator=generator, dtype=torch.float64) @ factor
    damping = torch.full((size,), damping, dtype=torch.float64)
    return KnownCurvature(first.T @ first / rows, second.T @ second / rows, damping), pulls, factor.T @ factor


def energy_gained(curvature, pulls, true):
    """By how much each direction can lower the loss with the true curvature, summed."""
    directions = curvature.solve(pulls)
    curved = torch.einsum("bi,ij,bj->b", directions, true + torch.diag(curvature.damping), directions)
    return float(((directions * pulls).sum(1).square() / curved).sum())


@pytest.mark.parametrize("rows", [5, 15, 2000])
def test_the_choice_is_nearly_as_good_as_the_best_multiple_for_the_true_curvature(rows):
    curvature, pulls, true = sampled(rows)
    choose_damping(curvature, pulls)
    chosen = energy_gained(curvature, pulls, true)
    gains = []
    for scale in SCALES:
        curvature.set_damping(scale)
        gains.append(energy_gained(curvature, pulls, true))
    assert chosen >= 0.85 * max(gains)


def test_few_rows_need_more_damping_than_the_training_has():
    few, pulls, _ = sampled(rows=5)
    many, _, _ = sampled(rows=2000)
    assert choose_damping(few, pulls).scale > 1
    assert choose_damping(many, pulls).scale == 1


@pytest.mark.parametrize("rows", [5, 10, 15, 30])
def test_the_choice_is_the_least_multiple_with_a_large_gain_and_little_missed_curvature(rows):
    curvature, pulls, _ = sampled(rows, damping=1.0)
    chosen = choose_damping(curvature, pulls).scale
    grid = [10 ** (step / 40) for step in range(121)]
    trials = dict(zip(grid, curvature.trials(pulls, grid), strict=True))
    largest = max(trial.gain for trial in trials.values())
    fine = [c for c, trial in trials.items() if trial.gain >= (1 - _FLAT) * largest and trial.missed <= _MOST_MISSED]
    assert chosen == pytest.approx(min(fine), rel=0.35)  # the search interpolates between few multiples


def test_missed_curvature_is_that_of_unseen_rows_as_a_multiple_of_what_the_solve_saw():
    curvature, pulls, _ = sampled(rows=2000)
    curvature.unseen = curvature.seen
    (exact,) = curvature.trials(pulls, [1.0])
    curvature.unseen = 4 * curvature.seen
    (stiffer,) = curvature.trials(pulls, [1.0])
    assert exact.missed == pytest.approx(1)
    assert stiffer.missed == pytest.approx(4, rel=0.01)
    assert stiffer.gain == pytest.approx(exact.gain / 4, rel=0.01)


def test_responses_that_miss_much_curvature_are_damped_even_where_the_gain_is_flat():
    curvature, pulls, _ = sampled(rows=2000, damping=1.0)
    curvature.unseen = 4 * curvature.seen
    found = choose_damping(curvature, pulls)
    assert min(found.gains.values()) < max(found.gains.values()) == found.gains[1.0]
    assert curvature.trials(pulls, [found.scale])[0].missed == pytest.approx(_MOST_MISSED, rel=0.1)


def test_a_crossing_is_interpolated_over_the_logarithm():
    assert _crossing([1.0, 4.0], [-1.0, -2.0]) == 1
    assert _crossing([1.0, 4.0, 9.0], [1.0, -1.0, -2.0]) == pytest.approx(2)
    assert _crossing([1.0, 4.0], [2.0, 1.0]) == 4
    assert _crossing([1.0, 4.0], [float("inf"), -1.0]) == 4


def test_groups_without_a_pull_do_not_change_the_choice():
    few, pulls, _ = sampled(rows=5)
    with_zero, _, _ = sampled(rows=5)
    chosen = choose_damping(few, pulls)
    assert choose_damping(with_zero, torch.cat([torch.zeros_like(pulls[:1]), pulls])) == chosen
    assert choose_damping(with_zero, torch.zeros_like(pulls)).scale == 1


def test_every_multiple_is_tried_once_at_most_and_its_gain_is_kept():
    curvature, pulls, _ = sampled(rows=2000)
    found = choose_damping(curvature, pulls)
    assert curvature.scale == found.scale
    assert sorted(curvature.tried) == list(found.gains)
    assert len(found.gains) < len(SCALES)
