import math

import pytest
import torch

from ddm.answers.objectives import distillation, resolve
from ddm.errors import InputError


def logits(seed, samples=7, classes=4):
    return torch.randn(samples, classes, generator=torch.Generator().manual_seed(seed))


def value(student, teacher):
    return float(distillation(student).measure(teacher, teacher, torch.zeros(len(teacher), dtype=torch.long)))


def test_the_distillation_objective_is_the_kl_divergence_of_the_student_from_the_teacher():
    teacher, student = logits(0), logits(1)
    p, q = teacher.softmax(1), student.softmax(1)
    by_hand = sum(
        float(p[i, k]) * (math.log(p[i, k]) - math.log(q[i, k])) for i in range(len(p)) for k in range(p.shape[1])
    )
    assert value(student, teacher) == pytest.approx(by_hand / len(p), rel=1e-5)


def test_the_distillation_objective_is_zero_if_the_student_agrees_with_the_teacher():
    teacher = logits(0)
    assert value(teacher + 3, teacher) == pytest.approx(0, abs=1e-6)
    assert value(logits(1), teacher) > 0


def test_the_distillation_objective_is_not_symmetric():
    teacher, student = torch.tensor([[5.0, 0.0, 0.0]]), torch.tensor([[0.0, 0.0, 0.0]])
    assert value(student, teacher) != pytest.approx(value(teacher, student), rel=0.05)


def test_student_logits_of_other_samples_are_refused():
    with pytest.raises(InputError, match="logits for the samples asked about"):
        value(logits(1, samples=3), logits(0))


def test_a_datamodel_ranks_groups_by_the_distillation_objective(datamodel, digits):
    asked = digits.test[:20]
    student = datamodel.target.outputs(asked.batch()[0]) / 2
    found = datamodel.attribute(asked, distillation(student))
    assert found.objective == "distillation"
    assert resolve(distillation(student), torch.nn.functional.cross_entropy).signed
    without = datamodel.counterfactual(0)
    with torch.no_grad():
        x, y = asked.batch()
        outputs = without(x)
    changed = distillation(student).measure(outputs, outputs, y) - found.baseline[0]
    assert found.scores[0] == pytest.approx(float(changed), abs=1e-6)
