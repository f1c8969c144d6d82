"""The reader against a real run, and against what nsys's own reports say of a hand-made one."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from pgle.trace.nsys.read import read_nsys
from pgle.trace.table import Device, ModuleKey, Trace

STEP = ModuleKey("pjit__wrapped_step_fn", 40)


@pytest.fixture(scope="module")
def pax() -> dict[int, Trace]:
    folder = Path(__file__).parents[2] / "testdata" / "pax_fsdp4"
    return {rank: read_nsys(folder / f"proc{rank}.sqlite") for rank in (0, 3)}


@pytest.fixture(scope="module")
def synthetic() -> Trace:
    return read_nsys(
        Path(__file__).parents[2]
        / "testdata"
        / "nsys_synthetic"
        / "synthetic_cases.sqlite"
    )


def spans(trace: Trace, instruction: str, module: ModuleKey) -> list[int]:
    """First start to last end of each launch of an instruction, in ns."""
    number = trace.instructions.index(instruction)
    chosen = (trace.instruction == number) & (
        trace.module == trace.modules.index(module)
    )
    found: dict[int, list[int]] = defaultdict(list)
    for at in np.flatnonzero(chosen):
        found[int(trace.instance[at])] += [
            int(trace.start_ns[at]),
            int(trace.end_ns[at]),
        ]
    return [max(ends) - min(ends) for ends in found.values()]


# counts of testdata/pax_fsdp4/README.md, made by other tools


def test_thunks_with_a_program_id(pax: dict[int, Trace]) -> None:
    assert len(set(pax[0].instance.tolist())) == 13_519


@pytest.mark.parametrize("rank", [0, 3])
def test_five_executions_of_the_step_of_2661_activities_each(
    pax: dict[int, Trace], rank: int
) -> None:
    trace = pax[rank]
    step = trace.module == trace.modules.index(STEP)
    assert Counter(trace.execution[step].tolist()) == dict.fromkeys(range(5), 2661)
    thunks = [
        len(set(trace.instance[step & (trace.execution == number)].tolist()))
        for number in range(5)
    ]
    assert thunks == [2610] * 5


@pytest.mark.parametrize("rank", [0, 3])
def test_autotuning_is_all_that_is_left_out(pax: dict[int, Trace], rank: int) -> None:
    assert {entry.reason: entry.count for entry in pax[rank].unresolved} == {
        "autotuner": 312
    }


def test_the_ranks_are_told_apart(pax: dict[int, Trace]) -> None:
    assert pax[0].devices == (Device("proc0:215733", 0, 0),)
    assert pax[3].devices == (Device("proc3:215670", 0, 3),)


def test_the_mean_over_all_executions_is_that_of_the_readme(
    pax: dict[int, Trace],
) -> None:
    assert np.mean(spans(pax[3], "all-gather-start.2", STEP)) / 1000 == pytest.approx(
        1_172_483, abs=1
    )


@pytest.mark.parametrize(
    ("instruction", "cost_us"),
    [
        ("loop_add_fusion.1", [10]),
        ("cudnn-conv.2", [451]),
        ("cub-sort.3", [81.5]),
        ("copy.4", [500]),
        ("input_scatter_fusion.5", [35.5]),
        ("loop_body_fusion.9", [40]),
        ("gemm.10", [200]),
        ("all-gather-start.7", [1000, 5000]),
        ("loop_mul_fusion.20", [70]),
        ("loop_sub_fusion.21", [90]),
        ("new_style.30", [12]),
    ],
)
def test_known_costs(synthetic: Trace, instruction: str, cost_us: list[float]) -> None:
    found = [
        span / 1000 for span in spans(synthetic, instruction, ModuleKey("jit_f", 3))
    ]
    # the very first kernel of each device is a slow one
    assert (
        sorted(set(found) - ({100} if instruction == "loop_add_fusion.1" else set()))
        == cost_us
    )


def test_an_instruction_of_two_modules_is_two(synthetic: Trace) -> None:
    assert spans(synthetic, "loop_add_fusion.1", ModuleKey("jit_g", 5)) == [
        900_000,
        900_000,
    ]


def test_projected_ranges_agree_with_nsys(synthetic: Trace, testdata: Path) -> None:
    """nsys's nvtx_gpu_proj_trace is right for thunks without other ranges or graphs inside."""
    expected: Counter[tuple[str, int, int, int]] = Counter()
    with (testdata / "nsys_synthetic/nvtx_gpu_proj_trace.csv").open() as file:
        for row in csv.DictReader(file):
            name = (
                row["Name"]
                .removeprefix("TSL:Thunk:#hlo_op=")
                .partition(",")[0]
                .rstrip("#")
            )
            if (
                row["Name"].startswith("TSL:Thunk")
                and row["NumChild"] == "0"
                and name != "command_buffer_1"
            ):
                start, duration = (
                    int(row["Projected Start:ts_ns"]),
                    int(row["Projected Duration:dur_ns"]),
                )
                expected[name, start, duration, int(row["NumGPUOps"])] += 1
    launches = defaultdict(list)
    for at in range(len(synthetic)):
        launches[int(synthetic.instance[at])].append(at)
    found: Counter[tuple[str, int, int, int]] = Counter()
    for members in launches.values():
        name = synthetic.instructions[synthetic.instruction[members[0]]]
        start = int(synthetic.start_ns[members].min())
        found[
            name, start, int(synthetic.end_ns[members].max()) - start, len(members)
        ] += 1
    graph = {"loop_mul_fusion.20", "loop_sub_fusion.21"}
    assert {
        key: count for key, count in found.items() if key[0] not in graph
    } == expected
