"""The Hugging Face libraries kept from the network: what they have on this machine is read, nothing is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """In the block, datasets of the hub are read from this machine or not at all."""
    try:
        import datasets
        import huggingface_hub
    except ImportError:  # then nothing is read, and whoever tries says what to install
        yield
        return
    # Both decide it by the environment when they are imported, and look here whenever they would ask.
    places: tuple[Any, Any] = (datasets.config, huggingface_hub.constants)
    before, loudness = [place.HF_HUB_OFFLINE for place in places], datasets.logging.get_verbosity()
    for place in places:
        place.HF_HUB_OFFLINE = True
    datasets.logging.set_verbosity_error()  # it warns that it does what is wanted here
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value
        datasets.logging.set_verbosity(loudness)


def is_downloaded(name: str) -> bool:
    """Whether a dataset of the hub was downloaded before; without the libraries nobody knows, and nobody will ask."""
    with offline():
        try:
            import datasets

            datasets.load_dataset_builder(name)
        except ImportError:
            return True
        except Exception:  # cache, names and files each raise their own kind
            return False
    return True
