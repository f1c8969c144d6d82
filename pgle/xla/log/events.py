"""XLA's log as a stream of events: what it says about cost profiles, module by module, rank by rank.

Memory does not grow with the log: lines are looked at one by one, and blocks of text that cannot hold anything of
interest are skipped whole. `pgle.xla.log.wordings` has the texts of the messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

from pgle.xla.log.wordings import (
    ANSI,
    ESTIMATOR_FILE,
    HOST_LABEL,
    MARKS,
    NOISE,
    PREFIX,
    RANK_LABEL,
    TIMESTAMP,
    WORDINGS,
    Kind,
)  # fmt: skip

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

    kind: Kind  # what it says
    line: int  # line number, from 1
    text: str  # the line without label and prefix
    level: str = ""  # I, W, E or F; empty where the line has no XLA prefix
    rank: str = ""  # the label of a launcher before the line; empty where there is none
    # the thread id (Abseil's prefix only), which tells processes of one log apart where nothing else does
    thread: str = ""
    seconds: float | None = None  # time of day; None where the line has none
    module: str = ""  # the module it names; empty where it names none
    subject: str = ""  # a path, name, fingerprint or reason; see `Kind`
    count: int | None = None  # a number of instructions or bytes


def read_events(
    stream: IO[bytes], *, rank: str = "", progress: Callable[[int, int], None] | None = None
) -> Iterator[Event]:
    """The events of a log, in order, while it is being read.

    Args:
        stream: the log as bytes; a pipe is fine. Undecodable bytes are replaced.
        rank: of lines without a label.
        progress: called with (bytes read, 0) now and then.
    """
    reader = _Reader(rank)
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
        if any(mark in block for mark in MARKS):  # far quicker than the expression where there is none
            yield from reader.events(block, number)
        number += block.count(b"\n")
        if not chunk:
            return


class _Reader:
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
                yield Event(Kind.INFO, before + 1, text, "I", rank)

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
            seconds = _seconds(prefix["time1"] or prefix["time2"])
            if prefix["file"].endswith(ESTIMATOR_FILE) and text.startswith("  "):
                yield Event(Kind.MISSING_NAME, number, text, level, rank, thread, seconds, subject=text.strip())
                return
        for wording in WORDINGS:
            if found := wording.pattern.search(text):
                fields = {field: found[group] for field, group in wording.groups.items()}
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


def _seconds(time_of_day: str) -> float:
    hours, minutes, seconds = time_of_day.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
