"""The Trace table: what a profiler recorded, one row per GPU activity, as columns that grow while it is read.

Every reader makes this one form; every later stage takes it. Strings are dictionary-encoded: a column of codes and a
tuple of values. Rows are ordered by (device, start).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from pgle.errors import many

Number = TypeVar("Number", bound=np.generic)

BLOCK_BYTES = 32 << 20  # from this size on, glibc always maps memory of its own (M_MMAP_THRESHOLD in `mallopt(3)`)

MANY = 1 << 17
"""A column of so many values is likely to become long. Short ones stay small: new memory is zeroed 2 MiB at a time."""


def narrow(values: npt.NDArray[Any], least: npt.DTypeLike = np.int16) -> npt.NDArray[Any]:
    """Signed integers in the fewest bytes that hold them all, but no fewer than `least`; other values as they are."""
    if values.dtype.kind != "i":
        return values
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    sizes = [size for size in (2, 4) if size >= np.dtype(least).itemsize and -(2 ** (8 * size - 1)) <= low]
    fewest = next((size for size in sizes if high < 2 ** (8 * size - 1)), values.itemsize)
    return values.astype(f"i{fewest}", copy=False)


class GrowingColumn(Generic[Number]):
    """A column that grows by whole batches and is joined once.

    Batches are copied into blocks so large that the C library gives their memory back as soon as they are freed; kept
    as they come, they would leave holes that add up to a third of the memory of a long trace.

    Args:
        dtype: of its values; one of signed integers gets wider where a value needs it.
        most: how many there are at most, where that is known: then it is one block, never copied. What of it is not
            filled takes no memory.
    """

    def __init__(self, dtype: type[Number], most: int = 0) -> None:
        self._dtype, self._most = np.dtype(dtype), most
        self._full: list[npt.NDArray[Number]] = []
        self._block = np.empty(most, dtype)
        self._used = 0

    def __len__(self) -> int:
        return sum(map(len, self._full)) + self._used

    def append(self, values: npt.NDArray[np.generic]) -> None:
        """Add values, as this column's type."""
        values = narrow(values, self._dtype)
        is_wider = self._dtype.kind == "i" and values.dtype.itemsize > self._dtype.itemsize
        if is_wider:
            self._dtype = values.dtype
        while len(values):
            if is_wider or self._used == len(self._block):
                most = BLOCK_BYTES // self._dtype.itemsize if len(self) >= MANY else 2 * self._used
                size = max(len(values), most, self._most - len(self))
                if self._used:
                    self._full.append(self._block[: self._used])
                self._block, self._used, is_wider = np.empty(size, self._dtype), 0, False
            count = min(len(values), len(self._block) - self._used)
            self._block[self._used : self._used + count] = values[:count]
            self._used += count
            values = values[count:]

    def join(self) -> npt.NDArray[Number]:
        """The whole column; it is empty afterwards, and each block is given back as soon as it is copied."""
        parts = [*self._full, self._block[: self._used]]
        self._full, self._block, self._used, self._most = [], np.empty(0, self._dtype), 0, 0
        if len(parts) == 1:
            return parts[0]
        joined, end = np.empty(sum(map(len, parts)), self._dtype), 0
        while parts:
            part = parts.pop(0)
            joined[end : end + len(part)] = part
            end += len(part)
        return joined


def totals(codes: npt.NDArray[np.integer], values: npt.NDArray[np.integer], count: int) -> npt.NDArray[np.float64]:
    """float64[count], the sum of the values of each code; some rows at a time: `np.bincount` makes doubles of all."""
    found = np.zeros(count)
    for at in range(0, len(codes), MANY):
        found += np.bincount(codes[at : at + MANY], weights=values[at : at + MANY], minlength=count)
    return found


def heads(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """The first of equal values that follow each other."""
    new = np.ones(len(values), np.bool_)
    new[1:] = values[1:] != values[:-1]
    return values[new]


def distinct(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """The distinct values, ascending.

    As `np.unique`, which (like `np.median`) imports `numpy.ma` to ask whether these are masked: a tenth of what a small
    conversion takes to start.
    """
    return heads(np.sort(values))


def median(values: npt.NDArray[np.number]) -> float:
    """The median of at least one value."""
    ordered = np.sort(values)
    return float((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)


NOISE = 3.0  # normal deviations that values differ by from their median without anybody calling them special
NEAR = 0.25  # of the median; of few values the deviation is not known well enough to call a nearer one unusual
MAD_TO_DEVIATION = 1.4826  # median absolute deviation to standard deviation of a normal distribution


def usual_values(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """bool[n]: within `NOISE` robust deviations or `NEAR` of their median; of fewer than three values, all."""
    if len(values) < 3:
        return np.ones(len(values), np.bool_)
    middle = median(values)
    apart = np.abs(values - middle)
    return np.asarray(apart <= max(NOISE * MAD_TO_DEVIATION * median(apart), NEAR * abs(middle)))


SIMULATED = "simulated by pgle, no GPU ran this"  # the warning that a simulated trace carries, in its files too


LIBRARIES = re.compile(r"nvjet|xmma|hmma|gmma|cutlass|(?:\d|[sdhc])gemm|convolve|cudnn|flash_|fmha")
"""In names of kernels that libraries bring, which say what they compute in; XLA's own are named after instructions."""


class ActivityKind(IntEnum):
    """What a GPU activity is."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    HOST = 3  # work of the CPU backend, where the "device" is a host thread


@dataclass(frozen=True)
class ModuleKey:
    """An executable as traces name it: HLO module name and program id (None where the trace has none)."""

    name: str
    program_id: int | None = None


@dataclass(frozen=True, order=True)
class Device:
    """One device of one process."""

    process: str  # what tells processes apart in the inputs: ``HOST:PID``, or the input's name and the pid
    ordinal: int  # the device's number inside that process
    global_id: int | None = None  # JAX's global device id, None where the trace does not say


class LeftOutReason(IntEnum):
    """Why a GPU activity belongs to no instruction; `NONE` where it belongs to one."""

    NONE = 0
    NO_API_ROW = 1
    NO_RANGE = 2
    NO_THUNK = 3
    AUTOTUNER = 4
    NO_MODULE = 5
    GRAPH_NODE = 6
    BAD_TIME = 7
    GRAPH_LAUNCH = 8

    @property
    def word(self) -> str:
        """``no-api-row``."""
        return self.name.lower().replace("_", "-")


MEANINGS = {
    LeftOutReason.NO_API_ROW.word: "launched before the recording began",
    LeftOutReason.NO_RANGE.word: "launched outside of any XLA program",
    LeftOutReason.NO_THUNK.word: "launched by XLA outside of any instruction",
    LeftOutReason.AUTOTUNER.word: "run while compiling, to tune kernels",
    LeftOutReason.NO_MODULE.word: "launched outside of any module",
    LeftOutReason.GRAPH_NODE.word: "inside a CUDA graph whose building was not recorded",
    LeftOutReason.BAD_TIME.word: "without a possible time",
    LeftOutReason.GRAPH_LAUNCH.word: "whole CUDA graphs, which hide their kernels",
}
"""Each reason, by its `word`, in plain words."""


@dataclass(frozen=True)
class Unresolved:
    """GPU activities that belong to no instruction, by reason."""

    reason: str  # the `word` of a `LeftOutReason`
    count: int  # how many activities
    duration_ns: int  # their total GPU time


@dataclass(frozen=True)
class Source:
    """An input: path, format (``nsys-sqlite`` or ``xplane``), version of the recording tool."""

    path: str
    format: str
    version: str = ""


@dataclass(frozen=True)
class Recording:
    """Facts about one process's recording besides its activities."""

    utc_ns: int | None = None  # the wall clock, in ns since 1970, when `Trace.start_ns` is 0; None where unknown
    # ``uuid:…`` and ``bus:…`` of the GPUs that the process used, or else saw; empty where unknown
    gpus: frozenset[str] = frozenset()
    namespace: str = ""  # the container's process namespace; empty where unknown
    vendor: str = ""  # of the GPUs, ``Nvidia`` or ``AMD``; empty where unknown
    capability: tuple[int, int] | None = None  # compute capability of the GPUs; None where unknown


Codes: TypeAlias = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class Trace:
    """GPU activities of one or several inputs, n rows. Integers have up to eight bytes, and fewer where those do."""

    start_ns: npt.NDArray[np.int64]  # int64[n], since an origin common to the rows of one process
    duration_ns: Codes  # int[n]
    kind: npt.NDArray[np.uint8]  # uint8[n], values of `ActivityKind`
    device: Codes  # int[n], index into `devices`
    stream: Codes  # int[n], as recorded
    module: Codes  # int[n], index into `modules`
    instruction: Codes  # int[n], index into `instructions`: the run-time (final) HLO instruction name
    execution: (
        Codes  # int[n], running number of the module's execution on that device, from 0 in the window; -1 unknown
    )
    # int[n], number of the launch (thunk range) that issued the activity; activities of one launch on one device
    # share it; -1 unknown, then every row is its own launch
    instance: Codes
    modules: tuple[ModuleKey, ...]  # the executables
    instructions: tuple[str, ...]  # instruction names
    devices: tuple[Device, ...]  # the devices
    unresolved: tuple[Unresolved, ...] = ()  # activities that were seen and left out, by reason
    # serialized HloProto by executable, where the trace embeds them
    hlo: Mapping[ModuleKey, bytes] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()  # the inputs
    # XLA_FLAGS of the profiled process where the trace tells, else empty. Nothing else of the recorded environment is
    # kept: it may hold secrets.
    xla_flags: str = ""
    warnings: tuple[str, ...] = ()  # what the user should know, one line each
    recordings: Mapping[str, Recording] = field(default_factory=dict)  # by process; one may be missing
    # int64[n, 2] by process, start and end of the times in which XLA compiled there; a process is missing where none
    # are recorded
    compiling: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    # names of libraries' kernels (`LIBRARIES`) by module name and instruction; empty where not recorded
    kernels: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def simulated(self) -> bool:
        """Whether (part of) the trace comes from the simulated GPU."""
        return any(SIMULATED in line for line in self.warnings)

    @property
    def end_ns(self) -> npt.NDArray[np.int64]:
        """int64[n], start + duration."""
        return np.asarray(self.start_ns + self.duration_ns)


ROW_COLUMNS = ("start_ns", "duration_ns", "kind", "device", "stream", "module", "instruction", "execution", "instance")
"""The columns of a `Trace` with a value for each row."""


def without_repeats(trace: Trace) -> Trace:
    """The trace with each GPU activity once, and a warning where some were recorded again.

    A stream runs one activity at a time, so rows of one stream, start, duration and instruction are one activity.
    """
    same = (np.diff(trace.start_ns) == 0) & (np.diff(trace.device) == 0) & (np.diff(trace.duration_ns) == 0)
    if not same.any():
        return trace
    near = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    near = near[trace.kind[near] != ActivityKind.HOST]
    columns = (trace.instruction, trace.module, trace.stream, trace.duration_ns, trace.start_ns, trace.device)
    order = near[np.lexsort(tuple(column[near] for column in columns))]
    again = np.ones(len(order), np.bool_)
    again[:1] = False
    for column in columns:
        again[1:] &= np.diff(column[order]) == 0
    if not again.any():
        return trace
    keep = np.ones(len(trace), np.bool_)
    keep[order[again]] = False
    twice = f"{many(int(again.sum()), 'event')} of the GPU recorded twice; each counts once"
    return replace(
        trace,
        **{name: getattr(trace, name)[keep] for name in ROW_COLUMNS},
        warnings=(*trace.warnings, f"{twice}. Record again if the profiler was started twice"),
    )
