"""The result of `pgle doctor` as a table and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from pgle.report import json
from pgle.report.text import console, table
from pgle.run.doctor.doctor import Diagnosis

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis as JSON types."""
    return {
        "ok": diagnosis.ok,
        "profiles": not diagnosis.keeps_from_profiling,
        "rehearses": not diagnosis.keeps_from_rehearsing,
        **json.plain(diagnosis),
    }


def doctor_table(diagnosis: Diagnosis) -> None:
    """Print the checks, what was found with its remedy, and a verdict."""
    out = console()
    rows = []
    for check in diagnosis.checks:
        found = Text(check.found)
        if check.remedy:
            found.append(f"\n→ {check.remedy}", style="dim")
        rows.append((check.name, Text(check.verdict, style=STYLES[check.verdict]), found))
    out.print(table(("check", "verdict", "found"), rows))
    counts = {verdict: sum(check.verdict == verdict for check in diagnosis.checks) for verdict in STYLES}
    out.print(f"{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failures")
    _ready(out, "profile and measure", "pgle run -- COMMAND", diagnosis.keeps_from_profiling)
    _ready(out, "rehearse and simulate", "pgle run --capture simulated -- COMMAND", diagnosis.keeps_from_rehearsing)


def _ready(out: Console, purpose: str, command: str, kept_by: tuple[str, ...]) -> None:
    """What works here, with the command to type, or what to mend first."""
    ready, what = ("not ready", f"see {', '.join(kept_by)} above") if kept_by else ("ready", command)
    out.print(f"{ready} to {purpose}: {what}", markup=False, soft_wrap=True)
