"""How long commands take on small inputs, against `python -c "import click"` and `python -c "import
click, numpy"`.

    python benchmarks/start_up.py [--repeat 15]

Each runs in a process of its own, all in turn; medians of wall and processor time, and the ratios
of the processor time to that of importing click, and click and numpy, with one thread of OpenBLAS
each. Bytecode is kept in a temporary folder, as `pip install` keeps it beside the modules.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TESTDATA = Path(__file__).parents[1] / "testdata"
PROFILE = "maxtext_pgle/llama2_70b_bf16_pgle_16vm.pbtxt"
OTHER = "maxtext_pgle/llama2_70b_bf16_pgle_128vm.pbtxt"

PLAIN = {name: ["-c", f"import {name}"] for name in ("click", "click, numpy")}
COMMANDS = (
    "--help",
    f"show {PROFILE}",
    f"diff {PROFILE} {OTHER}",
    f"verify {PROFILE} --hlo hlo/jax-0.12.0.1/async",
    "confirm maxtext_pgle/llama2_7b_pgle_run.log",
    "flags list",
    "flags explain xla_gpu_enable_latency_hiding_scheduler",
    "doctor",
    "predict hlo/jax-0.12.0.1/async",
    "report pax_fsdp4/proc0.sqlite --force -o PAGE",
    "convert nsys_synthetic/synthetic_cases.sqlite --force -o OUT",
    "convert pax_fsdp4/proc0.sqlite --force -o OUT",
    "compare pax_fsdp4/proc0.sqlite pax_fsdp4/proc3.sqlite",
)


def run(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[float, float]:
    """Wall and processor time of one process. A check that fails is none of our business here."""
    begin = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=TESTDATA,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(arguments)}: exit code {child.returncode}")
    return wall, usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=15, help="runs of each")
    arguments = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}"
    )
    with tempfile.TemporaryDirectory(prefix="pgle-bench-") as folder:
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != "PYTHONDONTWRITEBYTECODE"
        }
        environment |= {"PYTHONPYCACHEPREFIX": folder, "OPENBLAS_NUM_THREADS": "1"}
        outputs = {"OUT": f"{folder}/out.pbtxt", "PAGE": f"{folder}/page.html"}
        programs = {f"import {name}": words for name, words in PLAIN.items()}
        for text in COMMANDS:
            programs[f"pgle {text}"] = [
                "-m",
                "pgle",
                *(outputs.get(word, word) for word in text.split()),
            ]
        for words in programs.values():  # compiles the modules
            run(words, environment)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
        for _ in range(arguments.repeat):
            for name, words in programs.items():
                times[name].append(run(words, environment))
    medians = {
        name: [statistics.median(column) for column in zip(*found, strict=True)]
        for name, found in times.items()
    }
    for name, (wall, busy) in medians.items():
        short = " ".join(
            word for word in name.split()[:3] if "/" not in word and word != "--force"
        )
        ratios = (
            f"{busy / medians[plain][1]:7.1f} x {plain.removeprefix('import ')}"
            for plain in list(medians)[:2]
        )
        print(
            f"  {short:<22}{wall * 1e3:6.0f} ms{busy * 1e3:6.0f} ms cpu{''.join(ratios)}"
        )


if __name__ == "__main__":
    main()
