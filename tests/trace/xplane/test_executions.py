"""Executions and launches of xplane rows: by scope ranges, and by the order of instructions where
there are none.
"""

from __future__ import annotations

import numpy as np
import pytest

from pgle.trace.xplane.executions import (
    LaunchRows,
    Scopes,
    number_launches,
    schedule_places,
)
from pgle.xla.protos import hlo_pb2


def hlo(entry: list[str], *, loops: dict[str, list[str]] | None = None) -> bytes:
    """A module whose entry schedule is `entry`; `loops` gives the bodies of its while
    instructions.
    """
    module = hlo_pb2.HloModuleProto(name="m", entry_computation_id=1)
    computation = module.computations.add(id=1)
    # the dump order is not the schedule
    for place, name in sorted(enumerate(entry), reverse=True):
        instruction = computation.instructions.add(
            name=name, id=100 + place, opcode="fusion"
        )
        if loops and name in loops:
            instruction.opcode = "while"
            body = module.computations.add(id=1000 + place)
            instruction.called_computation_ids.append(body.id)
            for inner in loops[name]:
                body.instructions.add(name=inner, id=2000 + place)
    module.schedule.sequences[1].instruction_ids.extend(range(100, 100 + len(entry)))
    data: bytes = hlo_pb2.HloProto(hlo_module=module).SerializeToString()
    return data


def number(
    order: str,
    *,
    proto: bytes | None = None,
    kernels: str = "",
    scope: list[int] | None = None,
    tops: list[int] | None = None,
) -> tuple[list[int], list[int]]:
    """Executions and launches of activities given as one letter per instruction, in launch
    order.
    """
    names = sorted(set(order))
    n = len(order)
    rows = LaunchRows(
        device=np.zeros(n, np.int32),
        module=np.zeros(n, np.int32),
        instruction=np.array([names.index(letter) for letter in order], np.int32),
        start_ns=np.arange(n),
        kernel=np.array([ord(letter) for letter in kernels or order], np.int32),
        correlation=np.arange(n),
        scope=np.array(scope or [0] * n),
        top=np.array(tops or [0] * n),
    )
    execution, instance = number_launches(
        rows, names, {} if proto is None else {0: proto}
    )
    return execution.tolist(), instance.tolist()


def test_scope_ranges_tell_launches_and_executions():
    execution, instance = number("aabab", scope=[5, 5, 6, 8, 9], tops=[2, 2, 2, 7, 7])
    assert execution == [0, 0, 0, 1, 1]
    assert instance == [0, 0, 1, 2, 3]


def test_executions_are_numbered_by_time_not_by_scope_number():
    assert number("abab", scope=[30, 31, 10, 11], tops=[29, 29, 9, 9])[0] == [
        0,
        0,
        1,
        1,
    ]


def test_overlapping_executions_are_kept_apart_by_scope():
    assert number("abab", scope=[5, 8, 6, 9], tops=[2, 7, 2, 7])[0] == [0, 1, 0, 1]


def test_launches_by_scope_where_the_tree_is_missing():
    execution, instance = number("aaab", scope=[5, 5, 6, 7], proto=hlo(["a", "b"]))
    assert instance == [0, 0, 1, 2]
    assert execution == [0, 0, 0, 0]


def test_order_going_back_is_a_new_execution():
    assert number("abcabc", proto=hlo(["a", "b", "c"]))[0] == [0, 0, 0, 1, 1, 1]


def test_a_window_cut_at_both_ends():
    assert number("cabca", proto=hlo(["a", "b", "c"]))[0] == [0, 1, 1, 1, 2]


def test_iterations_of_a_loop_are_no_executions():
    proto = hlo(["a", "w", "d"], loops={"w": ["b", "c"]})
    assert number("abcbcbcdabcbcbcd", proto=proto)[0] == [0] * 8 + [1] * 8


def test_a_loop_of_one_instruction_launches_it_again_and_again():
    proto = hlo(["a", "w"], loops={"w": ["b"]})
    execution, instance = number("abbbabbb", proto=proto)
    assert execution == [0] * 4 + [1] * 4
    assert len(set(instance)) == 8


def test_kernels_of_different_names_are_one_launch():
    execution, instance = number("aaaa", kernels="xyxy", proto=hlo(["a"]))
    assert instance == [0, 0, 1, 1]
    assert execution == [0, 0, 1, 1]


def test_the_same_kernel_twice_in_a_larger_module_is_no_new_execution():
    execution, _ = number("aabaab", proto=hlo(["a", "b"]))
    assert execution == [0, 0, 0, 1, 1, 1]


def test_without_hlo_frequent_instructions_are_loop_bodies():
    assert number("abcbcbcdabcbcbcd")[0] == [0] * 8 + [1] * 8


def test_instructions_that_the_hlo_does_not_hold_stand_with_their_neighbours():
    assert number("abxabx", proto=hlo(["a", "b"]))[0] == [0, 0, 0, 1, 1, 1]


def test_outermost_scope_over_several_levels():
    scopes = Scopes(np.array([5, 4, 3]), np.array([4, 3, 2]))
    assert scopes.outermost(np.array([5, 3, 2, 9])).tolist() == [2, 2, 2, 9]


def test_a_cycle_of_scopes_ends():
    assert Scopes(np.array([1, 2]), np.array([2, 1])).outermost(
        np.array([1])
    ).tolist() in (
        [1],
        [2],
    )


@pytest.mark.parametrize(
    "data", [b"\xff\xff", b"", hlo_pb2.HloProto().SerializeToString()]
)
def test_unreadable_hlo_gives_no_places(data: bytes):
    assert schedule_places(data) == {}
