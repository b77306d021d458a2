"""``ddm explore``."""

from __future__ import annotations

from typing import Annotated

import typer

from ddm.cli.options import DataName, Device, FactoryName, Root, Run


def explore(
    run: Run,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the page; default the first free one from 7860.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default is open to this machine only.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DDM_TOKEN",
            help="Secret of 16 characters or more that visitors need; default a random one.",
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = False,
    data: DataName = None,
    root: Root = None,
    factory: FactoryName = None,
    device: Device = "cpu",
) -> None:
    """A page on this machine to ask about images, remove groups and watch the model change."""
    from ddm.compute.terminal import console
    from ddm.explorer import server
    from ddm.explorer.explored_run import ExploredRun
    from ddm.runs import run as runs

    server.check_installed()
    datamodel, dataset = runs.open_run(run, name=data, root=root, factory=factory, device=device)
    explored = ExploredRun(run, datamodel, dataset)
    with server.serve(explored, port, host=host, token=token, browser=open_) as address:
        console().print(f"Explore {run} at {address} (Ctrl-C ends it).")
        if token is not None:
            console().print("Add ?token= and your token to the address.")
        if host != server.HOST:
            console().print("Whoever has the token sees training images. Nothing is encrypted on the way.")
        server.wait()
    server.leave()
