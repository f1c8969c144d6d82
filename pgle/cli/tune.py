"""`pgle tune`."""

from __future__ import annotations

from typing import Any

import click

from pgle.cli.help import Command
from pgle.cli.options import (
    choose_option,
    flag_option,
    host_devices_option,
    json_option,
    measured_option,
    quiet_option,
    target_option,
    topology_option,
)


@click.command(cls=Command)
@click.argument("words", nargs=-1, required=True, metavar="MODULE | -- COMMAND...")
@measured_option
@target_option
@host_devices_option
@topology_option
@flag_option
@choose_option
@quiet_option
@click.option("--budget", default=20, show_default=True, type=click.IntRange(1), help="Trials at most.")
@click.option("--memory-limit", metavar="SIZE", help="Temporary device memory at most: 70GiB, 8e10.")
@click.option("--worlds", default=20, show_default=True, type=click.IntRange(1), help="Perturbed worlds to judge by.")
@click.option("--seed", default=0, show_default=True, help="Of the worlds.")
@click.option("--cache/--no-cache", "cached", default=True, show_default=True, help="Keep and reuse compilations.")
@click.option("-o", "--output", metavar="DIR", required=True, help="Folder for flags, profile, trials and page.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    profile: str | None,
    target: str,
    devices: int | None,
    topology: str | None,
    flags: tuple[str, ...],
    choose: str | None,
    quiet_s: float,
    output: str,
    memory_limit: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the flags that, with the profile, make a step fastest: real compiler, no GPU, judged over perturbed worlds.

    MODULE as for 'pgle rehearse'. Tried are combine thresholds, pipelined collectives, loop double buffering and the
    overlap limit, one at a time, guided by what stays exposed. A setting is accepted only if it wins in nine of ten
    worlds, in which costs, latencies and contention differ, and by half a per cent. All gains are predictions.
    A search that was stopped goes on when the same command is given again with the same DIR.

    \b
    pgle tune step.mlir --profile profile.pbtxt --target h100 --devices 8 -o tuned
    pgle tune --devices 8 -o tuned -- python train.py --config x
    """
    import itertools
    from pathlib import Path

    from pgle.report import tune as report
    from pgle.report.text import size_bytes
    from pgle.run.rehearse.command import RehearseCommand, prepared
    from pgle.run.tune.record import NAME
    from pgle.run.tune.request import TuneRequest
    from pgle.run.tune.tune import tune
    from pgle.xla.targets import load_target

    shape = topology or (f"1x1x{devices}" if devices else None)
    asked = RehearseCommand(words, profile, target, shape, devices, flags, None, output, choose, quiet_s)
    with prepared(asked, resumes=NAME) as (out, setting):
        request = TuneRequest(
            setting=setting,
            target=load_target(target),
            out=out,
            profile=Path(profile) if profile else None,
            topology=shape,
            memory_limit=size_bytes(memory_limit) if memory_limit else None,
            **options,
        )

        count = itertools.count()
        found = tune(request, on_trial=lambda *of: report.say_trial(next(count), request.budget, *of))
        page = report.write_pages(found, out)
    if as_json:
        report.show_json(found, out, page)
    else:
        report.show_text(found, out, page)
    ctx.exit(0 if found.good else 1)
