"""Batches that every device has whole: what the lever expects of dividing them, and what XLA makes.

    python benchmarks/undivided.py FOLDER [NAME …]

Each program of `programs/undivided.py` is compiled whole, with a divided batch, and with constraints
before each layer, too. All are priced alike. FOLDER keeps what was compiled: repeat the command to
continue. The table of docs/levers.md holds the rows that this prints.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Mapping
from math import prod
from pathlib import Path

from compiled_step import kept, priced

from pgle.account.levers import find_levers
from pgle.account.value import OpportunityKind

PROGRAM = Path(__file__).parent / "programs" / "undivided.py"
PROGRAMS = runpy.run_path(str(PROGRAM))["PROGRAMS"]
SIDES = ("whole", "divided", "entry")
US_PER_MS = 1e3


def main() -> None:
    """Print a row for each program: the step now, expected, divided, and with an entry alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name", nargs="*")
    options = parser.parse_args()
    for name in options.name or PROGRAMS:
        sides = {side: _side(options.folder, name, side) for side in SIDES}
        whole, divided, entry = (sides[side]["step_us"] for side in SIDES)
        expected = whole - sides["whole"]["saved_us"]
        shown = [f"{us / US_PER_MS:.2f}" for us in (whole, expected, divided, entry)]
        off = f"{100 * (expected / divided - 1):+.1f} %"
        print("|", " | ".join((name, *shown, off)), "|", flush=True)


def _side(folder: Path, name: str, side: str) -> Mapping[str, float]:
    """The step of one side and what the lever saves of it, in microseconds."""
    _, how = PROGRAMS[name]
    devices = prod(how["axes"].values())
    words = (sys.executable, str(PROGRAM), name, side)

    def make() -> Mapping[str, float]:
        costs = priced(words, "h100", devices, folder / f"{name}.{side}")
        levers = {item.kind: item for item in find_levers(costs)}
        lever = levers.get(OpportunityKind.REPLICATED)
        saved_us = 0.0 if lever is None else lever.known_saving_us
        return {"step_us": costs.step_us, "saved_us": saved_us}

    return kept(folder / f"{name}.{side}.json", make)


if __name__ == "__main__":
    main()
