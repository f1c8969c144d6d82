"""Commands on step times: two sides compared, and times kept over months."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pgle import api
from pgle.api import Answer
from pgle.cli.help import Command, Group
from pgle.cli.options import force_option, page_options, pattern_option
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


@click.command(cls=Command, computes=True)
@click.argument("words", nargs=-1, metavar="[BASE NEW | -- COMMAND...]", type=click.UNPROCESSED)
@click.option("--base", multiple=True, metavar="PATH", help="A further run of BASE; repeatable, globs too.")
@click.option("--new", multiple=True, metavar="PATH", help="A further run of NEW; repeatable, globs too.")
@click.option("--paired", is_flag=True, help="Run i of BASE belongs to run i of NEW.")
@click.option(
    "--label", "labels", nargs=2, default=("", ""), metavar="BASE NEW", help="Names of the sides in the output."
)
@click.option("--fail-slower", metavar="SHARE", help="Fail if NEW is shown to be slower by more than this: 2%.")
@click.option("--fail-undecided", is_flag=True, help="Fail also if the runs cannot tell.")
@click.option("--require-faster", is_flag=True, help="Fail unless NEW is faster.")
@click.option("--max-loss-change", metavar="SHARE", help="Fail if the loss differs by more.")
@click.option("--max-memory-growth", metavar="SHARE", help="Fail if peak memory grows by more.")
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
@pattern_option("Own console lines: groups s, ms or us; and step, loss if there.")
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
def compare_command(ctx: click.Context, /, **options: Any) -> Answer[Any]:
    """Compare the step times of two sides; exit code 1 if a limit is not kept.

    BASE, NEW: run directories, console logs (MaxText, plain), CSV, JSON lines
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
    from pgle.report.next_steps import after_comparison
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
    page = report.comparison_page(result, checks, following)
    return api.answer("compare", result, page, report.document(result, checks), not broken)


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
    limits = {name: share(name) for name in ("max_loss_change", "max_memory_growth")}
    slower = share("fail_slower")
    if options["fail_undecided"] and slower is None:
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
            slower,
            options["fail_undecided"],
            options["require_faster"],
            **limits,
        ),
    )


_file = click.option(
    "--file", "path", type=LOCAL, default="perf/history.jsonl", show_default=True,
    metavar="FILE", help="JSON lines.",
)  # fmt: skip
_name = click.option("--name", metavar="NAME", help="Only this workload.")
_hardware = click.option("--hardware", metavar="NAME", help="Only this hardware.")


@click.group(cls=Group)
def history_command() -> None:
    """Keep step times over time; they show how much launches differ.

    \b
    pgle history add runs/a/perf --name llama-7b
    pgle history show
    pgle compare base.log new.log --history perf/history.jsonl
    """


@history_command.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", callback=lambda ctx, _, words: piped(ctx, words))
@click.option("--name", required=True, metavar="NAME", help="The workload; trends are kept by name and hardware.")
@click.option("--hardware", metavar="NAME", help="What it ran on.  [default: what nvidia-smi says]")
@click.option(
    "--commit",
    metavar="ID",
    help="Commit of the program.  [default: as recorded with the run, else that of the working directory]",
)
@click.option("--time", "when", metavar="TIME", help="ISO 8601.  [default: now]")
@click.option("--note", default="", metavar="TEXT", help="A comment on the entry.")
@pattern_option("As of pgle compare.")
@_file
@page_options
def add(
    runs: tuple[str, ...], name: str, hardware: str | None, commit: str | None, when: str | None, note: str,
    pattern: str | None, path: Path,
) -> Answer[Any]:  # fmt: skip
    """Add the runs of one state: run directories, logs, CSV or JSON lines, as of pgle compare.

    \b
    pgle history add runs/a/perf --name llama-7b
    """
    from datetime import UTC, datetime

    from pgle.errors import UserError
    from pgle.report.next_steps import after_entry
    from pgle.report.steps import history as report
    from pgle.run import history
    from pgle.run.ask.machine import git_commit
    from pgle.run.inputs.step_times import read_side
    from pgle.steps.history import make_entry
    from pgle.steps.steady import Rules

    try:
        time = datetime.fromisoformat(when) if when else datetime.now(UTC)
    except ValueError:
        raise UserError(f"'{when}' is not a time", where="--time", remedy="write 2026-01-31T12:00:00") from None
    side = read_side(name, runs, rules=Rules(), pattern=pattern)
    entry = make_entry(
        side,
        time=time.isoformat(timespec="seconds"),
        name=name,
        hardware=hardware or ("simulated" if side.simulated else history.hardware_name()),
        commit=(side.commit or git_commit()) if commit is None else commit,
        note=note,
    )
    history.add(path, entry)
    page = report.added_page(path, entry, after_entry(path, name))
    return api.answer("history", entry, page, {"file": path, "added": entry})


@history_command.command()
@_name
@_hardware
@_file
@page_options
def show(name: str | None, hardware: str | None, path: Path) -> Answer[Any]:
    """Show the entries of each workload and hardware, and how much launches differ.

    \b
    pgle history show --name llama-7b
    """
    from pgle.report.next_steps import after_trends
    from pgle.report.steps import history as report
    from pgle.run.history import read
    from pgle.steps.history import make_trends

    entries, warnings = read(path)
    trends = make_trends(entries, name=name, hardware=hardware)
    page = report.history_page(path, trends, warnings, after_trends(path))
    return api.answer("history", trends, page, report.document(trends, warnings))
