"""The Trace table: one row per GPU activity that a profiler recorded. Several traces of one job
form one table.

Every reader makes this table, and every later stage takes it. Strings are dictionary-encoded: a
column of codes and a tuple of values. Rows are ordered by (device, start).

Several traces may record one process, or several processes of one name: in containers every job is
process 1, and host names may be equal. Traces are of one process if they used the same GPUs in the
same process namespace and give each device one global number. One process is not recorded twice at
the same time.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import cached_property
from itertools import chain
from pathlib import PurePath
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pgle.errors import many, some
from pgle.trace.columns import LATEST, NO_ROWS, Codes, Ints, changes
from pgle.xla.vendors import VENDORS

# the warning that a simulated trace carries, also in its files
SIMULATED = "simulated by pgle, no GPU ran this"


LIBRARIES = re.compile("|".join(vendor.kernels for vendor in VENDORS.values()))
"""Matches names of library kernels, which say what the kernel computes. XLA names its own kernels
after instructions.
"""


class ActivityKind(IntEnum):
    """What a GPU activity is."""

    words: str  # the plural, for people
    stream_word: str  # what JAX's profiler calls this kind in stream names

    def __new__(
        cls, value: int, words: str = "", stream_word: str = ""
    ) -> ActivityKind:
        """Make a kind from its number, which columns hold, and its words."""
        kind = int.__new__(cls, value)
        kind._value_ = value
        kind.words = words
        kind.stream_word = stream_word
        return kind

    KERNEL = 0, "kernels", "Kernel"
    MEMCPY = 1, "copies", "MemcpyD2D"
    MEMSET = 2, "memsets", "Memset"
    # work of the CPU backend, whose "device" is a host thread
    HOST = 3, "thunks on the CPU", "Kernel"


def count_kinds(kind: npt.NDArray[np.uint8]) -> dict[ActivityKind, int]:
    """Count the activities of each kind that occurs."""
    counts = np.bincount(kind)
    found = np.flatnonzero(counts).tolist()
    return {ActivityKind(value): int(counts[value]) for value in found}


@dataclass(frozen=True)
class ModuleKey:
    """An executable in a trace: HLO module name and program id (None if the trace has none)."""

    name: str
    program_id: int | None = None


@dataclass(frozen=True, order=True)
class Device:
    """One device of one process."""

    # identifies the process: ``HOST:PID``, or the input's name and the pid
    process: str
    ordinal: int  # number of the device inside its process
    # JAX's global device id; None if the trace does not hold it
    global_id: int | None = None


class LeftOutReason(IntEnum):
    """Why a GPU activity belongs to no instruction; `NONE` if it belongs to one."""

    meaning: str  # in plain words, after "activities"

    def __new__(cls, value: int, meaning: str = "") -> LeftOutReason:
        """Make a reason from its number, which columns hold, and its meaning."""
        reason = int.__new__(cls, value)
        reason._value_ = value
        reason.meaning = meaning
        return reason

    NONE = 0, ""
    NO_API_ROW = 1, "launched before the recording began"
    NO_RANGE = 2, "launched outside of any XLA program"
    NO_THUNK = 3, "launched by XLA outside of any instruction"
    AUTOTUNER = 4, "run while compiling, to tune kernels"
    NO_MODULE = 5, "launched outside of any module"
    GRAPH_NODE = 6, "inside a CUDA graph whose building was not recorded"
    BAD_TIME = 7, "without a possible time"
    GRAPH_LAUNCH = 8, "whole CUDA graphs, which hide their kernels"
    NO_TIME = 9, "without a time stamp"
    REVERSED = 10, "that end before they start"
    OVERLAP = 11, "inside another activity of their stream"
    MISPLACED = 12, "far away from the rest of their execution"

    @property
    def word(self) -> str:
        """The reason as a word, such as ``no-api-row``."""
        return self.name.lower().replace("_", "-")


MEANINGS = {reason.word: reason.meaning for reason in LeftOutReason if reason.meaning}
"""The meaning of each reason, in plain words, by its `word`."""

IN_GRAPHS = (LeftOutReason.GRAPH_LAUNCH, LeftOutReason.GRAPH_NODE)
"""The reasons of activities that a CUDA graph hides."""


@dataclass(frozen=True)
class Unresolved:
    """GPU activities that belong to no instruction, by reason."""

    reason: str  # the `word` of a `LeftOutReason`
    count: int  # how many activities
    duration_ns: int  # their total GPU time


def kernels_by_place(
    named: Iterable[tuple[str, str, str]],
) -> dict[tuple[str, str], frozenset[str]]:
    """Group (module name, instruction, library kernel) triples into the form of `Trace.kernels`."""
    found: dict[tuple[str, str], set[str]] = {}
    for module, instruction, kernel in named:
        found.setdefault((module, instruction), set()).add(kernel)
    return {place: frozenset(kernels) for place, kernels in found.items()}


@dataclass(frozen=True)
class Source:
    """An input: its path, format (``nsys-sqlite`` or ``xplane``) and the recording tool's
    version.
    """

    path: str
    format: str
    version: str = ""


@dataclass(frozen=True)
class Recording:
    """Facts about the recording of one process."""

    # wall clock in ns since 1970 at time 0 of `Trace.start_ns`; None if unknown
    utc_ns: int | None = None
    # ``uuid:…`` and ``bus:…`` of the GPUs that the process used, else of those it saw; empty if
    # unknown
    gpus: frozenset[str] = frozenset()
    namespace: str = ""  # process namespace of the container; empty if unknown
    vendor: str = ""  # GPU vendor, ``Nvidia`` or ``AMD``; empty if unknown
    # compute capability of the GPUs; None if unknown
    capability: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class OtherWork:
    """GPU activities without instruction that keep their device busy: m rows by (device, start)."""

    start_ns: Ints  # int64[m], on the clock of `Trace.start_ns`
    duration_ns: Ints  # int64[m]
    device: Codes  # int[m], index into `Trace.devices`
    stream: Codes  # int[m], as recorded
    kind: npt.NDArray[np.uint8]  # uint8[m], values of `ActivityKind`
    reason: npt.NDArray[np.uint8]  # uint8[m], values of `LeftOutReason`

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """All columns by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def of_rows(self, rows: npt.NDArray[Any]) -> OtherWork:
        """Return the given rows, in the given order."""
        return OtherWork(
            **{name: column[rows] for name, column in self.columns.items()}
        )


NO_OTHER_WORK = OtherWork(
    start_ns=NO_ROWS,
    duration_ns=NO_ROWS,
    device=np.empty(0, np.int16),
    stream=np.empty(0, np.int16),
    kind=np.empty(0, np.uint8),
    reason=np.empty(0, np.uint8),
)


def joined(parts: Sequence[OtherWork]) -> OtherWork:
    """Join the rows of several tables, ordered by (device, start)."""
    filled = [part for part in parts if len(part)]
    if not filled:
        return NO_OTHER_WORK
    columns = {}
    for name in NO_OTHER_WORK.columns:
        columns[name] = np.concatenate([part.columns[name] for part in filled])
    order = np.lexsort((columns["start_ns"], columns["device"]))
    return OtherWork(**columns).of_rows(order)


@dataclass(frozen=True, eq=False)
class Trace:
    """GPU activities of one or several inputs, n rows. Integer columns use as few bytes as they
    need.
    """

    start_ns: Ints  # int64[n], in ns since an origin that the rows of one process share
    duration_ns: Codes  # int[n], in ns
    kind: npt.NDArray[np.uint8]  # uint8[n], values of `ActivityKind`
    device: Codes  # int[n], index into `devices`
    stream: Codes  # int[n], as recorded
    module: Codes  # int[n], index into `modules`
    # int[n], index into `instructions`: the instruction name in the final HLO
    instruction: Codes
    # int[n], number of the module's execution on that device, from 0 in the window; -1 if unknown
    execution: Codes
    # int[n], number of the launch (thunk range) that issued the activity. Activities of one launch
    # on one device share it. If it is -1 (unknown), each row is its own launch.
    instance: Codes
    modules: tuple[ModuleKey, ...]  # the executables
    instructions: tuple[str, ...]  # instruction names
    devices: tuple[Device, ...]  # the devices
    # counts of activities that were left out, by reason
    unresolved: tuple[Unresolved, ...] = ()
    # the left-out activities that have a possible time and ran on one of `devices`
    other: OtherWork = NO_OTHER_WORK
    # serialized HloProto by executable, if the trace embeds them
    hlo: Mapping[ModuleKey, bytes] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()  # the inputs
    # XLA_FLAGS of the profiled process; empty if unknown. Nothing else of the recorded environment
    # is kept, because it may hold secrets.
    xla_flags: str = ""
    warnings: tuple[str, ...] = ()  # warnings for the user, one line each
    # facts by process; a process may be missing
    recordings: Mapping[str, Recording] = field(default_factory=dict)
    # int64[n, 2] by process: start and end in ns of the times when XLA compiled. A process without
    # such records is missing.
    compiling: Mapping[str, Ints] = field(default_factory=dict)
    # names of library kernels (`LIBRARIES`) by module name and instruction; empty if not recorded
    kernels: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def simulated(self) -> bool:
        """Whether part of the trace comes from the simulated GPU."""
        return any(SIMULATED in line for line in self.warnings)

    @cached_property
    def on_host(self) -> bool:
        """Whether all activities ran on CPU devices."""
        return bool((self.kind == ActivityKind.HOST).all())

    @property
    def end_ns(self) -> Ints:
        """int64[n], start + duration, in ns."""
        return np.asarray(self.start_ns + self.duration_ns)


ROW_COLUMNS = (
    "start_ns",
    "duration_ns",
    "kind",
    "device",
    "stream",
    "module",
    "instruction",
    "execution",
    "instance",
)
"""The columns of a `Trace` that have one value per row."""


def without_repeats(trace: Trace) -> Trace:
    """Drop GPU activities that were recorded again, with a warning.

    A stream runs one activity at a time. So rows with equal stream, start, duration and instruction
    are one activity.
    """
    same = ~changes(trace.start_ns, trace.device, trace.duration_ns)
    if not same.any():
        return trace
    near = np.flatnonzero(same | np.append(same[1:], False))
    near = near[trace.kind[near] != ActivityKind.HOST]
    columns = (
        trace.instruction,
        trace.module,
        trace.stream,
        trace.duration_ns,
        trace.start_ns,
        trace.device,
    )
    order = near[np.lexsort(tuple(column[near] for column in columns))]
    again = ~changes(*(column[order] for column in columns))
    if not again.any():
        return trace
    keep = np.ones(len(trace), np.bool_)
    keep[order[again]] = False
    kept = {name: getattr(trace, name)[keep] for name in ROW_COLUMNS}
    events = many(int(again.sum()), "event")
    warning = (
        f"{events} of the GPU recorded twice; each counts once. Record again if the "
        "profiler was started twice"
    )
    return replace(trace, **kept, warnings=(*trace.warnings, warning))


# share of the shorter window; two windows of one process share less, up to the error of the clock
OVERLAP = 0.1
NEIGHBOURS = 2
"""A window can reach at most this many windows ahead. Windows of one process share at most
`OVERLAP` of the shorter, so none lies inside another. So only the last two windows that begin
before a time can extend beyond it.
"""


def distinguish_processes(
    traces: Sequence[Trace],
) -> tuple[list[Trace], tuple[str, ...]]:
    """Give each process one name, and put the windows of one process on one clock.

    Returns:
        The traces in that order without copies. Then a line for each dropped copy, and for each
        name that may stand for several processes.
    """
    named = [
        list(dict.fromkeys(device.process for device in trace.devices))
        for trace in traces
    ]
    if sum(map(len, named)) == len(set(chain.from_iterable(named))):
        return list(traces), ()
    known: defaultdict[str, _Namesakes] = defaultdict(_Namesakes)
    result: list[Trace] = []
    guessed: dict[str, list[str]] = {}
    repeated: list[str] = []
    for trace, names in zip(traces, named, strict=True):
        renamed: dict[str, str] = {}
        moves: dict[str, int] = {}
        windows = {name: _Window.of(trace, name) for name in names}
        if names and all(known[name].has(windows[name]) for name in names):
            repeated.append(windows[names[0]].source)
            continue
        for name, window in windows.items():
            mine = known[name].process_of(name, window)
            if mine.windows and not mine.is_known_to_hold(window):
                guessed.setdefault(name, [mine.windows[0].source]).append(window.source)
            renamed[name] = mine.name
            moves[name] = known[name].add(mine, window)
        result.append(_placed(trace, renamed, moves))
    lines = [
        f"{PurePath(source).name}: another copy of a recording that was given; left out"
        for source in repeated
    ]
    return result, (
        *lines,
        *(_nothing_tells(name, sources) for name, sources in guessed.items()),
    )


def _nothing_tells(name: str, sources: Sequence[str]) -> str:
    """Return the warning that several inputs name their process alike."""
    shown = _distinct(sources[0], sources[1])
    given = f"{' and '.join(shown)} both"
    if len(sources) > 2:
        given = f"{', '.join(shown)} and {len(sources) - 2} more all"
    return (
        f"{given} name their process {name}, taken for windows of it; "
        "if they are of several ranks, give the trace of one rank only"
    )


@dataclass(frozen=True)
class _Window:
    """The part of one input that belongs to one process. Times are in ns on the input's clock."""

    source: str = field(compare=False)
    recording: Recording
    rows: int
    numbers: tuple[tuple[int, int], ...]  # (ordinal, global number) of each device
    start_ns: int
    end_ns: int

    @classmethod
    def of(cls, trace: Trace, process: str) -> _Window:
        """The window of one process in a trace."""
        is_mine = [device.process == process for device in trace.devices]
        rows = slice(None) if all(is_mine) else np.array(is_mine)[trace.device]
        start = trace.start_ns[rows]
        end = start + trace.duration_ns[rows]
        numbers = {}
        for device in trace.devices:
            if device.process == process and device.global_id is not None:
                numbers[device.ordinal] = device.global_id
        start_ns = int(start.min()) if len(start) else 0
        end_ns = int(end.max()) if len(end) else 0
        return cls(
            source=trace.sources[0].path if trace.sources else "",
            recording=trace.recordings.get(process, Recording()),
            rows=len(start),
            numbers=tuple(numbers.items()),
            start_ns=start_ns,
            end_ns=end_ns,
        )

    @property
    def marks(self) -> Mapping[str, frozenset[Hashable]]:
        """The values that identify a process, by kind. A kind is absent if the input lacks it.

        Two windows that share no value of a kind belong to two processes.
        """
        found: dict[str, set[Hashable]] = {}
        if self.recording.namespace:
            found["namespace"] = {self.recording.namespace}
        for gpu in self.recording.gpus:
            found.setdefault(gpu.partition(":")[0], set()).add(gpu)
        for ordinal, number in self.numbers:
            found[f"device {ordinal}"] = {number}
        return {kind: frozenset(values) for kind, values in found.items()}

    @property
    def wall_clock_ns(self) -> tuple[int, int] | None:
        """Start and end in ns since 1970; None if unknown."""
        utc_ns = self.recording.utc_ns
        if utc_ns is None:
            return None
        return self.start_ns + utc_ns, self.end_ns + utc_ns


@dataclass
class _Process:
    """One process and its windows so far. Its clock is the clock of its first window."""

    name: str
    number: int = 0  # index in `_Namesakes.processes`
    windows: list[_Window] = field(default_factory=list)
    end_ns: int = 0
    # the distinct marks of the windows, by kind
    marks: dict[str, set[frozenset[Hashable]]] = field(default_factory=dict)
    # sorted, on the wall clock, without empty windows
    times_ns: list[tuple[int, int]] = field(default_factory=list)

    def differs(self, window: _Window) -> bool:
        """Whether the window cannot belong to this process."""
        for kind, values in window.marks.items():
            if any(not values & mine for mine in self.marks.get(kind, ())):
                return True
        times = window.wall_clock_ns
        return times is not None and self._ran_in(*times)

    def _ran_in(self, start_ns: int, end_ns: int) -> bool:
        """Whether a window of this process shares more than `OVERLAP` of the shorter with these
        times.

        The windows of a process hardly overlap. So only neighbours of these times can share that
        much.
        """
        at = bisect_left(self.times_ns, (start_ns, end_ns))
        earlier = reversed(self.times_ns[max(at - NEIGHBOURS, 0) : at])
        later = self.times_ns[at : at + NEIGHBOURS]
        for first_ns, last_ns in (*earlier, *later):
            common = min(last_ns, end_ns) - max(first_ns, start_ns)
            if common > OVERLAP * min(last_ns - first_ns, end_ns - start_ns):
                return True
        return False

    def is_known_to_hold(self, window: _Window) -> bool:
        """Whether a GPU or the clock proves that the window belongs to this process."""
        mine, theirs = self.windows[0].recording, window.recording
        same_gpu = any(gpu.startswith("uuid:") for gpu in mine.gpus & theirs.gpus)
        return same_gpu or (mine.utc_ns is not None and theirs.utc_ns is not None)

    def add(self, window: _Window) -> int:
        """Add a window. Return the ns to add to the window's times."""
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
        for kind, values in window.marks.items():
            self.marks.setdefault(kind, set()).add(values)
        times = window.wall_clock_ns
        if times is not None and times[0] < times[1]:
            insort(self.times_ns, times)
        return move


@dataclass
class _Namesakes:
    """The processes of one name. A job may have thousands of processes, and a process thousands of
    windows.
    """

    processes: list[_Process] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    windows: set[_Window] = field(default_factory=set)
    # numbers of the processes that have a mark of a kind (`marked`) or a given mark (`having`)
    marked: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    having: defaultdict[Hashable, set[int]] = field(
        default_factory=lambda: defaultdict(set)
    )

    def has(self, window: _Window) -> bool:
        """Whether the window was added before."""
        return window.recording.utc_ns is not None and window in self.windows

    def process_of(self, name: str, window: _Window) -> _Process:
        """Return the first process to which the window may belong, else a new process."""
        for number in sorted(self._possible(window)):
            if not self.processes[number].differs(window):
                return self.processes[number]
        free = self._free_name(name, window)
        self.names.add(free)
        self.processes.append(_Process(free, len(self.processes)))
        return self.processes[-1]

    def _possible(self, window: _Window) -> set[int]:
        """Return the numbers of the processes that no mark of the window excludes."""
        possible = set(range(len(self.processes)))
        for kind, values in window.marks.items():
            others = self.marked[kind].difference(
                *(self.having[kind, value] for value in values)
            )
            possible -= others
        return possible

    def add(self, process: _Process, window: _Window) -> int:
        """Add a window to a process. Return the ns to add to the window's times."""
        self.windows.add(window)
        for kind, values in window.marks.items():
            self.marked[kind].add(process.number)
            for value in values:
                self.having[kind, value].add(process.number)
        return process.add(window)

    def _free_name(self, name: str, window: _Window) -> str:
        """Return the name if it is free, else the name with the input or a number."""
        if not self.processes:
            return name
        first = self.processes[0].windows[0]
        longer = f"{name} ({_distinct(first.source, window.source)[1]})"
        if window.source and longer not in self.names:
            return longer
        return f"{name} ({len(self.processes) + 1})"


def _placed(trace: Trace, names: dict[str, str], moves: dict[str, int]) -> Trace:
    """Rename the processes of a trace and shift the times of each."""
    by_device = np.array([moves[device.process] for device in trace.devices], np.int64)
    start_ns, other = trace.start_ns, trace.other
    if by_device.any():
        start_ns = start_ns + by_device[trace.device]
        other = replace(other, start_ns=other.start_ns + by_device[other.device])
    devices = [
        replace(device, process=names[device.process]) for device in trace.devices
    ]
    recordings = {
        names.get(name, name): known for name, known in trace.recordings.items()
    }
    compiling = {
        names.get(name, name): times + moves.get(name, 0)
        for name, times in trace.compiling.items()
    }
    return replace(
        trace,
        start_ns=start_ns,
        other=other,
        devices=tuple(devices),
        recordings=recordings,
        compiling=compiling,
    )


def _distinct(one: str, other: str) -> tuple[str, str]:
    """Shorten two paths to as many last parts as distinguish them.

    Files of several ranks often have one name.
    """
    mine = PurePath(one).parts
    theirs = PurePath(other).parts
    for count in range(1, max(len(mine), len(theirs)) + 1):
        if mine[-count:] != theirs[-count:]:
            one = "/".join(mine[-count:])
            other = "/".join(theirs[-count:])
            break
    return one or "one input", other or "another"


# columns with one meaning in all traces
SAME_COLUMNS = ("start_ns", "duration_ns", "kind", "stream")

T = TypeVar("T", bound=Hashable)
Column = npt.NDArray[np.int32]


def combine(traces: Sequence[Trace]) -> Trace:
    """Join traces into one. Equal executables and instruction names become one.

    Args:
        traces: at least one trace. Devices of different processes stay separate. Traces of one
            device are windows of one process in order of time, and the numbering of executions
            continues.

    Returns:
        A trace ordered by (device, start). Launch numbers stay distinct between inputs.
    """
    if len(traces) == 1:
        return traces[0]

    traces, same_names = distinguish_processes(traces)
    columns = {
        name: np.concatenate([getattr(trace, name) for trace in traces])
        for name in SAME_COLUMNS
    }
    modules, of_module = _unite([trace.modules for trace in traces])
    instructions, of_instruction = _unite([trace.instructions for trace in traces])
    devices, of_device = _unite([trace.devices for trace in traces])
    united = {"module": of_module, "instruction": of_instruction, "device": of_device}
    for name, tables in united.items():
        codes = [
            table[getattr(trace, name)]
            for trace, table in zip(traces, tables, strict=True)
        ]
        columns[name] = np.concatenate(codes)
    execution = np.concatenate([trace.execution for trace in traces])
    columns["execution"] = execution.astype(np.int32)  # combining adds devices
    if len(devices) < sum(len(trace.devices) for trace in traces):
        _number_on(columns["execution"], columns["device"], columns["module"], traces)
    columns["instance"] = _instances(traces)
    others = [
        replace(trace.other, device=table[trace.other.device])
        for trace, table in zip(traces, of_device, strict=True)
    ]
    order = np.lexsort((columns["start_ns"], columns["device"]))
    rows = {}
    for name in ROW_COLUMNS:  # one column at a time, to save memory
        rows[name] = columns.pop(name)[order]
    about = _About()
    for trace in traces:
        about.add(trace)
    left_out = [about.unresolved[reason] for reason in sorted(about.unresolved)]
    return Trace(
        **rows,
        modules=modules,
        instructions=instructions,
        devices=devices,
        unresolved=tuple(left_out),
        other=joined(others),
        hlo=about.hlo,
        sources=tuple(about.sources),
        xla_flags=about.xla_flags,
        warnings=(*_said_once(traces), *same_names),
        recordings=about.recordings,
        compiling=about.compiling,
        kernels=about.kernels,
    )


def _instances(traces: Sequence[Trace]) -> Column:
    """Return int32[n]: the launch numbers of all traces, one trace after the other, made distinct;
    -1 stays unknown.
    """
    found = []
    first = 0
    for trace in traces:
        instance = trace.instance.astype(np.int64)
        instance[instance >= 0] += first
        found.append(instance)
        first += int(trace.instance.max(initial=-1)) + 1
    return np.concatenate(found).astype(np.int32)


@dataclass
class _About:
    """Everything but the activities of several traces, collected in their order."""

    unresolved: dict[str, Unresolved] = field(default_factory=dict)  # by reason
    hlo: dict[ModuleKey, bytes] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)
    xla_flags: str = ""  # of the first trace that has some
    recordings: dict[str, Recording] = field(default_factory=dict)
    compiling: dict[str, Ints] = field(default_factory=dict)
    kernels: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)

    def add(self, trace: Trace) -> None:
        """Add the next trace. Windows of one process follow each other."""
        for item in trace.unresolved:
            before = self.unresolved.get(item.reason, Unresolved(item.reason, 0, 0))
            count = before.count + item.count
            duration_ns = before.duration_ns + item.duration_ns
            self.unresolved[item.reason] = Unresolved(item.reason, count, duration_ns)
        self.hlo.update(trace.hlo)
        self.sources += trace.sources
        self.xla_flags = self.xla_flags or trace.xla_flags
        # all windows of one process use the clock of the first
        for process, known in trace.recordings.items():
            self.recordings.setdefault(process, known)
        for process, times in trace.compiling.items():
            earlier = self.compiling.get(process, times[:0])
            self.compiling[process] = np.concatenate([earlier, times])
        for place, names in trace.kernels.items():
            self.kernels[place] = self.kernels.get(place, frozenset()) | names


_HEAD = re.compile(": ")  # follows the name of a file


def _said_once(traces: Sequence[Trace]) -> list[str]:
    """Return the warnings of all traces. A warning of several files becomes ``FILE and 7 more:
    …``.
    """
    sources = chain.from_iterable(trace.sources for trace in traces)
    files = {f"{PurePath(source.path).name}: " for source in sources}
    once: dict[str, dict[str, None]] = {}
    for line in chain.from_iterable(trace.warnings for trace in traces):
        beginnings = (line[: end.end()] for end in _HEAD.finditer(line))
        file = next((text for text in beginnings if text in files), "")
        names = once.setdefault(line[len(file) :], {})
        if file:
            names[file.removesuffix(": ")] = None
    lines = []
    for text, names in once.items():
        lines.append(f"{some(names, 1)}: {text}" if names else text)
    return lines


def _number_on(
    execution: Column, device: Column, module: Column, traces: Sequence[Trace]
) -> None:
    """Continue the execution numbers of a module on a device where an earlier window ends.

    Args:
        execution: numbers of all traces, one trace after the other; changed in place.
        device, module: the device and module of the same rows.
        traces: the windows.
    """
    modules = int(module.max(initial=0)) + 1
    following = np.zeros((int(device.max(initial=0)) + 1) * modules, np.int32)
    ends = np.cumsum([len(trace) for trace in traces]).tolist()

    def began_ns(number: int) -> int:
        return int(traces[number].start_ns.min(initial=LATEST))

    for number in sorted(range(len(traces)), key=began_ns):
        last = ends[number]
        first = last - len(traces[number])
        rows = np.arange(first, last)[execution[first:last] >= 0]
        key = device[rows].astype(np.int64) * modules + module[rows]
        execution[rows] += following[key]
        np.maximum.at(following, key, execution[rows] + 1)


def _unite(tables: Sequence[tuple[T, ...]]) -> tuple[tuple[T, ...], list[Column]]:
    """Return the distinct values of all tables, and per table the new code of each old code."""
    codes: dict[T, int] = {}
    maps = []
    for table in tables:
        new = [codes.setdefault(value, len(codes)) for value in table]
        maps.append(np.array(new or [0], np.int32))
    return tuple(codes), maps
