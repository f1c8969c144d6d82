"""Compile modules with the real XLA:GPU compiler on a machine that needs no GPU, up to the finished
schedule.

A `Compiler` compiles a request in XLA's own process (`worker.py`), or takes the stored result
(`cache.py`). Code generation is skipped, because XLA writes the scheduled module, the scheduler's
own estimates and the memory report before it.
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
    # descriptions of the GPU; the first that this XLA knows is used (`Target.texts`)
    targets: tuple[str, ...]
    dump_dir: Path  # folder for the dumps and the log; must be new or empty
    # ``SxHxD``: slices, hosts per slice, devices per host; None: one host with the module's devices
    topology: str | None = None
    # XLA flags, each ``--name=value``, and jax's settings of effort
    # (``--jax_optimization_level=O1``); later ones win. Besides these, XLA gets only
    # `EVIDENCE_FLAGS` and what this jaxlib needs without a GPU.
    flags: tuple[str, ...] = ()
    profile: Path | None = None  # a cost profile, or None
    # device memory of the job's allocator, into which XLA fits the step; 0: XLA assumes four fifths
    # of the GPU's
    allocator_bytes: int = 0
    # "before scheduling": `CompileResult.after_optimizations` is then the module before scheduling,
    # without schedule, log lines of LHS, fingerprint or memory report; "from scheduling on" takes
    # such a module (`UNSCHEDULED`), which each other compilation leaves, too
    passes: Literal["all", "before scheduling", "from scheduling on"] = "all"
    vendor: str = NVIDIA.name  # the GPU's vendor


@dataclass(frozen=True)
class CompileResult:
    """The results of a compilation."""

    module_name: str  # ``jit_train_step``
    num_devices: int  # number of devices that run it together
    after_optimizations: Path  # the scheduled module, an HloProto file
    # the schedule dump of the latency-hiding scheduler; None if it did not run
    schedule: Path | None
    log: Path  # XLA's whole log
    fingerprint: str  # ``fingerprint_before_lhs``; empty if the module has none
    compile_s: float  # seconds from the start of the compilation to its schedule
    # device memory in bytes by XLA's buffer assignment (argument, output, temp, total); empty
    # without XLA's report
    memory: Mapping[str, int]
    jaxlib: str  # version of the jaxlib that compiled
    # flags, in addition to the request's, that XLA needed to compile without a GPU
    detours: tuple[str, ...] = ()
    # whether it comes from the cache; if so, `compile_s` is the original time
    is_cached: bool = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """What this compilation does differently from one on a GPU, a line each."""
        return detour_warnings(self.detours)

    @property
    def memory_bytes(self) -> int | None:
        """Device memory in bytes that one execution needs; None without XLA's report."""
        return self.memory.get("total")

    @property
    def scheduled(self) -> Module:
        """The module in the file `after_optimizations`."""
        return _once(read_module, self.after_optimizations)

    @property
    def lhs(self) -> LhsSchedule | None:
        """What the latency-hiding scheduler saw and estimated; None without its dump."""
        if self.schedule is None:
            return None
        return _once(read_schedule_dump, self.schedule)

    @property
    def table(self) -> LookupTable:
        """The names and costs that XLA looks up in a profile, by the names when LHS ran."""
        module = self.scheduled
        if self.after_optimizations.name == UNSCHEDULED:
            # no pass renames anything between this point and LHS
            return LookupTable(module, module)
        return LookupTable(module, None if self.lhs is None else self.lhs.module)

    @property
    def believed(self) -> Mapping[str, Statistics]:
        """The scheduler's estimate for every computation, loop bodies once; empty without its
        dump.
        """
        if self.lhs is None:
            return {}
        return {name: item.statistics for name, item in self.lhs.computations.items()}


_READING = threading.Lock()
_known = lru_cache(maxsize=6)(lambda read, path, written_ns: read(path))


def _once(read: Callable[[Path], T], path: Path) -> T:
    """Read a file once, even if two threads want it."""
    with _READING:
        found: T = _known(read, path, path.stat().st_mtime_ns)
    return found


@dataclass(frozen=True)
class CompilerPhase:
    """The phase that a compilation has reached."""

    request: CompileRequest  # the compilation's request
    name: str  # ``reading``, ``compiling``, ``optimising`` …, ``done``
    module: str = ""  # name of the module, empty while it is read
    devices: int = 0  # number of devices; 0 while the module is read


OnPhase: TypeAlias = Callable[[CompilerPhase], None]
Unscheduled: TypeAlias = Future[int] | None
"""Called with the module's number of devices as soon as `UNSCHEDULED`, the module before
scheduling, is stored.
"""


@dataclass(eq=False)
class Compiler:
    """Compiles requests in one process. Several threads may call its methods at once."""

    # the Python whose jax compiles; it needs jax and the plugin, not pgle
    python: str = sys.executable
    cache: Cache | None = None  # where compilations are stored; None: nowhere
    # called with every phase, from the thread that reads the compiler's answers
    on_phase: OnPhase = lambda phase: None

    def __post_init__(self) -> None:
        self.process = CompilerProcess(self.python)
        # the detours that a module with its flags needed before
        self._detours: dict[tuple[Path, tuple[str, ...]], tuple[str, ...]] = {}

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and all running compilations. No new one can start."""
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
        _empty(folder)  # remove what a damaged entry left
        self.cache.drop(key)
        answer = self._compiled(request, folder, unscheduled)
        # otherwise the module was rewritten after it was hashed
        if key == self._key(request):
            self.cache.store(key, folder, names, answer)
        return _result(request, folder, answer)

    def _cached(
        self, cache: Cache, key: str, request: CompileRequest, names: Mapping[str, str]
    ) -> CompileResult | None:
        """Take a compilation from the cache; None if it is absent or damaged."""
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
                # read now, while the module can still be compiled again
                _ = (found.scheduled, found.lhs)
        except Exception:  # readers of damaged files raise anything
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
        """Compile a request unchanged. If XLA fails before scheduling, try `detour`."""
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
            # no detour helps, and the first log shows the problem
            log.write_bytes(first_log)
            reply = first
        answer = self._answer(request, folder, reply)
        self._detours[program] = detours
        return msgspec.structs.replace(answer, detours=detours)

    def _answer(self, request: CompileRequest, folder: Path, reply: Json) -> Compiled:
        """Turn the process's answer into a result, or raise its error."""
        worker.check_disk(folder)
        if error := reply.get("user_error"):
            is_module = error["where"] in (None, "", str(request.module.resolve()))
            # name the module as the user gave it
            where = request.module if is_module else error["where"]
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
        """Send a request to XLA's process, and return its answer."""

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
    """Add flags to a request."""
    return replace(request, flags=(*request.flags, *flags))


def _of_xla(request: CompileRequest) -> list[str]:
    """Remove jax's settings from a request's flags."""
    return [flag for flag in request.flags if not flag.startswith(OF_JAX)]


def _failure(request: CompileRequest, reply: Json, unscheduled: Unscheduled) -> str:
    """Return XLA's message if a pass before scheduling failed; else empty."""
    is_scheduled = unscheduled is not None and unscheduled.done()
    if is_scheduled or request.passes == "from scheduling on":
        return ""
    said: str = reply.get("xla_error", "")
    return said


def _empty(folder: Path) -> None:
    """Remove the files in a dump folder."""
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()


def _result(request: CompileRequest, folder: Path, answer: Compiled) -> CompileResult:
    """Make the result from the files in a folder."""
    after = _module(folder, request, answer.module_name)
    if after is None:  # somebody has removed it after the compiler wrote it
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
    """Return the compiled module if it exists."""
    if request.passes == "before scheduling":
        return folder / UNSCHEDULED
    return worker.find_dump(folder, name, worker.SCHEDULED)


def compile_once(
    request: CompileRequest, python: str = sys.executable
) -> CompileResult:
    """Compile one module in its own session; see `Compiler.compile`."""
    with Compiler(python) as compiler:
        return compiler.compile(request)


EVIDENCE_FLAGS = (
    "--xla_dump_hlo_as_proto=true",
    "--xla_dump_latency_hiding_schedule=true",
)
"""Flags that every rehearsal adds. They change no fingerprint and no schedule."""

OF_JAX = "--jax_"
"""Prefix of flags that are jax's settings, which become options of the compilation
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
(TF_CPP_VMODULE=hlo_pass_pipeline=1). Passes that also occur in earlier pipelines are left out (dce,
tuple-simplifier, sanitize-constant-names). They would run again before scheduling and change the
program (a step of four pipeline stages by 1.5 %).
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
"""The answer for a failed compilation has one of these keys."""

MOST_DEVICES = 1 << 20
"""Most devices of a topology. XLA describes each device, and more than a million is a typing
error.
"""


def xla_flags(request: CompileRequest, folder: Path) -> str:
    """The XLA_FLAGS of the compilation; the request's own flags come last and so win."""
    flags = [f"--xla_dump_to={folder}", *EVIDENCE_FLAGS]
    if request.profile is not None:
        flags.append(f"{PROFILE_FLAG}={request.profile.resolve()}")
    own = request.flags
    if request.passes != "from scheduling on":
        flags.append(worker.DUMP_BEFORE_SCHEDULING)
    else:  # XLA accepts only one list, so leave disabled passes out of this one
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
"""The pass that compiles every matrix product (and, if enabled, fusions) from jaxlib 0.11 on.
Without a GPU it cannot time configurations and takes the first. Nothing before the schedule reads
its choice.
"""


def flags_without_gpu(jaxlib: str, flags: str) -> str:
    """Add the flags without which this jaxlib cannot compile without a GPU, or wastes time.

    `flags` win, except that `TRIALS` is removed from a list of the only passes to run.
    """
    if release(jaxlib) < (0, 9):  # its autotuner fails without a GPU
        return f"--xla_gpu_autotune_level=0 {flags}"
    if release(jaxlib) < (0, 11):
        return flags
    fitted = f"--xla_gpu_experimental_enable_fusion_autotuner=false {flags}"
    # XLA refuses two lists, and runs all passes of a pipeline that a list names
    if ONLY in flags:
        return re.sub(rf"(?<=[=,])(autotuner|{TRIALS}),", "", fitted)
    return f"{_DISABLED}{TRIALS} {fitted}"


def check(request: CompileRequest) -> None:
    """Refuse a request that cannot be compiled, before the compiler starts."""
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
    """Return the number of devices of a topology ``SxHxD``."""
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
    """Return a compiler, with the user's cache if `cached`."""
    cache = Cache.of_user() if cached else None
    return Compiler(python, cache=cache, on_phase=on_phase)
