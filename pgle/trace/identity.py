"""Whether equally named processes of several inputs are one, and then its windows on one clock.

In containers every job is process 1, and host names may be equal. One process runs on the same GPUs in the same process
namespace, gives each device one global number, and is not recorded twice at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

import numpy as np

from pgle.next import MERGE
from pgle.trace.table import Device, Recording, Trace

OVERLAP = 0.1  # windows that share more of the shorter one are not of one process; less may be the error of the clock


def distinguish_processes(traces: Sequence[Trace]) -> tuple[list[Trace], tuple[str, ...]]:
    """The traces with one name for each process, and windows of one process on one clock, one after the other.

    Returns:
        The traces in that order without copies, and a line for each copy and for each name under which nothing tells
        whether it is one process.
    """
    named = [list(dict.fromkeys(device.process for device in trace.devices)) for trace in traces]
    if sum(map(len, named)) == len({name for names in named for name in names}):
        return list(traces), ()
    known: dict[str, list[_Process]] = {}
    result: list[Trace] = []
    guessed: dict[str, list[str]] = {}
    repeated: list[str] = []
    for trace, names in zip(traces, named, strict=True):
        renamed: dict[str, str] = {}
        moves: dict[str, int] = {}
        windows = {name: _Window.of(trace, name) for name in names}
        if names and all(any(other.has(windows[name]) for other in known.get(name, ())) for name in names):
            repeated.append(windows[names[0]].source)
            continue
        for name, window in windows.items():
            others = known.setdefault(name, [])
            mine = next((other for other in others if not other.differs(window)), None)
            if mine is None:
                mine = _Process(_free_name(name, window, others))
                others.append(mine)
            elif not mine.is_known_to_hold(window):
                guessed.setdefault(name, [mine.windows[0].source]).append(window.source)
            renamed[name], moves[name] = mine.name, mine.add(window)
        result.append(_renamed(_moved(trace, moves), renamed))
    lines = [f"{PurePath(source).name}: another copy of a recording that was given; left out" for source in repeated]
    return result, (*lines, *(_nothing_tells(name, sources) for name, sources in guessed.items()))


def _nothing_tells(name: str, sources: Sequence[str]) -> str:
    shown = _distinct(sources[0], sources[1])
    given = f"{', '.join(shown)} and {len(sources) - 2} more all" if len(sources) > 2 else f"{' and '.join(shown)} both"
    return (
        f"{given} name their process {name}, taken for windows of it; "
        f"if they are of several ranks, convert each alone and join them with `{MERGE}`"
    )


@dataclass(frozen=True)
class _Window:
    """What one input holds of one process; times in ns on the input's clock."""

    source: str = field(compare=False)
    recording: Recording
    rows: int
    numbers: dict[int, int]
    start_ns: int
    end_ns: int

    @classmethod
    def of(cls, trace: Trace, process: str) -> _Window:
        mine = [device.process == process for device in trace.devices]
        rows = slice(None) if all(mine) else np.array(mine)[trace.device]
        start = trace.start_ns[rows]
        end = start + trace.duration_ns[rows]
        numbers = {
            device.ordinal: device.global_id
            for device in trace.devices
            if device.process == process and device.global_id is not None
        }
        return cls(
            trace.sources[0].path if trace.sources else "",
            trace.recordings.get(process, Recording()),
            len(start),
            numbers,
            int(start.min()) if len(start) else 0,
            int(end.max()) if len(end) else 0,
        )

    def differs(self, other: _Window) -> bool:
        """Whether this cannot be of the same process."""
        mine, theirs = self.recording, other.recording
        if mine.namespace and theirs.namespace and mine.namespace != theirs.namespace:
            return True
        for kind in ("uuid:", "bus:"):
            gpus = [{gpu for gpu in one.gpus if gpu.startswith(kind)} for one in (mine, theirs)]
            if all(gpus) and not gpus[0] & gpus[1]:
                return True
        if any(other.numbers.get(ordinal, number) != number for ordinal, number in self.numbers.items()):
            return True
        if mine.utc_ns is None or theirs.utc_ns is None:
            return False
        ahead = theirs.utc_ns - mine.utc_ns
        common = min(self.end_ns, other.end_ns + ahead) - max(self.start_ns, other.start_ns + ahead)
        return common > OVERLAP * min(self.end_ns - self.start_ns, other.end_ns - other.start_ns)


@dataclass
class _Process:
    """One process and its windows so far; the first one's clock is the process's."""

    name: str
    windows: list[_Window] = field(default_factory=list)
    end_ns: int = 0

    def has(self, window: _Window) -> bool:
        """Whether it is one of the windows, again."""
        return window.recording.utc_ns is not None and window in self.windows

    def differs(self, window: _Window) -> bool:
        return any(other.differs(window) for other in self.windows)

    def is_known_to_hold(self, window: _Window) -> bool:
        """Whether a GPU or the clock shows that the window is another one of this process."""
        mine, theirs = self.windows[0].recording, window.recording
        same_gpu = any(gpu.startswith("uuid:") for gpu in mine.gpus & theirs.gpus)
        return same_gpu or (mine.utc_ns is not None and theirs.utc_ns is not None)

    def add(self, window: _Window) -> int:
        """Take a window; what to add to its times."""
        move = 0
        if self.windows:
            first, utc = self.windows[0].recording.utc_ns, window.recording.utc_ns
            if first is not None and utc is not None:
                move = utc - first
            elif window.start_ns < self.end_ns:
                move = self.end_ns - window.start_ns
        end = window.end_ns + move
        self.end_ns = max(self.end_ns, end) if self.windows else end
        self.windows.append(window)
        return move


def _moved(trace: Trace, moves: dict[str, int]) -> Trace:
    """The trace with times of each process moved."""
    if not any(moves.values()):
        return trace
    by_device = np.array([moves[device.process] for device in trace.devices], np.int64)
    compiling = {name: times + moves[name] for name, times in trace.compiling.items()}
    return replace(trace, start_ns=trace.start_ns + by_device[trace.device], compiling=compiling)


def _renamed(trace: Trace, names: dict[str, str]) -> Trace:
    if all(old == new for old, new in names.items()):
        return trace
    devices = tuple(Device(names[item.process], item.ordinal, item.global_id) for item in trace.devices)
    recordings = {names.get(name, name): recording for name, recording in trace.recordings.items()}
    compiling = {names[name]: times for name, times in trace.compiling.items()}
    return replace(trace, devices=devices, recordings=recordings, compiling=compiling)


def _free_name(name: str, window: _Window, taken: Sequence[_Process]) -> str:
    """The name where no process has it, else with the input's, else with a number."""
    if not taken:
        return name
    used = {process.name for process in taken}
    longer = f"{name} ({_distinct(taken[0].windows[0].source, window.source)[1]})"
    return longer if window.source and longer not in used else f"{name} ({len(taken) + 1})"


def _distinct(one: str, other: str) -> tuple[str, str]:
    """Two paths by their last parts, as many as tell them apart."""
    parts = PurePath(one).parts, PurePath(other).parts
    ends = (["/".join(path[-count:]) for path in parts] for count in range(1, max(map(len, parts)) + 1))
    shown = next((pair for pair in ends if pair[0] != pair[1]), [one, other])
    return shown[0] or "one input", shown[1] or "another"
