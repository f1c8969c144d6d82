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


def kernels(
    gap: float, count: int = N
) -> tuple[list[float], list[float], list[str], list[int]]:
    """`count` kernels of 10 µs on stream 7."""
    return (
        [i * (10 + gap) for i in range(count)],
        [10.0] * count,
        [f"k{i}" for i in range(count)],
        [7] * count,
    )


def naming(of: Trace, iterations: int | dict[str, int]) -> Naming:
    of_name = (
        iterations
        if isinstance(iterations, dict)
        else dict.fromkeys(of.instructions, iterations)
    )
    filed = tuple(Cost(name, 0.0, kind=likely_kind(name)) for name in of.instructions)
    times, count = tuple(of_name.get(name, 1) for name in of.instructions), len(filed)
    return Naming(
        np.arange(count, dtype=np.int32), filed, ("",) * count, times, ((),) * count
    )


KEPT = np.array([True])


def measured(
    of: Trace, kept: np.ndarray = KEPT, iterations: int = 1
) -> LaunchGaps | None:
    return measure_launch(of, 0, kept, naming(of, iterations))


def test_the_gap_between_kernels_is_measured() -> None:
    of = trace(*kernels(1.5))
    found = measured(of)
    assert found is not None
    assert (found.gap_us, found.origin, found.gaps) == (
        pytest.approx(1.5),
        Origin.MEASURED,
        N - 1,
    )


def test_an_interruption_is_no_launch_gap() -> None:
    starts, *rest = kernels(1.5)
    of = trace(
        [start + (500 if i > 12 else 0) for i, start in enumerate(starts)], *rest
    )
    found = measured(of)
    assert found is not None
    assert found.gap_us == pytest.approx(1.5)


def test_waiting_for_a_collective_is_no_launch_gap_and_its_start_tells_the_switch() -> (
    None
):
    starts, durations, names, streams = kernels(1.5)
    starts = [start + (8 if i > 12 else 0) for i, start in enumerate(starts)]
    begin = starts[12] + 10 + 4.0  # 4 µs after the kernel that it waited for
    of = trace(
        [*starts, begin],
        [*durations, 3.0],
        [*names, "all-gather-start"],
        [*streams, 20],
    )
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


def test_a_synchronous_collective_follows_kernels_of_its_own_stream_and_tells_no_switch() -> (
    None
):
    starts, durations, names, streams = kernels(1.5)
    found = measured(
        trace(starts, durations, [*names[:-1], "all-gather-start"], streams)
    )
    assert found is not None
    assert found.switch_us == LaunchGaps().switch_us


def test_kernels_that_wait_for_the_host_tell_no_gap() -> None:
    """Kernels of 1 µs every 3.8 µs, as the host launches them, then longer ones that follow each
    other after 1.5 µs.
    """
    starts, *rest = kernels(1.5)
    short = [-100.0 + 3.8 * number for number in range(20)]
    durations, names, streams = rest
    few = range(20)
    found = measured(
        trace(
            [*short, *starts],
            [*(1.0 for _ in few), *durations],
            [*(f"s{number}" for number in few), *names],
            [*(7 for _ in few), *streams],
        )
    )
    assert found is not None
    assert found.gap_us == pytest.approx(1.5, rel=0.01)


def test_ranks_that_start_a_step_apart_lengthen_it_by_as_much() -> None:
    """Two ranks, 30 µs apart, end the last collective together. Their clocks differ by a second."""
    first = trace([0.0, 100.0], [10.0, 50.0], ["k", "all-gather"], [7, 7])
    second = trace([0.0, 70.0], [10.0, 50.0], ["k", "all-gather"], [7, 7])
    of = replace(
        first,
        start_ns=np.append(first.start_ns, second.start_ns + 10**9),
        device=np.array([0, 0, 1, 1], np.int32),
        instance=np.arange(4, dtype=np.int32),
        devices=(Device("h:1", 0), Device("h:2", 1)),
        **{
            name: np.tile(getattr(first, name), 2)
            for name in (
                "duration_ns",
                "kind",
                "stream",
                "module",
                "instruction",
                "execution",
            )
        },
    )
    assert measured(of) == LaunchGaps(begin_us=30.0)
