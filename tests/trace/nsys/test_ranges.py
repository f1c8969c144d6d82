"""The vectorised forest against a walk over each range."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nsys_export import create

from pgle.trace.nsys import ranges as nsys_ranges
from pgle.trace.nsys.ranges import Lookup, read_ranges
from pgle.trace.nsys.tables import Tables
from pgle.trace.table import LeftOutReason

TEXTS = (
    "Thunk:#hlo_op=a#",
    "XlaModule:#hlo_module=m,program_id=1#",
    "XlaModule:#hlo_module=tuned#",
    "XlaAutotunerMeasurement:#hlo_op=a#",
    "not of XLA",
)
Range = tuple[int, int, int, str]
"""(thread, start, end, text)"""


@st.composite
def forests(draw: st.DrawFn) -> list[Range]:
    """Push/pop ranges of two threads; a range may begin in the nanosecond in which another ends."""
    found: list[Range] = [(1, -5, -1, TEXTS[0])]
    for thread in (1, 2):
        clock, popped = 0, False
        stack: list[tuple[int, str]] = []
        for text in draw(st.lists(st.sampled_from(TEXTS) | st.none(), max_size=25)):
            clock += draw(st.integers(0 if popped and text else 1, 3))
            popped = text is None
            if text is not None:
                stack.append((clock, text))
            elif stack:
                start, opened = stack.pop()
                found.append((thread, start, clock, opened))
        while stack:
            clock += 1
            start, opened = stack.pop()
            found.append((thread, start, clock, opened))
    return draw(st.permutations(found))


def expected(ranges: list[Range], thread: int, at: int) -> int | str:
    """Start of the thunk that owns a call, or why none does, by looking at every range."""
    mine = [item for item in ranges if item[0] == thread and item[3] != "not of XLA"]
    around = sorted(
        (item for item in mine if item[1] <= at <= item[2]),
        key=lambda item: (item[1], -item[2]),
    )
    # where one range ends as another begins, the call is in the latter
    around = [
        item
        for item in around
        if item[2] > at or not any(other[1] == at for other in mine)
    ]
    texts = [item[3] for item in around]
    if not texts:
        return LeftOutReason.NO_RANGE.word
    if TEXTS[3] in texts or TEXTS[2] in texts:
        return LeftOutReason.AUTOTUNER.word
    if TEXTS[0] not in texts:
        return LeftOutReason.NO_THUNK.word
    thunk = max(number for number, text in enumerate(texts) if text == TEXTS[0])
    return (
        around[thunk][1] if TEXTS[1] in texts[:thunk] else LeftOutReason.NO_MODULE.word
    )


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(forests(), st.sampled_from([1, 3, nsys_ranges.BLOCK]))
def test_owners_are_those_that_a_search_of_all_ranges_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: list[Range], block: int
) -> None:
    monkeypatch.setattr(nsys_ranges, "BLOCK", block)
    path = tmp_path / "x.sqlite"
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.execute(create("NVTX_EVENTS"))
        database.execute(create("StringIds"))
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(TEXTS))
        database.executemany(
            "INSERT INTO NVTX_EVENTS (globalTid, start, end, textId, eventType) VALUES (?, ?, ?, ?, 59)",
            [(*item[:3], TEXTS.index(item[3])) for item in ranges],
        )
    tables = Tables(path)
    found = read_ranges(tables, lambda rows: None)
    tables.close()
    for thread in (1, 2, 3):
        times = np.arange(-7, 80)
        thunks, reasons = found.owners(np.full(len(times), thread), times)
        # the start of each thunk, ordered like the thunks
        starts = [
            start
            for *_, start in sorted(
                (t, s, -e, s) for t, s, e, text in ranges if text == TEXTS[0]
            )
        ]
        for at, thunk, reason in zip(
            times.tolist(), thunks.tolist(), reasons.tolist(), strict=True
        ):
            assert (
                LeftOutReason(reason).word if reason else starts[thunk]
            ) == expected(ranges, thread, at)


@pytest.mark.parametrize("spread", [1, 10**12])
def test_a_lookup_finds_the_last_of_equal_keys(spread: int) -> None:
    keys = np.array([5, 9, 5, 7]) * spread
    lookup = Lookup(keys, np.arange(4, dtype=np.int32), -1)
    assert lookup(
        np.array([5, 6, 7, 9, -(2**62), 2**62]) * np.array([spread] * 4 + [1, 1])
    ).tolist() == [
        2,
        -1,
        3,
        1,
        -1,
        -1,
    ]


def test_an_empty_lookup_knows_nothing() -> None:
    empty = np.zeros(0, np.int64)
    assert Lookup(empty, empty.astype(np.int32), -3)(np.array([1, 2])).tolist() == [
        -3,
        -3,
    ]
