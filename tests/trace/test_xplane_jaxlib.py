"""Real traces: means over kernels agree with jaxlib's converter; means over launches differ where it is wrong.

`jax.experimental.profiler.get_profiled_instructions_proto` averages kernels over all modules, devices and executions.
That equals the cost of an instruction where each launch is one kernel and no other module uses the name.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from pgle.trace.table import Trace
from pgle.trace.xplane import read_xplane
from pgle.xla.protos import profiled_instructions_pb2

ROUNDING_US = 0.0005
"""Times are whole nanoseconds here."""

FILES = ["jax08_gemm", "jax_conv_minimal_08_tw003", "jax_conv_minimal_legacy"]


def jaxlib_costs(path: Path, folder: Path) -> dict[str, float]:
    profiler = pytest.importorskip("jax.experimental.profiler")
    shutil.copy(path, folder)
    proto = profiler.get_profiled_instructions_proto(str(folder))
    costs = profiled_instructions_pb2.ProfiledInstructionsProto.FromString(proto).costs
    return {cost.name: cost.cost_us for cost in costs}


def per_launch(trace: Trace, name: str) -> float:
    """Mean GPU time of the launches of an instruction, µs."""
    rows = trace.instruction == trace.instructions.index(name)
    return float(trace.duration_ns[rows].sum()) / len(np.unique(trace.instance[rows])) / 1000


@pytest.mark.parametrize("name", FILES)
def test_means_over_kernels_agree(testdata: Path, tmp_path: Path, name: str):
    path = testdata / "jax_xplane" / f"{name}.xplane.pb"
    trace = read_xplane([path])
    kernels = np.bincount(trace.instruction)
    means = np.bincount(trace.instruction, weights=trace.duration_ns) / kernels / 1000
    ours = dict(zip(trace.instructions, means.tolist(), strict=True))
    assert ours == pytest.approx(jaxlib_costs(path, tmp_path), abs=ROUNDING_US)


def test_launches_of_one_kernel_agree(testdata: Path, tmp_path: Path):
    path = testdata / "jax_xplane" / "jax_conv_minimal_08_tw003.xplane.pb"
    theirs, trace = jaxlib_costs(path, tmp_path), read_xplane([path])
    for name in ("input_transpose_fusion", "input_transpose_fusion.1", "loop_transpose_fusion"):
        assert per_launch(trace, name) == pytest.approx(theirs[name], abs=ROUNDING_US)


@pytest.mark.parametrize(
    ("file", "name"), [("jax_conv_minimal_08_tw003", "cudnn-conv.1"), ("jax_conv_minimal_legacy", "cudnn-conv.1.0")]
)
def test_an_instruction_of_two_kernels_costs_twice_what_jaxlib_says(
    testdata: Path, tmp_path: Path, file: str, name: str
):
    path = testdata / "jax_xplane" / f"{file}.xplane.pb"
    ratio = per_launch(read_xplane([path]), name) / jaxlib_costs(path, tmp_path)[name]
    assert ratio == pytest.approx(2, rel=0.02)  # the 8-GPU trace lost one kernel of 80


def test_equal_names_of_several_modules_are_one_mean_in_jaxlib(testdata: Path, tmp_path: Path):
    path = testdata / "jax_xplane" / "jax08_gemm.xplane.pb"
    trace = read_xplane([path])
    rows = trace.instruction == trace.instructions.index("custom-call.1")
    of_module = [trace.duration_ns[rows & (trace.module == m)].mean() / 1000 for m in np.unique(trace.module[rows])]
    assert len(of_module) == 5
    assert max(of_module) > 10 * min(of_module)
    assert min(of_module) < jaxlib_costs(path, tmp_path)["custom-call.1"] < max(of_module)
