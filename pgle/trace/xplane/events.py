"""The events of one xplane line as columns: times, and the few stats that tell what an event was launched for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pgle.trace.xplane.wire import BYTES, VARINT, Block, Cursors, DamagedError, Ints, repeated

BLOCK_EVENTS = 1 << 15  # events decoded at a time: their working arrays stay in the processor's cache
MAX_ID = 1 << 24  # bound on metadata ids, which index tables here; writers number them from 1

MAX_TIME_NS = 1 << 62
"""Bound on the time that a line counts from; with it no sum of times overflows. 146 years: times count from 1970."""

ABSENT, INTEGER, REFERENCE, TEXT, OTHER = 0, 1, 2, 3, 4
_FORM = np.full((9, 8), OTHER, np.uint8)
"""What a field of an XStat holds, by number (those beyond 7 in one) and wire type."""
_FORM[3:5, VARINT], _FORM[5, BYTES], _FORM[7, VARINT] = INTEGER, TEXT, REFERENCE

_METADATA_ID, _OFFSET, _DURATION, _STATS = 1, 2, 3, 4


@dataclass(frozen=True)
class Stat:
    """One stat of n events: `form` says of each what `value` is: absent, an integer, the id of a stat metadata whose
    name is the value, where a string starts in the data (with `end`), or anything else."""

    form: npt.NDArray[np.uint8]
    value: Ints
    end: Ints


@dataclass(frozen=True)
class Events:
    """Events of one line, n rows in file order."""

    metadata: Ints  # int64[n], ids of event metadata
    offset_ps: Ints  # int64[n], since the timestamp of the line
    duration_ps: Ints  # int64[n]
    stats: Mapping[str, Stat]  # by name of the stat; all those asked for

    def __len__(self) -> int:
        return len(self.metadata)

    def times_ns(self, origin_ns: int) -> tuple[Ints, Ints]:
        """int64[n] starts and durations, where `origin_ns` is the timestamp of the line.

        Raises:
            DamagedError: an event has a negative duration, or a time that 64 bits cannot hold.
        """
        if len(self) and int(self.duration_ps.min()) < 0:
            raise DamagedError("an event of negative duration")
        if not -MAX_TIME_NS < origin_ns < MAX_TIME_NS:
            raise DamagedError("a line with an impossible time")
        return origin_ns + self.offset_ps // 1000, self.duration_ps // 1000


def read_events(
    data: bytes, starts: Ints, ends: Ints, wanted: Sequence[str], ids: Mapping[str, int]
) -> Iterator[Events]:
    """Decode XEvents in blocks.

    Args:
        data: the file.
        starts, ends: int64[n], where the events lie in it, in order.
        wanted: names of stats.
        ids: stat metadata ids by name.

    Raises:
        DamagedError: an event is not well-formed.
    """
    slots = np.full(max([ids.get(name, 0) for name in wanted], default=0) + 2, -1, np.int64)
    for slot, name in enumerate(wanted):
        if name in ids:
            slots[ids[name]] = slot
    for first in range(0, len(starts), BLOCK_EVENTS):
        start, end = starts[first : first + BLOCK_EVENTS], ends[first : first + BLOCK_EVENTS]
        yield _decode(data, start, end, wanted, slots)


def _decode(data: bytes, start: Ints, end: Ints, wanted: Sequence[str], slots: Ints) -> Events:
    base = int(start[0])
    block = Block(memoryview(data)[base : int(end[-1])])
    count = len(start)
    numbers = np.zeros((4, count), np.int64)
    form = np.zeros((len(wanted), count), np.uint8)
    value = np.zeros((len(wanted), count), np.int64)
    stop = np.zeros((len(wanted), count), np.int64)
    cursors = Cursors(block, start - base, end - base)
    while cursors.step():
        number, which, values, ends = cursors.number, cursors.which, cursors.value, cursors.end
        is_stat = number == _STATS
        if not is_stat.all():
            for field in (_METADATA_ID, _OFFSET, _DURATION):
                here = (number == field) & (cursors.kind == VARINT)
                numbers[field, which[here]] = values[here]
            if not is_stat.any():
                continue
            which, values, ends = which[is_stat], values[is_stat], ends[is_stat]
        if (cursors.kind[is_stat] != BYTES).any():
            raise DamagedError("a stat that is no message")
        slot, which, forms, values, ends = _stats(block, which, values, ends, slots)
        form[slot, which], value[slot, which], stop[slot, which] = forms, values, ends
    value[form == TEXT] += base
    stop += base
    stats = {name: Stat(form[i], value[i], stop[i]) for i, name in enumerate(wanted)}
    return Events(numbers[_METADATA_ID], numbers[_OFFSET], numbers[_DURATION], stats)


def _stats(
    block: Block, which: Ints, start: Ints, end: Ints, slots: Ints
) -> tuple[Ints, Ints, npt.NDArray[np.uint8], Ints, Ints]:
    """The wanted ones of one XStat per event: slots, events, forms, values, ends of values."""
    cursors = Cursors(block, start, end)
    if not cursors.step():
        none = np.empty(0, np.int64)
        return none, none, np.empty(0, np.uint8), none, none
    if len(cursors.which) != len(start) or not (cursors.number == _METADATA_ID).all():
        return _stats_in_any_order(block, which, start, end, slots)
    slot = slots[np.minimum(cursors.value, len(slots) - 1).clip(0)]
    keep = np.flatnonzero(slot >= 0)
    slot, which = slot[keep], which[keep]
    cursors = Cursors(block, cursors.end[keep], end[keep])
    forms, values, ends = np.zeros(len(keep), np.uint8), np.zeros(len(keep), np.int64), np.zeros(len(keep), np.int64)
    while cursors.step():
        forms[cursors.which] = _FORM[np.minimum(cursors.number, 8), cursors.kind]
        values[cursors.which], ends[cursors.which] = cursors.value, cursors.end
    return slot, which, forms, values, ends


def _stats_in_any_order(
    block: Block, which: Ints, start: Ints, end: Ints, slots: Ints
) -> tuple[Ints, Ints, npt.NDArray[np.uint8], Ints, Ints]:
    """The result of `_stats`, for writers that do not begin with the metadata id."""
    count = len(start)
    identity = np.zeros(count, np.int64)
    forms, values, ends = np.zeros(count, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int64)
    cursors = Cursors(block, start, end)
    while cursors.step():
        is_id = cursors.number == _METADATA_ID
        identity[cursors.which[is_id]] = cursors.value[is_id]
        rest = cursors.which[~is_id]
        forms[rest] = _FORM[np.minimum(cursors.number[~is_id], 8), cursors.kind[~is_id]]
        values[rest], ends[rest] = cursors.value[~is_id], cursors.end[~is_id]
    slot = slots[np.minimum(identity, len(slots) - 1).clip(0)]
    keep = slot >= 0
    return slot[keep], which[keep], forms[keep], values[keep], ends[keep]


def read_pairs(data: bytes, start: int, end: int, number: int) -> tuple[Ints, Ints]:
    """The stats of a plane as (metadata id, integer value), int64[n] each: how scope ranges are stored.

    Raises:
        DamagedError: a stat is not well-formed.
    """
    starts, ends, _ = repeated(data, start, end, number)
    keys, values = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
    for first in range(0, len(starts), BLOCK_EVENTS):
        begin, stop = starts[first : first + BLOCK_EVENTS], ends[first : first + BLOCK_EVENTS]
        base = int(begin[0])
        cursors = Cursors(Block(memoryview(data)[base : int(stop[-1])]), begin - base, stop - base)
        while cursors.step():
            is_id = cursors.number == _METADATA_ID
            keys[first + cursors.which[is_id]] = cursors.value[is_id]
            is_value = (cursors.number == 3) | (cursors.number == 4)
            values[first + cursors.which[is_value]] = cursors.value[is_value]
    return keys, values
