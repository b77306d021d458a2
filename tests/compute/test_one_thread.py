"""Computing on one thread in several Python threads at once."""

import threading

import pytest
import torch

from ddm.compute.one_thread import _Counts, one_thread


@pytest.fixture(autouse=True)
def two_threads():
    """A caller with more than one thread, as on any machine with more than one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Inside(threading.Thread):
    """A thread that is inside ``one_thread`` until it is told to leave; ``counts`` has torch's count then and after."""

    def __init__(self):
        super().__init__()
        self.entered, self.told, self.counts = threading.Event(), threading.Event(), []

    def run(self):
        with one_thread():
            self.entered.set()
            self.told.wait()
            self.counts.append(torch.get_num_threads())
        self.counts.append(torch.get_num_threads())

    def enter(self):
        self.start()
        self.entered.wait()
        return self

    def leave(self):
        self.told.set()
        self.join()


def count_of_new_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_threads_that_compute_on_one_thread_at_once_leave_torchs_count_as_it_was(order):
    threads = [Inside().enter() for _ in range(3)]
    for number in order:
        threads[number].leave()
    assert [thread.counts for thread in threads] == [[1, 2]] * 3
    assert torch.get_num_threads() == 2
    assert count_of_new_thread() == 2


def test_the_caller_may_leave_before_a_thread_that_started_meanwhile():
    with one_thread():
        other = Inside().enter()
    assert torch.get_num_threads() == 2
    other.leave()
    assert other.counts == [1, 2]
    assert count_of_new_thread() == 2


def test_within_one_thread_a_second_call_changes_nothing():
    with one_thread():
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_an_error_gives_the_count_back():
    with pytest.raises(ZeroDivisionError), one_thread():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2


def test_a_forked_process_forgets_the_threads_of_its_parent():
    counts = _Counts()
    other = threading.Thread(target=counts.enter)
    other.start()
    other.join()
    counts.lock.acquire()  # by a thread that the child does not have
    counts.forget_others()
    torch.set_num_threads(1)
    counts.leave(counts.enter())
    assert torch.get_num_threads() == 1
