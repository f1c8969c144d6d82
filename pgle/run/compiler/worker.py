"""XLA's compiler in its own process: our end, the other end, and the dump folder of a compilation.

The process may be another Python than ours. It loads XLA's plugin once, and forks a child for every
compilation. The child ends when the schedule is written. Requests and answers are lines of JSON on
stdin and stdout. XLA reads XLA_FLAGS once per process and ends the process on a bad flag, so each
compilation has its own process. This one starts no thread, so that it can fork. A child reads its
module unless an earlier child has. The children end when this process ends, and it ends when its
stdin is closed.

The last part finds modules, schedule, memory and log in the folder, and says why a compilation left
nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from math import prod
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import IO, Any, NoReturn, TypeAlias

import pgle
from pgle.errors import UserError
from pgle.files import Json, read_bytes
from pgle.masking import mask_file
from pgle.run.ask.jax_private import hlo_module_bytes, without_fields
from pgle.run.ask.programs import last_line
from pgle.xla.log.messages import FATAL, SLOW_FOLDING, flag_refusal
from pgle.xla.vendors import NVIDIA, VENDORS, Vendor

FOLDING = (
    "folding constants, which is slow "
    "(--flag=--xla_disable_hlo_passes=constant_folding avoids it)"
)
"""The phase in which XLA computes large constants."""

#: bytes at the end of a log that are searched while a module compiles
LOG_BYTES = 1 << 20

# folder in the dump folder for a compilation's temporary files, because the compilation may end at
# any time
TEMPORARY = ".tmp"

POLL_S = 0.02

# most characters of an error: writes of up to 4096 bytes to a pipe are not mixed between threads
MOST_SAID = 3_000

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>

OnMessage: TypeAlias = Callable[[Json], None]
"""Called with each phase of a compilation (``phase``, ``module``, ``devices``), from the thread
that reads answers.
"""


class CompilerProcess:
    """Our end. The process starts when it is first needed. Several threads may call its methods at
    once.
    """

    def __init__(self, python: str) -> None:
        self.python = python
        self.vendor = NVIDIA.name  # the vendor whose GPUs it compiles for
        self.jaxlib = ""  # version of its jaxlib; known once the process has started
        self.child: subprocess.Popen[bytes] | None = None
        # open requests, by number
        self.waiting: dict[int, tuple[OnMessage, Future[Json]]] = {}
        self.is_closed = False
        self._count = 0
        self._lock = threading.Lock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)

    def close(self) -> None:
        """End the process and all running compilations. No new one can start."""
        self.is_closed = True
        child = self.child
        self.child = None
        if child is not None:
            assert child.stdin is not None
            child.stdin.close()
            child.wait()
        self._errors.close()

    def start(self, vendor: str = NVIDIA.name) -> str:
        """Start the process for a vendor's GPUs, unless it runs. Return the version of its
        jaxlib.
        """
        with self._lock:
            self.vendor = vendor
            self._started()
            return self.jaxlib

    def ask(self, order: Json, on_message: OnMessage) -> Json:
        """Send a request and wait for the answer. `on_message` gets the phases before."""
        answer: Future[Json] = Future()
        with self._lock:
            child = self._started()
            self._count += 1
            self.waiting[self._count] = on_message, answer
            assert child.stdin is not None
            try:
                child.stdin.write(
                    json.dumps({**order, "id": self._count}).encode() + b"\n"
                )
                child.stdin.flush()
            except OSError:
                pass  # the process has ended; the reading thread reports it
        return answer.result()

    def _started(self) -> subprocess.Popen[bytes]:
        if self.is_closed:
            raise UserError("the compiler has been ended", where=self.python)
        if self.child is not None and self.child.poll() is None:
            return self.child
        # The process may be another Python without pgle. Our packages come last on its path, so
        # that they replace none of its own.
        root = str(Path(pgle.__file__).resolve().parent.parent)
        start = (
            f"import sys; sys.path.append({root!r}); from pgle.run.compiler.worker "
            f"import main; main({self.vendor!r})"
        )
        try:
            child = subprocess.Popen(
                [self.python, "-c", start],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment(),
                # The process must not get Ctrl-C. It ends when we close its stdin.
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(
                f"cannot start Python ({error.strerror})", where=self.python
            ) from None
        assert child.stdout is not None
        first = child.stdout.readline()
        hello = json.loads(first) if first.startswith(b"{") else {}
        if "jaxlib" not in hello:
            child.kill()
            child.wait()
            if said := hello.get("user_error"):
                raise UserError(
                    said["what"], where=said["where"], remedy=said["remedy"]
                )
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")
            last = last_line(said, "no output")[:300]
            raise UserError(
                f"the compiler's process does not start: {last}", where=self.python
            )
        self.jaxlib = hello["jaxlib"]
        self.child = child
        threading.Thread(
            target=self._listen, args=(child, child.stdout), daemon=True
        ).start()
        return child

    def _listen(self, child: subprocess.Popen[bytes], stream: IO[bytes]) -> None:
        """Pass answers to the waiting threads, until the process ends."""
        for line in stream:
            said = json.loads(line)
            if said["id"] not in self.waiting:  # the request has already failed here
                continue
            on_message, answer = self.waiting[said["id"]]
            if "answer" in said:
                del self.waiting[said["id"]]
                answer.set_result(said["answer"])
                continue
            try:
                on_message(said)
            except Exception as error:
                # such as a full disk; only this thread receives answers
                del self.waiting[said["id"]]
                answer.set_exception(error)
        code = child.wait()
        while self.waiting:
            _, answer = self.waiting.popitem()[1]
            answer.set_result({"crashed": code})


def environment() -> dict[str, str]:
    """Return the compiler's environment: ours, without variables that would change the
    compilation.
    """
    drop = ("XLA_FLAGS", "TF_CPP_", "TF_XLA_", "JAX_", "LIBTPU_INIT_ARGS", "PGLE_HOOK")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(drop)}
    hidden: dict[str, str] = {}
    for vendor in VENDORS.values():
        # do not use an existing GPU
        hidden |= dict.fromkeys(vendor.presence.hiding_variables, "")
        if vendor.plugin.skip_check:
            # Otherwise the plugin prints a traceback about missing libraries, which a rehearsal
            # does not need.
            hidden[vendor.plugin.skip_check] = "1"
    return (
        kept
        | hidden
        | {
            "TF_CPP_MIN_LOG_LEVEL": "0",
            "JAX_PLATFORMS": "cpu",
            "JAX_ENABLE_COMPILATION_CACHE": "false",
            # numpy would start threads, and the process must be able to fork
            "OPENBLAS_NUM_THREADS": "1",
            # Use pages of 2 MiB where Linux gives them on request (glibc 2.35), because XLA's
            # passes follow pointers through gigabytes.
            "GLIBC_TUNABLES": ":".join(
                filter(None, (kept.get("GLIBC_TUNABLES"), "glibc.malloc.hugetlb=1"))
            ),
        }
    )


class Compilation:
    """One compilation in a forked child. The child ends itself when the schedule is written, before
    code generation.
    """

    def __init__(self, worker: Worker, request: Json) -> None:
        self.worker, self.api, self.request = worker, worker.api, request
        self.folder = Path(request["dump_dir"])
        self.began = time.perf_counter()
        self.about: dict[str, Any] = {}  # the last phase with a module, then the error
        self.pipe, outward = Pipe(duplex=False)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self.pipe = outward
            self.run(parent)
        outward.close()

    # In the worker.

    def kill(self) -> None:
        """End the child, and all that it started."""
        # the process group exists only after the child has made it
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)
        self.answer()

    def answer(self) -> Json:
        """Wait for the child's end; return the answer for the client."""
        _, status = os.waitpid(self.pid, 0)
        self.pipe.close()
        shutil.rmtree(self.folder / TEMPORARY, ignore_errors=True)
        if "user_error" in self.about:
            return self.about
        if (name := self.about.get("module")) and self.wanted(name) is not None:
            # the failure came later, in code generation
            took_s = time.perf_counter() - self.began
            return {
                "module_name": name,
                "num_devices": self.about["devices"],
                "compile_s": took_s,
            }
        if "xla_error" in self.about:
            return self.about
        code = os.waitstatus_to_exitcode(status)
        return (
            {"crashed": code} if code else {"xla_error": "it ended without a message"}
        )

    def wanted(self, name: str) -> Path | None:
        """Return the name of the requested module, once XLA has begun to write it."""
        if self.request["passes"] == "before scheduling":
            return find_unscheduled(self.folder)
        return find_dump(self.folder, name, SCHEDULED)

    # In the child.

    def run(self, parent: int) -> NoReturn:
        """Compile, then end the process. The error goes to `pipe`."""
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.setpgid(0, 0)  # so that ptxas and other children end with this process
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        log = os.open(self.folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        (self.folder / TEMPORARY).mkdir(exist_ok=True)
        os.environ |= {  # jaxlib reads them once, so set them first
            "XLA_FLAGS": self.request["xla_flags"],
            "TMPDIR": str(self.folder / TEMPORARY),
        }
        try:
            self.compile(self.program())
        except UserError as error:
            self.pipe.send({"user_error": vars(error)})
        except Exception as error:
            self.pipe.send(
                {"xla_error": str(error)[:MOST_SAID] or type(error).__name__}
            )
        finally:  # the child must never continue as the worker
            sys.stderr.flush()
            # exit without joining the plugin's threads: some releases crash there
            os._exit(0)

    def program(self) -> Any:
        """Return the program in the request's file. It is read once for all compilations."""
        path = Path(self.request["module"])
        topology = self.request["topology"]
        key = path, path.stat().st_mtime_ns  # a changed module is another one
        if key not in self.worker.programs:
            self.pipe.send({"phase": "reading"})
            program = self.api.read_program(
                path, read_bytes(path), _devices_in(topology) if topology else 1
            )
            self.pipe.send({"program": program, "key": key})
            return program
        return self.worker.programs[key]

    def compile(self, program: Any) -> None:
        """Compile to the end; `watch` may end the process earlier."""
        request, needed = self.request, program.num_devices
        topology = request["topology"] or f"1x1x{needed}"
        if 1 < needed != (asked := _devices_in(topology)):
            raise UserError(
                (
                    f"{program.name} is partitioned for {needed} devices and topology "
                    f"{topology} has {asked}"
                ),
                where=request["module"],
                remedy=(
                    f"say --devices {needed}; for {asked} rehearse the program itself: "
                    f"--devices {asked} -- COMMAND"
                ),
            )
        self.pipe.send(
            {"phase": "compiling", "module": program.name, "devices": needed}
        )
        options = self.api.compile_options(
            program, request["allocator_bytes"], request["efforts"]
        )
        threading.Thread(target=self.watch, args=(program,), daemon=True).start()
        self.api.compile_program(
            self.worker.plugin, program, request["targets"], topology, options
        )

    def watch(self, program: Any) -> NoReturn:
        """Report each phase, and end the process once the wanted files are written."""
        folder, name = self.folder, program.name
        has_begun: dict[str, Callable[[], bool]] = {
            "optimising": lambda: (
                find_dump(folder, name, "before_optimizations.hlo.pb") is not None
            ),
            "partitioned, optimising": lambda: (
                find_dump(folder, name, "after_spmd_partitioner.hlo.pb") is not None
            ),
            SCHEDULING: lambda: _are_written(find_unscheduled(folder)),
            FOLDING: lambda: folds_slowly(folder / LOG),
        }
        while not self.may_end(name):
            for phase in [phase for phase, begun in has_begun.items() if begun()]:
                del has_begun[phase]
                self.pipe.send(
                    {"phase": phase, "module": name, "devices": program.num_devices}
                )
            time.sleep(POLL_S)
        os.killpg(0, signal.SIGKILL)
        raise SystemExit

    def may_end(self, name: str) -> bool:
        """Whether the module is written, and with it the schedule and the memory report."""
        module = self.wanted(name)
        if module is None or self.request["passes"] == "before scheduling":
            return _are_written(module)
        # any dumping thread of XLA may be late
        written = [module, *self.folder.glob("*-memory-usage-report.*")]
        suffixes = {path.suffix for path in self.folder.iterdir()}
        if len(written) == 1 and suffixes.isdisjoint(CODE_GENERATION):
            return False
        schedule = find_schedule(self.folder, name)
        return _are_written(*written, *filter(None, [schedule]))


def _are_written(*files: Path | None) -> bool:
    """Whether this process has written and closed them."""
    paths = {
        path.resolve() for path in files if path is not None and path.stat().st_size
    }
    if len(paths) < len(files):
        return False
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            if entry.readlink() in paths:
                return False
    return True


def folds_slowly(log: Path) -> bool:
    """Whether XLA's log says that constant folding takes long."""
    return log.is_file() and SLOW_FOLDING in log.read_bytes()[-LOG_BYTES:]


def _devices_in(topology: str) -> int:
    return prod(int(part) for part in re.findall(r"\d+", topology))


class Worker:
    """Serves one client until the client closes our stdin."""

    def __init__(self, vendor: Vendor) -> None:
        from pgle.run.ask import jax_private

        self.api = jax_private
        self.jaxlib = ".".join(map(str, jax_private.version()))
        self.plugin = jax_private.Plugin(vendor)
        # import before the first fork, so that no child has to
        from jaxlib import xla_client

        del xla_client
        self.answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # keep XLA's prints out of the answers
        self.programs: dict[tuple[Path, int], Any] = {}
        self.children: list[Compilation] = []

    def serve(self) -> None:
        """Take requests until the client closes our stdin, then end running compilations."""
        self.say({"jaxlib": self.jaxlib})
        rest = b""
        try:
            while True:
                ready = wait([0, *(child.pipe for child in self.children)])
                for child in [child for child in self.children if child.pipe in ready]:
                    self.hear(child)
                if 0 in ready:
                    piece = os.read(0, 1 << 16)
                    if not piece:
                        return
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        request = json.loads(line)
                        self.api.import_reader(Path(request["module"]))
                        self.children.append(Compilation(self, request))
        finally:
            for child in self.children:
                child.kill()

    def say(self, answer: Json) -> None:
        """Send one line to the client."""
        self.answers.write(json.dumps(answer) + "\n")
        self.answers.flush()

    def hear(self, child: Compilation) -> None:
        """Handle a child's message: its program, a phase, an error, or its end."""
        try:
            message = child.pipe.recv()
        except (EOFError, OSError):
            self.children.remove(child)
            self.say({"id": child.request["id"], "answer": child.answer()})
            return
        if "program" in message:
            self.programs[message["key"]] = message["program"]
        elif "phase" in message:
            child.about = {**child.about, **message}
            self.say({"id": child.request["id"], **message})
        else:
            child.about |= message


def main(vendor: str) -> None:
    """Serve the client on stdin and stdout, with the compiler for a vendor's GPUs."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        worker = Worker(VENDORS[vendor])
    except UserError as error:
        print(json.dumps({"user_error": vars(error)}))
        return
    worker.serve()


LOG = "xla.log"  # the compiler's log
SCHEDULED = "gpu_after_optimizations.hlo.pb"
# the module before scheduling, if the request asks for it
UNSCHEDULED = "before_scheduling.hlo.pb"
SCHEDULING = "scheduling"  # the phase that begins when XLA has dumped that module
DUMP_BEFORE_SCHEDULING = "--xla_dump_hlo_pass_re=^fusion-wrapper$"
"""The flag that makes XLA dump the module before scheduling, and before and after each pass of that
name.
"""
_BEFORE_SCHEDULING = "*.pre-scheduling-passes.after_pipeline-start.*.hlo.pb"
_OF_PASSES = "module_*.[0-9][0-9][0-9][0-9].*.hlo.pb"

CODE_GENERATION = (".ll", ".ptx", ".ttir")  # dumps of code generation (jax before 0.12)

# bytes of free space below which a disk is full; the smallest dumps need more
FULL_BYTES = 1 << 20

TAIL = 200_000  # characters at the end of the log that are searched

_DYNAMIC = re.compile(
    r"stablehlo\.(?:dynamic_|real_dynamic_|[gs]et_dimension_size)\w*|Unbounded dynamism"
)


def find_dump(folder: Path, name: str, ending: str) -> Path | None:
    """Find the dump of module `name`, not of its fusion sub-modules. XLA may trim a trailing ``_``
    in file names.
    """
    wanted = tuple(f"{known}." for known in {name, name.rstrip("_")})
    return _newest(
        path
        for path in folder.glob(f"module_*{ending}")
        if (parts := path.name.split(".", 1)) and parts[1].startswith(wanted)
    )


def find_schedule(folder: Path, name: str) -> Path | None:
    """Find the schedule dump of module `name`. Releases through 0.5.0 name it after the entry
    computation, ``main.N``.
    """
    dumps = list(folder.glob("*.schedule.*"))
    stems = {path: path.name.rpartition(".schedule.")[0] for path in dumps}
    exact = [path for path in dumps if stems[path] in (name, name.rstrip("_"))]
    return _newest(
        exact or [path for path in dumps if re.match(r"main\.\d+", stems[path])]
    )


def find_unscheduled(folder: Path) -> Path | None:
    """Find XLA's dump of the module before scheduling (`DUMP_BEFORE_SCHEDULING`)."""
    return next(iter(sorted(folder.glob(_BEFORE_SCHEDULING))), None)


def keep_unscheduled(folder: Path) -> bool:
    """Store the module before scheduling as `UNSCHEDULED`. Return whether it exists."""
    dump = find_unscheduled(folder)
    kept = folder / UNSCHEDULED
    data = (
        None if dump is None or kept.exists() else hlo_module_bytes(dump.read_bytes())
    )
    if data is not None:
        kept.write_bytes(without_fields(data, {7: None}))  # HloModuleProto.schedule
    return kept.exists()


def tidy(folder: Path, *, passes: bool) -> None:
    """Remove dumps that nobody reads; a large step has hundreds. With `passes`, also
    remove the dumps of single passes. Mask credentials in the rest.
    """
    for path in folder.iterdir():
        if path.suffix in CODE_GENERATION or (passes and path.match(_OF_PASSES)):
            path.unlink()
    mask_configs(folder)


def mask_configs(folder: Path) -> None:
    """Mask credentials in XLA's dumps of its flags."""
    for path in folder.glob("*.config.pbtxt"):
        mask_file(path)


def is_full(folder: Path) -> bool:
    """Whether the folder has no room left for XLA's dumps, which XLA does not report."""
    return folder.exists() and shutil.disk_usage(folder).free < FULL_BYTES


def _file_system(folder: Path) -> Path:
    """Return the mount point of the file system that holds a folder."""
    above = (folder.resolve(), *folder.resolve().parents)
    return next(path for path in above if path.is_mount())


def check_disk(folder: Path) -> None:
    """Refuse dumps that XLA may have truncated silently."""
    if is_full(folder):
        raise UserError(
            "no space is left for what XLA dumps",
            where=_file_system(folder),  # keep a folder that the error names
            remedy="free some, or write elsewhere",
        )
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if most == resource.RLIM_INFINITY:
        return
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size >= most:
            what = (
                f"cut short at {most:,} bytes, the largest file that may be written here "
                "(ulimit -f)"
            )
            remedy = "raise that limit: ulimit -f unlimited"
            raise UserError(what, where=path, remedy=remedy)


def crash(code: int, log: Path, flags: Sequence[str]) -> UserError:
    """Make the error for a compilation that ended without an answer, with XLA's own line if there
    is one. A negative `code` is a signal.
    """
    is_begun = log.is_file()  # the process may end before it opens its log
    text = log.read_text(errors="replace")[-TAIL:] if is_begun else ""
    if (refused := flag_refusal(text)) is not None:
        reason = refused[1]
        if "Flag parsing failed" in reason:
            reason = f"a value of one of {' '.join(flags)}"
        return UserError(
            f"this XLA refuses a flag: {reason}",
            remedy="leave it out, or see: pgle flags lint",
        )
    fatal = FATAL.search(text)
    line = next((group for group in fatal.groups() if group), "") if fatal else ""
    if code == -9:
        where = log if is_begun else log.parent
        return UserError("the compiler was killed, most likely for memory", where=where)
    last = line or last_line(text, "no output")
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return UserError(
        f"the compiler crashed ({how}): {last.strip()[:300]}",
        remedy=f"the whole log: {log}" if is_begun else None,
    )


def refused(answer: str, module: Path, log: Path) -> UserError:
    """Make the error for a module that XLA does not compile, from the first line of XLA's
    answer.
    """
    line = answer.strip().partition("\n")[0]
    if (dynamic := _DYNAMIC.search(line)) is not None:
        return UserError(
            f"the sizes of its arrays are known only as it runs ({dynamic[0]})",
            where=module,
            remedy="export or lower it with numbers in place of symbols",
        )
    return UserError(
        f"XLA could not compile it: {line}",
        where=module,
        remedy=f"the whole log: {log}",
    )


def memory_of(dump: Path) -> dict[str, int]:
    """Return the device memory of a scheduled module (HloProto) from XLA's buffer assignment, in
    bytes. Keys: argument, output (results that do not reuse an argument), temp, total (constants
    too). Empty if the dump has none.
    """
    # this also imports protobuf, which the worker's Python may lack
    from pgle.xla.hlo.proto import buffers_from_bytes

    plan = buffers_from_bytes(read_bytes(dump))
    if plan is None:
        return {}
    return {
        "argument": plan.arguments_bytes,
        "output": plan.outputs_bytes,
        "temp": plan.temporary_bytes,
        "total": plan.peak_bytes,
    }


def _newest(paths: Iterable[Path]) -> Path | None:
    return max(
        paths, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None
    )
