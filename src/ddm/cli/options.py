"""Options that several commands share, and the helpers to open a run and to print JSON."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddm.compute.terminal import printable_json
from ddm.errors import InputError

if TYPE_CHECKING:
    from ddm.data.samples import Samples
    from ddm.datamodel import DistilledDatamodel
    from ddm.runs.config import Config

Run = Annotated[Path, typer.Argument(help="Run directory of ddm fit.", show_default=False)]
Root = Annotated[str | None, typer.Option(help="Folder with the dataset's files.")]
DataName = Annotated[str | None, typer.Option("--data", help="Dataset of the run; needed for runs saved from Python.")]
FactoryName = Annotated[
    str | None,
    typer.Option(
        "--factory",
        metavar="PACKAGE.MODULE:MAKE",
        callback=lambda name: _importable_from_here(name),
        help="Code that builds the network, for runs that were saved with it; ddm imports it.",
    ),
]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed.")]
Device = Annotated[str, typer.Option(help="Device of torch: cpu, cuda, cuda:1, mps …")]
EngineName = Annotated[
    str | None,
    typer.Option("--engine", help="Where tasks run: serial, processes, dask://HOST:PORT, ray or ray://HOST:PORT."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Split = Annotated[str, typer.Option(help="Split to ask about: train, validation or test.")]
Index = Annotated[
    list[int] | None, typer.Option(help="Number of a sample in the split; repeat for a batch. Default: all samples.")
]
ObjectiveName = Annotated[
    str,
    typer.Option(
        help="Behaviour to explain: prediction, probabilities, loss, accuracy, f1 … (a wrong name lists all)."
    ),
]


def _importable_from_here(name: str | None) -> str | None:
    """Let modules of the current folder be imported, after all others, because the user names one."""
    if name is not None:
        sys.path.append(os.getcwd())
    return name


def output_path(text: str) -> Path:
    """The path of an option; an empty text is refused, because it would mean the current folder."""
    from ddm.compute.files import output_path as checked

    return checked(text)


def chosen(**options: Any) -> dict[str, Any]:
    """The options that the user gave."""
    return {name: value for name, value in options.items() if value is not None}


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(printable_json(json.dumps(value, ensure_ascii=False)))


def audited_part(datamodel: DistilledDatamodel) -> dict[str, Any]:
    """The audit of a run, for JSON documents; None if there is none."""
    return {"audit": datamodel.audited.to_dict() if datamodel.audited is not None else None}


def open_question(
    run: Path,
    data: str | None,
    root: str | None,
    factory: str | None,
    device: str,
    split: str,
    index: list[int] | None,
) -> tuple[DistilledDatamodel, Samples]:
    """The datamodel of a run, and the samples of the question."""
    from ddm.runs import run as runs

    datamodel, dataset = runs.open_run(run, name=data, root=root, factory=factory, device=device)
    samples = dataset.split(split)
    if not index:
        return datamodel, samples
    for position in index:
        if not 0 <= position < len(samples):
            raise InputError(f"there is no sample {position}: the {split} split has 0 to {len(samples) - 1}.")
    return datamodel, samples[index]


def with_seed(config: Config, seed: int, given: dict[str, Any] | None = None) -> Config:
    """The config with one seed for θ_0, batch order and synsets, except where ``given`` settings have their own."""
    return replace(
        config,
        options={"seed": seed, **config.options},
        recipe=replace(config.recipe, seed=seed),
        settings=replace(config.settings, seed=(given or {}).get("seed", seed)),
    )


def command_line(root: str | None) -> str:
    """The command as the user typed it, with ``data`` in place of the folder of the dataset."""
    words = ["data" if word == root else word for word in sys.argv[1:]]
    return shlex.join(["ddm", *words])
