"""Batches that every device has whole: what the lever expects of dividing them, and what XLA makes.

    python benchmarks/undivided.py FOLDER [NAME …]

Each program of `programs/undivided.py` is compiled whole, with a divided batch, and with constraints
before each layer, too. All are priced alike. FOLDER keeps what was compiled: repeat the command to
continue. The table of docs/levers.md holds the rows that this prints.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from pgle.account.levers import find_levers
from pgle.account.scheduled import step_costs
from pgle.account.value import OpportunityKind
from pgle.files import write_files
from pgle.requests.predictions import Rehearse
from pgle.run.capture.captured import partitioned
from pgle.run.compiler.compile import compiler_with_cache
from pgle.run.compiler.session import session_with
from pgle.run.rehearse_program import prepared

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
    place = folder / f"{name}.{side}.json"
    if place.exists():
        known: dict[str, float] = json.loads(place.read_text())
        return known
    _, how = PROGRAMS[name]
    devices = prod(how["axes"].values())
    out = folder / f"{name}.{side}"
    words = (sys.executable, str(PROGRAM), name, side)
    asked = Rehearse(words, target="h100", devices=devices, output=out)
    with (
        prepared(asked) as (_, request),
        compiler_with_cache(request.python, cached=True) as compiler,
    ):
        found = _priced(request, compiler, out)
    write_files({place: json.dumps(found)})
    return found


def _priced(request: Any, compiler: Any, out: Path) -> dict[str, float]:
    base = replace(
        request.compilation(),
        module=partitioned(request.module),
        dump_dir=out / "compiled",
    )
    session = session_with(compiler, base, request.hardware, checked=False)
    compiled = session.schedule("first", request.flags)
    predicted = session.predicted(compiled)
    costs = step_costs(compiled.scheduled, predicted, request.hardware)
    levers = (
        item for item in find_levers(costs) if item.kind is OpportunityKind.REPLICATED
    )
    lever = next(levers, None)
    saved_us = 0.0 if lever is None else lever.known_saving_us
    return {"step_us": costs.step_us, "saved_us": saved_us}


if __name__ == "__main__":
    main()
