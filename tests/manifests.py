"""Manifests that say something else, under a checksum that is right."""

from pathlib import Path
from typing import Any

from ddm.compute.files import read_json, sealed, write_json


def change_manifest(run: Path, **changes: Any) -> None:
    """Change some facts of a run; those that are ``...`` are taken away."""
    facts = read_json(run / "manifest.json") | changes
    write_json(
        run / "manifest.json",
        sealed({key: value for key, value in facts.items() if key != "checksum" and value is not ...}),
    )
