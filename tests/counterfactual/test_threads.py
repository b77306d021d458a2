"""Many threads ask one datamodel: they get the answers that one thread gets, and the datamodel stays usable."""

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import numpy as np
import pytest
import torch

import ddm

THREADS = 8


def network_without(datamodel, x, group):
    with torch.no_grad():
        return datamodel.counterfactual(group)(x).numpy()


@pytest.fixture(scope="module")
def questions(datamodel, digits):
    """Functions without arguments; each asks about other samples, objectives or groups."""
    asked = []
    for i in range(12):
        x, y = digits.test.batch(slice(i, i + 1 + i % 7))
        asked += [
            lambda x=x, y=y: datamodel.attribute((x, y), "probabilities").matrix,
            lambda x=x, y=y: datamodel.attribute((x, y), "loss", fast=True).matrix,
            lambda x=x, y=y: datamodel.attribute((x, y), "prediction", level="class").matrix,
            lambda x=x, y=y: datamodel.trace((x, y), "correctness").clusters.matrix,
            lambda x=x: datamodel.outputs(x).numpy(),
            lambda x=x, group=i: network_without(datamodel, x, group),
        ]
    return asked


@pytest.fixture
def quick_switches():
    """Make Python switch threads as often as it can, so that a few dozen questions suffice to provoke a race."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_threads_get_the_answers_that_one_thread_gets_and_leave_the_datamodel_usable(
    datamodel, digits, questions, quick_switches, tmp_path
):
    expected = [ask() for ask in questions]
    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(lambda ask: ask(), questions))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4 * np.abs(other).max())
    again = network_without(datamodel, digits.test.batch()[0], 0)
    assert np.isfinite(again).all()
    assert 0 <= datamodel.target.accuracy(digits.test) <= 1
    datamodel.save(tmp_path)
    loaded = ddm.load(tmp_path)
    scores = loaded.attribute(digits.test[0]).scores
    np.testing.assert_allclose(scores, datamodel.attribute(digits.test[0]).scores, rtol=1e-4, atol=1e-9)


def test_a_datamodel_that_was_asked_can_be_pickled(datamodel, digits):
    expected = datamodel.attribute(digits.test[0]).scores
    for dumps in (pickle.dumps, cloudpickle.dumps):
        copied = pickle.loads(dumps(datamodel))
        np.testing.assert_allclose(copied.attribute(digits.test[0]).scores, expected, rtol=1e-4, atol=1e-9)
