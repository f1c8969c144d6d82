"""From the command to the answer: `pgle rehearse` on ten programs as people write them, and on
modules that you name.

    python benchmarks/rehearse_programs.py [--python PYTHON...] [--module FILE...] [--target h100]
    [--only NAME...]

Each PYTHON (ours by default) has jax, its CUDA plugin and what pgle needs, and flax and equinox for
two of the programs of `tests/helpers/wild_programs.py`. It lowers them, and `python -m pgle
rehearse --no-cache` runs on each: two or three schedules, predictions, pages. Processor time is
that of the command with all its children, memory the largest of any of them, as the kernel says
(`wait4`). On a busy machine trust the processor time. Prints a table in Markdown; a program that
does not get to its schedule has the command's own line in it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
WILD = ROOT / "tests" / "helpers" / "wild_programs.py"
PROGRAMS = (
    "fsdp_unrolled",
    "fsdp_scan",
    "tensor_parallel",
    "pipeline",
    "experts",
    "ring_attention",
    "host_offload",
    "pallas_kernel",
    "cudnn_attention",
    "foreign_call",
)
HEAD = "| program | jaxlib | devices | LHS, no profile | with estimated costs | processor | wall | memory |"


@dataclass(frozen=True)
class Measured:
    """One command: its result, and what it took."""

    code: int
    out: str
    last_words: str
    wall_s: float
    cpu_s: float
    peak_mib: float


def main() -> None:
    """Print the table."""
    options = _parser().parse_args()
    print(HEAD, "|---" * (HEAD.count("|") - 1) + "|", sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        for python in options.python:
            for name in options.only or ([] if options.module else PROGRAMS):
                module = Path(folder) / f"{name}.mlir"
                lowered = measure([python, str(WILD), name, str(module)])
                print(
                    row(name, python, module, options.target)
                    if lowered.code == 0
                    else failed(name, lowered),
                    flush=True,
                )
            for module in options.module:
                print(
                    row(module.name.split(".")[0], python, module, options.target),
                    flush=True,
                )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--module", nargs="+", type=Path, default=[])
    parser.add_argument("--target", default="h100")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS)
    return parser


def measure(words: list[str]) -> Measured:
    """Run a command to its end."""
    environment = {
        key: value for key, value in os.environ.items() if key != "XLA_FLAGS"
    } | {"PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        began = time.perf_counter()
        process = subprocess.Popen(words, stdout=out, stderr=error, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        error.seek(0)
        said = [line for line in error.read().splitlines() if line.strip()]
        return Measured(
            process.returncode, out.read(), said[-1] if said else "", wall_s, usage.ru_utime + usage.ru_stime,
            usage.ru_maxrss / 1024,
        )  # fmt: skip


def row(name: str, python: str, module: Path, target: str) -> str:
    """A program rehearsed."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            python,
            "-m",
            "pgle",
            "rehearse",
            "--no-cache",
            "--json",
            str(module),
            "--target",
            target,
        ]
        found = measure([*words, "-o", f"{folder}/out"])
    if found.code not in (0, 1):
        return failed(name, found)
    result = json.loads(found.out)
    before, after = (
        f"{result[side]['step_us'] / 1e3:,.2f} ms, exposed {result[side]['exposed_us'] / result[side]['step_us']:.0%}"
        for side in ("baseline", "profiled")
    )
    took = f"{found.cpu_s:.1f} s | {found.wall_s:.1f} s | {found.peak_mib:,.0f} MiB"
    return f"| {name} | {result['jaxlib']} | {result['devices']} | {before} | {after} | {took} |"


def failed(name: str, found: Measured) -> str:
    """What a program said that did not get so far."""
    took = f"{found.cpu_s:.1f} s | {found.wall_s:.1f} s | {found.peak_mib:,.0f} MiB"
    return f"| {name} | | | {found.last_words} | | {took} |"


if __name__ == "__main__":
    main()
