"""Steps that are made up, on two devices, and the findings on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from same_work import found_once

from pgle.analyze.analysis import MeasuredStep, measure_step
from pgle.costs.estimate.estimate import hardware_of
from pgle.costs.measure.measured import aggregate, find_programs
from pgle.trace.nsys.read import read_nsys
from pgle.trace.table import ActivityKind, Device, ModuleKey, Trace, combine
from pgle.xla.hlo.dumps import read_module, read_modules
from pgle.xla.hlo.module import Module
from pgle.xla.targets import TABLE

ROOT = Path(__file__).parents[2]
PAX = ROOT / "testdata" / "pax_fsdp4"
MAXTEXT = ROOT.parent / "shared" / "data" / "maxtext_fsdp4_h100"
COMPUTE, SIDE = 1, 2
"""Streams."""


@dataclass(frozen=True)
class Run:
    """One activity of a made-up step, in microseconds."""

    name: str
    start: float
    time: float
    stream: int = COMPUTE
    kind: ActivityKind = ActivityKind.KERNEL


def made(steps: Iterable[tuple[int, int, Iterable[Run]]]) -> Trace:
    """A trace of (device, execution, activities); an execution that has another device's number
    runs with it.
    """
    rows = sorted(
        ((device, execution, run) for device, execution, runs in steps for run in runs),
        key=lambda row: (row[0], row[2].start),
    )
    names = tuple(dict.fromkeys(run.name for *_, run in rows))
    count = max((device for device, *_ in rows), default=0) + 1

    def column(values: Iterable[float], dtype: type) -> np.ndarray:
        return np.array(list(values), dtype)

    return Trace(
        start_ns=column((round(run.start * 1e3) for *_, run in rows), np.int64),
        duration_ns=column((round(run.time * 1e3) for *_, run in rows), np.int64),
        kind=column((run.kind for *_, run in rows), np.uint8),
        device=column((device for device, *_ in rows), np.int32),
        stream=column((run.stream for *_, run in rows), np.int32),
        module=np.zeros(len(rows), np.int32),
        instruction=column((names.index(run.name) for *_, run in rows), np.int32),
        execution=column((execution for _, execution, _ in rows), np.int32),
        instance=np.full(len(rows), -1, np.int32),
        modules=(ModuleKey("jit_step", 1),),
        instructions=names,
        devices=tuple(Device("host:1", number, number) for number in range(count)),
    )


def repeated(*runs: Run, every: float = 10_000, steps: int = 4) -> Trace:
    """The same steps on two devices."""
    return made(
        (
            device,
            number,
            [replace(run, start=run.start + number * every) for run in runs],
        )
        for device in range(2)
        for number in range(steps)
    )


@pytest.fixture
def measured() -> Callable[..., MeasuredStep]:
    """Take a trace's main module apart, on an H100."""

    def measure(trace: Trace, *modules: Module, **known: Any) -> MeasuredStep:
        program = find_programs(trace, modules)[0]
        return measure_step(
            trace,
            aggregate(trace, [program])[0],
            TABLE["h100-sxm"] if modules else None,
            **known,
        )

    return measure


@pytest.fixture(scope="module")
def work_found_once() -> Iterator[None]:
    """For modules that plant faults into the same recording."""
    with found_once():
        yield


@pytest.fixture(scope="session")
def pax() -> MeasuredStep:
    """The real 4 × A100 step, of which two ranks are here."""
    trace = combine([read_nsys(PAX / f"{rank}.sqlite") for rank in ("proc0", "proc3")])
    module = read_module(
        next((PAX / "proc0/dump").glob("module_0040*after_optimizations*"))
    )
    program = next(
        item for item in find_programs(trace, [module]) if item.hlo is not None
    )
    return measure_step(
        trace,
        aggregate(trace, [program])[0],
        None if program.hlo is None else hardware_of(program.hlo),
    )


@pytest.fixture(scope="session")
def maxtext() -> MeasuredStep:
    """The real 4 × H100 step of MaxText."""
    if not MAXTEXT.exists():
        pytest.skip("the recording is not here")
    trace = read_nsys(MAXTEXT / "rebuilt.sqlite")
    program = find_programs(trace, read_modules(MAXTEXT / "dump"))[0]
    return measure_step(
        trace,
        aggregate(trace, [program])[0],
        None if program.hlo is None else hardware_of(program.hlo),
    )
