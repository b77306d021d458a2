"""Backends that run tasks, each through joblib: local processes, a Dask cluster, a Ray cluster."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddm.errors import InputError

TIMEOUT = 10
"""Seconds within which a cluster must answer."""

_SHARED_BYTES = 100_000
"""Local processes share arrays of at least this size through memory-mapped files instead of copying them."""

_TEXT = re.compile(
    r"(?P<plain>serial|processes|ray)|(?P<kind>dask|ray)://(?P<host>[^\s/:]+|\[[^\s/]+\]):(?P<port>\d+)/?"
)


@dataclass(frozen=True)
class Backend:
    """Where tasks run.

    kind:    serial, processes, dask or ray
    address: ``HOST:PORT`` of a cluster; None with kind ray means the Ray cluster on this machine
    """

    kind: str = "processes"
    address: str | None = None

    @classmethod
    def parse(cls, text: str | Backend | None) -> Backend:
        """Parse a text such as ``dask://HOST:PORT``; None means local processes."""
        if text is None or isinstance(text, Backend):
            return text or cls()
        found = _TEXT.fullmatch(text)
        if found is None:
            raise InputError(
                f"there is no engine '{text}': use serial, processes, dask://HOST:PORT, ray or ray://HOST:PORT."
            )
        return cls(found["plain"]) if found["plain"] else cls(found["kind"], f"{found['host']}:{found['port']}")

    @property
    def remote(self) -> bool:
        """True for a cluster, whose workers may have another file system."""
        return self.kind in ("dask", "ray")

    def check(self) -> None:
        """Refuse a cluster that does not answer."""
        if self.kind == "dask":
            with self._connect_to_dask():
                pass
        elif self.kind == "ray":
            self._connect_to_ray()

    def run(self, calls: Iterable[Any], shared: np.ndarray, workers: int) -> Iterator[Any]:
        """Run joblib's ``calls`` and yield each result as soon as it is available, in any order.

        shared:  an argument that all calls have in common; each worker gets it once
        workers: number of local processes; on a cluster all of its workers are used
        """
        from joblib import Parallel, parallel_config

        # Calls are dispatched one by one, so that a killed process loses only the calls that are running.
        options: dict[str, Any] = {"batch_size": 1, "pre_dispatch": "2*n_jobs", "return_as": "generator_unordered"}
        if self.kind == "dask":
            with self._connect_to_dask() as client, parallel_config(backend="dask", client=client, scatter=[shared]):
                yield from Parallel(n_jobs=-1, **options)(calls)
        elif self.kind == "ray":
            yield from self._run_on_ray(iter(calls))
        else:
            with parallel_config(backend="loky", inner_max_num_threads=1):
                parallel = Parallel(n_jobs=workers, max_nbytes=_SHARED_BYTES, **options)
            yield from parallel(calls)

    def _run_on_ray(self, calls: Iterator[Any]) -> Iterator[Any]:
        """Run a few calls at a time, because joblib returns Ray's results only when all calls are done."""
        from joblib import Parallel, parallel_config

        cores = self._connect_to_ray()
        with parallel_config(backend="ray"), Parallel(n_jobs=cores, batch_size=1) as parallel:
            while some := list(itertools.islice(calls, 2 * cores)):
                with contextlib.redirect_stdout(sys.stderr):  # Ray reports dead workers on standard output
                    results = parallel(some)
                yield from results

    @contextlib.contextmanager
    def _connect_to_dask(self) -> Iterator[Any]:
        """A client of the Dask cluster, as soon as the cluster has workers."""
        with _missing_extra_as_input_error("dask"):
            from distributed import Client
        self._check_listening()
        logging.getLogger("distributed").setLevel(logging.ERROR)  # the engine itself reports workers that die
        try:
            client = Client(f"tcp://{self.address}", timeout=TIMEOUT, set_as_default=False)
        except (OSError, TimeoutError):
            raise self._no_answer() from None
        with client:
            try:
                client.wait_for_workers(1, timeout=TIMEOUT)
            except (OSError, TimeoutError):
                raise InputError(
                    f"the Dask cluster at {self.address} has no workers: start one with dask worker {self.address}."
                ) from None
            yield client

    def _connect_to_ray(self) -> int:
        """Connect to the Ray cluster, unless this process is connected, and return the cluster's number of cores."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        with _missing_extra_as_input_error("ray"):
            import ray
            from ray.util.joblib import register_ray
        if self.address is not None:
            self._check_listening()
        if ray.is_initialized():
            self._check_same_cluster(ray.get_runtime_context().gcs_address)
        else:
            try:
                ray.init(address=self.address or "auto", log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError):
                raise self._no_answer() from None
            except ray.exceptions.RayError as error:
                raise InputError(f"the Ray cluster refuses this process: {str(error).splitlines()[0]}") from None
        register_ray()
        logging.getLogger("ray.util.multiprocessing.pool").setLevel(logging.ERROR)  # Ray warns about joblib's options
        return int(ray.cluster_resources().get("CPU", 1))

    def _check_same_cluster(self, connected: str) -> None:
        """Raise ``InputError`` if this process is already connected to a different Ray cluster."""
        if self.address is not None and _sockets(self.address).isdisjoint(_sockets(connected)):
            raise InputError(
                f"this process is already connected to the Ray cluster at {connected}: disconnect it by ray.shutdown()."
            )

    def _check_listening(self) -> None:
        """Refuse an address where nothing listens, before a client retries for minutes."""
        assert self.address is not None
        try:
            socket.create_connection(_host_and_port(self.address), TIMEOUT).close()
        except (OSError, OverflowError):
            raise self._no_answer() from None

    def _no_answer(self) -> InputError:
        name = self.kind.capitalize()
        if self.address is None:
            return InputError(f"there is no {name} cluster on this machine: start one with {self.kind} start --head.")
        return InputError(f"no {name} cluster answers at {self.address}: start it, or correct the address.")


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _sockets(address: str) -> set[Any]:
    """The socket addresses that an address resolves to."""
    return {found[4] for found in socket.getaddrinfo(*_host_and_port(address), type=socket.SOCK_STREAM)}


@contextlib.contextmanager
def _missing_extra_as_input_error(extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise InputError(
            f"this engine needs {extra.capitalize()}: pip install 'distilled-datamodel[{extra}]'."
        ) from None
