"""Collectives are told by opcode and wrapped computation: real dumps of two generations, where
names mislead.
"""

from pathlib import Path

import pytest

from pgle.xla.async_pairs import async_pairs, result_shape, start_of
from pgle.xla.collectives import collective_kind, group_size, is_sync, walk_collectives
from pgle.xla.hlo.dumps import read_module, read_modules
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape
from pgle.xla.hlo.text import module_from_text
from pgle.xla.host_copies import is_host_copy

PAX = Path(__file__).parents[2] / "testdata" / "pax_fsdp4" / "proc0" / "dump"


def operand_bytes(module: Module, instruction: Instruction) -> int:
    """Bytes of all operands of an operation."""
    return sum(
        module.instructions[name].shape.size_bytes for name in instruction.operands
    )


@pytest.fixture
def one_of_each(dumps: Path) -> Module:
    (module,) = read_modules(dumps / "collectives")
    return module


def test_every_kind_is_found_once_whatever_its_name(one_of_each: Module) -> None:
    kinds = sorted(kind for _, kind in walk_collectives(one_of_each))
    assert kinds == [
        "all-gather",
        "all-reduce",
        "all-to-all",
        "collective-broadcast",
        "collective-permute",
        "reduce-scatter",
    ]


def test_bytes_and_groups_are_those_of_the_program(one_of_each: Module) -> None:
    """16 x 64 floats per device, gathered over 4 devices and scattered again."""
    found = {
        kind: (
            operand_bytes(one_of_each, item),
            result_shape(one_of_each, item).size_bytes,
        )
        for item, kind in walk_collectives(one_of_each)
    }
    assert found["all-gather"] == (4096, 16384) or found["all-gather"] == (
        8192,
        32768,
    )  # one gather, or two combined
    assert found["reduce-scatter"] == (16384, 4096)
    assert (
        found["all-to-all"]
        == found["collective-permute"]
        == found["all-reduce"]
        == (4096, 4096)
    )
    assert {
        group_size(one_of_each, item) for item, _ in walk_collectives(one_of_each)
    } == {4}


def test_a_start_and_its_done_are_one_operation(dumps: Path) -> None:
    (module,) = read_modules(dumps / "async")
    for pair in async_pairs(module):
        start, done = module.instructions[pair.start], module.instructions[pair.done]
        assert done.opcode == start.opcode.replace("start", "done")
        assert result_shape(module, start) == done.shape


def test_synchronous_collectives_are_marked_or_plain(dumps: Path) -> None:
    (module,) = read_modules(dumps / "sync")
    assert all(is_sync(module, item) for item, _ in walk_collectives(module))
    (module,) = read_modules(dumps / "async")
    assert [is_sync(module, item) for item, _ in walk_collectives(module)].count(
        True
    ) == 1


def test_both_forms_of_a_program_have_the_same_collectives(dumps: Path) -> None:
    def census(run: str) -> list[tuple[object, ...]]:
        (module,) = read_modules(dumps / run)
        return sorted(
            (
                kind,
                (module.wrapped(item) or item).channel_id,
                operand_bytes(module, item),
                result_shape(module, item).size_bytes,
                group_size(module, item),
            )
            for item, kind in walk_collectives(module)
        )

    assert census("async") == census("sync") == census("off")


def test_the_real_step_has_its_twenty_three_collectives() -> None:
    module = read_module(
        PAX
        / "module_0040.pjit__wrapped_step_fn.sm_8.0_gpu_after_optimizations.hlo.pb.xz"
    )
    found = {
        item.name: operand_bytes(module, item) for item, _ in walk_collectives(module)
    }
    assert len(found) == 23
    # as in testdata/pax_fsdp4/README.md
    assert found["all-gather-start"] == 19316736
    assert found["all-gather-start.9"] == 175632
    assert found["reduce-scatter-start"] == 70889472


def module_of(*instructions: Instruction) -> Module:
    return Module(
        "m",
        0,
        "",
        "main",
        {"main": Computation("main", instructions, instructions[-1].name)},
        True,
    )


def make(
    name: str, opcode: str, *operands: str, shape: Shape | None = None, **fields: object
) -> Instruction:
    return Instruction(
        name, opcode, shape or Shape("f32", (4,)), "main", operands, **fields
    )  # type: ignore[arg-type]


def test_a_send_to_the_host_is_no_collective() -> None:
    module = module_of(make("s", "send", is_host_transfer=True))
    assert collective_kind(module, module.instructions["s"]) is None


def test_a_done_whose_handle_a_loop_carries_finds_its_start_by_channel() -> None:
    handle = make("h", "get-tuple-element", "p", tuple_index=0)
    module = module_of(
        make("p", "parameter"),
        handle,
        make("d", "recv-done", "h", channel_id=7),
        make("r", "recv", "p", channel_id=7),
        make("s", "send", "p", channel_id=7),
    )
    start = start_of(module, module.instructions["d"])
    assert start is not None
    assert start.name == "r"


def test_an_all_reduce_of_two_arrays_keeps_both_results() -> None:
    both = Shape("tuple", (), (Shape("f32", (4,)), Shape("f32", (8,))))
    module = module_of(
        make("p", "parameter"), make("s", "all-reduce-start", "p", "p", shape=both)
    )
    assert result_shape(module, module.instructions["s"]) == both


def test_a_copy_to_the_host_is_an_offload_and_no_collective() -> None:
    host = Shape("f32", (4,), (), 5)
    shape = Shape("tuple", (), (host, Shape("f32", (4,)), Shape("u32")))
    module = module_of(
        make("p", "parameter"),
        make("s", "copy-start", "p", shape=shape),
        make("d", "copy-done", "s"),
    )
    (pair,) = async_pairs(module)
    assert (pair.kind, pair.is_collective) == ("copy", False)
    assert is_host_copy(module, module.instructions["s"])
    assert not is_host_copy(module, module.instructions["p"])


def test_updates_that_lead_in_a_circle_have_no_start() -> None:
    text = b"HloModule m\n\nENTRY %e () -> f32[] {\n  %u = f32[] async-update(%u)\n  ROOT %d = f32[] async-done(%u)\n}\n"
    module = module_from_text(text, "m.txt")
    assert start_of(module, module.instructions["d"]) is None
    assert async_pairs(module) == ()
