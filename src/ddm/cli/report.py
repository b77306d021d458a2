"""``ddm report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ddm.cli.options import (
    AsJson,
    DataName,
    Device,
    FactoryName,
    Root,
    Run,
    Split,
    audited_part,
    command_line,
    output_path,
    print_json,
)


def report(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(parser=output_path, metavar="PATH", help="File for the page; default RUN/report.html."),
    ] = None,
    split: Split = "test",
    images: Annotated[
        bool,
        typer.Option("--images/--no-images", help="Show images of the dataset on the page."),
    ] = True,
    data: DataName = None,
    root: Root = None,
    factory: FactoryName = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Write a web page about a run: the model, its data, its errors, and what to do about them."""
    from ddm import report as reports
    from ddm.compute.terminal import console
    from ddm.runs import run as runs

    datamodel, dataset = runs.open_run(run, name=data, root=root, factory=factory, device=device)
    found = reports.write(
        datamodel,
        dataset,
        out or run / "report.html",
        runs.summarise(datamodel, dataset) | {"seconds": _seconds(run)},
        split=split,
        images=images,
        command=command_line(root),
    )
    if as_json:
        print_json(found | audited_part(datamodel))
        return
    say = console().print
    for sentence in found["findings"]:
        say(sentence)
    say(f"Page: {found['report']} ({found['bytes'] / 1e6:.1f} MB). Open it in a browser; it needs no network.")


def _seconds(run: Path) -> dict[str, Any]:
    """Seconds of each stage of a run; empty for a run that was saved from Python."""
    from ddm.compute.files import read_json_object
    from ddm.runs.folder import SUMMARY

    summary = run / SUMMARY
    seconds = read_json_object(summary).get("seconds") if summary.exists() else {}
    return seconds if isinstance(seconds, dict) else {}
