"""``ddm distil``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddm.cli.options import AsJson, DataName, Device, FactoryName, Root, Run, output_path, print_json


def distil(
    run: Run,
    release: Annotated[
        Path | None,
        typer.Option(parser=output_path, metavar="PATH", help="New folder for a copy to share: the synset alone."),
    ] = None,
    data: DataName = None,
    root: Root = None,
    factory: FactoryName = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Distil the synset of a run from its kept responses, unless it has one; --release writes a copy to share."""
    from ddm.cli.text import describe_release, describe_run
    from ddm.compute.folders import check_empty
    from ddm.compute.terminal import console
    from ddm.runs import run as runs
    from ddm.runs.release import release as released

    if release is not None:
        check_empty(release, "a folder for a release")
    datamodel, dataset = runs.open_run(run, name=data, root=root, factory=factory, device=device)
    facts = runs.distil(run, datamodel, dataset)
    names = None if release is None else released(datamodel, release, facts)
    if as_json:
        print_json(facts | {"run": str(run), "release": None if release is None else str(release), "files": names})
        return
    describe_run(console(), facts, str(run))
    console().print(datamodel.distilled.sentence)
    if release is not None and names is not None:
        describe_release(console(), str(release), names)
