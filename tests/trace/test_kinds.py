"""Kinds of GPU activities: a new one is a member of the enum and a table of a reader, and nothing else."""

import numpy as np
import pytest

from pgle.trace.table import ActivityKind, count_kinds


@pytest.mark.parametrize("kind", ActivityKind)
def test_each_kind_has_words_for_people_and_for_streams(kind):
    assert kind.words
    assert kind.stream_word


def test_kinds_are_counted_by_value_and_not_by_their_order(monkeypatch):
    gap = 200  # a value far from the others, as a later schema may have it
    late = int.__new__(ActivityKind, gap)
    late._name_, late._value_, late.words = "GRAPH", gap, "graphs"
    monkeypatch.setitem(ActivityKind._value2member_map_, gap, late)
    found = count_kinds(np.array([gap, ActivityKind.MEMSET, gap], np.uint8))
    assert found == {ActivityKind.MEMSET: 1, late: 2}
    assert [kind.words for kind in found] == ["memsets", "graphs"]


def test_kinds_that_do_not_occur_are_left_out():
    assert count_kinds(np.empty(0, np.uint8)) == {}
