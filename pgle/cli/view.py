"""`pgle view`."""

from __future__ import annotations

from pathlib import Path

import click

from pgle.cli.help import Command


@click.command(cls=Command)
@click.argument("path", type=click.Path(path_type=Path), metavar="RUN")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8791, show_default=True, metavar="N", help="Of the page."
)
def command(path: Path, port: int) -> None:
    """Open XProf on a run: its trace viewer, operation and memory profiles (extra 'xprof').

    RUN: a run directory or a stage of it, a log directory of the JAX profiler, or an .xplane.pb. XProf runs on this
    machine until Ctrl-C. 'pgle report' needs nothing installed, and shows traces of nsys too.

    \b
    pgle view runs/a
    pgle view logdir --port 6006
    """
    import sys

    from pgle.run.ask.xprof import view

    view(path, port, lambda line: print(f"pgle: {line}", file=sys.stderr))
