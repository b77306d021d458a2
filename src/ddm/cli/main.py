"""The program ``ddm``: it registers the commands and turns errors into sentences.

With ``--json`` standard output holds one JSON document and nothing else; progress and notes go to standard error. Bad
input ends with one sentence on standard error and exit code 2.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo, OptionInfo

import ddm
from ddm.cli.attribute import attribute
from ddm.cli.audit import audit
from ddm.cli.bench import bench
from ddm.cli.demo import demo
from ddm.cli.diagnose import diagnose
from ddm.cli.distil import distil
from ddm.cli.explore import explore
from ddm.cli.fit import fit
from ddm.cli.refine import refine
from ddm.cli.report import report
from ddm.cli.trace import trace
from ddm.cli.unlearn import unlearn
from ddm.cli.verify import verify
from ddm.compute.terminal import printable
from ddm.errors import InputError, is_out_of_memory

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The base class of usage errors in the copy of click that typer uses; newer versions of typer bundle their own."""

_METAVARS = {"int": "N", "float": "NUMBER", "Path": "PATH"}


class _Command(TyperCommand):
    """A command whose help shows no types: flags take no value, and metavars name the values of other options."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))


class _Group(TyperGroup):
    """The same for ``ddm`` itself."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types(super().get_params(ctx))


def _without_types(params: list[Any]) -> list[Any]:
    for param in params:
        if param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None
        elif getattr(param, "is_flag", False):
            param.metavar = ""
    return params


def _with_metavars(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with a metavar for each option that has none: N, NUMBER, PATH or TEXT."""
    hints = get_type_hints(command, include_extras=True)
    command.__annotations__ = hints  # else typer evaluates the annotations again, without the metavars
    for name, hint in hints.items():
        info = getattr(hint, "__metadata__", (None,))[0]
        if isinstance(info, ArgumentInfo):
            info.metavar = name.upper()
        elif isinstance(info, OptionInfo) and info.metavar is None:
            info.metavar = next((word for kind, word in _METAVARS.items() if kind in str(hint.__origin__)), "TEXT")
    return command


app = typer.Typer(
    cls=_Group,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Which of my training data made the model do this, and what would it be without them?",
)

for command in (demo, fit, attribute, trace, diagnose, unlearn, audit, refine, report, explore, verify, distil, bench):
    app.command(cls=_Command)(_with_metavars(command))


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Which of my training data made the model do this, and what would it be without them?"""
    if show:
        typer.echo(ddm.__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; bad input becomes one sentence and exit code 2."""
    warnings.showwarning = lambda message, *_args, **_kwargs: print(printable(f"note: {message}"), file=sys.stderr)
    try:
        code = app(standalone_mode=False)
    except InputError as error:
        _fail(str(error))
    except _UsageError as error:
        message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        if not message:  # ddm without a command has printed its help
            sys.exit(2)
        _fail(f"{message}. Try --help.")
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except OSError as error:
        from ddm.compute.files import is_disk_full

        if is_disk_full(error):
            _fail(f"there is no disk space left ({error}): free some and run the same command again.")
        _fail(f"{error.strerror or error}: '{error.filename}'." if error.filename else f"{error}.")
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        _fail(
            "there is not enough memory: free some and run the same command again; ddm fit needs less memory with "
            "--setting memory=1, a smaller --batch-size, a smaller --size or --engine serial."
        )
    if code == 130:
        print("ddm: interrupted; run the same command again to resume.", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(sentence: str) -> NoReturn:
    print(printable(f"ddm: {' '.join(sentence.split())}"), file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
