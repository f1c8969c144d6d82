"""`pgle tune`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pgle.cli.help import Command
from pgle.cli.options import asked_of, choose_option, module_options, page_options, quiet_option
from pgle.cli.paths import FOLDER
from pgle.errors import UserError

if TYPE_CHECKING:
    from pgle.run.stages.pipeline import PipelineRequest


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
@click.option("--worlds", default=20, show_default=True, type=click.IntRange(1), help="Perturbed worlds to judge by.")
@click.option("--seed", default=0, show_default=True, help="Of the worlds.")
@click.option(
    "--executor",
    default="",
    metavar="processes|dask://HOST:PORT",
    help="Where trials run: processes of their own, or a Dask cluster that sees the module (pip install 'pgle[dask]').",
)
@click.option("--cache/--no-cache", "cached", default=True, show_default=True, help="Keep and reuse compilations.")
@click.option(
    "-o", "--output", type=FOLDER, metavar="DIR", required=True, help="Folder for flags, profile, trials and page."
)
@page_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    output: Path,
    memory_limit: str | None,
    time_limit: str | None,
    sections: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
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
    from dataclasses import replace

    from pgle.report.page.terminal import show
    from pgle.report.schedules import tune as report
    from pgle.run.rehearse_program import by_file, launch, of_run, prepared
    from pgle.run.trials import TuneRequest, begun
    from pgle.run.tune import tune
    from pgle.xla.targets import load_target

    most_bytes = _size_bytes(memory_limit) if memory_limit else None
    most_s = _seconds(time_limit) if time_limit else None
    asked = of_run(asked_of(ctx, words, output, options))
    with prepared(asked, resumes=begun) as (out, setting):
        request = TuneRequest(
            setting=setting,
            target=load_target(asked.target),
            out=out,
            profile=Path(asked.profile) if asked.profile else None,
            topology=asked.topology,
            network_gb_s=asked.network_gb_s,
            memory_limit=most_bytes,
            time_limit_s=most_s,
            **options,
        )

        with report.searching(request.budget, request.memory_limit) as (on_trial, on_phase):
            found = tune(request, on_trial=on_trial, on_phase=on_phase)
        found = replace(found, launch=launch(by_file(asked, setting)))
        page = report.write_pages(found, out)
    if as_json:
        report.show_json(found, out, page)
    else:
        show(report.tune_page(found, out, page), sections=sections)
    ctx.exit(0 if found.good else 1)


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


def run_tuned(request: PipelineRequest, as_json: bool) -> int:
    """`pgle run --tune`: the experiment, the search, the experiment under what it found; the exit code."""
    from functools import partial

    from pgle.report.experiment.pipeline import Stages
    from pgle.report.schedules import tune
    from pgle.report.text import say
    from pgle.run.stages.simulated import SimulatedBackEnd
    from pgle.run.tune import BUDGET, run_and_tune

    run, searching = request.stage.run.path, partial(tune.searching, BUDGET)
    if as_json:
        tune.show_tuned_run_json(found := run_and_tune(request, say, searching), run)
        return 0 if found.good else 1
    with Stages(simulated=isinstance(request.back_end, SimulatedBackEnd)) as stages:
        found = run_and_tune(request, stages.announce, searching, lambda part: tune.show_part(part, run, stages))
    tune.show_tuned_run(found, run)
    return 0 if found.good else 1
