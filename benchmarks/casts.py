"""Products of f32: what the levers expect of a cast and of rounded operands, and what XLA makes.

    python benchmarks/casts.py FOLDER [--target GPU] [--no-triton] [NAME …]

Each program of `programs/casts.py` is compiled in f32, cast, and with rounded operands. All are
priced alike. FOLDER keeps what was compiled: repeat the command to continue. The tables of
docs/levers.md hold the rows that this prints.
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
    _, how = PROGRAMS[name]
    devices = prod(how["axes"].values())
    words = (sys.executable, str(PROGRAM), name, side)

    def make() -> Mapping[str, float]:
        costs = priced(words, options.target, devices, out, flags)
        levers = {item.kind: item for item in find_levers(costs)}
        found = {"step_us": costs.step_us}
        for each, kind in LEVERS.items():
            lever = levers.get(kind)
            found[each] = 0.0 if lever is None else lever.known_saving_us
        return found

    return kept(out.with_name(f"{out.name}.json"), make)


if __name__ == "__main__":
    main()
