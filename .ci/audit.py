"""Ask a public database whether what is locked has known vulnerabilities: ``python .ci/audit.py``, with pip-audit.

Where the database cannot be reached, a sentence says that nothing was audited, and that is no failure.
"""

import json
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parent.parent / "requirements" / "dev.txt"


def main() -> None:
    """What was found, and exit code 1 where something was."""
    # Not the registry's own service: where it does not know a package, pip-audit leaves the package out and is content.
    options = ["--vulnerability-service=osv", "--require-hashes", "--disable-pip", "--progress-spinner=off"]
    command = [sys.executable, "-m", "pip_audit", *options, "--format=json", "-r", str(LOCK)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = (done.stderr.strip().splitlines() or ["pip-audit said nothing."])[-1]
        if "ConnectionError" not in done.stderr and "Timeout" not in done.stderr:
            sys.exit(f"The audit failed: {reason}")
        print("Nothing was audited: the database of vulnerabilities cannot be reached from here.")
        return
    found = [(package, each) for package in packages for each in package.get("vulns", [])]
    for package, each in found:
        fixed = ", ".join(each["fix_versions"]) or "no version"
        print(f"{package['name']} {package['version']}: {each['id']}, fixed in {fixed}.")
    left_out = [package["name"] for package in packages if "skip_reason" in package]
    print(f"{len(packages)} packages, {len(left_out)} of them unknown to the database: {len(found)} vulnerabilities.")
    sys.exit(1 if found or left_out else 0)


if __name__ == "__main__":
    main()
