"""Commands on step times: two sides compared, and times kept over months.

Each imports its code, which needs NumPy, only when it runs, so that help is fast.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from pgle.api.answer import Answer, answer
from pgle.cli import options as opt
from pgle.cli.help import Commands, command
from pgle.cli.parameters import parameters
from pgle.errors import UserError
from pgle.files import write_files
from pgle.report.text import say
from pgle.requests.steps import AddToHistory, CompareRuns


@command(*parameters(CompareRuns), *opt.PAGE)
def compare_command(**options: Any) -> Answer[Any]:
    """Compare the step times of two sides. The exit code is 1 if a limit is not kept.

    BASE, NEW: run directories, console logs (MaxText, plain), JSON lines {"step": 7, "step_time_s":
    0.2013}, CSV (also of wandb, mlflow and TensorBoard), TensorBoard's event files, or profiler
    traces. A directory or a glob of them is several runs. One folder is enough if it holds both
    stages or the runs of --abba. Fixed rules drop warm-up, profiled steps and stalls; the answer
    lists them.

    The unit is a run if there are several, else a block of steps that is as long as steps depend on
    each other. The verdict is faster, slower, same or undecided. A difference within noise is never
    called faster or slower. Each limit is kept (ok), broken (FAIL), or cannot be judged from these
    runs; then use --abba, which runs both sides in turn.

    \b
    pgle compare runs/a/baseline runs/a/perf --fail-slower 1%
    pgle compare 'base/*.log' 'new/*.log' --require-faster
    pgle compare --abba 3 --profile profile.pbtxt -- python train.py
    pgle compare --abba 3 -- python train.py --vs python train.py --fused
    """
    from pgle.report import compare as report
    from pgle.report.next_steps import after_comparison
    from pgle.report.page.html import render
    from pgle.run.compare import (
        compared_run,
        record_comparison,
        request_of_command,
        run_compare,
    )
    from pgle.run.directory.rounds import abba_words
    from pgle.steps.compare import explanation

    asked = CompareRuns(**options)
    result, checks = run_compare(request_of_command(asked), say)
    if run := compared_run(result):
        record_comparison(run, result)
    broken = any(check.failed for check in checks)
    more: tuple[object, ...] = ()
    if asked.rounds:
        rounds = 2 * asked.rounds
        more = abba_words(rounds, asked.profile, asked.run_dir, asked.words)
    following = after_comparison(result, checks, more=more)
    if broken and result.verdict != "undecided":
        following = (explanation(result),)
    page = report.comparison_page(result, checks, following)
    if asked.html is not None:
        write_files({asked.html: render(page)}, force=asked.force)
        say(f"wrote {asked.html}")
    if asked.github:
        report.append(result, checks)
    return answer("compare", result, page, report.document(result, checks), not broken)


@click.group(cls=Commands)
def history_command() -> None:
    """Keep step times of runs, to measure how much launches differ.

    \b
    pgle history add runs/a/perf --name llama-7b
    pgle compare base.log new.log --history perf/history.jsonl
    """


@history_command.command(params=[*parameters(AddToHistory), *opt.PAGE])
def add(**options: Any) -> Answer[Any]:
    """Add the runs of one state: run directories, logs, CSV or JSON lines, as of pgle compare.

    \b
    pgle history add runs/a/perf --name llama-7b
    """
    from pgle.report import history as report
    from pgle.report.next_steps import after_entry
    from pgle.run.ask.machine import git_commit, hardware_name
    from pgle.run.history import add_entry, read_history
    from pgle.run.inputs.step_times import read_side
    from pgle.steps.estimate import Entry, make_trends
    from pgle.steps.series import Rules, check_runs

    asked = AddToHistory(**options)
    name, path, when = asked.name, asked.path, asked.when
    try:
        time = datetime.fromisoformat(when) if when else datetime.now(UTC)
    except ValueError:
        what, remedy = f"'{when}' is not a time", "write 2026-01-31T12:00:00"
        raise UserError(what, where="--time", remedy=remedy) from None
    side = read_side(name, asked.runs, rules=Rules(), pattern=asked.pattern)
    check_runs(side.runs)
    hardware = "simulated" if side.simulated else ""
    hardware = asked.hardware or hardware or hardware_name()
    commit = asked.commit
    if commit is None:
        commit = side.commit or git_commit()
    entry = Entry(
        time=time.isoformat(timespec="seconds"),
        name=name,
        hardware=hardware,
        commit=commit,
        median_s=side.median_s,
        spread=side.spread,
        runs=len(side.runs),
        steps=side.steps,
        simulated=side.simulated,
        note=asked.note,
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
    return answer(
        "history", trend, page, report.history_document(path, trend, warnings)
    )
