"""``ddm explore``."""

from __future__ import annotations

from typing import Annotated

import typer

from ddm import run as runs
from ddm.commands.options import DataName, Device, Root, Run
from ddm.errors import InputError
from ddm.words import console


def explore(
    run: Run,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Of the page; default the first free one from 7860.")
    ] = None,
    host: Annotated[str, typer.Option(help="127.0.0.1: the page stays on this machine.")] = "127.0.0.1",
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
    data: DataName = None,
    root: Root = None,
    device: Device = "cpu",
) -> None:
    """A page on this machine to ask about images, remove groups and watch the model change."""
    from ddm.explorer import serving
    from ddm.explorer.opened import Opened

    if host != serving.HOST:
        raise InputError(
            f"the page shows training data, so it stays on this machine: leave out --host, or give {serving.HOST}."
        )
    datamodel, dataset = runs.open_run(run, name=data, root=root, device=device)
    with serving.served(Opened(run, datamodel, dataset), port, browser=open_) as address:
        console().print(f"Explore {run} at {address} (Ctrl-C ends it).")
        serving.wait()
    serving.leave()
