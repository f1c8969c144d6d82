"""`pgle history`."""

from __future__ import annotations

from pathlib import Path

import click

from pgle.cli.help import Group
from pgle.cli.options import page_options, pattern_option
from pgle.cli.paths import LOCAL, piped

_file = click.option(
    "--file", "path", type=LOCAL, default="perf/history.jsonl", show_default=True,
    metavar="FILE", help="JSON lines.",
)  # fmt: skip
_name = click.option("--name", metavar="NAME", help="Only this workload.")
_hardware = click.option("--hardware", metavar="NAME", help="Only this hardware.")


@click.group(cls=Group)
def command() -> None:
    """Keep step times over time; they show how much launches differ.

    \b
    pgle history add runs/a/perf --name llama-7b
    pgle history show
    pgle compare base.log new.log --history perf/history.jsonl
    """


@command.command()
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
    runs: tuple[str, ...],
    name: str,
    hardware: str | None,
    commit: str | None,
    when: str | None,
    note: str,
    pattern: str | None,
    path: Path,
    sections: tuple[str, ...],
    as_json: bool,
) -> None:
    """Add the runs of one state: run directories, logs, CSV or JSON lines, as of pgle compare.

    \b
    pgle history add runs/a/perf --name llama-7b
    """
    from datetime import UTC, datetime

    from pgle.errors import UserError
    from pgle.report.next_steps import after_entry
    from pgle.report.page import terminal
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
    if as_json:
        report.show_added(path, entry)
    else:
        terminal.show(report.added_page(path, entry, after_entry(path, name)), sections=sections)


@command.command()
@_name
@_hardware
@_file
@page_options
def show(name: str | None, hardware: str | None, path: Path, sections: tuple[str, ...], as_json: bool) -> None:
    """Show the entries of each workload and hardware, and how much launches differ.

    \b
    pgle history show --name llama-7b
    """
    from pgle.report.next_steps import after_trends
    from pgle.report.page import terminal
    from pgle.report.steps import history as report
    from pgle.run.history import read
    from pgle.steps.history import make_trends

    entries, warnings = read(path)
    trends = make_trends(entries, name=name, hardware=hardware)
    if as_json:
        report.show_json(trends, warnings)
    else:
        page = report.history_page(path, trends, warnings, after_trends(path))
        terminal.show(page, sections=sections)
