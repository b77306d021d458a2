"""Ask a public database whether what is installed has known vulnerabilities: ``python .ci/audit.py``, with pip-audit.

Exit code 3: there are some that another version mends. 1: the audit itself failed. 0: neither. Where the database
cannot be reached, a sentence says that nothing was audited, and that is no failure.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LOCKED = [ROOT / "requirements" / name for name in ("dev.txt", "tools.txt")]
UNLOCKED = "torch"
"""What has a pin and no hashes."""

MENDABLE = 3


def asked(path: Path, how: str) -> list[dict[str, Any]] | None:
    """Run pip-audit on the packages of a file and return its findings; None if the database cannot be reached."""
    # Not the registry's own service: where it does not know a package, pip-audit leaves the package out and is content.
    options = ["--vulnerability-service=osv", how, "--disable-pip", "--progress-spinner=off", "--format=json"]
    command = [sys.executable, "-m", "pip_audit", *options, "-r", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        if re.search(r"requests\.exceptions\.|Could not connect", done.stderr):
            return None
        sys.exit(f"The audit failed: {(done.stderr.strip().splitlines() or ['pip-audit said nothing.'])[-1]}")
    return found


def audited() -> list[dict[str, Any]] | None:
    """Return the findings for all locked packages and for torch."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        rest = Path(folder) / "rest.txt"
        rest.write_text(next(pin for pin in pins if pin.startswith(f"{UNLOCKED}==")), encoding="utf-8")
        parts = [*((path, "--require-hashes") for path in LOCKED), (rest, "--no-deps")]
        answers = [asked(*part) for part in parts]
    return None if None in answers else [package for answer in answers if answer for package in answer]


def judged(packages: list[dict[str, Any]]) -> tuple[list[str], int]:
    """Sentences about what was found, and the exit code."""
    found = [(package, each) for package in packages for each in package.get("vulns", [])]
    sentences = [
        f"{package['name']} {package['version']}: {each['id']}, fixed in "
        f"{', '.join(each['fix_versions']) or 'no version'}."
        for package, each in found
    ]
    left_out = sum("skip_reason" in package for package in packages)
    sentences.append(f"{len(packages)} packages, {left_out} of them left out: {len(found)} vulnerabilities.")
    mendable = any(each["fix_versions"] for _, each in found)
    return sentences, MENDABLE if mendable else 1 if left_out else 0


def main() -> None:
    """Print the findings."""
    packages = audited()
    if packages is None:
        print("Nothing was audited: the database of vulnerabilities cannot be reached from here.")
        return
    sentences, code = judged(packages)
    print(*sentences, sep="\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
