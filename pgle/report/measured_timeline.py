"""The scene of a measured step: a panel for each device that ran it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.other_work import OtherKind, kinds_of
from pgle.analyze.window import DeviceWindow, mean_breakdown
from pgle.report.timeline import (
    MOST_BARS,
    MOST_OPEN,
    OTHER_WORK,
    BarLabel,
    Lane,
    Panel,
    Span,
    Style,
    chosen,
    described,
    disjoint,
    followers_of,
    other_name,
    style_of,
)
from pgle.schedule.simulate import Stream
from pgle.trace.intervals import union
from pgle.xla.collectives import is_sync
from pgle.xla.instruction_kinds import kind_of
from pgle.xla.targets import Hardware
from pgle.xla.vendors import NVIDIA, maker_of


@dataclass(frozen=True)
class Drawing:
    """What all panels of a measured step share."""

    step: MeasuredStep
    names: tuple[BarLabel, ...]  # names of instructions, then of every `OtherKind`
    # int32[instructions, streams], index into `names`
    numbers: npt.NDArray[np.int32]
    late_us: Mapping[int, float]  # by device, from `_late_us`
    share: float  # share of each device's steady steps that is drawn
    note: str  # the origin of the times

    def steps(self, window: DeviceWindow) -> int:
        """Return how many steps of a device are drawn."""
        return max(int(len(window.spans) * self.share), 1)


def measured_panels(
    step: MeasuredStep, label: str = ""
) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """Return a panel for each device that ran the step, in order, and a line about each device that
    is not drawn.

    Devices of one process share a clock if the trace shows that they do. Otherwise each begins
    at 0.

    Args:
        label: put before the names of the ranks: ``before``.
    """
    drawing = _drawing(step)
    panels: list[Panel] = []
    for place, window in enumerate(step.windows):
        panel = _panel(drawing, window)
        name = f"{label}: {panel.label}" if label else panel.label
        panels.append(replace(panel, label=name, opened=place < MOST_OPEN))
    steps = max(len(window.spans) for window in step.windows)
    drawn = max(len(panel.spans) for panel in panels)
    if drawn >= steps:
        return tuple(panels), ()
    shows = f"the timeline shows the first {drawn} of {steps} steady steps"
    return tuple(panels), (f"{shows}: a page holds no more bars",)


def _drawing(step: MeasuredStep) -> Drawing:
    """What all panels share: names, clocks, and how much of the steps fits on a page."""
    names, numbers = _entries(step)
    bars = sum(len(window.rows) + len(window.other) for window in step.windows)
    note = "measured on CPU devices" if step.trace.on_host else "measured"
    if step.trace.simulated:
        note = "simulated, no GPU ran this"
    return Drawing(
        step=step,
        names=(*names, *map(_other_label, OtherKind)),
        numbers=numbers,
        late_us=_late_us(step),
        share=min(MOST_BARS / bars, 1.0),
        note=note,
    )


def _late_us(step: MeasuredStep) -> dict[int, float]:
    """Return by how many µs each device begins after the first one of its process.

    Collectives keep devices within one step of each other, so larger differences come from their
    clocks.
    """
    begins: dict[str, dict[int, int]] = {}
    for window in step.windows:
        process = step.trace.devices[window.device].process
        begins.setdefault(process, {})[window.device] = window.begin_ns
    late = dict.fromkeys(chain.from_iterable(begins.values()), 0.0)
    for begin_ns in begins.values():
        first_ns = min(begin_ns.values())
        last_ns = max(begin_ns.values())
        if last_ns - first_ns >= step.step_us * 1e3:
            continue  # several clocks
        for device, begin in begin_ns.items():
            late[device] = (begin - first_ns) / 1e3
    return late


def _contents(hardware: Hardware | None) -> dict[Stream, str]:
    """Say what streams contain, in the words of the GPU's vendor."""
    vendor = NVIDIA if hardware is None else maker_of(hardware)
    return {
        Stream.COMPUTE: "compute",
        Stream.COMMUNICATION: vendor.library.name,
        Stream.COPY: "copies",
    }


def _panel(drawing: Drawing, window: DeviceWindow) -> Panel:
    """Draw the steps of one device."""
    steps = drawing.steps(window)
    end_ns = window.length
    if steps < len(window.spans):
        end_ns = float(window.spans.end[steps - 1])
    shift_us = drawing.late_us[window.device]
    first_other = len(drawing.names) - len(OtherKind)
    lanes = _stream_lanes(drawing, window, end_ns)
    lanes += _other_lanes(window, end_ns, shift_us, first_other)
    return Panel(
        label=drawing.step.rank_name(window.device),
        note=drawing.note,
        parts=mean_breakdown([window]),
        length_us=end_ns / 1e3 + shift_us,
        names=drawing.names,
        lanes=tuple(lanes),
        spans=tuple(_step_spans(window, steps, shift_us)),
        unit=f"step (mean of {window.steps})",
    )


def _step_spans(window: DeviceWindow, steps: int, shift_us: float) -> Iterator[Span]:
    """A span for each drawn step of a device, in microseconds on the shared clock."""
    starts_us = window.spans.start[:steps] / 1e3 + shift_us
    ends_us = window.spans.end[:steps] / 1e3 + shift_us
    ends = zip(starts_us.tolist(), ends_us.tolist(), strict=True)
    for number, (start_us, end_us) in enumerate(ends, start=1):
        yield Span(f"step {number}", start_us, end_us)


def _stream_lanes(drawing: Drawing, window: DeviceWindow, end_ns: float) -> list[Lane]:
    """The instructions that a device ran before `end_ns`, by stream. Streams with most compute come
    first.
    """
    trace = drawing.step.trace
    rows = np.flatnonzero(window.start < end_ns)
    of_trace = window.rows[rows]
    roles = window.stream[rows]
    shift_us = drawing.late_us[window.device]
    start_us = window.start[rows] / 1e3 + shift_us
    stop_us = np.minimum(window.end[rows], end_ns) / 1e3 + shift_us
    every = Lane(
        label="",
        start_us=start_us,
        duration_us=stop_us - start_us,
        named=drawing.numbers[trace.instruction[of_trace], roles],
        count=np.ones(len(rows), np.int64),
    )
    streams = trace.stream[of_trace]
    contents = _contents(drawing.step.hardware)
    by_compute: list[tuple[int, int, Lane]] = []
    for stream in np.unique(streams).tolist():
        mine = np.flatnonzero(streams == stream)
        bars = np.bincount(roles[mine], minlength=len(Stream))  # by role
        most = Stream(int(bars.argmax()))
        lane = chosen(every, mine)
        label = f"{contents[most]} (stream {stream})"
        rank = -int(bars[Stream.COMPUTE])
        by_compute.append((rank, stream, replace(lane, label=label)))
    by_compute.sort(key=lambda item: item[:2])
    lanes: list[Lane] = []
    for _, _, lane in by_compute:
        lanes += disjoint(lane)
    return lanes


def _other_label(kind: OtherKind) -> BarLabel:
    """The label of work that belongs to no instruction."""
    return BarLabel(
        style=Style.OTHER,
        sync=False,
        name=str(kind),
        kind=OTHER_WORK,
        cost="measured",
    )


def _other_lanes(
    window: DeviceWindow, end_ns: float, shift_us: float, first: int
) -> list[Lane]:
    """Work of a device that belongs to no instruction, before `end_ns`. Bars of one kind that touch
    become one bar.

    Args:
        first: index of the first `OtherKind` among the panel's names.
    """
    lanes: list[Lane] = []
    kinds = list(OtherKind)
    for kind, rows in kinds_of(window.other):
        begin_ns = window.other.start_ns[rows]
        stop_ns = begin_ns + window.other.duration_ns[rows]
        busy = union(begin_ns, np.minimum(stop_ns, end_ns))
        count = len(busy)
        if not count:
            continue
        number = first + kinds.index(kind)
        bars = Lane(
            label=str(kind),
            start_us=busy.start / 1e3 + shift_us,
            duration_us=busy.lengths / 1e3,
            named=np.full(count, number, np.int32),
            count=np.ones(count, np.int64),
        )
        lanes.append(bars)
    return lanes


def _entries(step: MeasuredStep) -> tuple[tuple[BarLabel, ...], npt.NDArray[np.int32]]:
    """Number the entries: int32[instructions, streams], one for each instruction on each kind of
    stream that runs it.
    """
    trace = step.trace
    numbers = np.full((len(trace.instructions), len(Stream)), -1, dtype=np.int32)
    for window in step.windows:
        numbers[trace.instruction[window.rows], window.stream] = 0
    seen = np.argwhere(numbers == 0)
    numbers[tuple(seen.T)] = np.arange(len(seen))
    lhs_names = {cost.traced: cost.name for cost in step.costs.costs}
    waits = followers_of(step.module, trace.instructions)
    found: list[BarLabel] = []
    for instruction, role in seen.tolist():
        name = trace.instructions[instruction]
        label = _measured_label(step, name, Stream(role))
        lhs_name = other_name(lhs_names.get(name, name), name)
        found.append(label._replace(lhs_name=lhs_name, follower=waits.get(name, "")))
    return tuple(found), numbers


def _measured_label(step: MeasuredStep, name: str, stream: Stream) -> BarLabel:
    """The label of an instruction on a kind of stream; its module adds shape, names and source."""
    module = step.module
    kind = stream.name.lower()
    sync = False
    if module is not None and (known := module.instructions.get(name)) is not None:
        kind = kind_of(module, known) or kind
        sync = stream is Stream.COMMUNICATION and is_sync(module, known)
    label = BarLabel(
        style=style_of(stream, kind),
        sync=sync,
        name=name,
        kind=kind,
        cost="simulated" if step.trace.simulated else "measured",
    )
    return described(label, module)
