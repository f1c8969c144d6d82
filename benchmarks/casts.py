"""Products of f32: what the levers expect of a cast and of rounded operands, and what XLA makes.

    python benchmarks/casts.py FOLDER [--target GPU] [--no-triton] [NAME …]

Each program of `programs/casts.py` is compiled in f32, cast, and with rounded operands. All are
priced alike. FOLDER keeps what was compiled: repeat the command to continue. The tables of
docs/levers.md hold the rows that this prints.
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
from pgle.schedule.control import TRITON

PROGRAM = Path(__file__).parent / "programs" / "casts.py"
PROGRAMS = runpy.run_path(str(PROGRAM))["PROGRAMS"]
LEVERS = {"cast": OpportunityKind.CAST, "rounded": OpportunityKind.PRECISION}
US_PER_MS = 1e3


def main() -> None:
    """Print a row for each program and lever: the step now, expected, and compiled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="h100")
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument("name", nargs="*")
    options = parser.parse_intermixed_args()
    flags = (f"--{TRITON}=false",) if options.no_triton else ()
    for name in options.name or PROGRAMS:
        now = _side(options, name, "f32", flags)
        for side in LEVERS:
            then_us = _side(options, name, side, flags)["step_us"]
            print(
                "|",
                " | ".join((name, side, *_row(now, side, then_us))),
                "|",
                flush=True,
            )


def _row(now: Mapping[str, float], side: str, then_us: float) -> list[str]:
    step_us = now["step_us"]
    expected_us = step_us - now[side]
    shown = [f"{us / US_PER_MS:.2f}" for us in (step_us, expected_us, then_us)]
    shares = [f"{100 * (1 - us / step_us):.1f} %" for us in (expected_us, then_us)]
    return [*shown, *shares, f"{100 * (expected_us / then_us - 1):+.1f} %"]


def _side(
    options: argparse.Namespace, name: str, side: str, flags: tuple[str, ...]
) -> Mapping[str, float]:
    """The step of one side and what each lever saves of it, in microseconds."""
    choice = "no-triton" if flags else "triton"
    out = options.folder / f"{name}.{side}.{options.target}.{choice}"
    place = out.with_name(f"{out.name}.json")
    if place.exists():
        known: dict[str, float] = json.loads(place.read_text())
        return known
    _, how = PROGRAMS[name]
    devices = prod(how["axes"].values())
    words = (sys.executable, str(PROGRAM), name, side)
    asked = Rehearse(words, target=options.target, devices=devices, output=out)
    with (
        prepared(asked) as (_, request),
        compiler_with_cache(request.python, cached=True) as compiler,
    ):
        found = _priced(request, compiler, out, flags)
    write_files({place: json.dumps(found)})
    return found


def _priced(
    request: Any, compiler: Any, out: Path, flags: tuple[str, ...]
) -> dict[str, float]:
    base = replace(
        request.compilation(),
        module=partitioned(request.module),
        dump_dir=out / "compiled",
    )
    session = session_with(compiler, base, request.hardware, checked=False)
    compiled = session.schedule("first", (*request.flags, *flags))
    predicted = session.predicted(compiled)
    costs = step_costs(compiled.scheduled, predicted, request.hardware)
    found = {"step_us": costs.step_us}
    levers = {item.kind: item for item in find_levers(costs)}
    for side, kind in LEVERS.items():
        lever = levers.get(kind)
        found[side] = 0.0 if lever is None else lever.known_saving_us
    return found


if __name__ == "__main__":
    main()
