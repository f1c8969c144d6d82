"""Child processes: the user's command, which runs as if alone, and work on many files in
parallel.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pgle.errors import UserError, shell_code
from pgle.files import Json, content_digest, sha256
from pgle.masking import Masker, kept_argv
from pgle.next import typed
from pgle.run.process import terminal
from pgle.run.process.endings import handling
from pgle.xla.log.messages import flag_refusal

if TYPE_CHECKING:  # for most commands, which read one file in this process
    from concurrent.futures import Executor


CHUNK_BYTES = 1 << 16
LINE_BYTES = 1 << 16  # longer lines go into the log in pieces
# bytes at the end of a log: after a bad value XLA prints all its flags
REFUSAL_BYTES = 1 << 20
# most bytes to hash of a file that a command names; else size and time count
DIGESTED_BYTES = 1 << 30
# seconds to wait, after the command's end, for a grandchild that keeps the output open
GRACE_S = 5.0
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_LIBC = ctypes.CDLL(None)

OnLine = Callable[[str], None]


def launch(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    on_line: OnLine | None = None,
    *,
    words: Collection[bytes] = (),
    stdout: int = 1,
    is_shown: bool = True,
    has_stdin: bool = True,
) -> int:
    """Run a command without a shell. Return its exit code, which is 128 + N if signal N ended it.

    Its output is passed on at once and unchanged. A log keeps both streams, with credentials
    masked.

    Args:
        on_line: called with every complete line of either stream, decoded. Carriage returns also
            end lines.
        words: lowercase words; if given, `on_line` may miss lines that contain none of them.
        stdout: descriptor for the command's stdout: ours, or 2 if our stdout carries results.
        is_shown: if false, the output goes only to the log. If the command fails, its last lines go
            to stderr.
        has_stdin: whether the command reads our stdin, or an empty one.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab", buffering=0) as file, _forwarding() as forward_to:
        own, mark = marked(environment)
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
        with ending_with_us(mark):
            child = started(
                command,
                own,
                **streams,
                stdin=None if has_stdin else subprocess.DEVNULL,
            )
            forward_to(child)
            assert child.stdout is not None  # both are pipes
            assert child.stderr is not None
            pumps = []
            for stream, descriptor in ((child.stdout, stdout), (child.stderr, 2)):
                shown_at = descriptor if is_shown else None
                job = (stream, shown_at, file, on_line, words)
                pumps.append(threading.Thread(target=_pump, args=job, daemon=True))
            for pump in pumps:
                pump.start()
            code = child.wait()
        wait_for(pumps, GRACE_S)
    if code and not is_shown:
        lines = _end_of(log, LINE_BYTES).splitlines(keepends=True)
        terminal.pass_on(2, b"".join(lines[-terminal.LAST_LINES :]))
    return shell_code(code)


def wait_for(threads: Iterable[threading.Thread], most_s: float) -> None:
    """Wait until all threads have ended, but together at most `most_s` seconds."""
    until = time.monotonic() + most_s
    for thread in threads:
        thread.join(timeout=max(0.0, until - time.monotonic()))


def _end_of(log: Path, size: int) -> bytes:
    """Return the last `size` bytes of a log."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return file.read()


def started(
    command: Sequence[str], environment: Mapping[str, str], **streams: Any
) -> subprocess.Popen[bytes]:
    """Start a command that gets SIGTERM if pgle is killed; `streams` as for `subprocess.Popen`.

    Only Linux supports this; elsewhere a command may outlive a killed pgle. The thread that starts
    it must wait for it.
    """
    try:
        return subprocess.Popen(
            list(command), env=environment, preexec_fn=end_with_parent, **streams
        )
    except OSError as error:
        raise _refusal(command[0], error.strerror or str(error)) from None


_GUARD = """
read -r done && exit
for signal in TERM KILL; do
  for place in /proc/[0-9]*; do
    if grep -qzx -- "$1=1" "$place/environ"; then kill -$signal "${place#/proc/}"; fi
  done
  [ $signal = KILL ] || sleep 2
done
[ -z "$2" ] || kill -KILL "-$2"
"""
"""Shell script: when its stdin closes, it ends all Linux processes with a variable of this name,
and a process group.
"""


def marked(environment: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return an environment with a unique last variable, by which all descendants of a child are
    found, and the variable's name. Python's output is unbuffered in it, unless the user decides
    otherwise.
    """
    mark = f"PGLE_STARTED_BY_{os.getpid()}_{time.monotonic_ns()}"
    return {"PYTHONUNBUFFERED": "1", **environment, mark: "1"}, mark


@contextmanager
def ending_with_us(mark: str, group: int | None = None) -> Iterator[None]:
    """If pgle is killed meanwhile, end all descendants of a child, because they get no death
    signal. A shell waits at the other end of a pipe, which closes when pgle ends.

    Args:
        mark: name of the variable, from `marked`.
        group: the process group that the child leads, if it leads one.
    """
    watch = ["sh", "-c", _GUARD, "sh", mark, str(group or "")]
    try:
        guard = subprocess.Popen(
            watch,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:  # no shell here, so only the child is asked to end
        yield
        return
    try:
        yield
    finally:
        guard.communicate(b"done\n")


def check_program(command: Sequence[str]) -> None:
    """Raise `UserError` if there is no command, or its first word does not name a program."""
    if not command:
        raise UserError(
            "no command given", remedy="put it after the options: -- python train.py"
        )
    if shutil.which(command[0]) is None:
        raise _refusal(command[0], "no such program")


def program_of(command: Sequence[str]) -> Json:
    """Identify a program, as JSON values without credentials: its words, and a digest of each word
    that is a file. An edited script is another program.
    """
    digests = {}
    for word in named_files(command):
        with suppress(OSError):
            digests[word] = _digest(Path(word))
    return {"command": list(kept_argv(command)), "files": digests}


def named_files(command: Sequence[str]) -> list[str]:
    """Return the words of a command that name files. The code of ``python -c`` may be too long for
    a file name.
    """
    found = []
    for word in command:
        with suppress(OSError):
            found += [word] if Path(word).is_file() else []
    return found


def _digest(path: Path) -> str:
    """Return the digest of a file. It ends even if the file grows, as logs do, or blocks, as some
    of /proc do.
    """
    state = path.stat()
    if state.st_size > DIGESTED_BYTES:
        return sha256(f"{state.st_size} {state.st_mtime_ns}".encode())
    return content_digest(path)[0]


def _refusal(word: str, reason: str) -> UserError:
    """Explain why a command cannot be started, and what the user probably meant."""
    path = Path(word)
    remedy = "check the command"
    if path.is_dir():
        reason = "it is a folder"
    elif path.is_file() and path.suffix == ".mlir":
        reason = "it is a module"
        remedy = f"predict its step: {typed('pgle', 'rehearse', path)}"
    elif path.is_file() and os.access(path, os.X_OK) and "/" not in word:
        reason = "it is not on the PATH"
        remedy = f"name its folder: ./{word}"
    elif path.is_file():
        starter = "python" if path.suffix == ".py" else "bash"
        remedy = f"have it run: -- {starter} {word}"
        reason = "it is not executable" if reason == "no such program" else reason
    elif "=" in word or " " in word:
        remedy = (
            "write its words without quotes around them all, and variables before pgle"
        )
    return UserError(f"cannot be started ({reason})", where=word, remedy=remedy)


def end_with_parent() -> None:
    """Ask the system to send this process SIGTERM when the thread that started it ends."""
    with suppress(OSError, AttributeError):
        _LIBC.prctl(SET_DEATH_SIGNAL, signal.SIGTERM)


def ended(code: int) -> str:
    """Say how a command ended, from its exit code; 128 + N means signal N."""
    try:
        return f"was ended by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"ended with exit code {code}"


def last_line(log: Path) -> str:
    """Return the last line of a log, or the verdict if a pgle answer failed. Only the log's end is
    read. Empty if there is none.
    """
    if not log.is_file():
        return ""
    lines = _end_of(log, LINE_BYTES).decode(errors="replace").split("\n")
    said = [line.strip() for line in reversed(lines) if line.strip()]
    return next(
        (line for line in said if line.startswith(FAILED)), said[0] if said else ""
    )


def refused_flag(log: Path) -> str:
    """Return XLA's message if it ended a program because of XLA_FLAGS, from the end of its output;
    else empty.
    """
    try:
        found = flag_refusal(_end_of(log, REFUSAL_BYTES).decode(errors="replace"))
    except OSError:
        return ""
    return "" if found is None else found[1]


FAILED = "✗ "  # starts the verdict of a failed pgle answer; warnings follow it


def _pump(
    stream: BinaryIO,
    descriptor: int | None,
    log: BinaryIO,
    on_line: OnLine | None,
    words: Collection[bytes],
) -> None:
    """Copy a stream to one of ours at once, byte for byte, and to the log by lines. A failed write
    does not stop the program.

    The log is written by lines, because an unbuffered program writes a line in pieces, which the
    other stream's lines would separate. If our reader is gone (``| head``), the program's stream is
    closed, so that it reacts as it would alone.
    """
    rest = b""
    broken: set[str] = set()
    masker = Masker()
    while data := os.read(stream.fileno(), CHUNK_BYTES):
        try:
            if descriptor is not None:
                _try("output", broken, partial(terminal.pass_on, descriptor, data))
        except BrokenPipeError:
            stream.close()
            break
        text = rest + data
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        if not end and len(text) > LINE_BYTES:
            end = len(text)
        whole, rest = text[:end], text[end:]
        if whole:
            _try("log", broken, partial(log.write, masker.kept(whole)))
        if whole and on_line is not None and mentions(whole, words):
            for line in re.split(rb"[\r\n]", whole)[:-1]:
                _try("line", broken, partial(on_line, line.decode(errors="replace")))
    if rest:
        _try("log", broken, partial(log.write, masker.kept(rest)))


def mentions(text: bytes, words: Collection[bytes]) -> bool:
    """Whether a text contains one of the lowercase words; true if there are no words."""
    small = text.lower()
    return not words or any(word in small for word in words)


def _try(name: str, broken: set[str], action: Callable[[], object]) -> None:
    """Call `action`, unless an action of this name failed before: on a full disk, or a closed
    terminal. Raises `BrokenPipeError` if the reader is gone.
    """
    if name in broken:
        return
    try:
        action()
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        broken.add(name)
        with suppress(OSError):
            os.write(
                2,
                f"pgle: warning: the {name} of the program is no longer kept ({error})\n".encode(),
            )


@contextmanager
def _forwarding() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Forward this process's signals to the command. pgle ends when the command does.

    Yields a function that takes the started command. The command also gets signals that came before
    it started.
    """
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, _: object) -> None:
        if number == signal.SIGINT and _in_foreground():
            return  # after Ctrl-C the terminal has sent it to the command as well
        if not children:
            early.append(number)
        elif children[0].poll() is None:
            children[0].send_signal(number)

    def begin(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        for number in early:
            forward(number, None)

    with handling(FORWARDED, forward):
        yield begin


def _in_foreground() -> bool:
    """Whether the terminal sends its signals to our process group."""
    try:
        with Path("/dev/tty").open("rb", buffering=0) as console:
            return os.tcgetpgrp(console.fileno()) == os.getpgrp()
    except OSError:
        return False


@contextmanager
def executor(tasks: int) -> Iterator[Executor]:
    """Yield an executor with one process per core, at most one per task.

    An exception that leaves the block ends running tasks, and drops the others. Submitted functions
    must be importable (not lambdas), and return values are pickled.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    workers = max(min(tasks, os.cpu_count() or 1), 1)
    ours = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(
        workers,
        ours,
        initializer=_begin,
        initargs=(Path.cwd(), dict(os.environ), gc.get_threshold()),
    )
    try:
        with _blank_main():
            yield pool
    except BrokenProcessPool:
        raise UserError(
            f"one of {workers} processes was killed, most likely for memory",
            remedy="give fewer or smaller inputs at a time",
        ) from None
    except BaseException:  # otherwise the executor would wait for started tasks
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(
    folder: Path, environment: dict[str, str], thresholds: tuple[int, int, int]
) -> None:
    """Set up a new worker process: take over its owner's settings, and end silently when
    interrupted.
    """
    os.chdir(folder)
    os.environ.clear()  # the fork server's environment may be out of date
    os.environ.update(environment)
    gc.set_threshold(*thresholds)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_owner, daemon=True).start()


def _end_with_owner() -> None:
    """End this process when its owner is gone. A killed owner cannot say so: other workers hold the
    task queue open, and the system's parent is the fork server.
    """
    from multiprocessing import connection, parent_process

    owner = parent_process()
    if owner is not None:
        connection.wait([owner.sentinel])
        os._exit(1)


@contextmanager
def _blank_main() -> Iterator[None]:
    """Keep new processes from importing the main program. Our tasks do not need it, and it must not
    run again.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
