"""The page: its sections in order, put into templates, and written as one file that needs no other."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddm.compute.files import atomic_write
from ddm.data.samples import Data
from ddm.datamodel import DistilledDatamodel
from ddm.errors import InputError
from ddm.report.confusions import errors
from ddm.report.cost import cost
from ddm.report.examples import examples
from ddm.report.group_effects import effects
from ddm.report.groups import groups
from ddm.report.model import model
from ddm.report.pictures import Pictures
from ddm.report.subject import Subject
from ddm.report.suspects import suspects
from ddm.report.synsets import synsets
from ddm.report.trust import trust

if TYPE_CHECKING:
    from jinja2 import Environment

SECTIONS = {
    "model": "The model",
    "trust": "How far to trust this page",
    "groups": "The training set",
    "effects": "What helps and what harms",
    "errors": "Errors and their causes",
    "examples": "Single predictions",
    "synset": "The synset",
    "suspects": "Suspicious samples",
    "cost": "Cost and settings",
}
"""In the order of the page."""


def write(
    datamodel: DistilledDatamodel,
    data: Data,
    out: Path,
    facts: dict[str, Any],
    *,
    split: str = "test",
    images: bool = True,
    command: str = "ddm report RUN",
) -> dict[str, Any]:
    """Write the page of a datamodel to ``out``, and return what it says in numbers.

    facts:   of the run, as ``ddm.runs.run.summarise`` gives them, with ``seconds`` where known
    split:   where single predictions are taken from; the diagnosis is that of the validation samples
    images:  whether pictures of samples may be shown
    command: what makes the page again
    """
    environment, script, asked = _environment(), plotly_script(), data.split(split)
    diagnosis = datamodel.diagnose(data.validation, data.train)
    subject = Subject(datamodel, data, diagnosis, split, asked, Pictures(data.train, images))
    page = environment.get_template("page.html.jinja").render(
        sections=SECTIONS,
        plotly=script,
        images_left_out=subject.pictures.images and not images,
        has_images=subject.pictures.images,
        **_contents(subject, facts, command),
    )
    with atomic_write(out) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return _summary(subject, out)


def installed() -> bool:
    """Whether what a page is made with is there."""
    return find_spec("jinja2") is not None and find_spec("plotly") is not None


def _contents(subject: Subject, facts: dict[str, Any], command: str) -> dict[str, Any]:
    """What each section says. The map comes last: it takes the room for pictures that the others leave."""
    contents = {
        "model": model(facts),
        "trust": trust(subject.datamodel.audited),
        "effects": effects(subject),
        "errors": errors(subject),
        "examples": examples(subject),
        "synset": synsets(subject),
        "suspects": suspects(subject),
        "cost": cost(facts, subject.datamodel.config, command),
    }
    return contents | {"groups": groups(subject)}


def _summary(subject: Subject, out: Path) -> dict[str, Any]:
    found = subject.diagnosis
    return {
        "report": str(out),
        "bytes": out.stat().st_size,
        "images": subject.pictures.shown,
        "split": subject.split,
        "accuracy": found.accuracy,
        "loss": found.loss,
        "harmful": [finding.group for finding in found.harmful],
        "suspects": [suspect.row for suspect in found.suspects],
        "findings": found.sentences(),
    }


def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise _missing() from None
    environment = Environment(
        loader=PackageLoader("ddm.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    folder = files("ddm.report")
    for name in ("style.css", "page.js"):
        environment.globals[name.replace(".", "_")] = (folder / name).read_text(encoding="utf-8")
    return environment


def plotly_script() -> str:
    """Plotly's JavaScript, to be put into the page."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise _missing() from None
    script: str = get_plotlyjs()
    return script


def _missing() -> InputError:
    return InputError("a report needs Jinja2 and Plotly: pip install 'distilled-datamodel[report]'.")
