"""Compile modules with the real XLA:GPU compiler on a machine that needs no GPU, up to the finished
schedule.

A `Compiler` compiles one request: in XLA's own process (`worker.py`), or by taking what was kept
(`cache.py`). Code generation is left out: the scheduled module, the schedule that the
latency-hiding scheduler believed in and the memory report are written before.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import msgspec

from pgle.costs.profile.lookup import LookupTable
from pgle.errors import UserError
from pgle.files import Json, check_file, read_kept
from pgle.run.compiler import worker
from pgle.run.compiler.cache import Cache, Compiled, key_of
from pgle.run.compiler.deviceless import detour, detour_warnings
from pgle.run.compiler.worker import UNSCHEDULED, CompilerProcess
from pgle.run.directory.directory import claim
from pgle.xla.flags.catalogue import PROFILE_PATH, catalogue, release
from pgle.xla.flags.text import format_flags, typed_flag
from pgle.xla.hlo.dumps import fingerprint_of, read_module
from pgle.xla.hlo.module import MAX_HLO_BYTES, Module
from pgle.xla.hlo.schedule_dump import LhsSchedule, Statistics, read_schedule_dump
from pgle.xla.vendors import NVIDIA

T = TypeVar("T")


@dataclass(frozen=True)
class CompileRequest:
    """What to compile, and how."""

    # StableHLO (text, bytecode), or HLO (proto, text) of any stage before scheduling; also ``.xz``,
    # ``.gz``
    module: Path
    # descriptions of the GPU, of which the first that this XLA knows counts (`Target.texts`)
    targets: tuple[str, ...]
    dump_dir: Path  # folder for the dumps and the log; must be new or empty
    # ``SxHxD``: slices, hosts of each, devices of each; None: one host, as in the module
    topology: str | None = None
    # XLA flags, each ``--name=value``, and jax's settings of effort
    # (``--jax_optimization_level=O1``); nothing else is passed on but `EVIDENCE_FLAGS` and what
    # this jaxlib needs where there is no GPU, and the later wins
    flags: tuple[str, ...] = ()
    profile: Path | None = None  # a cost profile, or None
    # device memory of the job's allocator, into which XLA fits the step; 0: XLA's guess, four
    # fifths of the GPU's
    allocator_bytes: int = 0
    # "before scheduling": `CompileResult.after_optimizations` is then the module before scheduling,
    # without schedule, log lines of LHS, fingerprint or memory report; "from scheduling on" takes
    # such a module (`UNSCHEDULED`), which each other compilation leaves, too
    passes: Literal["all", "before scheduling", "from scheduling on"] = "all"
    vendor: str = NVIDIA.name  # of the GPU


@dataclass(frozen=True)
class CompileResult:
    """What a compilation left."""

    module_name: str  # ``jit_train_step``
    num_devices: int  # devices that run it together
    after_optimizations: Path  # the scheduled module, an HloProto file
    # the schedule dump of the latency-hiding scheduler; None where it did not run
    schedule: Path | None
    log: Path  # XLA's log, whole
    fingerprint: str  # ``fingerprint_before_lhs``; empty where the module has none
    compile_s: float  # seconds from the start of the compilation to its schedule
    # device memory in bytes by XLA's buffer assignment (argument, output, temp, total); empty where
    # XLA left no report
    memory: Mapping[str, int]
    jaxlib: str  # version of the jaxlib that compiled
    # flags that XLA needed to compile it without a GPU, after those of the request
    detours: tuple[str, ...] = ()
    # it was compiled before, and comes from the cache; the seconds are of that time
    is_cached: bool = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the compilation had to do otherwise than on a GPU, a line each."""
        return detour_warnings(self.detours)

    @property
    def memory_bytes(self) -> int | None:
        """Device memory that one execution needs, None where XLA's report is missing."""
        return self.memory.get("total")

    @property
    def scheduled(self) -> Module:
        """The module of `after_optimizations`."""
        return _once(read_module, self.after_optimizations)

    @property
    def lhs(self) -> LhsSchedule | None:
        """What the latency-hiding scheduler saw and believed; None where it left no dump."""
        if self.schedule is None:
            return None
        return _once(read_schedule_dump, self.schedule)

    @property
    def table(self) -> LookupTable:
        """What XLA looks up in a profile of it, by the names when LHS ran."""
        module = self.scheduled
        if self.after_optimizations.name == UNSCHEDULED:
            return LookupTable(module, module)  # nothing is renamed from there to LHS
        return LookupTable(module, None if self.lhs is None else self.lhs.module)

    @property
    def believed(self) -> Mapping[str, Statistics]:
        """What it believed of every computation, loop bodies once; empty where it left no dump."""
        if self.lhs is None:
            return {}
        return {name: item.statistics for name, item in self.lhs.computations.items()}


_READING = threading.Lock()
_known = lru_cache(maxsize=6)(lambda read, path, written_ns: read(path))


def _once(read: Callable[[Path], T], path: Path) -> T:
    """A file as it is read, once though two threads want it."""
    with _READING:
        found: T = _known(read, path, path.stat().st_mtime_ns)
    return found


@dataclass(frozen=True)
class CompilerPhase:
    """What a compilation is at."""

    request: CompileRequest  # whose it is
    name: str  # ``reading``, ``compiling``, ``optimising`` …, ``done``
    module: str = ""  # name of the module, empty while it is read
    devices: int = 0  # that it is compiled for, 0 while it is read


OnPhase: TypeAlias = Callable[[CompilerPhase], None]
Unscheduled: TypeAlias = Future[int] | None
"""Gets the devices that a module is for, once it is kept as it was before scheduling
(`UNSCHEDULED`).
"""


@dataclass(eq=False)
class Compiler:
    """Compiles requests in one process; its methods may be called from several threads at once."""

    # the interpreter whose jax compiles; it needs jax and the CUDA plugin, not pgle
    python: str = sys.executable
    cache: Cache | None = None  # where compilations are kept; None: nowhere
    # hears of all, from the thread that reads the compiler's answers
    on_phase: OnPhase = lambda phase: None

    def __post_init__(self) -> None:
        self.process = CompilerProcess(self.python)
        # what a module with its flags needed before
        self._detours: dict[tuple[Path, tuple[str, ...]], tuple[str, ...]] = {}

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and every compilation that still runs; none begins any more."""
        self.process.close()

    def compile(
        self, request: CompileRequest, unscheduled: Unscheduled = None
    ) -> CompileResult:
        """Compile `request.module` up to its schedule."""
        check(request)
        folder = request.dump_dir.resolve()
        claim(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if self.cache is None:
            return _result(
                request, folder, self._compiled(request, folder, unscheduled)
            )
        key = self._key(request)
        names = {"@FOLDER@": str(folder)}
        if request.profile is not None:
            names["@PROFILE@"] = str(request.profile.resolve())
        if (found := self._cached(self.cache, key, request, names)) is not None:
            return found
        _empty(folder)  # of a damaged entry
        self.cache.drop(key)
        answer = self._compiled(request, folder, unscheduled)
        if key == self._key(
            request
        ):  # else the module was written anew since its content was asked for
            self.cache.store(key, folder, names, answer)
        return _result(request, folder, answer)

    def _cached(
        self, cache: Cache, key: str, request: CompileRequest, names: Mapping[str, str]
    ) -> CompileResult | None:
        """A compilation from the cache; None if it is not there, or damaged."""
        folder = request.dump_dir.resolve()
        answer = cache.load(key, folder, names)
        if answer is None or not (folder / worker.LOG).is_file():
            return None
        module = _module(folder, request, answer.module_name)
        if module is None or not module.is_file():
            return None
        self.on_phase(CompilerPhase(request, "kept from before", answer.module_name))
        try:
            found = replace(_result(request, folder, answer), is_cached=True)
            if request.passes != "before scheduling":
                _ = (
                    found.scheduled,
                    found.lhs,
                )  # read here, while it can be compiled again
        except Exception:  # whatever a reader says of damaged files
            return None
        self.on_phase(CompilerPhase(request, "done"))
        return found

    def _key(self, request: CompileRequest) -> str:
        device = (request.targets, request.allocator_bytes, request.topology)
        others = {"device": device, "passes": (request.passes, SCHEDULING_PASSES)}
        return key_of(
            self.python, request.module, request.flags, request.profile, others
        )

    def _compiled(
        self, request: CompileRequest, folder: Path, unscheduled: Unscheduled
    ) -> Compiled:
        """Compile a request as it is. If XLA fails before scheduling, try `detour`."""
        program = (request.module, request.flags)
        detours = self._detours.get(program, ())
        reply = self._ask(_with(request, detours), folder, unscheduled)
        first = reply
        log = folder / worker.LOG
        first_log = b""
        while said := _failure(request, reply, unscheduled):
            flag = detour(said, [*_of_xla(request), *detours])
            if not flag:
                break
            first_log = first_log or read_kept(log) or b""
            detours = (*detours, flag)
            _empty(folder)
            reply = self._ask(_with(request, detours), folder, unscheduled)
        if reply is not first and not reply.keys().isdisjoint(FAILED):
            log.write_bytes(first_log)  # no detour helps: the first says what is wrong
            reply = first
        answer = self._answer(request, folder, reply)
        self._detours[program] = detours
        return msgspec.structs.replace(answer, detours=detours)

    def _answer(self, request: CompileRequest, folder: Path, reply: Json) -> Compiled:
        """What XLA's process says of a compilation that succeeded; else raise its error."""
        worker.check_disk(folder)
        if error := reply.get("user_error"):
            is_module = error["where"] in (None, "", str(request.module.resolve()))
            where = (
                request.module if is_module else error["where"]
            )  # the module as it was given
            raise UserError(error["what"], where=where, remedy=error["remedy"])
        if "crashed" in reply:
            raise worker.crash(reply["crashed"], folder / worker.LOG, request.flags)
        if "xla_error" in reply:
            raise worker.refused(
                reply["xla_error"], request.module, folder / worker.LOG
            )
        return msgspec.convert(reply, Compiled)

    def _ask(
        self, request: CompileRequest, folder: Path, unscheduled: Unscheduled
    ) -> Json:
        """What XLA's process answers to a request."""

        def on_message(said: Json) -> None:
            phase = CompilerPhase(
                request, said["phase"], said.get("module", ""), said.get("devices", 0)
            )
            if (
                unscheduled
                and phase.name == worker.SCHEDULING
                and worker.keep_unscheduled(request.dump_dir)
            ):
                unscheduled.set_result(phase.devices)
            self.on_phase(phase)

        jaxlib = self.process.start(request.vendor)
        same = ("targets", "allocator_bytes", "topology", "passes")
        order = {name: getattr(request, name) for name in same}
        order["module"] = str(request.module.resolve())
        order["dump_dir"] = str(folder)
        order["xla_flags"] = flags_without_gpu(jaxlib, xla_flags(request, folder))
        efforts = [flag for flag in request.flags if flag.startswith(OF_JAX)]
        order["efforts"] = dict(flag[2:].split("=", 1) for flag in efforts)
        try:
            reply = self.process.ask(order, on_message)
            worker.tidy(
                folder,
                passes=request.passes != "from scheduling on"
                and worker.keep_unscheduled(folder),
            )
            return {**reply, "jaxlib": jaxlib}
        finally:
            self.on_phase(CompilerPhase(request, "done"))


def _with(request: CompileRequest, flags: tuple[str, ...]) -> CompileRequest:
    """A request with more flags."""
    return replace(request, flags=(*request.flags, *flags))


def _of_xla(request: CompileRequest) -> list[str]:
    """The request's flags without those of jax."""
    return [flag for flag in request.flags if not flag.startswith(OF_JAX)]


def _failure(request: CompileRequest, reply: Json, unscheduled: Unscheduled) -> str:
    """What XLA says of passes before scheduling that failed; else empty."""
    is_scheduled = unscheduled is not None and unscheduled.done()
    if is_scheduled or request.passes == "from scheduling on":
        return ""
    said: str = reply.get("xla_error", "")
    return said


def _empty(folder: Path) -> None:
    """Remove the files in a folder of dumps."""
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()


def _result(request: CompileRequest, folder: Path, answer: Compiled) -> CompileResult:
    """A compilation by the files in its folder."""
    after = _module(folder, request, answer.module_name)
    if after is None:  # the compiler saw it, and somebody has removed it since
        raise UserError(
            f"the compiled module of {answer.module_name} has been removed",
            where=folder,
            remedy="leave this folder alone while XLA compiles, and run it again",
        )
    return CompileResult(
        after_optimizations=after,
        schedule=worker.find_schedule(folder, answer.module_name),
        log=folder / worker.LOG,
        fingerprint=fingerprint_of(after),
        memory=worker.memory_of(after),
        **msgspec.structs.asdict(answer),
    )


def _module(folder: Path, request: CompileRequest, name: str) -> Path | None:
    """The compiled module, if it is there."""
    if request.passes == "before scheduling":
        return folder / UNSCHEDULED
    return worker.find_dump(folder, name, worker.SCHEDULED)


def compile_once(
    request: CompileRequest, python: str = sys.executable
) -> CompileResult:
    """Compile one module in a session of its own; see `Compiler.compile`."""
    with Compiler(python) as compiler:
        return compiler.compile(request)


EVIDENCE_FLAGS = (
    "--xla_dump_hlo_as_proto=true",
    "--xla_dump_latency_hiding_schedule=true",
)
"""What every rehearsal adds to the flags; neither changes a fingerprint or a schedule."""

OF_JAX = "--jax_"
"""What flags begin with that are settings of jax: options of the compilation
(`environment.EFFORTS`).
"""

PROFILE_FLAG = f"--{PROFILE_PATH}"
ONLY, _DISABLED = "--xla_enable_hlo_passes_only=", "--xla_disable_hlo_passes="
SCHEDULING_PASSES = (
    "pre-scheduling-passes,dynamic-slice-copy-fusion-async-wrapper,gpu-copy-async-wrapper,"
    "latency-hiding-scheduler,"
    "legalize-scheduling-annotations,scheduling-instruction-annotator,scheduled-gpu-module,"
    "post-scheduler-xla-transforms,post-scheduling-passes,async-to-sync-converter,"
    "gpu-convert-async-collectives-to-sync,remat-pipeline,rematerialization,"
    "stream-attribute-annotator,"
    "cse_barrier_expander,fusion-wrapper,fusion-dispatch-pipeline,fusion-block-level-rewriter,"
    "fusion-dynamic-memcpy-rewriter,pdl-launch-annotation"
)
"""Pipelines and passes from scheduling on, observed in jaxlib 0.10.2 and 0.12.0.1
(TF_CPP_VMODULE=hlo_pass_pipeline=1). Passes that earlier pipelines have, too, are left out (dce,
tuple-simplifier, sanitize-constant-names): they would run once more before scheduling, and change
the scheduled program (a step of four pipeline stages: by 1.5 %).
"""
SCHEDULER_FLAGS = frozenset(
    (
        "--xla_gpu_analytical_latency_estimator_options",
        "--xla_gpu_experimental_collective_perf_table_path",
        "--xla_gpu_experimental_matmul_perf_table_path",
        *(
            f"--{setting.name}"
            for setting in catalogue().values()
            if setting.stage == "schedule"
        ),
    )
)
"""Flags that only the passes from scheduling on read."""

FAILED = frozenset(("user_error", "crashed", "xla_error"))
"""What the compiler's process answers of a compilation that failed has one of these keys."""

MOST_DEVICES = 1 << 20
"""Of a topology: XLA makes a description of each, and more than a million is a slip of the
keyboard.
"""


def xla_flags(request: CompileRequest, folder: Path) -> str:
    """The XLA_FLAGS of the compilation; the request's own flags come last and so win."""
    flags = [f"--xla_dump_to={folder}", *EVIDENCE_FLAGS]
    if request.profile is not None:
        flags.append(f"{PROFILE_FLAG}={request.profile.resolve()}")
    own = request.flags
    if request.passes != "from scheduling on":
        flags.append(worker.DUMP_BEFORE_SCHEDULING)
    else:  # XLA takes only one of both lists; disabled passes before the stage are left out already
        given = {flag for flag in own if flag.startswith(_DISABLED)}
        disabled: set[str] = set()
        for flag in given:
            disabled.update(flag.split("=")[1].split(","))
        names = ",".join(
            name for name in SCHEDULING_PASSES.split(",") if name not in disabled
        )
        own = (f"{ONLY}{names}", *(flag for flag in own if flag not in given))
    return format_flags(
        typed_flag(flag) for flag in [*flags, *own] if not flag.startswith(OF_JAX)
    )


TRIALS = "config-assigner"
"""The pass that, from jaxlib 0.11 on, compiles every matrix product (and fusion, where that is
switched on) to take the first configuration of all, since it can time none: nothing looks at that
before the schedule is made.
"""


def flags_without_gpu(jaxlib: str, flags: str) -> str:
    """XLA flags, and those without which that jaxlib cannot compile where there is no GPU, or
    wastes its time.

    What `flags` say wins, but that a list of the only passes to run loses `TRIALS`.
    """
    if release(jaxlib) < (0, 9):  # its autotuner fails without a device
        return f"--xla_gpu_autotune_level=0 {flags}"
    if release(jaxlib) < (0, 11):
        return flags
    fitted = f"--xla_gpu_experimental_enable_fusion_autotuner=false {flags}"
    if (
        ONLY in flags
    ):  # XLA takes no two lists; a pipeline in one runs with all its passes
        return re.sub(rf"(?<=[=,])(autotuner|{TRIALS}),", "", fitted)
    return f"{_DISABLED}{TRIALS} {fitted}"


def check(request: CompileRequest) -> None:
    """Refuse what needs no compiler to be refused."""
    check_file(request.module)
    if request.module.stat().st_size > MAX_HLO_BYTES:
        remedy = (
            "give the module of one program: JAX_DUMP_IR_TO=DIR dumps each to a file "
            "of its own"
        )
        raise UserError(
            f"larger than {MAX_HLO_BYTES:,} bytes", where=request.module, remedy=remedy
        )
    if request.dump_dir.is_dir() and any(request.dump_dir.iterdir()):
        raise UserError(
            "is not empty", where=request.dump_dir, remedy="choose a new folder"
        )
    if request.topology is not None:
        devices_in(request.topology)
    for flag in request.flags:
        if not flag.startswith("--"):
            raise UserError(
                f"XLA flag {flag!r} does not begin with --", remedy="write --name=value"
            )


def devices_in(topology: str) -> int:
    """The devices of a topology ``SxHxD``."""
    remedy = "write 1x1x8 for one host with eight GPUs"
    if not re.fullmatch(r"[1-9]\d{0,8}(x[1-9]\d{0,8}){2}", topology):
        raise UserError(
            f"topology {topology!r} is not SLICESxHOSTSxDEVICES", remedy=remedy
        )
    slices, hosts, devices = (int(part) for part in topology.split("x"))
    if (count := slices * hosts * devices) > MOST_DEVICES:
        what = (
            f"topology {topology} has {count:,} devices, more than a rehearsal takes "
            f"({MOST_DEVICES:,})"
        )
        raise UserError(what, remedy=remedy)
    return count


def compiler_with_cache(
    python: str, *, cached: bool, on_phase: OnPhase = lambda phase: None
) -> Compiler:
    """A compiler, with the user's cache if `cached`."""
    cache = Cache.of_user() if cached else None
    return Compiler(python, cache=cache, on_phase=on_phase)
