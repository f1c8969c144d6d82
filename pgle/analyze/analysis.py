"""Take a measured step apart, from a trace, its main program and that program's costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pgle.analyze.collectives import (
    LateRanks,
    MeasuredCollective,
    Overlap,
    find_arrivals,
    find_overlap,
    measured_collectives,
    transfer_exposed_us,
)
from pgle.analyze.contending import Contention, find_contention
from pgle.analyze.layers import (
    Layers,
    MeasuredInstruction,
    Products,
    find_layers,
    find_products,
    slowest,
    work_of,
)
from pgle.analyze.memory import Memory
from pgle.analyze.slow_links import SlowLink
from pgle.analyze.versions import Version
from pgle.analyze.window import (
    DeviceWindow,
    StepParts,
    device_windows,
    mean_breakdown,
    mean_us,
    step_parts,
)
from pgle.costs.measure.alignment import align_program, renumbered
from pgle.costs.measure.measured import ProgramCosts
from pgle.costs.profile.lookup import Naming, name_instructions
from pgle.costs.profile.value import Cost, CostKind, Profile
from pgle.errors import in_percent
from pgle.schedule.simulate import StepBreakdown, Stream
from pgle.trace.columns import distinct
from pgle.trace.steady import find_executions
from pgle.trace.table import ActivityKind, Trace
from pgle.xla.flags.presets import MEASURES_ALONE
from pgle.xla.flags.text import parse_flags
from pgle.xla.guessed_kinds import guess_kind
from pgle.xla.hlo.module import Module
from pgle.xla.targets import Hardware

_STREAMS = {CostKind.COLLECTIVE: Stream.COMMUNICATION, CostKind.COPY: Stream.COPY}


# share of the compute in its windows; with less, the main module is not a step
LEAST_MAIN = 0.5
# with fewer other modules, they alternate with the main one, and all together are the step
FEW_MODULES = 2


@dataclass(frozen=True)
class MeasuredStep:
    """Facts about the steady steps of a main module."""

    trace: Trace  # of all ranks
    costs: ProgramCosts  # of the main module
    module: Module | None  # its HLO; None if neither given nor embedded
    # the GPU, for estimates; None if neither the user nor the HLO names it
    hardware: Hardware | None
    windows: tuple[DeviceWindow, ...]  # one for each device that ran it
    breakdown: StepBreakdown  # mean over steps and devices
    collectives: tuple[MeasuredCollective, ...]  # the one with most exposed time first
    compute: tuple[MeasuredInstruction, ...]  # the costliest first
    parts: StepParts  # every step, in rows that add up to it
    late: LateRanks  # the ranks that the others wait for
    slow_links: tuple[SlowLink, ...]  # collectives that are slow on some ranks
    contention: tuple[Contention, ...]  # copies that slow work at the same time
    # exposed time of all asynchronous collectives in a step, after the last rank arrived
    async_exposed_us: float
    layers: Layers | None = None  # by part of the program; None without HLO
    # matrix products by the type in which they were computed
    products: tuple[Products, ...] = ()
    memory: Memory | None = None  # of the main module; None without scheduled HLO
    # what a schedule could still hide. None without scheduled HLO or hardware. None also for a
    # profile run with synchronous collectives: a plain run has another schedule.
    overlap: Overlap | None = None
    # other compilations of the main program in the recording
    versions: tuple[Version, ...] = ()
    # mode of the profile run that recorded the trace, with pgle's flags; empty if there was none
    mode: str = ""
    hardware_from: str = ""  # the source of `hardware`, in words

    @property
    def exposed_collectives(self) -> list[MeasuredCollective]:
        """The collectives with known hideable time, the one with most of it first."""
        known = [item for item in self.collectives if item.hideable_us is not None]
        return sorted(
            known,
            key=lambda item: (
                -(item.hideable_us or 0.0),
                -item.transfer_exposed_us,
                item.name,
            ),
        )

    @property
    def step_us(self) -> float:
        """The mean step in microseconds, from its start to the start of the next."""
        return self.breakdown.step_us

    @property
    def measures_alone(self) -> bool:
        """Whether a profile run kept collectives synchronous, to measure each alone."""
        return self.mode == MEASURES_ALONE

    @property
    def steps(self) -> int:
        """Steady steps, summed over devices."""
        return sum(window.steps for window in self.windows)

    @property
    def idle_us(self) -> dict[str, float]:
        """Idle microseconds of a step by cause. All except the last add up to the breakdown's idle
        time.
        """
        names = {
            "launch gaps": "launch_gaps",
            "waits for the host": "waits",
            "long waits": "long_waits",
            "between steps": "between_steps",
            "while compiling": "compile",
        }
        return {name: mean_us(self.windows, part) for name, part in names.items()}

    def percent(self, us: float) -> str:
        """Microseconds as a share of the step: ``28.0 %``."""
        return in_percent(us / self.step_us)

    def runs_of_others(self) -> dict[int, int]:
        """Executions within the windows of every module except the main one, by index in the
        trace.
        """
        runs: Counter[int] = Counter()
        for window in self.windows:
            module = self.trace.module[window.rows]
            for number in distinct(module[module != self.costs.program.index]).tolist():
                runs[number] += len(
                    distinct(self.trace.execution[window.rows[module == number]])
                )
        return dict(runs)

    @cached_property
    def main_share(self) -> float:
        """The main module's share of the compute time of all modules in the windows."""
        main = total = 0.0
        for window in self.windows:
            computes = window.stream == Stream.COMPUTE
            ns = self.trace.duration_ns[window.rows] * computes
            total += float(ns.sum())
            main += float(
                ns[self.trace.module[window.rows] == self.costs.program.index].sum()
            )
        return main / total if total > 0 else 1.0

    @property
    def has_step(self) -> bool:
        """Whether the main module is a step: it has most of the compute, or few other modules run.
        In an eager program no module is.
        """
        return self.main_share >= LEAST_MAIN or len(self.runs_of_others()) < FEW_MODULES

    def rank_name(self, device: int) -> str:
        """``rank 3 · GPU 0 (HOST:PID)``, the same in findings, tables and timelines.

        The rank is JAX's number, or else the place among the traced devices. The process is
        included if there are several.
        """
        found = self.trace.devices[device]
        rank = found.global_id
        if rank is None:
            places = {item.device: place for place, item in enumerate(self.windows)}
            rank = places.get(device, device)
        name = "CPU device" if self.trace.on_host else "GPU"
        processes = {item.process for item in self.trace.devices}
        where = f" ({found.process})" if len(processes) > 1 else ""
        return f"rank {rank} · {name} {found.ordinal}{where}"

    @property
    def late_rank(self) -> str:
        """The rank that causes more than half of the waits; empty if there is none."""
        device, us, _ = self.late.devices[0] if self.late.devices else (0, 0.0, 0)
        return self.rank_name(device) if us > self.late.us / 2 else ""

    @property
    def waiting_us(self) -> float:
        """Exposed communication of a step, in microseconds, that is a wait for the last rank."""
        return sum(item.wait_us for item in self.collectives)


def measure_step(
    trace: Trace,
    costs: ProgramCosts,
    hardware: Hardware | None = None,
    *,
    memory: Memory | None = None,
    used: Profile | None = None,
    versions: tuple[Version, ...] = (),
    mode: str = "",
    hardware_from: str = "",
) -> MeasuredStep:
    """Take the steady steps of one program apart.

    Args:
        trace: all ranks in one table. `costs.program` is one of its programs.
        costs: measured costs of the main program.
        hardware: the GPU, for estimates; None if unknown.
        memory: device memory of the program; None if unknown.
        used: the profile that the scheduler used; None if unknown.
        versions: other versions of the main program.
        mode: mode of the profile run that recorded the trace; empty if there was none.
        hardware_from: the source of `hardware`, in words.
    """
    program, module = costs.program, costs.program.hlo
    naming = name_instructions(trace, program.instructions, program.hlo)
    aligned = align_program(trace, program.index, naming)
    trace = renumbered(trace, [program.index], [aligned])
    main = program.index
    stream, communicates = _streams(trace, naming, main)
    executions = find_executions(trace, communicates)
    windows = device_windows(trace, executions, main, stream)
    by_name = {}
    for cost in costs.costs:
        by_name[cost.traced] = cost
        by_name[cost.name] = cost
    arrivals = find_arrivals(trace, windows, naming, module, aligned.ahead_ns)
    collectives = measured_collectives(
        windows, naming, by_name, arrivals, module=module, hardware=hardware
    )
    hidden = frozenset(item.trace_name for item in collectives if not item.sync)
    breakdown = mean_breakdown(windows)
    compute = _compute(costs, naming, by_name, trace.kernels)
    layers = None
    overlap = None
    if module is not None:
        layers = find_layers(module, compute, collectives, breakdown.step_us, hardware)
        if module.is_scheduled and hardware is not None and mode != MEASURES_ALONE:
            flags = [flag.word for flag in parse_flags(trace.xla_flags).flags]
            overlap, collectives = find_overlap(
                module,
                costs.costs,
                collectives,
                hardware,
                breakdown,
                contention=costs.contention,
                launch=costs.launch,
                used=used,
                flags=flags,
            )
    names = _row_names(trace, naming)
    exposed_us = transfer_exposed_us(windows, naming, arrivals, hidden)
    parts = step_parts(trace, windows, main, arrivals.done, names)
    contention = find_contention(trace, windows, main, arrivals.done)
    return MeasuredStep(
        trace=trace,
        costs=costs,
        module=module,
        hardware=hardware,
        hardware_from=hardware_from,
        windows=windows,
        breakdown=breakdown,
        collectives=collectives,
        compute=compute,
        parts=parts,
        late=arrivals.ranks,
        slow_links=arrivals.slow_links,
        contention=contention,
        async_exposed_us=exposed_us,
        layers=layers,
        products=find_products(compute, hardware),
        memory=memory,
        overlap=overlap,
        versions=versions,
        mode=mode,
    )


def _row_names(trace: Trace, naming: Naming) -> list[str]:
    """The row name of each traced instruction: the traced name of its cost, else its own name."""
    names = []
    for own, target in zip(trace.instructions, naming.target.tolist(), strict=True):
        filed_as = naming.filed[target].traced if target >= 0 else ""
        names.append(filed_as or own)
    return names


def _streams(
    trace: Trace, naming: Naming, main: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """The stream of each activity: by HLO in the main module, by name in other modules. Transfers
    that would be compute are copies.

    Returns:
        uint8[len(trace)], values of `Stream`; then bool[len(trace.instructions)], True for
        collectives of the main module.
    """
    kinds = [CostKind(guess_kind(name)) for name in trace.instructions]
    guessed = np.array([_STREAMS.get(kind, Stream.COMPUTE) for kind in kinds], np.uint8)
    known = np.array(
        [_STREAMS.get(item.kind, Stream.COMPUTE) for item in naming.filed]
        or [Stream.COMPUTE],
        np.uint8,
    )
    of_main = np.where(naming.target >= 0, known[naming.target], guessed)
    stream = np.where(
        trace.module == main, of_main[trace.instruction], guessed[trace.instruction]
    )
    stream[(trace.kind == ActivityKind.MEMCPY) & (stream == Stream.COMPUTE)] = (
        Stream.COPY
    )
    return stream, of_main == Stream.COMMUNICATION


def _compute(
    costs: ProgramCosts,
    naming: Naming,
    by_name: Mapping[str, Cost],
    kernels: Mapping[tuple[str, str], frozenset[str]],
) -> tuple[MeasuredInstruction, ...]:
    found = []
    module = costs.program.hlo
    for item, owning in zip(naming.filed, naming.owners, strict=True):
        cost = by_name.get(item.name)
        if cost is None or item.kind not in (CostKind.COMPUTE, CostKind.UNKNOWN):
            continue
        instruction = None if module is None else module.instructions.get(owning)
        work = None
        if module is not None and instruction is not None:
            work = work_of(module, instruction)
        count = cost.samples / max(costs.window.used, 1)
        measured = MeasuredInstruction(
            cost=cost,
            instruction=instruction,
            us=cost.cost_us * count,
            count=count,
            work=work,
            ran=slowest(kernels.get((costs.program.key.name, item.traced), ())),
        )
        found.append(measured)
    return tuple(sorted(found, key=lambda item: (-item.us, item.name)))
