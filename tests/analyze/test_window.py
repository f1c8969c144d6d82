"""The parts of a step add up to it, exactly, and are what a sweep over all edges finds."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgle.analyze.analysis import MeasuredStep, measure_step
from pgle.analyze.window import DeviceWindow
from pgle.costs.measure.measured import AggregateOptions, aggregate, find_programs
from pgle.trace.table import ActivityKind, ModuleKey, Trace
from pgle.xla.hlo.module import Instruction, Module
from tests.analyze.conftest import SIDE, Run, made, repeated

NAMES = ("fusion.1", "all-gather-start.1", "copy-start.1", "dot.3")


ACTIVITIES = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.integers(0, 5000),
        st.integers(1, 3000),
        st.sampled_from([ActivityKind.KERNEL, ActivityKind.MEMCPY]),
    ),
    min_size=1,
    max_size=8,
)
STEPS = st.lists(st.tuples(st.integers(0, 4000), ACTIVITIES), min_size=1, max_size=3)
"""Executions that follow each other: time between them, and (name, start, time, kind)."""


def laid_out(
    devices: list[list[tuple[int, list[tuple[str, int, int, ActivityKind]]]]],
) -> Trace:
    """Devices as a trace; each starts its clock somewhere else."""
    steps = []
    for device, executions in enumerate(devices):
        clock = 10**9 * device
        for number, (later, activities) in enumerate(executions):
            clock += later
            runs = [
                Run(name, clock + start, time, kind=kind)
                for name, start, time, kind in activities
            ]
            steps.append((device, number, runs))
            clock = int(max(run.start + run.time for run in runs))
    return made(steps)


def sweep(
    step: MeasuredStep, window: DeviceWindow, stream_of: Callable[[int], int]
) -> dict[str, int]:
    """The parts by another way: what runs between any two edges of what a device ran.

    Args:
        step: its trace is used, nothing else.
        window: its device and the numbers of its executions are used, nothing else.
        stream_of: what a row of the trace is: 0 compute, 1 communication, 2 a copy.
    """
    trace, main = step.trace, step.costs.program.index
    device = window.device
    of_main = (trace.device == device) & (trace.module == main)
    used = of_main & np.isin(trace.execution, window.numbers)
    begin, end = int(trace.start_ns[used].min()), int(trace.end_ns[used].max())
    events = []
    for row in np.flatnonzero(
        (trace.device == device) & (trace.start_ns < end) & (trace.end_ns > begin)
    ).tolist():
        kind = stream_of(row)
        events += [
            (max(int(trace.start_ns[row]), begin), 1, kind),
            (min(int(trace.end_ns[row]), end), -1, kind),
        ]
    running, clock, total = [0, 0, 0], begin, [0, 0, 0, 0]
    for time, change, kind in sorted(events):
        total[next((part for part in range(3) if running[part]), 3)] += time - clock
        clock = time
        running[kind] += change
    assert clock == end
    names = ("compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")
    return dict(zip(names, total, strict=True))


def assert_adds_up(window: DeviceWindow) -> None:
    parts = window.parts_ns
    assert parts["window_ns"] == round(window.length)
    names = ("compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns")
    assert sum(parts[name] for name in names) == parts["window_ns"]
    names = ("launch_gaps_ns", "waits_ns", "long_waits_ns", "between_steps_ns")
    assert sum(parts[name] for name in names) == parts["idle_ns"]


def found_in(window: DeviceWindow, names: Iterable[str]) -> dict[str, int]:
    return {name: window.parts_ns[name] for name in names}


@given(st.lists(STEPS, min_size=1, max_size=2))
def test_the_parts_add_up_on_any_trace_and_are_those_of_a_sweep(devices):
    trace = laid_out(devices)
    program = find_programs(trace, [])[0]
    step = measure_step(trace, aggregate(trace, [program], AggregateOptions())[0])

    def stream_of(row: int) -> int:
        name = step.trace.instructions[step.trace.instruction[row]]
        if name.startswith("all-gather"):
            return 1
        return (
            2
            if name.startswith("copy") or step.trace.kind[row] == ActivityKind.MEMCPY
            else 0
        )

    for window in step.windows:
        assert_adds_up(window)
        expected = sweep(step, window, stream_of)
        assert found_in(window, expected) == expected


@pytest.mark.parametrize("job", ["pax", "maxtext"])
def test_the_parts_of_a_real_step_add_up_and_are_those_of_a_sweep(job, request):
    step = request.getfixturevalue(job)
    opcodes = {
        "all-gather",
        "all-reduce",
        "reduce-scatter",
        "collective-permute",
        "all-to-all",
    }
    communicates = {
        item.name
        for item in step.module.walk()
        if opcode_of(step.module, item) in opcodes
    }

    def stream_of(row: int) -> int:
        return int(step.trace.instructions[step.trace.instruction[row]] in communicates)

    for window in step.windows:
        assert_adds_up(window)
        expected = sweep(step, window, stream_of)
        assert found_in(window, expected) == expected


def opcode_of(module: Module, item: Instruction) -> str:
    return (module.wrapped(item) or item).opcode.removesuffix("-start")


def test_time_between_steps_is_idle_of_its_own(measured):
    step = measured(repeated(Run("fusion", 0, 8000), every=10_000))
    assert [window.parts_ns["between_steps_ns"] for window in step.windows] == [
        3 * 2_000_000
    ] * 2


def test_a_step_lasts_from_its_start_to_that_of_the_next(measured):
    parts = measured(repeated(Run("fusion", 0, 8000), every=10_000)).breakdown
    assert (parts.step_us, parts.compute_us, parts.idle_us) == pytest.approx(
        (10_000, 8000, 2000)
    )


def test_what_another_program_computes_between_steps_is_compute(measured):
    """As the learning rate of the 4 × H100 job: 69.44 µs on device 0 that no kernel of the step's
    takes.
    """
    trace = repeated(Run("fusion", 0, 100), Run("cosine", 150, 20), every=200, steps=3)
    other = (trace.instruction == trace.instructions.index("cosine")).astype(np.int32)
    step = measured(
        replace(
            trace, module=other, modules=(*trace.modules, ModuleKey("jit_cosine", 2))
        )
    )
    parts = step.breakdown
    assert (parts.step_us, parts.compute_us, parts.idle_us) == pytest.approx(
        (200, 120, 80)
    )


def test_the_pause_after_a_step_alone_is_not_known(measured):
    step = measured(repeated(Run("fusion", 0, 8000), every=10_000, steps=1))
    assert (step.step_us, step.idle_us["between steps"]) == (pytest.approx(8000), 0)


def test_a_collective_under_compute_is_not_exposed(measured):
    step = measured(
        repeated(
            Run("fusion", 0, 100), Run("all-gather-start", 20, 130, SIDE), every=150
        )
    )
    assert step.breakdown.exposed_communication_us == pytest.approx(50)
    assert step.breakdown.communication_us == pytest.approx(130)


def test_idle_time_while_xla_compiles_is_known_as_that(
    measured: Callable[..., MeasuredStep],
) -> None:
    trace = repeated(Run("fusion.1", 0, 100), every=1000, steps=3)
    times = (
        np.array([[150, 450], [1080, 1180], [9000, 9900]], np.int64) * 1000
    )  # the last is after the window
    step = measured(replace(trace, compiling={"host:1": times}))
    assert [window.parts_ns["compile_ns"] for window in step.windows] == [
        380_000,
        380_000,
    ]
    assert step.idle_us["while compiling"] == pytest.approx(380 / 2)
    assert step.idle_us["between steps"] == pytest.approx(900)


def test_a_trace_has_more_names_than_two_bytes_can_number(
    measured: Callable[..., MeasuredStep],
) -> None:
    trace = repeated(Run("fusion.1", 0, 4000), Run("dot.3", 5000, 2000))
    unused = (f"unused.{number}" for number in range(2**15))
    many = replace(
        trace,
        module=trace.module.astype(np.int16),  # as readers store few modules
        instructions=(*trace.instructions, *unused),
    )
    assert measured(many).parts.rows == measured(trace).parts.rows
