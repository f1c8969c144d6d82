import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / "benchmarks" / "programs"

SMALL = {
    "fsdp": "--model-dim 64 --ff-dim 128 --heads 4 --length 32 --layers 2",
    "fsdp --scan": "--model-dim 64 --ff-dim 128 --heads 4 --length 32 --layers 2",
    "ring": "--contracting 64 --width 64 --matmuls 2",
    "moe": "--model-dim 64 --ff-dim 128 --tokens 256 --layers 2",
    "tensor": "--model-dim 64 --ff-dim 128 --length 32 --layers 2",
    "offload": "--model-dim 64 --batch 64",
    "overlap": "--big-rows 64 --small-rows 8 --width 32 --dim 64",
}


def run(workload: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    module, *flags = workload.split()
    program = PROGRAMS / f"{module}.py"
    where = [str(program)] if program.exists() else ["-m", "pgle.workloads", module]
    command = [sys.executable, *where, *flags, *SMALL[workload].split(), *arguments]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=True)


@pytest.mark.parametrize("workload", SMALL)
def test_steps_are_printed_and_recorded(workload, tmp_path):
    record = tmp_path / "steps.jsonl"
    done = run(workload, "--steps", "2", "--record", str(record))
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["step 0", "step 1"]
    steps = [json.loads(line) for line in record.read_text().splitlines()]
    assert [item["step"] for item in steps] == [0, 1]
    assert all(item["step_time_s"] > 0 for item in steps)


def test_compile_only_runs_nothing(tmp_path):
    done = run("overlap", "--compile-only")
    assert done.stdout == "compiled overlap_step\n"


def test_the_offload_module_left_for_a_rehearsal_places_activations_on_the_host(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_DUMP_IR_TO", str(tmp_path))
    assert run("offload", "--compile-only").stdout == "lowered offload_step for cuda\n"
    (module,) = tmp_path.glob("jax_ir*_compile.mlir")
    assert "pinned_host" in module.read_text()
