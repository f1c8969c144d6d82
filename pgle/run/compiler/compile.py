"""Compile modules with the real XLA:GPU compiler on a machine that needs no GPU, up to the finished
schedule.

A `Compiler` compiles one request: in XLA's own process (`worker.py`), or by taking what was kept
(`cache.py`). Code generation is left out: the scheduled module, the schedule that the
latency-hiding scheduler believed in and the memory report are written before.

A `Session` makes many schedules of one module. XLA's passes before scheduling take most of the time
and see neither the profile nor the scheduler's flags. So the module is kept as it was before
scheduling, and only the passes from there on run again, which is ten times faster. That leans on
names of XLA's passes: it is done only where one whole compilation by this jaxlib had the same
result.
"""

from __future__ import annotations

import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from pgle.costs.profile.lookup import LookupTable
from pgle.errors import UserError
from pgle.files import check_file, sha256, write_files
from pgle.run.compiler import worker
from pgle.run.compiler.cache import Cache, Compiled, key_of
from pgle.run.compiler.worker import UNSCHEDULED, CompilerProcess
from pgle.run.directory.directory import claim
from pgle.schedule.predict import Prediction, predict
from pgle.xla.flags.catalogue import PROFILE_PATH, catalogue, release
from pgle.xla.flags.text import format_flags, typed_flag
from pgle.xla.hlo.dumps import fingerprint_of, read_module
from pgle.xla.hlo.module import MAX_HLO_BYTES, Module
from pgle.xla.hlo.schedule_dump import LhsSchedule, Statistics, read_schedule_dump
from pgle.xla.targets import Hardware
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
    # it was compiled before, and comes from the cache; the seconds are of that time
    kept: bool = False

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
        return (
            None if self.schedule is None else _once(read_schedule_dump, self.schedule)
        )

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
        return (
            {}
            if self.lhs is None
            else {name: item.statistics for name, item in self.lhs.computations.items()}
        )


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
        if (found := self._kept(self.cache, key, request, names)) is not None:
            return found
        for laid in folder.iterdir():  # of a damaged entry
            laid.unlink()
        self.cache.drop(key)
        answer = self._compiled(request, folder, unscheduled)
        if key == self._key(
            request
        ):  # else the module was written anew since its content was asked for
            self.cache.store(key, folder, names, answer)
        return _result(request, folder, answer)

    def _kept(
        self, cache: Cache, key: str, request: CompileRequest, names: Mapping[str, str]
    ) -> CompileResult | None:
        """A compilation from the cache; None if it is not there, or damaged."""
        folder = request.dump_dir.resolve()
        answer = cache.load(key, folder, names)
        module = (
            None if answer is None else _module(folder, request, answer.module_name)
        )
        if answer is None or module is None or not module.is_file():
            return None
        if not (folder / worker.LOG).is_file():
            return None
        self.on_phase(CompilerPhase(request, "kept from before", answer.module_name))
        try:
            found = replace(_result(request, folder, answer), kept=True)
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
        reply = self._ask(request, folder, unscheduled)
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
    ) -> dict[str, Any]:
        """What XLA's process answers to a request."""

        def on_message(said: dict[str, Any]) -> None:
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
            return reply | {"jaxlib": jaxlib}
        finally:
            self.on_phase(CompilerPhase(request, "done"))


def _result(request: CompileRequest, folder: Path, answer: Compiled) -> CompileResult:
    """A compilation by the files in its folder."""
    after = _module(folder, request, answer.module_name)
    if after is None:  # the compiler saw it, and somebody has removed it since
        what = f"the compiled module of {answer.module_name} has been removed"
        remedy = "leave this folder alone while XLA compiles, and run it again"
        raise UserError(what, where=folder, remedy=remedy)
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
    is_early = request.passes == "before scheduling"
    return (
        folder / UNSCHEDULED
        if is_early
        else worker.find_dump(folder, name, worker.SCHEDULED)
    )


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


MEMORY_TIES = 0.01
"""Part by which the memory of two schedules that are otherwise the same may differ; measured:
0.003.
"""
TIME_TIES = 0.001  # the same of the times that the scheduler believes, and of the step as predicted

_GRAPHS = "--xla_gpu_enable_command_buffer="
# Observed with jaxlib 0.4.38: after scheduling, a pass wraps most of the step into a call, whose
# instructions the final HLO then shows no costs of. The schedule itself is the same with and
# without; later releases leave the HLO alone.


@contextmanager
def open_session(
    base: CompileRequest,
    hardware: Hardware,
    *,
    python: str,
    cached: bool,
    checked: bool = False,
    on_phase: OnPhase = lambda phase: None,
) -> Iterator[Session]:
    """A session with a compiler of its own, and the user's cache if `cached`. If `checked`, the
    scheduling passes alone are compared with a whole compilation of this module with these flags
    though this jaxlib's are trusted already.
    """
    with compiler_with_cache(python, cached=cached, on_phase=on_phase) as compiler:
        yield session_with(compiler, base, hardware, checked=checked)


def compiler_with_cache(
    python: str, *, cached: bool, on_phase: OnPhase = lambda phase: None
) -> Compiler:
    """A compiler, with the user's cache if `cached`."""
    cache = Cache.of_user() if cached else None
    return Compiler(python, cache=cache, on_phase=on_phase)


def session_with(
    compiler: Compiler, base: CompileRequest, hardware: Hardware, *, checked: bool
) -> Session:
    """A session with a compiler; `checked` as of `open_session`."""
    trusted = None
    if compiler.cache is not None and not checked:
        trusted = compiler.cache.trusted(compiler.python, base.vendor)
    return Session(compiler, base, hardware, trusted)


def in_background(work: Callable[[], T]) -> Future[T]:
    """What a function returns that runs in parallel; a process that ends does not wait for it."""
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found


@dataclass(frozen=True)
class Prepared:
    """A module compiled with given flags and no profile. The object exists before its schedule is
    ready.
    """

    flags: tuple[str, ...]  # all of them
    # by all passes, or up to scheduling where the rest alone is trusted
    whole: Future[CompileResult]
    # the module before scheduling; None where only whole compilations are trusted
    unscheduled: Path | None = None
    devices: int = 0  # that it is compiled for
    # its schedule: by the scheduling passes alone where they make of it what all passes make; None:
    # still to be made
    first: Future[CompileResult] | None = None

    @property
    def agrees(self) -> bool:
        """Whether the scheduling passes alone may be trusted; waits until that is known."""
        return self.unscheduled is not None and (
            self.first is None or self.first.result() is not self.whole.result()
        )


@dataclass(eq=False)
class Session:
    """Schedules of one module; `schedule` may be called from several threads."""

    compiler: Compiler  # that compiles
    # what all schedules share: module, target and topology; its folder is for all of them
    base: CompileRequest
    hardware: Hardware  # that predictions are for
    # a file that says that this jaxlib's scheduling passes alone gave the same; written once they
    # did
    trusted: Path | None = None

    def __post_init__(self) -> None:
        self._is_trusted = self.trusted is not None and self.trusted.exists()
        self._lock = threading.Lock()
        self._prepared: dict[
            tuple[str, ...], Future[Prepared]
        ] = {}  # by the flags that passes before scheduling read
        self._programs: dict[Path, str] = {}
        self._predicted: dict[Path, Prediction] = {}

    def schedule(
        self, name: str, flags: Sequence[str], profile: Path | None = None
    ) -> CompileResult:
        """One schedule, in a folder of that name. The first with LHS shows whether the scheduling
        passes alone can make later ones.
        """
        wanted = self._request(name, flags, profile)
        prepared = self._prepared_for(wanted)
        if (
            prepared.first is not None
            and profile is None
            and wanted.flags == prepared.flags
        ):
            return prepared.first.result()
        with suppress(
            UserError
        ):  # whatever it is, a whole compilation has the last word
            if prepared.unscheduled is not None:
                found = self._alone(wanted, prepared, prepared.unscheduled)
                if prepared.agrees:
                    return found
        shutil.rmtree(wanted.dump_dir, ignore_errors=True)
        return self.compiler.compile(wanted)

    def without_profile(self, name: str, flags: Sequence[str]) -> Future[CompileResult]:
        """The module compiled without a profile, or only up to scheduling (`UNSCHEDULED`).

        The arguments are those of `schedule`. If it is compiled whole, instructions that cost the
        same may be in another order than in `schedule`. When this returns, `schedule` can start.
        """
        return self._prepared_for(self._request(name, flags)).whole

    def _request(
        self, name: str, flags: Sequence[str], profile: Path | None = None
    ) -> CompileRequest:
        """A request of this session, by which no step is wrapped into command buffers."""
        kept = (*(flag for flag in flags if not flag.startswith(_GRAPHS)), _GRAPHS)
        return replace(
            self.base, dump_dir=self.base.dump_dir / name, flags=kept, profile=profile
        )

    def predicted(self, made: CompileResult) -> Prediction:
        """A schedule's step with estimated costs; predicted once."""
        if made.after_optimizations not in self._predicted:
            self._predicted[made.after_optimizations] = predict(
                made.scheduled, None, self.hardware
            )
        return self._predicted[made.after_optimizations]

    def distrust(self) -> None:
        """Make later sessions check this jaxlib's scheduling passes again, because a whole
        compilation gave another schedule.
        """
        if self.trusted is not None:
            self.trusted.unlink(missing_ok=True)

    def program(self, compiled: CompileResult) -> str:
        """An identity of the program before scheduling, of a result of `without_profile`; empty if
        unknown.
        """
        module = compiled.after_optimizations.with_name(UNSCHEDULED)
        if module not in self._programs:
            self._programs[module] = (
                sha256(module.read_bytes()) if module.exists() else compiled.fingerprint
            )
        return self._programs[module]

    def _prepared_for(self, wanted: CompileRequest) -> Prepared:
        early = tuple(
            flag
            for flag in wanted.flags
            if flag.partition("=")[0] not in SCHEDULER_FLAGS
        )
        with self._lock:
            if early not in self._prepared:  # other flags are compiled at the same time
                folder = self.base.dump_dir / f"all-passes{len(self._prepared) or ''}"
                self._prepared[early] = in_background(
                    lambda: self._prepare(wanted, folder)
                )
        return self._prepared[early].result()

    def _prepare(self, wanted: CompileRequest, folder: Path) -> Prepared:
        """Compile with all passes, and see whether those from scheduling on are enough from now
        on.
        """
        request = replace(wanted, dump_dir=folder, profile=None)
        is_limited = any(flag.startswith(ONLY) for flag in wanted.flags)
        if self._is_trusted and not is_limited:
            with suppress(
                UserError
            ):  # as may be of a module that is not scheduled: then it is compiled whole
                found = self.compiler.compile(
                    replace(request, passes="before scheduling")
                )
                whole = in_background(lambda: found)
                return Prepared(
                    wanted.flags, whole, found.after_optimizations, found.num_devices
                )
            shutil.rmtree(folder, ignore_errors=True)
        unscheduled: Future[int] = Future()
        whole = in_background(lambda: self.compiler.compile(request, unscheduled))
        either: tuple[Future[Any], ...] = (unscheduled, whole)
        wait(either, return_when=FIRST_COMPLETED)
        if unscheduled.done():
            devices = unscheduled.result()
        else:
            devices = (
                whole.result().num_devices if (folder / UNSCHEDULED).exists() else 0
            )
        if not devices or is_limited:
            whole.result()
            return Prepared(wanted.flags, whole, first=whole)
        unscheduled_at = folder / UNSCHEDULED
        prepared = Prepared(wanted.flags, whole, unscheduled_at, devices)
        again = replace(
            wanted,
            dump_dir=folder / "check" if wanted.profile else wanted.dump_dir,
            profile=None,
        )
        return replace(
            prepared,
            first=in_background(lambda: self._first(again, prepared, unscheduled_at)),
        )

    def _first(
        self, wanted: CompileRequest, prepared: Prepared, unscheduled: Path
    ) -> CompileResult:
        """What the scheduling passes alone make of a module, or the whole compilation where that
        made another one.
        """
        reading = in_background(lambda: self.predicted(prepared.whole.result()).step_us)
        with suppress(UserError):
            again = self._alone(wanted, prepared, unscheduled)
            step_us = reading.result()
            near = abs(self.predicted(again).step_us - step_us) <= TIME_TIES * step_us
            if near and same_schedule(
                prepared.whole.result(), again
            ):  # what LHS takes for equal may not be
                self._is_trusted = True
                if self.trusted is not None:
                    write_files({self.trusted: ""}, force=True)
                return again
        shutil.rmtree(wanted.dump_dir, ignore_errors=True)
        return prepared.whole.result()

    def _alone(
        self, wanted: CompileRequest, prepared: Prepared, unscheduled: Path
    ) -> CompileResult:
        """What the scheduling passes alone make of a module, where the compilation of all of it
        succeeds.

        Args:
            unscheduled: the module as it was before scheduling.
        """
        topology = wanted.topology or f"1x1x{prepared.devices}"
        alone = replace(
            wanted,
            module=unscheduled,
            topology=topology,
            passes="from scheduling on",
        )
        found = self.compiler.compile(alone)
        compiled = prepared.whole.result()
        fingerprint = compiled.fingerprint or found.fingerprint
        return replace(found, fingerprint=fingerprint, num_devices=compiled.num_devices)


def same_schedule(one: CompileResult, other: CompileResult) -> bool:
    """Whether XLA made equal schedules: the scheduler believed the same length and exposed time of
    every computation, and the memory is the same. Instructions that cost nothing may be in another
    order.
    """
    memory = [made.memory_bytes or 0 for made in (one, other)]
    ours, theirs = one.believed, other.believed
    if not ours or ours.keys() != theirs.keys():
        return False
    if abs(memory[0] - memory[1]) > MEMORY_TIES * max(memory):
        return False
    return all(_are_near(item, theirs[name]) for name, item in ours.items())


def _are_near(one: Statistics, other: Statistics) -> bool:
    """Whether the scheduler believed the same length and exposed time, but for rounding."""
    most = TIME_TIES * max(one.total_cycles, 1.0)
    length_differs = abs(one.total_cycles - other.total_cycles) > most
    exposed = abs(one.total_wasted_cycles - other.total_wasted_cycles)
    return not length_differs and exposed <= most
