"""Real traces: means over kernels agree with jaxlib's converter; means over launches differ where
it is wrong.

`jax.experimental.profiler.get_profiled_instructions_proto` averages kernels over all modules,
devices and executions. That equals the cost of an instruction where each launch is one kernel and
no other module uses the name.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import jaxlib
import numpy as np
import pytest

from pgle.trace.table import Trace
from pgle.trace.xplane.read import read_xplane
from pgle.xla.protos import profiled_instructions_pb2, xplane_pb2

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
    return (
        float(trace.duration_ns[rows].sum())
        / len(np.unique(trace.instance[rows]))
        / 1000
    )


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
    for name in (
        "input_transpose_fusion",
        "input_transpose_fusion.1",
        "loop_transpose_fusion",
    ):
        assert per_launch(trace, name) == pytest.approx(theirs[name], abs=ROUNDING_US)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("jax_conv_minimal_08_tw003", "cudnn-conv.1"),
        ("jax_conv_minimal_legacy", "cudnn-conv.1.0"),
    ],
)
def test_an_instruction_of_two_kernels_costs_twice_what_jaxlib_says(
    testdata: Path, tmp_path: Path, file: str, name: str
):
    path = testdata / "jax_xplane" / f"{file}.xplane.pb"
    ratio = per_launch(read_xplane([path]), name) / jaxlib_costs(path, tmp_path)[name]
    assert ratio == pytest.approx(2, rel=0.02)  # the 8-GPU trace lost one kernel of 80


def test_equal_names_of_several_modules_are_one_mean_in_jaxlib(
    testdata: Path, tmp_path: Path
):
    path = testdata / "jax_xplane" / "jax08_gemm.xplane.pb"
    trace = read_xplane([path])
    rows = trace.instruction == trace.instructions.index("custom-call.1")
    of_module = [
        trace.duration_ns[rows & (trace.module == m)].mean() / 1000
        for m in np.unique(trace.module[rows])
    ]
    assert len(of_module) == 5
    assert max(of_module) > 10 * min(of_module)
    assert (
        min(of_module) < jaxlib_costs(path, tmp_path)["custom-call.1"] < max(of_module)
    )


def hand_made(folder: Path, planes: dict[str, dict[str, tuple[int, int]]]) -> Path:
    """A file of planes and lines with one event (start µs, duration µs) of instruction ``fusion``
    each.
    """
    space = xplane_pb2.XSpace()
    for plane_name, lines in planes.items():
        plane = space.planes.add(name=plane_name)
        for key, stat_name in enumerate(("", "hlo_op", "hlo_module")):
            plane.stat_metadata[key].CopyFrom(
                xplane_pb2.XStatMetadata(id=key, name=stat_name)
            )
        plane.event_metadata[1].id = 1
        for line_name, (start, duration) in lines.items():
            event = plane.lines.add(name=line_name).events.add(metadata_id=1)
            event.offset_ps, event.duration_ps = start * 1_000_000, duration * 1_000_000
            event.stats.add(metadata_id=1, str_value="fusion")
            event.stats.add(metadata_id=2, str_value="jit_step")
    path = folder / "made.xplane.pb"
    path.write_bytes(space.SerializeToString())
    return path


def test_lines_that_repeat_the_streams_count_double_in_jaxlib(tmp_path: Path):
    (tmp_path / "run").mkdir()
    path = hand_made(
        tmp_path,
        {"/device:GPU:0": {"Stream #1(Kernel)": (0, 10), "XLA Modules": (50, 100)}},
    )
    assert jaxlib_costs(path, tmp_path / "run") == pytest.approx({"fusion": 55.0})
    assert read_xplane([path]).duration_ns.tolist() == [10_000]


def test_equal_starts_of_two_devices_are_one_span_in_jaxlib_from_0_12(tmp_path: Path):
    (tmp_path / "run").mkdir()
    path = hand_made(
        tmp_path,
        {f"/device:GPU:{i}": {"Stream #1(Kernel)": (5, 10 + 20 * i)} for i in range(2)},
    )
    merged = tuple(map(int, jaxlib.__version__.split(".")[:2])) >= (0, 12)
    assert jaxlib_costs(path, tmp_path / "run") == pytest.approx(
        {"fusion": 30.0 if merged else 20.0}
    )
    assert read_xplane([path]).duration_ns.tolist() == [10_000, 30_000]


def test_the_cpu_backend_gives_nothing_in_jaxlib(testdata: Path, tmp_path: Path):
    path = testdata / "jax_xplane" / "cpu_4dev_jax_0_12_0.xplane.pb"
    assert jaxlib_costs(path, tmp_path) == {}
    assert len(read_xplane([path])) == 288
