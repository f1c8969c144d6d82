"""`pgle auto`."""

from __future__ import annotations

from pathlib import Path

import click

from pgle.cli.options import json_option


@click.command()
@click.argument("words", nargs=-1, metavar="-- COMMAND...")
@click.option("--run-dir", default="runs/default", show_default=True, type=click.Path(path_type=Path), metavar="DIR",
              help="Where the experiment lives.")  # fmt: skip
@click.option(
    "--runs", default=3, show_default=True, type=click.IntRange(1), help="Executions of each function to trace."
)
@click.option(
    "--percentile", default=90, show_default=True, type=click.IntRange(0, 100), help="Of the costs over them."
)
@click.option("--then-nsys", is_flag=True, help="Run again under nsys, with the compiled program from the cache.")
@click.option("--cache", type=click.Path(path_type=Path), metavar="DIR",
              help="JAX's compilation cache.  [default: a new one in the run directory]")  # fmt: skip
@click.option(
    "--window", default="auto", show_default=True, metavar="auto|steps:A-B|seconds:N|all", help="What nsys traces."
)
@click.option("--flag", "flags", multiple=True, metavar="--xla_…", help="One more XLA flag; repeatable.")
@click.option("--force", is_flag=True, help="Run again; old folders are kept under other names.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    run_dir: Path,
    runs: int,
    percentile: int,
    then_nsys: bool,
    cache: Path | None,
    window: str,
    flags: tuple[str, ...],
    force: bool,
    as_json: bool,
) -> None:
    """Run a command with JAX's AutoPGLE, and hand the result over to nsys.

    AutoPGLE traces the first executions of every jitted function, then compiles it again with the measured costs, all
    in one run. It does not reach functions compiled ahead of time, and holds CUPTI, so that nsys sees nothing beside
    it. --then-nsys starts the command a second time: the optimised programs come from JAX's compilation cache
    (JAX_COMPILATION_CACHE_EXPECT_PGLE), and nsys traces them.

    Exit code 1 where nothing was compiled again; the reason is said.

    \b
    pgle auto -- python train.py
    pgle auto --runs 5 --percentile 50 --then-nsys --run-dir runs/a -- python train.py
    """
    from pgle.report import auto as report
    from pgle.run.experiment.auto import AutoRequest, run_auto

    request = AutoRequest(
        words, run_dir, runs, percentile, then_nsys, cache, window, flags, 2 if as_json else 1, force
    )  # fmt: skip
    result = run_auto(request)
    (report.show_json if as_json else report.show_text)(result)
    ctx.exit(0 if result.good else 1)
