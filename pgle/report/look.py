"""What `pgle` alone says about a folder."""

from __future__ import annotations

from pgle.errors import printable
from pgle.report.text import console, table
from pgle.run.inputs.folder import Found

START = (
    ("pgle doctor", "does this machine have what it takes?"),
    ("pgle rehearse --devices 8 -- python train.py", "without a GPU: what would a profile change?"),
    ("pgle run -- python train.py", "on GPUs: profile, convert, verify, run with it, compare"),
)
"""For a folder that holds nothing yet."""


def show_text(found: Found) -> None:
    """Print what lies in the folder, each kind with the command that goes on from the newest of it."""
    out = console()
    if not found.sights:
        out.print("pgle gives XLA's latency-hiding scheduler measured costs, and proves that they help.", style="bold")
        out.print("This folder holds no trace, profile, dump or run of pgle yet. To begin:")
        out.print(table(("type", "to learn"), START))
    else:
        rows = []
        for sight in found.sights:
            more = f" and {len(sight.paths) - 1} more" if len(sight.paths) > 1 else ""
            rows.append((sight.kind, printable(f"{sight.paths[0]}{more}")))
        out.print(table(("here", "newest"), rows))
        out.print("")
        out.print("Next:" if len(found.sights) == 1 else "Next, the first is the nearest:", style="bold")
        for sight in found.sights[:3]:
            out.print(f"  {printable(sight.command)}", soft_wrap=True)
    if not found.complete:
        out.print("This folder is large: not all of it was looked at.")
    out.print("All commands: pgle --help")
