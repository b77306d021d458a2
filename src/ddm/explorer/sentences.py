"""Effects and answers as sentences, with signs and units in words."""

from __future__ import annotations

import math

import numpy as np

from ddm.answers.attribution import Attribution
from ddm.answers.intervals import NO_INTERVALS, describe_evidence
from ddm.data.shown import values_text
from ddm.errors import InputError
from ddm.explorer.explored_run import ExploredRun
from ddm.explorer.question import Question
from ddm.explorer.state import State
from ddm.plots import units


def signed_effect(state: State, effect: float) -> str:
    """The effect of a removal with its sign and unit, such as ``−8.7 points``."""
    if math.isnan(effect):
        return "not measured"
    return units.change_text(effect, _is_fraction(state)).replace("-", "−", 1)


def value_text(state: State, value: float) -> str:
    """A value of the objective in its unit."""
    return units.value_text(value, _is_fraction(state))


def _is_fraction(state: State) -> bool:
    return state.objective == "probabilities"


def effect_clause(state: State, focus: str, effect: float) -> str:
    """The end of a sentence that says how the removal of a group changes the value."""
    size = units.change_text(abs(effect), _is_fraction(state)).removeprefix("+")
    if state.objective == "prediction":
        return f"moves the prediction by {size} (squared distance)"
    verb = "raises" if effect > 0 else "lowers"
    return f"{verb} {objective_noun(state, focus)} by {size}"


def interval(effects: Attribution, group: int) -> str:
    """The interval of an effect in brackets, or that it was measured. Empty without retrainings."""
    return "" if effects.interval(group) is None else f" ({effects.interval_text(group).replace('-', '−')})"


def certainty(effects: Attribution, group: int) -> str:
    """The interval of an effect in brackets, and whether it may be noise. Empty without retrainings."""
    return interval(effects, group) + (", within noise" if effects.mark(group) else "")


def evidence_sentence(run: ExploredRun) -> str:
    """How many retrainings refine the effects, or that they have no intervals yet."""
    evidence = run.datamodel.evidence
    return f"{NO_INTERVALS}." if evidence is None else describe_evidence(evidence)


def objective_noun(state: State, focus: str) -> str:
    """The name of the objective in a sentence."""
    return {
        "value": f"the predicted {focus}",
        "probabilities": f"the probability of {focus}",
        "logits": f"the logit of {focus}",
        "prediction": "the shift of the prediction",
    }.get(state.objective, "the loss on this sample")


def verdict(run: ExploredRun, state: State, question: Question) -> str:
    """The predicted class, and whether it is right."""
    image = asked(run, state)
    if not run.has_classes:
        return _verdict_without_class(run, image, question)
    predicted = run.classes[question.predicted]
    if question.label is None:
        return f"The model says {predicted} for {image}. Its true class is unknown; {predicted} is used instead."
    if question.label == predicted:
        return f"Right: the model says {predicted} for {image}."
    return f"Wrong: the model says {predicted} for {image}, which is {question.label}."


def asked(run: ExploredRun, state: State) -> str:
    """The sample of a question, in words."""
    if not state.is_own:
        return f"test {run.kind} {state.index}"
    return f"your {'picture' if state.picture else run.kind}"


def _verdict_without_class(run: ExploredRun, sample: str, question: Question) -> str:
    """A sentence with the model's answer and the true one."""
    if run.task.by_position:
        return f"The loss on {sample} is {float(run.task.losses(question.logits, question.y)):.4g}."
    mean = run.task.mean(question.logits)[0]
    said = values_text(mean if run.task.kind == "regression" else (mean > 0.5).float(), run.classes)
    if question.label is None:
        return f"The model says {said} for {sample}. Its true value is unknown; the predicted one is used instead."
    return f"The model says {said} for {sample}; it is {question.label}."


def score_name(name: str) -> str:
    """A figure of the test samples, for a table or a sentence."""
    return {"loss": "mean loss", "absolute-error": "mean absolute error", "r2": "R²", "f1": "F1"}.get(name, name)


def score_text(name: str, value: float) -> str:
    """Its value with its unit."""
    return f"{value:.2%}" if name in ("accuracy", "f1") else f"{value:.4g}".replace("-", "−")


def removal_sentence(state: State, run: ExploredRun, before: np.ndarray, after: np.ndarray) -> str:
    """A sentence that says how the removal changes the prediction."""
    if not state.remove:
        return "No group is removed yet: tick groups to see the model without them."
    if not run.has_classes:
        return f"Without {', '.join(state.remove)} the model would say:"
    first, second = run.classes[int(before.argmax())], run.classes[int(after.argmax())]
    names = ", ".join(state.remove)
    if first == second:
        return f"Without {names} the model would still say {first}: {before.max():.1%} → {after.max():.1%}."
    return f"Without {names} the model would say {second} ({after.max():.1%}) instead of {first}."


def retraining_cost(run: ExploredRun) -> str:
    """A sentence that says how long a comparison with retraining takes, or why it is not possible."""
    try:
        seconds = run.retraining_seconds
    except InputError as error:
        return refusal(error)
    about = "" if seconds is None else f", about {max(seconds, 0.1):.1f} s each"
    return (
        f"A comparison trains the model twice{about}: once without the ticked groups and once with all groups. "
        "Trainings are cached, so the same comparison is instant the second time."
    )


def refusal(error: InputError) -> str:
    """An error message as a sentence of its own."""
    sentence = str(error)
    return sentence[:1].upper() + sentence[1:]
