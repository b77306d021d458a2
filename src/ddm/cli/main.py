"""The command line: the commands of ``ddm.cli``, and what becomes of errors.

With ``--json`` standard output holds one JSON document and nothing else; progress and notes go to standard error. What
the user got wrong is one sentence on standard error and exit code 2.
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
"""Of the click that typer uses, which newer ones carry with them."""


class _Command(TyperCommand):
    """A command whose help shows flags without a type: a flag takes no value."""

    def get_params(self, ctx: Any) -> Any:
        return _plain_flags(super().get_params(ctx))


class _Group(TyperGroup):
    """The same for ``ddm`` itself."""

    def get_params(self, ctx: Any) -> Any:
        return _plain_flags(super().get_params(ctx))


def _plain_flags(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


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
    """Run the command line; what the user got wrong becomes one sentence and exit code 2."""
    warnings.showwarning = lambda message, *_args, **_kwargs: print(printable(f"note: {message}"), file=sys.stderr)
    try:
        code = app(standalone_mode=False)
    except InputError as error:
        _fail(str(error))
    except _UsageError as error:
        message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        if not message:  # the help was asked for by saying nothing
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
            "there is not enough memory: free some and run the same command again; a run that needs less is made by "
            "ddm fit with --setting memory=1, a smaller --batch-size or a smaller --size, and --engine serial needs "
            "less than processes."
        )
    if code == 130:
        print("ddm: interrupted; the same command goes on where this one stopped.", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(sentence: str) -> NoReturn:
    print(printable(f"ddm: {' '.join(sentence.split())}"), file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
