"""The program ``ddm``: it registers the commands and turns errors into sentences.

With ``--json`` standard output holds one JSON document and nothing else; progress and notes go to standard error. Bad
input ends with one sentence on standard error and exit code 2.
"""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

import ddm
from ddm.cli.attribute import attribute
from ddm.cli.audit import audit
from ddm.cli.bench import bench
from ddm.cli.demo import demo
from ddm.cli.diagnose import diagnose
from ddm.cli.explore import explore
from ddm.cli.fit import fit
from ddm.cli.report import report
from ddm.cli.trace import trace
from ddm.cli.unlearn import unlearn
from ddm.cli.verify import verify
from ddm.compute.terminal import printable
from ddm.errors import InputError, is_out_of_memory

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The base class of usage errors in the copy of click that typer uses; newer versions of typer bundle their own."""


class _Command(TyperCommand):
    """A command whose help names the values of options in words, and flags without a value."""

    def get_params(self, ctx: Any) -> Any:
        return _with_metavars(super().get_params(ctx))


class _Group(TyperGroup):
    """The same for ``ddm`` itself."""

    def get_params(self, ctx: Any) -> Any:
        return _with_metavars(super().get_params(ctx))


def _with_metavars(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.metavar is None:
            param.metavar = _metavar(param)
    return params


def _metavar(param: Any) -> str:
    if param.param_type_name == "argument":
        return str(param.name).upper()
    kind = param.type.name.lower()
    if kind.startswith("int"):
        return "N"
    return {"float": "NUMBER", "path": "PATH"}.get(kind, "TEXT")


app = typer.Typer(
    cls=_Group,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Which of my training data made the model do this, and what would it be without them?",
)

for command in (demo, fit, attribute, trace, diagnose, unlearn, audit, report, explore, verify, bench):
    app.command(cls=_Command)(command)


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
