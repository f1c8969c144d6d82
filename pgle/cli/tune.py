"""`pgle tune`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from pgle import api
from pgle.api import Answer
from pgle.cli.help import Command
from pgle.cli.options import asked_of, choose_option, module_options, page_options, quiet_option
from pgle.cli.paths import FOLDER
from pgle.errors import UserError


@click.command(cls=Command)
@click.argument("words", nargs=-1, required=True, metavar="MODULE | RUN | -- COMMAND...")
@module_options
@choose_option
@quiet_option
@click.option("--budget", default=20, show_default=True, type=click.IntRange(1), help="Trials at most.")
@click.option(
    "--time-limit", metavar="TIME", help="Begin no trial after so long, and prove the best so far: 90s, 30m, 2h."
)
@click.option("--memory-limit", metavar="SIZE", help="Temporary device memory at most: 70GiB, 8e10.")
@click.option(
    "--worlds", default=20, show_default=True, type=click.IntRange(1), help="Variations of the costs to judge by."
)
@click.option("--seed", default=0, show_default=True, help="Of the variations.")
@click.option("--cache/--no-cache", "cached", default=True, show_default=True, help="Keep and reuse compilations.")
@click.option(
    "-o", "--output", type=FOLDER, metavar="DIR", required=True, help="Folder for flags, profile, trials and page."
)
@page_options
@click.pass_context
def command(
    ctx: click.Context, /, words: tuple[str, ...], output: Path, memory_limit: str | None, time_limit: str | None,
    **options: Any,
) -> Answer[Any]:  # fmt: skip
    """Find the XLA flags that, with the profile, make a step fastest. Uses the real compiler and no GPU.

    MODULE: as for 'pgle rehearse'. RUN: a run directory, with its module, measured profile and flags. The search tries
    combine thresholds, pipelined collectives, loop double buffering and other flags that decide the schedule, one at a
    time. It accepts a setting if the step gets half a per cent shorter, by the likely costs and on average over
    worlds, and if it is shorter in nine of ten worlds. In a world, costs, latencies, contention and launch gaps differ.
    All gains are predictions. The answer shows what others measured for each flag. To continue a search that was
    stopped, give the same command again.

    \b
    pgle tune step.mlir --profile profile.pbtxt --target h100 --devices 8 -o tuned
    pgle tune runs/mine -o tuned
    pgle tune --devices 8 -o tuned -- python train.py --config x
    """
    most_bytes = _size_bytes(memory_limit) if memory_limit else None
    most_s = _seconds(time_limit) if time_limit else None
    asked = asked_of(ctx, words, output, options)
    return api.tuned(asked, memory_limit=most_bytes, time_limit_s=most_s, **options)


def _size_bytes(text: str) -> int:
    """Bytes of a size that a user wrote: ``70GiB``, ``8e10``."""
    units = {"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
    found = re.fullmatch(r"\s*(\d*\.?\d+(?:e\d+)?)\s*([a-z]*)\s*", text.lower())
    size = float(found[1]) * units.get(found[2], 0) if found else 0
    if not 0 < size < 1e18:
        raise UserError("is no size", where=text, remedy="say 70GiB, 512MiB or a number of bytes")
    return int(size)


def _seconds(text: str) -> float:
    """Seconds of a time that a user wrote: ``90s``, ``30m``, ``1.5h``."""
    found = re.fullmatch(r"\s*(\d*\.?\d+)\s*(s|m|h)\s*", text.lower())
    seconds = float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
    if not 0 < seconds < 1e9:
        raise UserError("is no time", where=f"--time-limit {text}", remedy="say 90s, 30m or 2h")
    return seconds
