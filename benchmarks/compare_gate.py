"""How often `pgle compare --fail-slower 2%` fails, on synthetic jobs that are slower by a known amount.

Every run has a compile, a slow start, a stall every 50 steps and launches that differ by 0.15 %. Each draw takes the
whole path: rules of steady steps, comparison, gate. The second figure of a cell is for `--fail-unless-ruled-out 2%`.
One run per side is judged twice: with that spread given, and with no knowledge of it.

    python benchmarks/compare_gate.py [--draws 1000] [--bound 0.02]
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np
from compare_power import Scenario, assumptions, sides, warm_up

from pgle.steps.compare import compare
from pgle.steps.gate import Limits, gate

SLOWDOWNS = (0.0, 0.003, 0.005, 0.01, 0.015, 0.02, 0.03)
LAUNCHES = 0.0015
"""Standard deviation between launches: control runs of a 64-GPU job (marin-community/marin#7012)."""
STEPS = 200


def failures(scenario: Scenario, slowdown: float, draws: int, bound: float) -> tuple[int, int]:
    """How many of the draws fail under `--fail-slower`, and under `--fail-unless-ruled-out`."""
    limits = [Limits(fail_slower=bound), Limits(fail_slower=bound, fail_undecided=True)]
    failed = [0, 0]
    for draw in range(draws):
        # The same noise for every slowdown: a row differs by the slowdown alone.
        random = np.random.default_rng([7, draw])
        result = compare(*sides(scenario, slowdown, random), assumptions(scenario, random))
        for place, limit in enumerate(limits):
            failed[place] += any(check.failed for check in gate(result, limit))
    return failed[0], failed[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000, help="per cell")
    parser.add_argument("--bound", type=float, default=0.02)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.005, 0.01], help="standard deviation of a step")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 4], help="per side")
    options = parser.parse_args()
    began = time.perf_counter()
    print(f"bound {options.bound:.1%}; {options.draws} draws per cell, {STEPS} steps per run")
    print(f"{'runs':<12}{'noise':>6}" + "".join(f"{slowdown:>15.1%}" for slowdown in SLOWDOWNS))
    cases = [(count, known) for count in options.runs for known in ("given", "not")[: 1 + (count == 1)]]
    for runs, known in cases:
        for noise in options.noise:
            shape = partial(warm_up, noise=noise)
            scenario = Scenario("", shape, steps=STEPS, runs=runs, between=LAUNCHES, known=known)
            print(f"{f'{runs}+{runs}' + (f', {known}' if runs == 1 else ''):<12}{noise:>6.1%}", end="")
            for slowdown in SLOWDOWNS:
                one, two = failures(scenario, slowdown, options.draws, options.bound)
                print(f"{one / options.draws:>7.1%} {two / options.draws:>7.1%}", end="", flush=True)
            print()
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
