"""Options of all commands that answer, and declarations for commands without a request."""

from __future__ import annotations

from typing import Any

import click

from pgle.cli.parameters import PathType, parameters
from pgle.requests import kinds
from pgle.requests.shared import Forced, OfPython, OfRelease
from pgle.run.process import terminal

PATH = PathType(kinds.FILE)
FOLDER = PathType(kinds.FOLDER)


def argument(name: str, metavar: str, type: Any = PATH, **how: Any) -> click.Argument:
    """Declare an argument; ``nargs=-1`` takes several words."""
    return click.Argument([name], metavar=metavar, type=type, **how)


def option(
    names: str, help: str, metavar: str | None = None, type: Any = None, **how: Any
) -> click.Option:
    """Declare an option. `names` are separated by blanks. `--help` shows the default unless it is
    empty.
    """
    how.setdefault("show_default", bool(how.get("default")))
    return click.Option(names.split(), help=help, metavar=metavar, type=type, **how)


def flag(names: str, help: str, **how: Any) -> click.Option:
    """Declare an option without a value."""
    return click.Option(names.split(), help=help, is_flag=True, **how)


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Store how to print the answer, for `Command`."""
    ctx.meta[f"pgle.{param.name}"] = value


_PRINTED: dict[str, Any] = {"expose_value": False, "callback": _keep}
JSON = flag(
    "--json as_json",
    "Print one JSON object instead of a table.",
    is_eager=True,
    **_PRINTED,
)
PAGE = (
    flag(
        "--all everything",
        "Print every section and every row.",
        is_eager=True,
        **_PRINTED,
    ),
    option(
        "--section sections",
        "Print this section too; repeatable.",
        "NAME",
        multiple=True,
        **_PRINTED,
    ),
    JSON,
)
"""The options of every command whose answer is a page."""


def _show_output(_: click.Context, __: click.Parameter, asked: bool) -> None:
    """Show the output of programs that pgle runs for its own purposes."""
    terminal.shows_output = asked


SHOW_OUTPUT = flag(
    "-s --show-output",
    "Without a GPU: show what the program prints; else a log keeps it.",
    expose_value=False,
    callback=_show_output,
)
(FORCE,) = parameters(Forced)
(JAXLIB,) = parameters(OfRelease)
(PYTHON,) = parameters(OfPython)
