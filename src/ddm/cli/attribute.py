"""``ddm attribute``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddm.cli.options import (
    AsJson,
    DataName,
    Device,
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
    output: Annotated[
        str | None, typer.Option(help="Class to look at, for objectives with one value per class.")
    ] = None,
    level: Annotated[str, typer.Option(help="cluster or class.")] = "cluster",
    design: Annotated[str, typer.Option(help="leave-one-out or random.")] = "leave-one-out",
    perturbations: Annotated[
        int | None, typer.Option(help="Number of perturbations of a random design; default 4 per group.")
    ] = None,
    beta: Annotated[str, typer.Option(help="Weight of a perturbation: uniform or removed.")] = "uniform",
    fast: Annotated[
        bool,
        typer.Option("--fast", help="Use one Jacobian instead of one model per group: the same for small effects."),
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Groups to show.")] = 10,
    plot: Annotated[
        Path | None, typer.Option(parser=output_path, metavar="PATH", help="Write the picture here (png, svg, pdf).")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(parser=output_path, metavar="PATH", help="Write all effects here (json or csv).")
    ] = None,
    data: DataName = None,
    root: Root = None,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """What removing each group does to a behaviour: on a sample, a batch, or a whole split."""
    from ddm import plots
    from ddm.cli.text import effects_table
    from ddm.compute.terminal import console

    if plot is not None:
        plots.picture_kind(plot)
    datamodel, question = open_question(run, data, root, device, split, index)
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
        console().print(effects_table(found, top))
        console().print(datamodel.trust)
