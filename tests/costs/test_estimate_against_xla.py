"""Our estimates against XLA's own speed-of-light model, which it uses on Hopper where no profile is
given.
"""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from pgle.costs.estimate.estimate import estimator
from pgle.run.compiler.compile import CompileRequest, compile_once
from pgle.xla.hlo.schedule_dump import read_schedule_dump
from pgle.xla.instruction_kinds import kind_of
from pgle.xla.targets import find_hardware, load_target

RECORDED = (
    "0.12.0.1"
    if tuple(map(int, version("jax").split(".")[:2])) >= (0, 12)
    else "0.10.2"
)
pytestmark = pytest.mark.usefixtures("plugin_loaded_once")
PROGRAM = (
    Path(__file__).parents[2]
    / "testdata"
    / "stablehlo"
    / f"fsdp_mlp_jax_{RECORDED}.mlir"
)


@pytest.mark.rehearse
def test_plain_matmuls_cost_what_xla_believes_within_a_factor_of_two(
    tmp_path: Path,
) -> None:
    target = load_target("h100")
    compiled = compile_once(CompileRequest(PROGRAM, target.texts, tmp_path / "dump"))
    assert compiled.schedule is not None
    schedule = read_schedule_dump(compiled.schedule)
    entry = schedule.computations[schedule.module.entry]
    estimate = estimator(schedule.module, find_hardware(target))
    # Split-K matmuls (results of three dimensions here) are left out: without a device nothing is
    # autotuned, and for the default tiles of 16 x 8 XLA believes up to forty times their roofline.
    matmuls = {
        name
        for name, item in schedule.module.instructions.items()
        if kind_of(schedule.module, item) == "matmul"
        and len(item.shape.dimensions) == 2
    }
    pairs = [
        (estimate(schedule.module.instructions[name]), slot.cycles)
        for name, slot in entry.slots.items()
        if name in matmuls
    ]
    ours, theirs = np.array(pairs).T
    assert len(pairs) >= 3
    assert 0.5 < np.median(ours / theirs) < 2


STATED = """HloModule jit_step, num_partitions=4

ENTRY main {
  x = f32[1048576]{0} parameter(0)
  a = bf16[4096,4096]{1,0} parameter(1)
  g = f32[4194304]{0} all-gather(x), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}, use_global_device_ids=true
  c = bf16[4096,4096]{1,0} custom-call(a), custom_call_target="mine", api_version=API_VERSION_TYPED_FFI, frontend_attributes={latency_metadata="777000"}
  m = f32[4194304]{0} negate(g)
  ROOT r = (f32[4194304]{0}, bf16[4096,4096]{1,0}) tuple(m, c)
}
"""  # noqa: E501


@pytest.mark.rehearse
@pytest.mark.parametrize("gpu", ["h100", "a100"])
def test_what_a_program_states_of_a_custom_call_is_what_xla_believes(
    tmp_path: Path, gpu: str
) -> None:
    (tmp_path / "stated.hlo").write_text(STATED)
    flags = ("--xla_gpu_enable_latency_hiding_scheduler=true",)
    target = load_target(gpu)
    compiled = compile_once(
        CompileRequest(
            tmp_path / "stated.hlo", target.texts, tmp_path / "dump", flags=flags
        )
    )
    assert compiled.schedule is not None
    schedule = read_schedule_dump(compiled.schedule)
    entry = schedule.computations[schedule.module.entry]
    assert entry.slots["c"].cycles == pytest.approx(777)
    assert (
        estimator(schedule.module, find_hardware(target))(
            schedule.module.instructions["c"]
        )
        == 777
    )
