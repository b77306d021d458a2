"""Every package that pip installs is pinned once and checked by hashes."""

import re
from importlib.metadata import requires
from importlib.util import module_from_spec, spec_from_file_location
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


def ci(name):
    """A script of .ci as a module."""
    spec = spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_pin_but_torch_is_locked_at_its_version():
    constraints = pins("constraints.txt")
    assert len(constraints) > 150
    locked = pins("requirements/dev.txt")
    assert locked == {name: version for name, version in constraints.items() if name != "torch"}, "run make lock"
    assert pins("requirements/report.txt").items() <= locked.items()


@pytest.mark.parametrize("name", ["dev.txt", "pip.txt", "report.txt", "tools.txt"])
def test_every_locked_pin_has_hashes(name):
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8").replace("\\\n", "")
    assert pins(f"requirements/{name}")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.search(r"==[^ ]+ .*--hash=sha256:[0-9a-f]{64}", line) for line in lines)


def test_what_the_demo_needs_is_locked():
    needed = [Requirement(line) for line in requires("distilled-datamodel")]
    names = {canonicalize_name(each.name) for each in needed if not each.marker or "report" in str(each.marker)}
    assert len(names) > 10
    assert names - {"torch", "distilled-datamodel"} <= pins("requirements/report.txt").keys()


def test_the_tools_are_locked_at_the_versions_that_are_asked_for():
    lock, locked = ci("lock"), pins("requirements/tools.txt")
    for wanted in map(Requirement, [*lock.TOOLS, lock.PIP]):
        assert str(wanted.specifier) == f"=={locked[canonicalize_name(wanted.name)]}", "run make lock"
    assert pins("requirements/pip.txt").items() <= locked.items()


def test_pip_installs_nothing_without_hashes_but_torch_and_the_project():
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", "")
    installs = re.findall(r"\bpip\b[^|;&\n]*\binstall\b[^|;&\n]*", text)
    checked = [each for each in installs if "--require-hashes -r requirements/" in each]
    assert len(checked) == 4
    rest = [each.split() for each in installs if each not in checked]
    assert [words[-1] for words in rest] == [f"torch=={pins('constraints.txt')['torch']}", "'.[report]'", "'.[dev]'"]
    assert all("constraints.txt" in words for words in rest)


def test_an_audit_fails_where_another_version_mends_something():
    judged, known = ci("audit").judged, {"name": "a", "version": "1", "vulns": []}
    mendable = known | {"vulns": [{"id": "X-1", "fix_versions": ["2", "3"]}]}
    hopeless = known | {"vulns": [{"id": "X-2", "fix_versions": []}]}
    assert judged([known]) == (["1 packages, 0 of them left out: 0 vulnerabilities."], 0)
    sentences, code = judged([known, mendable, hopeless])
    assert sentences[:2] == ["a 1: X-1, fixed in 2, 3.", "a 1: X-2, fixed in no version."]
    assert code == 3
    assert judged([hopeless])[1] == 0
    assert judged([known, {"name": "b", "skip_reason": "unknown"}])[1] == 1
