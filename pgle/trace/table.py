"""The Trace table: what a profiler recorded, one row per GPU activity, as columns.

Every reader makes this one form; every later stage takes it. Strings are dictionary-encoded: a column of codes and a
tuple of values. Rows are ordered by (device, start).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

SIMULATED = "simulated by pgle, no GPU ran this"
"""The warning that a simulated trace carries, in its files too."""


LIBRARIES = re.compile(r"nvjet|xmma|hmma|gmma|cutlass|(?:\d|[sdhc])gemm|convolve|cudnn|flash_|fmha")
"""In names of kernels that libraries bring, which say what they compute in; XLA's own are named after instructions."""


class Kind(IntEnum):
    """What a GPU activity is."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    HOST = 3
    """Work of the CPU backend, where the "device" is a host thread."""


@dataclass(frozen=True)
class ModuleKey:
    """An executable as traces name it: HLO module name and program id (None where the trace has none)."""

    name: str
    program_id: int | None = None


@dataclass(frozen=True, order=True)
class Device:
    """One device of one process.

    Attributes:
        process: what tells processes apart in the inputs: ``HOST:PID``, or the input's name and the pid.
        ordinal: the device's number inside that process.
        global_id: JAX's global device id, None where the trace does not say.
    """

    process: str
    ordinal: int
    global_id: int | None = None


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
    """GPU activities that belong to no instruction, by reason.

    Attributes:
        reason: the `word` of a `Reason`.
        count: how many activities.
        duration_ns: their total GPU time.
    """

    reason: str
    count: int
    duration_ns: int


@dataclass(frozen=True)
class Source:
    """An input: path, format (``nsys-sqlite``, ``nsys-parquet``, ``xplane``), version of the recording tool."""

    path: str
    format: str
    version: str = ""


@dataclass(frozen=True)
class Recording:
    """What is known of one process's recording besides its activities.

    Attributes:
        utc_ns: the wall clock, in ns since 1970, when `Trace.start_ns` is 0; None where unknown.
        gpus: ``uuid:…`` and ``bus:…`` of the GPUs that the process used, or else saw; empty where unknown.
        namespace: the container's process namespace; empty where unknown.
    """

    utc_ns: int | None = None
    gpus: frozenset[str] = frozenset()
    namespace: str = ""


@dataclass(frozen=True)
class Trace:
    """GPU activities of one or several inputs, n rows.

    Attributes:
        start_ns: int64[n], since an origin common to the rows of one process.
        duration_ns: int64[n].
        kind: uint8[n], values of `Kind`.
        device: int32[n], index into `devices`.
        stream: int32[n], as recorded.
        module: int32[n], index into `modules`.
        instruction: int32[n], index into `instructions`: the run-time (final) HLO instruction name.
        execution: int32[n], running number of the module's execution on that device, from 0 in the window; -1 unknown.
        instance: int32[n], number of the launch (thunk range) that issued the activity; activities of one launch on one
            device share it; -1 unknown, then every row is its own launch.
        modules: the executables.
        instructions: instruction names.
        devices: the devices.
        unresolved: activities that were seen and left out, by reason.
        hlo: serialized HloProto by executable, where the trace embeds them.
        sources: the inputs.
        xla_flags: XLA_FLAGS of the profiled process where the trace tells, else empty. Nothing else of the recorded
            environment is kept: it may hold secrets.
        warnings: what the user should know, one line each.
        recordings: by process; one may be missing.
        compiling: int64[n, 2] by process, start and end of the times in which XLA compiled there; a process is missing
            where none are recorded.
        kernels: names of libraries' kernels (`LIBRARIES`) by module name and instruction; empty where not recorded.
    """

    start_ns: npt.NDArray[np.int64]
    duration_ns: npt.NDArray[np.int64]
    kind: npt.NDArray[np.uint8]
    device: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int32]
    module: npt.NDArray[np.int32]
    instruction: npt.NDArray[np.int32]
    execution: npt.NDArray[np.int32]
    instance: npt.NDArray[np.int32]
    modules: tuple[ModuleKey, ...]
    instructions: tuple[str, ...]
    devices: tuple[Device, ...]
    unresolved: tuple[Unresolved, ...] = ()
    hlo: Mapping[ModuleKey, bytes] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    xla_flags: str = ""
    warnings: tuple[str, ...] = ()
    recordings: Mapping[str, Recording] = field(default_factory=dict)
    compiling: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
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
        return self.start_ns + self.duration_ns
