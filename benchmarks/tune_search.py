"""The descent of `pgle tune` against random search and Optuna's TPE: the gain found, by the number
of trials.

    pip install optuna
    python benchmarks/tune_search.py MODULE... [--budget 12] [--seeds 3]

All three choose among the same axes (`pgle.tune.search`), each threshold among powers of two and
one and a half times these; their trials are compiled and judged alike. A setting counts once it
stands, as `pgle tune` has it: shorter in nine of ten worlds and by half a per cent, also with
contention doubled. The figure is the gain of the best setting so far, averaged over all trials of
the budget (what one has who stops at a trial drawn by lot) and the same at the end.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

from pgle.report.text import say
from pgle.requests.predictions import Rehearse
from pgle.run.rehearse_program import prepared
from pgle.run.tune import open_bench
from pgle.tune.search import MIB, Axis, Flags, Trial, holds_up, judge, search

UNSET = ""
SIZES = [
    str(int(size * MIB)) for power in range(7) for size in (2**power, 1.5 * 2**power)
]

Space = Mapping[str, Sequence[str]]
"""Values by flag; `UNSET` leaves it out."""


def space_of(found: Sequence[Axis]) -> Space:
    """Everything that the axes hold, free to be combined."""
    values: dict[str, list[str]] = {}
    for axis in found:
        for setting in axis.settings:
            for flag, value in setting.items():
                known = values.setdefault(flag, [UNSET])
                known += [
                    new
                    for new in (SIZES if axis.number else [value])
                    if new not in known
                ]
    return values


def gains(trials: Sequence[Trial], pgle: Trial, budget: int) -> list[float]:
    """The gain of the best standing setting after each trial; one that ends early keeps what it
    has.
    """
    found = [0.0]
    for trial in trials[:budget]:
        gain = (
            -judge(trial.worlds_us, pgle.worlds_us).mean
            if holds_up(trial, pgle)
            else 0.0
        )
        found.append(max(found[-1], gain))
    return (found + [found[-1]] * budget)[1 : budget + 1]


def randomly(
    space: Space, attempt: Callable[[Flags], Trial], budget: int, seed: int
) -> list[Trial]:
    """Uniform choices."""
    draw = random.Random(seed)
    settings = [
        {flag: draw.choice(values) for flag, values in space.items()}
        for _ in range(budget)
    ]
    return [
        attempt({flag: value for flag, value in setting.items() if value})
        for setting in settings
    ]


def by_tpe(
    space: Space, attempt: Callable[[Flags], Trial], budget: int, seed: int
) -> list[Trial]:
    """Optuna's TPE, which minimises the mean over all worlds, the objective of the descent."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=max(budget // 4, 2)
        )
    )
    done: list[Trial] = []

    def objective(trial: optuna.Trial) -> float:
        setting = {
            flag: trial.suggest_categorical(flag, values)
            for flag, values in space.items()
        }
        done.append(attempt({flag: value for flag, value in setting.items() if value}))
        return done[-1].mean_us

    study.optimize(objective, n_trials=budget)
    return done


def compare(
    module: Path, budget: int, seeds: int
) -> Iterator[tuple[str, float, float]]:
    """Each way with its gain averaged over trials, and at the end."""
    with tempfile.TemporaryDirectory() as folder:
        asked = Rehearse(module, target="h100", output=f"{folder}/out")
        with prepared(asked) as (_, given), open_bench(given) as bench:
            pgle = bench.pgle
            known: dict[str, Trial] = {}

            def attempt(flags: Flags) -> Trial:
                key = str(sorted(flags.items()))
                if key not in known:
                    known[key] = bench.trial((flags, key)).trial
                return known[key]

            found = bench.axes()
            shortest_us = pgle.prediction.shortest_us
            ours = search(
                pgle.trial, shortest_us, found, lambda settings: [attempt(flags) for flags, _ in settings],
                budget=budget,
            )  # fmt: skip
            runs = {"pgle tune": [gains(ours, pgle.trial, budget)]}
            for name, way in (("random", randomly), ("TPE", by_tpe)):
                runs[name] = [
                    gains(way(space_of(found), attempt, budget, s), pgle.trial, budget)
                    for s in range(seeds)
                ]
            for name, curves in runs.items():
                yield (
                    name,
                    mean(mean(curve) for curve in curves),
                    mean(curve[-1] for curve in curves),
                )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="+", type=Path)
    parser.add_argument("--budget", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print(
        f"| module | search | gain, mean over {options.budget} trials | gain at the end |\n|---|---|---|---|"
    )
    for module in options.modules:
        say(f"{module.name} …")
        for name, over_trials, at_end in compare(module, options.budget, options.seeds):
            print(f"| {module.name} | {name} | {over_trials:.2%} | {at_end:.2%} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
