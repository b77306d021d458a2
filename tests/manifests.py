"""Runs whose manifest was changed on purpose."""

from pathlib import Path
from typing import Any

from ddm.compute.files import read_json, sealed, write_json


def change_manifest(run: Path, **changes: Any) -> None:
    """Change entries of a manifest, drop those given as ``...``, and update its checksum."""
    facts = read_json(run / "manifest.json") | changes
    write_json(
        run / "manifest.json",
        sealed({key: value for key, value in facts.items() if key != "checksum" and value is not ...}),
    )
