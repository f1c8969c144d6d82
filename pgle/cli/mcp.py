"""`pgle mcp`."""

from __future__ import annotations

from pathlib import Path

import click

from pgle.cli.help import Command
from pgle.cli.paths import FOLDER


@click.command(cls=Command)
@click.argument("folder", type=FOLDER, default=".", metavar="[FOLDER]")
def command(folder: Path) -> None:
    """Serve the answers to an agent: a server of the Model Context Protocol on stdin and stdout (extra 'mcp').

    FOLDER: all that the tools read lies in it. They write nothing there. The tools are folder, analyze, verify,
    confirm, compare, predict, rehearse and flags_explain. Long calls report what they do, and can be cancelled.

    \b
    pgle mcp
    pgle mcp runs/
    """
    from pgle.mcp import serve

    serve(folder.resolve())
