"""Many threads ask one datamodel: they get the answers that one thread gets, and the datamodel stays usable."""

import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import numpy as np
import pytest
import torch

import ddm

THREADS = 8


def network_outputs(network, x):
    with torch.no_grad():
        return network(x).numpy()


@pytest.fixture(scope="module")
def questions(digits):
    """Functions of a datamodel that return arrays; each asks about other samples, objectives or groups."""
    asked = [lambda dm: dm.diagnose(digits.validation).effects["f1"]]
    for i in range(12):
        x, y = digits.test.batch(slice(i, i + 1 + i % 7))
        asked += [
            lambda dm, x=x, y=y: dm.attribute((x, y), "probabilities").matrix,
            lambda dm, x=x, y=y: dm.attribute((x, y), "loss", fast=True).matrix,
            lambda dm, x=x, y=y: dm.attribute((x, y), "prediction", level="class").matrix,
            lambda dm, x=x, y=y: dm.trace((x, y), "correctness").clusters.matrix,
            lambda dm, x=x, y=y, i=i: dm.shares((x, y), i, "loss").values,
            lambda dm, x=x: dm.outputs(x).numpy(),
            lambda dm, x=x, i=i: network_outputs(dm.counterfactual(i), x),
            lambda dm, x=x, i=i: network_outputs(dm.counterfactual(weights={i: 0.5, 29 - i: 2}), x),
        ]
    return asked


@pytest.fixture
def quick_switches():
    """Make Python switch threads as often as it can, so that few questions suffice to provoke a race."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def count_wrong(datamodel, questions, expected, each):
    """Let each thread ask ``each`` questions in an order of its own; return how many answers differ by any bit."""
    start = threading.Barrier(THREADS)

    def work(seed):
        start.wait()
        asked = np.random.default_rng(seed).integers(len(questions), size=each)
        return sum(not np.array_equal(questions[i](datamodel), expected[i]) for i in asked)

    with ThreadPoolExecutor(THREADS) as threads:
        return sum(threads.map(work, range(THREADS)))


def assert_usable(datamodel, digits, folder):
    """Everything works on a datamodel that many threads have asked."""
    assert np.isfinite(network_outputs(datamodel.counterfactual(0), digits.test.batch()[0])).all()
    assert 0 <= datamodel.target.accuracy(digits.test) <= 1
    datamodel.save(folder)
    scores = ddm.load(folder).attribute(digits.test[0]).scores
    np.testing.assert_allclose(scores, datamodel.attribute(digits.test[0]).scores, rtol=1e-4, atol=1e-9)


def without_caches(datamodel, train):
    """The same datamodel as if it had never been asked: it finds its training set when it first needs it."""
    stages = (datamodel.target, datamodel.partition, datamodel.synset, datamodel.class_synset, datamodel.settings)
    return ddm.DistilledDatamodel(*stages, datamodel.data, find=lambda: train, responses=datamodel.responses)


def assert_threads_agree(datamodel, digits, questions, each, folder):
    expected = [ask(datamodel) for ask in questions]
    unasked = without_caches(datamodel, digits.train)
    assert count_wrong(unasked, questions, expected, each) == 0
    assert_usable(unasked, digits, folder)


def test_threads_get_the_answers_that_one_thread_gets_and_leave_the_datamodel_usable(
    datamodel, digits, questions, quick_switches, tmp_path
):
    assert_threads_agree(datamodel, digits, questions, 25, tmp_path)


@pytest.mark.slow
def test_8_threads_with_1000_questions_each_get_no_wrong_answer(datamodel, digits, questions, quick_switches, tmp_path):
    assert_threads_agree(datamodel, digits, questions, 1000, tmp_path)


def test_a_datamodel_that_was_asked_can_be_pickled(datamodel, digits):
    expected = datamodel.attribute(digits.test[0]).scores
    for dumps in (pickle.dumps, cloudpickle.dumps):
        copied = pickle.loads(dumps(datamodel))
        np.testing.assert_allclose(copied.attribute(digits.test[0]).scores, expected, rtol=1e-4, atol=1e-9)
