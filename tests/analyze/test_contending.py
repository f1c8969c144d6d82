"""Copies next to which kernels take longer than without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.rules import find_findings
from pgle.trace.table import ActivityKind, LeftOutReason, OtherWork, Trace
from tests.analyze.conftest import SIDE, Run, made

Measure = Callable[..., MeasuredStep]
KERNELS = 20  # of a step
KERNEL_US = 100.0


def job(
    slowed: dict[int, float], *, kind: ActivityKind = ActivityKind.MEMCPY, own: bool
) -> Trace:
    """Six steps on two devices; in some a copy runs next to the first half of the kernels.

    Args:
        slowed: by step with a copy, the factor by which it slows them.
        own: the copy is an instruction of the program, else it belongs to none.
    """
    steps = []
    copies = []
    clock = 0.0
    for number in range(6):
        begin = clock
        runs = []
        for place in range(KERNELS):
            factor = slowed.get(number, 1.0) if place < KERNELS / 2 else 1.0
            took = KERNEL_US * factor
            runs.append(Run(f"fusion.{place}", clock, took))
            clock += took
        if number in slowed:
            length = KERNEL_US * slowed[number] * KERNELS / 2
            copies.append((begin, length))
            if own:
                runs.append(Run("copy.1", begin, length, SIDE, kind))
        steps += [(device, number, runs) for device in range(2)]
        clock += 10
    trace = made(steps)
    if own:
        return trace
    start, length = np.array(copies * 2).T
    device = np.repeat([0, 1], len(copies)).astype(np.int16)
    start_ns = (start * 1e3).astype(np.int64)
    duration_ns = (length * 1e3).astype(np.int64)
    other = OtherWork(
        start_ns=start_ns,
        duration_ns=duration_ns,
        device=device,
        stream=np.full(len(device), 9, np.int16),
        kind=np.full(len(device), kind, np.uint8),
        reason=np.full(len(device), LeftOutReason.NO_RANGE, np.uint8),
    )
    return replace(trace, other=other)


@pytest.mark.parametrize("kind", [ActivityKind.MEMCPY, ActivityKind.MEMSET])
def test_a_copy_of_no_instruction_is_named_with_what_it_costs(
    kind: ActivityKind, measured: Measure
) -> None:
    step = measured(job({2: 1.5, 4: 1.5}, kind=kind, own=False))
    (found,) = step.contention
    planted = 2 * 0.5 * KERNEL_US * KERNELS / 2 / 6
    assert found.name == "copies outside of instructions"
    assert (found.us, found.ratio) == (pytest.approx(planted), pytest.approx(1.5))
    assert found.executions == (2, 4)
    assert "contending-copies" in {one.id for one in find_findings(step)}


def test_a_copy_of_the_program_has_its_own_name(measured: Measure) -> None:
    (found,) = measured(job({3: 1.3}, own=True)).contention
    assert found.name == "copy.1"
    assert found.copied_us == pytest.approx(1.3 * KERNEL_US * KERNELS / 2 / 6)


def test_a_copy_that_slows_nothing_is_no_finding(measured: Measure) -> None:
    step = measured(job({2: 1.0, 4: 1.0}, own=False))
    assert step.contention == ()


def test_copies_in_every_step_tell_nothing(measured: Measure) -> None:
    step = measured(job(dict.fromkeys(range(6), 1.5), own=False))
    assert step.contention == ()
