"""Read XLA's log: lines → events → a block per module. Holds every wording by which pgle recognises
a line.

A block holds what a rank's log says about the scheduling of one module. Blocks follow each other.
If a new release changes a wording, add it here; no other file needs a change. Each wording lists
the jax releases in which it was found, in published wheels or by running them (0.4.26 to 0.12.0.1);
``all`` means all of them. Line numbers of XLA's sources are never matched, because they differ in
every release.

Memory does not grow with the log. Lines are read one by one, and blocks of text without any mark
are skipped whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import IO, NamedTuple

from pgle.xla.log.endings import (
    ENDING_MARKS,
    EXCEPTION_CAUSE,
    FATAL_CAUSE,
    FATAL_LINE,
    FATAL_MARK,
    STUCK_MARKS,
    Tracebacks,
    ending_of,
)


class LineKind(StrEnum):
    """What a line says. The text in brackets is `Event.subject`."""

    READ = "read"  # a profile was parsed, even if it is empty [its path, or ``fdo_profile (text)``]
    FOUND_PROFILE = "found-profile"
    """The scheduler of a module takes its costs from a profile. It names `Event.module` since
    0.7.0.
    """
    FOUND = "found"  # `Event.count` instructions of the module have a cost
    MISSING = "missing"  # `Event.count` instructions have none; their names follow
    MISSING_NAME = "missing-name"  # one instruction without a cost [its name]
    NO_SUCH_FILE = "no-such-file"
    """The profile does not exist [its path]. In directory mode, XLA writes this for every module
    without its own file.
    """
    # the profile could not be parsed [its path and the reason]
    UNREADABLE = "unreadable"
    SYNTAX = "syntax"  # where a text profile is wrong [``LINE:COLUMN: reason``]
    # a profile is given although LHS was not requested; LHS runs nevertheless
    LHS_OFF_NOTICE = "lhs-off-notice"
    LHS_RAN = "lhs-ran"
    """The scheduler ran on a module with asynchronous operations. `Event.count` is the memory in
    use, in bytes.
    """
    # a module is scheduled by a model instead of the profile [which model]
    OTHER_ESTIMATOR = "other-estimator"
    # the fingerprint of `Event.module` [32 hexadecimal digits]
    FINGERPRINT = "fingerprint"
    # VLOG: the profile's cost of an instruction was taken [its name]
    COST_FOUND = "cost-found"
    DISCARDED = "discarded"  # the accuracy checker failed the compilation
    FLAG_REFUSED = "flag-refused"  # XLA ended the process for a flag [the flag]
    # JAX's AutoPGLE recorded nothing, so it has no profile to pass on
    EMPTY_TRACE = "empty-trace"
    # JAX loaded an executable instead of compiling it; such a module logs nothing
    CACHE_HIT = "cache-hit"
    COMPILED = "compiled"  # JAX has just compiled `Event.module`
    COMPILING = "compiling"  # a compilation has begun
    # JAX runs the program on CPU devices, whose compiler reads no profile
    ON_CPU = "on-cpu"
    # JAX loaded the executable that AutoPGLE optimized [as `module`]
    PGLE_LOADED = "pgle-loaded"
    # JAX found only the executable without PGLE in its cache
    PGLE_MISSED = "pgle-missed"
    # JAX compiled a module although it expected AutoPGLE's executable in its cache
    PGLE_WRITTEN = "pgle-written"
    # JAX gave XLA a profile of `Event.count` bytes with the module
    PGLE_GIVEN = "pgle-given"
    ENDED = "ended"  # the process, or the whole job, ended early [the cause]
    CAUGHT = "caught"  # a Python exception, after which the program continued
    STUCK = "stuck"  # a thread waits for other ranks [for what]
    UNSTUCK = "unstuck"  # the waiting thread continues
    INFO = "info"  # the first INFO line of XLA on a rank: its log level hides nothing


class Wording(NamedTuple):
    """One wording of a kind of line."""

    kind: LineKind  # what the line says
    releases: str  # the jax releases with this wording
    # searched in the text after the line's prefix; its groups are fields of `Event`
    pattern: re.Pattern[str]

    @classmethod
    def of(cls, kind: LineKind, releases: str, pattern: str) -> Wording:
        """Make a wording, and compile its pattern."""
        return cls(kind, releases, re.compile(pattern))


WORDINGS: Sequence[Wording] = (
    Wording.of(
        LineKind.READ,
        "all; 'for module' to 0.5.0",
        r"^Using PGLE profile (?:for module )?from (?P<subject>.+?)\s*$",
    ),
    Wording.of(
        LineKind.FOUND_PROFILE,
        ">=0.7.0",
        r"^Found profile for module (?P<module>.+?), using profile guided latency estimator",
    ),
    Wording.of(
        LineKind.FOUND_PROFILE,
        "<=0.6.2",
        r"^Found profile, using profile guided latency estimator",
    ),
    Wording.of(
        LineKind.FOUND,
        ">=0.5.1",
        r"^Found (?P<count>\d+) instructions from the profile",
    ),
    Wording.of(
        LineKind.MISSING,
        ">=0.5.1",
        r"^Missing (?P<count>\d+) instructions from the profile",
    ),
    Wording.of(
        LineKind.NO_SUCH_FILE,
        ">=0.6.1",
        r"^PGLE profile file does not exist: (?P<subject>.+?)\s*$",
    ),
    Wording.of(
        LineKind.UNREADABLE,
        ">=0.5.1",
        r"^Tried but failed to parse PGLE proto from (?:text|binary) file (?P<subject>.+)$",
    ),
    Wording.of(
        LineKind.UNREADABLE,
        "<=0.5.0",
        r"^Unable to read PGLE (?:text|binary) proto from (?P<subject>.+)$",
    ),
    Wording.of(
        LineKind.UNREADABLE,
        "'prase' to 0.5.0, then 'parse'",
        r"^Unable to (?:prase FDO profile|parse fdo_profile)(?P<subject>.*)$",
    ),
    Wording.of(
        LineKind.SYNTAX,
        "all",
        (
            "Error parsing text-format "
            r"tensorflow\.profiler\.ProfiledInstructionsProto: (?P<subject>.+)$"
        ),
    ),
    Wording.of(
        LineKind.LHS_OFF_NOTICE,
        ">=0.5.1; VLOG from 0.7.0",
        r"^Profile data detected but `xla_gpu_enable_latency_hiding_scheduler` unset",
    ),
    Wording.of(
        LineKind.LHS_RAN,
        "all",
        r"LatencyHidingScheduler current memory usage: (?P<count>\d+) bytes",
    ),
    Wording.of(
        LineKind.OTHER_ESTIMATOR,
        "0.5.0-0.6.2; unified >=0.7.0, VLOG",
        (
            r"^Using (?P<subject>Speed-of-Light \(SoL\) analytical|analytical"
            "|unified) latency estimator"
        ),
    ),
    Wording.of(
        LineKind.FINGERPRINT,
        "all, VLOG",
        r"^Fingerprint before LHS for module (?P<module>.+)\(\d+\) = (?P<subject>[0-9a-f]{32})",
    ),
    Wording.of(
        LineKind.COST_FOUND, "all, VLOG", r"^PGLE found cost for: (?P<subject>\S+)"
    ),
    Wording.of(
        LineKind.COST_FOUND,
        "all, VLOG",
        r"^PGLE found latency for async op (?P<subject>.+?) and \(assumed\)",
    ),
    Wording.of(
        LineKind.DISCARDED,
        ">=0.4.36",
        r"Found (?P<count>\d+) missing instructions\. Discarding the profile",
    ),
    Wording.of(
        LineKind.DISCARDED,
        ">=0.11.1, the checker at ERROR",
        r"Expected instruction name to remain the same\. Was '",
    ),
    Wording.of(LineKind.EMPTY_TRACE, ">=0.4.31", r"PGLE collected an empty trace"),
    Wording.of(
        LineKind.FLAG_REFUSED,
        "all; plural for one flag to 0.5.0",
        r"^Unknown flags? in XLA_FLAGS: (?P<subject>.*?)\s*$",
    ),
    Wording.of(
        LineKind.FLAG_REFUSED,
        "all",
        r"^Couldn't interpret value (?P<subject>.+ for flag \w+)",
    ),
    Wording.of(
        LineKind.FLAG_REFUSED,
        "0.10.2, 0.12.0.1",
        r"^Illegal value for (?P<subject>--\w+.*?)\s*$",
    ),
    Wording.of(
        LineKind.FLAG_REFUSED, ">=0.4.31", r"Flags::Parse\(.*Flag parsing failed"
    ),
    Wording.of(
        LineKind.CACHE_HIT,
        "all",
        r"[Pp]ersistent compilation cache hit for '(?P<module>[^']+)'",
    ),
    Wording.of(
        LineKind.PGLE_LOADED,
        ">=0.5.1",
        r"PGLE-optimized (?P<module>\S+) loaded from compilation cache",
    ),
    Wording.of(
        LineKind.PGLE_MISSED,
        ">=0.5.1",
        r"PERSISTENT CACHE MISS for PGLE-optimized (?P<module>\S+)",
    ),
    Wording.of(  # jax/_src/cache_key.py: a key is the module's name, a hyphen, and a hash
        LineKind.PGLE_WRITTEN,
        ">=0.5.1",
        (
            r"PERSISTENT CACHE WRITE with key (?P<module>\S+?)"
            "(?:-[0-9a-f]{16,})?,? this is unexpected"
        ),
    ),
    Wording.of(
        LineKind.PGLE_GIVEN,
        ">=0.4.31, DEBUG",
        r"Compiling module (?P<module>\S+) with FDO profile of length (?P<count>\d+)",
    ),
    Wording.of(
        LineKind.STUCK,
        "all",
        r"This thread has been waiting for (?:`(?P<subject>[^`]+)`)?.*\bmay be stuck",
    ),
    Wording.of(LineKind.UNSTUCK, "all", r"[Tt]hread is unstuck"),
    Wording.of(
        LineKind.COMPILED,
        "all",
        r"Writing (?P<module>\S+) to persistent compilation cache",
    ),
    Wording.of(
        LineKind.COMPILED, "all", r"Finished XLA compilation of (?P<module>\S+) in"
    ),
    Wording.of(
        LineKind.COMPILING, "all, with --xla_dump_to", r"HloModule dump enabled"
    ),
    Wording.of(LineKind.COMPILING, ">=0.10.2", r"Performing a deviceless compilation"),
    Wording.of(
        LineKind.ON_CPU, ">=0.10.2", r"^Addressable PjRt-IFRT device: CpuDevice\("
    ),
    Wording.of(LineKind.ON_CPU, "to 0.9", r"^TfrtCpuClient created"),
    Wording.of(LineKind.ON_CPU, "all", r"[Ff]alling back to (?:cpu|CPU)\b"),
)
"""The wordings, in the order in which they are tried."""

MARKS = (
    b"PGLE",
    b"rofile",
    b"atencyHiding",
    b"latency estimator",
    b"missing instructions",
    b"name to remain",
    b"XLA_FLAGS",
    b"for flag ",
    b"Fingerprint before",
    b"FDO",
    b"ompilation cache",
    b"XLA compilation",
    b"dump enabled",
    b"deviceless compilation",
    b"Flag parsing failed",
    b"guided_latency",
    b"Illegal value for --",
    b"device: CpuDevice",
    b"CpuClient created",
    b"alling back to ",
    b"PERSISTENT CACHE",
    *STUCK_MARKS,
    *ENDING_MARKS,
    FATAL_MARK,
)
"""Every line that a wording matches holds one of these. Tests on bytes are faster than the
expressions. No mark holds a byte of `VARYING`.
"""
VARYING = b"0123456789."
"""The bytes that differ between lines of one kind. Without them, most lines of a log are the same
few.
"""

# VLOG lines for every parameter and edge, which carry no information
NOISE = (
    b"] PGLE missed cost",
    b"] PGLE did ",
)

ESTIMATOR_FILE = "profile_guided_latency_estimator.cc"
"""If a line of this source begins with two blanks, it names an instruction without a cost (0.5.1
and newer).
"""

PREFIX = re.compile(
    r"^(?P<before>.{0,160}?)"
    r"(?:(?P<abseil>[IWEF])\d{4} (?P<time1>\d\d:\d\d:\d+\.\d+)\s+(?P<thread>\d+) "
    r"|\d{4}-\d\d-\d\d (?P<time2>\d\d:\d\d:\d\d\.\d+): (?P<tsl>[IWEF]) )"
    r"(?P<file>[^\s:\]]+):\d+\] (?P<text>.*)$",
    re.DOTALL,
)
"""The prefix that the log library puts before a text: TSL's form through 0.7.2, Abseil's from
0.8.0, both in some releases between.
"""

_RANK_LABELS = (
    r"\s*(\d+): ",  # srun --label
    r"\[(?:[^\]\s]*@)?(\d+,\d+)\]<std(?:out|err)>: ?",  # mpirun --tag-output, of Open MPI
    r"\[((?:rank|default)?\d+)\]:? ?",  # torchrun, MPICH's mpiexec -l
    r"\[((?:pod/)?[\w.-]+(?:/[\w.-]+)+)\] ",  # kubectl logs --prefix
    r"\(([^()]*\bpid=\d+[^()]*)\) ",  # Ray
)
# label of the rank that launchers put before a line
RANK_LABEL = re.compile("|".join(_RANK_LABELS))
HOST_LABEL = re.compile(
    r"([A-Za-z][\w./-]*)(?:: | +\| | [A-Za-z][\w.-]* )|([A-Za-z][\w.-]*-\d+) "
)
"""``node7: `` (clush, parallel), ``train-0 | `` (compose), ``worker-0 main `` (stern, jobsets). It
counts as a label only directly before XLA's own prefix; elsewhere it may be any text.
"""
TIMESTAMP = re.compile(
    r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\]?:? "
)
"""The time that ``--timestamps`` of kubectl and docker puts before a line, before or after the
label.
"""

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_SUB_MODULE = re.compile(
    "(?:^|_)fusion(?:[_.]|$)|^wrapped_|^extracted|^fused_|^custom[-_]call|^cublas"
    r"|^triton_|^dot(?:\.|$)"
)


def is_sub_module(name: str) -> bool:
    """Whether a module is not a program of the user, by its name. Its lines do not count.

    The kernel autotuner makes modules from parts of others (0.11.1 and newer:
    ``gemm_fusion_dot.17``, ``input_reduce_fusion``, ``wrapped_convert``). They pass the same
    profile lookup and log the same lines. 0.7.2 and 0.8.x first schedule a copy of a module,
    ``…-clone``, to estimate a threshold.
    """
    is_program = re.match(r"(?:p?jit|pmap|xmap|shmap)_", name) is not None
    return name.endswith("-clone") or (
        not is_program and bool(_SUB_MODULE.search(name))
    )


MAX_LINE_BYTES = 1 << 16
"""Longer lines are cut. XLA's own log library cuts at about 15 kB, but progress bars and proto
dumps may be longer.
"""
MAX_INFO_LINES = 20_000
"""Most lines of XLA to search for the first INFO line of each rank. All ranks write one as they
start.
"""

_CHUNK = 1 << 20
# newer JAX writes jit(train_step), XLA writes jit_train_step
_JIT = re.compile(r"^(\w+)\((.*)\)$")


@dataclass(frozen=True, slots=True)
class Event:
    """One line that a wording matches."""

    kind: LineKind  # what the line says
    line: int  # line number, from 1
    text: str  # the line without label and prefix
    level: str = ""  # I, W, E or F; empty if the line has no XLA prefix
    rank: str = ""  # the launcher's label before the line; empty if there is none
    # the thread id (only in Abseil's prefix); it separates processes that share a log without
    # labels
    thread: str = ""
    seconds: float | None = None  # time of day in seconds; None if the line has none
    module: str = ""  # the module that the line names; empty if it names none
    subject: str = ""  # a path, name, fingerprint or reason; see `LineKind`
    count: int | None = None  # a number of instructions or bytes


def lists_missing(event: Event) -> bool:
    """Whether an event shows, by a wording of 0.5.1 or newer, that this XLA lists instructions
    without a cost.
    """
    if event.kind is LineKind.FOUND_PROFILE:
        return bool(event.module)
    if event.kind is LineKind.READ:
        is_embedded = event.subject.startswith("fdo_profile")
        return is_embedded and "for module" not in event.text
    if event.kind is LineKind.LHS_RAN:
        return event.text.startswith("[latency-hiding-scheduler]")
    return event.kind in (LineKind.FOUND, LineKind.MISSING, LineKind.LHS_OFF_NOTICE)


def read_events(
    stream: IO[bytes],
    *,
    rank: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Event]:
    """Yield the events of a log in order, while reading it.

    Args:
        stream: the log as bytes, possibly a pipe. Undecodable bytes are replaced.
        rank: the rank of lines without a label.
        progress: called with (bytes read, 0) after each block.
    """
    reader = _LineReader(rank)
    number = done = 0
    rest = b""
    read = getattr(stream, "read1", stream.read)
    while True:
        chunk: bytes = read(_CHUNK)
        done += len(chunk)
        if progress is not None:
            progress(done, 0)
        block = rest + chunk
        if chunk:
            cut = block.rfind(b"\n") + 1
            # of an endless line, keep the beginning, which has the message
            block, rest = block[:cut], block[cut:][:MAX_LINE_BYTES]
        yield from reader.first_info(block, number)
        marked = _marked_kinds(block)
        if marked or FATAL_LINE.search(block):
            yield from reader.events(block, number, marked)
        reader.tracebacks.read(block, number)
        number += block.count(b"\n")
        if not chunk:
            yield from reader.raised()
            return


def _marked_kinds(block: bytes) -> set[bytes]:
    """Return the lines that hold one of `MARKS`, without `VARYING` bytes. This is much faster than
    the expressions.
    """
    kinds = set(block.translate(None, VARYING).split(b"\n"))
    joined = b"\n".join(kinds)
    present = [mark for mark in MARKS if mark in joined]
    if not present:
        return set()
    return {kind for kind in kinds if any(mark in kind for mark in present)}


class _LineReader:
    """Turns lines into events, and remembers the labels of ranks."""

    def __init__(self, rank: str) -> None:
        self.rank = rank
        # labels found before XLA's prefix; other lines may have them, too
        self.hosts: dict[str, str] = {}
        self.with_info: set[str] = set()
        self.info_lines_left = MAX_INFO_LINES
        self.tracebacks = Tracebacks(self._of_rank)

    def _of_rank(self, line: str) -> tuple[str, str]:
        rank, _, text = self.split(ANSI.sub("", line))
        return rank, text

    def raised(self) -> Iterator[Event]:
        """Yield the last Python exception of each rank."""
        for rank, last in self.tracebacks.last.items():
            kind = LineKind.CAUGHT if last.went_on else LineKind.ENDED
            yield Event(kind, last.line, last.text, rank=rank, subject=EXCEPTION_CAUSE)

    def events(self, block: bytes, number: int, marked: set[bytes]) -> Iterator[Event]:
        """Yield the events in a block of whole lines.

        Args:
            number: the number of lines before the block.
            marked: `_marked_kinds` of the block.
        """
        for line_number, line in enumerate(block.split(b"\n"), start=number + 1):
            is_marked = line.translate(None, VARYING) in marked
            if not (is_marked or FATAL_LINE.search(line)):
                continue
            if not any(noise in line for noise in NOISE):
                yield from self.event(line, line_number)

    def first_info(self, block: bytes, before: int) -> Iterator[Event]:
        """Yield the first INFO line of XLA itself for each rank, if `block` has it.

        Args:
            before: the number of lines before the block.
        """
        position = counted = 0
        while self.info_lines_left and (found := block.find(b".cc:", position)) >= 0:
            start = block.rfind(b"\n", 0, found) + 1
            position = _line_end(block, found)
            self.info_lines_left -= 1
            rank, prefix, text = self.split(_decoded(block[start:position]))
            if (
                not prefix
                or "I" not in (prefix["abseil"], prefix["tsl"])
                or not prefix["file"].endswith(".cc")
            ):
                continue
            if rank not in self.with_info:
                self.with_info.add(rank)
                before += block.count(b"\n", counted, start)
                counted = start
                yield Event(LineKind.INFO, before + 1, text, "I", rank)

    def split(self, line: str) -> tuple[str, re.Match[str] | None, str]:
        """Return a line's rank, its prefix by XLA's log library (None if there is none), and its
        text.
        """
        prefix = PREFIX.match(line)
        before = line if prefix is None else prefix["before"]
        label, rank = _label(before)
        if not rank and (host := HOST_LABEL.match(before, len(label))):
            if prefix is not None and host.end() == len(before):
                self.hosts[host[0]] = host[0].strip(" :|")
            if rank := self.hosts.get(host[0], ""):
                label += host[0]
        return (
            rank or self.rank,
            prefix,
            line[len(label) :] if prefix is None else prefix["text"],
        )

    def event(self, raw: bytes, number: int) -> Iterator[Event]:
        rank, prefix, text = self.split(_decoded(raw))
        level, thread = "", ""
        seconds: float | None = None
        is_name = False
        if prefix:
            level = prefix["abseil"] or prefix["tsl"]
            thread = prefix["thread"] or ""
            seconds = _time_of_day(prefix["time1"] or prefix["time2"])
            is_name = prefix["file"].endswith(ESTIMATOR_FILE) and text.startswith("  ")
        event = Event(
            LineKind.MISSING_NAME,
            number,
            text,
            level=level,
            rank=rank,
            thread=thread,
            seconds=seconds,
            subject=text.strip(),
        )
        if is_name:
            yield event
            return
        for wording in WORDINGS:
            if found := wording.pattern.search(text):
                fields = found.groupdict()
                yield replace(
                    event,
                    kind=wording.kind,
                    text=text.rstrip(),
                    module=_JIT.sub(r"\1_\2", fields.get("module", "")),
                    subject=fields.get("subject", ""),
                    count=int(fields["count"][:30]) if "count" in fields else None,
                )
                return
        yield from _end(text.rstrip(), number, rank, level)


def _time_of_day(stamp: str) -> float | None:
    """Return the seconds since midnight; None if the stamp holds none.

    Until the program sets up logging, Abseil writes ``00:00:`` and the seconds since 1970.
    """
    hours, minutes, rest = stamp.split(":")
    seconds = float(rest)
    if seconds > 60:
        return None
    return int(hours) * 3600 + int(minutes) * 60 + seconds


def _end(text: str, number: int, rank: str, level: str) -> Iterator[Event]:
    """Yield the early end that a line reports, once for each rank that it names."""
    found = ending_of(text) or ((FATAL_CAUSE, ()) if level == "F" else None)
    if found is not None:
        cause, named = found
        for one in named or (rank,):
            yield Event(LineKind.ENDED, number, text, level, one, subject=cause)


def _label(text: str) -> tuple[str, str]:
    """Return the label at the beginning of a line, with timestamps around it, and the rank that it
    names.
    """
    start = stamp.end() if (stamp := TIMESTAMP.match(text)) else 0
    found = RANK_LABEL.match(text, start)
    if found is None:
        return text[:start], ""
    end = stamp.end() if (stamp := TIMESTAMP.match(text, found.end())) else found.end()
    return text[:end], next(group for group in found.groups() if group)


def _line_end(block: bytes, position: int) -> int:
    end = block.find(b"\n", position)
    return len(block) if end < 0 else end


def _decoded(line: bytes) -> str:
    return ANSI.sub("", line[:MAX_LINE_BYTES].decode("utf-8", "replace")).rstrip("\r")


MAX_NAMES = 2000  # most missing names to keep per module; further ones are only counted

_END = re.compile(r"(.+)-(start|done)(?:\.\d+)*")
_FINGERPRINT_FILE = re.compile(r"(?:^|/)([0-9a-f]{32})\.pb(?:txt)?$")


@dataclass(slots=True)
class SchedulingBlock:
    """What the log says about the scheduling of one module."""

    thread: str  # the thread that schedules it; empty if unknown
    order: int  # number of the block in the rank's log
    module: str = ""  # name of the module; empty if no line names it
    fingerprint: str = ""  # the module's fingerprint; empty if no line gives it
    # the first line of each kind
    lines: dict[LineKind, Event] = field(default_factory=dict)
    found: int | None = None  # instructions with a cost; None if no line counts them
    # instructions without a cost; None if no line counts them
    missing: int | None = None
    # names of missing instructions, at most `MAX_NAMES`
    missing_names: list[str] = field(default_factory=list)
    listed: int = 0  # number of names that the log lists as missing
    # how many of these are the start or the done of each stem, such as ``("fusion", "done")``
    missing_ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    costs_found: int = 0  # number of VLOG lines that take a cost from the profile
    # time of day of its first line, in seconds; None if lines have no time
    began: float | None = None
    ended: float | None = None  # the same for the last line before the next block
    closed: bool = False  # True if the module is done, or the next one has begun

    def miss(self, name: str) -> None:
        """Record a name that the log lists as missing."""
        self.listed += 1
        if len(self.missing_names) < MAX_NAMES:
            self.missing_names.append(name)
        if end := _END.fullmatch(name):
            self.missing_ends[end[1], end[2]] += 1

    @property
    def took_profile(self) -> bool:
        """Whether the scheduler got its costs from the profile."""
        return bool(
            self.lines.keys()
            & {LineKind.FOUND_PROFILE, LineKind.FOUND, LineKind.MISSING}
        )

    @property
    def lacked_profile(self) -> bool:
        """Whether a line shows that the module was, or would have been, scheduled without the
        profile.
        """
        without = {
            LineKind.NO_SUCH_FILE,
            LineKind.UNREADABLE,
            LineKind.OTHER_ESTIMATOR,
            LineKind.LHS_RAN,
        }
        return not self.took_profile and bool(self.lines.keys() & without)

    @property
    def is_past_lookup(self) -> bool:
        """Whether XLA has logged everything from the lookup of the profile to the schedule."""
        return self.closed or LineKind.LHS_RAN in self.lines

    @property
    def profile(self) -> str:
        """The profile that was read; empty if none was."""
        return self.lines[LineKind.READ].subject if LineKind.READ in self.lines else ""

    @property
    def profile_is_its_own(self) -> bool:
        """Whether the profile is for this module alone: an option of its compilation, or its own
        file.
        """
        return self.profile.startswith("fdo_profile") or bool(
            _FINGERPRINT_FILE.search(self.profile)
        )

    @property
    def fingerprint_sought(self) -> str:
        """The fingerprint of a module without a file in the directory of profiles; empty for a
        single file.
        """
        line = self.lines.get(LineKind.NO_SUCH_FILE)
        found = _FINGERPRINT_FILE.search(line.subject) if line else None
        return found[1] if found else ""

    @property
    def covered(self) -> tuple[int, int]:
        """Number of instructions with a cost, and of all that need one: XLA's numbers without
        dones.

        XLA finds an asynchronous fusion or copy twice, for its cost and for its latency. It reports
        its done as missing, but the done costs nothing. Dones of collectives are never listed.
        """
        dones = {
            what: count
            for (what, end), count in self.missing_ends.items()
            if end == "done"
        }
        twice = sum(
            max(count - self.missing_ends[what, "start"], 0)
            for what, count in dones.items()
        )
        found, missing = self.found or 0, self.missing or 0
        covered = max(found - twice, 0)
        return covered, covered + max(missing - sum(dones.values()), 0)

    @property
    def weight(self) -> tuple[int, int, float]:
        """A key for the size of the module: scheduler memory, instructions counted, seconds. An
        unknown part is 0.

        Memory counts half if the module has no name. In directory mode, lines of 0.7.2 and 0.8.x
        about a step's clone name no module.
        """
        ran = self.lines.get(LineKind.LHS_RAN)
        memory = 0 if ran is None else ran.count or 0
        seconds = 0.0
        if self.began is not None and self.ended is not None:
            seconds = (self.ended - self.began) % 86_400
        counted = (self.found or 0) + (self.missing or 0)
        return memory if self.module else memory // 2, counted, seconds

    def note_time(self, event: Event) -> None:
        """Record the time of the last line about the module."""
        self.ended = event.seconds if event.seconds is not None else self.ended

    def close(self, event: Event) -> None:
        """End the block, because this line is about another module."""
        if not self.closed:
            self.closed = True
            self.note_time(event)


@dataclass
class RankLog:
    """What one rank logs. A log without labels counts as one rank."""

    # the last block by thread, module and `lacked_profile`; for unnamed modules the weightiest
    last: dict[tuple[str, str, bool], SchedulingBlock] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)  # number of blocks per module
    # names of the modules that `is_sub_module` leaves out; they have no blocks
    sub_modules: set[str] = field(default_factory=set)
    # by profile, for how many modules it was parsed
    reads: Counter[str] = field(default_factory=Counter)
    # modules that JAX loaded from its cache, with the line
    cache_hits: dict[str, Event] = field(default_factory=dict)
    # modules for which JAX says whether the executable is AutoPGLE's, with the last line about each
    about_pgle: dict[str, Event] = field(default_factory=dict)
    # the first line of each kind that is not about one module
    lines: dict[LineKind, Event] = field(default_factory=dict)
    # True if the log may end before the last module was scheduled
    is_open: bool = False


@dataclass
class Log:
    """A whole log."""

    # what each rank logs, by its label
    ranks: dict[str, RankLog] = field(default_factory=dict)
    # True if this XLA lists instructions without a cost (0.5.1 and newer)
    lists_missing: bool = False
    # the first reported end of each rank; under "" for the whole job, or if the line names no rank
    ends: dict[str, Event] = field(default_factory=dict)

    @property
    def blocks(self) -> list[SchedulingBlock]:
        """The last block of each module, rank by rank."""
        return list(
            chain.from_iterable(rank.last.values() for rank in self.ranks.values())
        )

    @property
    def profiles(self) -> list[str]:
        """The profiles that the blocks name, in the blocks' order."""
        return [block.profile for block in self.blocks if block.profile]

    @property
    def main_module(self) -> str:
        """The name of the weightiest module; empty if the log does not name it."""
        blocks = self.blocks
        return max(blocks, key=lambda block: block.weight).module if blocks else ""


def collect(events: Iterable[Event]) -> Log:
    """Gather the events of a log. Memory grows with the number of ranks and modules, not with the
    log.
    """
    gatherers: dict[str, _Gatherer] = {}
    log = Log()
    for event in events:
        if event.kind is LineKind.ENDED:
            known = log.ends.get(event.rank, event)
            log.ends[event.rank] = min(known, event, key=lambda end: end.line)
            continue
        gatherers.setdefault(event.rank, _Gatherer()).take(event)
        log.lists_missing = log.lists_missing or lists_missing(event)
    log.ranks = {rank: gatherer.finish() for rank, gatherer in gatherers.items()}
    return log


_OF_A_RANK = frozenset(
    {
        LineKind.INFO,
        LineKind.COMPILING,
        LineKind.COMPILED,
        LineKind.ON_CPU,
        LineKind.EMPTY_TRACE,
        LineKind.FLAG_REFUSED,
        LineKind.DISCARDED,
        LineKind.LHS_OFF_NOTICE,
        LineKind.STUCK,
        LineKind.CAUGHT,
    }
)
"""Kinds of lines that are not about a module, or do not name it."""


ABOUT_PGLE = frozenset(
    {
        LineKind.PGLE_LOADED,
        LineKind.PGLE_MISSED,
        LineKind.PGLE_WRITTEN,
        LineKind.PGLE_GIVEN,
    }
)
"""Kinds of JAX's own lines about AutoPGLE's executables."""


class _Gatherer:
    """Gathers the events of one rank into blocks."""

    def __init__(self) -> None:
        self.result = RankLog()
        self.current: dict[str, SchedulingBlock] = {}  # the open block of each thread
        self.latest: SchedulingBlock | None = None
        self.unnamed: list[SchedulingBlock] = []  # blocks since JAX last named a module
        self.one_thread = False
        self.count = 0
        self.syntax: Event | None = None

    def take(self, event: Event) -> None:
        """Record an event, with the module that it is about or with the rank."""
        if event.kind is LineKind.SYNTAX:
            self.syntax = event
        elif event.kind is LineKind.CACHE_HIT:
            self.result.cache_hits.setdefault(event.module, event)
        elif event.kind in ABOUT_PGLE:
            self.result.about_pgle[event.module] = event
        elif event.kind is LineKind.UNSTUCK:
            self.result.lines.pop(LineKind.STUCK, None)
        elif event.kind not in _OF_A_RANK:
            self._scheduling(event)
        else:
            self.result.lines.setdefault(event.kind, event)
            if event.kind is LineKind.COMPILING:
                if block := self.current.get(self._thread(event)):
                    block.close(event)
            elif event.kind is LineKind.COMPILED:
                self._compiled(event)
            elif (
                event.kind is LineKind.DISCARDED
                and self.latest is not None
                and not self.latest.closed
            ):
                self.latest.lines[event.kind] = (
                    # Python's line has no prefix, so it belongs to the last block
                    event
                )

    def finish(self) -> RankLog:
        self.result.is_open = self.latest is not None and not self.latest.is_past_lookup
        for block in sorted(self.current.values(), key=lambda item: item.order):
            self._store(block)
        return self.result

    def _scheduling(self, event: Event) -> None:
        """Record a line of XLA about the module that its thread schedules."""
        block = self._block(event)
        block.lines.setdefault(event.kind, event)
        block.module = event.module or block.module
        block.note_time(event)
        match event.kind:
            case LineKind.FINGERPRINT:
                block.fingerprint = event.subject
            case LineKind.UNREADABLE if self.syntax is not None:
                block.lines.setdefault(LineKind.SYNTAX, self.syntax)
                self.syntax = None
            case LineKind.FOUND:
                block.found = event.count
            case LineKind.MISSING:
                block.missing = event.count
            case LineKind.MISSING_NAME:
                block.miss(event.subject)
            case LineKind.COST_FOUND:
                block.costs_found += 1

    def _thread(self, event: Event) -> str:
        """Return the event's thread.

        Some releases mix TSL's prefixes, which have no thread, with Abseil's. Their lines count as
        one thread.
        """
        if not event.thread and event.level and not self.one_thread:
            self.one_thread = True
            if self.latest is not None:
                self.current = {"": self.latest}
        return "" if self.one_thread else event.thread

    def _block(self, event: Event) -> SchedulingBlock:
        """Return the block of the event's thread; a new block if the event begins the next
        module.
        """
        thread = self._thread(event)
        block = self.current.get(thread)
        if block is not None and not block.closed and not _begins_next(event, block):
            return block
        if block is not None:
            block.close(event)
            self._store(block)
        self.count += 1
        block = self.current[thread] = self.latest = SchedulingBlock(
            thread, self.count, began=event.seconds
        )
        self.unnamed = [*self.unnamed[-1:], block]
        return block

    def _store(self, block: SchedulingBlock) -> None:
        if block.profile:
            self.result.reads[block.profile] += 1
        if is_sub_module(block.module):
            self.result.sub_modules.add(block.module)
            return
        self.result.times[block.module] += 1
        key = (block.thread, block.module, block.lacked_profile)
        known = self.result.last.get(key)
        if (
            known is None
            or (block.module and block.order > known.order)
            or block.weight > known.weight
        ):
            self.result.last[key] = block

    def _compiled(self, event: Event) -> None:
        """Name the unnamed block after the module that JAX has just compiled. Old releases name it
        nowhere else.
        """
        nameless = [block for block in self.unnamed if not block.module]
        if len(nameless) == 1:
            nameless[0].module = event.module
        for block in self.unnamed:
            block.close(event)
        self.unnamed = []


def _begins_next(event: Event, block: SchedulingBlock) -> bool:
    """Whether an event cannot belong to the block's module, by the order in which XLA logs."""
    lines = block.lines
    scheduled = LineKind.FOUND_PROFILE in lines or LineKind.LHS_RAN in lines
    match event.kind:
        case LineKind.FINGERPRINT:
            return True
        case LineKind.READ:
            return scheduled or LineKind.FOUND in lines
        case LineKind.NO_SUCH_FILE:
            # Directory mode reports FP.pbtxt and FP.pb for one module.
            known = lines.get(event.kind, event).subject.rpartition(".")[0]
            return scheduled or known != event.subject.rpartition(".")[0]
        case LineKind.FOUND_PROFILE | LineKind.UNREADABLE | LineKind.OTHER_ESTIMATOR:
            return scheduled
        case LineKind.FOUND | LineKind.LHS_RAN:
            return event.kind in lines
        case _:
            return False
