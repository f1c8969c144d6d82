"""Compile modules with the real XLA:GPU compiler on a machine that needs no GPU, up to the finished schedule.

A `Compiler` is one session: a child process (`worker.py`) that has XLA's plugin loaded and forks once
for every compilation, so that XLA's flags, its log and its crashes stay apart. Code generation is left out: the
scheduled module, the schedule that the latency-hiding scheduler believed in and the memory report are written before.
Compilations are kept by content in the user's cache directory, each in one file; a damaged file counts as none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, TypeVar

import msgspec

import pgle
from pgle.costs.profile.files import SUFFIXES
from pgle.errors import UserError
from pgle.files import check_file, is_bare, read_bytes, write_files
from pgle.run.ask.jaxlib import cache_directory, installed
from pgle.run.compiler import worker
from pgle.run.directory.directory import claim
from pgle.xla.flags.catalogue import PROFILE_PATH, catalogue
from pgle.xla.flags.text import format_flags, typed_flag
from pgle.xla.hlo.dumps import fingerprint_of, read_module
from pgle.xla.hlo.module import MAX_HLO_BYTES, Module
from pgle.xla.hlo.schedule_dump import LhsSchedule, Statistics, read_schedule_dump

FORMAT = 4  # part of every key; raise it if the stored data, or the reading of a module, changes

LIMIT_VARIABLE, LIMIT_MIB = "PGLE_CACHE_MIB", 2048

_STALE_S = 86_400.0  # a name of a process that was killed while writing
_BINARY = (".pb",)
_MOST_BYTES = 2 << 30  # of a compilation as it is read, so that no file fills the memory

T = TypeVar("T")
Passes: TypeAlias = Literal["all", "before scheduling", "from scheduling on"]


@dataclass(frozen=True)
class CompileRequest:
    """What to compile, and how."""

    # StableHLO (text, bytecode), or HLO (proto, text) of any stage before scheduling; also ``.xz``, ``.gz``
    module: Path
    targets: tuple[str, ...]  # descriptions of the GPU, of which the first that this XLA knows counts (`Target.texts`)
    dump_dir: Path  # folder for the dumps and the log; must be new or empty
    topology: str | None = None  # ``SxHxD``: slices, hosts of each, devices of each; None: one host, as in the module
    # XLA flags, each ``--name=value``, and jax's settings of effort (``--jax_optimization_level=O1``); nothing else is
    # passed on but `EVIDENCE_FLAGS` and what this jaxlib needs where there is no GPU, and the later wins
    flags: tuple[str, ...] = ()
    profile: Path | None = None  # a cost profile, or None
    # device memory of the job's allocator, into which XLA fits the step; 0: XLA's guess, four fifths of the GPU's
    allocator_bytes: int = 0
    # "before scheduling": `CompileResult.after_optimizations` is then the module before scheduling, without schedule,
    # log lines of LHS, fingerprint or memory report; "from scheduling on" takes such a module (`UNSCHEDULED`),
    # which each other compilation leaves, too
    passes: Passes = "all"


@dataclass(frozen=True)
class CompileResult:
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
        return _once(read_module, self.after_optimizations)

    @property
    def lhs(self) -> LhsSchedule | None:
        """What the latency-hiding scheduler saw and believed; None where it left no dump."""
        return None if self.schedule is None else _once(read_schedule_dump, self.schedule)

    @property
    def believed(self) -> Mapping[str, Statistics]:
        """What it believed of every computation, loop bodies once; empty where it left no dump."""
        return {} if self.lhs is None else {name: item.statistics for name, item in self.lhs.computations.items()}


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
Unscheduled: TypeAlias = Future[int] | None  # as of `Compiling`; None: nobody waits for it


@dataclass(frozen=True)
class Compiling:
    """A compilation under way."""

    # devices that the module is for, once it is kept as it was before scheduling (`UNSCHEDULED`); 0: it never is
    unscheduled: Future[int]
    result: Future[CompileResult]


def begun(work: Callable[[], T]) -> Future[T]:
    """What a function returns that runs in parallel; a process that ends does not wait for it."""
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found


class Compiled(msgspec.Struct, frozen=True):
    """What the compiler's process says of a compilation that succeeded."""

    module_name: str
    num_devices: int
    compile_s: float
    jaxlib: str


class _Entry(msgspec.Struct):
    """A compilation as it is kept."""

    answer: Compiled
    files: dict[str, bytes]  # by name


@dataclass(frozen=True)
class Cache:
    """A folder of compilations."""

    folder: Path  # may be absent
    limit_bytes: int  # of all of them together; 0: nothing is kept

    @staticmethod
    def of_user() -> Cache:
        """That in the user's cache directory, at most `LIMIT_VARIABLE` mebibytes, which must be a number."""
        text = os.environ.get(LIMIT_VARIABLE) or str(LIMIT_MIB)
        if not text.isdigit():
            raise UserError("is not a number of mebibytes", where=f"{LIMIT_VARIABLE}={text}", remedy="0 keeps nothing")
        return Cache(cache_directory() / "schedules", int(text) << 20)

    def load(self, key: str, folder: Path, names: Mapping[str, str]) -> Compiled | None:
        """Lay the files of a compilation into an empty folder, in texts the paths that `names` has for placeholders;
        None where there is no such compilation."""
        path, unpacked = self.folder / key, zlib.decompressobj()
        try:
            entry = msgspec.msgpack.decode(unpacked.decompress(path.read_bytes(), _MOST_BYTES), type=_Entry)
            os.utime(path)
        except (OSError, zlib.error, msgspec.MsgspecError, RecursionError):
            return None
        if not unpacked.eof or not self.limit_bytes or not all(map(is_bare, entry.files)):
            return None  # what was kept before somebody asked for 0 does not count
        for name, data in entry.files.items():
            (folder / name).write_bytes(_renamed(name, data, names))
        return entry.answer

    def store(self, key: str, folder: Path, names: Mapping[str, str], answer: Compiled) -> None:
        """Keep the files of a folder and an answer; a disk that is full or read-only is no failure."""
        back = {path: name for name, path in names.items()}
        files = {path.name: _renamed(path.name, path.read_bytes(), back) for path in folder.iterdir() if path.is_file()}
        data = zlib.compress(msgspec.msgpack.encode(_Entry(answer, files)), 1)
        if len(data) > self.limit_bytes:  # it would drive out all others, and go itself
            return
        with suppress(OSError, UserError):
            write_files({self.folder / key: data}, force=True)
            self._prune()

    def trusted(self, python: str) -> Path:
        """The file that says that this compiler's scheduling passes can be run alone (`session.py`)."""
        digest = hashlib.sha256(json.dumps(_compiler(python)).encode()).hexdigest()
        return self.folder / f"scheduling-{digest[:16]}.trusted"

    def _prune(self) -> None:
        """Remove the least recently used until the rest keeps to the limit; some may be of an older pgle."""
        files = [(path.stat(), path) for path in self.folder.iterdir() if path.suffix != ".trusted"]
        total = sum(stat.st_size for stat, _ in files)
        for stat, path in sorted(files, key=lambda item: item[0].st_mtime_ns):
            is_begun = path.suffix == ".tmp"
            if (total > self.limit_bytes and not is_begun) or (is_begun and time.time() - stat.st_mtime > _STALE_S):
                path.unlink(missing_ok=True)
                total -= stat.st_size


def key_of(python: str, module: Path, flags: Iterable[str], profile: Path | None, others: Mapping[str, object]) -> str:
    """The key of a compilation: a hash of everything that its result depends on. Versions count of the packages of the
    Python that compiles; the content of the module, of files that flags name, of the profile or a folder's profiles."""
    files = [profile] if profile is not None else []
    if profile is not None and profile.is_dir():
        files = sorted(path for path in profile.iterdir() if path.suffix in SUFFIXES)
    parts = [
        *_compiler(python),
        _digest(module),
        module.suffixes,
        [(flag, _digest(Path(flag.partition("=")[2]))) for flag in flags],
        None if profile is None else (profile.suffix, [_digest(path) for path in files]),
        sorted(others.items()),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _compiler(python: str) -> list[object]:
    """What tells this compiler from others."""
    found = installed(python)
    return [FORMAT, sorted(found.versions.items()), found.built_ns]


def _digest(path: Path) -> str:
    """Of a file's content, decompressed; empty if it is no file."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest() if path.is_file() else ""
    except (OSError, UserError):
        return "unreadable"


def _renamed(name: str, data: bytes, paths: Mapping[str, str]) -> bytes:
    """A text with other paths in it."""
    if not name.endswith(_BINARY):
        for before, after in paths.items():
            data = data.replace(before.encode(), after.encode())
    return data


@dataclass(eq=False)
class Compiler:
    """A session with one compiler; its methods may be called from several threads at once."""

    python: str = sys.executable  # the interpreter whose jax compiles; it needs jax and the CUDA plugin, not pgle
    cache: Cache | None = None  # where compilations are kept; None: nowhere
    on_phase: OnPhase = lambda phase: None  # hears of all, from the thread that reads the compiler's answers
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _process: subprocess.Popen[bytes] | None = None
    _jaxlib: str = ""
    _errors: IO[bytes] = field(default_factory=tempfile.TemporaryFile)  # closed by `close`
    _waiting: dict[int, tuple[CompileRequest, Unscheduled, Future[dict[str, Any]]]] = field(default_factory=dict)
    _count: int = 0
    _is_closed: bool = False

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and every compilation that still runs; none begins any more."""
        self._is_closed = True
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
        self._errors.close()

    def start(self, request: CompileRequest) -> Compiling:
        """Begin to compile; `Compiling.result` raises what `compile` raises."""
        unscheduled: Future[int] = Future()

        def work() -> CompileResult:
            devices = 0
            try:
                made = self.compile(request, unscheduled)
                devices = made.num_devices if (request.dump_dir / worker.UNSCHEDULED).exists() else 0
                return made
            finally:
                if not unscheduled.done():
                    unscheduled.set_result(devices)

        return Compiling(unscheduled, begun(work))

    def compile(self, request: CompileRequest, unscheduled: Unscheduled = None) -> CompileResult:
        """Compile `request.module` up to its schedule.

        Raises:
            UserError: jax or its CUDA plugin is missing or too old; the module, target, topology, profile or a flag
                is refused; XLA fails or crashes before the schedule is there (with XLA's own line).
        """
        check(request)
        folder = request.dump_dir.resolve()
        claim(folder)
        folder.mkdir(parents=True, exist_ok=True)
        answer, kept = self._kept_or_compiled(request, folder, unscheduled)
        after = _module(folder, request, answer.module_name)
        assert after is not None  # else the worker would not have reported that it is done
        return CompileResult(
            after_optimizations=after,
            schedule=worker.find_schedule(folder, answer.module_name),
            log=folder / worker.LOG,
            fingerprint=fingerprint_of(after),
            memory=worker.memory_of(after),
            kept=kept,
            **msgspec.structs.asdict(answer),
        )

    def _kept_or_compiled(
        self, request: CompileRequest, folder: Path, unscheduled: Unscheduled
    ) -> tuple[Compiled, bool]:
        """The answer, and whether it comes from the cache."""
        if self.cache is None:
            return self._compiled(request, folder, unscheduled), False
        key, names = self._key(request), {"@FOLDER@": str(folder)}
        if request.profile is not None:
            names["@PROFILE@"] = str(request.profile.resolve())
        kept = self.cache.load(key, folder, names)
        module = None if kept is None else _module(folder, request, kept.module_name)
        if kept is not None and module is not None and module.is_file():
            self.on_phase(CompilerPhase(request, "kept from before", kept.module_name))
            self.on_phase(CompilerPhase(request, "done"))
            return kept, True
        for laid in folder.iterdir():  # of a damaged entry
            laid.unlink()
        answer = self._compiled(request, folder, unscheduled)
        if key == self._key(request):  # else the module was written anew since its content was asked for
            self.cache.store(key, folder, names, answer)
        return answer, False

    def _key(self, request: CompileRequest) -> str:
        device = (request.targets, request.allocator_bytes, request.topology)
        others = {"device": device, "passes": (request.passes, SCHEDULING_PASSES)}
        return key_of(self.python, request.module, request.flags, request.profile, others)

    def _compiled(self, request: CompileRequest, folder: Path, unscheduled: Unscheduled) -> Compiled:
        reply = self._ask(request, folder, unscheduled)
        worker.check_disk(folder)
        if error := reply.get("user_error"):
            is_module = error["where"] in (None, "", str(request.module.resolve()))
            where = request.module if is_module else error["where"]  # the module as it was given
            raise UserError(error["what"], where=where, remedy=error["remedy"])
        if "crashed" in reply:
            raise worker.crash(reply["crashed"], folder / worker.LOG, request.flags)
        if "xla_error" in reply:
            raise worker.refused(reply["xla_error"], request.module, folder / worker.LOG)
        return msgspec.convert(reply, Compiled)

    def _ask(self, request: CompileRequest, folder: Path, unscheduled: Unscheduled) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        answer: Future[dict[str, Any]] = Future()
        same = ("targets", "allocator_bytes", "topology", "passes")
        order = {name: getattr(request, name) for name in same} | {
            "module": str(request.module.resolve()),
            "dump_dir": str(folder),
            "xla_flags": xla_flags(request, folder),
            "efforts": dict(flag[2:].split("=", 1) for flag in request.flags if flag.startswith(OF_JAX)),
        }
        with self._lock:
            process = self._started()
            self._count += 1
            self._waiting[self._count] = (request, unscheduled, answer)
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(order | {"id": self._count}).encode() + b"\n")
                process.stdin.flush()
            except OSError:
                pass  # it has ended; the reading thread says so
        try:
            reply = answer.result()
            worker.tidy(folder, passes=request.passes != "from scheduling on" and worker.keep_unscheduled(folder))
            return reply | {"jaxlib": self._jaxlib}
        finally:
            self.on_phase(CompilerPhase(request, "done"))

    def _started(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise UserError("the compiler has been ended", where=self.python)
        if self._process is not None and self._process.poll() is None:
            return self._process
        # The child may be another Python, without pgle: ours comes last on its path, so that nothing is shadowed.
        root = str(Path(pgle.__file__).resolve().parent.parent)
        start = f"import sys; sys.path.append({root!r}); from pgle.run.compiler.worker import main; main()"
        try:
            process = subprocess.Popen(
                [self.python, "-c", start],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment(),
                start_new_session=True,  # Ctrl-C is for us: the compiler ends with our end of its stdin
            )
        except OSError as error:
            raise UserError(f"cannot start Python ({error.strerror})", where=self.python) from None
        assert process.stdout is not None
        first = process.stdout.readline()
        hello = json.loads(first) if first.startswith(b"{") else {}
        if "jaxlib" not in hello:
            process.kill()
            process.wait()
            if said := hello.get("user_error"):
                raise UserError(said["what"], where=said["where"], remedy=said["remedy"])
            self._errors.seek(0)
            rows = [row for row in self._errors.read().decode(errors="replace").splitlines() if row.strip()]
            last = rows[-1].strip()[:300] if rows else "no output"
            raise UserError(f"the compiler's process does not start: {last}", where=self.python)
        self._jaxlib = hello["jaxlib"]
        self._process = process
        threading.Thread(target=self._listen, args=(process, process.stdout), daemon=True).start()
        return process

    def _listen(self, process: subprocess.Popen[bytes], stream: IO[bytes]) -> None:
        """Hand answers to those who wait for them, until the process ends."""
        for line in stream:
            reply = json.loads(line)
            request, unscheduled, answer = self._waiting[reply["id"]]
            if "answer" in reply:
                del self._waiting[reply["id"]]
                answer.set_result(reply["answer"])
            else:
                phase = CompilerPhase(request, reply["phase"], reply.get("module", ""), reply.get("devices", 0))
                if unscheduled and phase.name == worker.SCHEDULING and worker.keep_unscheduled(request.dump_dir):
                    unscheduled.set_result(phase.devices)
                self.on_phase(phase)
        code = process.wait()
        while self._waiting:
            *_, answer = self._waiting.popitem()[1]
            answer.set_result({"crashed": code})


def _module(folder: Path, request: CompileRequest, name: str) -> Path | None:
    """The compiled module, if it is there."""
    if request.passes == "before scheduling":
        return folder / worker.UNSCHEDULED
    return worker.find_dump(folder, name, worker.SCHEDULED)


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


def compile_once(request: CompileRequest, python: str = sys.executable) -> CompileResult:
    """Compile one module in a session of its own; see `Compiler.compile`."""
    with Compiler(python) as compiler:
        return compiler.compile(request)


EVIDENCE_FLAGS = ("--xla_dump_hlo_as_proto=true", "--xla_dump_latency_hiding_schedule=true")
"""What every rehearsal adds to the flags; neither changes a fingerprint or a schedule."""

OF_JAX = "--jax_"
"""What flags begin with that are settings of jax: options of the compilation (`environment.EFFORTS`)."""

PROFILE_FLAG = f"--{PROFILE_PATH}"
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
Passes that earlier pipelines have, too, are left out (dce, tuple-simplifier, sanitize-constant-names): they would run
once more before scheduling, and change the scheduled program (a step of four pipeline stages: by 1.5 %)."""
SCHEDULER_FLAGS = frozenset(
    ("--xla_gpu_analytical_latency_estimator_options", "--xla_gpu_experimental_collective_perf_table_path",
     "--xla_gpu_experimental_matmul_perf_table_path",
     *(f"--{setting.name}" for setting in catalogue().values() if setting.stage == "schedule"))
)  # fmt: skip
"""Flags that only the passes from scheduling on read."""

MOST_DEVICES = 1 << 20
"""Of a topology: XLA makes a description of each, and more than a million is a slip of the keyboard."""


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
        disabled = {name for flag in given for name in flag.split("=")[1].split(",")}
        names = ",".join(name for name in SCHEDULING_PASSES.split(",") if name not in disabled)
        own = (f"{ONLY}{names}", *(flag for flag in own if flag not in given))
    return format_flags(typed_flag(flag) for flag in [*flags, *own] if not flag.startswith(OF_JAX))


def check(request: CompileRequest) -> None:
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
