"""Compile modules with the real XLA:GPU compiler on a machine that needs no GPU, up to the finished schedule.

A `Compiler` is one session: a child process (`worker.py`) that has XLA's plugin loaded and forks once
for every compilation, so that XLA's flags, its log and its crashes stay apart. Code generation is left out: the
scheduled module, the schedule that the latency-hiding scheduler believed in and the memory report are written before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any

import msgspec

import pgle
from pgle.errors import UserError
from pgle.run.compiler.cache import Answer, Cache, key_of
from pgle.run.compiler.dumps import (
    LOG,
    UNSCHEDULED,
    check_room,
    crash,
    find_schedule,
    keep_unscheduled,
    memory_of,
    refused,
    scheduled_module,
    tidy,
)
from pgle.run.compiler.request import (
    OF_JAX,
    SCHEDULING_PASSES,
    OnPhase,
    Phase,
    RehearsalRequest,
    RehearsalResult,
    check,
    xla_flags,
)
from pgle.run.directory.out import claim
from pgle.xla.hlo.dumps import fingerprint_of


class Compiler:
    """A session with one compiler; its methods may be called from several threads at once.

    Args:
        python: the interpreter whose jax compiles; it needs jax and the CUDA plugin, not pgle.
        cache: where compilations are kept; None: nowhere.
        on_phase: called with each `Phase`, from the thread that reads the compiler's answers.
    """

    def __init__(
        self,
        python: str = sys.executable,
        *,
        cache: Cache | None = None,
        on_phase: OnPhase = lambda phase: None,
    ) -> None:
        self.python = python
        self._cache = cache
        self._on_phase = on_phase
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._jaxlib = ""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._waiting: dict[int, tuple[RehearsalRequest, OnPhase, Future[dict[str, Any]]]] = {}
        self._count = 0
        self._is_closed = False

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

    def compile(self, request: RehearsalRequest, on_phase: OnPhase = lambda phase: None) -> RehearsalResult:
        """Compile `request.module` up to its schedule.

        Args:
            request: what to compile.
            on_phase: called with the phases of this compilation, too.

        Raises:
            UserError: jax or its CUDA plugin is missing or too old; the module, target, topology, profile or a flag
                is refused; XLA fails or crashes before the schedule is there (with XLA's own line).
        """
        check(request)
        folder = request.dump_dir.resolve()
        claim(folder)
        folder.mkdir(parents=True, exist_ok=True)
        answer, kept = self._kept_or_compiled(request, folder, on_phase)
        after = _module(folder, request, answer.module_name)
        assert after is not None  # else the worker would not have reported that it is done
        return RehearsalResult(
            after_optimizations=after,
            schedule=find_schedule(folder, answer.module_name),
            log=folder / LOG,
            fingerprint=fingerprint_of(after),
            memory=memory_of(after),
            kept=kept,
            **msgspec.structs.asdict(answer),
        )

    def _kept_or_compiled(self, request: RehearsalRequest, folder: Path, on_phase: OnPhase) -> tuple[Answer, bool]:
        """The answer, and whether it comes from the cache."""
        if self._cache is None:
            return self._compiled(request, folder, on_phase), False
        key, names = self._key(request), {"@FOLDER@": str(folder)}
        if request.profile is not None:
            names["@PROFILE@"] = str(request.profile.resolve())
        kept = self._cache.load(key, folder, names)
        module = None if kept is None else _module(folder, request, kept.module_name)
        if kept is not None and module is not None and module.is_file():
            self._on_phase(Phase(request, "kept from before", kept.module_name))
            self._on_phase(Phase(request, "done"))
            return kept, True
        for laid in folder.iterdir():  # of a damaged entry
            laid.unlink()
        answer = self._compiled(request, folder, on_phase)
        if key == self._key(request):  # else the module was written anew since its content was asked for
            self._cache.store(key, folder, names, answer)
        return answer, False

    def _compiled(self, request: RehearsalRequest, folder: Path, on_phase: OnPhase) -> Answer:
        reply = self._ask(request, folder, on_phase)
        check_room(folder)
        if error := reply.get("user_error"):
            raise UserError(error["what"], where=error["where"] or request.module, remedy=error["remedy"])
        if "crashed" in reply:
            raise crash(reply["crashed"], folder / LOG, request.flags)
        if "xla_error" in reply:
            raise refused(reply["xla_error"], request.module, folder / LOG)
        return msgspec.convert(reply, Answer)

    def _key(self, request: RehearsalRequest) -> str:
        others = {
            "device": (request.target, request.portable_target, request.allocator_bytes, request.topology),
            "passes": (request.as_job, request.keeps_unscheduled, request.passes, SCHEDULING_PASSES),
        }
        return key_of(self.python, request.module, request.flags, request.profile, others)

    def _ask(self, request: RehearsalRequest, folder: Path, on_phase: OnPhase) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            process = self._started()
            self._count += 1
            number = self._count
            self._waiting[number] = (request, on_phase, answer)
        order = {
            "id": number,
            "module": str(request.module.resolve()),
            "dump_dir": str(folder),
            "xla_flags": xla_flags(request, folder),
            "efforts": dict(flag[2:].split("=", 1) for flag in request.flags if flag.startswith(OF_JAX)),
        }
        same = ("target", "portable_target", "allocator_bytes", "topology", "as_job", "passes")
        try:
            self._send(process, {**order, **{name: getattr(request, name) for name in same}})
            reply = answer.result(request.timeout_s)
            keeps = request.keeps_unscheduled or request.passes == "before scheduling"
            tidy(folder, passes=keeps and keep_unscheduled(folder))
            return reply | {"jaxlib": self._jaxlib}
        except TimeoutError:
            what = f"not compiled after {request.timeout_s:g} s"
            raise UserError(what, where=request.module, remedy=f"see the log: {folder / LOG}") from None
        finally:
            if self._waiting.pop(number, None) and process.poll() is None:
                self._send(process, {"cancel": number})
            self._on_phase(Phase(request, "done"))

    def _send(self, process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
        assert process.stdin is not None
        with self._lock:
            try:
                process.stdin.write(json.dumps(message).encode() + b"\n")
                process.stdin.flush()
            except OSError:  # it has ended; the reading thread says so
                return

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
            if reply := hello.get("user_error"):
                raise UserError(reply["what"], where=reply["where"], remedy=reply["remedy"])
            raise UserError(f"the compiler's process does not start: {self._last_words()}", where=self.python)
        self._jaxlib = hello["jaxlib"]
        self._process = process
        threading.Thread(target=self._listen, args=(process, process.stdout), daemon=True).start()
        return process

    def _listen(self, process: subprocess.Popen[bytes], stream: IO[bytes]) -> None:
        """Hand answers to those who wait for them, until the process ends."""
        for line in stream:
            reply = json.loads(line)
            if (waiting := self._waiting.get(reply["id"])) is None:
                continue
            request, on_phase, answer = waiting
            if "answer" in reply:
                self._waiting.pop(reply["id"], None)
                answer.set_result(reply["answer"])
            else:
                phase = Phase(request, reply["phase"], reply.get("module", ""), reply.get("devices", 0))
                on_phase(phase)
                self._on_phase(phase)
        code = process.wait()
        for number in list(self._waiting):
            *_, answer = self._waiting.pop(number)
            answer.set_result({"crashed": code})

    def _last_words(self) -> str:
        self._errors.seek(0)
        rows = [row for row in self._errors.read().decode(errors="replace").splitlines() if row.strip()]
        return rows[-1].strip()[:300] if rows else "no output"


def _module(folder: Path, request: RehearsalRequest, name: str) -> Path | None:
    """The compiled module, if it is there."""
    return folder / UNSCHEDULED if request.passes == "before scheduling" else scheduled_module(folder, name)


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


def rehearse_compile(request: RehearsalRequest, python: str = sys.executable) -> RehearsalResult:
    """Compile one module in a session of its own; see `Compiler.compile`."""
    with Compiler(python) as compiler:
        return compiler.compile(request)
