"""Places for pieces of work, each through joblib: local processes, a Dask cluster, a Ray cluster."""

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

PATIENCE = 10
"""Seconds that a cluster has to answer."""

_SHARED = 100_000
"""Bytes from which on local processes share an array instead of getting a copy with each piece."""

_TEXT = re.compile(
    r"(?P<plain>serial|processes|ray)|(?P<kind>dask|ray)://(?P<host>[^\s/:]+|\[[^\s/]+\]):(?P<port>\d+)/?"
)


@dataclass(frozen=True)
class Place:
    """Where pieces run.

    kind:    serial, processes, dask or ray
    address: ``HOST:PORT`` of a cluster; a Ray cluster without one is that of this machine
    """

    kind: str = "processes"
    address: str | None = None

    @classmethod
    def of(cls, text: str | Place | None) -> Place:
        """The place that some text names."""
        if text is None or isinstance(text, Place):
            return text or cls()
        found = _TEXT.fullmatch(text)
        if found is None:
            raise InputError(
                f"there is no engine '{text}': use serial, processes, dask://HOST:PORT, ray or ray://HOST:PORT."
            )
        return cls(found["plain"]) if found["plain"] else cls(found["kind"], f"{found['host']}:{found['port']}")

    @property
    def remote(self) -> bool:
        """Whether it is a cluster, whose files may be others."""
        return self.kind in ("dask", "ray")

    def check(self) -> None:
        """Refuse a cluster that does not answer."""
        if self.kind == "dask":
            with self._dask():
                pass
        elif self.kind == "ray":
            self._ray()

    def run(self, calls: Iterable[Any], shared: np.ndarray, count: int) -> Iterator[Any]:
        """Results of joblib's ``calls`` as they come; ``shared`` is an argument of all of them.

        count: of local processes; a cluster has as many as it has
        """
        from joblib import Parallel, parallel_config

        # Dispatched one by one: a kill loses no more than the pieces that were being worked on.
        how: dict[str, Any] = {"batch_size": 1, "pre_dispatch": "2*n_jobs", "return_as": "generator_unordered"}
        if self.kind == "dask":
            with self._dask() as client, parallel_config(backend="dask", client=client, scatter=[shared]):
                yield from Parallel(n_jobs=-1, **how)(calls)
        elif self.kind == "ray":
            yield from self._run_on_ray(iter(calls))
        else:
            with parallel_config(backend="loky", inner_max_num_threads=1):
                parallel = Parallel(n_jobs=count, max_nbytes=_SHARED, **how)
            yield from parallel(calls)

    def _run_on_ray(self, calls: Iterator[Any]) -> Iterator[Any]:
        """joblib gives Ray's results all at once, so a few calls are made at a time."""
        from joblib import Parallel, parallel_config

        cores = self._ray()
        with parallel_config(backend="ray"), Parallel(n_jobs=cores, batch_size=1) as parallel:
            while some := list(itertools.islice(calls, 2 * cores)):
                with contextlib.redirect_stdout(sys.stderr):  # Ray tells of dead workers there
                    found = parallel(some)
                yield from found

    @contextlib.contextmanager
    def _dask(self) -> Iterator[Any]:
        """A client of the Dask cluster, once it has workers."""
        with _installed("dask"):
            from distributed import Client
        self._answers()
        logging.getLogger("distributed").setLevel(logging.ERROR)  # a worker that dies is said by what comes of it
        try:
            client = Client(f"tcp://{self.address}", timeout=PATIENCE, set_as_default=False)
        except (OSError, TimeoutError):
            raise self._silent() from None
        with client:
            try:
                client.wait_for_workers(1, timeout=PATIENCE)
            except (OSError, TimeoutError):
                raise InputError(
                    f"the Dask cluster at {self.address} has no workers: start one with dask worker {self.address}."
                ) from None
            yield client

    def _ray(self) -> int:
        """Connects to the Ray cluster, unless that was done; its cores."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        with _installed("ray"):
            import ray
            from ray.util.joblib import register_ray
        if self.address is not None:
            self._answers()
        if ray.is_initialized():
            self._is_at(ray.get_runtime_context().gcs_address)
        else:
            try:
                ray.init(address=self.address or "auto", log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError):
                raise self._silent() from None
            except ray.exceptions.RayError as error:
                raise InputError(f"the Ray cluster refuses this process: {str(error).splitlines()[0]}") from None
        register_ray()
        logging.getLogger("ray.util.multiprocessing.pool").setLevel(logging.ERROR)  # warns of what joblib asks of it
        return int(ray.cluster_resources().get("CPU", 1))

    def _is_at(self, other: str) -> None:
        """Refuse to work for another cluster than that which this process belongs to."""
        if self.address is not None and _resolved(self.address).isdisjoint(_resolved(other)):
            raise InputError(f"this process works with the Ray cluster at {other} already: end that by ray.shutdown().")

    def _answers(self) -> None:
        """Refuse an address that nothing listens at, before a client tries again and again."""
        assert self.address is not None
        try:
            socket.create_connection(_host_and_port(self.address), PATIENCE).close()
        except (OSError, OverflowError):
            raise self._silent() from None

    def _silent(self) -> InputError:
        name = self.kind.capitalize()
        if self.address is None:
            return InputError(f"there is no {name} cluster on this machine: start one with {self.kind} start --head.")
        return InputError(f"no {name} cluster answers at {self.address}: start it, or correct the address.")


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _resolved(address: str) -> set[Any]:
    """The sockets that an address stands for."""
    return {found[4] for found in socket.getaddrinfo(*_host_and_port(address), type=socket.SOCK_STREAM)}


@contextlib.contextmanager
def _installed(extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise InputError(
            f"this engine needs {extra.capitalize()}: pip install 'distilled-datamodel[{extra}]'."
        ) from None
