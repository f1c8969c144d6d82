"""Commands on step times: two sides compared, and times kept over months.

Each imports what it runs when it runs: NumPy, of which its help needs none.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pgle import api
from pgle.api import Answer
from pgle.cli import options as opt
from pgle.cli.help import Commands, command
from pgle.cli.options import FOLDER, LOCAL, SHARE, Place
from pgle.errors import UserError
from pgle.files import write_files
from pgle.report.text import say
from pgle.requests import kinds

if TYPE_CHECKING:
    from pgle.run.compare import CompareRequest


def _step_range(text: str) -> tuple[int | None, int | None]:
    """``FIRST:LAST``, either may be empty."""
    first, colon, last = text.partition(":")
    if not colon or not all(part == "" or part.isdigit() for part in (first, last)):
        raise click.BadParameter("write FIRST:LAST, such as 20:79")
    return int(first) if first else None, int(last) if last else None


@command(
    opt.argument("words", "[BASE NEW | -- COMMAND...]", click.UNPROCESSED, nargs=-1),
    opt.option(
        "--base", "A further run of BASE; repeatable, globs too.", "PATH", multiple=True
    ),
    opt.option(
        "--new", "A further run of NEW; repeatable, globs too.", "PATH", multiple=True
    ),
    opt.flag("--paired", "Run i of BASE belongs to run i of NEW."),
    opt.option(
        "--label labels",
        "Names of the sides in the output.",
        "BASE NEW",
        nargs=2,
        default=("", ""),
        show_default=False,
    ),
    opt.option(
        "--fail-slower",
        "Fail if NEW is shown to be slower by more than this: 2%.",
        "SHARE",
        SHARE,
    ),
    opt.flag("--fail-undecided", "Fail also if the runs cannot tell."),
    opt.flag("--require-faster", "Fail unless NEW is faster."),
    opt.option(
        "--max-loss-change", "Fail if the loss differs by more.", "SHARE", SHARE
    ),
    opt.option(
        "--confidence",
        "Of the intervals.",
        default=0.95,
        type=opt.between("confidence"),
    ),
    opt.option(
        "--same-within", "What counts as the same.", "SHARE", SHARE, default="0.5%"
    ),
    opt.option(
        "--launch-spread --run-noise",
        "How much launches differ (standard deviation); used if each side has one run.",
        "SHARE",
        SHARE,
    ),
    opt.option("--history", "Measure that spread in a pgle history.", "FILE", LOCAL),
    opt.option(
        "--warmup",
        "Steps to leave out at the start.  [default: found]",
        "N",
        opt.whole_number("warmup"),
    ),
    opt.option("--steps window", "Only these step numbers.", "FIRST:LAST", _step_range),
    opt.PATTERN,
    opt.option(
        "--abba rounds", "Run N rounds of four runs.", "N", click.IntRange(0), default=0
    ),
    opt.option("--profile", "With --abba: profile of side B.", "PROFILE", LOCAL),
    opt.option(
        "--run-dir",
        "With --abba: where the runs are kept; the same command resumes.",
        "DIR",
        FOLDER,
        default="runs/abba",
    ),
    opt.option(
        "--html",
        "Write a report of one file.",
        "FILE",
        Place(kinds.Place(ends=(".html", ".htm"))),
    ),
    opt.flag("--github", "Write job summary and outputs of a GitHub Actions step."),
    opt.FORCE,
    *opt.PAGE,
)
@click.pass_context
def compare_command(ctx: click.Context, /, **options: Any) -> Answer[Any]:
    """Compare the step times of two sides; exit code 1 if a limit is not kept.

    BASE, NEW: run directories, console logs (MaxText, plain), CSV, JSON lines {"step": 7,
    "step_time_s": 0.2013}, profiler traces; a directory or glob of them is several runs. One folder
    with both stages, or of --abba, is enough. Warm-up, profiled steps and stalls are left out by
    rule, and listed.

    The unit is the run if there are several, else blocks of steps as long as their autocorrelation
    asks. The verdict is faster, slower, same or undecided; a difference within noise is never
    called faster or slower. A limit is kept (ok), broken (FAIL), or these runs cannot tell; then
    --abba runs both sides in turn.

    \b
    pgle compare runs/a/baseline runs/a/perf --fail-slower 1%
    pgle compare 'base/*.log' 'new/*.log' --require-faster
    pgle compare --abba 3 --profile profile.pbtxt -- python train.py
    pgle compare --abba 3 -- python train.py --vs python train.py --fused
    """
    from pgle.report import compare as report
    from pgle.report.next_steps import after_comparison
    from pgle.report.page.html import render
    from pgle.run.compare import compared_run, record_comparison, run_compare
    from pgle.run.inputs.next_command import abba_words
    from pgle.steps.compare import explanation

    result, checks = run_compare(_request(options), say)
    if run := compared_run(result):
        record_comparison(run, result)
    broken = any(check.failed for check in checks)
    rounds = options["rounds"]
    more = (
        abba_words(2 * rounds, options["profile"], options["run_dir"], options["words"])
        if rounds
        else ()
    )
    following = after_comparison(result, checks, more=more)
    if broken and result.verdict != "undecided":
        following = (explanation(result),)
    page = report.comparison_page(result, checks, following)
    if options["html"] is not None:
        write_files({options["html"]: render(page)}, force=options["force"])
        say(f"wrote {options['html']}")
    if options["github"]:
        report.append(result, checks)
    return api.answer(
        "compare", result, page, report.document(result, checks), not broken
    )


def _request(options: dict[str, Any]) -> CompareRequest:
    from pgle.run.compare import CompareRequest
    from pgle.steps.compare import Limits
    from pgle.steps.estimate import Assumptions, given_spread
    from pgle.steps.series import Rules

    def given(*names: str) -> dict[str, Any]:
        return {name: options[name] for name in names}

    first, last = options["window"] or (None, None)
    if options["fail_undecided"] and options["fail_slower"] is None:
        raise UserError(
            "needs a bound", where="--fail-undecided", remedy="add --fail-slower 2%"
        )
    return CompareRequest(
        **given(
            "words",
            "base",
            "new",
            "pattern",
            "rounds",
            "profile",
            "run_dir",
            "labels",
            "history",
        ),
        rules=Rules(options["warmup"], first, last),
        assumptions=Assumptions(
            options["confidence"],
            options["same_within"],
            paired=options["paired"],
            launch_spread=given_spread(options["launch_spread"]),
        ),
        limits=Limits(
            **given(
                "fail_slower", "fail_undecided", "require_faster", "max_loss_change"
            )
        ),
    )


_FILE = opt.option(
    "--file path", "JSON lines.", "FILE", LOCAL, default="perf/history.jsonl"
)


@click.group(cls=Commands)
def history_command() -> None:
    """Keep step times of runs, to measure how much launches differ.

    \b
    pgle history add runs/a/perf --name llama-7b
    pgle compare base.log new.log --history perf/history.jsonl
    """


@history_command.command(
    params=[
        opt.argument("runs", "RUN...", None, nargs=-1, required=True),
        opt.option(
            "--name",
            "The workload; trends are kept by name and hardware.",
            "NAME",
            required=True,
        ),
        opt.option(
            "--hardware", "What it ran on.  [default: what nvidia-smi says]", "NAME"
        ),
        opt.option(
            "--commit",
            "Commit of the program.  [default: as recorded with the run, else that of the working "
            "directory]",
            "ID",
        ),
        opt.option("--time when", "ISO 8601.  [default: now]", "TIME"),
        opt.option("--note", "A comment on the entry.", "TEXT", default=""),
        opt.PATTERN,
        _FILE,
        *opt.PAGE,
    ]
)
def add(
    runs: tuple[str, ...],
    name: str,
    hardware: str | None,
    commit: str | None,
    when: str | None,
    note: str,
    pattern: str | None,
    path: Path,
) -> Answer[Any]:
    """Add the runs of one state: run directories, logs, CSV or JSON lines, as of pgle compare.

    \b
    pgle history add runs/a/perf --name llama-7b
    """
    from pgle.report import compare as report
    from pgle.report.next_steps import after_entry
    from pgle.run.ask.machine import git_commit
    from pgle.run.compare import add_entry, hardware_name, read_history
    from pgle.run.inputs.step_times import read_side
    from pgle.steps.estimate import Entry, make_trends
    from pgle.steps.series import Rules, check_runs

    try:
        time = datetime.fromisoformat(when) if when else datetime.now(UTC)
    except ValueError:
        raise UserError(
            f"'{when}' is not a time",
            where="--time",
            remedy="write 2026-01-31T12:00:00",
        ) from None
    side = read_side(name, runs, rules=Rules(), pattern=pattern)
    check_runs(side.runs)
    entry = Entry(
        time=time.isoformat(timespec="seconds"),
        name=name,
        hardware=hardware or ("simulated" if side.simulated else hardware_name()),
        commit=(side.commit or git_commit()) if commit is None else commit,
        median_s=side.median_s,
        spread=side.spread,
        runs=len(side.runs),
        steps=side.steps,
        simulated=side.simulated,
        note=note,
    )
    add_entry(path, entry)
    entries, warnings = read_history(path)
    of_workload = [
        old for old in entries if (old.name, old.hardware) == (name, entry.hardware)
    ]
    (trend,) = make_trends(of_workload)
    page = report.history_page(
        path, entry, trend, warnings=warnings, following=after_entry(path)
    )
    return api.answer(
        "history", trend, page, report.history_document(path, trend, warnings)
    )
