"""Where to begin: what `pgle` alone says about a folder, and what `pgle init` can write and wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pgle.errors import printable
from pgle.report import json
from pgle.report.text import console, near, table
from pgle.run.init import Starter
from pgle.run.inputs.folder import Found

START = (
    ("pgle doctor", "does this machine have what it takes?"),
    ("pgle rehearse --devices 8 -- python train.py", "without a GPU: what would a profile change?"),
    ("pgle run -- python train.py", "on GPUs: profile, convert, verify, run with it, compare"),
)
"""For a folder that holds nothing yet."""


COMMANDS = 3  # that are offered at most


def show_folder(found: Found) -> None:
    """Print what lies in the folder, each kind with the command that goes on from the newest of it."""
    out = console()
    if not found.sights:
        out.print("pgle gives XLA's latency-hiding scheduler measured costs, and proves that they help.", style="bold")
        out.print("This folder holds no trace, profile, dump or run of pgle yet. To begin:")
        out.print(table(("type", "to learn"), START, whole="type"))
    else:
        rows = []
        for sight in found.sights:
            more = f" and {len(sight.paths) - 1} more" if len(sight.paths) > 1 else ""
            rows.append((sight.kind, printable(f"{sight.paths[0]}{more}")))
        out.print(table(("here", "newest"), rows))
        out.print("")
        out.print("Next:" if len(found.sights) == 1 else "Next, the first is the nearest:", style="bold")
        for line in [line for sight in found.sights for line in sight.command.splitlines()][:COMMANDS]:
            out.print(f"  {printable(line)}", soft_wrap=True)
    if not found.complete:
        out.print("This folder is large: not all of it was looked at.")
    out.print("All commands: pgle --help")


def list_starters(starters: Mapping[str, Starter]) -> None:
    """The names, a line each."""
    out = console()
    rows = [(name, item.purpose, ", ".join(item.files.values())) for name, item in starters.items()]
    out.print(table(("name", "what", "files"), rows))
    out.print("Next: pgle init NAME")


def list_starters_json(starters: Mapping[str, Starter]) -> None:
    """``pgle.init/1`` without a name."""
    json.show("pgle.init/1", {"starters": {name: item.purpose for name, item in starters.items()}})


def show_text(written: Sequence[Path], starter: Starter, folder: Path) -> None:
    """What was written into a folder, and what to do with it there."""
    out = console()
    for path in written:
        out.print(f"wrote {near(path)}", soft_wrap=True)
    where = "" if folder == Path() else f", in {near(folder)}"
    out.print(f"Next{where}: {starter.following}", soft_wrap=True)


def show_json(written: Sequence[Path], starter: Starter, folder: Path) -> None:
    """``pgle.init/1``."""
    shown = {"written": [str(path) for path in written], "folder": str(folder), "next": starter.following}
    json.show("pgle.init/1", shown)
