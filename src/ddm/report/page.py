"""The page: all sections in order, rendered into one HTML file that needs no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddm.answers.scores import objectives_judging
from ddm.compute.files import atomic_write
from ddm.data.samples import Data, Samples
from ddm.datamodel import DistilledDatamodel
from ddm.errors import InputError
from ddm.report.cost import cost_section
from ddm.report.effects import effects_section
from ddm.report.errors import errors_section
from ddm.report.findings import findings
from ddm.report.groups import groups_section
from ddm.report.model import model_section
from ddm.report.predictions import predictions_section
from ddm.report.residuals import residuals_section
from ddm.report.shown import Shown
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
    "residuals": "The largest errors and their causes",
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
    images:  show samples: as pictures, snippets of text, or rows of a table
    command: the command that writes the page
    """
    environment, script, asked = _environment(), plotly_script(), data.split(split)
    subject = _subject(datamodel, data, split, asked, Shown(data.train, images))
    page = environment.get_template("page.html.jinja").render(
        sections=_sections(subject),
        plotly=script,
        findings=_findings(subject),
        samples_left_out=not images,
        images=subject.shown.images,
        **_contents(subject, facts, command),
    )
    with atomic_write(out) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return _summary(subject, out)


def installed() -> bool:
    """True if Jinja2 and Plotly are installed."""
    return find_spec("jinja2") is not None and find_spec("plotly") is not None


def _subject(datamodel: DistilledDatamodel, data: Data, split: str, asked: Samples, shown: Shown) -> Subject:
    """The subject of the page: with a diagnosis, or without classes with the effects that the page shows."""
    task = datamodel.target.task
    if task.has_classes:
        return Subject(datamodel, data, datamodel.diagnose(data.validation, data.train), split, asked, shown)
    names = ("loss", objectives_judging(task)[0].name)
    effects = {name: datamodel.attribute(data.validation, name) for name in names}
    return Subject(datamodel, data, None, split, asked, shown, effects)


def _sections(subject: Subject) -> dict[str, str]:
    """The sections that have something to say."""
    if subject.diagnosis is not None:
        return {name: title for name, title in SECTIONS.items() if name != "residuals"}
    return {name: title for name, title in SECTIONS.items() if name not in ("errors", "suspects")}


def _findings(subject: Subject) -> list[str]:
    """The first sentences of the page."""
    if subject.diagnosis is None:
        return findings(subject)
    return subject.diagnosis.sentences()[:-1]  # the last one is about trust, which has a section


def _contents(subject: Subject, facts: dict[str, Any], command: str) -> dict[str, Any]:
    """The content of each section. The groups come last: their pictures use the space that the others leave."""
    contents = {
        "model": model_section(facts),
        "trust": trust_section(subject.datamodel.audited),
        "evidence": evidence_sentence(subject.datamodel.evidence),
        "effects": effects_section(subject),
        **_errors(subject),
        "predictions": predictions_section(subject),
        "synset": synset_section(subject),
        "cost": cost_section(facts, subject.datamodel.config, subject.datamodel.distilled.sentence, command),
    }
    return contents | {"groups": groups_section(subject)}


def _errors(subject: Subject) -> dict[str, Any]:
    """The sections about errors: about classes, or about the largest losses."""
    if subject.diagnosis is None:
        return {"residuals": residuals_section(subject)}
    return {"errors": errors_section(subject), "suspects": suspects_section(subject)}


def _summary(subject: Subject, out: Path) -> dict[str, Any]:
    found = subject.diagnosis
    facts = {
        "report": str(out),
        "bytes": out.stat().st_size,
        "images": subject.shown.images and subject.shown.shown,
        "split": subject.split,
        subject.second: subject.value(subject.second),
        "loss": subject.value("loss"),
    }
    if found is None:
        return facts | {"findings": [*findings(subject), subject.datamodel.trust]}
    return facts | {
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
    environment.globals["sample_words"] = _are_in_words
    folder = files("ddm.report")
    for name in ("style.css", "page.js"):
        environment.globals[name.replace(".", "_")] = (folder / name).read_text(encoding="utf-8")
    return environment


def _are_in_words(rows: Sequence[Mapping[str, Any]]) -> bool:
    """True if these samples are shown, but not as pictures."""
    return any(item["picture"] is None for row in rows for item in row["shown"])


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
