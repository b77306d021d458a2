"""``damping``: fidelity for each multiple of the damping, beside the gain that chooses one without retraining."""

from __future__ import annotations

from collections.abc import Iterator

from ddm.bench import fidelity
from ddm.bench.methods import settings_of
from ddm.bench.output import Report, Row
from ddm.bench.problem import Problem
from ddm.bench.recipes import small_variants
from ddm.counterfactual.displaced import Models
from ddm.curvature.damping import SCALES, choose_damping
from ddm.distil.response.solve import Responses
from ddm.truth.effects import predict_effects
from ddm.truth.figures import FIGURES

_RECIPES = ("plain", "momentum", "decay", "cosine", "adam", "batchnorm")
"""The recipes that are compared."""

_FIGURES = ("oracle_fraction", "rho", "slope")


def run(problem: Problem) -> Report:
    """Compare responses with every multiple of the damping with retraining, for a target of each recipe."""
    chosen = {name: variant for name, variant in small_variants(problem).items() if name in _RECIPES}
    rows = [row for title, changed in chosen.values() for row in _rows(changed, title)]
    _, small = chosen["plain"]
    return Report(
        "damping",
        f"Fidelity by multiple of the damping: {fidelity.describe_problem(small)}",
        rows,
        {
            "title": "recipe",
            "multiple": "multiple c",
            "gain": "gain, relative to the largest",
            "chosen": "chosen",
            **{name: name for name in _FIGURES},
            **{f"retrain_{name}": f"{name} of another retraining" for name in ("oracle_fraction", "rho")},
        },
        notes=[
            "The responses themselves, not encoded in a synset. The gain needs no retraining. The other figures "
            "compare with retraining without each group, with the target's batch order.",
        ],
        reference={"groups": len(small.partition), "batch orders": 2},
    )


def _rows(problem: Problem, title: str) -> Iterator[Row]:
    """A row for each multiple of the damping."""
    responses = Responses(problem.target, problem.train, settings_of(problem, "response"))
    members, curvature = problem.single_groups, responses.curvature
    pulls = responses.pulls(members)
    gains: dict[float, float | None] = {}
    figures: dict[float, Row] = {}

    def measure(scale: float) -> None:
        moved, _ = responses.without_own(pulls, members)
        effects = predict_effects(Models(problem.target, moved), problem.effect_query)
        figures[scale] = fidelity.fidelity_figures(effects, problem)

    for scale in SCALES:
        gains[scale] = curvature.trials(pulls, [scale])[0].gain
        measure(scale)
    largest = max(gain for gain in gains.values() if gain is not None)
    chosen = choose_damping(curvature, pulls).scale
    if chosen not in figures:  # between two multiples, so its gain is not measured
        gains[chosen] = None
        measure(chosen)
    for scale in sorted(figures):
        gain = gains[scale]
        yield {
            "method": f"{title}, {scale:g}",
            "title": title,
            "multiple": scale,
            "gain": None if gain is None else gain / largest,
            "chosen": "yes" if scale == chosen else "",
            **{name: value for name, value in figures[scale].items() if name.removeprefix("retrain_") in FIGURES},
        }
