"""XLA's log as a stream of events: what it says about cost profiles, module by module.

Knows the wordings of jax 0.4.26 to 0.12.0.1 and both line prefixes (TSL, Abseil). Memory does not grow with the log:
lines are looked at one by one, and blocks of text that cannot hold anything of interest are skipped whole.
Line numbers of XLA's sources are never matched on: they differ in every release.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import BinaryIO

MAX_LINE_BYTES = 1 << 16
"""Longer lines are cut: XLA's own log library cuts near 15 kB, progress bars and proto dumps may be longer."""

_CHUNK = 1 << 20


class Kind(StrEnum):
    """What a line says. `Event.subject` holds what stands in brackets."""

    READ = "read"
    """A profile was parsed, even if it is empty [its path, or ``fdo_profile (text)``]."""
    FOUND_PROFILE = "found-profile"
    """The scheduler of a module takes its costs from a profile; `Event.module` since 0.7.0."""
    FOUND = "found"
    """`Event.count` instructions of the module have a cost."""
    MISSING = "missing"
    """`Event.count` instructions have none; their names follow."""
    MISSING_NAME = "missing-name"
    """One instruction without a cost [its name]."""
    NAME_NOT_IN_MODULE = "name-not-in-module"
    """First name of the profile that the module lacks (0.4.26 to 0.4.30) [the names]."""
    NO_SUCH_FILE = "no-such-file"
    """The profile is not there [its path]; in directory mode for every module without a file of its own."""
    UNREADABLE = "unreadable"
    """The profile could not be parsed [its path and the reason]."""
    SYNTAX = "syntax"
    """Where a text profile is wrong [``LINE:COLUMN: reason``]."""
    LHS_OFF_NOTICE = "lhs-off-notice"
    """A profile is given though LHS is not asked for; LHS runs anyway."""
    LHS_RAN = "lhs-ran"
    """The scheduler ran on a module with asynchronous ops; `Event.count` is the memory in use, in bytes."""
    OTHER_ESTIMATOR = "other-estimator"
    """A module is scheduled by another model than the profile [which]."""
    FALLBACK = "fallback"
    """What instructions without a cost get [which model]."""
    FINGERPRINT = "fingerprint"
    """The fingerprint of `Event.module` [32 hexadecimal digits]."""
    COST_FOUND = "cost-found"
    """VLOG: the profile's cost of an instruction was taken [its name]."""
    DISCARDED = "discarded"
    """The accuracy checker failed the compilation."""
    FLAG_REFUSED = "flag-refused"
    """XLA ended the process for a flag [the flag]."""
    EMPTY_TRACE = "empty-trace"
    """JAX's AutoPGLE recorded nothing, so it has no profile to give."""
    CACHE_HIT = "cache-hit"
    """JAX loaded an executable instead of compiling it; such a module logs nothing."""
    CACHE_WRITE = "cache-write"
    """JAX stored the executable of `Event.module`: it has just been compiled."""
    COMPILED = "compiled"
    """A module is being compiled, or has been [which line says so]."""
    INFO = "info"
    """The first line of XLA at level INFO: the log level hides nothing."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of interest.

    Attributes:
        kind: what it says.
        line: line number, from 1.
        text: the line without its prefix.
        level: I, W, E or F; empty where the line has no XLA prefix.
        thread: what tells interleaved writers apart: whatever stands before the prefix (a rank), and the thread id
            (Abseil prefix only).
        seconds: time of day; None where the line has none.
        module: the module it names; empty where it names none.
        subject: a path, name, fingerprint or reason; see `Kind`.
        count: a number of instructions or bytes.
    """

    kind: Kind
    line: int
    text: str
    level: str = ""
    thread: str = ""
    seconds: float | None = None
    module: str = ""
    subject: str = ""
    count: int | None = None


_PREFIX = re.compile(
    r"^(?P<before>.{0,80}?)"
    r"(?:(?P<abseil>[IWEF])\d{4} (?P<time1>\d\d:\d\d:\d\d\.\d+)\s+(?P<thread>\d+) "
    r"|\d{4}-\d\d-\d\d (?P<time2>\d\d:\d\d:\d\d\.\d+): (?P<tsl>[IWEF]) )"
    r"(?P<file>[^\s:\]]+):\d+\] (?P<text>.*)$",
    re.DOTALL,
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")

# Wanted: cheap tests on bytes that any line of interest passes, most of them by one substring.
_MARKS = (
    b"PGLE", b"rofile", b"atencyHiding", b"latency estimator", b"missing instructions", b"name to remain",
    b"XLA_FLAGS", b"for flag ", b"Fingerprint before", b"FDO", b"ompilation cache", b"XLA compilation",
    b"dump enabled", b"deviceless compilation", b"Flag parsing failed", b"guided_latency", b"Illegal value for --",
)  # fmt: skip
_MARKED = re.compile(b"|".join(map(re.escape, _MARKS)))
# VLOG of every parameter and edge: thousands of lines that say nothing
_NOISE = (b"] PGLE missed cost", b"] PGLE did ")
_ESTIMATOR_FILE = "profile_guided_latency_estimator.cc"


def _rule(pattern: str, kind: Kind, **groups: str) -> tuple[re.Pattern[str], Kind, dict[str, str]]:
    """A wording; `groups` maps a field of `Event` to the group that fills it."""
    return re.compile(pattern), kind, groups


# Tried in this order on the text after the prefix; releases in which a wording occurs are in docs of `Kind`.
_RULES = (
    _rule(r"^Using PGLE profile (?:for module )?from (.+?)\s*$", Kind.READ, subject="1"),
    _rule(r"^Found profile for module (.+?), using profile guided latency estimator", Kind.FOUND_PROFILE, module="1"),
    _rule(r"^Found profile, using profile guided latency estimator", Kind.FOUND_PROFILE),
    _rule(r"^Found (\d+) instructions from the profile", Kind.FOUND, count="1"),
    _rule(r"^Missing (\d+) instructions from the profile", Kind.MISSING, count="1"),
    _rule(
        r"^PGLE profile may not applicable to the module.*?cost name (\S+) not in module (\S+)",
        Kind.NAME_NOT_IN_MODULE, subject="1", module="2",
    ),
    _rule(r"^PGLE profile may not applicable to the module.*?: (.*)$", Kind.NAME_NOT_IN_MODULE, subject="1"),
    _rule(r"^PGLE profile file does not exist: (.+?)\s*$", Kind.NO_SUCH_FILE, subject="1"),
    _rule(r"^Tried but failed to parse PGLE proto from (?:text|binary) file (.+)$", Kind.UNREADABLE, subject="1"),
    _rule(r"^Unable to read PGLE (?:text|binary) proto from (.+)$", Kind.UNREADABLE, subject="1"),
    _rule(r"^Unable to (?:prase FDO profile|parse fdo_profile)(.*)$", Kind.UNREADABLE, subject="1"),
    _rule(r"Error parsing text-format tensorflow\.profiler\.ProfiledInstructionsProto: (.+)$",
          Kind.SYNTAX, subject="1"),
    _rule(r"^Profile data detected but `xla_gpu_enable_latency_hiding_scheduler` unset", Kind.LHS_OFF_NOTICE),
    _rule(r"LatencyHidingScheduler current memory usage: (\d+) bytes", Kind.LHS_RAN, count="1"),
    _rule(r"^Using (Speed-of-Light \(SoL\) analytical|analytical|unified) latency estimator",
          Kind.OTHER_ESTIMATOR, subject="1"),
    _rule(r"^PGLE fallback: using (\w+(?: \(T-shirt sizes\))?)", Kind.FALLBACK, subject="1"),
    _rule(r"^Fingerprint before LHS for module (.+)\(\d+\) = ([0-9a-f]{32})",
          Kind.FINGERPRINT, module="1", subject="2"),
    _rule(r"^PGLE found cost for: (\S+)", Kind.COST_FOUND, subject="1"),
    _rule(r"^PGLE found latency for async op (.+?) and \(assumed\)", Kind.COST_FOUND, subject="1"),
    _rule(r"Found (\d+) missing instructions\. Discarding the profile", Kind.DISCARDED, count="1"),
    _rule(r"Expected instruction name to remain the same\. Was '", Kind.DISCARDED),  # the checker at ERROR since 0.11.1
    _rule(r"PGLE collected an empty trace", Kind.EMPTY_TRACE),
    _rule(r"^Unknown flags? in XLA_FLAGS: (.*?)\s*$", Kind.FLAG_REFUSED, subject="1"),
    _rule(r"^Couldn't interpret value (.+ for flag \w+)", Kind.FLAG_REFUSED, subject="1"),
    _rule(r"^Illegal value for (--\w+.*?)\s*$", Kind.FLAG_REFUSED, subject="1"),
    _rule(r"Flags::Parse\(.*Flag parsing failed", Kind.FLAG_REFUSED),
    _rule(r"[Pp]ersistent compilation cache hit for '([^']+)'", Kind.CACHE_HIT, module="1"),
    _rule(r"PGLE-optimized (\S+) loaded from compilation cache", Kind.CACHE_HIT, module="1"),
    _rule(r"Writing (\S+) to persistent compilation cache", Kind.CACHE_WRITE, module="1"),
    _rule(r"Finished XLA compilation of (\S+) in", Kind.COMPILED, module="1"),
    _rule(r"HloModule dump enabled|deviceless compilation", Kind.COMPILED),
)  # fmt: skip


_JIT = re.compile(r"^(\w+)\((.*)\)$")  # newer JAX writes jit(train_step) where XLA says jit_train_step


def read_events(stream: BinaryIO, *, progress: Callable[[int, int], None] | None = None) -> Iterator[Event]:
    """The events of a log, in order, while it is being read.

    Args:
        stream: the log as bytes; a pipe is fine. Undecodable bytes are replaced.
        progress: called with (bytes read, 0) now and then.
    """
    number = done = 0
    seen_info = False
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
            if len(rest) > MAX_LINE_BYTES:  # one endless line: keep its beginning, which is where a message stands
                rest = rest[:MAX_LINE_BYTES]
        if not seen_info and b".cc:" in block:
            for event in _first_info(block, number):
                seen_info = True
                yield event
        if any(mark in block for mark in _MARKS):  # far quicker than the expression where there is none
            yield from _events(block, number)
        number += block.count(b"\n")
        if not chunk:
            return


def _events(block: bytes, number: int) -> Iterator[Event]:
    """The events in whole lines; `number` lines stand before them."""
    position = 0
    while (mark := _MARKED.search(block, position)) is not None:
        start = block.rfind(b"\n", position, mark.start()) + 1 or position
        end = block.find(b"\n", mark.end())
        end = len(block) if end < 0 else end
        number += block.count(b"\n", position, start)
        line = block[start:end]
        if not any(noise in line for noise in _NOISE):
            yield from _event(line, number + 1)
        position = end


def _first_info(block: bytes, before: int) -> Iterator[Event]:
    """The first line of XLA itself at level INFO in `block`, as at most one event."""
    for offset, line in enumerate(block.split(b"\n"), 1):
        if b".cc:" in line:
            found = _PREFIX.match(_decoded(line))
            if found and "I" in (found["abseil"], found["tsl"]) and found["file"].endswith(".cc"):
                yield Event(Kind.INFO, before + offset, found["text"], "I")
                return


def _decoded(line: bytes) -> str:
    return _ANSI.sub("", line[:MAX_LINE_BYTES].decode("utf-8", "replace")).rstrip("\r")


def _event(raw: bytes, number: int) -> Iterator[Event]:
    line = _decoded(raw)
    prefix = _PREFIX.match(line)
    text, level, thread, seconds = line, "", "", None
    if prefix:
        text = prefix["text"]
        level = prefix["abseil"] or prefix["tsl"]
        thread = f"{prefix['before'].strip()}/{prefix['thread'] or ''}"
        seconds = _seconds(prefix["time1"] or prefix["time2"])
        if prefix["file"].endswith(_ESTIMATOR_FILE) and text.startswith("  "):
            yield Event(Kind.MISSING_NAME, number, text, level, thread, seconds, subject=text.strip())
            return
    for pattern, kind, groups in _RULES:
        found = pattern.search(text)
        if found:
            count = groups.get("count")
            yield Event(
                kind,
                number,
                text.rstrip(),
                level,
                thread,
                seconds,
                module=_JIT.sub(r"\1_\2", found[int(groups["module"])]) if "module" in groups else "",
                subject=found[int(groups["subject"])] if "subject" in groups else "",
                count=int(found[int(count)]) if count else None,
            )
            return


def _seconds(time_of_day: str) -> float:
    hours, minutes, seconds = time_of_day.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


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
