"""What is compiled, what a compilation leaves, whether two left the same schedule, and what one is at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Literal, TypeAlias

from pgle.run.rehearse.compiler.dumps import Stage
from pgle.xla.collectives import is_collective_opcode
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.reader import read_module
from pgle.xla.hlo.schedule_dump import LhsSchedule, Statistics, read_schedule_dump

MEMORY_TIES = 0.01
"""Part by which the memory of two schedules that are otherwise the same may differ; measured: 0.003. And part of their
instructions, measured 0.003: short of memory XLA computes some again, by an order of users that no dump keeps."""

TIME_TIES = 0.001  # the same of the times that the scheduler believes, and of the step as predicted


@dataclass(frozen=True)
class RehearsalRequest:
    """What to compile, and how."""

    # StableHLO text or bytecode (``JAX_DUMP_IR_TO``), a `jax.export` artifact, an HLO proto or HLO text of any stage
    # before scheduling; ``.xz`` and ``.gz`` are read
    module: Path
    target: str  # text of a GpuTargetConfigProto (`pgle.xla.targets.Target.text`)
    dump_dir: Path  # folder for the dumps and the log; must be new or empty
    # ``SxHxD`` (slices, hosts per slice, devices per host); None: one host of as many devices as the module is
    # partitioned for
    topology: str | None = None
    # XLA flags, each ``--name=value``, and jax's settings of effort (``--jax_optimization_level=O1``); nothing else is
    # passed on but `EVIDENCE_FLAGS` and what this jaxlib needs where there is no GPU, and the later wins
    flags: tuple[str, ...] = ()
    profile: Path | None = None  # a cost profile, or None
    # give it as XLA flag (applies to every module) or as compile option ``fdo_profile``
    profile_as: Literal["flag", "option"] = "flag"
    portable_target: str = ""  # `Target.portable_text`, for a jax that does not know all of `target`
    # device memory that the job's allocator has; XLA schedules and rematerialises to fit into it. 0: XLA's guess where
    # there is no device, four fifths of the GPU's.
    allocator_bytes: int = 0
    timeout_s: float | None = None  # give up after so many seconds; None: never
    to_the_end: bool = False  # compile with code generation (which takes ptxas)
    as_job: bool = False  # leave out what saves time and changes the fingerprint (`matches_job`)
    before_stages: bool = False  # leave the module as it was before each stage, too (`dumps.BEFORE`)
    # end before anything is scheduled: `RehearsalResult.after_optimizations` is then the module before scheduling,
    # without schedule, log lines of LHS, fingerprint or memory report
    until_scheduling: bool = False
    passes: Stage | None = None  # run the passes of this stage alone, on a module as it was before it; None: all passes


@dataclass(frozen=True)
class RehearsalResult:
    """What a compilation left."""

    module_name: str  # ``jit_train_step``
    num_partitions: int  # SPMD partitions it was compiled for
    num_replicas: int  # replicas, mostly 1
    after_optimizations: Path  # the scheduled module, an HloProto file
    before_optimizations: Path | None  # the module as XLA first saw it; None where XLA dumped none
    schedule: Path | None  # the schedule dump of the latency-hiding scheduler; None where it did not run
    log: Path  # XLA's log, whole
    fingerprint: str  # ``fingerprint_before_lhs``; empty where the module has none
    compile_s: float  # seconds from the start of the compilation to its schedule
    start_s: float  # seconds for reading the module; 0 where this session had read it before
    wall_s: float  # seconds from the request to this result
    cpu_s: float  # processor seconds of the compilation
    peak_bytes: int  # largest memory of its process
    # device memory in bytes by XLA's buffer assignment (argument, output, alias, temp, total); empty where XLA left no
    # report
    memory: Mapping[str, int]
    jaxlib: str  # version of the jaxlib that compiled
    kept: bool = False  # it was compiled before, and comes from the cache; the seconds are of that time

    @property
    def num_devices(self) -> int:
        """Devices that run it together."""
        return self.num_partitions * self.num_replicas

    @property
    def memory_bytes(self) -> int | None:
        """Device memory that one execution needs, None where XLA's report is missing."""
        return self.memory.get("total")

    @property
    def scheduled(self) -> Module:
        """The module of `after_optimizations`."""
        with _READING:
            return _scheduled(self.after_optimizations, self.after_optimizations.stat().st_mtime_ns)

    @property
    def lhs(self) -> LhsSchedule | None:
        """What the latency-hiding scheduler saw and believed; None where it left no dump."""
        with _READING:
            return None if self.schedule is None else _lhs(self.schedule, self.schedule.stat().st_mtime_ns)

    @property
    def believed(self) -> Mapping[str, Statistics]:
        """What it believed of every computation, loop bodies once; empty where it left no dump."""
        return {} if self.lhs is None else {name: item.statistics for name, item in self.lhs.computations.items()}


_READING = Lock()  # what two threads want is read once


@lru_cache(maxsize=3)
def _scheduled(path: Path, written_ns: int) -> Module:
    return read_module(path)


@lru_cache(maxsize=3)
def _lhs(path: Path, written_ns: int) -> LhsSchedule:
    return read_schedule_dump(path)


@dataclass(frozen=True)
class Held:
    """What tells two schedules of one program apart."""

    times: Mapping[str, tuple[float, float]]  # of every computation what LHS believed: length, exposed; empty: no dump
    memory: int
    opcodes: Counter[str]


def holds(made: RehearsalResult) -> Held:
    """What a compilation holds of that."""
    times = {name: (item.total_cycles, item.total_wasted_cycles) for name, item in made.believed.items()}
    opcodes = Counter(item.opcode for item in made.scheduled.walk())
    del opcodes["bitcast"]  # of bitcasts XLA may make one, and it costs nothing
    return Held(times, made.memory.get("total", 0), opcodes)


def same_schedule(one: Held, other: Held) -> bool:
    """Whether XLA's scheduler made the same of both: length and exposed time of every computation, and collectives.

    Memory and other instructions may differ by a little, since ties between those that cost nothing break otherwise.
    """
    near = abs(one.memory - other.memory) <= MEMORY_TIES * max(one.memory, other.memory)
    if not one.times or not _same_times(one.times, other.times) or not near:
        return False
    differing = (one.opcodes - other.opcodes) + (other.opcodes - one.opcodes)
    return not any(map(is_collective_opcode, differing)) and differing.total() <= MEMORY_TIES * one.opcodes.total()


def _same_times(one: Mapping[str, tuple[float, float]], other: Mapping[str, tuple[float, float]]) -> bool:
    """Whether no computation's times differ by more than its length's share of `TIME_TIES`."""
    if one.keys() != other.keys():
        return False
    return all(
        abs(a - b) <= TIME_TIES * max(one[name][0], 1.0)
        for name in one
        for a, b in zip(one[name], other[name], strict=True)
    )


@dataclass(frozen=True)
class Phase:
    """What a compilation is at."""

    request: RehearsalRequest  # whose it is
    name: str  # ``reading``, ``compiling``, ``optimising`` …, ``done``
    module: str = ""  # name of the module, empty while it is read
    devices: int = 0  # that it is compiled for, 0 while it is read


OnPhase: TypeAlias = Callable[[Phase], None]
