"""The vectorised decoder against the protobuf runtime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgle.trace.xplane.planes import (
    ABSENT,
    INTEGER,
    REFERENCE,
    TEXT,
    ByteBlock,
    DamagedError,
    fields,
    read_events,
    read_pairs,
    repeated,
    signed,
)
from pgle.xla.protos import xplane_pb2


def varint(value: int) -> bytes:
    """One whole number in base 128."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def length_delimited(number: int, content: bytes) -> bytes:
    """A field of a message: bytes, a string or a nested message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
SMALL = st.integers(1, 300)
TEXTS = st.text(max_size=5)


def stats() -> st.SearchStrategy[xplane_pb2.XStat]:
    value = st.one_of(
        st.builds(lambda v: {"int64_value": v}, INT64),
        st.builds(lambda v: {"uint64_value": v}, st.integers(0, (1 << 64) - 1)),
        st.builds(lambda v: {"ref_value": v}, SMALL),
        st.builds(lambda v: {"str_value": v}, TEXTS),
        st.builds(lambda v: {"double_value": v}, st.floats(allow_nan=False)),
        st.builds(lambda v: {"bytes_value": v}, st.binary(max_size=200)),
    )
    return st.builds(
        lambda key, v: xplane_pb2.XStat(metadata_id=key, **v), SMALL, value
    )


EVENTS = st.lists(
    st.builds(
        xplane_pb2.XEvent,
        metadata_id=st.integers(0, 1 << 40),
        offset_ps=st.integers(0, 1 << 62),
        duration_ps=st.integers(0, 1 << 62),
        stats=st.lists(stats(), max_size=5),
    ),
    min_size=1,
    max_size=8,
)


@given(st.lists(INT64, min_size=1))
def test_integers_of_any_size(values: list[int]):
    encoded = [varint(value & (1 << 64) - 1) for value in values]
    data = b"".join(encoded)
    position = np.cumsum([0, *map(len, encoded)])[:-1]
    found, sizes = ByteBlock(data).varints(position.astype(np.int64))
    assert found.tolist() == values
    assert sizes.tolist() == [len(item) for item in encoded]


@given(EVENTS)
def test_events_are_those_of_the_protobuf_runtime(events: list[xplane_pb2.XEvent]):
    data = xplane_pb2.XLine(
        id=3, name="Stream", timestamp_ns=5, events=events
    ).SerializeToString()
    starts, ends, others = repeated(data, 0, len(data), 4)
    assert [number for number, *_ in others] == [1, 2, 3]
    (found,) = read_events(data, starts, ends, ["a", "b"], {"a": 7, "b": 200})
    assert found.metadata.tolist() == [event.metadata_id for event in events]
    assert found.offset_ps.tolist() == [event.offset_ps for event in events]
    assert found.duration_ps.tolist() == [event.duration_ps for event in events]
    for name, key in (("a", 7), ("b", 200)):
        column = found.stats[name]
        for i, event in enumerate(events):
            last = next(
                (stat for stat in reversed(event.stats) if stat.metadata_id == key),
                None,
            )
            if last is None:
                assert column.form[i] == ABSENT
            elif last.WhichOneof("value") in ("int64_value", "uint64_value"):
                assert column.form[i] == INTEGER
                assert column.value[i] == signed(last.int64_value or last.uint64_value)
            elif last.WhichOneof("value") == "ref_value":
                assert (column.form[i], column.value[i]) == (REFERENCE, last.ref_value)
            elif last.WhichOneof("value") == "str_value":
                assert column.form[i] == TEXT
                assert data[column.value[i] : column.end[i]].decode() == last.str_value


def test_scope_pairs_in_either_order():
    pairs = [b"\x08\x05\x20\x09", b"\x20\x09\x08\x05", b"\x08\x05"]
    plane = b"".join(length_delimited(6, pair) for pair in pairs)
    keys, values = read_pairs(plane, 0, len(plane), 6)
    assert (keys.tolist(), values.tolist()) == ([5, 5, 5], [9, 9, 0])


def test_a_stat_that_begins_with_its_value_is_damage():
    event = length_delimited(
        4, b"\x20\x2a\x08\x07"
    )  # int64_value 42, then metadata_id 7
    data = length_delimited(4, event)
    starts, ends, _ = repeated(data, 0, len(data), 4)
    with pytest.raises(DamagedError, match="begin with its name"):
        list(read_events(data, starts, ends, ["a"], {"a": 7}))


def test_a_stat_that_is_a_number_is_damage():
    data = length_delimited(4, b"\x20\x05")  # field 4 of an XEvent as an integer
    starts, ends, _ = repeated(data, 0, len(data), 4)
    with pytest.raises(DamagedError, match="no message"):
        list(read_events(data, starts, ends, ["a"], {"a": 7}))


@pytest.mark.parametrize(
    "data",
    [b"\x0a\x05ab", b"\x08\xff\xff", b"\x0b", b"\x09\x00", b"\x08" + b"\xff" * 11],
)
def test_fields_that_do_not_fit_are_damage(data: bytes):
    with pytest.raises(DamagedError):
        list(fields(data, 0, len(data)))
