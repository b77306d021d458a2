"""A context that runs other people's libraries in isolation: silent, seeded, and without lasting side effects."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator

import torch

from ddm.baselines.protocol import CannotRun


@contextlib.contextmanager
def isolated_library(name: str, seed: int = 0) -> Iterator[None]:
    """Import and call a library inside this context.

    Import and runtime errors become ``CannotRun``. Progress bars, warnings and logs are discarded. Random numbers come
    from a generator seeded by ``seed``, and the global generator is restored afterwards.
    """
    root = logging.getLogger()
    handlers, level, disabled = root.handlers[:], root.level, logging.root.manager.disable
    try:
        with (
            open(os.devnull, "w") as devnull,
            contextlib.redirect_stderr(devnull),
            contextlib.redirect_stdout(devnull),
            warnings.catch_warnings(),
            torch.random.fork_rng(devices=[]),
        ):
            warnings.simplefilter("ignore")
            logging.disable(logging.CRITICAL)
            torch.manual_seed(seed)
            yield
    except ImportError:
        raise CannotRun(f"{name} is not installed: pip install 'distilled-datamodel[bench]'.") from None
    except RuntimeError as error:  # torch's errors, including NotImplementedError
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(". ")
        raise CannotRun(f"{name} cannot run on this network: {reason}.") from error
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.disable(disabled)
