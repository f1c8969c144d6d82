"""A late rank starts a collective late; a slow link makes it longer after all have started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.collectives import MeasuredCollective
from pgle.analyze.rules import find_findings
from pgle.analyze.slow_links import _neighbours
from pgle.trace.table import Device, Trace
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.text import module_from_text
from tests.analyze.conftest import SIDE, Run, made

Measure = Callable[..., MeasuredStep]
COLLECTIVE = 1000.0  # µs, of each when nothing is slow
BETWEEN = 4000.0  # µs of compute before each


def hlo(kind: str, groups: str) -> Module:
    """Two collectives of a kind, each behind a fusion, on four devices."""
    text = f"""HloModule jit_step, is_scheduled=true, num_partitions=4

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}}

ENTRY main {{
  p = f32[1048576]{{0}} parameter(0)
  negate.1 = f32[1048576]{{0}} negate(p)
  coll.1 = f32[1048576]{{0}} {kind}(negate.1), channel_id=1, {groups}
  negate.2 = f32[1048576]{{0}} negate(coll.1)
  ROOT coll.2 = f32[1048576]{{0}} {kind}(negate.2), channel_id=2, {groups}
}}
"""
    return module_from_text(text.encode(), "module.txt", program_id=1)


REDUCE = "use_global_device_ids=true, to_apply=add, replica_groups="
ALL = hlo("all-reduce", f"{REDUCE}{{{{0,1,2,3}}}}")
PAIRS = hlo("all-reduce", f"{REDUCE}{{{{0,1}},{{2,3}}}}")
RING = hlo("collective-permute", "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}")


def job(
    groups: Sequence[Sequence[int]],
    *,
    late: Sequence[float] = (0, 0, 0, 0),
    slow: Sequence[float] = (0, 0, 0, 0),
    steps: int = 5,
) -> Trace:
    """Steps of four devices: compute, a collective, compute, a collective.

    Args:
        groups: the devices that wait for each other.
        late: µs that each device computes longer before the first collective.
        slow: µs that the first collective takes longer on each, once all of its group started.
    """
    rows = []
    clock = np.zeros(4)
    for number in range(steps):
        runs: list[list[Run]] = [[] for _ in range(4)]
        for place in (1, 2):
            compute = BETWEEN + np.array(late) * (place == 1)
            transfer = COLLECTIVE + np.array(slow) * (place == 1)
            start = clock + compute + 2
            for device in range(4):
                begin = clock[device] + 1
                runs[device].append(Run(f"negate.{place}", begin, compute[device]))
            for group in groups:
                members = list(group)
                end = start[members].max() + transfer[members]
                for device, until in zip(members, end, strict=True):
                    took = until - start[device]
                    runs[device].append(Run(f"coll.{place}", start[device], took, SIDE))
                    clock[device] = until
        rows += [(device, number, runs[device]) for device in range(4)]
    return made(rows)


EVERY = ((0, 1, 2, 3),)
TWO = ((0, 1), (2, 3))


def ids(step: MeasuredStep) -> set[str]:
    return {one.id for one in find_findings(step)} & {"rank-skew", "slow-link"}


def test_a_late_rank_is_no_slow_link(measured: Measure) -> None:
    step = measured(job(EVERY, late=(0, 0, 800, 0)), ALL)
    assert step.slow_links == ()
    assert step.late.devices[0] == (2, pytest.approx(800), 5)


def test_a_slow_pair_of_one_group_is_no_late_rank(measured: Measure) -> None:
    step = measured(job(EVERY, slow=(0, 0, 800, 800)), ALL)
    (link,) = step.slow_links
    assert (link.name, link.devices) == ("coll.1", (2, 3))
    assert (link.us, link.each_us, link.usual_us) == pytest.approx((800, 1800, 1000))
    assert step.late.us == pytest.approx(0, abs=1)
    assert ids(step) == {"slow-link"}


def test_a_slow_group_is_held_against_the_equal_one(measured: Measure) -> None:
    trace = job(TWO, slow=(900, 900, 0, 0))
    (link,) = measured(trace, PAIRS).slow_links
    assert (link.devices, link.us) == ((0, 1), pytest.approx(900))


def test_without_hlo_the_pair_is_found_too(measured: Measure) -> None:
    trace = job(EVERY, slow=(0, 800, 800, 0))
    names = tuple(name.replace("coll", "all-reduce") for name in trace.instructions)
    step = measured(replace(trace, instructions=names))
    (link,) = step.slow_links
    assert (link.name, link.devices) == ("all-reduce.1", (1, 2))


def test_one_link_of_a_ring_is_named_by_both_of_its_ranks(measured: Measure) -> None:
    step = measured(job(EVERY, slow=(0, 0, 800, 800)), RING)
    (link,) = step.slow_links
    assert (link.devices, link.us) == ((2, 3), pytest.approx(800))


def test_a_rank_that_is_late_beside_a_slow_pair_keeps_its_own_lateness(
    measured: Measure,
) -> None:
    step = measured(job(EVERY, late=(0, 700, 0, 0), slow=(0, 0, 0, 900)), ALL)
    (link,) = step.slow_links
    assert (link.devices, link.us) == ((3,), pytest.approx(900))
    assert step.late.devices[0] == (1, pytest.approx(700), 5)
    assert step.late.us == pytest.approx(700)


def test_collectives_that_are_slow_on_all_ranks_alike_are_no_slow_link(
    measured: Measure,
) -> None:
    assert measured(job(EVERY, slow=(800,) * 4), ALL).slow_links == ()


def processes(trace: Trace, ahead_us: Sequence[float]) -> Trace:
    """Each device in a process of its own, whose clock is ahead by as much."""
    devices = tuple(Device(f"host:{at}", 0, at) for at in range(4))
    ahead = (np.array(ahead_us) * 1e3).astype(np.int64)
    start = trace.start_ns + ahead[trace.device]
    return replace(trace, devices=devices, start_ns=start)


def transfer_us(item: MeasuredCollective) -> float:
    return item.exposed_us - item.wait_us


def test_clocks_of_processes_are_laid_on_each_other_by_the_other_collectives(
    measured: Measure,
) -> None:
    """The second collective ends together, and so tells the clocks."""
    trace = processes(job(EVERY, slow=(0, 0, 0, 900), steps=9), (0, 5e6, -3e6, 70_000))
    names = tuple(name.replace("coll", "all-reduce") for name in trace.instructions)
    more = [replace(trace, instructions=names)]
    (link,) = measured(_with_small_collectives(more[0])).slow_links
    assert (link.name, link.devices) == ("all-reduce.1", (3,))
    assert link.us == pytest.approx(900, rel=0.01)


def _with_small_collectives(trace: Trace) -> Trace:
    """The last collective of each step in four parts, which all end together."""
    last = trace.instructions.index("all-reduce.2")
    parts = 4
    rows = np.repeat(
        np.arange(len(trace)), np.where(trace.instruction == last, parts, 1)
    )
    instruction = trace.instruction[rows].copy()
    of_last = np.flatnonzero(instruction == last)
    part = np.arange(len(of_last)) % parts
    duration = trace.duration_ns[rows].copy()
    start = trace.start_ns[rows].copy()
    back = (parts - 1 - part) * 100_000  # ns; each ends as much before the whole
    end = start[of_last] + duration[of_last] - back
    begin = np.where(part == 0, start[of_last], end - 100_000)
    start[of_last], duration[of_last] = begin, end - begin
    instruction[of_last] = len(trace.instructions) - 1 + part
    instruction[of_last[part == 0]] = last
    columns = {
        name: getattr(trace, name)[rows]
        for name in ("kind", "device", "stream", "module", "execution", "instance")
    }
    names = tuple(f"all-reduce.{3 + at}" for at in range(parts - 1))
    return replace(
        trace,
        start_ns=start,
        duration_ns=duration,
        instruction=instruction,
        instructions=(*trace.instructions, *names),
        **columns,
    )


def test_a_permute_of_which_one_rank_was_traced_has_no_slow_link() -> None:
    assert _neighbours([(0, 1), (1, 0)], [0]) == ([], [])
