"""Launch gaps on small traces: what counts as one, and what is a wait."""

from dataclasses import replace

import numpy as np
import pytest

from pgle.costs.measure.contention import MIN_GAPS, LaunchGaps, measure_launch
from pgle.costs.profile.lookup import Naming
from pgle.costs.profile.value import Cost, Origin, likely_kind
from pgle.trace.table import Device, ModuleKey, Trace

N = MIN_GAPS + 10


def trace(
    starts: list[float], durations: list[float], names: list[str], streams: list[int]
) -> Trace:
    order = np.argsort(starts, kind="stable")
    codes = {name: code for code, name in enumerate(dict.fromkeys(names))}
    n = len(starts)
    return Trace(
        start_ns=(np.array(starts)[order] * 1e3).astype(np.int64),
        duration_ns=(np.array(durations)[order] * 1e3).astype(np.int64),
        kind=np.zeros(n, np.uint8),
        device=np.zeros(n, np.int32),
        stream=np.array(streams, np.int32)[order],
        module=np.zeros(n, np.int32),
        instruction=np.array([codes[name] for name in names], np.int32)[order],
        execution=np.zeros(n, np.int32),
        instance=np.arange(n, dtype=np.int32),
        modules=(ModuleKey("m", 1),),
        instructions=tuple(codes),
        devices=(Device("h:1", 0),),
    )


def kernels(gap: float, count: int = N) -> tuple[list[float], list[float], list[str], list[int]]:
    """`count` kernels of 10 µs on stream 7."""
    return (
        [i * (10 + gap) for i in range(count)],
        [10.0] * count,
        [f"k{i}" for i in range(count)],
        [7] * count,
    )


def naming(of: Trace, iterations: int | dict[str, int]) -> Naming:
    of_name = (
        iterations if isinstance(iterations, dict) else dict.fromkeys(of.instructions, iterations)
    )
    filed = tuple(Cost(name, 0.0, kind=likely_kind(name)) for name in of.instructions)
    times, count = tuple(of_name.get(name, 1) for name in of.instructions), len(filed)
    return Naming(np.arange(count, dtype=np.int32), filed, ("",) * count, times, ((),) * count)


KEPT = np.array([True])


def measured(of: Trace, kept: np.ndarray = KEPT, iterations: int = 1) -> LaunchGaps | None:
    return measure_launch(of, 0, kept, naming(of, iterations))


def test_the_gap_between_kernels_is_measured() -> None:
    of = trace(*kernels(1.5))
    found = measured(of)
    assert found is not None
    assert (found.gap_us, found.origin, found.gaps) == (pytest.approx(1.5), Origin.MEASURED, N - 1)


def test_an_interruption_is_no_launch_gap() -> None:
    starts, *rest = kernels(1.5)
    of = trace([start + (500 if i > 12 else 0) for i, start in enumerate(starts)], *rest)
    found = measured(of)
    assert found is not None
    assert found.gap_us == pytest.approx(1.5)


def test_waiting_for_a_collective_is_no_launch_gap_and_its_start_tells_the_switch() -> None:
    starts, durations, names, streams = kernels(1.5)
    starts = [start + (8 if i > 12 else 0) for i, start in enumerate(starts)]
    begin = starts[12] + 10 + 4.0  # 4 µs after the kernel that it waited for
    of = trace([*starts, begin], [*durations, 3.0], [*names, "all-gather-start"], [*streams, 20])
    found = measured(of)
    assert found is not None
    assert found.gap_us == pytest.approx(1.5)
    assert found.switch_us == pytest.approx(4.0)


def test_kernels_of_one_launch_have_no_gap_but_several_launches_are_counted() -> None:
    starts, durations, names, streams = kernels(1.5)
    of = trace(starts, durations, ["k0", "k0", *names[2:]], streams)
    found = measured(of)
    assert found is not None
    assert dict(found.kernels) == {"k0": 2.0}
    joined = replace(of, instance=np.maximum(of.instance, 1))
    again = measured(joined)
    assert again is not None
    assert (again.gaps, dict(again.kernels)) == (N - 2, {})


@pytest.mark.parametrize(
    ("iterations", "launches"), [(1, {"k0": 4.0}), (2, {"k0": 2.0}), (4, {}), (0, {})]
)
def test_iterations_of_a_loop_are_runs_and_not_launches_of_one(
    iterations: int, launches: dict[str, float]
) -> None:
    starts, durations, names, streams = kernels(1.5)
    of = trace(starts, durations, [*["k0"] * 4, *names[4:]], streams)
    found = measure_launch(of, 0, KEPT, naming(of, {"k0": iterations}))
    assert found is not None
    assert dict(found.kernels) == launches


def test_few_kernels_say_nothing() -> None:
    of = trace(*kernels(1.5, 5))
    assert measured(of) is None


def test_dropped_executions_are_not_looked_at() -> None:
    of = trace(*kernels(1.5))
    assert measured(of, np.array([False])) is None
