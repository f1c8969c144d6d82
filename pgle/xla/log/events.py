"""XLA's log as a stream of events, and every wording by which pgle recognises a message.

A new release that says something in other words needs a line here and nothing else. Each wording lists the
releases of jax in which it was found, in the published wheels or by running them (0.4.26 to 0.12.0.1); ``all`` means
all of those. Line numbers of XLA's sources are never matched on: they differ in every release.

Memory does not grow with the log: lines are looked at one by one, and blocks of text that cannot hold anything of
interest are skipped whole. `pgle.xla.log.events` has the texts of the messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Literal, NamedTuple, TypeAlias

from pgle.next import DOCTOR


class LineKind(StrEnum):
    """What a line says. `Event.subject` holds the text in brackets."""

    READ = "read"  # a profile was parsed, even if it is empty [its path, or ``fdo_profile (text)``]
    FOUND_PROFILE = "found-profile"
    """The scheduler of a module takes its costs from a profile; `Event.module` since 0.7.0."""
    FOUND = "found"  # `Event.count` instructions of the module have a cost
    MISSING = "missing"  # `Event.count` instructions have none; their names follow
    MISSING_NAME = "missing-name"  # one instruction without a cost [its name]
    NO_SUCH_FILE = "no-such-file"
    """The profile is not there [its path]; in directory mode for every module without a file of its own."""
    UNREADABLE = "unreadable"  # the profile could not be parsed [its path and the reason]
    SYNTAX = "syntax"  # where a text profile is wrong [``LINE:COLUMN: reason``]
    LHS_OFF_NOTICE = "lhs-off-notice"  # a profile is given though LHS is not asked for; LHS runs anyway
    LHS_RAN = "lhs-ran"
    """The scheduler ran on a module with asynchronous ops; `Event.count` is the memory in use, in bytes."""
    OTHER_ESTIMATOR = "other-estimator"  # a module is scheduled by another model than the profile [which]
    FINGERPRINT = "fingerprint"  # the fingerprint of `Event.module` [32 hexadecimal digits]
    COST_FOUND = "cost-found"  # VLOG: the profile's cost of an instruction was taken [its name]
    DISCARDED = "discarded"  # the accuracy checker failed the compilation
    FLAG_REFUSED = "flag-refused"  # XLA ended the process for a flag [the flag]
    EMPTY_TRACE = "empty-trace"  # JAX's AutoPGLE recorded nothing, so it has no profile to give
    CACHE_HIT = "cache-hit"  # JAX loaded an executable instead of compiling it; such a module logs nothing
    COMPILED = "compiled"  # `Event.module` has just been compiled, as JAX says
    COMPILING = "compiling"  # a compilation has begun
    ON_CPU = "on-cpu"  # JAX runs the program on CPU devices, whose compiler reads no profile
    INFO = "info"  # the first line of a rank from XLA at level INFO: its log level hides nothing


class Wording(NamedTuple):
    """One wording."""

    kind: LineKind  # what it says
    releases: str  # of jax that say it so
    pattern: re.Pattern[str]  # searched in the text after the line's prefix; its groups are fields of `Event`


WORDINGS = tuple(
    Wording(kind, releases, re.compile(pattern))
    for kind, releases, pattern in (
        (LineKind.READ, "all; 'for module' to 0.5.0", r"^Using PGLE profile (?:for module )?from (?P<subject>.+?)\s*$"),
        (LineKind.FOUND_PROFILE, ">=0.7.0",
         r"^Found profile for module (?P<module>.+?), using profile guided latency estimator"),
        (LineKind.FOUND_PROFILE, "<=0.6.2", r"^Found profile, using profile guided latency estimator"),
        (LineKind.FOUND, ">=0.5.1", r"^Found (?P<count>\d+) instructions from the profile"),
        (LineKind.MISSING, ">=0.5.1", r"^Missing (?P<count>\d+) instructions from the profile"),
        (LineKind.NO_SUCH_FILE, ">=0.6.1", r"^PGLE profile file does not exist: (?P<subject>.+?)\s*$"),
        (LineKind.UNREADABLE, ">=0.5.1",
         r"^Tried but failed to parse PGLE proto from (?:text|binary) file (?P<subject>.+)$"),
        (LineKind.UNREADABLE, "<=0.5.0", r"^Unable to read PGLE (?:text|binary) proto from (?P<subject>.+)$"),
        (LineKind.UNREADABLE, "'prase' to 0.5.0, then 'parse'",
         r"^Unable to (?:prase FDO profile|parse fdo_profile)(?P<subject>.*)$"),
        (LineKind.SYNTAX, "all",
         r"Error parsing text-format tensorflow\.profiler\.ProfiledInstructionsProto: (?P<subject>.+)$"),
        (LineKind.LHS_OFF_NOTICE, ">=0.5.1; VLOG from 0.7.0",
         r"^Profile data detected but `xla_gpu_enable_latency_hiding_scheduler` unset"),
        (LineKind.LHS_RAN, "all", r"LatencyHidingScheduler current memory usage: (?P<count>\d+) bytes"),
        (LineKind.OTHER_ESTIMATOR, "0.5.0-0.6.2; unified >=0.7.0, VLOG",
         r"^Using (?P<subject>Speed-of-Light \(SoL\) analytical|analytical|unified) latency estimator"),
        (LineKind.FINGERPRINT, "all, VLOG",
         r"^Fingerprint before LHS for module (?P<module>.+)\(\d+\) = (?P<subject>[0-9a-f]{32})"),
        (LineKind.COST_FOUND, "all, VLOG", r"^PGLE found cost for: (?P<subject>\S+)"),
        (LineKind.COST_FOUND, "all, VLOG", r"^PGLE found latency for async op (?P<subject>.+?) and \(assumed\)"),
        (LineKind.DISCARDED, ">=0.4.36", r"Found (?P<count>\d+) missing instructions\. Discarding the profile"),
        (LineKind.DISCARDED, ">=0.11.1, the checker at ERROR", r"Expected instruction name to remain the same\. Was '"),
        (LineKind.EMPTY_TRACE, ">=0.4.31", r"PGLE collected an empty trace"),
        (LineKind.FLAG_REFUSED, "all; plural for one flag to 0.5.0",
         r"^Unknown flags? in XLA_FLAGS: (?P<subject>.*?)\s*$"),
        (LineKind.FLAG_REFUSED, "all", r"^Couldn't interpret value (?P<subject>.+ for flag \w+)"),
        (LineKind.FLAG_REFUSED, "0.10.2, 0.12.0.1", r"^Illegal value for (?P<subject>--\w+.*?)\s*$"),
        (LineKind.FLAG_REFUSED, ">=0.4.31", r"Flags::Parse\(.*Flag parsing failed"),
        (LineKind.CACHE_HIT, "all", r"[Pp]ersistent compilation cache hit for '(?P<module>[^']+)'"),
        (LineKind.CACHE_HIT, ">=0.5.1", r"PGLE-optimized (?P<module>\S+) loaded from compilation cache"),
        (LineKind.COMPILED, "all", r"Writing (?P<module>\S+) to persistent compilation cache"),
        (LineKind.COMPILED, "all", r"Finished XLA compilation of (?P<module>\S+) in"),
        (LineKind.COMPILING, "all, with --xla_dump_to", r"HloModule dump enabled"),
        (LineKind.COMPILING, ">=0.10.2", r"Performing a deviceless compilation"),
        (LineKind.ON_CPU, ">=0.10.2", r"^Addressable PjRt-IFRT device: CpuDevice\("),
        (LineKind.ON_CPU, "to 0.9", r"^TfrtCpuClient created"),
        (LineKind.ON_CPU, "all", r"[Ff]alling back to (?:cpu|CPU)\b"),
    )
)  # fmt: skip
"""Tried in this order."""

SCHEDULER_MEMORY = re.compile(r"LatencyHidingScheduler current memory usage: (\d+) bytes\. Current limit: (\d+)")
"""Bytes that the schedule needs, and that the scheduler may plan with; 0.10.2, 0.12.0.1."""

MARKS = (
    b"PGLE", b"rofile", b"atencyHiding", b"latency estimator", b"missing instructions", b"name to remain",
    b"XLA_FLAGS", b"for flag ", b"Fingerprint before", b"FDO", b"ompilation cache", b"XLA compilation",
    b"dump enabled", b"deviceless compilation", b"Flag parsing failed", b"guided_latency", b"Illegal value for --",
    b"device: CpuDevice", b"CpuClient created", b"alling back to ",
)  # fmt: skip
"""One of these is in every line that any wording matches: tests on bytes, quicker than the expressions."""

NOISE = (b"] PGLE missed cost", b"] PGLE did ")  # VLOG of every parameter and edge: thousands of lines that say nothing

ESTIMATOR_FILE = "profile_guided_latency_estimator.cc"
"""Lines of this source that begin with two blanks name an instruction without a cost (0.5.1 and newer)."""

PREFIX = re.compile(
    r"^(?P<before>.{0,160}?)"
    r"(?:(?P<abseil>[IWEF])\d{4} (?P<time1>\d\d:\d\d:\d\d\.\d+)\s+(?P<thread>\d+) "
    r"|\d{4}-\d\d-\d\d (?P<time2>\d\d:\d\d:\d\d\.\d+): (?P<tsl>[IWEF]) )"
    r"(?P<file>[^\s:\]]+):\d+\] (?P<text>.*)$",
    re.DOTALL,
)
"""What the log library puts before a text: TSL's form through 0.7.2, Abseil's from 0.8.0, both in some between."""

_RANK_LABELS = (
    r"\s*(\d+): ",  # srun --label
    r"\[(?:[^\]\s]*@)?(\d+,\d+)\]<std(?:out|err)>: ?",  # mpirun --tag-output, of Open MPI
    r"\[((?:rank|default)?\d+)\]:? ?",  # torchrun, MPICH's mpiexec -l
    r"\[((?:pod/)?[\w.-]+(?:/[\w.-]+)+)\] ",  # kubectl logs --prefix
    r"\(([^()]*\bpid=\d+[^()]*)\) ",  # Ray
)
RANK_LABEL = re.compile("|".join(_RANK_LABELS))  # what launchers put before a line to say whose it is
HOST_LABEL = re.compile(r"([A-Za-z][\w./-]*)(?:: | +\| | [A-Za-z][\w.-]* )|([A-Za-z][\w.-]*-\d+) ")
"""``node7: `` (clush, parallel), ``train-0 | `` (compose), ``worker-0 main `` (stern, jobsets): a label only right
before XLA's own prefix, elsewhere it may be any text."""
TIMESTAMP = re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\]?:? ")
"""What ``--timestamps`` of kubectl and docker put before a line, before or behind the label."""

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_SUB_MODULE = re.compile(
    r"(?:^|_)fusion(?:[_.]|$)|^wrapped_|^extracted|^fused_|^custom[-_]call|^cublas|^triton_|^dot(?:\.|$)"
)


def is_sub_module(name: str) -> bool:
    """Whether a module is one that the kernel autotuner cut out of another (0.11.1 and newer), by its name.

    Such modules (``gemm_fusion_dot.17``, ``input_reduce_fusion``, ``wrapped_convert``) go through the same profile
    lookup and print the same lines; what they print means nothing for the program.
    """
    return not re.match(r"(?:p?jit|pmap|xmap|shmap)_", name) and bool(_SUB_MODULE.search(name))


def is_clone(name: str) -> bool:
    """Whether a module is the copy that 0.7.2 and 0.8.x schedule first, to estimate a threshold."""
    return name.endswith("-clone")


CLONES = ((0, 7, 2), (0, 9))  # from the first release on, and before the second, XLA schedules such a copy
LISTS_SINCE = (0, 5, 1)  # first release of jax whose XLA lists the instructions that a profile has no cost for

Refusal: TypeAlias = Literal["unknown", "bad-value"]


def flag_refusal(text: str) -> tuple[Refusal, str] | None:
    """What a process that read XLA_FLAGS says against a flag: how it is refused, and XLA's own words.

    An unknown flag comes first: it is fatal in every release, a bad value only from 0.4.31 on.
    """
    found: dict[Refusal, str] = {}
    rules = [wording.pattern for wording in WORDINGS if wording.kind is LineKind.FLAG_REFUSED]
    for line in text.splitlines():
        text = line.split("] ", 1)[-1].strip()
        if any(rule.search(text) for rule in rules):
            how: Refusal = "unknown" if text.startswith("Unknown") else "bad-value"
            words = "Flag parsing failed." if "Flag parsing failed" in text else text
            if how not in found or found[how] == "Flag parsing failed.":
                found[how] = words
    return next(((how, found[how]) for how in ("unknown", "bad-value") if how in found), None)


FATAL = re.compile(r"^F\d{4} .*?\] (?P<abseil>.*)$|^[-\d]+ [\d:.]+: F .*?\] (?P<tsl>.*)$", re.MULTILINE)
"""A line with which XLA ends the process."""


EMPTY_TRACE = "PGLE collected an empty trace"
"""JAX's AutoPGLE (0.4.31 and newer). The rest of the line names CUPTI's error as one possible cause."""
AUTO_PGLE = {
    "recompiled": r"Compiling module (\S+) with FDO profile of length (\d+)",
    "loaded": r"PGLE-optimized (\S+) loaded from compilation cache",
    "missed": r"PERSISTENT CACHE MISS for PGLE-optimized (\S+)",
    "hits": r"Persistent compilation cache hit for '(\S+)'",
}
"""What jax's compiler says of AutoPGLE, within the program (0.4.31 to 0.12): the module, and the bytes of its costs.
``missed``: JAX expected the executable that AutoPGLE had left in its cache (0.5.1 and newer)."""
PGLE_CACHE_WRITE = re.compile(r"PERSISTENT CACHE WRITE with key \S+ this is unexpected|CACHE WRITE .*EXPECT_PGLE")

PROFILER_TROUBLE: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED|max(?:imum)? limit (?:of subscribers )?reached"
            r"|CUPTI.*(?:error|code)[^0-9]{0,10}39\b"
        ),
        "another profiler (nsys, DCGM, AutoPGLE) holds CUPTI, so the trace has no GPU activities; "
        "stop it, or use --capture nsys",
    ),
    (
        re.compile(r"CUPTI_ERROR_INSUFFICIENT_PRIVILEGES|ERR_NVGPUCTRPERM"),
        "the driver lets only administrators profile; load the nvidia module with "
        f"NVreg_RestrictProfilingToAdminUsers=0 (see '{DOCTOR}')",
    ),
    (
        re.compile(r"Another profiling session (?:is )?active|Only one profile may be run at a time"),
        "two profiler sessions in one process; one of them was lost",
    ),
    (
        re.compile(
            r"\bdropped (?:\d+ )?(?:events|records|CUPTI|activit)|(?:events|records|activities) (?:were )?dropped", re.I
        ),
        "the profiler dropped events, so some costs are missing; trace a shorter --window",
    ),
    (
        re.compile(r"nv-hostengine|DCGM.*(?:conflict|in use|profiling)", re.I),
        "DCGM profiles these GPUs as well; pause it with 'dcgmi profile --pause'",
    ),
)
"""Where profilers get in each other's way (CUPTI has one subscriber before CUDA 13.2) or lose data; what it means."""
SLOW_FOLDING = b"Constant folding an instruction is taking"
"""XLA computes a constant of the module at compile time, which may take minutes (all); ``> 1s``, ``> 2s`` … follows."""
NSYS_FAILED = re.compile(
    r"^(?:Importer error|Unable to retrieve the importer|.*FATAL ERROR|Error:|std::exception::what:|\[boost::errinfo_)"
)
"""How lines of `nsys profile` begin that say why there is no report."""
NSYS_FAILED_WORDS = (b"error", b"unable", b"exception", b"errinfo")
"""One of these, in small letters, is in every line that `NSYS_FAILED` matches."""
NSYS_NOT_READY = re.compile(r"^\S*ProcessWaiterImpl\.cpp\(\d+\): Throw in function .*(?:\n.+)*= sem_open", re.MULTILINE)
"""What nsys (2022.4) says where its agent looks for the semaphore of the program before its launcher has made it. The
launcher's child then still waits for the signal to become the program: the program has not run."""
PROFILER_WORDS = (b"cupti", b"maximum limit", b"max limit", b"nvgpuctrperm", b"profil", b"dropped", b"nv-hostengine",
                  b"dcgm", b"pgle")  # fmt: skip
"""One of these, in small letters, is in every line that `PROFILER_TROUBLE` or `EMPTY_TRACE` matches."""


MAX_LINE_BYTES = 1 << 16
"""Longer lines are cut: XLA's own log library cuts near 15 kB, progress bars and proto dumps may be longer."""
MAX_INFO_LINES = 20_000
"""Lines of XLA that are looked at for the first of each rank at level INFO, which all ranks print as they start."""

_CHUNK = 1 << 20
_MARKED = re.compile(b"|".join(map(re.escape, MARKS)))
_JIT = re.compile(r"^(\w+)\((.*)\)$")  # newer JAX writes jit(train_step) where XLA says jit_train_step


@dataclass(frozen=True, slots=True)
class Event:
    """One line of interest."""

    kind: LineKind  # what it says
    line: int  # line number, from 1
    text: str  # the line without label and prefix
    level: str = ""  # I, W, E or F; empty where the line has no XLA prefix
    rank: str = ""  # the label of a launcher before the line; empty if absent
    # the thread id (Abseil's prefix only), which tells processes of one log apart where nothing else does
    thread: str = ""
    seconds: float | None = None  # time of day; None where the line has none
    module: str = ""  # the module it names; empty where it names none
    subject: str = ""  # a path, name, fingerprint or reason; see `LineKind`
    count: int | None = None  # a number of instructions or bytes


def lists_missing(event: Event) -> bool:
    """Whether an event shows an XLA that lists instructions without a cost, by a wording of 0.5.1 or newer."""
    return (
        (event.kind is LineKind.FOUND_PROFILE and bool(event.module))
        or event.kind in (LineKind.FOUND, LineKind.MISSING, LineKind.LHS_OFF_NOTICE)
        or (event.kind is LineKind.READ and event.subject.startswith("fdo_profile") and "for module" not in event.text)
        or (event.kind is LineKind.LHS_RAN and event.text.startswith("[latency-hiding-scheduler]"))
    )


def read_events(
    stream: IO[bytes], *, rank: str = "", progress: Callable[[int, int], None] | None = None
) -> Iterator[Event]:
    """The events of a log, in order, while it is being read.

    Args:
        stream: the log as bytes; a pipe is fine. Undecodable bytes are replaced.
        rank: of lines without a label.
        progress: called with (bytes read, 0) now and then.
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
            block, rest = block[:cut], block[cut:]
            if len(rest) > MAX_LINE_BYTES:  # one endless line: keep its beginning, which has the message
                rest = rest[:MAX_LINE_BYTES]
        yield from reader.first_info(block, number)
        if any(mark in block for mark in MARKS):  # far quicker than the expression if nothing matches
            yield from reader.events(block, number)
        number += block.count(b"\n")
        if not chunk:
            return


class _LineReader:
    """Lines → events; knows the labels of ranks that it has seen."""

    def __init__(self, rank: str) -> None:
        self.rank = rank
        self.hosts: dict[str, str] = {}  # labels that stood before XLA's prefix, and may stand before other lines
        self.with_info: set[str] = set()
        self.info_lines_left = MAX_INFO_LINES

    def events(self, block: bytes, number: int) -> Iterator[Event]:
        """The events in whole lines; `number` lines stand before them."""
        position = 0
        while (mark := _MARKED.search(block, position)) is not None:
            start = block.rfind(b"\n", position, mark.start()) + 1 or position
            end = _line_end(block, mark.end())
            number += block.count(b"\n", position, start)
            line = block[start:end]
            if not any(noise in line for noise in NOISE):
                yield from self.event(line, number + 1)
            position = end

    def first_info(self, block: bytes, before: int) -> Iterator[Event]:
        """The first line of each rank from XLA itself at level INFO, if `block` has it."""
        position = counted = 0
        while self.info_lines_left and (found := block.find(b".cc:", position)) >= 0:
            start, position = block.rfind(b"\n", 0, found) + 1, _line_end(block, found)
            self.info_lines_left -= 1
            rank, prefix, text = self.split(_decoded(block[start:position]))
            if not prefix or "I" not in (prefix["abseil"], prefix["tsl"]) or not prefix["file"].endswith(".cc"):
                continue
            if rank not in self.with_info:
                self.with_info.add(rank)
                before += block.count(b"\n", counted, start)
                counted = start
                yield Event(LineKind.INFO, before + 1, text, "I", rank)

    def split(self, line: str) -> tuple[str, re.Match[str] | None, str]:
        """A line's rank, its prefix by XLA's log library, and what it says."""
        prefix = PREFIX.match(line)
        before = line if prefix is None else prefix["before"]
        label, rank = _label(before)
        if not rank and (host := HOST_LABEL.match(before, len(label))):
            if prefix is not None and host.end() == len(before):
                self.hosts[host[0]] = host[0].strip(" :|")
            if rank := self.hosts.get(host[0], ""):
                label += host[0]
        return rank or self.rank, prefix, line[len(label) :] if prefix is None else prefix["text"]

    def event(self, raw: bytes, number: int) -> Iterator[Event]:
        rank, prefix, text = self.split(_decoded(raw))
        level, thread, seconds = "", "", None
        if prefix:
            level = prefix["abseil"] or prefix["tsl"]
            thread = prefix["thread"] or ""
            hours, minutes, rest = (prefix["time1"] or prefix["time2"]).split(":")
            seconds = int(hours) * 3600 + int(minutes) * 60 + float(rest)
            if prefix["file"].endswith(ESTIMATOR_FILE) and text.startswith("  "):
                yield Event(LineKind.MISSING_NAME, number, text, level, rank, thread, seconds, subject=text.strip())
                return
        for wording in WORDINGS:
            if found := wording.pattern.search(text):
                fields = found.groupdict()
                yield Event(
                    wording.kind,
                    number,
                    text.rstrip(),
                    level,
                    rank,
                    thread,
                    seconds,
                    module=_JIT.sub(r"\1_\2", fields.get("module", "")),
                    subject=fields.get("subject", ""),
                    count=int(fields["count"][:30]) if "count" in fields else None,
                )
                return


def _label(text: str) -> tuple[str, str]:
    """The label at the beginning of a line, with timestamps around it, and the rank it names."""
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
