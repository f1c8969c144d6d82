"""A measured step as panels: one per device, a lane per stream, all steady steps as far as a page can hold them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.window import DeviceWindow, mean_breakdown
from pgle.report.timeline.scene import Lane, Named, Panel, Span, chosen, disjoint, named
from pgle.run.analyze import on_host
from pgle.schedule.program import Stream, kind_of
from pgle.trace.table import Codes, Kind
from pgle.xla.collectives import followers, is_sync

MOST_BARS = 400_000  # bars that a page draws at most, some 4 MB; of longer traces the first steps are drawn
MOST_OPEN = 2  # devices whose lanes are open at first


def measured_panels(step: MeasuredStep, label: str = "") -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """The devices that ran a step, in order, and the rows that are not drawn, a line each.

    Devices of one process lie on one clock if its trace shows that they have one; else each begins at 0.

    Args:
        label: put before the names of the ranks: ``before``.
    """
    simulated = step.trace.simulated
    kind = "simulated, no GPU ran this" if simulated else "measured"
    kind = "measured on CPU devices" if not simulated and bool((step.trace.kind == Kind.HOST).all()) else kind
    late = _late_us(step)
    bars = sum(len(window.rows) for window in step.windows)
    share = min(MOST_BARS / max(bars, 1), 1.0)
    names = _Names(step)
    panels: list[Panel] = []
    most = drawn = 0
    for window in step.windows:
        steps = max(int(len(window.spans) * share), 1)
        most, drawn = max(most, len(window.spans)), max(drawn, steps)
        panel = _panel(step, window, names, steps, late[window.device], kind, opened=len(panels) < MOST_OPEN)
        panels.append(replace(panel, label=f"{label}: {panel.label}") if label else panel)
    notes = [f"the timeline shows the first {drawn} of {most} steady steps: a page holds no more bars"] * (drawn < most)
    return tuple(panels), tuple(notes)


def rank_label(step: MeasuredStep, window: DeviceWindow) -> str:
    """``rank 3 · GPU 0``: the place among the ranks that were given, or JAX's number, and the device's own number."""
    device = step.trace.devices[window.device]
    rank = step.windows.index(window) if device.global_id is None else device.global_id
    name = "CPU device" if on_host(step.trace) else "GPU"
    return f"rank {rank} · {name} {device.ordinal}"


def _late_us(step: MeasuredStep) -> dict[int, float]:
    """By how much each device begins after the first one of its process.

    Collectives hold the devices of a job within a step of each other: if they are further apart, the clocks are.
    """
    begins: dict[str, dict[int, float]] = {}
    for window in step.windows:
        begins.setdefault(step.trace.devices[window.device].process, {})[window.device] = _begin(step, window)
    late: dict[int, float] = {}
    for of_process in begins.values():
        first = min(of_process.values())
        one_clock = max(of_process.values()) - first < step.step_us * 1e3
        late |= {device: (begin - first) / 1e3 if one_clock else 0.0 for device, begin in of_process.items()}
    return late


def _begin(step: MeasuredStep, window: DeviceWindow) -> float:
    """When the window begins, on the clock of its process, in ns."""
    later = np.flatnonzero(window.start > 0)
    first = int(later[0]) if len(later) else 0
    return float(step.trace.start_ns[window.rows[first]]) - float(window.start[first])


def _panel(
    step: MeasuredStep, window: DeviceWindow, names: _Names, steps: int, shift_us: float, kind: str, *, opened: bool
) -> Panel:
    trace = step.trace
    end = float(window.spans.end[steps - 1]) if steps < len(window.spans) else window.length
    rows = np.flatnonzero(window.start < end)
    of_trace = window.rows[rows]
    codes = names.codes(trace.instruction[of_trace], window.stream[rows])
    start, stop = window.start[rows] / 1e3 + shift_us, np.minimum(window.end[rows], end) / 1e3 + shift_us
    every = Lane("", start, stop - start, codes, np.ones(len(rows), np.int64))
    lanes: list[Lane] = []
    streams = trace.stream[of_trace]
    for stream in _ordered(streams, window.stream[rows]):
        mine = np.flatnonzero(streams == stream)
        lanes += disjoint(replace(chosen(every, mine), label=_stream(stream, window.stream[rows][mine])))
    spans = zip(window.spans.start[:steps].tolist(), window.spans.end[:steps].tolist(), strict=True)
    return Panel(
        label=rank_label(step, window),
        note=kind,
        parts=mean_breakdown([window]),
        length_us=end / 1e3 + shift_us,
        names=names.found,
        lanes=tuple(lanes),
        spans=tuple(
            Span(f"step {number}", first / 1e3 + shift_us, last / 1e3 + shift_us)
            for number, (first, last) in enumerate(spans, start=1)
        ),
        opened=opened,
        unit=f"step (mean of {window.steps})",
    )


_CONTENTS = {Stream.COMPUTE: "compute", Stream.COMMUNICATION: "NCCL", Stream.COPY: "copies"}


def _stream(number: int, what: npt.NDArray[np.uint8]) -> str:
    """``NCCL (stream 20)``: by what most activities of the stream are."""
    most = Stream(int(np.bincount(what, minlength=len(Stream)).argmax()))
    return f"{_CONTENTS[most]} (stream {number})"


def _ordered(streams: Codes, what: npt.NDArray[np.uint8]) -> list[int]:
    """Streams, those with most compute first."""
    found = np.unique(streams).tolist()
    return sorted(found, key=lambda stream: (-int(((streams == stream) & (what == Stream.COMPUTE)).sum()), stream))


class _Names:
    """An entry for each instruction in each role that it has on some device."""

    def __init__(self, step: MeasuredStep) -> None:
        module, trace = step.module, step.trace
        self._streams = len(Stream)
        seen = np.zeros(len(trace.instructions) * self._streams, dtype=bool)
        for window in step.windows:
            seen[trace.instruction[window.rows].astype(np.int64) * self._streams + window.stream] = True
        keys = np.flatnonzero(seen)
        self._number = np.full(len(seen), -1, dtype=np.int32)
        self._number[keys] = np.arange(len(keys))
        lhs = {cost.traced: cost.name for cost in step.costs.costs}
        waits = followers(module, frozenset(trace.instructions)) if module is not None else {}
        found: list[Named] = []
        for key in keys.tolist():
            name, stream = trace.instructions[key // self._streams], Stream(key % self._streams)
            known = module.instructions.get(name) if module is not None else None
            kind = "" if module is None or known is None else kind_of(module, known)
            communicates = stream is Stream.COMMUNICATION
            sync = module is not None and known is not None and communicates and is_sync(module, known)
            kind, cost = kind or stream.name.lower(), "simulated" if trace.simulated else "measured"
            found.append(named(name, stream, module, kind, lhs.get(name, name), cost, sync, waits.get(name, "")))
        self.found = tuple(found)

    def codes(self, instruction: Codes, stream: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
        found: npt.NDArray[np.int32] = self._number[instruction.astype(np.int64) * self._streams + stream]
        return found
