"""Events gathered into blocks: what the log of each rank says, module by module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pgle.xla.log.block import Block
from pgle.xla.log.events import Event
from pgle.xla.log.wordings import Kind, is_clone, is_sub_module

MAX_THREADS = 4096


@dataclass
class RankLog:
    """What one rank says; a log without labels is of one rank."""

    # the last block by thread, module, and whether it lacked the profile; of unnamed ones the weightiest
    last: dict[tuple[str, str, bool], Block] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)  # how many blocks there were per module
    # names of the modules that kernel autotuner and fusions made, and of clones; they have no blocks
    sub_modules: set[str] = field(default_factory=set)
    reads: Counter[str] = field(default_factory=Counter)  # for how many modules each profile was parsed
    cache_hits: dict[str, Event] = field(default_factory=dict)  # modules that JAX loaded from its cache, with the line
    lines: dict[Kind, Event] = field(default_factory=dict)  # the first line of each kind that is not about one module
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
        log.lists_missing = log.lists_missing or _lists_missing(event)
    log.ranks = {rank: gatherer.finish() for rank, gatherer in gatherers.items()}
    return log


def _lists_missing(event: Event) -> bool:
    """Whether an event shows an XLA that lists instructions without a cost, by a wording of 0.5.1 or newer."""
    return (
        (event.kind is Kind.FOUND_PROFILE and bool(event.module))
        or event.kind in (Kind.FOUND, Kind.MISSING, Kind.LHS_OFF_NOTICE)
        or (event.kind is Kind.READ and event.subject.startswith("fdo_profile") and "for module" not in event.text)
        or (event.kind is Kind.LHS_RAN and event.text.startswith("[latency-hiding-scheduler]"))
    )


_OF_A_RANK = frozenset(
    {Kind.INFO, Kind.COMPILING, Kind.COMPILED, Kind.ON_CPU, Kind.EMPTY_TRACE, Kind.FLAG_REFUSED, Kind.DISCARDED,
     Kind.LHS_OFF_NOTICE}
)  # fmt: skip
"""Kinds of lines that are about no module, or do not say which."""


class _Gatherer:
    """The events of one rank → its blocks."""

    def __init__(self) -> None:
        self.result = RankLog()
        self.current: dict[str, Block] = {}  # by thread
        self.latest: Block | None = None
        self.unnamed: list[Block] = []  # since JAX last named a module
        self.one_thread = False
        self.count = 0
        self.syntax: Event | None = None

    def take(self, event: Event) -> None:
        """Note an event: with the module that it is about, or with the rank."""
        if event.kind is Kind.SYNTAX:
            self.syntax = event
        elif event.kind is Kind.CACHE_HIT:
            self.result.cache_hits.setdefault(event.module, event)
        elif event.kind not in _OF_A_RANK:
            self._scheduling(event)
        else:
            self.result.lines.setdefault(event.kind, event)
            if event.kind is Kind.COMPILING:
                self._close(self.current.get(self._thread(event)), event)
            elif event.kind is Kind.COMPILED:
                self._compiled(event)
            elif event.kind is Kind.DISCARDED and self.latest is not None and not self.latest.closed:
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
        block.ended = event.seconds if event.seconds is not None else block.ended
        match event.kind:
            case Kind.FINGERPRINT:
                block.fingerprint = event.subject
            case Kind.UNREADABLE if self.syntax is not None:
                block.lines.setdefault(Kind.SYNTAX, self.syntax)
                self.syntax = None
            case Kind.FOUND:
                block.found = event.count
            case Kind.MISSING:
                block.missing = event.count
            case Kind.MISSING_NAME:
                block.miss(event.subject)
            case Kind.COST_FOUND:
                block.costs_found += 1

    def _thread(self, event: Event) -> str:
        """The event's thread. Releases that mix TSL's prefixes, which have none, with Abseil's are read as one."""
        if not event.thread and event.level and not self.one_thread:
            self.one_thread = True
            if self.latest is not None:
                self.current = {"": self.latest}
        return "" if self.one_thread else event.thread

    def _block(self, event: Event) -> Block:
        """The block of the event's thread, a new one where the event begins the next module."""
        thread = self._thread(event)
        block = self.current.get(thread)
        if block is not None and not block.closed and not _begins_next(event, block):
            return block
        if block is not None:
            self._close(block, event)
            self._store(block)
        elif len(self.current) >= MAX_THREADS:
            self._store(self.current.pop(next(iter(self.current))))
        self.count += 1
        block = self.current[thread] = self.latest = Block(thread, self.count, began=event.seconds)
        self.unnamed = [*self.unnamed[-1:], block]
        return block

    def _store(self, block: Block) -> None:
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
            self._close(block, event)
        self.unnamed = []

    def _close(self, block: Block | None, event: Event) -> None:
        if block is not None and not block.closed:
            block.closed = True
            block.ended = event.seconds if event.seconds is not None else block.ended


def _begins_next(event: Event, block: Block) -> bool:
    """Whether an event cannot be of the module that the block is about, by the order in which XLA logs."""
    lines = block.lines
    scheduled = Kind.FOUND_PROFILE in lines or Kind.LHS_RAN in lines
    match event.kind:
        case Kind.FINGERPRINT:
            return True
        case Kind.READ:
            return scheduled or Kind.FOUND in lines
        case Kind.NO_SUCH_FILE:
            # Directory mode reports FP.pbtxt and FP.pb for one module.
            known = lines.get(event.kind, event).subject.rpartition(".")[0]
            return scheduled or known != event.subject.rpartition(".")[0]
        case Kind.FOUND_PROFILE | Kind.UNREADABLE | Kind.OTHER_ESTIMATOR:
            return scheduled
        case Kind.FOUND | Kind.LHS_RAN:
            return event.kind in lines
        case _:
            return False
