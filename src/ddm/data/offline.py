"""Keep the Hugging Face libraries off the network: they read what is on this machine and request nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Within the block, read datasets of the Hub from the local cache only."""
    try:
        import datasets
        import huggingface_hub
    except ImportError:  # the reader will say what to install
        yield
        return
    # Both libraries read the environment only at import, but look up these constants before every request.
    modules: tuple[Any, Any] = (datasets.config, huggingface_hub.constants)
    before, verbosity = [module.HF_HUB_OFFLINE for module in modules], datasets.logging.get_verbosity()
    for module in modules:
        module.HF_HUB_OFFLINE = True
    datasets.logging.set_verbosity_error()  # suppresses a warning that the cache is used
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
        datasets.logging.set_verbosity(verbosity)


def is_downloaded(name: str) -> bool:
    """True if a dataset of the Hub is in the local cache, or if the libraries that could download it are missing."""
    with offline():
        try:
            import datasets

            datasets.load_dataset_builder(name)
        except ImportError:
            return True
        except Exception:  # a missing cache, a wrong name and a bad file raise different types
            return False
    return True
