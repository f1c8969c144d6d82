"""What `pgle init` can write, and what it wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pgle.report import json
from pgle.report.text import console, near, table
from pgle.run.init import Starter


def list_text(starters: Mapping[str, Starter]) -> None:
    """The names, a line each."""
    out = console()
    rows = [(name, item.purpose, ", ".join(item.files.values())) for name, item in starters.items()]
    out.print(table(("name", "what", "files"), rows))
    out.print("Next: pgle init NAME")


def list_json(starters: Mapping[str, Starter]) -> None:
    """``pgle.init/1`` without a name."""
    json.show("pgle.init/1", {"starters": {name: item.purpose for name, item in starters.items()}})


def show_text(written: Sequence[Path], starter: Starter) -> None:
    """What was written, and what to do with it."""
    out = console()
    for path in written:
        out.print(f"wrote {near(path)}", soft_wrap=True)
    out.print(f"Next: {starter.following}", soft_wrap=True)


def show_json(written: Sequence[Path], starter: Starter) -> None:
    """``pgle.init/1``."""
    json.show("pgle.init/1", {"written": [str(path) for path in written], "next": starter.following})
