import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "benchmarks" / "programs"

SMALL = {
    "fsdp": "--model-dim 64 --ff-dim 128 --heads 4 --length 32 --layers 1",
    "fsdp --scan": "--model-dim 64 --ff-dim 128 --heads 4 --length 32 --layers 2",
    "ring": "--contracting 64 --width 64 --matmuls 2",
    "moe": "--model-dim 64 --ff-dim 128 --tokens 256 --layers 1",
    "tensor": "--model-dim 64 --ff-dim 128 --length 32 --layers 1",
    "offload": "--model-dim 64 --batch 64",
    "overlap": "--big-rows 64 --small-rows 8 --width 32 --dim 64",
}


TOGETHER = """
import json, runpy, sys
from contextlib import redirect_stdout
for printed, words in json.load(sys.stdin).items():
    sys.argv = words[words[0] == "-m" :]
    with open(printed, "w") as file, redirect_stdout(file):
        if words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
"""
"""Programs one after the other, as each starts alone: jax is imported once."""


def command(workload: str, *arguments: str) -> list[str]:
    name, *flags = workload.split()
    program = PROGRAMS / f"{name}.py"
    where = [str(program)] if program.exists() else ["-m", "pgle.workloads", name]
    return [*where, *flags, *SMALL[workload].split(), *arguments]


def start(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    command = [sys.executable, *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, check=True, **options
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workloads")
    words = {
        str(folder / workload): command(workload, "--steps", "2") for workload in SMALL
    }
    start("-c", TOGETHER, input=json.dumps(words))
    return folder


@pytest.mark.parametrize("workload", SMALL)
def test_steps_are_printed(workload, ran):
    lines = [
        re.fullmatch(r"step (\d): (\d+\.\d+) s", line)
        for line in (ran / workload).read_text().splitlines()
    ]
    assert [line[1] for line in lines] == ["0", "1"]
    assert all(float(line[2]) > 0 for line in lines)


def test_compile_only_runs_nothing():
    done = start(*command("overlap", "--compile-only"))
    assert done.stdout == "compiled overlap_step\n"
