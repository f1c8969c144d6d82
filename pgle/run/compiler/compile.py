"""Compile modules with the real XLA:GPU compiler on a machine that needs no GPU, up to the finished schedule.

A `Compiler` is one session: a child process (`worker.py`) that has XLA's plugin loaded and forks once
for every compilation, so that XLA's flags, its log and its crashes stay apart. Code generation is left out: the
scheduled module, the schedule that the latency-hiding scheduler believed in and the memory report are written before.
"""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any, TypedDict

import msgspec

import pgle
from pgle.errors import UserError
from pgle.run.compiler.cache import Cache, key_of
from pgle.run.compiler.dumps import (
    BEFORE,
    LOG,
    check_room,
    crash,
    find_dump,
    find_schedule,
    keep_before_stages,
    mask_configs,
    memory_of,
    refused,
    remove_generated_code,
    remove_passes,
    scheduled_module,
)
from pgle.run.compiler.folder import claim
from pgle.run.compiler.request import (
    PASSES,
    OnPhase,
    Phase,
    RehearsalRequest,
    RehearsalResult,
    check,
    environment,
    message,
)
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
        self._waiting: dict[int, tuple[RehearsalRequest, OnPhase, queue.SimpleQueue[dict[str, Any]]]] = {}
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
        began = time.perf_counter()
        folder = request.dump_dir.resolve()
        claim(folder)
        folder.mkdir(parents=True, exist_ok=True)
        answer = self._kept_or_compiled(request, folder, on_phase)
        check_room(folder)
        log = folder / LOG
        if "user_error" in answer:
            error = answer["user_error"]
            raise UserError(error["what"], where=error["where"] or request.module, remedy=error["remedy"])
        if "crashed" in answer:
            raise crash(answer["crashed"], log, request.flags)
        if "xla_error" in answer:
            raise refused(answer["xla_error"], request.module, log)
        name = answer["module_name"]
        after = _module(folder, request, answer)
        assert after is not None  # else the worker would not have said that it is done
        return RehearsalResult(
            module_name=name,
            num_partitions=answer["num_partitions"],
            num_replicas=answer["num_replicas"],
            after_optimizations=after,
            before_optimizations=find_dump(folder, name, "before_optimizations.hlo.pb"),
            schedule=find_schedule(folder, name),
            log=log,
            fingerprint=fingerprint_of(after),
            compile_s=answer["compile_s"],
            start_s=answer["read_s"],
            wall_s=time.perf_counter() - began,
            cpu_s=answer["cpu_s"],
            peak_bytes=answer["peak_bytes"],
            memory=memory_of(after),
            jaxlib=answer["jaxlib"],
            kept="kept" in answer,
        )

    def _kept_or_compiled(self, request: RehearsalRequest, folder: Path, on_phase: OnPhase) -> dict[str, Any]:
        if self._cache is None:
            return self._ask(request, folder, on_phase)
        key = self._key(request)
        names = {"@FOLDER@": str(folder)}
        if request.profile is not None:
            names["@PROFILE@"] = str(request.profile.resolve())
        kept = self._cache.load(key, folder, names)
        if kept is not None and _is_whole(kept, _module(folder, request, kept)):
            self._on_phase(Phase(request, "kept from before", kept["module_name"]))
            self._on_phase(Phase(request, "done"))
            return kept | {"kept": True}
        for laid in folder.iterdir():  # of a damaged entry
            laid.unlink()
        answer = self._ask(request, folder, on_phase)
        # The module may have been written anew since its content was asked for.
        if "module_name" in answer and key == self._key(request):
            self._cache.store(key, folder, names, answer)
        return answer

    def _key(self, request: RehearsalRequest) -> str:
        others = (request.target, request.portable_target, request.allocator_bytes, request.topology)
        switches = {
            "others": others,
            "profile": request.profile_as,
            "whole": (request.to_the_end, request.as_job, request.before_stages, request.until_scheduling),
            "passes": "" if request.passes is None else PASSES[request.passes],
        }
        return key_of(self.python, request.module, request.flags, request.profile, switches)

    def _ask(self, request: RehearsalRequest, folder: Path, on_phase: OnPhase) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._lock:
            process = self._started()
            self._count += 1
            number = self._count
            self._waiting[number] = (request, on_phase, answers)
        try:
            self._send(process, message(number, request, folder))
            answer = answers.get(timeout=request.timeout_s)
            remove_generated_code(folder)
            mask_configs(folder)
            if request.before_stages or request.until_scheduling:
                keep_before_stages(folder)
                remove_passes(folder)
            return answer | {"jaxlib": self._jaxlib}
        except queue.Empty:
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
        start = f"import sys; sys.path.append({root!r}); from pgle.run.compiler.children import main; main()"
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
            raise UserError(f"the compiler's process does not start: {self._last_words()}", where=self.python)
        self._jaxlib = hello["jaxlib"]
        self._process = process
        threading.Thread(target=self._listen, args=(process, process.stdout), daemon=True).start()
        return process

    def _listen(self, process: subprocess.Popen[bytes], stream: IO[bytes]) -> None:
        """Hand answers to those who wait for them, until the process ends."""
        for line in stream:
            said = json.loads(line)
            if (waiting := self._waiting.get(said["id"])) is None:
                continue
            request, on_phase, answers = waiting
            if "answer" in said:
                self._waiting.pop(said["id"], None)
                answers.put(said["answer"])
            else:
                phase = Phase(request, said["phase"], said.get("module", ""), said.get("devices", 0))
                on_phase(phase)
                self._on_phase(phase)
        code = process.wait()
        for number in list(self._waiting):
            *_, answers = self._waiting.pop(number)
            answers.put({"crashed": code})

    def _last_words(self) -> str:
        self._errors.seek(0)
        rows = [row for row in self._errors.read().decode(errors="replace").splitlines() if row.strip()]
        return rows[-1].strip()[:300] if rows else "no output"


def _module(folder: Path, request: RehearsalRequest, answer: dict[str, Any]) -> Path | None:
    """The compiled module, if it is there."""
    if request.until_scheduling:
        return folder / BEFORE["scheduling"]
    return scheduled_module(folder, str(answer.get("module_name")))


class _Answer(TypedDict):
    """What is kept of a compilation besides its files."""

    module_name: str
    num_partitions: int
    num_replicas: int
    compile_s: float
    read_s: float
    cpu_s: float
    peak_bytes: int
    jaxlib: str


def _is_whole(answer: dict[str, Any], module: Path | None) -> bool:
    """Whether a kept answer says all that is needed, and its module is there."""
    try:
        msgspec.convert(answer, _Answer)
    except msgspec.ValidationError:
        return False
    return module is not None and module.is_file()


def rehearse_compile(request: RehearsalRequest, python: str = sys.executable) -> RehearsalResult:
    """Compile one module in a session of its own; see `Compiler.compile`."""
    with Compiler(python) as compiler:
        return compiler.compile(request)


def matches_job(result: RehearsalResult, job: Path | str) -> bool:
    """Whether a rehearsal compiled to the fingerprint of the job that wrote the module.

    Args:
        result: of a rehearsal with the job's target, topology and flags, `RehearsalRequest.as_job`.
        job: the job's fingerprint (32 hexadecimal digits), or its ``*_gpu_after_optimizations.hlo.pb`` dump.

    Raises:
        UserError: the dump has no fingerprint.
    """
    if isinstance(job, str) and re.fullmatch(r"[0-9a-f]{32}", job):
        return result.fingerprint == job
    path = Path(job)
    wanted = fingerprint_of(path)
    if not wanted:
        raise UserError("holds no fingerprint", where=path, remedy="give the *_gpu_after_optimizations.hlo.pb dump")
    return result.fingerprint == wanted
