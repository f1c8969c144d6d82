"""The result of `pgle doctor` as a table and as JSON."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from pgle.report import json
from pgle.report.text import console, table
from pgle.run.doctor.doctor import Diagnosis

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis as JSON types."""
    return {"ok": diagnosis.ok, **json.plain(diagnosis)}


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
    verdict = "ready" if diagnosis.ok else "not ready"
    out.print(f"{verdict}: {counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failures")
