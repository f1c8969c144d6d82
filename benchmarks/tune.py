"""What `pgle tune` finds for many programs, and whether that holds in worlds that it never saw.

    python benchmarks/tune.py -o DIR [--python PYTHON] [--modules FOLDER] [--only WORD] [--budget N]
    python benchmarks/tune.py -o DIR --table python benchmarks/tune.py -o DIR --speed MODULE      #
    processor seconds of a trial, on a machine at rest

The programs are pgle's workloads and those of ``programs/``, run by ``--python``, and the modules
of a folder: StableHLO, such as tests/helpers/wild_programs.py writes, or HLO, such as
`xla/tools/benchmarks/hlo` of openxla/xla holds. The jaxlib of that interpreter compiles, of a
module in a file that which runs this; so releases can be shown side by side. A line per program is
kept in DIR/results.jsonl, and a program with a line is not done again. All steps are simulated,
with estimated costs, for H100.

An accepted setting is judged again in 40 worlds with other seeds: 20 with the spread of the search,
and 20 with a third more; the target is to lose in at most 10 % of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgle.report.page.figures import time as duration
from pgle.report.text import say
from pgle.requests.predictions import Rehearse
from pgle.run.compiler.compile import Compiler
from pgle.run.rehearse_program import prepared
from pgle.run.tune import AT_ONCE, NAME, SAME_STEP, Tuning, open_bench, tune
from pgle.tune.search import Spread, judge, steps_in, worlds

FRESH = ((71, Spread()), (72, Spread(0.2, 0.4, 40.0)))
"""Seeds and spreads that no search uses."""
WORKLOADS = {
    "FSDP, 8 layers": "fsdp --layers 8",
    "FSDP, scan over 8 layers": "fsdp --layers 8 --scan",
    "FSDP, wide": "fsdp --layers 4 --model-dim 2048 --ff-dim 8192 --batch 8",
    "tensor parallel": "tensor",
    "pipeline ring": "ring",
    "offload": "offload",
    "one gather beside one product": "overlap",
}
DEVICES = 8
_TOPOLOGY = re.compile(r"_(\d+)x(\d+)\.")
"""Hosts and GPUs of each, at the end of a module's name."""


@dataclass(frozen=True)
class Program:
    """Something to tune: a name, the words of `pgle tune`, a topology."""

    name: str
    words: tuple[str, ...]
    topology: str


def programs(python: str, modules: Path | None) -> Iterator[Program]:
    """All of them."""
    shape = f"1x1x{DEVICES}"
    for name, words in WORKLOADS.items():
        module, *rest = words.split()
        more = ("--devices", str(DEVICES), "--compile-only", *rest)
        own = Path(__file__).with_name("programs") / f"{module}.py"
        program = (str(own),) if own.exists() else ("-m", "pgle.workloads", module)
        yield Program(name, (python, *program, *more), shape)
    for path in (
        sorted([*modules.glob("*.hlo*"), *modules.glob("*.mlir")]) if modules else ()
    ):
        size = _TOPOLOGY.search(path.name)
        yield Program(
            path.name.split(".")[0],
            (str(path),),
            f"1x{size[1]}x{size[2]}" if size else shape,
        )


def run(program: Program, out: Path, budget: int) -> dict[str, Any]:
    """One program tuned; its line of the table."""
    asked = Rehearse(
        program.words,
        target="h100",
        topology=program.topology,
        output=out,
        cached=False,
    )
    with prepared(asked, question=NAME) as (_, given):
        began, before = time.perf_counter(), _cpu_s()
        found = tune(given, budget)
        wall_s, cpu_s = time.perf_counter() - began, _cpu_s() - before
    tuned, pgle = found.tuned.trial, found.pgle.trial
    held = judge(tuned.worlds_us, pgle.worlds_us)
    return {
        "program": program.name, "jaxlib": found.jaxlib, "verdict": found.verdict,
        "baseline_us": found.baseline.trial.step_us, "pgle_us": pgle.step_us, "tuned_us": tuned.step_us,
        "ceiling_us": found.pgle.prediction.shortest_us, "mean": held.mean, "won": held.won, "of": held.of,
        "fresh": [_fresh(found, seed, spread) for seed, spread in FRESH] if found.proof else [],
        "whole": found.proof.change if found.proof else None, "used": found.proof.used if found.proof else None,
        "refused": found.refused, "flags": dict(tuned.flags), "temp_bytes": tuned.temp_bytes,
        "pgle_temp_bytes": pgle.temp_bytes, "trials": len(found.trials),
        "cpu_s": cpu_s, "wall_s": wall_s,
    }  # fmt: skip


def speed(module: Path, out: Path) -> Iterator[str]:
    """Processor seconds of trials, everything counted: ours, the compiler and its children; then 20
    side by side.
    """
    size = _TOPOLOGY.search(module.name)
    shape = f"1x{size[1]}x{size[2]}" if size else None
    asked = Rehearse(
        (str(module),),
        target="h100",
        topology=shape,
        output=out / "speed",
        cached=False,
    )
    threshold, late = (
        "xla_gpu_reduce_scatter_combine_threshold_bytes",
        "xla_gpu_experimental_parallel_collective_overlap_limit",
    )
    with (
        prepared(asked) as (_, given),
        open_bench(given) as bench,
    ):
        compiler = bench.session.compiler
        for what, settings in (
            ("other program", [{threshold: str(size << 20)} for size in (16, 8, 4, 2)]),
            (
                "other scheduling only",
                [{threshold: str(size << 20), late: "2"} for size in (16, 8, 4, 2)],
            ),
        ):
            before = _all_cpu_s(compiler)
            for flags in settings:
                bench.trial((flags, what))
            yield f"{what}: {(_all_cpu_s(compiler) - before) / len(settings):.2f} CPU-s a trial (jaxlib {bench.jaxlib})"
        began, before = time.perf_counter(), _all_cpu_s(compiler)
        names = [
            f"xla_gpu_{kind}_combine_threshold_bytes"
            for kind in ("reduce_scatter", "all_gather")
        ]
        many = [
            dict(zip(names, (f"{a << 20}", f"{b << 20}"), strict=True))
            for a in (1, 3, 6, 12, 24)
            for b in (1, 4, 16, 64)
        ]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            made = {
                trial.program
                for trial in threads.map(
                    bench.trial, [(flags, "one of 20") for flags in many]
                )
            }
        took = f"{time.perf_counter() - began:.0f} s, {_all_cpu_s(compiler) - before:.0f} CPU-s"
        yield f"{len(many)} other programs, {AT_ONCE} at once ({len(made)} differ): {took}"


def _all_cpu_s(compiler: Compiler) -> float:
    """Of this process, and of the compiler's with the children that it has waited for (proc(5),
    stat).
    """
    assert compiler.process.child is not None
    values = (
        Path(f"/proc/{compiler.process.child.pid}/stat")
        .read_text()
        .rpartition(")")[2]
        .split()
    )
    return time.process_time() + sum(map(int, values[11:15])) / os.sysconf("SC_CLK_TCK")


def _fresh(found: Tuning, seed: int, spread: Spread) -> tuple[int, int, float]:
    """Worlds won, worlds, mean change."""
    among = worlds(20, seed, spread)
    after, before = (
        steps_in(among, side.module, side.prediction)
        for side in (found.tuned, found.pgle)
    )
    held = judge(after, before)
    return held.won, held.of, held.mean


def _cpu_s() -> float:
    usages = (
        resource.getrusage(who)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown, and what is to be seen over all programs."""
    heads: tuple[str, ...] = (
        "program",
        "jaxlib",
        "LHS",
        "PGLE",
        "tuned",
        "all hidden",
        "over worlds",
        "won",
        "fresh worlds lost",
    )
    heads += ("temp memory", "trials", "CPU, wall")
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for row in sorted(rows, key=lambda row: (row["program"].lower(), row["jaxlib"])):
        steps = [
            duration(row[key])
            for key in ("baseline_us", "pgle_us", "tuned_us", "ceiling_us")
        ]
        better = row["verdict"] == "better"
        cells = [*steps, row["verdict"].replace("-", " "), "–", "–", "–"]
        if better:
            lost = sum(of - won for won, of, _ in row["fresh"])
            memory = (
                "–"
                if not row["pgle_temp_bytes"]
                else f"{row['temp_bytes'] / row['pgle_temp_bytes'] - 1:+.0%}"
            )
            cells = [
                *steps,
                f"**{row['mean']:+.1%}**",
                f"{row['won']} of {row['of']}",
                f"{lost} of 40",
                memory,
            ]
        else:
            cells[2] = "–"
        took = f"{row['cpu_s']:.0f} s, {row['wall_s']:.0f} s"
        yield f"| {row['program']} | {row['jaxlib']} | {' | '.join(cells)} | {row['trials']} | {took} |"
    accepted = [row for row in rows if row["verdict"] == "better"]
    worlds_of = sum(of for row in accepted for _, of, _ in row["fresh"])
    lost = sum(of - won for row in accepted for won, of, _ in row["fresh"])
    worst = max(
        (sum(of - won for won, of, _ in row["fresh"]) / 40 for row in accepted),
        default=0.0,
    )
    same = sum(abs(row["whole"]) < SAME_STEP for row in accepted)
    yield ""
    yield f"{len(accepted)} of {len(rows)} better."
    yield f"Fresh worlds lost: {lost} of {worlds_of}, at most {worst:.0%} of those of one setting."
    yield f"The whole compilation gave the trial's step in {same} of {len(accepted)} accepted settings."


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--modules", type=Path)
    parser.add_argument(
        "--only", default="", help="programs whose name holds this word"
    )
    parser.add_argument("--budget", type=int, default=12)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--speed", type=Path, metavar="MODULE")
    options = parser.parse_args()
    if options.speed:
        print("\n".join(speed(options.speed, options.out)))
        return
    results = options.out / "results.jsonl"
    options.out.mkdir(parents=True, exist_ok=True)
    done = (
        [json.loads(line) for line in results.read_text().splitlines()]
        if results.exists()
        else []
    )
    for program in () if options.table else programs(options.python, options.modules):
        key = f"{program.name} {Path(options.python).resolve().name}".replace(
            " ", "-"
        ).replace(",", "")
        if options.only not in program.name or any(row["key"] == key for row in done):
            continue
        try:
            row = {"key": key, **run(program, options.out / key, options.budget)}
        except Exception as error:  # one program that fails does not end the table
            say(f"{program.name}: {error}")
            continue
        done.append(row)
        with results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        say(f"{program.name}: {row['verdict']} {row['mean']:+.1%}")
    print("\n".join(table(done)))


if __name__ == "__main__":
    main()
