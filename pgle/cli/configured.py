"""A project's configuration gives values for what the command line leaves out."""

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
    """A command's options from a configuration file."""

    path: Path  # the configuration file
    settings: dict[str, Setting]  # by the name of the parameter
    program: Setting | None  # program to run if the command line has none

    def with_program(self, args: list[str]) -> list[str]:
        """Return the words of a command line, followed by the configured program."""
        if self.program is None:
            return args
        return [*_own(args), "--", *self.program.value]

    def values(self) -> dict[str, Any]:
        """Return the values as `click.Context.default_map` takes them."""
        return {name: item.value for name, item in self.settings.items()}

    def error(self, ctx: click.Context, error: click.BadParameter) -> UserError | None:
        """Return an error that names the file, if a value in the file caused it; else None."""
        name = str(error.param.name) if error.param else ""
        if name not in self.settings or not _is_from_file(ctx, name):
            return None
        where = f"{self.path}: {self.settings[name].key}"
        return UserError(error.message.rstrip("."), where=where)

    def said(self, ctx: click.Context) -> str:
        """Say which values came from the file, and its name; empty if none did."""
        used = [] if self.program is None else [self.program]
        used += [
            self.settings[name] for name in self.settings if _is_from_file(ctx, name)
        ]
        if not used:
            return ""
        words = ", ".join(f"{item.key} {item.shown}" for item in used)
        return f"{words} ({self.path.name})"


def configured(
    command: click.Command, ctx: click.Context, args: list[str]
) -> Configured | None:
    """Return the options that the project's configuration file sets for a command. None if there is
    no such file, if the command takes no options from it, or if the user asks for help.
    """
    is_help = {"-h", "--help"} & set(_own(args))
    path = None if ctx.resilient_parsing or is_help else project_file(Path.cwd())
    if path is None:
        return None
    # these import all commands, which takes time
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
    """Return the words before the program's."""
    return args[: args.index("--")] if "--" in args else args


def _is_from_file(ctx: click.Context, name: str) -> bool:
    """Whether the value of a parameter comes from the configuration."""
    return ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
