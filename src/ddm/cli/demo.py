"""``ddm demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddm.cli.options import AsJson, Device, Seed, output_path, print_json, with_seed


def demo(
    out: Annotated[Path, typer.Option(parser=output_path, metavar="PATH", help="Folder of the run.")] = Path(
        "runs/demo"
    ),
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Train, distil, attribute and trace on scikit-learn's digits, tell what came out, and make a page of it."""
    from ddm.cli import demo_story as demos
    from ddm.compute.terminal import console
    from ddm.runs.config import Config
    from ddm.training.recipe import Recipe

    found = demos.demo(
        out,
        with_seed(Config(options={"width": 16}, recipe=Recipe(epochs=20), clusters=5, device=device), seed),
    )
    if as_json:
        print_json(found)
    else:
        demos.tell(console(), found)
