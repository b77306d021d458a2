"""Run independent tasks: in this process, in local processes, or on a Dask or Ray cluster.

Results are the same on every backend, bit for bit, because each task runs on one thread and depends on no other task.
Each worker gets the function once, not with each task. A worker that dies is replaced. A task that fails is retried.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from ddm.compute import progress
from ddm.compute.backends import Backend
from ddm.compute.one_thread import one_thread
from ddm.compute.validation import check_upper_bounds
from ddm.errors import InputError

Task = TypeVar("Task")
Result = TypeVar("Result")

Engine = str | Backend | None
"""Where tasks run: serial, processes (the default), dask://HOST:PORT, ray or ray://HOST:PORT."""

ATTEMPTS = 3
"""Attempts of each task: the first and two retries."""


def run_tasks(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    engine: Engine = None,
    workers: int | None = None,
    description: str | None = "working",
) -> Iterator[Result]:
    """Yield ``function(task)`` for each task as soon as it is finished, in any order.

    If a task fails in all attempts, an ``InputError`` names it after all other tasks are done. If a task itself raises
    an ``InputError``, that is raised at once and not retried.

    workers:     number of local processes (default: one for each usable core); 1 runs all tasks in this process
    description: label of the progress bar; None shows no bar
    """
    backend = Backend.parse(engine)
    check_upper_bounds(workers=workers)
    count = 1 if backend.kind == "serial" else min(workers or count_cores(), len(tasks))
    stays_here = not tasks or (count <= 1 and not backend.remote)
    runner: _Runner[Result] = _Here(function, tasks) if stays_here else _InWorkers(function, tasks, backend, count)
    with contextlib.ExitStack() as stack:
        advance = stack.enter_context(progress.bar(description, len(tasks))) if description is not None else None
        for result in _run_with_retries(runner, tasks, description or "working"):
            if advance is not None:
                advance(1)
            yield result


def count_cores() -> int:
    """Number of cores that this process may use."""
    from joblib import cpu_count

    count: int = cpu_count()
    return count


_depth = 0
"""Nesting depth of the task that is running, 0 outside a task: a task may run tasks of its own."""


def in_task() -> bool:
    """True inside a task."""
    return _depth > 0


@dataclass(frozen=True)
class _Success(Generic[Result]):
    number: int
    result: Result


@dataclass(frozen=True)
class _Failure:
    """An error of a task; ``bad_input`` if it was an ``InputError``, which would occur again in a retry."""

    number: int
    error: str
    trace: str
    bad_input: bool = False


_Outcome = _Success[Result] | _Failure
_Runner = Callable[[Iterable[int]], Iterator[_Outcome[Result]]]
"""Runs the tasks with these numbers and yields their outcomes; raises if its workers break."""


class _Retries:
    """The failures of each task, and the tasks that still have to run."""

    def __init__(self, count: int) -> None:
        self.failures: Counter[int] = Counter()
        self.last: dict[int, _Failure] = {}
        self._waiting = list(range(count))
        self._idle = 0

    def batches(self) -> Iterator[list[int]]:
        """Yield tasks to run together, until none is waiting.

        The last attempt of each task runs alone, so that a crash can be attributed to it.
        """
        while self._waiting:
            last = [number for number in self._waiting if self.failures[number] == ATTEMPTS - 1]
            together = [number for number in self._waiting if self.failures[number] < ATTEMPTS - 1]
            self._waiting = last if together else last[1:]
            yield together or last[:1]

    def add_failure(self, failure: _Failure) -> None:
        """Count a failure, and queue the task again if it has attempts left."""
        self.failures[failure.number] += 1
        self.last[failure.number] = failure
        if self.failures[failure.number] < ATTEMPTS:
            self._waiting.append(failure.number)

    def add_crash(self, running: set[int], waiting: Sequence[int], error: Exception) -> None:
        """Count a failure for each task that was running when the workers broke, and queue the waiting tasks again."""
        for number in sorted(running):
            self.add_failure(_Failure(number, _one_line(error), traceback.format_exc()))
        self._idle = 0 if running else self._idle + 1
        if self._idle == ATTEMPTS:
            raise InputError(
                f"this engine cannot start any task ({_one_line(error)}): repair it, or choose another engine."
            ) from error
        self._waiting.extend(waiting)

    def given_up(self) -> list[_Failure]:
        """The last failure of each task without attempts left."""
        return [self.last[number] for number, count in sorted(self.failures.items()) if count >= ATTEMPTS]


def _run_with_retries(runner: _Runner[Result], tasks: Sequence[Any], description: str) -> Iterator[Result]:
    """Yield the results of all tasks that succeed, then raise an error if others failed in all attempts."""
    retries = _Retries(len(tasks))
    for batch in retries.batches():
        waiting, running = list(batch), set[int]()
        try:
            with contextlib.closing(runner(_start_each(waiting, running))) as outcomes:  # type: ignore[type-var]
                for outcome in outcomes:
                    running.discard(outcome.number)
                    if isinstance(outcome, _Success):
                        yield outcome.result
                    elif outcome.bad_input:
                        raise InputError(outcome.error)
                    else:
                        retries.add_failure(outcome)
        except InputError:
            raise
        except Exception as error:
            retries.add_crash(running, waiting, error)
    _raise_if_any(retries.given_up(), tasks, description)


def _start_each(waiting: list[int], running: set[int]) -> Iterator[int]:
    """Move numbers from ``waiting`` to ``running`` as the runner asks for them."""
    while waiting:
        running.add(waiting[0])
        yield waiting.pop(0)


def _raise_if_any(failures: Sequence[_Failure], tasks: Sequence[Any], description: str) -> None:
    if failures:
        first = failures[0]
        name = " ".join(str(tasks[first.number]).split())
        name = name if len(name) <= 60 else name[:57] + "…"
        more = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
        raise InputError(
            f"{description}: task {first.number + 1} of {len(tasks)} ({name}){more} failed {ATTEMPTS} times, at last "
            f"with '{first.error}'; the other {len(tasks) - len(failures)} are done."
        ) from RuntimeError(first.trace)


def _one_line(error: Exception) -> str:
    """Type and first line of an error."""
    lines = str(error).split("\n")
    return f"{type(error).__name__}: {lines[0]}".rstrip(": ").rstrip(".")


def _attempt(function: Callable[[Task], Result], task: Task, number: int) -> _Outcome[Result]:
    """Run a task and return its error instead of raising it, because an exception would stop all other tasks."""
    try:
        with _gpu_for(number):
            return _Success(number, _run_task(function, task))
    except InputError as error:
        return _Failure(number, str(error), "", bad_input=True)
    except Exception as error:
        return _Failure(number, _one_line(error), traceback.format_exc())


def _run_task(function: Callable[[Task], Result], task: Task) -> Result:
    """Run a task on one thread and without progress bars."""
    global _depth
    _depth += 1
    try:
        with progress.silent(), one_thread():
            return function(task)
    finally:
        _depth -= 1


def _gpu_for(number: int) -> contextlib.AbstractContextManager[Any]:
    """With several GPUs, make ``cuda`` without a number mean the next GPU for each task."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return torch.cuda.device(number % count) if count > 1 else contextlib.nullcontext()


class _Here(Generic[Task, Result]):
    """Runs tasks one after another in this process."""

    def __init__(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> None:
        self.function, self.tasks = function, tasks

    def __call__(self, numbers: Iterable[int]) -> Iterator[_Outcome[Result]]:
        for number in numbers:
            yield _attempt(self.function, self.tasks[number], number)


class _InWorkers(Generic[Task, Result]):
    """Runs tasks in other processes, on this machine or on a cluster.

    The function is pickled once, into an array of bytes that joblib shares between workers.
    """

    def __init__(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], backend: Backend, workers: int
    ) -> None:
        import cloudpickle

        self.tasks, self.backend, self.workers = tasks, backend, workers
        self.parent = None if backend.remote else os.getpid()
        self.key = uuid.uuid4().hex
        try:
            self.pickled = np.frombuffer(cloudpickle.dumps(function), np.uint8)
        except Exception as error:
            raise InputError(
                f"these tasks cannot be sent to other processes ({_one_line(error)}): run them in this process, with "
                "workers=1."
            ) from error

    def __call__(self, numbers: Iterable[int]) -> Iterator[_Outcome[Result]]:
        from joblib import delayed

        call = delayed(_attempt_in_worker)
        calls = (call(self.key, self.pickled, self.tasks[number], number, self.parent) for number in numbers)
        return self.backend.run(calls, self.pickled, self.workers)


_one_task_at_a_time = threading.RLock()
"""Networks are not thread-safe, and a Dask worker may have several threads."""

_unpickled: tuple[str, Any] = ("", None)
"""The key of the function that this process unpickled last, and the function."""


def _attempt_in_worker(key: str, pickled: np.ndarray, task: Any, number: int, parent: int | None) -> _Outcome[Any]:
    """Run a task in a worker, which unpickles the function at its first task.

    parent: process that started the worker; None on a cluster
    """
    global _unpickled
    with _one_task_at_a_time:
        if parent not in (None, os.getpid()):
            _end_with(parent)
        if _unpickled[0] != key:
            import cloudpickle

            _unpickled = key, cloudpickle.loads(pickled.data)
        return _attempt(_unpickled[1], task, number)


@functools.cache
def _end_with(parent: int) -> None:
    """Ignore Ctrl-C, which the parent handles, and exit when the parent ends: if killed, it cannot stop its workers."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()
