"""`pgle compare`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from pgle.cli.help import Command
from pgle.cli.options import force_option, one_blas_thread, page_options, pattern_option
from pgle.cli.paths import FOLDER, LOCAL, Between, Out, piped

if TYPE_CHECKING:
    from pgle.files import AnyPath


def _step_range(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int | None, int | None]:
    """``FIRST:LAST``, either may be empty."""
    if value is None:
        return None, None
    first, colon, last = value.partition(":")
    if not colon or not all(part == "" or part.isdigit() for part in (first, last)):
        raise click.BadParameter("write FIRST:LAST, such as 20:79")
    return int(first) if first else None, int(last) if last else None


@click.command(cls=Command)
@click.argument("words", nargs=-1, metavar="[BASE NEW | -- COMMAND...]", type=click.UNPROCESSED)
@click.option("--base", multiple=True, metavar="PATH", help="A further run of BASE; repeatable, globs too.")
@click.option("--new", multiple=True, metavar="PATH", help="A further run of NEW; repeatable, globs too.")
@click.option("--paired", is_flag=True, help="Run i of BASE belongs to run i of NEW.")
@click.option(
    "--label", "labels", nargs=2, default=("", ""), metavar="BASE NEW", help="Names of the sides in the output."
)
@click.option("--fail-slower", metavar="SHARE", help="Fail if NEW is shown to be slower by more than this: 2%.")
@click.option("--fail-undecided", is_flag=True, help="Fail also if the runs cannot tell.")
@click.option("--fail-unless-ruled-out", metavar="SHARE", hidden=True)  # --fail-slower SHARE --fail-undecided
@click.option("--require-faster", is_flag=True, help="Fail unless NEW is faster.")
@click.option("--max-loss-change", metavar="SHARE", help="Fail if the loss differs by more.")
@click.option("--max-memory-growth", metavar="SHARE", help="Fail if peak memory grows by more.")
@click.option("--max-compile-growth", metavar="SHARE", help="Fail if compile time grows by more.")
@click.option("--confidence", default=0.95, show_default=True, type=Between(0.5, 0.9999),
              help="Of the intervals.")  # fmt: skip
@click.option("--same-within", default="0.5%", show_default=True, metavar="SHARE", help="What counts as the same.")
@click.option("--launch-spread", "--run-noise", metavar="SHARE",
              help="How much launches differ (standard deviation); used if each side has one run.")  # fmt: skip
@click.option("--history", type=LOCAL, metavar="FILE", help="Measure that spread in a pgle history.")
@click.option(
    "--warmup", type=click.IntRange(0), metavar="N", help="Steps to leave out at the start.  [default: found]"
)
@click.option("--steps", "window", callback=_step_range, metavar="FIRST:LAST", help="Only these step numbers.")
@click.option("--keep-stalls", is_flag=True, help="Count steps far above the median too.")
@pattern_option("Own console lines: groups s, ms or us; step, loss where there.")
@click.option("--abba", "rounds", type=click.IntRange(0), default=0, metavar="N", help="Run N rounds of four runs.")
@click.option("--profile", type=LOCAL, metavar="PROFILE", help="With --abba: profile of side B.")
@click.option("--run-dir", type=FOLDER, default="runs/abba", show_default=True, metavar="DIR",
              help="With --abba: where the runs are kept; the same command goes on there.")  # fmt: skip
@click.option("--html", type=Out(".html", ".html", ".htm"), metavar="FILE", help="Write a report of one file.")
@click.option("--svg", type=Out(".svg", ".svg"), metavar="FILE", help="Write the picture.")
@click.option("--junit", type=Out(".xml", ".xml"), metavar="FILE", help="Write the checks as JUnit XML.")
@click.option("--github", is_flag=True, help="Write job summary and outputs of a GitHub Actions step.")
@force_option
@page_options
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Compare the step times of two sides; exit code 1 if a limit is not kept.

    BASE, NEW: run directories, console logs (MaxText, Pax, Keras, plain), CSV, JSON lines
    {"step": 7, "step_time_s": 0.2013}, profiler traces; a directory or glob of them is several runs. One folder with
    both stages, or of --abba, is enough. Warm-up, profiled steps and stalls are left out by rule, and listed.

    The unit is the run if there are several, else blocks of steps as long as their autocorrelation asks. The
    verdict is faster, slower, same or undecided; a difference within noise is never called faster or slower.
    A limit is kept (ok), broken (FAIL), or these runs cannot tell; then --abba runs both sides in turn.

    \b
    pgle compare runs/a/baseline runs/a/perf --fail-slower 1%
    pgle compare 'base/*.log' 'new/*.log' --require-faster
    pgle compare --abba 3 --profile profile.pbtxt -- python train.py
    pgle compare --abba 3 -- python train.py --vs python train.py --fused
    """
    if not options["rounds"]:  # else they are a command
        options["words"] = piped(ctx, options["words"])
    with one_blas_thread():
        from pgle.report.next_steps import after_comparison
        from pgle.report.page.terminal import show
        from pgle.report.steps import compare as report
        from pgle.report.text import say
        from pgle.run.compare import run_compare
        from pgle.steps.gate import explanation

    result, checks = run_compare(_request(options), say)
    broken = any(check.failed for check in checks)
    following = after_comparison(result, checks, more=_more_runs(options))
    following = tuple(line for line in following if line.startswith("pgle "))
    if broken and result.verdict != "undecided":
        following = (explanation(result),)
    files = {"html": options["html"], "picture": options["svg"], "junit": options["junit"]}
    written: tuple[AnyPath, ...] = ()
    if any(files.values()):
        from pgle.report.steps.compare_page import write_reports

        written = write_reports(result, checks, following, **files, force=options["force"])
    if options["github"]:
        from pgle.report.steps.compare_page import append

        append(result, checks)
    for path in written:
        say(f"wrote {path}")
    if options["as_json"]:
        report.show_json(result, checks)
    else:
        show(report.comparison_page(result, checks, following), sections=options["sections"])
    ctx.exit(1 if broken else 0)


def _more_runs(options: dict[str, Any]) -> tuple[object, ...]:
    """The words that run twice as many rounds, if rounds were run."""
    from pgle.run.inputs.next_command import abba_words

    rounds = options["rounds"]
    return abba_words(2 * rounds, options["profile"], options["run_dir"], options["words"]) if rounds else ()


def _request(options: dict[str, Any]) -> Any:
    from pgle.errors import UserError
    from pgle.run.compare import CompareRequest
    from pgle.steps.estimate import Assumptions
    from pgle.steps.gate import Limits, parse_share
    from pgle.steps.history import LaunchSpread
    from pgle.steps.steady import Rules

    def share(name: str) -> float | None:
        text = options[name]
        return None if text is None else parse_share(text, f"--{name.replace('_', '-')}")

    first, last = options["window"]
    spread = share("launch_spread")
    as_given = ("words", "base", "new", "pattern", "rounds", "profile", "run_dir", "labels", "history")
    limits = {name: share(name) for name in ("max_loss_change", "max_memory_growth", "max_compile_growth")}
    slower, ruled_out = share("fail_slower"), share("fail_unless_ruled_out")
    if None not in (slower, ruled_out) and slower != ruled_out:
        raise UserError(
            "two bounds of the step time", where="--fail-slower, --fail-unless-ruled-out", remedy="give one"
        )
    bound = slower if ruled_out is None else ruled_out
    if options["fail_undecided"] and bound is None:
        raise UserError("needs a bound", where="--fail-undecided", remedy="add --fail-slower 2%")
    return CompareRequest(
        **{name: options[name] for name in as_given},
        rules=Rules(options["warmup"], first, last, options["keep_stalls"]),
        assumptions=Assumptions(
            options["confidence"],
            share("same_within") or 0.0,
            None if spread is None else LaunchSpread(spread, math.inf, "--launch-spread"),
            options["paired"],
        ),
        limits=Limits(
            bound,
            options["fail_undecided"] or ruled_out is not None,
            options["require_faster"],
            **limits,
        ),
    )
