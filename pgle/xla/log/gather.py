"""XLA's log events gathered into blocks, one per scheduling of a module."""

from __future__ import annotations

from collections.abc import Iterable

from pgle.xla.log.blocks import Block, Blocks
from pgle.xla.log.events import Event, Kind

MAX_THREADS = 4096


def collect(events: Iterable[Event]) -> Blocks:
    """Gather the events of a log; memory grows with the number of modules, not with the log."""
    gatherer = _Gatherer()
    for event in events:
        gatherer.take(event)
    return gatherer.finish()


class _Gatherer:
    def __init__(self) -> None:
        self.result = Blocks()
        self.current: dict[str, Block] = {}  # by thread
        self.unnamed: dict[str, list[Block]] = {}  # by rank, since JAX last wrote to its cache
        self.count = 0
        self.syntax: Event | None = None

    def take(self, event: Event) -> None:
        handler = _HANDLERS.get(event.kind)
        if handler is not None:
            handler(self, event)
        block = self.current.get(event.thread)
        if block is not None and event.seconds is not None and not block.closed:
            block.ended = event.seconds
        self._era(event)

    def finish(self) -> Blocks:
        for block in sorted(self.current.values(), key=lambda item: item.order):
            self._store(block)
        return self.result

    def _era(self, event: Event) -> None:
        """Whether this XLA prints Missing lists: named "Found profile" lines (0.7.0) and others of 0.5.1 and newer."""
        newer = (
            (event.kind is Kind.FOUND_PROFILE and bool(event.module))
            or event.kind in (Kind.FOUND, Kind.MISSING, Kind.LHS_OFF_NOTICE)
            or (event.kind is Kind.READ and event.subject.startswith("fdo_profile") and "for module" not in event.text)
            or (event.kind is Kind.LHS_RAN and event.text.startswith("[latency-hiding-scheduler]"))
        )
        self.result.prints_missing |= newer

    def _block(self, event: Event, *, new: bool) -> Block:
        """The thread's block, a fresh one where `new` or where the last is closed."""
        block = self.current.get(event.thread)
        if block is not None and not new and not block.closed:
            return block
        if block is not None:
            if not block.closed and event.seconds is not None:
                block.ended = event.seconds
            self._store(block)
        elif len(self.current) >= MAX_THREADS:
            self._store(self.current.pop(next(iter(self.current))))
        self.count += 1
        rank = event.thread.rpartition("/")[0]
        block = Block(rank=rank, order=self.count, began=event.seconds)
        self.current[event.thread] = block
        self.unnamed.setdefault(rank, []).append(block)
        del self.unnamed[rank][:-2]
        return block

    def _store(self, block: Block) -> None:
        key = (block.rank, block.module)
        known = self.result.last.get(key)
        if block.read is not None:
            self.result.reads[block.read.subject] = self.result.reads.get(block.read.subject, 0) + 1
        self.result.times[key] = self.result.times.get(key, 0) + 1
        if known is None or (block.module and block.order > known.order) or block.weight > known.weight:
            self.result.last[key] = block

    def read(self, event: Event) -> None:
        known = self.current.get(event.thread)
        done = known is not None and (known.profile is not None or known.lhs is not None or known.found is not None)
        block = self._block(event, new=done)
        block.read = event

    def profile(self, event: Event) -> None:
        known = self.current.get(event.thread)
        block = self._block(event, new=known is not None and (known.profile is not None or known.lhs is not None))
        block.profile = event
        block.module = event.module or block.module

    def found(self, event: Event) -> None:
        known = self.current.get(event.thread)
        block = self._block(event, new=known is not None and known.found is not None)
        block.found, block.counted = event.count, event

    def missing(self, event: Event) -> None:
        block = self._block(event, new=False)
        block.missing = event.count
        block.counted = block.counted or event

    def name(self, event: Event) -> None:
        self._block(event, new=False).miss(event.subject)

    def not_in_module(self, event: Event) -> None:
        block = self._block(event, new=False)
        block.not_in_module = event
        block.module = block.module or event.module

    def no_file(self, event: Event) -> None:
        known = self.current.get(event.thread)
        other = known is not None and (
            known.profile is not None
            or known.lhs is not None
            or (known.no_file is not None and _stem(known.no_file.subject) != _stem(event.subject))
        )
        block = self._block(event, new=other)
        block.no_file = block.no_file or event

    def unreadable(self, event: Event) -> None:
        known = self.current.get(event.thread)
        block = self._block(event, new=known is not None and (known.profile is not None or known.lhs is not None))
        block.unreadable = block.unreadable or event
        block.syntax = block.syntax or self.syntax
        self.syntax = None

    def keep_syntax(self, event: Event) -> None:
        self.syntax = event

    def lhs(self, event: Event) -> None:
        known = self.current.get(event.thread)
        block = self._block(event, new=known is not None and known.lhs is not None)
        block.lhs = event

    def estimator(self, event: Event) -> None:
        known = self.current.get(event.thread)
        block = self._block(event, new=known is not None and (known.lhs is not None or known.profile is not None))
        block.estimator = event

    def fingerprint(self, event: Event) -> None:
        known = self.current.get(event.thread)
        block = self._block(event, new=known is not None)
        block.module, block.fingerprint = event.module, event.subject

    def cost_found(self, event: Event) -> None:
        self._block(event, new=False).costs_found += 1

    def discard(self, event: Event) -> None:
        """The line is Python's, without a prefix: it ends the compilation that logged last."""
        last = max(self.current.values(), key=lambda block: block.order, default=None)
        if last is not None and not last.closed:
            last.discarded = event
        self.result.discarded = self.result.discarded or event

    def cache_write(self, event: Event) -> None:
        """JAX names the module that was just compiled: old releases name it nowhere else."""
        rank = event.thread.rpartition("/")[0]
        waiting = self.unnamed.pop(rank, [])
        nameless = [block for block in waiting if not block.module]
        if len(nameless) == 1:
            nameless[0].module = event.module
        for block in waiting:
            if not block.closed and event.seconds is not None:
                block.ended = event.seconds
            block.closed = True

    def cache_hit(self, event: Event) -> None:
        self.result.cache_hits.setdefault(event.module, event)

    def compiled(self, event: Event) -> None:
        self.result.compiled = self.result.compiled or event
        if event.module:
            self.cache_write(event)
            return
        block = self.current.get(event.thread)
        if block is not None:
            block.closed = True

    def info(self, event: Event) -> None:
        self.result.info = self.result.info or event

    def empty_trace(self, event: Event) -> None:
        self.result.empty_trace = self.result.empty_trace or event

    def flag(self, event: Event) -> None:
        self.result.flag_refused = self.result.flag_refused or event


_HANDLERS = {
    Kind.READ: _Gatherer.read,
    Kind.FOUND_PROFILE: _Gatherer.profile,
    Kind.FOUND: _Gatherer.found,
    Kind.MISSING: _Gatherer.missing,
    Kind.MISSING_NAME: _Gatherer.name,
    Kind.NAME_NOT_IN_MODULE: _Gatherer.not_in_module,
    Kind.NO_SUCH_FILE: _Gatherer.no_file,
    Kind.UNREADABLE: _Gatherer.unreadable,
    Kind.SYNTAX: _Gatherer.keep_syntax,
    Kind.LHS_RAN: _Gatherer.lhs,
    Kind.OTHER_ESTIMATOR: _Gatherer.estimator,
    Kind.FINGERPRINT: _Gatherer.fingerprint,
    Kind.COST_FOUND: _Gatherer.cost_found,
    Kind.DISCARDED: _Gatherer.discard,
    Kind.FLAG_REFUSED: _Gatherer.flag,
    Kind.EMPTY_TRACE: _Gatherer.empty_trace,
    Kind.CACHE_HIT: _Gatherer.cache_hit,
    Kind.CACHE_WRITE: _Gatherer.cache_write,
    Kind.COMPILED: _Gatherer.compiled,
    Kind.INFO: _Gatherer.info,
}


def _stem(path: str) -> str:
    """A path without its suffix: directory mode reports ``FP.pbtxt`` and ``FP.pb`` for one module."""
    return path.rpartition(".")[0]
