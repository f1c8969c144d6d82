"""The result of `pgle doctor` as a table and as JSON."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from pgle.errors import many
from pgle.next import typed
from pgle.report import json
from pgle.report.page.value import Cell, Column, Page, Section, Table, Tone, Value
from pgle.report.text import console, table
from pgle.run.doctor.doctor import Diagnosis, Mended
from pgle.run.doctor.machine import Check
from pgle.run.doctor.prove import Proof
from pgle.run.experiment.next_command import UNKNOWN

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
TONES: dict[str, Tone] = {"ok": "good", "warn": "warn", "fail": "bad"}


def doctor_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis as JSON types."""
    return {
        "ok": diagnosis.ok,
        "profiles": not diagnosis.keeps_from_profiling,
        "rehearses": not diagnosis.keeps_from_rehearsing,
        **json.plain(diagnosis),
    }


def doctor_page(diagnosis: Diagnosis) -> Page:
    """What is not as it should be, with its remedy; the rest with ``--all``."""
    marked = [check for check in diagnosis.checks if check.verdict != "ok"]
    marked.sort(key=lambda check: check.verdict != "fail")
    measures, rehearses = not diagnosis.keeps_from_profiling, not diagnosis.keeps_from_rehearsing
    verdict = {
        (True, True): "Ready to measure, rehearse and simulate",
        (False, True): "Can rehearse and simulate; cannot measure",
        (True, False): "Can measure; cannot rehearse or simulate",
        (False, False): "Cannot measure, rehearse or simulate",
    }[measures, rehearses]
    kept_by = dict.fromkeys((*diagnosis.keeps_from_profiling, *diagnosis.keeps_from_rehearsing))
    why = f" (see {', '.join(kept_by)})" if kept_by else ""
    capture = () if measures else ("--capture", "simulated")
    following = (
        typed("pgle", "run", *capture, "--", *UNKNOWN) if measures or rehearses else typed("pgle", "doctor", "--fix")
    )
    columns = (Column("check"), Column(""), Column("found"), Column("what to do"))
    return Page(
        title="pgle doctor",
        identity=tuple(check.found for check in diagnosis.checks if check.name in ("jax", "GPUs")),
        verdict=verdict + why,
        tone="good" if measures and rehearses else "warn" if measures or rehearses else "bad",
        table=Table(columns, tuple(map(_row, marked))) if marked else None,
        notes=(f"{many(len(diagnosis.checks) - len(marked), 'check')} ok (--all lists them)",),
        sections=(
            Section("checks", "All checks", (Table(columns[:3], tuple(_row(item)[:3] for item in diagnosis.checks)),)),
        ),
        next=(following,),
    )


def _row(check: Check) -> tuple[Value, ...]:
    return check.name, Cell(check.verdict, TONES[check.verdict]), check.found, check.remedy


def mended_text(result: Mended) -> None:
    """What was wrong with the CUDA plugin, the command that mends it, and what it changed."""
    out = console()
    if result.repair is None:
        out.print("Nothing to mend: the CUDA plugin is complete, alone and of jaxlib's version.")
        return
    out.print(f"CUDA plugin: {result.repair.what}")
    if not result.was_run:
        out.print("This mends it, without touching jax or anything else:")
        out.print(f"  {result.repair.line}", soft_wrap=True)
        out.print("Next: run it, or let pgle: pgle doctor --fix --yes")
        return
    rows = [(name, result.before.get(name, "–"), result.after.get(name, "–"))
            for name in sorted({*result.before, *result.after})]  # fmt: skip
    out.print(table(("package", "before", "after"), rows))
    out.print(f"failed: {result.failed}" if result.failed else "mended" if result.ok else "jax was moved; report this")


def proof_text(proof: Proof) -> None:
    """The chain, link by link."""
    out = console()
    on = "the simulated GPU; its times are estimates" if proof.simulated else "the GPUs of this machine"
    out.print(f"The whole chain on a small program, on {on}:", style="bold")
    rows = []
    for link in proof.links:
        verdict = Text("ok" if link.ok else "FAILED", style=STYLES["ok" if link.ok else "fail"])
        rows.append((link.name, verdict, link.found, link.proves))
    out.print(table(("link", "", "evidence", "proves that"), rows))
    if proof.bundle is not None:
        out.print(f"wrote {proof.bundle}: attach it to a report; names of hosts, users and home folders are replaced")
    good = "Every link holds. Next, your own program: pgle run -- COMMAND"
    out.print(good if proof.ok else f"A link failed. All files: {proof.run}", soft_wrap=True)
