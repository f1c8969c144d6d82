"""What is compiled and what a compilation leaves; the request as flags, environment and one line of JSON."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypeAlias

from pgle.errors import UserError
from pgle.files import check_file
from pgle.run.compiler.dumps import BEFORE, Stage, dump_before
from pgle.xla.collectives import is_collective_opcode
from pgle.xla.flags.catalogue import catalogue
from pgle.xla.flags.text import format_flags, typed_flag
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.proto import MAX_HLO_BYTES
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


EVIDENCE_FLAGS = ("--xla_dump_hlo_as_proto=true", "--xla_dump_latency_hiding_schedule=true")
"""What every rehearsal adds to the flags; neither changes a fingerprint or a schedule."""

OF_JAX = "--jax_"
"""What flags begin with that are settings of jax: options of the compilation (`environment.EFFORTS`)."""

PROFILE_FLAG = "--xla_gpu_pgle_profile_file_or_directory_path"
ONLY, _DISABLED = "--xla_enable_hlo_passes_only=", "--xla_disable_hlo_passes="
# Observed in jaxlib 0.10.2 and 0.12.0.1 (TF_CPP_VMODULE=hlo_pass_pipeline=1): pipelines and passes of each stage. Those
# that earlier pipelines have, too, are left out (dce, tuple-simplifier, sanitize-constant-names before scheduling;
# algsimp, which merges bitcasts, before combining): they would run once more before the stage, and change what is
# scheduled (a step of four pipeline stages: by 1.5 %).
PASSES: dict[Stage, str] = {
    "combining": (
        "rename_fusions,dus-accumulator-zero-init-elimination,gpu-all-gather-combiner,gpu-all-reduce-combiner,"
        "gpu-reduce-scatter-combiner,collective-permute-combiner,collective-backend-assigner,"
        "collective-kernel-strategy-annotator,collective-fusion,collective-domain-assigner,group-collectives-by-key,"
        "all-reduce-contiguous,async-collective-creator,async-collective-annotator,stream-attribute-annotator,"
        "async-stream-attribute-wrapper,explicit-stream-annotation-async-wrapper,"
        "explicit-collectives-group-async-wrapper,collectives-schedule-linearizer,fusion-wrapper,autotuner,"
        "conv-fp8-fallback,config-assigner,propagate-call-metadata,loop-schedule-linearizer,copy-insertion,"
        "constant-fill-copy-rewriter,copy_fusion,sanitize-constant-names"
    ),
    "scheduling": (
        "pre-scheduling-passes,dynamic-slice-copy-fusion-async-wrapper,gpu-copy-async-wrapper,latency-hiding-scheduler,"
        "legalize-scheduling-annotations,scheduling-instruction-annotator,scheduled-gpu-module,"
        "post-scheduler-xla-transforms,post-scheduling-passes,async-to-sync-converter,"
        "gpu-convert-async-collectives-to-sync,remat-pipeline,rematerialization,stream-attribute-annotator,"
        "cse_barrier_expander,fusion-wrapper,fusion-dispatch-pipeline,fusion-block-level-rewriter,"
        "fusion-dynamic-memcpy-rewriter,pdl-launch-annotation"
    ),
}
SCHEDULER_FLAGS = frozenset(
    ("--xla_gpu_analytical_latency_estimator_options", "--xla_gpu_experimental_collective_perf_table_path",
     "--xla_gpu_experimental_matmul_perf_table_path",
     *(f"--{setting.name}" for setting in catalogue().values() if setting.stage == "schedule"))
)  # fmt: skip
"""Flags that only the passes from scheduling on read."""

_COMBINER_FLAG = re.compile(r"--xla_gpu_\w+_combine_threshold_bytes=")
"""Flags that only the passes from combining on read."""
MOST_DEVICES = 1 << 20
"""Of a topology: XLA makes a description of each, and more than a million is a slip of the keyboard."""


def xla_flags(request: RehearsalRequest, folder: Path) -> str:
    """The XLA_FLAGS of the compilation; the request's own flags come last and so win."""
    flags = [f"--xla_dump_to={folder}", *EVIDENCE_FLAGS]
    if request.before_stages or request.until_scheduling:
        flags.append(dump_before(BEFORE if request.before_stages else ["scheduling"]))
    if request.profile is not None and request.profile_as == "flag":
        flags.append(f"{PROFILE_FLAG}={request.profile.resolve()}")
    return format_flags(typed_flag(flag) for flag in [*flags, *_with_passes(request)] if not flag.startswith(OF_JAX))


def _with_passes(request: RehearsalRequest) -> tuple[str, ...]:
    """The request's own flags, by which only the passes of its stage run."""
    if request.passes is None:
        return request.flags
    # XLA takes only one of both lists; what is disabled and comes before the stage has been left out already.
    given = {flag for flag in request.flags if flag.startswith(_DISABLED)}
    disabled = {name for flag in given for name in flag.split("=")[1].split(",")}
    names = ",".join(name for name in PASSES[request.passes].split(",") if name not in disabled)
    return (f"{ONLY}{names}", *(flag for flag in request.flags if flag not in given))


def before_combiners(flags: Iterable[str]) -> tuple[str, ...]:
    """Flags without those that only the passes from combining on read."""
    return tuple(flag for flag in flags if not _COMBINER_FLAG.match(flag))


def message(number: int, request: RehearsalRequest, folder: Path) -> dict[str, Any]:
    """A request under its number, as JSON."""
    option = request.profile if request.profile_as == "option" else None
    return {
        "id": number,
        "module": str(request.module.resolve()),
        "dump_dir": str(folder),
        "target": request.target,
        "portable_target": request.portable_target,
        "allocator_bytes": request.allocator_bytes,
        "topology": request.topology,
        "xla_flags": xla_flags(request, folder),
        "efforts": dict(flag[2:].split("=", 1) for flag in request.flags if flag.startswith(OF_JAX)),
        "fdo_profile": str(option.resolve()) if option is not None else None,
        "to_the_end": request.to_the_end,
        "until_scheduling": request.until_scheduling,
        "as_job": request.as_job,
    }


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
    if not re.fullmatch(r"[1-9]\d{0,8}(x[1-9]\d{0,8}){2}", topology):
        raise UserError(
            f"topology {topology!r} is not SLICESxHOSTSxDEVICES", remedy="write 1x1x8 for one host with eight GPUs"
        )
    slices, hosts, devices = (int(part) for part in topology.split("x"))
    if slices * hosts * devices > MOST_DEVICES:
        raise UserError(
            f"topology {topology} has {slices * hosts * devices:,} devices, more than a rehearsal takes "
            f"({MOST_DEVICES:,})",
            remedy="write 1x1x8 for one host with eight GPUs",
        )
    return slices * hosts * devices


def environment() -> dict[str, str]:
    """The compiler's environment: ours without what would change the compilation."""
    drop = ("XLA_FLAGS", "TF_CPP_", "TF_XLA_", "JAX_", "LIBTPU_INIT_ARGS", "PGLE_HOOK")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(drop)}
    return kept | {
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",  # a GPU that is there is left alone
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        # Without it the plugin prints a traceback about missing CUDA libraries, which a rehearsal does not need.
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "OPENBLAS_NUM_THREADS": "1",  # numpy would start threads, and the process is to fork
        # Pages of 2 MiB where Linux gives them on request (glibc 2.35): XLA's passes follow pointers through gigabytes.
        "GLIBC_TUNABLES": ":".join(filter(None, (kept.get("GLIBC_TUNABLES"), "glibc.malloc.hugetlb=1"))),
    }
