"""``ddm diagnose``."""

from __future__ import annotations

from typing import Annotated

import typer

from ddm.cli.options import (
    AsJson,
    DataName,
    Device,
    FactoryName,
    Root,
    Run,
    Split,
    audited_part,
    open_question,
    print_json,
)


def diagnose(
    run: Run,
    split: Split = "validation",
    top: Annotated[int, typer.Option(min=1, help="Maximum rows of each table.")] = 10,
    data: DataName = None,
    root: Root = None,
    factory: FactoryName = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """List mislabelled, harmful and useless groups, and the groups that cause each kind of error."""
    from ddm.cli.text import describe_diagnosis
    from ddm.compute.terminal import console

    datamodel, samples = open_question(run, data, root, factory, device, split, None)
    found = datamodel.diagnose(samples)
    if as_json:
        print_json(found.to_dict() | audited_part(datamodel))
    else:
        describe_diagnosis(console(), found, top)
