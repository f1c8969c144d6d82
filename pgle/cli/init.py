"""`pgle init`."""

from __future__ import annotations

from pathlib import Path

import click

from pgle.cli.help import Command
from pgle.cli.options import force_option, json_option


@click.command(cls=Command)
@click.argument("name", metavar="slurm|k8s|github|gitlab|make|docker", default="")
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path), default=Path(), metavar="DIR",
              help="Folder to write into.  [default: this one]")  # fmt: skip
@force_option
@json_option
def command(name: str, folder: Path, force: bool, as_json: bool) -> None:
    """Write files to start from: job scripts, CI, a Makefile, a Dockerfile. Without a name, list them.

    They are plain files of yours from then on; nothing that exists is overwritten.

    \b
    pgle init
    pgle init slurm
    pgle init github -o ~/my-project
    """
    from pgle.report import begin as report
    from pgle.run.init import STARTERS, init

    if not name:
        (report.list_starters_json if as_json else report.list_starters)(STARTERS)
        return
    written = init(name, folder, force=force)
    (report.show_json if as_json else report.show_text)(written, STARTERS[name])
