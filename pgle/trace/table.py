"""The Trace table: what a profiler recorded, one row per GPU activity, as columns.

Every reader makes this one form; every later stage takes it. Strings are dictionary-encoded: a column of codes and a
tuple of values. Rows are ordered by (device, start).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

SIMULATED = "simulated by pgle, no GPU ran this"  # the warning that a simulated trace carries, in its files too


LIBRARIES = re.compile(r"nvjet|xmma|hmma|gmma|cutlass|(?:\d|[sdhc])gemm|convolve|cudnn|flash_|fmha")
"""In names of kernels that libraries bring, which say what they compute in; XLA's own are named after instructions."""


class Kind(IntEnum):
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


class Reason(IntEnum):
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
    Reason.NO_API_ROW: "launched before the recording began",
    Reason.NO_RANGE: "launched outside of any XLA program",
    Reason.NO_THUNK: "launched by XLA outside of any instruction",
    Reason.AUTOTUNER: "run while compiling, to tune kernels",
    Reason.NO_MODULE: "launched outside of any module",
    Reason.GRAPH_NODE: "inside a CUDA graph whose building was not recorded",
    Reason.BAD_TIME: "without a possible time",
    Reason.GRAPH_LAUNCH: "whole CUDA graphs, which hide their kernels",
}
"""Each reason in plain words."""


@dataclass(frozen=True)
class Unresolved:
    """GPU activities that belong to no instruction, by reason."""

    reason: str  # the `word` of a `Reason`
    count: int  # how many activities
    duration_ns: int  # their total GPU time


@dataclass(frozen=True)
class Source:
    """An input: path, format (``nsys-sqlite``, ``nsys-parquet``, ``xplane``), version of the recording tool."""

    path: str
    format: str
    version: str = ""


@dataclass(frozen=True)
class Recording:
    """What is known of one process's recording besides its activities."""

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
    kind: npt.NDArray[np.uint8]  # uint8[n], values of `Kind`
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
