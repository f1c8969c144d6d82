"""`%load_ext pgle`: commands in a notebook, whose answers show their pages.

Only IPython imports this file, when the extension is loaded.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from click import Context
from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from pgle.api import known
from pgle.api.answer import Answer
from pgle.cli.main import error_line, group, printable
from pgle.errors import UserError
from pgle.files import write_files
from pgle.next import taken_apart

MARK = "# A cell of a notebook wrote this file, and may write it again (%%pgle).\n"
"""First line of a cell's program. It replaces the cell's first line, so that line numbers agree."""
PROGRAM = "pgle_cell.py"
PYTHON = Path(sys.executable)
#: left out if it comes before the program, as in a shell
INTERPRETER = re.compile(r"python[\d.]*")


@magics_class
class PgleMagics(Magics):  # type: ignore[misc]  # IPython has no types
    """The magics of pgle."""

    @no_var_expand  # type: ignore[untyped-decorator]
    @line_cell_magic  # type: ignore[untyped-decorator]
    def pgle(self, line: str, cell: str | None = None) -> Answer[Any] | None:
        """Run a pgle command. The answer is the value of the cell, and shows its page.

        A failed check does not fail the cell. Use `assert answer.ok` for that.

        With ``%%pgle`` the rest of the cell is the program. It is written to the file that the
        first word after ``--`` names, else to pgle_cell.py. Further words are the program's
        arguments.

        %pgle doctor
        %%pgle rehearse --target h100 --devices 8
        %%pgle rehearse --target h100 --devices 8 -- train.py --layers 4
        """
        try:
            words = _words(line)
            if cell is not None:
                words = with_program(words, cell)
            return _answered(words)
        except Exception as error:
            message, _ = error_line(error)
            if message is None:
                return None
            raise UsageError(printable(message)) from None


def _words(line: str) -> list[str]:
    try:
        return taken_apart(line)
    except ValueError:
        raise UserError(
            "has a quote that does not end",
            where=line,
            remedy="close it, or put a backslash before it",
        ) from None


def _answered(words: list[str]) -> Answer[Any] | None:
    """Return the answer of a command line; None if the command printed its result itself."""
    if not words:
        return known.folder()
    answers: list[Answer[Any]] = []
    was = os.environ.get("PATH")
    others = os.defpath if was is None else was
    # `python` is the kernel's interpreter
    os.environ["PATH"] = f"{PYTHON.parent}{os.pathsep}{others}"
    try:
        group.main(words, prog_name="pgle", standalone_mode=False, obj=answers.append)
    finally:
        if was is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = was
    return answers[0] if answers else None


def with_program(words: list[str], cell: str) -> list[str]:
    """Write the program of a cell to its file, and return the command line that runs it.

    Raises `UserError` if the command takes no program, if Python is given options, or if pgle did
    not write the existing file.
    """
    name = words[0] if words else ""
    command = group.get_command(Context(group), name)
    if command is None or all(param.name != "words" for param in command.params):
        remedy = "name a command that does, such as %%pgle rehearse"
        raise UserError("takes no program", where=f"%%pgle {name}", remedy=remedy)
    at = words.index("--") if "--" in words else len(words)
    options = words[:at]
    own = words[at + 1 :]
    if own and INTERPRETER.fullmatch(Path(own[0]).name):
        own = own[1:]
        if not own or not own[0].endswith(".py"):
            remedy = f"write %%pgle {name} … -- NAME.py"
            raise UserError(
                "the cell runs with the notebook's Python, without options",
                where=" ".join(words[at + 1 :]),
                remedy=remedy,
            )
    path = Path(PROGRAM)
    if own and own[0].endswith(".py"):
        path = Path(own[0])
        own = own[1:]
    if path.exists() and not path.read_text(errors="replace").startswith(MARK):
        remedy = "name another file: %%pgle … -- NAME.py"
        raise UserError("exists, and no cell wrote it", where=path, remedy=remedy)
    write_files({path: MARK + cell}, force=True)
    return [*options, "--", PYTHON.name, str(path), *own]


def register(shell: Any) -> None:
    """Add the magics to an IPython shell."""
    shell.register_magics(PgleMagics)
