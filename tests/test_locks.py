"""What pip installs is pinned once and checked by hashes."""

import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


def pins(name):
    """The version of each name in a file."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return {
        canonicalize_name(found[1]): found[2] for found in re.finditer(r"^([\w.-]+)==([\w.+]+)", text, re.MULTILINE)
    }


def test_every_pin_but_torch_is_locked_at_its_version():
    constraints = pins("constraints.txt")
    assert len(constraints) > 150
    locked = pins("requirements/dev.txt")
    assert locked == {name: version for name, version in constraints.items() if name != "torch"}, "run make lock"
    assert pins("requirements/report.txt").items() <= locked.items()


@pytest.mark.parametrize("name", ["requirements/dev.txt", "requirements/report.txt"])
def test_every_locked_pin_has_hashes(name):
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.search(r"==[^ ]+ .*--hash=sha256:[0-9a-f]{64}", line) for line in lines)


def test_what_the_demo_needs_is_locked():
    needed = [Requirement(line) for line in requires("distilled-datamodel")]
    names = {canonicalize_name(each.name) for each in needed if not each.marker or "report" in str(each.marker)}
    assert len(names) > 10
    assert names - {"torch", "distilled-datamodel"} <= pins("requirements/report.txt").keys()


def test_pip_refuses_a_file_with_another_hash(tmp_path):
    text = "mdurl==0.1.2 --hash=sha256:" + "0" * 64
    wheel = tmp_path / "mdurl-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"not what was locked")
    (tmp_path / "lock.txt").write_text(text, encoding="utf-8")
    words = ["install", "--dry-run", "--force-reinstall", "--no-deps", "--no-index", "--require-hashes"]
    command = [sys.executable, "-m", "pip", *words, f"--find-links={tmp_path}", "-r", str(tmp_path / "lock.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
