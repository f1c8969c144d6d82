"""What is compiled, what a compilation leaves, and what it is at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class RehearsalRequest:
    """What to compile, and how.

    Attributes:
        module: StableHLO text or bytecode (``JAX_DUMP_IR_TO``), a `jax.export` artifact, an HLO proto or HLO text of
            any stage before scheduling; ``.xz`` and ``.gz`` are read.
        target: text of a GpuTargetConfigProto (`pgle.xla.targets.Target.text`).
        dump_dir: folder for the dumps and the log; must be new or empty.
        topology: ``SxHxD`` (slices, hosts per slice, devices per host); None: one host of as many devices as the
            module is partitioned for.
        flags: XLA flags, each ``--name=value``; nothing else is passed on but `EVIDENCE_FLAGS` and what this jaxlib
            needs where there is no GPU, and the later wins.
        profile: a cost profile, or None.
        profile_as: give it as XLA flag (applies to every module) or as compile option ``fdo_profile``.
        portable_target: `Target.portable_text`, for a jax that does not know all of `target`.
        allocator_bytes: device memory that the job's allocator has; XLA schedules and rematerialises to fit into it.
            0: XLA's guess where there is no device, four fifths of the GPU's.
        timeout_s: give up after so many seconds; None: never.
        to_the_end: compile with code generation (which takes ptxas).
        as_job: leave out what saves time and changes the fingerprint (`matches_job`).
        before_scheduling: leave the module as it was before scheduling, too (`dumps.BEFORE_SCHEDULING`).
        until_scheduling: leave that alone, and end before anything is scheduled: `RehearsalResult.after_optimizations`
            is then this module, without schedule, log lines of LHS, fingerprint or memory report.
    """

    module: Path
    target: str
    dump_dir: Path
    topology: str | None = None
    flags: tuple[str, ...] = ()
    profile: Path | None = None
    profile_as: Literal["flag", "option"] = "flag"
    portable_target: str = ""
    allocator_bytes: int = 0
    timeout_s: float | None = None
    to_the_end: bool = False
    as_job: bool = False
    before_scheduling: bool = False
    until_scheduling: bool = False


@dataclass(frozen=True)
class RehearsalResult:
    """What a compilation left.

    Attributes:
        module_name: ``jit_train_step``.
        num_partitions: SPMD partitions it was compiled for.
        num_replicas: replicas, mostly 1.
        after_optimizations: the scheduled module, an HloProto file.
        before_optimizations: the module as XLA first saw it; None where XLA dumped none.
        schedule: the schedule dump of the latency-hiding scheduler; None where it did not run.
        log: XLA's log, whole.
        fingerprint: ``fingerprint_before_lhs``; empty where the module has none.
        compile_s: seconds from the start of the compilation to its schedule.
        start_s: seconds for reading the module; 0 where this session had read it before.
        wall_s: seconds from the request to this result.
        cpu_s: processor seconds of the compilation.
        peak_bytes: largest memory of its process.
        memory: device memory in bytes by XLA's buffer assignment (argument, output, alias, temp, total); empty where
            XLA left no report.
        jaxlib: version of the jaxlib that compiled.
        kept: it was compiled before, and comes from the cache; the seconds are of that time.
    """

    module_name: str
    num_partitions: int
    num_replicas: int
    after_optimizations: Path
    before_optimizations: Path | None
    schedule: Path | None
    log: Path
    fingerprint: str
    compile_s: float
    start_s: float
    wall_s: float
    cpu_s: float
    peak_bytes: int
    memory: Mapping[str, int]
    jaxlib: str
    kept: bool = False

    @property
    def num_devices(self) -> int:
        """Devices that run it together."""
        return self.num_partitions * self.num_replicas

    @property
    def memory_bytes(self) -> int | None:
        """Device memory that one execution needs, None where XLA's report is missing."""
        return self.memory.get("total")


@dataclass(frozen=True)
class Phase:
    """What a compilation is at.

    Attributes:
        request: whose it is.
        name: ``reading``, ``compiling``, ``optimising`` …, ``done``.
        module: name of the module, empty while it is read.
        devices: that it is compiled for, 0 while it is read.
    """

    request: RehearsalRequest
    name: str
    module: str = ""
    devices: int = 0


OnPhase: TypeAlias = Callable[[Phase], None]
