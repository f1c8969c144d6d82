"""Run a program during its capture: start it, wait for it or stop it, and keep its output in a
log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pgle.errors import UserError, inert, many, one_line, shell_code
from pgle.files import read_kept, write_files
from pgle.masking import Masker
from pgle.run.capture.captured import (
    STARTED,
    STOPPED,
    CapturedProgram,
    choose_module,
    doubt_of,
    module_name,
    modules_in,
    read_captured,
)
from pgle.run.process import process, terminal
from pgle.run.process.process import ending_with_us, marked, wait_for

STDERR = 2  # file descriptor: our stdout only gets results

UNSETTLED = 3
"""Factor on the waiting time, while the program compiles something or no training step was executed
twice.
"""

UNSTARTED = 30
"""A program without a step is ended after this multiple of ``--quiet-for``, even if it compiles."""
LEAST_S = 1.0  # least seconds of ``--quiet-for`` for that

POLL_S = 0.2
LOOK_S = 1.0  # seconds between two looks at the program's record
# seconds without a compilation after which a line says that pgle waits; doubled for each next line
SAY_S = 30.0
GRACE_S = 5.0  # seconds that a stopped program may take to end before it is killed
#: seconds to wait for its last output, because surviving processes may keep the pipe open
PUMPED_S = 1.0

OUTPUT = "output.log"  # the program's output, next to its modules
OURS = b"pgle: "  # prefix of lines that pgle's hook prints in the program
LOG_BYTES = 64 << 20  # most bytes of output in the log
CHUNK_BYTES = 1 << 16


def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    *,
    quiet_s: float,
    choose: str | None,
    until_step: bool,
    output: int,
    names_log: bool = True,
) -> int:
    """Run a command until it ends or has compiled what is wanted. Arguments as in
    `capture_modules`; with `names_log` a message names the log.

    Returns:
        The exit code, 128 + N where signal N ended it; 0 where we stopped the program ourselves.
    """
    printed = ProgramOutput(folder / OUTPUT, names_log=names_log)
    started = program_started(command, environment, printed, output=output)
    with started as child, terminal.working("running the program"):
        code = wait_or_stop(
            child, folder, quiet_s=quiet_s, choose=choose, until_step=until_step
        )
    printed.end()
    if code and not _is_error_known(folder):
        printed.show_last_lines()
    return code


def _is_error_known(folder: Path) -> bool:
    """Whether one line can explain a program's end: the hook recorded an exception, or XLA refused
    a flag.
    """
    before_jax = read_kept(folder / STARTED) or b""
    is_noted = bool(read_captured(folder).error or before_jax.strip())
    return is_noted or bool(process.refused_flag(folder / OUTPUT))


@contextmanager
def program_started(
    command: Sequence[str],
    environment: Mapping[str, str],
    printed: ProgramOutput,
    *,
    output: int,
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a running program. When the block ends, stop it unless it has ended."""
    is_ours = output == STDERR
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
    own_file = {"stdout": output, "stderr": output}
    own, mark = marked(environment)
    child = process.started(
        command,
        own,
        **(streams if is_ours else own_file),
        start_new_session=True,
    )
    with suppress(OSError):  # if memory runs out, the system ends this process first
        Path(f"/proc/{child.pid}/oom_score_adj").write_text("1000", encoding="ascii")
    if is_ours:
        printed.follow(child)
    try:
        with ending_with_us(mark, child.pid):
            yield child
    finally:
        if child.returncode is None:
            _stop(child)


class ProgramOutput:
    """The output of a program, kept in a log with credentials masked.

    The terminal shows it only on request. If the program fails without an exception, the terminal
    shows its last lines.
    """

    def __init__(self, log: Path, *, names_log: bool = True) -> None:
        self._log = log
        self._must_name_log = names_log
        self._bytes = 0
        self._hidden: deque[bytes] = deque(maxlen=terminal.LAST_LINES)
        self._lock = threading.Lock()
        self._pumps: list[threading.Thread] = []

    def follow(self, child: subprocess.Popen[bytes]) -> None:
        """Read both streams of a child until they end."""
        for stream in (child.stdout, child.stderr):
            pump = threading.Thread(target=self._pump, args=(stream,), daemon=True)
            self._pumps.append(pump)
            pump.start()

    def end(self) -> None:
        """Wait for the last output."""
        wait_for(self._pumps, PUMPED_S)

    def show_last_lines(self) -> None:
        """Show the last hidden lines, because only they explain the failure."""
        with self._lock:
            if self._hidden:
                terminal.pass_on(STDERR, b"".join(self._hidden))

    def _pump(self, stream: BinaryIO) -> None:
        masker = Masker()
        rest = b""
        with suppress(OSError, ValueError), self._log.open("ab", buffering=0) as log:
            while data := os.read(stream.fileno(), CHUNK_BYTES):
                with self._lock:
                    whole, mark, rest = (rest + data).rpartition(b"\n")
                    self._show(data, whole + mark)
                    self._keep(log, masker.kept(whole + mark))
            self._show(b"", rest)
            self._keep(log, masker.kept(rest))

    def _keep(self, log: BinaryIO, lines: bytes) -> None:
        if self._bytes < LOG_BYTES:
            self._bytes += len(lines)
            with suppress(OSError):  # the disk is full
                log.write(lines)

    def _show(self, data: bytes, lines: bytes) -> None:
        """Print new output if the user asked for it. Otherwise print only the hook's lines, and
        remember the last others.
        """
        if terminal.shows_output:
            with suppress(OSError):
                terminal.pass_on(STDERR, data)
            return
        for line in lines.splitlines(keepends=True):
            is_ours = line.startswith(OURS) and not terminal.is_quiet
            if is_ours:
                with suppress(OSError):
                    terminal.pass_on(STDERR, line)
            else:
                self._hidden.append(line)
        if self._hidden and self._must_name_log and not terminal.is_quiet:
            self._must_name_log = False
            say(f"what the program prints is in {self._log} (-s shows it)")


def say(text: str) -> None:
    """Print a line by pgle on stderr."""
    terminal.say(inert(f"pgle: {one_line(text)}"))


def wait_or_stop(
    child: subprocess.Popen[bytes],
    folder: Path,
    *,
    quiet_s: float,
    choose: str | None,
    until_step: bool,
    is_ready: Callable[[], bool] = lambda: False,
) -> int:
    """Wait for the program, or stop it. Return its exit code, 128 + N if signal N ended it; 0 if
    pgle stopped it, or if it is ready and still runs.

    Raises:
        UserError: it has compiled nothing for too long.
    """
    seen = 0
    began = since = time.monotonic()
    limit_s = UNSTARTED * max(quiet_s, LEAST_S)
    said_s, said_size, looked = SAY_S, 0, -LOOK_S
    while True:
        with suppress(subprocess.TimeoutExpired):
            return shell_code(child.wait(POLL_S))
        if is_ready():
            return 0
        modules = modules_in(folder)
        size = sum(path.stat().st_size for path in modules)
        now = time.monotonic()
        if size != seen:
            seen, since = size, now
        waited = now - since
        if now - looked > LOOK_S:
            looked = now
            what = doing(read_captured(folder), len(modules))
            terminal.now_doing(f"running the program: {what}")
        # If several programs compete for each core, everything takes this much longer.
        load = max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0)
        is_late = now - began > limit_s * load
        if not seen:
            if is_late:
                why = doing(read_captured(folder), 0)
                remedy = f"name a program that trains, or wait longer: --quiet-for {2 * quiet_s:g}"
                what = f"the program compiled nothing in {now - began:.0f} s: {why}"
                raise UserError(what, remedy=remedy)
            if waited > said_s:
                why = doing(read_captured(folder), 0)
                said = f"nothing new from the program in {said_s:g} s: {why}"
                say(f"{said}; waiting up to {limit_s:g} s (Ctrl-C ends it)")
                said_s *= 2
            continue
        is_known, is_settled = progress(modules, choose)
        if until_step and is_known:
            _stop(child)
            return 0
        is_late = is_late and not (is_known or is_settled)
        least_s = patience_s(quiet_s, load, is_known=is_known)
        if waited <= least_s and not is_late:
            continue
        patience = least_s * (1 if is_settled else UNSETTLED)
        program = read_captured(folder)
        if waited > patience or is_late:
            at = "" if is_settled else f"; {doing(program, len(modules))}"
            quiet_for = f"none in the last {waited:.0f} s (--quiet-for)"
            if is_late:
                quiet_for = f"no step in {now - began:.0f} s (--quiet-for {quiet_s:g})"
            what = (
                f"stopping the program on purpose: {len(modules)} modules are captured"
            )
            say(f"{what}, {quiet_for}{at}")
            _stop(child)
            write_files({folder / STOPPED: ""}, force=True)
            return 0
        if seen != said_size:
            said_size = seen
            what = f"no training step yet: {doing(program, len(modules))}"
            say(
                f"{what}; waiting {patience:.0f} s for one (--module NAME takes another module)"
            )


def patience_s(quiet_s: float, load: float, *, is_known: bool) -> float:
    """Return the seconds without a new module after which a program counts as done. On a busy
    machine it is longer, unless the step is known.

    Args:
        quiet_s: ``--quiet-for``.
        load: how many times longer everything takes.
        is_known: whether the step was executed.
    """
    return quiet_s if is_known else quiet_s * load


def doing(program: CapturedProgram, modules: int) -> str:
    """Say in a clause what a running program is doing, from its hook's record.

    Args:
        program: the hook's last record.
        modules: how many it has compiled or begun to compile.
    """
    if program.waits_for:
        remedy = "start all of them in the command, or none: one process has all devices here"
        return f"jax.distributed.initialize waits ({program.waits_for}; {remedy})"
    if not program.python:
        return "it has not imported jax yet"
    at = f", and is at {program.place}" if program.place else ""
    if program.compiling:
        return f"it compiles {module_name(Path(program.compiling))}{at}"
    return f"it has compiled {many(modules, 'module')}{at}"


def progress(modules: Sequence[Path], choose: str | None) -> tuple[bool, bool]:
    """Whether the step, or the wanted module, is known; and whether it was executed. Otherwise the
    program gets more time.
    """
    try:
        wanted = choose_module(modules, choose)
    except UserError:  # not compiled yet
        return False, False
    program = read_captured(wanted.parent)
    if choose is not None:
        return program.executed.get(wanted.name, 0) > 0, True
    doubt = doubt_of(wanted)
    # without a hook nothing is known
    return not doubt, not program.python or not (program.compiling or doubt)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End the program and all that it started, such as ranks of a launcher or data loaders, which
    may outlive it.
    """
    until = time.monotonic() + GRACE_S
    number = signal.SIGTERM
    while _signalled(child, number) and number != signal.SIGKILL:
        while _signalled(child, 0) and time.monotonic() < until:
            time.sleep(POLL_S / 4)
        number = signal.SIGKILL
    child.wait()


def _signalled(child: subprocess.Popen[bytes], number: int) -> bool:
    """Send a signal to the program's process group; False if the group is gone."""
    child.poll()
    try:
        os.killpg(child.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
