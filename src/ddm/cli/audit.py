"""``ddm audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddm.cli.options import AsJson, DataName, Device, EngineName, FactoryName, Root, Run, Seed, output_path, print_json


def audit(
    run: Run,
    retrain: Annotated[
        int, typer.Option(min=2, help="Number of groups to leave out of a retraining, one at a time.")
    ] = 10,
    seeds: Annotated[int, typer.Option(min=2, help="Batch orders per retraining; the first is that of the model.")] = 2,
    unions: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of random halves of the groups to leave out; default: the value of --retrain."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(parser=output_path, metavar="PATH", help="File for a picture (png, svg or pdf).")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also print every figure, and what it means.")] = False,
    data: DataName = None,
    root: Root = None,
    factory: FactoryName = None,
    seed: Seed = 0,
    device: Device = "cpu",
    engine: EngineName = None,
    as_json: AsJson = False,
) -> None:
    """Measure how far to trust a run: compare its answers with models retrained without some groups."""
    from ddm import plots
    from ddm.cli.text import describe_audit
    from ddm.compute.backends import Backend
    from ddm.compute.terminal import console
    from ddm.runs import run as runs

    if plot is not None:
        plots.picture_kind(plot)
    Backend.parse(engine).check()
    datamodel, dataset = runs.open_run(run, name=data, root=root, factory=factory, device=device)
    found = runs.audit(run, datamodel, dataset, retrain=retrain, unions=unions, seeds=seeds, seed=seed, engine=engine)
    if plot is not None:
        plots.save(found.plot(), plot)
    if as_json:
        print_json(found.to_dict())
    else:
        describe_audit(console(), found, verbose)
