"""The result of `pgle doctor` as a table and as JSON."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from pgle.errors import many
from pgle.report import json
from pgle.report.text import Console, console, table
from pgle.run.doctor.doctor import Diagnosis, Mended
from pgle.run.doctor.prove import Proof

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
    out.print(f"{counts['ok']} ok, {many(counts['warn'], 'warning')}, {many(counts['fail'], 'failure')}")
    _ready(out, "profile and measure", "pgle run -- COMMAND", diagnosis.keeps_from_profiling)
    _ready(out, "rehearse and simulate", "pgle run --capture simulated -- COMMAND", diagnosis.keeps_from_rehearsing)


def _ready(out: Console, purpose: str, command: str, kept_by: tuple[str, ...]) -> None:
    """What works here, with the command to type, or what to mend first."""
    ready, what = ("not ready", f"see {', '.join(kept_by)} above") if kept_by else ("ready", command)
    out.print(f"{ready} to {purpose}: {what}", soft_wrap=True)


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
