"""Predicted effects of flags against the public record (`pgle flags explain`): what others measured
on real GPUs.

Every effect of the record that can be compiled here is compiled twice, before and after the change,
by XLA's own costs as the jobs did it (no profile), and both schedules are simulated with pgle's
estimates. With `--profiled` XLA gets these estimates as a profile, which is what `pgle tune`
compares. The program is a stand-in (`benchmarks/moe_fsdp.py`). No figure of pgle was fitted to
these effects. All misses are shown.

    python benchmarks/public_record.py --python /path/to/jaxlib-0.11/bin/python --target gb200 -o
    record

The interpreter needs jax 0.11.0 with its CUDA plugin wheels, as the sweep had; no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from pgle.costs.profile.coverage import estimate_profile
from pgle.costs.profile.files import profile_files
from pgle.files import write_files
from pgle.run.compiler.compile import Compiler
from pgle.run.process.memory import DEFAULT_FRACTION
from pgle.run.rehearse_program import RehearseRequest
from pgle.schedule.predict import predict
from pgle.schedule.simulate import run_program
from pgle.xla.flags.catalogue import Effect, public_record
from pgle.xla.targets import find_hardware, load_target

NOISE = 1.3  # per cent: identical controls of the sweep differ by 0.8 to 1.3
TOPOLOGY = "1x1x64"
COMMON = (
    "--xla_gpu_enable_triton_gemm=false",
)  # without a GPU there is no autotuning of Triton's products


@dataclass(frozen=True)
class Side:
    """A program with flags."""

    chunks: int = 4
    small: str = "sharded"
    flags: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        return f"{self.chunks}-{self.small}"


@dataclass(frozen=True)
class Step:
    """What is predicted of a side, in seconds, without contention, with the likely one and with
    twice that.
    """

    steps: tuple[float, float, float]
    memory_gib: float


def arms(record: Mapping[str, Effect]) -> dict[str, tuple[Side, Side]]:
    """The effects that can be compiled: before and after."""
    found = {
        name: (Side(2), Side(2, flags=_flags(record[name])))
        for name in ("moe-fsdp-overlap-4", "moe-fsdp-combine-512")
    }
    for name in (
        "moe-fsdp-o1",
        "moe-fsdp-sol",
        "moe-fsdp-pipelined",
        "moe-fsdp-pipelined-double",
    ):
        found[name] = (Side(), Side(flags=_flags(record[name])))
    found["moe-fsdp-chunks-2"] = (Side(), Side(2))
    found["moe-fsdp-chunks-2-before"] = (
        Side(small="replicated"),
        Side(2, "replicated"),
    )
    found["moe-fsdp-small-sharded"] = (Side(small="replicated"), Side())
    return found


def _flags(effect: Effect) -> tuple[str, ...]:
    return tuple(
        f"--{text.lower() if text.startswith('JAX_') else text}" for text in effect.set
    )


def _flag_of_jax(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Jax's levels keep their capital letter: ``O1``."""
    return tuple(flag.replace("=o1", "=O1") for flag in flags)


class Bench:
    """Programs lowered and compiled once each."""

    def __init__(
        self,
        python: str,
        target: str,
        fraction: float,
        flags: tuple[str, ...],
        out: Path,
        profiled: bool,
    ) -> None:
        self.python, self.out, self.fraction, self.profiled = (
            python,
            out,
            fraction,
            profiled,
        )
        self.target, self.flags = load_target(target), (*COMMON, *flags)
        self.known: dict[Side, Step] = {}

    def module(self, side: Side) -> Path:
        path = self.out / f"{side.program}.mlir"
        if not path.exists():
            words = [
                "--chunks",
                str(side.chunks),
                "--small",
                side.small,
                "-o",
                str(path),
            ]
            script = Path(__file__).with_name("moe_fsdp.py")
            environment = {
                name: value
                for name, value in os.environ.items()
                if name != "PYTHONPATH"
            }
            subprocess.run(
                [self.python, script, *words],
                check=True,
                env=environment,
                stderr=subprocess.DEVNULL,
            )
        return path

    def step(self, compiler: Compiler, side: Side) -> Step:
        if side not in self.known:
            flags = (*self.flags, *_flag_of_jax(side.flags))
            asked = RehearseRequest(
                self.module(side), self.target, self.out / f"arm{len(self.known)}", self.python, topology=TOPOLOGY,
                memory_fraction=self.fraction,
            )  # fmt: skip
            request = replace(asked.compilation(), flags=flags)
            made = compiler.compile(request)
            if self.profiled:
                module = made.scheduled if made.lhs is None else made.lhs.module
                profile = request.dump_dir.with_suffix(".pbtxt")
                write_files(
                    profile_files(
                        profile, estimate_profile(module, find_hardware(self.target))
                    ),
                    force=True,
                )
                made = compiler.compile(
                    replace(
                        request,
                        dump_dir=profile.with_suffix(".profiled"),
                        profile=profile,
                    )
                )
            found = predict(made.scheduled, None, find_hardware(self.target))
            steps = [
                run_program(
                    found.program, found.launch, found.contention.at(times)
                ).step_us
                for times in (0, 1, 2)
            ]
            none, likely, twice = (step / 1e6 for step in steps)
            self.known[side] = Step(
                (none, likely, twice), (made.memory_bytes or 0) / 2**30
            )
        return self.known[side]


def table(
    rows: list[dict[str, Any]], record: Mapping[str, Effect], limit_gib: float
) -> Iterator[str]:
    """Markdown: every effect that was compiled, then counts, then those that were not."""
    heads = "change | published | predicted | without contention | with twice | sign"
    yield f"| {heads} | memory (limit {limit_gib:.1f} GiB) |"
    yield "|---|---|---|---|---|---|---|"
    right, errors = 0, []
    for row in rows:
        published = record[str(row["id"])].change
        none, likely, twice = row["change"]
        mean = fmean(published)
        small = abs(mean) <= NOISE and abs(likely) <= NOISE
        is_right = small or mean * likely > 0
        right += is_right
        errors.append(abs(likely - mean))
        readings = ", ".join(f"{reading:+.2f}" for reading in published)
        before, after = row["memory_gib"]
        yield (
            f"| {row['id']} | {readings} % | {likely:+.1f} % | {none:+.1f} % | {twice:+.1f} % | "
            f"{'right' if is_right else 'wrong'} | {before:.1f} → {after:.1f} |"
        )
    yield ""
    yield f"{len(rows)} effects compiled: sign right in {right}, median error {median(errors):.1f} points of per cent."
    unseen = [effect for effect in record.values() if effect.unseen]
    others = [
        effect
        for effect in record.values()
        if not effect.unseen and effect.id not in {row["id"] for row in rows}
    ]
    yield f"{len(unseen)} effects that a model of the schedule cannot see, {len(others)} whose program is not public."


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--target", default="gb200")
    parser.add_argument("--memory-fraction", type=float, default=DEFAULT_FRACTION)
    parser.add_argument(
        "--flag", action="append", default=[], help="one more XLA flag for all"
    )
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--profiled", action="store_true", help="give XLA the estimates as a profile"
    )
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    record = {effect.id: effect for effect in public_record()}
    flags, fraction = tuple(options.flag), options.memory_fraction
    bench = Bench(
        options.python, options.target, fraction, flags, options.out, options.profiled
    )
    rows: list[dict[str, object]] = []
    with Compiler(options.python) as compiler:
        for name, sides in arms(record).items():
            if options.only in name:
                before, after = (bench.step(compiler, side) for side in sides)
                change = [
                    100 * (b / a - 1)
                    for a, b in zip(before.steps, after.steps, strict=True)
                ]
                rows.append({"id": name, "change": change, "before": asdict(before), "after": asdict(after),
                             "memory_gib": [before.memory_gib, after.memory_gib]})  # fmt: skip
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    (options.out / "results.json").write_text(json.dumps(rows))
    print(
        "\n".join(
            table(
                rows,
                record,
                options.memory_fraction * bench.target.memory_bytes / 2**30,
            )
        )
    )


if __name__ == "__main__":
    main()
