"""Speed and memory of converting nsys exports, against `nsys stats --report nvtx_kern_sum` on the same file.

    python benchmarks/nsys_convert.py [--sizes 50000 1000000] [--ten-million [--patient]] [--repeat 5] [--keep DIR]

Exports are generated with `pgle.trace.nsys.writer`: one module, 2,000 instructions, one kernel, one API row and one
range per launch, and a range per execution. Each program runs in a child process of its own; wall time, processor time
and largest resident set are what the kernel says of it (`wait4`). "in process" is `read_nsys` after it has read another
small file, which is what every further rank of one command costs. "imports" are those of `pgle convert` alone: the
interpreter, numpy, click, rich and protobuf. Repeats of all programs alternate, and medians count. Ratios are
given for wall time and for processor time; on a busy machine trust the latter.

Modules are compiled to bytecode once, in a folder of the benchmark's, as `pip install` does: a checkout under
PYTHONDONTWRITEBYTECODE would be compiled anew by every process.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pgle.trace.nsys.writer import write_nsys_sqlite
from pgle.trace.table import Device, ModuleKey, Trace

INSTRUCTIONS = 2000
SIZES = (50_000, 1_000_000)
TEN_MILLION = 10_000_000

PEER = "nsys stats nvtx_kern_sum"
READING = "read_nsys, whole process"

SMALL = Path(__file__).parents[1] / "testdata" / "nsys_synthetic" / "synthetic_cases.sqlite"
"""Read first, so that "in process" finds everything loaded."""

READ = """
import sys, time
from pathlib import Path
from pgle.trace.nsys.read import read_nsys
read_nsys(Path(sys.argv[3]))
start, busy = time.perf_counter(), time.process_time()
trace = read_nsys(Path(sys.argv[1]))
print(time.perf_counter() - start, time.process_time() - busy)
assert len(trace) == int(sys.argv[2]), len(trace)
"""

IMPORTS = """
import pgle.cli.main
from pgle.cli.blas import one_blas_thread
with one_blas_thread():
    import pgle.report.convert, pgle.report.progress, pgle.cli.convert
import pgle.trace.nsys.read
"""


@dataclass(frozen=True)
class Run:
    """What one child process took."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    output: str


def generate(path: Path, kernels: int, devices: int) -> float:
    """Write an export of so many kernels; returns the seconds it took."""
    number = np.arange(kernels, dtype=np.int64)
    per_device = -(-kernels // devices)
    device, local = np.divmod(number, per_device)
    duration = 2000 + number * 7919 % 3000
    start = np.cumsum(duration + 500)
    start -= start[device * per_device]
    trace = Trace(
        start_ns=start, duration_ns=duration, kind=np.zeros(kernels, np.uint8), device=device.astype(np.int32),
        stream=np.full(kernels, 7, np.int32), module=np.zeros(kernels, np.int32),
        instruction=(local % INSTRUCTIONS).astype(np.int32), execution=(local // INSTRUCTIONS).astype(np.int32),
        instance=number.astype(np.int32), modules=(ModuleKey("jit_train_step", 7),),
        instructions=tuple(f"loop_fusion.{at}" for at in range(INSTRUCTIONS)),
        devices=tuple(Device("host:4242", at, at) for at in range(devices)),
    )  # fmt: skip
    begin = time.perf_counter()
    write_nsys_sqlite(trace, path, product="pgle benchmark")
    return time.perf_counter() - begin


def run(command: Sequence[str], environment: Mapping[str, str]) -> Run:
    """Run a command once, to its end."""
    with tempfile.TemporaryFile("w+") as output:
        begin = time.perf_counter()
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if child.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {child.returncode}\n{text[-2000:]}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text)


def median(runs: Sequence[Run]) -> Run:
    """Median times, the largest peak, and the output of the last."""
    wall, busy = (statistics.median(getattr(run, name) for run in runs) for name in ("wall_s", "cpu_s"))
    return Run(wall, busy, max(run.peak_mib for run in runs), runs[-1].output)


def inside(runs: Sequence[Run]) -> list[Run]:
    """What the processes of `READ` said of their second reading."""
    said = [tuple(map(float, run.output.split())) for run in runs]
    return [Run(wall, busy, run.peak_mib, "") for (wall, busy), run in zip(said, runs, strict=True)]


def peer(database: Path, folder: Path) -> list[str]:
    """nsys's own report, under the name that this version of nsys has for it."""
    said = subprocess.run(["nsys", "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"version (\d+)", said)
    name = "nvtxkernsum" if match and int(match[1]) < 2023 else "nvtx_kern_sum"
    output = str(folder / "peer")
    return [
        "nsys",
        "stats",
        "--report",
        name,
        "--format",
        "csv",
        "--force-overwrite",
        "true",
        "--output",
        output,
        str(database),
    ]


def measure(kernels: int, folder: Path, arguments: argparse.Namespace) -> None:
    """Generate one export and print a line per program."""
    database = folder / f"kernels_{kernels}_{arguments.devices}.sqlite"
    if not database.exists():
        # in a child: the largest resident set of a process counts what its parent held when it was forked
        sizes = [str(kernels), str(arguments.devices)]
        subprocess.run([sys.executable, __file__, "--generate", str(database), *sizes], check=True)
    print(f"\n{database.name}: {database.stat().st_size / 2**20:,.0f} MiB")
    convert = [sys.executable, "-m", "pgle", "convert", "--force", "-o", str(folder / "costs.pbtxt")]
    commands = {
        READING: [sys.executable, "-c", READ, str(database), str(kernels), str(SMALL)],
        "imports": [sys.executable, "-c", IMPORTS],
        "pgle convert": [*convert, str(database)],
    }
    if not arguments.no_peer and shutil.which("nsys") and (kernels < TEN_MILLION or arguments.patient):
        commands = {PEER: peer(database, folder)} | commands
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    run([*convert, str(SMALL)], environment)  # compiles the modules
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for _ in range(arguments.repeat if kernels < TEN_MILLION else 1):
        for name, command in commands.items():
            runs[name].append(run(command, environment))
    runs["read_nsys, in process"] = inside(runs[READING])
    theirs = median(runs[PEER]) if PEER in runs else None
    for name, found in runs.items():
        print(line(name, median(found), None if name == PEER else theirs, kernels), flush=True)


def line(name: str, ours: Run, theirs: Run | None, kernels: int) -> str:
    """One row of the table."""
    each = ours.wall_s / kernels * 1e6
    text = f"  {name:<25}{ours.wall_s:8.2f} s{ours.cpu_s:8.2f} s cpu{ours.peak_mib:7.0f} MiB{each:7.2f} us each"
    return (
        text if theirs is None else f"{text}{theirs.wall_s / ours.wall_s:7.1f} x{theirs.cpu_s / ours.cpu_s:7.1f} x cpu"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="kernels per export")
    parser.add_argument("--ten-million", action="store_true", help="10 million kernels too (1.6 GB of disk)")
    parser.add_argument("--devices", type=int, default=1, help="GPUs of the one process")
    parser.add_argument("--patient", action="store_true", help="nsys on ten million too (5 minutes, 5 GiB of memory)")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each program up to 1 million kernels")
    parser.add_argument("--no-peer", action="store_true", help="leave nsys out")
    parser.add_argument("--keep", type=Path, help="where exports are put and kept; by default a temporary folder")
    parser.add_argument("--generate", nargs=3, metavar=("FILE", "KERNELS", "DEVICES"), help="only write one export")
    arguments = parser.parse_args()
    if arguments.generate:
        path, kernels, devices = arguments.generate
        print(f"\n{int(kernels):,} kernels, {devices} GPUs: {generate(Path(path), int(kernels), int(devices)):.1f} s")
        return
    sizes = [*arguments.sizes, *([TEN_MILLION] if arguments.ten_million else [])]
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="pgle-bench-") as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for kernels in sizes:
            measure(kernels, folder, arguments)


if __name__ == "__main__":
    main()
