"""Other people's libraries, kept quiet and apart: they leave nothing behind and draw from a generator of their own."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator

import torch

from ddm.baselines.protocol import CannotRun


@contextlib.contextmanager
def peer(name: str, seed: int = 0) -> Iterator[None]:
    """Import and call a library here: its errors become ``CannotRun``; its bars, warnings and logs go nowhere."""
    root = logging.getLogger()
    handlers, level, disabled = root.handlers[:], root.level, logging.root.manager.disable
    try:
        with (
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stderr(nowhere),
            contextlib.redirect_stdout(nowhere),
            warnings.catch_warnings(),
            torch.random.fork_rng(devices=[]),
        ):
            warnings.simplefilter("ignore")
            logging.disable(logging.CRITICAL)
            torch.manual_seed(seed)
            yield
    except ImportError:
        raise CannotRun(f"{name} is not installed: pip install 'distilled-datamodel[bench]'.") from None
    except RuntimeError as error:  # what torch raises, NotImplementedError included
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(". ")
        raise CannotRun(f"{name} cannot run on this network: {reason}.") from error
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.disable(disabled)
