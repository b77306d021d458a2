"""Write ``requirements/``: the pins of ``constraints.txt`` with the hashes of all their files, for pip to check.

``make lock`` runs it in the environment that the pins describe: ``python .ci/lock.py UV``.
"""

import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = "distilled-datamodel"
BUILD = ["hatchling", "editables", "packaging", "pathspec", "pluggy", "trove-classifiers"]
"""What makes the project installable."""

UNLOCKED = "torch"
"""Every kind of accelerator has files of its own, and which are right depends on the machine."""

HEADER = "# Made by make lock. Install with: pip install --no-deps --require-hashes -r {name}\n"


def pins() -> dict[str, str]:
    """The pin of each name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {canonicalize_name(line.partition("==")[0]): line for line in lines if not line.startswith("#")}


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> set[str]:
    """The names that a project with some extras needs, as those installed here say."""
    seen.add((name, extras))
    names = {name}
    for requirement in map(Requirement, requires(name) or []):
        wanted = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            names |= needed(*wanted, seen) if wanted not in seen else set()
    return names


def write(uv: str, name: str, wanted: list[str]) -> None:
    """One set, hashed."""
    options = "--no-deps --generate-hashes --no-annotate --no-header --universal --python-version 3.11.7 --quiet -"
    compiled = subprocess.run(
        [uv, "pip", "compile", *options.split()], input="\n".join(wanted), capture_output=True, text=True, check=False
    )
    if compiled.returncode:
        sys.exit(compiled.stderr)
    path = ROOT / "requirements" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEADER.format(name=f"requirements/{name}") + compiled.stdout, encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {len(wanted)} pins, {len(re.findall('--hash', compiled.stdout))} hashes.")


def main() -> None:
    """The small set of the demo, then everything."""
    pinned = pins()
    pinned.pop(UNLOCKED)
    demo = needed(PROJECT, frozenset(["report"]), set()) | set(BUILD)
    write(sys.argv[1], "report.txt", [pin for name, pin in pinned.items() if name in demo])
    write(sys.argv[1], "dev.txt", list(pinned.values()))


if __name__ == "__main__":
    main()
