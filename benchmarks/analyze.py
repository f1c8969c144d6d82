"""Time and memory of `pgle analyze`, and of `--against`, beside `pgle convert` on the same nsys
exports.

    python benchmarks/analyze.py [--sizes 1000000 10000000] [--devices 4]

Exports are generated: one module of 2,000 instructions, every twentieth a gather beside the kernel
after it. Each command runs in a process of its own; processor seconds and the largest resident set
are what the kernel says of it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from nsys_convert import INSTRUCTIONS, run

from pgle.trace.table import Device, ModuleKey, Trace

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))
from nsys_export import write_nsys_sqlite

GATHERS = 20
"""Of so many instructions, one."""


def write_export(path: Path, activities: int, devices: int) -> None:
    """An nsys export of so many kernels."""
    number = np.arange(activities, dtype=np.int64)
    per_device = -(-activities // devices)
    device, local = np.divmod(number, per_device)
    instruction = local % INSTRUCTIONS
    gather = instruction % GATHERS == 0
    duration = 2000 + number * 7919 % 3000
    start = np.cumsum(np.where(gather, 200, duration + 500))
    start -= start[device * per_device]
    names = [
        f"all-gather-start.{at}" if at % GATHERS == 0 else f"loop_fusion.{at}"
        for at in range(INSTRUCTIONS)
    ]
    trace = Trace(
        start_ns=start, duration_ns=duration, kind=np.zeros(activities, np.uint8), device=device.astype(np.int32),
        stream=np.where(gather, 9, 7).astype(np.int32), module=np.zeros(activities, np.int32),
        instruction=instruction.astype(np.int32), execution=(local // INSTRUCTIONS).astype(np.int32),
        instance=number.astype(np.int32), modules=(ModuleKey("jit_train_step", 7),), instructions=tuple(names),
        devices=tuple(Device("host:4242", at, at) for at in range(devices)),
    )  # fmt: skip
    write_nsys_sqlite(trace, path, product="pgle benchmark")


def main() -> None:
    """Generate, run and print a row per command and size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--devices", type=int, default=4)
    options = parser.parse_args()
    pgle = [sys.executable, "-m", "pgle"]
    print(f"{'activities':>12}  {'command':<24}{'CPU s':>8}{'µs each':>9}{'MiB':>8}")
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "report.sqlite"
            write_export(path, size, options.devices)
            commands = {
                "pgle convert": [
                    *pgle,
                    "convert",
                    str(path),
                    "-o",
                    f"{folder}/p.pbtxt",
                    "--json",
                ],
                "pgle analyze": [*pgle, "analyze", str(path), "--json"],
            }
            if size <= 1_000_000:
                commands["pgle analyze --against"] = [
                    *commands["pgle analyze"],
                    "--against",
                    str(path),
                ]
            for name, command in commands.items():
                took = run(command, {**os.environ})
                each = took.cpu_s / size * 1e6
                print(
                    f"{size:>12,}  {name:<24}{took.cpu_s:>8.2f}{each:>9.2f}{took.peak_mib:>8.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
