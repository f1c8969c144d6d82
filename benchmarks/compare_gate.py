"""How often `pgle compare` gives a false verdict, and how often `--fail-slower` fails, on synthetic
jobs.

Every run has a compile, a slow start, a stall every 50 steps and noise of 0.5 % per step. Launches
of one program differ by a normal amount; NEW is slower by a known share. Each draw takes the whole
path: rules of steady steps, comparison, gate. Prints two Markdown tables
(docs/evidence/compare.md).

    python benchmarks/compare_gate.py [--draws 500] [--bound 0.01] [--processes 2]
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product

import numpy as np
from compare_power import Scenario, sides, warm_up

from pgle.steps.compare import Limits, Outcome, compare, gate
from pgle.steps.estimate import SAME_PLACE, UNKNOWN_PLACE, Assumptions, LaunchSpread
from pgle.steps.verdict import Verdict

SLOWDOWNS = (0.0, 0.01, 0.02, 0.03, 0.05)
LAUNCHES = (0.002, 0.003, 0.01, 0.02)
NOISE = 0.005
SINGLE = {
    "given, as it is": None,
    "same place (0.21 %, 5 degrees)": SAME_PLACE,
    "not known": UNKNOWN_PLACE,
}
"""What one run per side takes for the spread of launches; None: the true one."""
DESIGNS = {"1+1": (1, 200), "`--abba 2`": (4, 60), "`--abba 3`": (6, 60)}
"""Runs per side, and steps of each."""


def measure(task: tuple[str, float, float, int, float]) -> dict[str, Counter[str]]:
    """Counts of verdicts and outcomes by what was taken for the spread, over the draws of one
    design.
    """
    design, launches, slowdown, draws, bound = task
    runs, steps = DESIGNS[design]
    scenario = Scenario(
        "", partial(warm_up, noise=NOISE), steps, runs, launches, paired=runs > 1
    )
    counts: dict[str, Counter[str]] = {}
    for draw in range(draws):
        # The same noise for every slowdown: a row differs by the slowdown alone.
        base, new = sides(scenario, slowdown, np.random.default_rng([7, draw]))
        for known, spread in SINGLE.items() if runs == 1 else [("–", None)]:
            taken = spread or LaunchSpread(launches, math.inf, "given")
            found = compare(
                base, new, Assumptions(paired=scenario.paired, launch_spread=taken)
            )
            outcome = gate(found, Limits(fail_slower=bound))[0].outcome
            counts.setdefault(known, Counter()).update((found.verdict, outcome))
    return counts


def verdicts(counts: Counter[str], slowdown: float, draws: int) -> str:
    """Shown to be slower, then false: faster, same though slower, or slower though the same; in per
    cent.
    """
    false = (
        counts[Verdict.FASTER] + counts[Verdict.SAME if slowdown else Verdict.SLOWER]
    )
    return f"{100 * counts[Verdict.SLOWER] / draws:.0f} / {100 * false / draws:.1f}"


def outcomes(counts: Counter[str], slowdown: float, draws: int) -> str:
    """Failed, then cannot tell; the rest is ok; in per cent."""
    return f"{100 * counts[Outcome.FAIL] / draws:.1f} / {100 * counts[Outcome.CANNOT_TELL] / draws:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=500, help="per cell")
    parser.add_argument("--bound", type=float, default=0.01)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    began = time.perf_counter()
    heads = [
        "launches differ by",
        "design",
        "spread taken",
        *(f"{slowdown:.0%} slower" for slowdown in SLOWDOWNS),
    ]
    tasks = [
        (*task, options.draws, options.bound)
        for task in product(DESIGNS, LAUNCHES, SLOWDOWNS)
    ]
    with ProcessPoolExecutor(options.processes) as pool:
        results = dict(zip(tasks, pool.map(measure, tasks), strict=True))
    for title, show in (
        ("slower / false", verdicts),
        (f"--fail-slower {options.bound:.0%}: fails / cannot tell", outcomes),
    ):
        print(f"{title}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
        for launches, design in product(LAUNCHES, DESIGNS):
            row = [
                results[design, launches, slowdown, options.draws, options.bound]
                for slowdown in SLOWDOWNS
            ]
            for known in row[0]:
                cells = [
                    show(counts[known], slow, options.draws)
                    for slow, counts in zip(SLOWDOWNS, row, strict=True)
                ]
                print(f"| {launches:.1%} | {design} | {known} | {' | '.join(cells)} |")
        print()
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
