"""Each collective of a measured step: its time, its exposed part, and the part that a schedule
could still hide.

Compute can hide a collective if neither needs the other (`pgle.schedule.predict`). A better
schedule, by a profile, may save that part of its exposed time. No schedule saves the rest. It needs
another program with combined, split or pipelined collectives, which `tune` tries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pgle.analyze.slow_links import (
    Launches,
    SlowLink,
    find_slow_links,
    joined_launches,
)
from pgle.analyze.window import DeviceWindow
from pgle.costs.estimate.communication import (
    bus_bandwidth_gb_s,
    collective_us,
    group_of,
    payload_bytes,
)
from pgle.costs.measure.contention import Contention, LaunchGaps, with_assumed
from pgle.costs.profile.lookup import LookupTable, Naming, group_of_device
from pgle.costs.profile.value import Cost, Profile, effective_costs
from pgle.schedule.bounds import shortest_step_us
from pgle.schedule.placements import Placement, placements
from pgle.schedule.predict import Prediction, predict
from pgle.schedule.simulate import Breakdown, Stream
from pgle.trace.columns import (
    Floats,
    Ints,
    distinct,
    heads,
    occurrences,
    run_lengths,
    run_medians,
    usual_values,
)
from pgle.trace.intervals import covered, union
from pgle.trace.table import Trace
from pgle.xla.collective_kinds import KINDS
from pgle.xla.collectives import collective_kind, is_sync
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.lhs_names import lhs_names
from pgle.xla.targets import Hardware

MOST_EXPLAINED = 64  # pgle judges so many collectives, those with most exposed time


@dataclass(frozen=True, slots=True)
class CostError:
    """The cost of one instruction in the profile, and its measured time."""

    name: str  # its name when LHS ran
    # the cost that the scheduler used; None if the profile lacks it
    profile_us: float | None
    measured_us: float  # measured time of one execution
    count: float  # executions in a step

    @property
    def error_us(self) -> float:
        """Its measured time in a step, less the profile's cost for it, in microseconds. A missing
        cost counts as 0.
        """
        return (self.measured_us - (self.profile_us or 0.0)) * self.count


@dataclass(frozen=True)
class ProfileErrors:
    """A profile compared with measured times."""

    # every instruction with a measured cost, the largest error first
    rows: tuple[CostError, ...]
    covered: float  # share of the measured time whose instructions are in the profile
    # sum of the absolute errors of covered instructions, as a share of their measured time
    off: float


@dataclass(frozen=True)
class Overlap:
    """How much a schedule can still hide."""

    hideable_us: float  # exposed time in a step that a schedule could save at most
    stuck_us: float  # exposed communication that no schedule hides
    predicted: Prediction  # a step of the module with its measured costs
    # lower bound over all schedules of the same instructions; waits of the measured step stay
    shortest_us: float
    # errors of the scheduler's profile; None if no profile is given
    profile: ProfileErrors | None = None


def find_overlap(
    module: Module,
    costs: Sequence[Cost],
    collectives: Sequence[MeasuredCollective],
    hardware: Hardware,
    breakdown: Breakdown,
    *,
    contention: Contention | None = None,
    launch: LaunchGaps | None = None,
    used: Profile | None = None,
    flags: Sequence[str] = (),
) -> tuple[Overlap, tuple[MeasuredCollective, ...]]:
    """Find how much of the exposed communication another schedule could hide.

    Args:
        module: the scheduled HLO.
        costs: measured costs of its instructions.
        collectives: of the measured step.
        hardware: the GPU.
        breakdown: of the measured step.
        contention: contention in the trace; None if no kernel ran during a collective.
        launch: launch gaps in the trace; None if it has too few.
        used: the profile that the scheduler used; None if unknown.
        flags: the XLA flags of the compilation.

    Returns:
        The overlap, and the collectives with their hideable time.
    """
    found = None if contention is None else with_assumed(contention)
    profile = Profile(tuple(costs))
    predicted = predict(module, profile, hardware, launch=launch, contention=found)
    names = lhs_names(module)
    placed = placements(module, predicted.timeline, flags)
    judged: dict[str, MeasuredCollective] = {}
    most_exposed = sorted(collectives, key=lambda item: -item.transfer_exposed_us)
    for item in most_exposed[:MOST_EXPLAINED]:
        if item.instruction is not None and item.transfer_exposed_us > 0:
            place = placed.get(names.get(item.instruction.name, item.instruction.name))
            judged[item.name] = _judged(item, place)
    hideable_us = sum(item.hideable_us or 0.0 for item in judged.values())
    shortest_us = shortest_step_us(
        module,
        predicted.program,
        predicted.launch,
        breakdown,
        slower=min(predicted.contention.likely),
    )
    exposed_us = sum(item.transfer_exposed_us for item in judged.values())
    overlap = Overlap(
        hideable_us=hideable_us,
        stuck_us=exposed_us - hideable_us,
        predicted=predicted,
        shortest_us=shortest_us,
        profile=None if used is None else _profile_errors(module, costs, used),
    )
    return overlap, tuple(judged.get(item.name, item) for item in collectives)


def _judged(item: MeasuredCollective, place: Placement | None) -> MeasuredCollective:
    """A collective with the time that independent compute could hide, and why it is exposed."""
    if place is None:
        return replace(item, hideable_us=0.0, why="")
    free_us = max(place.independent_us - place.cover_us, 0.0) * place.count
    return replace(
        item,
        hideable_us=min(item.transfer_exposed_us, free_us),
        why=place.reason or "the compute next to it is too short",
        is_stuck=place.is_stuck,
    )


def _profile_errors(
    module: Module, costs: Sequence[Cost], used: Profile
) -> ProfileErrors:
    table = LookupTable(module)
    given = table.find(effective_costs(used, module.fingerprint))
    measured = {cost.name: cost for cost in costs}
    rows = []
    for name, row in table.rows.items():
        cost = measured.get(row.filed_as) or measured.get(name)
        if cost is None:
            continue
        believed = given.get(name)
        profile_us = None if believed is None else believed.cost_us
        rows.append(CostError(name, profile_us, cost.cost_us, float(row.executions)))
    rows.sort(key=lambda row: (-abs(row.error_us), row.name))
    known = [row for row in rows if row.profile_us is not None]
    total_us = sum(row.measured_us * row.count for row in rows)
    covered_us = sum(row.measured_us * row.count for row in known)
    off_us = sum(abs(row.error_us) for row in known)
    return ProfileErrors(
        rows=tuple(rows),
        covered=covered_us / total_us if total_us > 0 else 0.0,
        off=off_us / covered_us if covered_us > 0 else 0.0,
    )


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Facts about one collective from HLO and public figures."""

    group: int  # devices in its largest replica group
    payload_bytes: int  # as nccl-tests count them
    moved_bytes: float  # payload times nccl-tests' factor, for bus bandwidth
    peak_gb_s: float  # bus bandwidth of the links, 0 if the collective is not a ring
    # from XLA's measured tables, scaled if they lack the GPU or the group's size
    estimate_us: float


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """One collective over a step, mean over steps and devices."""

    name: str  # its name when LHS ran, as in profiles and predictions
    kind: str  # ``all-gather`` …; without HLO the name
    # whether it alternates with compute; without HLO, whether it ran on the stream of most compute
    sync: bool
    count: float  # executions in a step
    time_us: float  # of one execution, after the last rank arrived
    # time of all executions in a step during which nothing computes
    exposed_us: float
    wait_us: float  # the part of `exposed_us` that is a wait for the last rank
    link: LinkUse | None = None  # None without HLO or hardware
    instruction: Instruction | None = None  # of the final module; None without HLO
    trace_name: str = ""  # its name in the trace
    # exposed transfer that independent compute could hide; None if not judged
    hideable_us: float | None = None
    why: str = ""  # why it is exposed, in words; empty if not judged
    is_stuck: bool = False  # no compute in its computation is independent of it

    @property
    def op_name(self) -> str:
        """The framework's name; empty without HLO."""
        return "" if self.instruction is None else self.instruction.op_name

    @property
    def transfer_exposed_us(self) -> float:
        """Exposed microseconds in a step, without the wait for the last rank."""
        return self.exposed_us - self.wait_us

    @property
    def bus_gb_s(self) -> float | None:
        """Bus bandwidth in GB/s as nccl-tests define it; None if bytes or time are unknown."""
        if self.link is None or self.time_us <= 0:
            return None
        return self.link.moved_bytes / self.time_us / 1e3


@dataclass(frozen=True)
class LateRanks:
    """How long ranks wait for the last one. In each collective, it is the median over ranks of
    their exposed wait.

    If there are two ranks, it is the wait of the other one. Ranks are compared only within one
    execution. The result is the mean of the sums per execution, without unusual ones.
    """

    us: float = 0.0  # in a step
    # (index into the trace's devices, microseconds in a step that the others wait for it, steps in
    # which they wait for it most); the longest first
    devices: tuple[tuple[int, float, int], ...] = ()
    steps: int = 0  # number of steps in the means
    # float64[steps, devices], microseconds that the others wait for a device in each step, unusual
    # steps included. Devices are in the order of the windows. None if no rank can wait.
    waited_us: npt.NDArray[np.float64] | None = field(
        default=None, repr=False, compare=False
    )


@dataclass(frozen=True, eq=False)
class Arrivals:
    """The part of each collective that is a wait for the last rank.

    The transfer itself takes as long as on the rank with the shortest time. The rest is a wait. If
    all ranks had been there at its start, it would have ended earlier by the wait. So the wait is
    its last part, and compute at its beginning hides the transfer.
    """

    # for each window, float64[rows], when a row would have ended without a wait
    done: tuple[npt.NDArray[np.float64], ...]
    ranks: LateRanks
    slow_links: tuple[SlowLink, ...] = ()  # the one that costs most first


def find_arrivals(
    trace: Trace,
    windows: Sequence[DeviceWindow],
    naming: Naming,
    module: Module | None,
    ahead_ns: Floats,
) -> Arrivals:
    """Find the waits in all collectives of the main module.

    Args:
        module: its HLO; None if unknown.
        ahead_ns: float64[executions, devices], how far each device's clock is ahead of the first
            one's; NaN if unknown. Later executions have the last value.
    """
    done = [window.end for window in windows]
    launches = _launches(trace, windows, naming, ahead_ns)
    if len(launches.row) == 0:
        return Arrivals(tuple(done), LateRanks())
    links = find_slow_links(launches, windows, naming, module)
    span = launches.length_ns
    if links is not None:
        # on slow links, the length of a collective hides its wait; its start shows it
        span = np.where(links.changed, links.waited_ns, span)
    place, execution = launches.window, launches.execution
    columns = (launches.occurrence, launches.group, launches.name, execution)
    order = np.lexsort((span, *columns))
    first = heads(*(column[order] for column in columns))
    sizes = run_lengths(first, len(order))
    last = order[first]  # the rank with the least time comes first
    wait = np.empty(len(order))
    wait[order] = span[order] - np.repeat(span[last], sizes)
    exposed = np.empty(len(order))
    for number, window in enumerate(windows):
        here = np.flatnonzero(place == number)
        rows = launches.row[here]
        wait_ns = wait[here]
        end = window.end[rows]
        arrived = end - wait_ns
        done[number][rows] = arrived
        compute = window.busy(Stream.COMPUTE)
        exposed[here] = wait_ns - covered(compute, arrived, end)
    numbers = distinct(execution)
    step = np.searchsorted(numbers, execution)
    waited = np.zeros((len(numbers), len(windows)))
    median_ns = _median_waits(exposed[order], first, sizes)
    np.add.at(waited, (step[last], place[last]), median_ns)
    if links is not None:
        slowed = np.zeros(waited.shape)
        np.add.at(slowed, (step, place), links.exposed_ns)
        waited = _not_slowed(waited, slowed)
    return Arrivals(
        done=tuple(done),
        ranks=late_ranks(waited, [window.device for window in windows]),
        slow_links=() if links is None else links.links,
    )


def _median_waits(exposed: Floats, first: Ints, sizes: Ints) -> Floats:
    """float64[k], the median over ranks of their exposed wait, for each of k collectives. If there
    are two ranks, it is the wait of the other one; if there is one, 0.

    Args:
        exposed: float64[launches], in runs of one collective each.
        first, sizes: int64[k], first launch and length of each run.
    """
    collective = np.repeat(np.arange(len(first)), sizes)
    ordered = exposed[np.lexsort((exposed, collective))]
    medians = run_medians(ordered, first, sizes)
    later = ordered[first + sizes // 2]  # of two ranks, the one that waits longer
    return np.select([sizes > 2, sizes == 2], [medians, later], 0.0)


def _launches(
    trace: Trace, windows: Sequence[DeviceWindow], naming: Naming, ahead_ns: Floats
) -> Launches:
    """All launches of collectives of the main module in its executions."""
    parts: list[Launches] = []
    groups = group_of_device(naming, trace.devices)
    for number, window in enumerate(windows):
        rows, name = _own_rows(window, naming)
        known = trace.execution[window.rows[rows]] >= 0
        rows, name = rows[known], name[known]
        execution = trace.execution[window.rows[rows]].astype(np.int64)
        start, end = window.start[rows], window.end[rows]
        numbers = np.minimum(execution, len(ahead_ns) - 1)
        since_ns = window.begin_ns - ahead_ns[numbers, window.device]
        parts.append(
            Launches(
                window=np.full(len(rows), number),
                row=rows,
                execution=execution,
                name=name.astype(np.int64),
                group=groups[name, window.device],
                occurrence=occurrences(execution, name),
                length_ns=end - start,
                start_ns=start + since_ns,
            )
        )
    return joined_launches(parts)


def _not_slowed(
    waited: npt.NDArray[np.float64], slowed: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Remove waits that a slow link caused, in its execution or the next one.

    Args:
        waited: float64[executions, devices], ns that the others wait for this device.
        slowed: the same shape, ns by which collectives are longer on this device.
    """
    left = waited.copy()
    owed = np.zeros(waited.shape[1])
    for at, more in enumerate(slowed):
        before = np.minimum(left[at], owed)
        left[at] -= before
        now = np.minimum(left[at], more)
        left[at] -= now
        owed = more - now
    return left


def late_ranks(waited: npt.NDArray[np.float64], devices: Sequence[int]) -> LateRanks:
    """Find the ranks that the others wait for.

    Args:
        waited: float64[executions, devices], ns that the others wait for this device.
        devices: indices into the trace's devices.
    """
    usual = waited[usual_values(waited.sum(axis=1))]
    if not len(usual) or len(devices) < 2:
        return LateRanks()
    mean_us = usual.mean(axis=0) / 1e3
    most = np.bincount(usual.argmax(axis=1), minlength=len(devices))
    order = np.argsort(-mean_us, kind="stable").tolist()
    rows = tuple((devices[at], float(mean_us[at]), int(most[at])) for at in order)
    return LateRanks(
        us=float(mean_us.sum()),
        devices=rows,
        steps=len(usual),
        waited_us=waited / 1e3,
    )


def measured_collectives(
    windows: Sequence[DeviceWindow],
    naming: Naming,
    costs: Mapping[str, Cost],
    arrivals: Arrivals,
    *,
    module: Module | None,
    hardware: Hardware | None,
) -> tuple[MeasuredCollective, ...]:
    """All collectives of the main module, the one with most exposed time first.

    Args:
        costs: measured costs of the main module, by name. A collective's cost is its time after the
            last rank arrived.
        module: its HLO; None if unknown.
        hardware: the GPU; None if unknown.
    """
    size = len(naming.filed)
    columns = np.zeros((5, size))
    for window, arrived in zip(windows, arrivals.done, strict=True):
        rows, name = _own_rows(window, naming)
        start = window.start[rows]
        end = window.end[rows]
        done = arrived[rows]
        compute = window.busy(Stream.COMPUTE)
        streams = window.trace.stream[window.rows[rows]]
        figures = (
            np.ones(len(rows)),
            end - start,
            end - start - covered(compute, start, end),
            done - start - covered(compute, start, done),
            streams == _compute_stream(window),
        )
        columns += [
            np.bincount(name, weights=values, minlength=size) for values in figures
        ]
    launches, total, exposed, transfer, in_turn = columns
    steps = sum(window.steps for window in windows)
    exposed_us = exposed / steps / 1e3
    wait_us = (exposed - transfer) / steps / 1e3
    found = []
    for code in np.flatnonzero(launches).tolist():
        item = naming.filed[code]
        count = float(launches[code])
        instruction = None
        kind = None
        sync = bool(in_turn[code] * 2 > count)
        if module is not None:
            instruction = module.instructions.get(naming.owners[code])
        if module is not None and instruction is not None:
            kind = collective_kind(module, instruction)
            sync = is_sync(module, instruction)
        cost = costs.get(item.name)
        filed_as = item.name
        mean_ns = float(total[code]) / count
        if cost is not None:
            filed_as = cost.name
            # the cost does not include the wait for the last rank
            mean_ns = min(cost.cost_us * 1e3, mean_ns)
        found.append(
            MeasuredCollective(
                name=filed_as,
                kind=kind or item.opcode or item.name,
                sync=sync,
                count=count / steps,
                time_us=mean_ns / 1e3,
                exposed_us=float(exposed_us[code]),
                wait_us=float(wait_us[code]),
                link=_link(module, instruction, hardware),
                instruction=instruction,
                trace_name=item.traced,
            )
        )
    return tuple(sorted(found, key=lambda item: (-item.exposed_us, item.name)))


def transfer_exposed_us(
    windows: Sequence[DeviceWindow],
    naming: Naming,
    arrivals: Arrivals,
    names: frozenset[str],
) -> float:
    """Exposed microseconds of some collectives in a step, without waits for other ranks. If several
    run at the same time, that time counts once.
    """
    wanted = np.array([item.traced in names for item in naming.filed] or [False])
    total = 0.0
    for window, done in zip(windows, arrivals.done, strict=True):
        rows, name = _own_rows(window, naming)
        rows = rows[wanted[name]]
        busy = union(window.start[rows], done[rows])
        total += busy.length - float(
            covered(window.busy(Stream.COMPUTE), busy.start, busy.end).sum()
        )
    return total / sum(window.steps for window in windows) / 1e3


def _own_rows(
    window: DeviceWindow, naming: Naming
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int32]]:
    """The window's rows that are collectives of the main module, with indices of their names."""
    name = naming.target[window.trace.instruction[window.rows]]
    is_collective = (name >= 0) & naming.communicates[name]
    rows = np.flatnonzero(is_collective & (window.stream == Stream.COMMUNICATION))
    return rows, name[rows]


def _compute_stream(window: DeviceWindow) -> int:
    """The stream on which most compute of a device ran; -1 if none did."""
    trace, rows = window.trace, window.rows[window.stream == Stream.COMPUTE]
    streams, code = np.unique(trace.stream[rows], return_inverse=True)
    busy = np.bincount(code.reshape(-1), weights=trace.duration_ns[rows])
    return int(streams[busy.argmax()]) if len(streams) else -1


def _link(
    module: Module | None, instruction: Instruction | None, hardware: Hardware | None
) -> LinkUse | None:
    if module is None or instruction is None or hardware is None:
        return None
    kind = collective_kind(module, instruction)
    if kind is None:
        return None
    inner = module.operation(instruction)
    group = group_of(module, inner, hardware)
    size = payload_bytes(module, kind, inner)
    ring = KINDS[kind].ends_together and kind != "collective-broadcast"
    factor = KINDS[kind].rounds * (group.size - 1) / group.size if ring else 1.0
    peak = bus_bandwidth_gb_s(group, hardware)
    return LinkUse(
        group=group.size,
        payload_bytes=size,
        moved_bytes=size * factor,
        peak_gb_s=peak,
        estimate_us=collective_us(module, kind, inner, hardware),
    )
