"""The layout of the package: a stage imports only from the stages above it."""

import ast
from pathlib import Path

import pytest

import ddm

PACKAGE = Path(ddm.__file__).parent

STAGES = (
    "errors",
    "compute",
    "plots",
    "data",
    "networks",
    "training",
    "groups",
    "curvature",
    "distil",
    "counterfactual",
    "truth",
    "answers",
    "datamodel",
    "integrations",
    "runs",
    "baselines",
    "privacy",
    "bench",
    "report",
    "explorer",
    "cli",
)
"""Every stage, in the order in which data flows through them."""

LEAVES = ("bench", "report", "explorer", "integrations")
"""Stages that only the command line imports, or only users."""

CONVENIENCES = {("datamodel.py", "runs")}
"""``DistilledDatamodel.save`` calls the store, so that users need not know of it."""


def imported_stages(source: str) -> set[str]:
    """Stages that a file imports when it runs; imports for type checkers alone do not count."""
    tree = ast.parse(source)
    skipped = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for statement in branch.body
        for node in ast.walk(statement)
    }
    found = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("ddm.")}
        elif isinstance(node, ast.ImportFrom) and node.module == "ddm":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ddm."):
            found.add(node.module.split(".")[1])
    return found & set(STAGES)


def against_the_flow(file: str, source: str) -> list[str]:
    """The imports of a file, given by its path within the package, that go against the flow."""
    stage = file.split("/")[0].removesuffix(".py")
    allowed = set(STAGES[: STAGES.index(stage) + 1]) - (set(LEAVES) - {stage} if stage != "cli" else set())
    allowed |= {other for name, other in CONVENIENCES if name == file}
    return [f"{file} imports {other}" for other in sorted(imported_stages(source) - allowed)]


def files() -> list[str]:
    return sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def test_every_file_imports_only_from_stages_above_its_own():
    wrong = [line for file in files() for line in against_the_flow(file, (PACKAGE / file).read_text(encoding="utf-8"))]
    assert wrong == []


def test_every_file_belongs_to_a_stage():
    assert {file.split("/")[0].removesuffix(".py") for file in files()} == set(STAGES)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("data/samples.py", "from ddm.training.target import Target"),
        ("data/samples.py", "def f():\n    import ddm.cli.main"),
        ("runs/store.py", "from ddm import report"),
        ("explorer/page.py", "from ddm.report import page"),
    ],
)
def test_an_import_against_the_flow_is_found(file, source):
    assert against_the_flow(file, source)


def test_an_import_for_type_checkers_alone_is_allowed():
    assert not against_the_flow("plots/bars.py", "if TYPE_CHECKING:\n    from ddm.answers.trace import Trace")
