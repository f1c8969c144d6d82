"""Recognise in logs that a program ended early. Each wording states who writes it.

A crash, a kill and a time limit certainly end the process (`ENDINGS`). A Python exception ends it
only if nothing catches it, so `Tracebacks` looks for a later step of the same rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple


class Ending(NamedTuple):
    """One wording of an end."""

    cause: str  # the cause in plain words
    source: str  # who writes it, and where it is documented
    marks: tuple[bytes, ...]  # each line that matches holds one of these
    # searched in the text after labels; its group ``tasks`` holds numbers of ranks
    pattern: re.Pattern[str]

    @classmethod
    def of(
        cls, cause: str, source: str, marks: tuple[bytes, ...], pattern: str
    ) -> Ending:
        """Make a wording, and compile its pattern."""
        return cls(cause, source, marks, re.compile(pattern))


_SIGNALS = (
    "Segmentation fault|Aborted|Bus error|Illegal instruction|Floating point exception|Killed"
    "|Terminated"
)

ENDINGS: Sequence[Ending] = (
    Ending.of(
        "a rank waited too long for the others",
        "XLA, xla/service/rendezvous.cc",
        (b"Termination timeout ",),
        r"^(?:\[id=\d+\] )?Termination timeout (?:for|of) .*exceeded",
    ),
    Ending.of(
        "the distributed service lost a process",
        "XLA, xla/pjrt/distributed/client.h",
        (b"Terminating process because",),
        r"^Terminating process because the .*(?:service|coordinator)",
    ),
    Ending.of(
        "a collective timed out",
        "PyTorch, ProcessGroupNCCL.cpp",
        (b"Watchdog caught collective",),
        r"Watchdog caught collective operation timeout",
    ),
    Ending.of(
        "Python crashed",
        "CPython, https://docs.python.org/3/library/faulthandler.html",
        (b"Fatal Python error",),
        r"^Fatal Python error: ",
    ),
    Ending.of(
        "a signal ended it",
        "Abseil, absl/debugging/failure_signal_handler.cc",
        (b"*** SIG",),
        r"^\*\*\* SIG[A-Z]+\b.*\breceived\b",
    ),
    Ending.of(
        "a check failed",
        "Abseil, absl/log/internal/log_message.cc",
        (b"*** Check failure stack trace",),
        r"^\*\*\* Check failure stack trace",
    ),
    Ending.of(
        "an exception of C++ was not caught",
        "GNU libstdc++, https://gcc.gnu.org/onlinedocs/libstdc++/",
        (b"terminate called ",),
        r"^terminate called (?:after throwing|without an active|recursively)",
    ),
    Ending.of(
        "its heap or stack was damaged",
        "GNU C library, malloc/malloc.c",
        (
            b"free()",
            b"malloc",
            b"munmap_chunk()",
            b"double free",
            b"corrupted ",
            b"stack sm",
        ),
        r"^(?:(?:free|malloc|realloc|munmap_chunk)\(\): "
        r"|malloc_consolidate\(\): |double free or"
        r" corruption|corrupted (?:size|double-linked)|\*\*\* stack smashing detected)",
    ),
    Ending.of(
        "the host ran out of memory",
        "Linux, mm/oom_kill.c; Slurm, task/cgroup plugin; Kubernetes, container states",
        (
            b"oom",
            b"OOMKilled",
            b"Out of memory: Kill",
            b"out of memory: Kill",
            b"OUT_OF_MEM",
        ),
        r"\boom[-_]kill|\bOOMKilled\b|[Oo]ut of memory: Kill(?:ed)? process|\bOUT_OF_MEMORY\b",
    ),
    Ending.of(
        "the job reached its time limit",
        "Slurm, slurmstepd; IBM LSF, TERM_RUNLIMIT; PBS Professional, mom",
        (b"DUE TO TIME LIMIT", b"TERM_RUNLIMIT", b"walltime "),
        r"DUE TO TIME LIMIT|\bTERM_RUNLIMIT\b|PBS: job killed: walltime",
    ),
    Ending.of(
        "the job reached its memory limit",
        "IBM LSF, TERM_MEMLIMIT; PBS Professional, mom",
        (b"TERM_MEMLIMIT", b"PBS: job killed: "),
        r"\bTERM_MEMLIMIT\b|PBS: job killed: v?mem",
    ),
    Ending.of(
        "the job was cancelled",
        "Slurm, slurmstepd: by the user, preemption, or a failed node",
        (b"CANCELLED", b"DUE TO "),
        r"\*\*\* (?:JOB|STEP) \S+ ON \S+ (?:CANCELLED|FAILED)"
        r"|\bDUE TO (?:PREEMPTION|NODE FAILURE)\b|^srun: .*\bCANCELLED\b",
    ),
    Ending.of(
        "Slurm saw a task fail",
        "Slurm, srun: https://slurm.schedmd.com/srun.html",
        (b"srun: error: ",),
        r"^srun: error: [^:\s]+: tasks? (?P<tasks>[\d,-]+): (?!Exited with exit code 0\b)",
    ),
    Ending.of(
        "mpirun saw a process fail",
        "Open MPI, https://docs.open-mpi.org/",
        (
            b"noticed that process rank",
            b"exited with non-zero status",
            b"EXIT CODE: ",
        ),
        r"noticed that process rank (?P<tasks>\d+)|processes? exited with non-zero status"
        r"|^=\s+EXIT CODE: [1-9]",
    ),
    Ending.of(
        "Kubernetes ended the container",
        "https://kubernetes.io/docs/tasks/debug/debug-application/",
        (
            b"terminated with exit code",
            b"CrashLoopBackOff",
            b"Evicted",
            b"low on resource:",
        ),
        r"command terminated with exit code [1-9]|\bCrashLoopBackOff\b|\breason: *Evicted\b"
        r"|node was low on resource:",
    ),
    Ending.of(
        "Ray lost a worker",
        "Ray, https://docs.ray.io/",
        (b"worker died or was killed", b"workers killed due to memory"),
        r"worker died or was killed|workers? (?:\(.*\) )?killed due to memory pressure",
    ),
    Ending.of(
        "timeout(1) ended it",
        "GNU coreutils, timeout --verbose",
        (b"timeout: sending signal",),
        r"^timeout: sending signal",
    ),
    Ending.of(
        "the GPU was lost",
        "NVIDIA driver, Xid 79: https://docs.nvidia.com/deploy/xid-errors/",
        (b"allen off the bus",),
        r"[Ff]allen off the bus",
    ),
    Ending.of(
        "a signal ended it",
        "bash, https://www.gnu.org/software/bash/manual/",
        tuple(word.encode() for word in _SIGNALS.split("|")),
        rf"^(?:\S+: line \d+: +\d+ +)?(?:{_SIGNALS})(?: \(core dumped\))?(?:\s\s+\S.*)?\s*$",
    ),
)
"""The wordings, in the order in which they are tried. The first cause that matches a line is
shown.
"""

ENDING_MARKS = tuple(
    dict.fromkeys(chain.from_iterable(ending.marks for ending in ENDINGS))
)

FATAL_LINE = re.compile(rb"F\d{4} \d\d:\d\d:")
FATAL_MARK = b": F "
"""Every line that XLA's log library writes at level FATAL, which ends the process, matches one of
the two (see `read.PREFIX`). An expression that begins with a letter is searched many times faster.
"""
FATAL_CAUSE = "XLA ended the process"

EXCEPTION_CAUSE = "a Python exception was not caught"

STUCK_MARKS = (b"may be stuck", b"s unstuck")


def ending_of(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the cause of an end that a line reports, and the ranks that it names; None if it
    reports none.
    """
    for ending in ENDINGS:
        if found := ending.pattern.search(text):
            tasks = found.groupdict().get("tasks")
            return ending.cause, () if tasks is None else _numbers(tasks)
    return None


# most tasks in one line, so that a damaged range cannot fill the memory
MOST_TASKS = 1 << 14


def _numbers(text: str) -> tuple[str, ...]:
    """Expand Slurm's list of tasks, ``0-2,5``, to labels of ranks."""
    numbers: list[str] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            continue
        start = int(first[:9])
        stop = int(last[:9]) if last else start
        stop = min(stop, start + MOST_TASKS)
        numbers += map(str, range(start, stop + 1))
    return tuple(numbers[:MOST_TASKS])


TRACEBACK = b"Traceback (most recent call last)"
_HARMLESS = re.compile(
    rb"Exception ignored |--- Logging error ---|Error in atexit\._run_exitfuncs"
)
"""CPython writes these before the traceback of an exception that it drops, usually during
shutdown.
"""
MAX_TEXT = 4096  # bytes of a line to read
_STEP = re.compile(
    rb"\b(?:[Ss]tep|STEP|[Ii]ter|[Ii]teration|[Ee]poch)s?\b\W{0,4}\d|\d(?:it/s|s/it)\b"
)
"""A line of a training loop, which shows that the program continues."""


class Raised(NamedTuple):
    """The last Python exception of a rank."""

    # line number of the exception, or of its traceback if the log ends before the exception
    line: int
    text: str
    in_frames: bool  # True if the line with the exception itself has not come yet
    # True if a later step of the rank shows that the program caught it
    went_on: bool = False


class Tracebacks:
    """Finds the Python exceptions of each rank, and whether the rank continued."""

    def __init__(self, split: Callable[[str], tuple[str, str]]) -> None:
        """Take a function from a line to its rank and its text."""
        self.last: dict[str, Raised] = {}  # by rank
        self._split = split
        self._previous = b""

    def read(self, block: bytes, number: int) -> None:
        """Read a block of whole lines.

        Args:
            number: the number of lines before the block.
        """
        if not self.last and TRACEBACK not in block:
            return
        for line, raw in enumerate(block.split(b"\n"), start=number + 1):
            in_frames = any(item.in_frames for item in self.last.values())
            begins = TRACEBACK in raw
            is_step = bool(self.last) and _STEP.search(raw) is not None
            if raw.strip() and (in_frames or begins or is_step):
                self._line(raw, line, begins=begins, is_step=is_step)
            self._previous = raw

    def _line(self, raw: bytes, line: int, *, begins: bool, is_step: bool) -> None:
        rank, text = self._split(raw[:MAX_TEXT].decode("utf-8", "replace").rstrip("\r"))
        known = self.last.get(rank)
        if begins:
            if not _HARMLESS.search(self._previous):
                self.last[rank] = Raised(line, text, in_frames=True)
        elif known is None or text.startswith((" ", "\t")):  # a frame
            return
        elif known.in_frames:
            self.last[rank] = Raised(line, text, in_frames=False)
        elif is_step:
            self.last[rank] = known._replace(went_on=True)
