"""A log's events, gathered into blocks: what a rank says of the scheduling of one module; blocks follow each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pgle.xla.log.events import Event, LineKind, is_clone, is_sub_module, lists_missing

MAX_NAMES = 2000  # missing names kept per module; more are counted only

_END = re.compile(r"(.+)-(start|done)(?:\.\d+)*")
_FINGERPRINT_FILE = re.compile(r"(?:^|/)([0-9a-f]{32})\.pb(?:txt)?$")


@dataclass(slots=True)
class SchedulingBlock:
    """What the log says about the scheduling of one module."""

    thread: str  # that schedules it; empty where the log does not say
    order: int  # number of the block in the rank's log
    module: str = ""  # its name; empty where no line names it
    fingerprint: str = ""  # where a line gives it
    lines: dict[LineKind, Event] = field(default_factory=dict)  # the first line of each kind
    found: int | None = None  # instructions with a cost; None where no line counts them
    missing: int | None = None  # instructions without; None where no line counts them
    missing_names: list[str] = field(default_factory=list)  # at most `MAX_NAMES` of them
    listed: int = 0  # how many the log lists
    # how many of these are the start or the done of what, such as ``("fusion", "done")``
    missing_ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    costs_found: int = 0  # VLOG lines that take a cost from the profile
    began: float | None = None  # time of day of its first line; None where lines have none
    ended: float | None = None  # the same of the last line before the next block
    closed: bool = False  # the module is done, or the next one has begun

    def miss(self, name: str) -> None:
        """Note a name that the log lists as missing."""
        self.listed += 1
        if len(self.missing_names) < MAX_NAMES:
            self.missing_names.append(name)
        if end := _END.fullmatch(name):
            self.missing_ends[end[1], end[2]] += 1

    @property
    def took_profile(self) -> bool:
        """Whether the scheduler got its costs from the profile."""
        return bool(self.lines.keys() & {LineKind.FOUND_PROFILE, LineKind.FOUND, LineKind.MISSING})

    @property
    def lacked_profile(self) -> bool:
        """Whether a line says that the module was, or would have been, scheduled without the profile."""
        without = {LineKind.NO_SUCH_FILE, LineKind.UNREADABLE, LineKind.OTHER_ESTIMATOR, LineKind.LHS_RAN}
        return not self.took_profile and bool(self.lines.keys() & without)

    @property
    def is_past_lookup(self) -> bool:
        """Whether XLA has printed all that it prints between the lookup of the profile and the schedule."""
        return self.closed or LineKind.LHS_RAN in self.lines

    @property
    def profile(self) -> str:
        """The profile that was read; empty where none was."""
        return self.lines[LineKind.READ].subject if LineKind.READ in self.lines else ""

    @property
    def profile_is_its_own(self) -> bool:
        """Whether what it read was meant for this module alone: an option of its compilation, or its file."""
        return self.profile.startswith("fdo_profile") or bool(_FINGERPRINT_FILE.search(self.profile))

    @property
    def fingerprint_sought(self) -> str:
        """The fingerprint of a module that has no file in the directory of profiles; empty for a single file."""
        line = self.lines.get(LineKind.NO_SUCH_FILE)
        found = _FINGERPRINT_FILE.search(line.subject) if line else None
        return found[1] if found else ""

    @property
    def covered(self) -> tuple[int, int]:
        """Instructions with a cost, and all that want one: XLA's numbers without the dones.

        XLA finds an asynchronous fusion or copy twice, for its cost and for its latency, and misses its done, which
        costs nothing. Dones of collectives are never listed.
        """
        dones = {what: count for (what, end), count in self.missing_ends.items() if end == "done"}
        twice = sum(max(count - self.missing_ends[what, "start"], 0) for what, count in dones.items())
        found, missing = self.found or 0, self.missing or 0
        covered = max(found - twice, 0)
        return covered, covered + max(missing - sum(dones.values()), 0)

    @property
    def weight(self) -> tuple[int, int, float]:
        """How much of a program this module is: scheduler memory, instructions counted, seconds; all 0 if unknown.

        Half without a name: what 0.7.2 and 0.8.x say of a step's clone in directory mode names no module.
        """
        memory = (self.lines[LineKind.LHS_RAN].count or 0) if LineKind.LHS_RAN in self.lines else 0
        seconds = 0.0 if self.began is None or self.ended is None else (self.ended - self.began) % 86_400
        return memory // (1 if self.module else 2), (self.found or 0) + (self.missing or 0), seconds

    def note_time(self, event: Event) -> None:
        """Note when the last line that belongs to the module was logged."""
        self.ended = event.seconds if event.seconds is not None else self.ended

    def close(self, event: Event) -> None:
        """End the block: the line is not about its module any more."""
        if not self.closed:
            self.closed = True
            self.note_time(event)


@dataclass
class RankLog:
    """What one rank says; a log without labels is of one rank."""

    # the last block by thread, module, and whether it lacked the profile; of unnamed ones the weightiest
    last: dict[tuple[str, str, bool], SchedulingBlock] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)  # how many blocks there were per module
    # names of the modules that kernel autotuner and fusions made, and of clones; they have no blocks
    sub_modules: set[str] = field(default_factory=set)
    reads: Counter[str] = field(default_factory=Counter)  # for how many modules each profile was parsed
    cache_hits: dict[str, Event] = field(default_factory=dict)  # modules that JAX loaded from its cache, with the line
    # the first line of each kind that is not about one module
    lines: dict[LineKind, Event] = field(default_factory=dict)
    is_open: bool = False  # the last module that the log speaks of may not have been scheduled when the log ends


@dataclass
class Log:
    """A whole log."""

    ranks: dict[str, RankLog] = field(default_factory=dict)  # what each rank says, by its label
    lists_missing: bool = False  # this XLA lists instructions without a cost (0.5.1 and newer)

    @property
    def main_module(self) -> str:
        """The name of the weightiest module; empty where the log does not name it."""
        blocks = [block for rank in self.ranks.values() for block in rank.last.values()]
        return max(blocks, key=lambda block: block.weight).module if blocks else ""


def collect(events: Iterable[Event]) -> Log:
    """Gather the events of a log; memory grows with the number of ranks and modules, not with the log."""
    gatherers: dict[str, _Gatherer] = {}
    log = Log()
    for event in events:
        gatherers.setdefault(event.rank, _Gatherer()).take(event)
        log.lists_missing = log.lists_missing or lists_missing(event)
    log.ranks = {rank: gatherer.finish() for rank, gatherer in gatherers.items()}
    return log


_OF_A_RANK = frozenset({
    LineKind.INFO, LineKind.COMPILING, LineKind.COMPILED, LineKind.ON_CPU, LineKind.EMPTY_TRACE,
    LineKind.FLAG_REFUSED, LineKind.DISCARDED, LineKind.LHS_OFF_NOTICE,
})  # fmt: skip
"""Kinds of lines that are about no module, or do not say which."""


class _Gatherer:
    """The events of one rank → its blocks."""

    def __init__(self) -> None:
        self.result = RankLog()
        self.current: dict[str, SchedulingBlock] = {}  # by thread
        self.latest: SchedulingBlock | None = None
        self.unnamed: list[SchedulingBlock] = []  # since JAX last named a module
        self.one_thread = False
        self.count = 0
        self.syntax: Event | None = None

    def take(self, event: Event) -> None:
        """Note an event: with the module that it is about, or with the rank."""
        if event.kind is LineKind.SYNTAX:
            self.syntax = event
        elif event.kind is LineKind.CACHE_HIT:
            self.result.cache_hits.setdefault(event.module, event)
        elif event.kind not in _OF_A_RANK:
            self._scheduling(event)
        else:
            self.result.lines.setdefault(event.kind, event)
            if event.kind is LineKind.COMPILING:
                if block := self.current.get(self._thread(event)):
                    block.close(event)
            elif event.kind is LineKind.COMPILED:
                self._compiled(event)
            elif event.kind is LineKind.DISCARDED and self.latest is not None and not self.latest.closed:
                self.latest.lines[event.kind] = event  # Python's line, without a prefix: ends what logged last

    def finish(self) -> RankLog:
        self.result.is_open = self.latest is not None and not self.latest.is_past_lookup
        for block in sorted(self.current.values(), key=lambda item: item.order):
            self._store(block)
        return self.result

    def _scheduling(self, event: Event) -> None:
        """A line of XLA about the module that its thread schedules."""
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
        """The event's thread. Releases that mix TSL's prefixes, which have none, with Abseil's are read as one."""
        if not event.thread and event.level and not self.one_thread:
            self.one_thread = True
            if self.latest is not None:
                self.current = {"": self.latest}
        return "" if self.one_thread else event.thread

    def _block(self, event: Event) -> SchedulingBlock:
        """The block of the event's thread, a new one where the event begins the next module."""
        thread = self._thread(event)
        block = self.current.get(thread)
        if block is not None and not block.closed and not _begins_next(event, block):
            return block
        if block is not None:
            block.close(event)
            self._store(block)
        self.count += 1
        block = self.current[thread] = self.latest = SchedulingBlock(thread, self.count, began=event.seconds)
        self.unnamed = [*self.unnamed[-1:], block]
        return block

    def _store(self, block: SchedulingBlock) -> None:
        if block.profile:
            self.result.reads[block.profile] += 1
        if is_sub_module(block.module) or is_clone(block.module):
            self.result.sub_modules.add(block.module)
            return
        self.result.times[block.module] += 1
        key = (block.thread, block.module, block.lacked_profile)
        known = self.result.last.get(key)
        if known is None or (block.module and block.order > known.order) or block.weight > known.weight:
            self.result.last[key] = block

    def _compiled(self, event: Event) -> None:
        """JAX names the module that was just compiled: old releases name it nowhere else."""
        nameless = [block for block in self.unnamed if not block.module]
        if len(nameless) == 1:
            nameless[0].module = event.module
        for block in self.unnamed:
            block.close(event)
        self.unnamed = []


def _begins_next(event: Event, block: SchedulingBlock) -> bool:
    """Whether an event cannot be of the module that the block is about, by the order in which XLA logs."""
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
