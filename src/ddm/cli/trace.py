"""``ddm trace``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddm.cli.options import (
    AsJson,
    DataName,
    Device,
    EngineName,
    FactoryName,
    Index,
    ObjectiveName,
    Root,
    Run,
    Split,
    audited_part,
    open_question,
    output_path,
    print_json,
)


def trace(
    run: Run,
    objective: ObjectiveName = "prediction",
    index: Index = None,
    split: Split = "test",
    full: Annotated[
        bool, typer.Option("--full", help="Search all groups, not only those of the strongest class.")
    ] = False,
    verify: Annotated[
        int,
        typer.Option(
            min=0, help="Retrain without this many of the best candidates, to check them (needs one more retraining)."
        ),
    ] = 0,
    samples: Annotated[int, typer.Option(min=0, help="Show this many training samples of the group.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(parser=output_path, metavar="PATH", help="File for a picture of these samples (png, svg or pdf)."),
    ] = None,
    data: DataName = None,
    root: Root = None,
    factory: FactoryName = None,
    device: Device = "cpu",
    engine: EngineName = None,
    as_json: AsJson = False,
) -> None:
    """Find the class, then the cluster, then the samples most responsible for a behaviour."""
    from ddm import plots
    from ddm.cli.subject import describe_samples
    from ddm.cli.text import describe_trace, shares_table
    from ddm.compute.backends import Backend
    from ddm.compute.terminal import console
    from ddm.runs import run as runs

    if plot is not None:
        plots.picture_kind(plot)
    Backend.parse(engine).check()
    datamodel, question = open_question(run, data, root, factory, device, split, index)
    found = runs.trace(run, datamodel, question, objective, full=full, verify=verify, engine=engine)
    shown = samples or (10 if plot is not None else 0)
    shares = datamodel.shares(question, found.group, objective) if shown else None
    if shares is not None and plot is not None and datamodel.samples is not None:
        plots.save(shares.plot(datamodel.samples, shown), plot)
    if as_json:
        print_json(found.to_dict() | ({"shares": shares.to_dict()} if shares else {}) | audited_part(datamodel))
        return
    describe_samples(console(), datamodel, question, split, index)
    describe_trace(console(), found)
    if shares is not None:
        console().print(shares_table(shares, shown, datamodel.samples))
    console().print(datamodel.trust)
