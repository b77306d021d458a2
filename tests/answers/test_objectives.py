import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics
from torch.nn import functional as F

from ddm.answers.objectives import OBJECTIVES, resolve
from ddm.data.losses import sample_loss
from ddm.errors import InputError


def outputs_and_labels(seed, samples, classes):
    generator = torch.Generator().manual_seed(seed)
    outputs, baseline = torch.randn(2, samples, classes, generator=generator)
    return outputs, baseline, torch.randint(0, classes, (samples,), generator=generator)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(2, 6))
def test_metrics_agree_with_scikit_learn(seed, samples, classes):
    outputs, baseline, labels = outputs_and_labels(seed, samples, classes)
    predicted = outputs.argmax(1)
    everything = {"labels": range(classes), "zero_division": 0}
    for name in ("precision", "recall", "f1"):
        score = getattr(metrics, f"{name}_score")
        macro = OBJECTIVES[name].measure(outputs, baseline, labels)
        single = OBJECTIVES[f"class-{name}"].measure(outputs, baseline, labels)
        assert float(macro) == pytest.approx(score(labels, predicted, average="macro", zero_division=0))
        np.testing.assert_allclose(single, score(labels, predicted, average=None, **everything))
    assert float(OBJECTIVES["accuracy"].measure(outputs, baseline, labels)) == pytest.approx(
        metrics.accuracy_score(labels, predicted)
    )


def test_the_three_distances_follow_the_formulas_of_the_paper():
    outputs, baseline, labels = outputs_and_labels(0, 7, 4)
    shift = (outputs.softmax(1) - baseline.softmax(1)).square().sum(1)
    values = {
        name: float(OBJECTIVES[name].measure(outputs, baseline, labels))
        for name in ("prediction", "correctness", "stability")
    }
    assert values["prediction"] == pytest.approx(float(shift.mean()))
    assert values["correctness"] == pytest.approx(float(-outputs.log_softmax(1)[range(7), labels].mean()))
    assert values["stability"] == pytest.approx(float((1 / (1 + shift)).mean()))


def test_the_loss_objective_is_the_loss_of_the_target():
    outputs, baseline, labels = outputs_and_labels(0, 7, 4)
    own = resolve("loss", sample_loss(lambda f, y: F.cross_entropy(f, y, label_smoothing=0.3)))
    assert float(own.measure(outputs, baseline, labels)) == pytest.approx(
        float(F.cross_entropy(outputs, labels, label_smoothing=0.3))
    )


def test_a_stack_of_models_has_the_same_values_as_single_models():
    outputs, baseline, labels = outputs_and_labels(0, 7, 4)
    stacked = torch.stack([outputs, baseline, outputs * 2])
    for objective in OBJECTIVES.values():
        found = objective.values([stacked[:2], stacked[2:]], baseline, labels)
        for row, model in zip(found, stacked, strict=True):
            torch.testing.assert_close(row, objective.measure(model, baseline, labels).reshape(-1).double())


def test_any_callable_of_outputs_baseline_and_labels_is_an_objective(datamodel, digits):
    def second_choice(outputs, baseline, labels):
        return outputs.softmax(1).sort(1).values[:, -2].mean()

    found = datamodel.attribute(digits.test[:4], second_choice)
    assert found.objective == "second_choice"
    x, _ = digits.test[:4].batch()
    without = datamodel.counterfactual(6)(x).softmax(1).sort(1).values[:, -2].mean()
    assert found.baseline[0] + found.scores[6] == pytest.approx(float(without), abs=1e-5)


def test_a_callable_that_does_not_fit_is_refused_with_one_sentence(datamodel, digits):
    for wrong in (lambda outputs: outputs.sum(), lambda o, b, y: "much", lambda o, b, y: torch.tensor(torch.nan)):
        with pytest.raises(InputError, match="objective"):
            datamodel.attribute(digits.test[:2], wrong)
