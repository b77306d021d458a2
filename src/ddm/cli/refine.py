"""``ddm refine``."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from ddm.cli.options import (
    AsJson,
    DataName,
    Device,
    EngineName,
    FactoryName,
    Root,
    Run,
    Seed,
    Split,
    open_question,
    print_json,
)
from ddm.errors import InputError

_UNITS = {"s": 1, "m": 60, "h": 3600}


def refine(
    run: Run,
    retrain: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of retrainings; 0 uses the models that the run has. Default: 20.", metavar="N"
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Retrain for about this long instead, such as 90s, 10m or 2h.")
    ] = None,
    general: Annotated[
        bool, typer.Option("--general", help="Retrain in other batch orders, for questions about models in general.")
    ] = False,
    index: Annotated[
        list[int] | None, typer.Option(help="Number of a sample that matters most; repeat for several.")
    ] = None,
    split: Split = "test",
    data: DataName = None,
    root: Root = None,
    factory: FactoryName = None,
    seed: Seed = 0,
    device: Device = "cpu",
    engine: EngineName = None,
    as_json: AsJson = False,
) -> None:
    """Retrain without some groups. Each retraining improves the answers, and gives their intervals."""
    from ddm.compute.backends import Backend
    from ddm.compute.terminal import console
    from ddm.runs import run as runs

    if retrain is not None and budget is not None:
        raise InputError("give either --retrain or --budget.")
    seconds = None if budget is None else _seconds(budget)
    Backend.parse(engine).check()
    datamodel, question = open_question(run, data, root, factory, device, split, index)
    found = runs.refine(
        run,
        datamodel,
        retrain=20 if retrain is None else retrain,
        seconds=seconds,
        question=question if index else None,
        general=general,
        seed=seed,
        engine=engine,
    )
    if as_json:
        print_json(found.to_dict() | {"run": str(run)})
        return
    console().print(found.sentence)
    console().print(f"Answers of {run} now rest on {found.retrained} retrainings, and their effects have intervals.")


def _seconds(text: str) -> float:
    """The seconds of a time such as 90s, 10m or 2h."""
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smh])", text.strip())
    if found is None:
        raise InputError(f"'{text}' is not a time: give a number with s, m or h, such as 10m.")
    return float(found[1]) * _UNITS[found[2]]
