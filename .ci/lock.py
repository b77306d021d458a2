"""Write ``requirements/``: pins with the hashes of all their files, for pip to check.

The project's pins are those of ``constraints.txt``; what locks, audits and lists them has pins of its own, here.
``make lock`` runs it in the environment that the former describe: ``python .ci/lock.py UV``.
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

TOOLS = ["uv==0.13.7", "pip-audit==2.10.1", "cyclonedx-bom==7.5.0"]
"""What locks, audits and lists the rest, in an environment of their own."""

PIP = "pip==26.3"
"""What installs the rest where Python comes without it, and the tools' own."""

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


def write(uv: str, name: str, wanted: list[str], *, whole: bool) -> None:
    """One set, hashed; what its pins need in turn is added unless it is ``whole``."""
    options = "--generate-hashes --no-annotate --no-header --universal --python-version 3.11.7 --quiet"
    command = [uv, "pip", "compile", *options.split(), *(["--no-deps"] if whole else []), "-"]
    compiled = subprocess.run(command, input="\n".join(wanted), capture_output=True, text=True, check=False)
    if compiled.returncode:
        sys.exit(compiled.stderr)
    path = ROOT / "requirements" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEADER.format(name=f"requirements/{name}") + compiled.stdout, encoding="utf-8")
    pinned, hashes = (len(re.findall(what, compiled.stdout, re.MULTILINE)) for what in (r"^[\w.-]+==", "--hash"))
    print(f"{path.relative_to(ROOT)}: {pinned} pins, {hashes} hashes.")


def main() -> None:
    """The small set of the demo, then everything, then what is beside the project."""
    uv, pinned = sys.argv[1], pins()
    pinned.pop(UNLOCKED)
    demo = needed(PROJECT, frozenset(["report"]), set()) | set(BUILD)
    write(uv, "report.txt", [pin for name, pin in pinned.items() if name in demo], whole=True)
    write(uv, "dev.txt", list(pinned.values()), whole=True)
    write(uv, "tools.txt", [*TOOLS, PIP], whole=False)
    write(uv, "pip.txt", [PIP], whole=True)


if __name__ == "__main__":
    main()
