"""``ddm bench``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ddm.cli.options import AsJson, EngineName, Root, Seed, chosen, command_line, output_path, print_json
from ddm.errors import InputError

TRUTHS, EVIDENCE = Path("bench", "truths"), Path("bench", "evidence")
"""Default folders of stored truths and stored evidence."""

_STORED = ("root", "out", "truths", "problem", "engine", "as_json")
"""Options of benchmarks on stored problems."""


def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Benchmark: fidelity, ablation, comparison … (a wrong name lists all).")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Dataset: digits, mnist, cifar10 …; default digits. Benchmarks on stored problems have their own."
        ),
    ] = None,
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
    truths: Annotated[
        Path | None, typer.Option(help="Folder of stored retrainings, for recipes and evidence; default bench/truths.")
    ] = None,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="For truths: retrain the evidence, by default into bench/evidence.")
    ] = False,
    evidence_files: Annotated[
        Path | None, typer.Option(help="Folder of stored evidence, for evidence; default bench/evidence.")
    ] = None,
    problem: Annotated[
        list[str] | None,
        typer.Option(help="Stored problem, for recipes, evidence and truths; repeat for several. Default: all."),
    ] = None,
    seed: Seed = 0,
    engine: EngineName = None,
    as_json: AsJson = False,
) -> None:
    """Run a benchmark: a table or figure that compares this method with others and with retraining.

    "truths" retrains the problems and writes a file for each, by default into bench/truths. "recipes" (images) and
    "tables-and-texts" read them.
    "truths --evidence" retrains without unions of groups and in other batch orders. "evidence" reads these files too.
    """
    from ddm import bench as benches
    from ddm.compute.backends import Backend

    Backend.parse(engine).check()
    if name == "truths" and evidence:
        _refuse_options(context, "truths --evidence", (*_STORED, "evidence"))
        _show_files(benches.make_evidence(problem or [], root, truths or TRUTHS, out or EVIDENCE, engine), as_json)
        return
    if name == "truths":
        _refuse_options(context, "truths", ("root", "out", "problem", "engine", "as_json"))
        _show_files(benches.make_truths(problem or [], root, out or TRUTHS, engine), as_json)
        return
    if name in benches.STORED and (name != "recipes" or data is None):
        what = name if name != "recipes" else "recipes without --data"
        _refuse_options(context, what, (*_STORED, *(["evidence_files"] if name == "evidence" else [])))
        out = out or Path("benchmarks") / "stored"
        folders = benches.Folders(truths or TRUTHS, evidence_files or EVIDENCE, root, out)
        _show(benches.run_stored(name, problem or [], folders, command_line(root), engine), out, name, as_json)
        return
    if problem or truths or evidence or evidence_files:
        raise InputError(
            "--problem, --truths, --evidence and --evidence-files are for stored problems (recipes without --data, "
            "tables-and-texts, evidence, truths): leave them out."
        )
    data = data or "digits"
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
    _show(benches.run(name, setup, out, command_line(root), engine), out, name, as_json)


def _refuse_options(context: typer.Context, what: str, allowed: tuple[str, ...]) -> None:
    """Refuse options that stored problems decide."""
    for option in context.params:
        source = context.get_parameter_source(option)
        if option not in ("name", *allowed) and source is not None and source.name == "COMMANDLINE":
            raise InputError(f"{what} has no --{option.replace('_', '-')}, the stored problems decide: leave it out.")


def _show(found: dict[str, Any], out: Path, name: str, as_json: bool) -> None:
    """Print the results of a benchmark."""
    from ddm.compute.terminal import console

    if as_json:
        print_json(found)
    else:
        console().print((out / f"{name}.md").read_text(encoding="utf-8"))
        console().print(f"Files: {out / name}.json, {out / name}.md")


def _show_files(paths: list[Path], as_json: bool) -> None:
    """Print the files of stored truths and their sizes."""
    from ddm.compute.terminal import console

    sizes = {str(path): path.stat().st_size for path in paths}
    if as_json:
        print_json({"files": sizes})
    else:
        for path, size in sizes.items():
            console().print(f"{path}: {size:,} bytes")
