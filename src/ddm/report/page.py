"""The page: all sections in order, rendered into one HTML file that needs no other file."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddm.compute.files import atomic_write
from ddm.data.samples import Data
from ddm.datamodel import DistilledDatamodel
from ddm.errors import InputError
from ddm.report.cost import cost_section
from ddm.report.effects import effects_section
from ddm.report.errors import errors_section
from ddm.report.groups import groups_section
from ddm.report.model import model_section
from ddm.report.pictures import Pictures
from ddm.report.predictions import predictions_section
from ddm.report.subject import Subject
from ddm.report.suspects import suspects_section
from ddm.report.synset import synset_section
from ddm.report.trust import evidence_sentence, trust_section

if TYPE_CHECKING:
    from jinja2 import Environment

SECTIONS = {
    "model": "The model",
    "trust": "How far to trust this page",
    "groups": "The groups of the training set",
    "effects": "The effects of groups: help and harm",
    "errors": "The errors and their causes",
    "predictions": "Single predictions",
    "synset": "The synset",
    "suspects": "Suspect samples",
    "cost": "Cost and settings",
}
"""Section of each file and template, in the order of the page."""


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
    """Write the page of a datamodel to ``out``, and return its main numbers.

    facts:   of the run, as ``ddm.runs.run.summarise`` gives them, with ``seconds`` where known
    split:   the split of the single predictions; the diagnosis always uses the validation samples
    images:  show pictures of samples
    command: the command that writes the page
    """
    environment, script, asked = _environment(), plotly_script(), data.split(split)
    diagnosis = datamodel.diagnose(data.validation, data.train)
    subject = Subject(datamodel, data, diagnosis, split, asked, Pictures(data.train, images))
    page = environment.get_template("page.html.jinja").render(
        sections=SECTIONS,
        plotly=script,
        findings=diagnosis.sentences()[:-1],  # the last one is about trust, which has a section
        images_left_out=subject.pictures.images and not images,
        has_images=subject.pictures.images,
        **_contents(subject, facts, command),
    )
    with atomic_write(out) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return _summary(subject, out)


def installed() -> bool:
    """True if Jinja2 and Plotly are installed."""
    return find_spec("jinja2") is not None and find_spec("plotly") is not None


def _contents(subject: Subject, facts: dict[str, Any], command: str) -> dict[str, Any]:
    """The content of each section. The groups come last: their pictures use the space that the others leave."""
    contents = {
        "model": model_section(facts),
        "trust": trust_section(subject.datamodel.audited),
        "evidence": evidence_sentence(subject.datamodel.evidence),
        "effects": effects_section(subject),
        "errors": errors_section(subject),
        "predictions": predictions_section(subject),
        "synset": synset_section(subject),
        "suspects": suspects_section(subject),
        "cost": cost_section(facts, subject.datamodel.config, subject.datamodel.distilled.sentence, command),
    }
    return contents | {"groups": groups_section(subject)}


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
    """Plotly's JavaScript, which the page includes."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise _missing() from None
    script: str = get_plotlyjs()
    return script


def _missing() -> InputError:
    return InputError("a report needs Jinja2 and Plotly: pip install 'distilled-datamodel[report]'.")
