"""``ddm bench``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ddm.cli.options import AsJson, EngineName, Root, Seed, chosen, command_line, output_path, print_json


def bench(
    name: Annotated[str, typer.Argument(help="Benchmark: fidelity, ablation, comparison … (a wrong name lists all).")],
    data: Annotated[str, typer.Option(help="Dataset: digits, mnist, cifar10 …")] = "digits",
    root: Root = None,
    model: Annotated[str, typer.Option(help="Network: convnet, alexnet, resnet18ap or simplevit.")] = "convnet",
    limit: Annotated[int | None, typer.Option(help="Maximum samples of each split.")] = None,
    size: Annotated[int | None, typer.Option(help="Resize images to this many pixels.")] = None,
    clusters: Annotated[int | None, typer.Option(help="Clusters per class.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training set.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Batch orders per retraining.")] = None,
    tests: Annotated[int | None, typer.Option(help="Number of test samples in the questions.")] = None,
    unions: Annotated[
        int | None, typer.Option(help="Number of random halves of the groups to leave out of a retraining.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="tiny, quick (under 30 minutes on 2 cores) or paper (its full settings).")
    ] = "quick",
    out: Annotated[
        Path | None,
        typer.Option(parser=output_path, metavar="PATH", help="Folder for the results; default benchmarks/DATA."),
    ] = None,
    seed: Seed = 0,
    engine: EngineName = None,
    as_json: AsJson = False,
) -> None:
    """Run a benchmark: a table or figure that compares this method with others and with retraining."""
    from ddm import bench as benches
    from ddm.compute.backends import Backend
    from ddm.compute.terminal import console

    Backend.parse(engine).check()
    setup = benches.preset(data, model, scale)
    recipe = replace(setup.recipe, seed=seed, **chosen(epochs=epochs))
    setup = replace(
        setup,
        root=root,
        seed=seed,
        recipe=recipe,
        settings=replace(setup.settings, seed=seed),
        **chosen(limit=limit, size=size, clusters=clusters, orders=seeds, tests=tests, unions=unions),
    )
    out = out or Path("benchmarks") / data.replace(":", "-").replace("/", "-")
    found = benches.run(name, setup, out, command_line(root), engine)
    if as_json:
        print_json(found)
    else:
        console().print((out / f"{name}.md").read_text(encoding="utf-8"))
        console().print(f"Files: {out / name}.json, {out / name}.md")
