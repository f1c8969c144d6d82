"""An xplane file decoded: its planes and lines, and the events of lines as columns.

Format: `tsl/profiler/protobuf/xplane.proto` of openxla/xla; planes and lines as XLA's GPU and CPU
profilers name them (`xla/tsl/profiler/utils/xplane_schema.cc`). Wire format:
https://protobuf.dev/programming-guides/encoding/

Millions of events with a dozen stats each are too many for objects, and numpy has no varints. So
pgle decodes many messages at once. Each message of a block has a cursor, and all cursors advance by
one field at a time. Every position is checked against the end of its message. A wrong position
raises `DamagedError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from pgle.trace.columns import NO_ROWS, Ints, distinct
from pgle.trace.table import ModuleKey
from pgle.xla.protos import hlo_pb2, xplane_pb2

Field: TypeAlias = tuple[int, int, int, int, int]
_Words: TypeAlias = npt.NDArray[np.uint64]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_PADDING = 32
_HIGH_BITS = np.uint64(0x8080808080808080)
_FIRST_HIGH_BIT = np.uint64(0x80)
_FIRST_BITS = np.uint64(0x7F)


class DamagedError(ValueError):
    """The bytes form no valid message."""


def fields(data: bytes, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of one message: (number, wire type, value, end, begin).

    `value` is the integer of a varint field, else the position of the value in `data`. `end` is the
    end of the field, `begin` the start of its tag.

    Raises:
        DamagedError: a field does not fit into the message.
    """
    position = start
    while position < end:
        begin = position
        tag, position = _varint(data, position, end)
        kind = tag & 7
        if kind == BYTES:
            size, value = _varint(data, position, end)
            position = value + size
        elif kind == VARINT:
            value, position = _varint(data, position, end)
        elif kind in (FIXED64, FIXED32):
            value = position
            position += 8 if kind == FIXED64 else 4
        else:
            raise DamagedError(f"no field can be read at byte {begin:,}")
        if position > end:
            raise DamagedError(
                f"a field ends at byte {position:,}, its message at {end:,}"
            )
        yield tag >> 3, kind, value, position, begin


def signed(value: int) -> int:
    """Convert a varint to a signed int64."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the base-128 integer at a position, and the position after it."""
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise DamagedError(f"an integer at byte {position:,} has no end")


def repeated(
    data: bytes, start: int, end: int, number: int
) -> tuple[Ints, Ints, list[Field]]:
    """Return the positions of the messages of a repeated field with `number` under 16.

    Returns:
        int64[n] starts, int64[n] ends, and the other fields as `fields` gives them.
    """
    tag = number << 3 | BYTES
    heads: list[int] = []
    long: list[tuple[int, int]] = []
    others: list[Field] = []
    add = heads.append
    position = start
    safe = end - 3
    while position < end:
        # This loop runs once per event. It skips lengths of one or two bytes, which numpy reads
        # below.
        if position < safe and data[position] == tag:
            size = data[position + 1]
            if size < 0x80:
                add(position)
                position += 2 + size
                continue
            more = data[position + 2]
            if more < 0x80:
                add(position)
                position += size + (more << 7) - 0x7D
                continue
        other = next(fields(data, position, end))
        position = other[3]
        if other[0] == number and other[1] == BYTES:
            long.append((other[2], position))
        else:
            others.append(other)
    if position > end:
        raise DamagedError(
            f"a message ends at byte {position:,}, its parent at {end:,}"
        )
    starts, ends = _behind_lengths(data, np.array(heads, np.int64))
    if long:
        starts = np.sort(np.append(starts, [item[0] for item in long]))
        ends = np.sort(np.append(ends, [item[1] for item in long]))
    return starts, ends, others


def _behind_lengths(data: bytes, head: Ints) -> tuple[Ints, Ints]:
    """Return where messages start and end, whose lengths take one or two bytes.

    Args:
        head: int64[n], the positions of the tags.
    """
    raw = np.frombuffer(data, np.uint8)
    low = raw[head + 1].astype(np.int64)
    high = raw[head + 2].astype(np.int64)
    has_two = low >= 0x80
    start = head + 2 + has_two
    size = np.where(has_two, low - 0x80 + (high << 7), low)
    return start, start + size


class ByteBlock:
    """A range of bytes in which many positions are read at once.

    Args:
        data: the bytes.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        size = (len(data) + _PADDING) // 8 * 8
        padded = np.zeros(size, np.uint8)
        padded[: len(data)] = np.frombuffer(data, np.uint8)
        self._words = padded.view("<u8")
        self._last = len(self._words) - 2

    def words(self, position: Ints) -> _Words:
        """Return uint64[n]: the eight bytes at each position, little endian, with zeros past the
        end.
        """
        index = np.minimum(position >> 3, self._last)
        shift = ((position & 7) << 3).view(np.uint64)
        low = self._words[index] >> shift
        # in two steps, because a word cannot be shifted by 64 bits
        next_word = self._words[index + 1] << np.uint64(1)
        high = next_word << (np.uint64(63) - shift)
        words: _Words = low | high
        return words

    def varints(self, position: Ints) -> tuple[Ints, Ints]:
        """Return the base-128 integer at each position.

        Returns:
            int64[n] values (64-bit two's complement), and int64[n] byte counts.
        """
        words = self.words(position)
        if not (words & _FIRST_HIGH_BIT).any():
            ones = np.ones(len(position), np.int64)
            return (words & _FIRST_BITS).view(np.int64), ones
        value, count = _first_varint(words)
        long = np.flatnonzero(count == 0)
        if len(long):
            # the ninth byte holds seven bits, and a tenth byte one
            rest = self.words(position[long] + 8)
            has_tenth = (rest & _FIRST_HIGH_BIT) != 0
            tenth = (rest >> np.uint64(8) & np.uint64(1)) << np.uint64(63)
            tenth[~has_tenth] = 0
            ninth = (rest & _FIRST_BITS) << np.uint64(56)
            value[long] = _compact(words[long]) | ninth | tenth
            count[long] = np.where(has_tenth, 10, 9)
        return value.view(np.int64), count

    def tagged(self, position: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the tag at each position and the integer after it.

        Returns:
            int64[n] tags, integers, starts of the integers, ends of the integers.
        """
        words = self.words(position)
        if (words & _FIRST_HIGH_BIT).any():
            tag, size = self.varints(position)
            start = position + size
            value, count = self.varints(start)
            return tag, value, start, start + count
        tag = (words & _FIRST_BITS).view(np.int64)
        start = position + 1
        # seven bytes and a zero; an integer of more than seven bytes gets the count 8
        rest = words >> np.uint64(8)
        if not (rest & _FIRST_HIGH_BIT).any():
            return tag, (rest & _FIRST_BITS).view(np.int64), start, start + 1
        unsigned, count = _first_varint(rest)
        value = unsigned.view(np.int64)
        long = np.flatnonzero(count == 8)
        if len(long):
            value[long], count[long] = self.varints(start[long])
        return tag, value, start, start + count


def _first_varint(words: _Words) -> tuple[_Words, Ints]:
    """Return the integer at the start of each word, and its byte count.

    The count is 0 if the integer does not end within the word.
    """
    stops = ~words & _HIGH_BITS
    stop = stops & (~stops + np.uint64(1))
    # stop is 0x80 << 8k; the product moves byte k of the constant, which is the count k + 1, to the
    # top
    count = ((stop >> np.uint64(7)) * np.uint64(0x0102030405060708)) >> np.uint64(56)
    return _compact(words & (stop | (stop - np.uint64(1)))), count.view(np.int64)


def _compact(words: _Words) -> _Words:
    """Join the low seven bits of each byte."""
    words = words & np.uint64(0x7F7F7F7F7F7F7F7F)
    words = (words & np.uint64(0x007F007F007F007F)) | (
        (words & np.uint64(0x7F007F007F007F00)) >> np.uint64(1)
    )
    words = (words & np.uint64(0x00003FFF00003FFF)) | (
        (words & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2)
    )
    return (words & np.uint64(0x000000000FFFFFFF)) | (
        (words & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4)
    )


class Cursors:
    """A cursor in each of n messages. `step` moves every cursor that is not at its end by one
    field.

    Attributes:
        which: int64[m], the messages whose field was just read.
        number: int64[m], field numbers.
        kind: int64[m], wire types.
        value: int64[m], the integer of a varint field; the start of a bytes field; else 0.
        end: int64[m], the end of the field.
    """

    def __init__(self, block: ByteBlock, start: Ints, end: Ints) -> None:
        self._block = block
        self._position = start
        self._limit = end
        self._which = np.arange(len(start))

    def step(self) -> bool:
        """Read the next field of each message that has one. Return False if all are at their
        end.
        """
        more = self._position < self._limit
        if not more.all():
            self._position = self._position[more]
            self._limit = self._limit[more]
            self._which = self._which[more]
        if len(self._position) == 0:
            return False
        tag, value, start, end = self._block.tagged(self._position)
        if (tag < 8).any():
            raise DamagedError("a field without a number")
        kind = tag & 7
        if not (kind == VARINT).all():
            value, end = _placed(kind, value, start, end)
        if (end > self._limit).any() or (end < start).any():
            raise DamagedError("a field ends behind its message")
        self.which = self._which
        self.number = tag >> 3
        self.kind = kind
        self.value = value
        self.end = end
        self._position = end
        return True


def _placed(kind: Ints, value: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return value and end of fields of several wire types, as `Cursors` has them.

    Args:
        kind: int64[n], wire types.
        value, start, end: int64[n], the integer after each tag, its start and its end.
    """
    is_bytes = kind == BYTES
    is_fixed = (kind == FIXED64) | (kind == FIXED32)
    is_known = is_bytes | is_fixed | (kind == VARINT)
    if not is_known.all() or (value[is_bytes] < 0).any():
        raise DamagedError("a field of an unknown wire type")
    if is_bytes.all():
        return end, end + value
    begin = np.where(is_bytes, end, value)
    behind = np.where(is_bytes, end + value, end)
    width = np.where(kind == FIXED64, 8, 4)
    return (
        np.where(is_fixed, start, begin),
        np.where(is_fixed, start + width, behind),
    )


# events decoded together; their working arrays fit into the processor's cache
BLOCK_EVENTS = 1 << 15

MAX_TIME_NS = 1 << 62
"""Largest start time of a line in ns: 146 years after 1970. With this limit no sum of times
overflows.
"""

ABSENT, INTEGER, REFERENCE, TEXT, OTHER = 0, 1, 2, 3, 4
_FORM = np.full((9, 8), OTHER, np.uint8)
"""The form of an XStat field, by field number (those above 7 share a row) and wire type."""
_FORM[3:5, VARINT], _FORM[5, BYTES], _FORM[7, VARINT] = INTEGER, TEXT, REFERENCE

_METADATA_ID, _OFFSET, _DURATION, _STATS = 1, 2, 3, 4


@dataclass(frozen=True)
class Stat:
    """One stat of n events.

    For each event, `form` says what `value` is: absent, an integer, or the id of a stat metadata
    whose name is the value. Else it is the start of a string in the data, which ends at `end`, or
    something else.
    """

    form: npt.NDArray[np.uint8]
    value: Ints
    end: Ints

    @property
    def integers(self) -> Ints:
        """Return int64[n]: the integers; 0 if the value is something else."""
        is_integer = self.form == INTEGER
        return self.value if is_integer.all() else np.where(is_integer, self.value, 0)


@dataclass(frozen=True)
class Events:
    """Events of one line, n rows in file order."""

    metadata: Ints  # int64[n], ids of event metadata
    offset_ps: Ints  # int64[n], since the timestamp of the line
    duration_ps: Ints  # int64[n]
    stats: Mapping[str, Stat]  # by stat name, for every requested stat

    def __len__(self) -> int:
        return len(self.metadata)

    def times_ns(self, origin_ns: int) -> tuple[Ints, Ints]:
        """Return int64[n] starts and int64[n] durations in ns.

        Args:
            origin_ns: timestamp of the line.

        Raises:
            DamagedError: the line has a time that 64 bits cannot hold.
        """
        if not -MAX_TIME_NS < origin_ns < MAX_TIME_NS:
            raise DamagedError("a line with an impossible time")
        return origin_ns + self.offset_ps // 1000, self.duration_ps // 1000


def read_events(
    data: bytes, starts: Ints, ends: Ints, wanted: Sequence[str], ids: Mapping[str, int]
) -> Iterator[Events]:
    """Decode XEvents in blocks.

    Args:
        data: the bytes of the file.
        starts, ends: int64[n], positions of the events in it, in order.
        wanted: names of the stats to read.
        ids: stat metadata ids by name.

    Raises:
        DamagedError: an event is not well-formed.
    """
    known = {ids[name]: slot for slot, name in enumerate(wanted) if name in ids}
    slots = np.full(max(known, default=0) + 2, -1, np.int64)
    for identity, slot in known.items():
        slots[identity] = slot
    for first in range(0, len(starts), BLOCK_EVENTS):
        rows = slice(first, first + BLOCK_EVENTS)
        yield _decode(data, starts[rows], ends[rows], wanted, slots)


def _cursors(data: bytes, start: Ints, end: Ints) -> tuple[Cursors, ByteBlock, int]:
    """Make cursors for messages that lie in order.

    Returns:
        The cursors, the bytes of all messages, and the position of these bytes.
    """
    base = int(start[0])
    block = ByteBlock(memoryview(data)[base : int(end[-1])])
    return Cursors(block, start - base, end - base), block, base


def _decode(
    data: bytes, start: Ints, end: Ints, wanted: Sequence[str], slots: Ints
) -> Events:
    """Decode one block of XEvents.

    Args:
        data: the bytes of the file.
        start, end: int64[n], positions of the events in it, in order.
        wanted: names of the stats to read.
        slots: the index into `wanted` by stat metadata id; -1 for other stats.
    """
    cursors, block, base = _cursors(data, start, end)
    count = len(start)
    numbers = np.zeros((4, count), np.int64)
    form = np.zeros((len(wanted), count), np.uint8)
    value = np.zeros((len(wanted), count), np.int64)
    stop = np.zeros((len(wanted), count), np.int64)
    while cursors.step():
        number = cursors.number
        which = cursors.which
        values = cursors.value
        ends = cursors.end
        is_stat = number == _STATS
        if not is_stat.all():
            for wanted_field in (_METADATA_ID, _OFFSET, _DURATION):
                here = (number == wanted_field) & (cursors.kind == VARINT)
                numbers[wanted_field, which[here]] = values[here]
            if not is_stat.any():
                continue
            which = which[is_stat]
            values = values[is_stat]
            ends = ends[is_stat]
        if (cursors.kind[is_stat] != BYTES).any():
            raise DamagedError("a stat that is no message")
        slot, which, forms, values, ends = _stats(block, which, values, ends, slots)
        form[slot, which] = forms
        value[slot, which] = values
        stop[slot, which] = ends
    value[form == TEXT] += base
    stop += base
    stats = {name: Stat(form[i], value[i], stop[i]) for i, name in enumerate(wanted)}
    return Events(numbers[_METADATA_ID], numbers[_OFFSET], numbers[_DURATION], stats)


def _stats(
    block: ByteBlock, which: Ints, start: Ints, end: Ints, slots: Ints
) -> tuple[Ints, Ints, npt.NDArray[np.uint8], Ints, Ints]:
    """Return the wanted values of one XStat per event: slots, events, forms, values, ends of
    values.
    """
    cursors = Cursors(block, start, end)
    if not cursors.step():
        none = NO_ROWS
        return none, none, np.empty(0, np.uint8), none, none
    if len(cursors.which) != len(start) or not (cursors.number == _METADATA_ID).all():
        raise DamagedError("a stat that does not begin with its name")
    # the last slot is empty; it stands for ids that no wanted stat has
    slot = slots[cursors.value.clip(0, len(slots) - 1)]
    keep = np.flatnonzero(slot >= 0)
    slot = slot[keep]
    which = which[keep]
    cursors = Cursors(block, cursors.end[keep], end[keep])
    forms = np.zeros(len(keep), np.uint8)
    values = np.zeros(len(keep), np.int64)
    ends = np.zeros(len(keep), np.int64)
    while cursors.step():
        row = np.minimum(cursors.number, 8)
        forms[cursors.which] = _FORM[row, cursors.kind]
        values[cursors.which] = cursors.value
        ends[cursors.which] = cursors.end
    return slot, which, forms, values, ends


def read_pairs(data: bytes, start: int, end: int, number: int) -> tuple[Ints, Ints]:
    """Return the stats of a plane as (metadata id, integer value), int64[n] each.

    Scope ranges are stored like this.

    Raises:
        DamagedError: a stat is not well-formed.
    """
    starts, ends, _ = repeated(data, start, end, number)
    keys = np.zeros(len(starts), np.int64)
    values = np.zeros(len(starts), np.int64)
    for first in range(0, len(starts), BLOCK_EVENTS):
        rows = slice(first, first + BLOCK_EVENTS)
        cursors, _, _ = _cursors(data, starts[rows], ends[rows])
        while cursors.step():
            is_id = cursors.number == _METADATA_ID
            keys[first + cursors.which[is_id]] = cursors.value[is_id]
            is_value = (cursors.number == 3) | (cursors.number == 4)
            values[first + cursors.which[is_value]] = cursors.value[is_value]
    return keys, values


# names of GPU planes, with the number of the device in its process
_GPU = re.compile(r"/device:GPU:(.*)", re.S)
HOST_PLANE = "/host:CPU"
METADATA_PLANE = "/host:metadata"
SCOPE_PLANE = "/host:__ScopeRangeCallStack__"
ENVIRONMENT_PLANE = "Task Environment"
"""The plane with the environment of the process, which may hold secrets. pgle reads only
`PROFILE_START`.
"""

PROFILE_START = "profile_start_time"
"""The stat with the wall clock in ns since 1970 from which the times of all lines count
(`SetSessionTimestamps` in `xla/tsl/profiler/utils/timestamp_utils.cc`).
"""

# fields of an XSpace
_PLANES = 1
_ERRORS = 2
_WARNINGS = 3
_HOSTNAMES = 4
# fields of an XPlane, and the wire type of each
_NAME = 2
_LINES = 3
_PLANE_KINDS = {1: VARINT, 2: BYTES, 3: BYTES, 4: BYTES, 5: BYTES, 6: BYTES}
_FIRST = re.compile(
    rb"[\x12\x1a\x22]|\x0a(?:\x00|[\x80-\xff]{0,9}[\x01-\x7f](?:[\x08\x12\x1a\x22\x2a\x32]|$))"
)
"""Matches a text or a plane. A plane is empty or begins with one of its fields."""


class NotXplaneError(ValueError):
    """The bytes are not an xplane file."""


@dataclass(frozen=True)
class Plane:
    """One plane."""

    name: str  # ``/device:GPU:0``
    span: tuple[int, int]  # start and end (exclusive) in the file
    lines: tuple[tuple[int, int], ...]  # start and end of each line
    # all fields except the lines; empty for planes that are skipped or read otherwise
    rest: xplane_pb2.XPlane

    @property
    def gpu(self) -> int | None:
        """The number of the GPU in its process; -1 if the name has no number; None for other
        planes.
        """
        found = _GPU.fullmatch(self.name)
        if found is None:
            return None
        return int(found[1]) if found[1].isdecimal() else -1

    @cached_property
    def stat_ids(self) -> Mapping[str, int]:
        """Stat metadata ids by name."""
        return {
            item.name: identity for identity, item in self.rest.stat_metadata.items()
        }

    def stat_value(self, name: str) -> int | None:
        """Return the integer value of one of the plane's own stats."""
        stat = self._stat(name)
        return None if stat is None else int(stat.int64_value or stat.uint64_value)

    def stat_word(self, name: str) -> str:
        """Return the string value of one of the plane's own stats; empty if absent."""
        stat = self._stat(name)
        return "" if stat is None else stat.str_value

    def _stat(self, name: str) -> xplane_pb2.XStat | None:
        """Return one of the plane's own stats by name; None if absent."""
        names = self.rest.stat_metadata
        return next(
            (stat for stat in self.rest.stats if names[stat.metadata_id].name == name),
            None,
        )


@dataclass(frozen=True)
class Space:
    """One file: its planes, the host that recorded it, and the profiler's complaints."""

    planes: tuple[Plane, ...]
    hostname: str
    messages: tuple[str, ...]


def may_begin(head: bytes) -> bool:
    """Whether a serialized XSpace may begin with these bytes."""
    return _FIRST.match(head) is not None


def read_space(data: bytes) -> Space:
    """Read the planes of a serialized XSpace.

    Raises:
        NotXplaneError: the bytes are another format.
        DamagedError: the bytes are truncated or overwritten.
    """
    planes: list[Plane] = []
    texts: dict[int, list[str]] = {_ERRORS: [], _WARNINGS: [], _HOSTNAMES: []}
    try:
        for number, kind, start, end, _ in fields(data, 0, len(data)):
            if kind == BYTES and number == _PLANES:
                planes.append(_plane(data, start, end))
            elif kind == BYTES and number in texts:
                texts[number].append(data[start:end].decode(errors="replace"))
            else:
                raise NotXplaneError
    except DamagedError:
        if not planes and not _begins_with_plane(data):
            raise NotXplaneError from None
        raise
    if not planes:
        raise NotXplaneError
    hostname = next(iter(texts[_HOSTNAMES]), "")
    messages = (*texts[_ERRORS], *texts[_WARNINGS])
    return Space(tuple(planes), hostname, messages)


def _begins_with_plane(data: bytes) -> bool:
    """Whether the first bytes are an XPlane's id or name. Other truncated files begin
    differently.
    """
    head = re.match(
        rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?\x12.([/A-Z#])",
        data[:64],
        re.S,
    )
    return head is not None


def _plane(data: bytes, start: int, end: int) -> Plane:
    """Read a plane from its bytes in the file. The events of its lines stay encoded."""
    name = ""
    lines: list[tuple[int, int]] = []
    rest: list[bytes] = []
    kept_from = start
    for number, kind, value, after, begin in fields(data, start, end):
        if _PLANE_KINDS.get(number, kind) != kind:
            raise NotXplaneError
        if number == _NAME:
            name = data[value:after].decode(errors="replace")
            if name in (ENVIRONMENT_PLANE, SCOPE_PLANE):
                return Plane(name, (start, end), (), xplane_pb2.XPlane())
        elif number == _LINES:
            lines.append((value, after))
            rest.append(data[kept_from:begin])
            kept_from = after
    rest.append(data[kept_from:end])
    try:
        read = xplane_pb2.XPlane.FromString(b"".join(rest))
    except DecodeError:
        raise DamagedError(
            f"the metadata of plane {name!r} at byte {start:,} cannot be read"
        ) from None
    return Plane(name, (start, end), tuple(lines), read)


def profile_start_ns(space: Space, data: bytes) -> int | None:
    """Return the wall clock in ns since 1970 at time 0 of the lines; None if the file lacks it."""
    for plane in space.planes:
        if plane.name != ENVIRONMENT_PLANE:
            continue
        start, end = plane.span
        try:
            read = xplane_pb2.XPlane.FromString(data[start:end])
        except DecodeError:
            return None
        return replace(plane, rest=read).stat_value(PROFILE_START) or None
    return None


def embedded_hlo(plane: Plane) -> dict[ModuleKey, bytes]:
    """Return the HloProtos of ``/host:metadata``.

    Each event metadata holds one in any of its stats, and has the name ``MODULE(ID)``.
    """
    found: dict[ModuleKey, bytes] = {}
    for item in plane.rest.event_metadata.values():
        for stat in item.stats:
            proto = stat.bytes_value
            key = _module_key(item.name, proto) if proto else None
            if key is not None:
                found[key] = proto
    return found


def _module_key(name: str, proto: bytes) -> ModuleKey | None:
    """Return the executable of an HloProto from its name ``MODULE(ID)``, else from the proto.

    None if neither can be read.
    """
    named = re.fullmatch(r"(.*)\((\d+)\)", name, re.S)
    if named is not None:
        return ModuleKey(named[1], int(named[2]))
    try:
        module = hlo_pb2.HloProto.FromString(proto).hlo_module
    except DecodeError:
        return None
    return ModuleKey(module.name or name, module.id or None)


# limit on metadata ids, which index tables here; writers count them from 1
MAX_ID = 1 << 24


@dataclass
class Strings:
    """String stats of one plane as codes. Each reference is looked up once."""

    plane: Plane
    codes: dict[str, int]  # the code of each string; new strings are added
    # int32[m], the code by the id of a stat metadata; -2 until it is looked up
    table: npt.NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        largest = max(self.plane.rest.stat_metadata, default=0)
        if not 0 <= largest < MAX_ID:
            raise DamagedError(
                f"plane {self.plane.name!r} has stat metadata number {largest:,}"
            )
        self.table = np.full(largest + 2, -2, np.int32)

    def codes_of(self, stat: Stat, data: bytes) -> npt.NDArray[np.int32]:
        """Return int32[n]: the code of each event's string; -1 if the event has none."""
        is_reference = stat.form == REFERENCE
        if is_reference.all():
            return self._looked_up(stat.value)
        out = np.full(len(stat.form), -1, np.int32)
        out[is_reference] = self._looked_up(stat.value[is_reference])
        for i in np.flatnonzero(stat.form == TEXT).tolist():
            text = data[int(stat.value[i]) : int(stat.end[i])].decode(errors="replace")
            out[i] = self._code(text)
        return out

    def _looked_up(self, reference: Ints) -> npt.NDArray[np.int32]:
        """Return int32[n]: the code of the name of each stat metadata."""
        # the last row of the table stands for ids that the plane does not have
        no_name = len(self.table) - 1
        row = reference.clip(0, no_name)
        is_new = self.table[row] == -2
        if is_new.any():
            for identity in distinct(row[is_new]).tolist():
                name = ""
                if identity < no_name:
                    name = self.plane.rest.stat_metadata[identity].name
                self.table[identity] = self._code(name)
        codes: npt.NDArray[np.int32] = self.table[row]
        return codes

    def _code(self, name: str) -> int:
        """Return the code of a string; -1 for an empty one."""
        return self.codes.setdefault(name, len(self.codes)) if name else -1
