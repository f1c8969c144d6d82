"""What a project's configuration says where a command line says nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pgle.errors import UserError
from pgle.requests.project import project_file

if TYPE_CHECKING:
    from pgle.requests.configuration import Setting


@dataclass(frozen=True)
class Configured:
    """The options of a command in a file."""

    path: Path  # the file
    settings: dict[str, Setting]  # by the name of the parameter
    program: Setting | None  # is taken if no words are given

    def with_program(self, args: list[str]) -> list[str]:
        """The words of a command line, with those of the program."""
        if self.program is None:
            return args
        return [*_own(args), "--", *self.program.value]

    def values(self) -> dict[str, Any]:
        """As `click.Context.default_map` has them."""
        return {name: item.value for name, item in self.settings.items()}

    def error(self, ctx: click.Context, error: click.BadParameter) -> UserError | None:
        """An error of a value in the file, which names the file; None: it is another's."""
        name = str(error.param.name) if error.param else ""
        if name not in self.settings or not _is_from_file(ctx, name):
            return None
        return UserError(
            error.message.rstrip("."), where=f"{self.path}: {self.settings[name].key}"
        )

    def said(self, ctx: click.Context) -> str:
        """What came from the file, and its name; empty: nothing did."""
        used = [
            item for name, item in self.settings.items() if _is_from_file(ctx, name)
        ]
        if self.program is not None:
            used.insert(0, self.program)
        words = ", ".join(f"{item.key} {item.shown}" for item in used)
        return f"{words} ({self.path.name})" if used else ""


def configured(
    command: click.Command, ctx: click.Context, args: list[str]
) -> Configured | None:
    """What a file says for a command line; None: there is no file, or only help is asked for."""
    is_help = {"-h", "--help"} & set(_own(args))
    path = None if ctx.resilient_parsing or is_help else project_file(Path.cwd())
    if path is None:
        return None
    # these know all commands, which take time to import
    from pgle.requests.commands import COMMANDS
    from pgle.requests.configuration import program_of, read_configuration

    name = str(ctx.info_name)
    if name not in COMMANDS:
        return None
    found = read_configuration(path).settings(name)
    program = found.pop(str(program_of(COMMANDS[name])), None)
    given, _, _ = command.make_parser(ctx).parse_args(list(args))
    words = given.get("words")
    if isinstance(words, tuple | list) and words:
        program = None
    settings = {
        name: item for name, item in found.items() if item.instead_of not in given
    }
    return Configured(path, settings, program)


def _own(args: list[str]) -> list[str]:
    """The words before those of a program."""
    return args[: args.index("--")] if "--" in args else args


def _is_from_file(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
