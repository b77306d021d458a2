"""``ddm attribute``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddm.cli.options import (
    AsJson,
    DataName,
    Device,
    FactoryName,
    Index,
    ObjectiveName,
    Root,
    Run,
    Seed,
    Split,
    audited_part,
    open_question,
    output_path,
    print_json,
)


def attribute(
    run: Run,
    objective: ObjectiveName = "prediction",
    index: Index = None,
    split: Split = "test",
    output: Annotated[str | None, typer.Option(help="Class to show, for objectives with one value per class.")] = None,
    level: Annotated[str, typer.Option(help="Groups to remove: cluster or class.")] = "cluster",
    design: Annotated[
        str, typer.Option(help="Which groups are removed together: leave-one-out, or random halves.")
    ] = "leave-one-out",
    perturbations: Annotated[int | None, typer.Option(help="Number of random halves; default 4 per group.")] = None,
    beta: Annotated[
        str, typer.Option(help="Weight of each random half: uniform, or removed (fewer removed groups count more).")
    ] = "uniform",
    fast: Annotated[
        bool,
        typer.Option("--fast", help="Use one Jacobian instead of one model per group; accurate for small effects."),
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Groups to show.")] = 10,
    plot: Annotated[
        Path | None, typer.Option(parser=output_path, metavar="PATH", help="File for a picture (png, svg or pdf).")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(parser=output_path, metavar="PATH", help="File for all effects (json or csv).")
    ] = None,
    data: DataName = None,
    root: Root = None,
    factory: FactoryName = None,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Show how removing each group changes a behaviour on a sample, a batch or a split."""
    from ddm import plots
    from ddm.answers.intervals import NO_INTERVALS
    from ddm.cli.subject import describe_samples
    from ddm.cli.text import describe_effects
    from ddm.compute.terminal import console

    if plot is not None:
        plots.picture_kind(plot)
    datamodel, question = open_question(run, data, root, factory, device, split, index)
    found = datamodel.attribute(
        question, objective, level=level, design=design, perturbations=perturbations, beta=beta, seed=seed, fast=fast
    )
    if output is not None:
        found = found.on(output)
    if save is not None:
        found.save(save)
    if plot is not None:
        plots.save(found.plot(top), plot)
    if as_json:
        print_json(found.to_dict() | audited_part(datamodel))
    else:
        describe_samples(console(), datamodel, question, split, index)
        describe_effects(console(), found, top)
        if level == "cluster" and design == "leave-one-out" and not found.has_intervals:
            console().print(NO_INTERVALS)
        if found.beyond is not None:
            console().print(found.beyond)
        console().print(datamodel.trust)
