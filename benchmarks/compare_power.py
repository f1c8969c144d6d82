"""How often `pgle compare` is right: false alarms, power and coverage on synthetic step times with
a known effect.

Every draw makes two sides, runs them through the whole path (steady-step rules, comparison) and
counts. The raw method, the percentile interval of a block bootstrap, stands beside it for single
runs.

    python benchmarks/compare_power.py [--draws 1000] [--processes 2] [--only PATTERN]
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
from scipy.signal import lfilter

from pgle.steps.compare import compare
from pgle.steps.dependence import block_length
from pgle.steps.estimate import (
    Assumptions,
    Entry,
    LaunchSpread,
    bootstrap_medians,
    make_trends,
    measured_spread,
)
from pgle.steps.series import Floats, Side, Step, StepTimes, make_series, steady
from pgle.steps.verdict import Verdict

NOISE = 0.01
"""Standard deviation of a step time about its level."""
Generator = np.random.Generator
Shape = Callable[[Generator, int], Floats]
"""Logarithms of the step times of one run."""


def autocorrelated(rho: float, noise: float = NOISE) -> Shape:
    def make(random: Generator, count: int) -> Floats:
        shocks = random.standard_normal(count + 400) * noise * math.sqrt(1 - rho**2)
        return lfilter([1], [1, -rho], shocks)[400:]

    return make


def drift(rng: Generator, count: int) -> Floats:
    """Both sides slow down by 1 % over the run, as clocks do that warm up."""
    return autocorrelated(0.3)(rng, count) + np.linspace(0, 0.01, count)


def waves(rng: Generator, count: int) -> Floats:
    """A slow oscillation of 1 % with another phase and period in each run."""
    periods = rng.uniform(0.5, 3)
    return autocorrelated(0.3)(rng, count) + 0.01 * np.sin(
        2 * np.pi * (periods * np.linspace(0, 1, count) + rng.random())
    )


def own_drift(rng: Generator, count: int) -> Floats:
    """Each run drifts its own way: by a normal amount with standard deviation 0.3 %."""
    return autocorrelated(0.3)(rng, count) + np.linspace(0, 1, count) * rng.normal(
        0, 0.003
    )


def own_strong_drift(rng: Generator, count: int) -> Floats:
    """Each run drifts its own way: by a normal amount with standard deviation 1 %."""
    return autocorrelated(0.3)(rng, count) + np.linspace(0, 1, count) * rng.normal(
        0, 0.01
    )


def spikes(rng: Generator, count: int) -> Floats:
    """3 % of the steps are slower by 20 % on average."""
    return autocorrelated(0.3)(rng, count) + (
        rng.random(count) < 0.03
    ) * rng.exponential(0.2, count)


def warm_up(rng: Generator, count: int, noise: float = NOISE) -> Floats:
    """A compile, then a start that decays from 30 % over some ten steps, and a stall every 50
    steps.
    """
    times = autocorrelated(0.3, noise)(rng, count) + 0.3 * np.exp(
        -np.arange(count) / rng.uniform(2, 10)
    )
    times[0] += 4
    times[49::50] += 1
    return times


def two_levels(share: float, stay: float) -> Shape:
    """Steps are slower by 3 % in `share` of the time, and levels last `stay` times as long as by
    chance.
    """

    def make(rng: Generator, count: int) -> Floats:
        leave = np.array([share, 1 - share]) / stay
        level, levels = rng.random() < share, np.zeros(count)
        for step in range(count):
            level ^= rng.random() < min(1.0, leave[int(level)])
            levels[step] = level
        return autocorrelated(0.0, 0.003)(rng, count) + 0.03 * levels

    return make


def skewed(rng: Generator, count: int) -> Floats:
    return rng.exponential(NOISE, count)


@dataclass(frozen=True)
class Scenario:
    name: str
    shape: Shape
    steps: int = 200
    runs: int = 1
    between: float = 0.0
    """Standard deviation between launches."""
    session: float = 0.0
    """Drift over the whole session of runs, in the order they were run."""
    paired: bool = False
    known: str = "given"
    """How `between` is known: given, history (of ten entries), or not."""
    told: float | None = None
    """What the comparison is told where `between` is given; None: the truth."""
    uneven: bool = False
    """Launches differ by placement: one in four is slow, the others alike; `between` is the
    standard deviation.
    """


SCENARIOS = (
    Scenario("independent", autocorrelated(0)),
    Scenario("autocorrelation 0.5", autocorrelated(0.5)),
    Scenario("autocorrelation 0.8", autocorrelated(0.8)),
    Scenario("autocorrelation 0.9", autocorrelated(0.9)),
    Scenario("autocorrelation 0.95", autocorrelated(0.95)),
    Scenario("autocorrelation 0.9, 1000 steps", autocorrelated(0.9), steps=1000),
    Scenario("40 steps", autocorrelated(0.3), steps=40),
    Scenario("common drift 1 %", drift),
    Scenario("slow waves 1 %", waves),
    Scenario("own drift 0.3 %, 0.15 % given", own_drift, told=0.0015),
    Scenario("own drift 1 %, 0.15 % given", own_strong_drift, told=0.0015),
    Scenario("spikes", spikes),
    Scenario("warm-up and stalls", warm_up),
    Scenario("skewed", skewed),
    Scenario("two levels, half and half", two_levels(0.5, 1)),
    Scenario("two levels, 20 steps each", two_levels(0.5, 10)),
    Scenario("two levels, a third slow", two_levels(0.33, 1)),
    Scenario("launches 0.15 %, given", autocorrelated(0.3), between=0.0015),
    Scenario(
        "launches 0.15 %, not known", autocorrelated(0.3), between=0.0015, known="not"
    ),
    Scenario("launches 0.5 %, given", autocorrelated(0.3), between=0.005),
    Scenario(
        "launches 0.5 %, history of 10",
        autocorrelated(0.3),
        between=0.005,
        known="history",
    ),
    Scenario(
        "launches 0.5 %, not known", autocorrelated(0.3), between=0.005, known="not"
    ),
    Scenario(
        "launches 1 %, history of 10",
        autocorrelated(0.3),
        between=0.01,
        known="history",
    ),
    Scenario("launches 1 %, not known", autocorrelated(0.3), between=0.01, known="not"),
    Scenario(
        "uneven 0.5 %, history of 10",
        autocorrelated(0.3),
        between=0.005,
        known="history",
        uneven=True,
    ),
    Scenario(
        "uneven 0.5 %, not known",
        autocorrelated(0.3),
        between=0.005,
        known="not",
        uneven=True,
    ),
    Scenario(
        "4+4 runs, launches differ 0.3 %",
        autocorrelated(0.5),
        steps=60,
        runs=4,
        between=0.003,
    ),
    Scenario(
        "8+8 runs, launches differ 0.3 %",
        autocorrelated(0.5),
        steps=60,
        runs=8,
        between=0.003,
    ),
    Scenario("4+4 runs, own drift 1 %", own_strong_drift, steps=60, runs=4),
    Scenario(
        "ABBA 6 pairs, session drift 2 %", autocorrelated(0.5), 60, 6, 0.003, 0.02, True
    ),
    Scenario(
        "ABBA 2 pairs, session drift 2 %", autocorrelated(0.5), 60, 2, 0.003, 0.02, True
    ),
)


def sides(scenario: Scenario, effect: float, random: Generator) -> tuple[Side, Side]:
    """Two sides; NEW is slower by `effect`. Runs alternate as ABBA, BAAB … in the session."""
    order = [
        letter for turn in range(scenario.runs) for letter in ("AB", "BA")[turn % 2]
    ]
    found: dict[str, list[StepTimes]] = {"A": [], "B": []}
    for place, letter in enumerate(order):
        level = launch(scenario, random) + scenario.session * place / len(order)
        level += math.log1p(effect) if letter == "B" else 0.0
        values = 0.2 * np.exp(scenario.shape(random, scenario.steps) + level)
        found[letter].append(
            steady(
                make_series(
                    letter, "jsonl", [Step(i, t) for i, t in enumerate(values.tolist())]
                )
            )
        )
    return Side("base", tuple(found["A"])), Side("new", tuple(found["B"]))


def launch(scenario: Scenario, random: Generator) -> float:
    """By how much one launch differs from the mean of all."""
    if scenario.uneven:
        return (
            scenario.between
            * ((random.random() < 0.25) - 0.25)
            / math.sqrt(0.25 * 0.75)
        )
    return random.normal(0, scenario.between)


def assumptions(scenario: Scenario, random: Generator) -> Assumptions:
    """What the comparison is told of launches."""
    spread = None
    if scenario.known == "given":
        spread = LaunchSpread(
            scenario.between if scenario.told is None else scenario.told,
            math.inf,
            "given",
        )
    elif scenario.known == "history":
        medians = [0.2 * math.exp(launch(scenario, random)) for _ in range(10)]
        entries = [
            Entry(time=f"{day:02d}", name="job", hardware="h100", median_s=median)
            for day, median in enumerate(medians)
        ]
        spread = measured_spread(
            make_trends(entries), 0.2, simulated=False, source="history"
        )
    return Assumptions(paired=scenario.paired, launch_spread=spread)


def raw_interval(base: Side, new: Side) -> tuple[float, float]:
    """The percentile interval of the block bootstrap of both medians, without any of the
    corrections.
    """
    logs = [np.log(side.runs[0].step_time_s) for side in (base, new)]
    draws = [
        bootstrap_medians(values, block_length(values), seed=seed)
        for seed, values in enumerate(logs)
    ]
    low, high = np.exp(np.quantile(draws[1] - draws[0], [0.025, 0.975]))
    return float(low), float(high)


@dataclass
class Counts:
    draws: int = 0
    found: int = 0
    wrong_way: int = 0
    covered: int = 0
    raw_alarms: int = 0
    width: float = 0.0
    detectable: float = 0.0


def measure(task: tuple[int, float, int, int]) -> Counts:
    """Count over the draws of one scenario (by number) and effect."""
    number, effect, draws, seed = task
    scenario = SCENARIOS[number]
    counts = Counts()
    widths, detectable = [], []
    for draw in range(draws):
        random = np.random.default_rng([seed, number, round(effect * 1e4), draw])
        base, new = sides(scenario, effect, random)
        result = compare(base, new, assumptions(scenario, random))
        counts.draws += 1
        counts.found += result.verdict is (Verdict.SLOWER if effect else Verdict.FASTER)
        counts.wrong_way += result.verdict is (
            Verdict.FASTER if effect else Verdict.SLOWER
        )
        counts.covered += result.ci[0] <= 1 + effect <= result.ci[1]
        widths.append((result.ci[1] - result.ci[0]) / 2)
        detectable.append(result.minimum_detectable)
        if scenario.runs == 1 and not effect:
            low, high = raw_interval(base, new)
            counts.raw_alarms += low > 1 or high < 1
    counts.width, counts.detectable = (
        float(np.median(widths)),
        float(np.median(detectable)),
    )
    return counts


EFFECTS = (0.0, 0.005, 0.01, 0.02, 0.05)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--draws",
        type=int,
        default=1000,
        help="per scenario without effect; a quarter with each effect",
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only",
        default="",
        metavar="PATTERN",
        help="regular expression: only scenarios it finds",
    )
    options = parser.parse_args()
    chosen = [
        number
        for number, scenario in enumerate(SCENARIOS)
        if re.search(options.only, scenario.name)
    ]
    began = time.perf_counter()
    draws = {
        effect: options.draws if effect == 0 else max(options.draws // 4, 1)
        for effect in EFFECTS
    }
    tasks = [
        (number, effect, draws[effect], options.seed)
        for number in chosen
        for effect in EFFECTS
    ]
    margins = [
        1.96 * math.sqrt(0.05 * 0.95 / count)
        for count in (options.draws, draws[EFFECTS[1]])
    ]
    print(
        f"noise of a step {NOISE:.0%}, level 5 %; {options.draws} draws without effect (± {margins[0]:.1%} at 5 %), "
        f"{draws[EFFECTS[1]]} with each effect"
    )
    print(
        "false: either verdict at no effect; raw: percentile block bootstrap; cover: of all intervals"
    )
    heads = "".join(f"{effect:>8.1%}" for effect in EFFECTS[1:])
    print(
        f"{'scenario':<34}{'false':>7}{'raw':>7}{'cover':>7}  found:{heads}{'detectable':>12}"
    )
    with ProcessPoolExecutor(options.processes) as pool:
        results = pool.map(measure, tasks)
        for number, row in zip(chosen, batches(results, len(EFFECTS)), strict=True):
            print(line(SCENARIOS[number], row), flush=True)
    print(
        f"{sum(task[2] for task in tasks):,} comparisons in {time.perf_counter() - began:.0f} s",
        file=sys.stderr,
    )


def batches(results: Iterator[Counts], size: int) -> Iterator[list[Counts]]:
    while batch := list(islice(results, size)):
        yield batch


def line(scenario: Scenario, row: list[Counts]) -> str:
    null = row[0]
    false = (null.found + null.wrong_way) / null.draws
    raw = f"{null.raw_alarms / null.draws:>7.1%}" if scenario.runs == 1 else f"{'':>7}"
    cover = sum(item.covered for item in row) / sum(item.draws for item in row)
    power = "".join(f"{item.found / item.draws:>8.0%}" for item in row[1:])
    detectable = (
        f"{null.detectable:>12.2%}"
        if math.isfinite(null.detectable)
        else f"{'none':>12}"
    )
    return (
        f"{scenario.name:<34}{false:>7.1%}{raw}{cover:>7.1%}        {power}{detectable}"
    )


if __name__ == "__main__":
    main()
