"""What a test keeps of a compiled step, and how a difference is worded."""

from __future__ import annotations

from dataclasses import astuple

import msgspec
import pytest

from pgle.account.snapshot import (
    CollectiveFacts,
    Snapshot,
    changes,
    collectives_of,
    from_text,
    order_of,
    to_text,
)
from pgle.errors import UserError
from pgle.xla.hlo.text import module_from_text

KEPT = Snapshot(
    module="jit_step",
    target="h100-sxm",
    devices=8,
    jaxlib="0.10.2",
    step_us=5000.0,
    parts_us={"compute": 4800.0, "exposed communication": 200.0},
    memory_bytes=640 << 20,
    collectives={"all-gather over 8": CollectiveFacts(4, 128 << 20)},
    order="a",
)

STEP = """HloModule jit_step, is_scheduled=true, num_partitions=8

ENTRY main {
  p = f32[64]{0} parameter(0)
  gathered = f32[512]{0} all-gather(p), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, channel_id=1
  ROOT summed = f32[64]{0} all-reduce(p), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=add, channel_id=2
}

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}
"""


def test_a_snapshot_is_read_as_it_was_written() -> None:
    assert from_text(to_text(KEPT), "x.json") == KEPT


def test_another_file_is_no_baseline() -> None:
    with pytest.raises(
        UserError, match=r"^x.json: is not a baseline of pgle .*--pgle-update"
    ):
        from_text('{"step_us": "fast"}', "x.json")


def test_collectives_are_counted_by_kind_and_group() -> None:
    module = module_from_text(STEP.encode(), "step")
    assert collectives_of(module) == {
        "all-gather over 8": CollectiveFacts(1, 2048),
        "all-reduce over 4": CollectiveFacts(1, 256),
    }


def test_the_order_depends_on_collectives_and_on_no_name() -> None:
    lines = STEP.splitlines()
    lines[4], lines[5] = lines[5].replace("ROOT ", ""), lines[4]
    swapped = "\n".join(lines)
    renamed = STEP.replace("gathered", "weights")
    digests = [
        order_of(module_from_text(text.encode(), "step"))
        for text in (STEP, renamed, swapped)
    ]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("new", "line"),
    [
        ({}, None),
        ({"step_us": 5040.0}, None),
        ({"step_us": 5500.0}, ("step", "5.00 ms", "5.50 ms", "+10.0 %")),
        (
            {"parts_us": {"compute": 4800.0, "exposed communication": 400.0}},
            ("exposed communication", "0.20 ms", "0.40 ms", "+100.0 %"),
        ),
        ({"memory_bytes": 704 << 20}, ("memory", "640.0 MiB", "704.0 MiB", "+10.0 %")),
        ({"jaxlib": "0.12.0.1"}, ("jaxlib", "0.10.2", "0.12.0.1", "")),
        (
            {"collectives": {}},
            ("all-gather over 8", "4, 128.0 MiB", "none", "−100.0 %"),
        ),
        (
            {"collectives": {"all-gather over 8": CollectiveFacts(4, 4)}},
            ("all-gather over 8", "4, 128.0 MiB", "4, 4 bytes", "−100.0 %"),
        ),
        (
            {"collectives": {"all-gather over 8": CollectiveFacts(4, 128 << 30)}},
            ("all-gather over 8", "4, 128.0 MiB", "4, 131,072.0 MiB", "1,024 ×"),
        ),
        (
            {"order": "b"},
            (
                "order of collectives",
                "as kept",
                "another",
                "ranks of both versions cannot run together",
            ),
        ),
    ],
)
def test_a_difference_is_named(
    new: dict[str, object], line: tuple[str, ...] | None
) -> None:
    after = msgspec.structs.replace(KEPT, **new)
    assert [astuple(item) for item in changes(KEPT, after)] == ([line] if line else [])
