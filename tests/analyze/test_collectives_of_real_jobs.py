"""Exposed time, waits and bandwidths of the real jobs are those of plain loops over their
activities and shapes.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest

from pgle.analyze.analysis import MeasuredStep
from pgle.schedule.simulate import Stream

FACTORS = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2}
JOBS = ["pax", "maxtext"]


def uncovered(start: float, end: float, compute: list[tuple[float, float]]) -> float:
    """The part of an interval in which none of some sorted ones lies, by walking along it."""
    at, lost = start, 0.0
    for low, high in compute:
        if high <= at:
            continue
        if low >= end:
            break
        lost += max(low - at, 0.0)
        at = max(at, high)
    return lost + max(end - at, 0.0)


@pytest.mark.parametrize("job", JOBS)
def test_exposed_time_of_each_collective(
    job: str, request: pytest.FixtureRequest
) -> None:
    step: MeasuredStep = request.getfixturevalue(job)
    exposed: dict[str, float] = defaultdict(float)
    for window in step.windows:
        rows = list(
            zip(
                window.rows.tolist(),
                window.start.tolist(),
                window.end.tolist(),
                window.stream.tolist(),
                strict=True,
            )
        )
        compute = sorted(
            (start, end) for _, start, end, stream in rows if stream == Stream.COMPUTE
        )
        for row, start, end, stream in rows:
            if (
                stream == Stream.COMMUNICATION
                and step.trace.module[row] == step.costs.program.index
            ):
                near = [span for span in compute if span[1] > start and span[0] < end]
                exposed[step.trace.instructions[step.trace.instruction[row]]] += (
                    uncovered(start, end, near)
                )
    found = {item.trace_name: item.exposed_us for item in step.collectives}
    assert found == pytest.approx(
        {name: ns / 1e3 / step.steps for name, ns in exposed.items()}, abs=1e-6
    )


@pytest.mark.parametrize("job", JOBS)
def test_bus_bandwidth_of_each_collective(
    job: str, request: pytest.FixtureRequest
) -> None:
    step: MeasuredStep = request.getfixturevalue(job)
    module = step.module
    assert module is not None
    seen = set()
    for item in step.collectives:
        if item.kind not in FACTORS or item.instruction is None:
            continue
        inner = module.wrapped(item.instruction) or item.instruction
        given = sum(
            module.instructions[name].shape.size_bytes for name in inner.operands
        )
        devices = 4
        size = given * devices if item.kind == "all-gather" else given
        assert item.link is not None
        assert item.link.group == devices
        expected = (
            FACTORS[item.kind] * size * (devices - 1) / devices / item.time_us / 1e3
        )
        assert item.bus_gb_s == pytest.approx(expected)
        seen.add(item.kind)
    assert seen == set(FACTORS)


@pytest.mark.parametrize("job", JOBS)
def test_overlap_is_what_is_not_exposed(
    job: str, request: pytest.FixtureRequest
) -> None:
    step: MeasuredStep = request.getfixturevalue(job)
    hidden = total = 0
    for window in step.windows:
        edges = sorted({*window.start.tolist(), *window.end.tolist()})
        spans = {
            stream: [
                (s, e)
                for s, e, kind in zip(
                    window.start.tolist(),
                    window.end.tolist(),
                    window.stream.tolist(),
                    strict=True,
                )
                if kind == stream
            ]
            for stream in (Stream.COMPUTE, Stream.COMMUNICATION)
        }
        active = dict.fromkeys(spans, 0)
        change: dict[float, list[tuple[Stream, int]]] = defaultdict(list)
        for stream, found in spans.items():
            for start, end in found:
                change[start].append((stream, 1))
                change[end].append((stream, -1))
        for low, high in itertools.pairwise(edges):
            for stream, by in change[low]:
                active[stream] += by
            if active[Stream.COMMUNICATION] > 0:
                total += round(high - low)
                hidden += round(high - low) if active[Stream.COMPUTE] > 0 else 0
    assert step.breakdown.overlap == pytest.approx(hidden / total, abs=1e-9)
