"""``ddm verify``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from ddm.cli.options import AsJson, DataName, Root, Run, print_json
from ddm.errors import InputError

if TYPE_CHECKING:
    from ddm.data.samples import Samples


def verify(run: Run, data: DataName = None, root: Root = None, as_json: AsJson = False) -> None:
    """Check a run: every file is unchanged, all belong to one training, and the training data are the same."""
    from ddm.cli.text import describe_verification
    from ddm.compute.terminal import console
    from ddm.runs.verify import verify as verified

    found = verified(run, functools.partial(_training_set, run, data, root))
    if as_json:
        print_json(found.to_dict())
    else:
        describe_verification(console(), found)
    if found.bad:
        raise InputError(found.sentence)


def _training_set(run: Path, data: str | None, root: str | None) -> Samples | str:
    """The training set of a run, or the reason why it cannot be read, unless the user named it."""
    from ddm.runs.inputs import training_set

    try:
        return training_set(run, data, root)
    except InputError as error:
        if data is not None or root is not None:
            raise
        return str(error).removesuffix(".")
