"""Where to begin: what `pgle` says about a folder and a machine, and what `pgle init` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgle.errors import cut, many, printable
from pgle.next import Next, Way, to_way, typed
from pgle.report import text
from pgle.report.page.value import Cell, Page, Section, Tone, table
from pgle.report.text import near
from pgle.run.inputs.next_command import UNKNOWN, FolderContents

if TYPE_CHECKING:
    from pgle.run.doctor import (
        Chain,
        Diagnosis,
    )  # NumPy, which `pgle` alone does without
    from pgle.run.init import Starter

START = (
    ("pgle doctor", "does this machine have what it takes?"),
    (
        "pgle rehearse --devices 8 -- python train.py",
        "without a GPU: what would a profile change?",
    ),
    ("pgle run -- python train.py", "on GPUs: measure, and run with the profile"),
)
"""For a folder that holds nothing yet."""
COMMANDS = 3  # that are offered at most


def folder_page(found: FolderContents) -> Page:
    """The files of the folder, each kind with the newest of it, and the command for that."""
    note = (
        ()
        if found.complete
        else ("This folder is large: pgle looked at a part of it.",)
    )
    if not found.sights:
        return Page(
            title="pgle",
            identity=("No trace, profile, dump or run of pgle in this folder.",),
            verdict="pgle gives XLA's scheduler measured costs, and proves that they help.",
            table=table("type | to learn", START),
            notes=note,
            way=Way((START[0][0], "pgle --help")),
        )
    rows = []
    for sight in found.sights[:COMMANDS]:
        more = f" and {len(sight.paths) - 1:,} more" if len(sight.paths) > 1 else ""
        rows.append((sight.kind, printable(f"{sight.paths[0]}{more}")))
    commands = [command for sight in found.sights for command in sight.commands]
    way = to_way(commands)
    lines = way.next
    paths = (
        (sight.kind, printable(str(path)))
        for sight in found.sights
        for path in sight.paths
    )
    return Page(
        title="pgle",
        identity=("all commands: pgle --help",),
        verdict=printable(
            f"Newest: {found.sights[0].paths[0]} ({found.sights[0].kind})"
        ),
        table=table("here | newest", rows),
        notes=(
            *(f"also: {line}" for line in lines[1 : 1 + COMMANDS - len(rows)]),
            *note,
        ),
        sections=(
            Section("files", "All that was found", (table("kind | path", paths),)),
        ),
        way=Way(lines[:COMMANDS], way.done),
    )


def starters_page(starters: Mapping[str, Starter]) -> Page:
    """The names, a line each."""
    rows = (
        (name, item.purpose, ", ".join(item.files.values()))
        for name, item in starters.items()
    )
    return Page(
        title="pgle init",
        identity=(),
        verdict=f"{many(len(starters), 'starter')} to write",
        table=table("name | what | files", rows),
        way=to_way([Next.of("init", "NAME")]),
    )


def written_page(written: Sequence[Path], starter: Starter, folder: Path) -> Page:
    """What was written into a folder, and what to do with it there."""
    there = "" if folder == Path() else f"{typed('cd', near(folder))} && "
    return Page(
        title="pgle init",
        identity=(starter.purpose,),
        verdict=f"wrote {many(len(written), 'file')}",
        tone="good",
        notes=tuple(f"wrote {near(path)}" for path in written),
        way=Way((there + starter.following,)),
    )


FIRST, FOUND = 3, 48  # checks on the first screen, and characters of what each found
TONES: dict[str, Tone] = {"ok": "good", "warn": "warn", "fail": "bad"}


def doctor_document(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis as JSON types."""
    return {
        "ok": diagnosis.ok,
        "profiles": not diagnosis.keeps_from_profiling,
        "rehearses": not diagnosis.keeps_from_rehearsing,
        **text.plain(diagnosis),
    }


def doctor_page(diagnosis: Diagnosis) -> Page:
    """Each problem with its remedy; the rest with ``--all``."""
    keeps = diagnosis.keeps_from_rehearsing
    marked = [check for check in diagnosis.checks if check.verdict != "ok"]
    marked.sort(key=lambda check: (check.verdict != "fail", check.name not in keeps))
    measures, rehearses = not diagnosis.keeps_from_profiling, not keeps
    verdict = {
        (True, True): "Ready to measure, rehearse and simulate",
        (False, True): "Can rehearse and simulate; cannot measure",
        (True, False): "Can measure; cannot rehearse or simulate",
        (False, False): "Cannot measure, rehearse or simulate",
    }[measures, rehearses]
    kept_by = dict.fromkeys((*diagnosis.keeps_from_profiling, *keeps))
    why = f" (see {', '.join(kept_by)})" if kept_by else ""
    capture = () if measures else ("--capture", "simulated")
    commands = tuple(str(check.command) for check in marked if check.command)
    run = [Next.of("run", *capture, "--", *UNKNOWN)] if measures or rehearses else []
    way = Way(commands, to_way(run).done)
    if not (commands or way.done):
        way = Way(done=str(marked[0].remedy))
    rows = [
        (check.name, Cell(check.verdict, TONES[check.verdict]), check.found)
        for check in diagnosis.checks
    ]
    first = [
        (
            check.name,
            Cell(check.verdict, TONES[check.verdict]),
            cut(check.found.partition(". ")[0], FOUND),
            "type the line below" if check.command else check.remedy,
        )
        for check in marked
    ]
    known = (
        check
        for check in diagnosis.checks
        if check.name in ("jax", "GPUs") and check.verdict == "ok"
    )
    return Page(
        title="pgle doctor",
        identity=tuple(check.found for check in known),
        verdict=verdict + why,
        tone="good"
        if measures and rehearses
        else "warn"
        if measures or rehearses
        else "bad",
        table=table("check |  | found | what to do", first, shown=FIRST),
        notes=(
            f"{many(len(diagnosis.checks) - len(marked), 'check')} ok (--all lists them)",
        ),
        sections=(Section("checks", "All checks", (table("check |  | found", rows),)),),
        way=way,
    )


def proof_page(proof: Chain) -> Page:
    """The chain, link by link."""
    marks = {True: Cell("ok", "good"), False: Cell("FAILED", "bad")}
    rows = (
        (link.name, marks[link.ok], link.found, link.proves) for link in proof.links
    )
    broken = ", ".join(link.name for link in proof.links if not link.ok)
    command = Next.of("run", "--", *UNKNOWN)
    if broken:
        command = Next.of("analyze", proof.run)
    where = "simulated GPU" if proof.simulated else "the GPUs of this machine"
    return Page(
        title="pgle doctor --prove",
        identity=("a small program", where, str(proof.run)),
        verdict=f"FAILED: {broken}"
        if broken
        else f"All {len(proof.links)} links of the chain hold",
        tone="bad" if broken else "good",
        table=table("link |  | evidence | proves that", rows),
        notes=("Times are estimates: the GPU is simulated.",)
        if proof.simulated
        else (),
        way=to_way([command]),
    )
