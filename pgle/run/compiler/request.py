"""What is compiled and what a compilation leaves; the request as XLA's flags."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Literal, TypeAlias

from pgle.errors import UserError
from pgle.files import check_file
from pgle.run.compiler.dumps import DUMP_BEFORE_SCHEDULING
from pgle.xla.flags.catalogue import catalogue
from pgle.xla.flags.text import format_flags, typed_flag
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.proto import MAX_HLO_BYTES
from pgle.xla.hlo.reader import read_module
from pgle.xla.hlo.schedule_dump import LhsSchedule, Statistics, read_schedule_dump

Passes: TypeAlias = Literal["all", "before scheduling", "from scheduling on"]


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
    portable_target: str = ""  # `Target.portable_text`, for a jax that does not know all of `target`
    # device memory that the job's allocator has; XLA schedules and rematerialises to fit into it. 0: XLA's guess where
    # there is no device, four fifths of the GPU's.
    allocator_bytes: int = 0
    timeout_s: float | None = None  # give up after so many seconds; None: never
    as_job: bool = False  # leave out what saves time and changes the fingerprint (`rehearse.matches_job`)
    keeps_unscheduled: bool = False  # leave the module as it was before scheduling, too (`dumps.UNSCHEDULED`)
    # "before scheduling": `RehearsalResult.after_optimizations` is then the module before scheduling, without schedule,
    # log lines of LHS, fingerprint or memory report; "from scheduling on" takes such a module
    passes: Passes = "all"


@dataclass(frozen=True)
class RehearsalResult:
    """What a compilation left."""

    module_name: str  # ``jit_train_step``
    num_devices: int  # devices that run it together
    after_optimizations: Path  # the scheduled module, an HloProto file
    schedule: Path | None  # the schedule dump of the latency-hiding scheduler; None where it did not run
    log: Path  # XLA's log, whole
    fingerprint: str  # ``fingerprint_before_lhs``; empty where the module has none
    compile_s: float  # seconds from the start of the compilation to its schedule
    # device memory in bytes by XLA's buffer assignment (argument, output, temp, total); empty where XLA left no report
    memory: Mapping[str, int]
    jaxlib: str  # version of the jaxlib that compiled
    kept: bool = False  # it was compiled before, and comes from the cache; the seconds are of that time

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
class Phase:
    """What a compilation is at."""

    request: RehearsalRequest  # whose it is
    name: str  # ``reading``, ``compiling``, ``optimising`` …, ``done``
    module: str = ""  # name of the module, empty while it is read
    devices: int = 0  # that it is compiled for, 0 while it is read


OnPhase: TypeAlias = Callable[[Phase], None]


EVIDENCE_FLAGS = ("--xla_dump_hlo_as_proto=true", "--xla_dump_latency_hiding_schedule=true")
"""What every rehearsal adds to the flags; neither changes a fingerprint or a schedule."""

OF_JAX = "--jax_"
"""What flags begin with that are settings of jax: options of the compilation (`environment.EFFORTS`)."""

PROFILE_FLAG = "--xla_gpu_pgle_profile_file_or_directory_path"
ONLY, _DISABLED = "--xla_enable_hlo_passes_only=", "--xla_disable_hlo_passes="
SCHEDULING_PASSES = (
    "pre-scheduling-passes,dynamic-slice-copy-fusion-async-wrapper,gpu-copy-async-wrapper,latency-hiding-scheduler,"
    "legalize-scheduling-annotations,scheduling-instruction-annotator,scheduled-gpu-module,"
    "post-scheduler-xla-transforms,post-scheduling-passes,async-to-sync-converter,"
    "gpu-convert-async-collectives-to-sync,remat-pipeline,rematerialization,stream-attribute-annotator,"
    "cse_barrier_expander,fusion-wrapper,fusion-dispatch-pipeline,fusion-block-level-rewriter,"
    "fusion-dynamic-memcpy-rewriter,pdl-launch-annotation"
)
"""Pipelines and passes from scheduling on, observed in jaxlib 0.10.2 and 0.12.0.1 (TF_CPP_VMODULE=hlo_pass_pipeline=1).
Those that earlier pipelines have, too, are left out (dce, tuple-simplifier, sanitize-constant-names): they would run
once more before scheduling, and change what is scheduled (a step of four pipeline stages: by 1.5 %)."""
SCHEDULER_FLAGS = frozenset(
    ("--xla_gpu_analytical_latency_estimator_options", "--xla_gpu_experimental_collective_perf_table_path",
     "--xla_gpu_experimental_matmul_perf_table_path",
     *(f"--{setting.name}" for setting in catalogue().values() if setting.stage == "schedule"))
)  # fmt: skip
"""Flags that only the passes from scheduling on read."""

MOST_DEVICES = 1 << 20
"""Of a topology: XLA makes a description of each, and more than a million is a slip of the keyboard."""


def xla_flags(request: RehearsalRequest, folder: Path) -> str:
    """The XLA_FLAGS of the compilation; the request's own flags come last and so win."""
    flags = [f"--xla_dump_to={folder}", *EVIDENCE_FLAGS]
    if request.keeps_unscheduled or request.passes == "before scheduling":
        flags.append(DUMP_BEFORE_SCHEDULING)
    if request.profile is not None:
        flags.append(f"{PROFILE_FLAG}={request.profile.resolve()}")
    return format_flags(typed_flag(flag) for flag in [*flags, *_with_passes(request)] if not flag.startswith(OF_JAX))


def _with_passes(request: RehearsalRequest) -> tuple[str, ...]:
    """The request's own flags, by which only its passes run."""
    if request.passes != "from scheduling on":
        return request.flags
    # XLA takes only one of both lists; what is disabled and comes before the stage has been left out already.
    given = {flag for flag in request.flags if flag.startswith(_DISABLED)}
    disabled = {name for flag in given for name in flag.split("=")[1].split(",")}
    names = ",".join(name for name in SCHEDULING_PASSES.split(",") if name not in disabled)
    return (f"{ONLY}{names}", *(flag for flag in request.flags if flag not in given))


def check(request: RehearsalRequest) -> None:
    """Refuse what needs no compiler to be refused.

    Raises:
        UserError: the module is missing, the folder is in use, or the topology or a flag has not its form.
    """
    check_file(request.module)
    if request.module.stat().st_size > MAX_HLO_BYTES:
        remedy = "give the module of one program: JAX_DUMP_IR_TO=DIR dumps each to a file of its own"
        raise UserError(f"larger than {MAX_HLO_BYTES:,} bytes", where=request.module, remedy=remedy)
    if request.dump_dir.is_dir() and any(request.dump_dir.iterdir()):
        raise UserError("is not empty", where=request.dump_dir, remedy="choose a new folder")
    if request.topology is not None:
        devices_in(request.topology)
    for flag in request.flags:
        if not flag.startswith("--"):
            raise UserError(f"XLA flag {flag!r} does not begin with --", remedy="write --name=value")


def devices_in(topology: str) -> int:
    """The devices of a topology ``SxHxD``.

    Raises:
        UserError: it is not of that form, or of a size that no machine has.
    """
    remedy = "write 1x1x8 for one host with eight GPUs"
    if not re.fullmatch(r"[1-9]\d{0,8}(x[1-9]\d{0,8}){2}", topology):
        raise UserError(f"topology {topology!r} is not SLICESxHOSTSxDEVICES", remedy=remedy)
    slices, hosts, devices = (int(part) for part in topology.split("x"))
    if (count := slices * hosts * devices) > MOST_DEVICES:
        what = f"topology {topology} has {count:,} devices, more than a rehearsal takes ({MOST_DEVICES:,})"
        raise UserError(what, remedy=remedy)
    return count
