"""What XLA takes instructions without a cost for, and which conditions of loops it schedules."""

import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pgle.costs.profile.lookup import default_us, unscheduled_conditions
from pgle.xla.hlo.dumps import read_modules
from pgle.xla.hlo.module import Instruction, Shape
from pgle.xla.hlo.schedule_dump import LhsSchedule, read_schedule_dump


def test_assumed_costs_are_those_of_a_real_schedule_without_profile(
    dumps: Path,
) -> None:
    schedule = read_schedule_dump(dumps / "async" / "jit_step.schedule.pb.xz")
    compared = set()
    for computation in schedule.computations.values():
        for name, slot in computation.slots.items():
            instruction = schedule.module.instructions[name]
            if instruction.opcode in ("fusion", "copy", "custom-call"):
                assert (name, slot.cycles) == (
                    name,
                    default_us(schedule.module, instruction),
                )
                compared.add((instruction.opcode, instruction.fusion_kind))
    assert compared >= {
        ("fusion", "kLoop"),
        ("fusion", "kInput"),
        ("fusion", "kCustom"),
        ("copy", ""),
    }


def test_the_gpu_shows_in_the_name_of_the_dump(dumps: Path) -> None:
    (module,) = read_modules(dumps / "async")
    assert module.architecture is not None
    assert module.architecture.version == (8, 0)


def test_a_start_is_taken_for_five_milliseconds(dumps: Path) -> None:
    (module,) = read_modules(dumps / "async")
    start = Instruction("s", "all-reduce-start", Shape("f32"), module.entry)
    assert default_us(module, start) == 5000


@pytest.fixture(scope="module")
def conditions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Schedules of two loops, made by the installed XLA; see compile_conditions.py."""
    folder = tmp_path_factory.mktemp("conditions")
    targets = Path(__file__).parents[2] / "testdata/pax_fsdp4/proc0/dump"
    target = folder / "target.txt"
    target.write_bytes(
        lzma.decompress(
            next(targets.glob("module_0040*gpu_target_config.pbtxt.xz")).read_bytes()
        )
    )
    flags = (
        "--xla_gpu_enable_latency_hiding_scheduler=true --xla_dump_latency_hiding_schedule=true "
        f"--xla_dump_hlo_as_proto --xla_dump_to={folder}"
    )
    environment = {
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "XLA_FLAGS": flags,
    }
    script = Path(__file__).parent / "compile_conditions.py"
    subprocess.run(
        [sys.executable, script, folder, target],
        env=os.environ | environment,
        check=True,
    )
    return folder


def schedules(folder: Path, program: str) -> tuple[LhsSchedule, LhsSchedule]:
    """With a cheap and with a dear last fusion of the condition."""
    cheap, dear = (
        read_schedule_dump(folder / f"{program}.{cost}.schedule.pb")
        for cost in (1, 90000)
    )
    return cheap, dear


@pytest.mark.rehearse
@pytest.mark.slow
def test_no_schedule_asks_what_a_plain_condition_costs(conditions: Path) -> None:
    cheap, dear = schedules(conditions, "plain")
    assert cheap.computations == dear.computations
    assert cheap.module.instructions[
        "loop_and_fusion"
    ].computation in unscheduled_conditions(cheap.module)


@pytest.mark.rehearse
@pytest.mark.slow
def test_a_condition_with_a_collective_is_scheduled_like_a_body(
    conditions: Path,
) -> None:
    cheap, dear = schedules(conditions, "meeting")
    condition = dear.module.instructions["loop_and_fusion"].computation
    assert dear.computations[condition].slots["loop_and_fusion"].cycles == 90000
    assert cheap.computations != dear.computations
    assert condition not in unscheduled_conditions(dear.module)
