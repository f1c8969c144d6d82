"""`pgle auto`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pgle.cli.help import Command
from pgle.cli.options import flag_option, json_option, run_dir_option, window_option


@click.command(cls=Command)
@click.argument("words", nargs=-1, metavar="-- COMMAND...")
@run_dir_option()
@click.option(
    "--runs", default=3, show_default=True, type=click.IntRange(1), help="Executions of each function to trace."
)
@click.option(
    "--percentile", default=90, show_default=True, type=click.IntRange(0, 100), help="Of the costs over them."
)
@click.option("--then-nsys", is_flag=True, help="Run again under nsys, with the compiled program from the cache.")
@click.option("--cache", type=click.Path(path_type=Path), metavar="DIR",
              help="JAX's compilation cache.  [default: a new one in the run directory]")  # fmt: skip
@window_option
@flag_option
@click.option("--force", is_flag=True, help="Run again; old folders are kept under other names.")
@json_option
@click.pass_context
def command(ctx: click.Context, /, words: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Run a command with JAX's AutoPGLE, and hand the result over to nsys.

    AutoPGLE traces the first executions of every jitted function, then compiles it again with the measured costs, all
    in one run. It does not reach functions compiled ahead of time, and holds CUPTI, so that nsys sees nothing beside
    it. --then-nsys starts the command a second time: the optimised programs come from JAX's compilation cache
    (JAX_COMPILATION_CACHE_EXPECT_PGLE), and nsys traces them.

    Exit code 1 where nothing was compiled again, with the reason.

    \b
    pgle auto -- python train.py
    pgle auto --runs 5 --percentile 50 --then-nsys --run-dir runs/a -- python train.py
    """
    from pgle.report import auto as report
    from pgle.run.experiment.auto import AutoRequest, run_auto

    request = AutoRequest(words, stdout=2 if as_json else 1, **options)
    result = run_auto(request)
    (report.show_json if as_json else report.show_text)(result)
    ctx.exit(0 if result.good else 1)
