"""The origin of stored results: fingerprints of the network, the target and the data that they were made for."""

from __future__ import annotations

from collections.abc import Mapping

from ddm.errors import InputError

_PARTS = {
    "network": "another network",
    "data": "other training data",
    "target": "another training of the same network on the same data",
}
"""Parts of the origin and how messages name them. Messages name the first difference, as it explains the later."""


def check_origin(what: str, stored: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Refuse results that were made for another network, target or data, and say what differs.

    what:   subject and verb of the message, such as "the synset was distilled"
    stored: the origin of the results
    wanted: the origin that they should have
    """
    for part, description in _PARTS.items():
        if part in stored and part in wanted and stored[part] != wanted[part]:
            here, there = (known[part].partition(":")[0] for known in (wanted, stored))
            kinds = f" ({there} there, {here} here)" if part == "network" and here != there else ""
            raise InputError(f"{what} for {description}{kinds}: give the one that belongs here.")
