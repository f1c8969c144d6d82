"""Where to begin: what `pgle` alone says about a folder, and what `pgle init` can write and wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pgle.errors import many, printable
from pgle.next import typed
from pgle.report.page.value import Page, Section, table
from pgle.report.text import near
from pgle.run.init import Starter
from pgle.run.inputs.next_command import Found

START = (
    ("pgle doctor", "does this machine have what it takes?"),
    ("pgle rehearse --devices 8 -- python train.py", "without a GPU: what would a profile change?"),
    ("pgle run -- python train.py", "on GPUs: measure, and run with the profile"),
)
"""For a folder that holds nothing yet."""
COMMANDS = 3  # that are offered at most


def folder_page(found: Found) -> Page:
    """The files of the folder, each kind with the newest of it, and the command for that."""
    note = () if found.complete else ("This folder is large: pgle looked at a part of it.",)
    if not found.sights:
        return Page(
            title="pgle",
            identity=("No trace, profile, dump or run of pgle in this folder.",),
            verdict="pgle gives XLA's scheduler measured costs, and proves that they help.",
            table=table("type | to learn", START),
            notes=note,
            next=(START[0][0], "pgle --help"),
        )
    rows = []
    for sight in found.sights[:COMMANDS]:
        more = f" and {len(sight.paths) - 1:,} more" if len(sight.paths) > 1 else ""
        rows.append((sight.kind, printable(f"{sight.paths[0]}{more}")))
    lines = tuple(printable(line) for sight in found.sights for line in sight.command.splitlines())
    kinds = tuple((sight.kind, printable(str(path))) for sight in found.sights for path in sight.paths)
    everything = table("kind | path", kinds)
    return Page(
        title="pgle",
        identity=("all commands: pgle --help",),
        verdict=printable(f"Newest: {found.sights[0].paths[0]} ({found.sights[0].kind})"),
        table=table("here | newest", rows),
        notes=(*(f"also: {line}" for line in lines[1 : 1 + COMMANDS - len(rows)]), *note),
        sections=(Section("files", "All that was found", (everything,)),),
        next=lines[:COMMANDS],
    )


def starters_page(starters: Mapping[str, Starter]) -> Page:
    """The names, a line each."""
    rows = tuple((name, item.purpose, ", ".join(item.files.values())) for name, item in starters.items())
    return Page(
        title="pgle init",
        identity=(),
        verdict=f"{many(len(starters), 'starter')} to write",
        table=table("name | what | files", rows),
        next=("pgle init NAME",),
    )


def written_page(written: Sequence[Path], starter: Starter, folder: Path) -> Page:
    """What was written into a folder, and what to do with it there."""
    return Page(
        title="pgle init",
        identity=(starter.purpose,),
        verdict=f"wrote {many(len(written), 'file')}",
        tone="good",
        notes=tuple(f"wrote {near(path)}" for path in written),
        next=(starter.following if folder == Path() else f"{typed('cd', near(folder))} && {starter.following}",),
    )
