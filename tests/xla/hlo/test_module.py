"""Shapes, calls and trip counts of modules."""

import pytest

from pgle.xla.hlo.module import (
    Computation,
    Instruction,
    Module,
    Shape,
    backend_config,
    known_trip_count,
)

F32 = Shape("f32", (4,))


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (Shape("bf16", (3, 5)), 30),
        (Shape("s4", (3,)), 2),
        (Shape("token"), 0),
        (
            Shape(
                "tuple", (), (Shape("f32"), Shape("tuple", (), (Shape("u8", (3,)),)))
            ),
            7,
        ),
    ],
)
def test_bytes_of_shapes(shape: Shape, size: int) -> None:
    assert shape.size_bytes == size


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ('{"known_trip_count":{"n":"12"}}', 12),
        ('{"known_trip_count":{"n":12}}', 12),
        ('{"known_trip_count":{}}', None),
        ('{"known_trip_count":"many"}', None),
        ("{not json", None),
        ("MLIR text of a custom call", None),
        ("", None),
    ],
)
def test_trip_counts(config: str, count: int | None) -> None:
    assert (
        known_trip_count(Instruction("w", "while", F32, "main", backend_config=config))
        == count
    )


def test_a_backend_config_that_is_no_object_is_empty() -> None:
    assert (
        backend_config(Instruction("w", "while", F32, "main", backend_config="[1]"))
        == {}
    )


def test_an_update_wraps_what_its_start_wraps() -> None:
    inner = Instruction("r", "reduce-scatter", F32, "wrapped")
    main = (
        Instruction("s", "async-start", F32, "main", called=("wrapped",)),
        Instruction("u", "async-update", F32, "main", ("s",)),
        Instruction("d", "async-done", F32, "main", ("u",)),
    )
    computations = {
        "wrapped": Computation("wrapped", (inner,), "r"),
        "main": Computation("main", main, "d"),
    }
    module = Module("m", 0, "", "main", computations, is_scheduled=True)
    assert {module.wrapped(item) for item in main} == {inner}
    assert module.callers == {"wrapped": (main[0],)}
    assert module.entry_computation.root == "d"
