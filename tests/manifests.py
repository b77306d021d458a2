"""Runs whose manifest was changed on purpose."""

from pathlib import Path
from typing import Any

from ddm.compute.files import add_checksum, read_json, write_json


def change_manifest(run: Path, **changes: Any) -> None:
    """Change entries of a manifest, drop those given as ``...``, and update its checksum."""
    facts = read_json(run / "manifest.json") | changes
    write_json(
        run / "manifest.json",
        add_checksum({key: value for key, value in facts.items() if key != "checksum" and value is not ...}),
    )
