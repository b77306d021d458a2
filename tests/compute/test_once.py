"""A value that many threads need is computed once."""

import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ddm.compute.once import Once


def test_threads_that_ask_at_the_same_time_share_one_computation():
    value, computed, start = Once(), [], threading.Barrier(8)

    def ask(number):
        start.wait()
        return value.get(lambda: computed.append(time.sleep(0.05)) or number)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(ask, range(8)))) == 1
    assert len(computed) == 1


def test_a_failed_computation_is_tried_again():
    value = Once()
    with pytest.raises(ZeroDivisionError):
        value.get(lambda: 1 / 0)
    assert value.get(lambda: 5) == 5


def test_a_pickled_value_is_not_computed_again():
    value = Once()
    value.get(lambda: 3)
    assert pickle.loads(pickle.dumps(value)).get(lambda: 4) == 3
    assert pickle.loads(pickle.dumps(Once())).get(lambda: 4) == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_during_the_computation_computes_for_itself():
    value, inside, leave = Once(), threading.Event(), threading.Event()

    def compute():
        inside.set()
        leave.wait()
        return 1

    thread = threading.Thread(target=value.get, args=(compute,))
    thread.start()
    inside.wait()
    child = os.fork()
    if not child:
        os._exit(value.get(lambda: 7))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    leave.set()
    thread.join()
    assert value.get(lambda: 2) == 1
