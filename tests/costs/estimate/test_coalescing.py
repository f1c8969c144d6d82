"""How fusions read memory, with the sectors that hardware moves as referee."""

import math

import pytest

from pgle.costs.estimate.coalescing import LINE_BYTES, SECTOR_BYTES, reads_of
from pgle.costs.estimate.estimate import bytes_accessed, compute_us
from pgle.costs.estimate.unknown import range_of
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.hlo.text import module_from_text
from pgle.xla.targets import KERNEL_US, find_hardware

A100 = find_hardware("a100-80gb")
ADD = "%add {\n  %x = f32[] parameter(0)\n  %y = f32[] parameter(1)\n  ROOT %w = f32[] add(%x, %y)\n}\n\n"


def fusion(
    parameter: str, lines: str, result: str, kind: str = "kLoop"
) -> tuple[Module, Instruction]:
    text = (
        f"HloModule m\n\n{ADD}%f {{\n  %p = {parameter} parameter(0)\n{lines}\n}}\n\n"
        f"ENTRY %main {{\n  %a = {parameter} parameter(0)\n"
        f"  ROOT %r = {result} fusion(%a), kind={kind}, calls=%f\n}}\n"
    )
    return parsed(text)


def parsed(text: str) -> tuple[Module, Instruction]:
    module = module_from_text(text.encode(), "m.txt")
    return module, module.instructions[module.entry_computation.root]


def transposed(
    dtype: str, sizes: tuple[int, ...], order: tuple[int, ...]
) -> tuple[Module, Instruction]:
    source, result = shape(dtype, sizes), shape(dtype, tuple(sizes[at] for at in order))
    line = f"  ROOT %t = {result} transpose(%p), dimensions={{{','.join(map(str, order))}}}"
    return fusion(source, line, result)


def shape(dtype: str, sizes: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, sizes))}]"


@pytest.mark.parametrize(
    ("dtype", "size"), [("bf16", 2), ("f32", 4), ("c64", 8), ("c128", 16)]
)
def test_a_loop_that_moves_the_minor_dimension_takes_a_sector_for_each_element(
    dtype: str, size: int
) -> None:
    reads = reads_of(*transposed(dtype, (16, 128, 128, 1024), (3, 1, 0, 2)))
    assert reads[0].sectors == SECTOR_BYTES / size
    assert reads[0].lines == LINE_BYTES / size


def test_heads_that_change_places_take_the_time_of_their_bytes() -> None:
    sizes = (8, 2048, 32, 128)
    moved = 2 * 2 * math.prod(sizes)  # bf16, read and written
    assert compute_us(*transposed("bf16", sizes, (0, 2, 1, 3)), A100) == pytest.approx(
        KERNEL_US + A100.memory_us(moved)
    )


def test_a_read_counts_behind_a_value_that_is_used_many_times() -> None:
    """Twelve doublings of a value: as many ways to it as it has uses, 4,096."""
    first = shape("f32", (16, 128, 128, 1024))
    last = shape("f32", (1024, 128, 16, 128))
    lines = [f"  %c = f32[] constant(1)\n  %v0 = {last} broadcast(%c), dimensions={{}}"]
    lines += [f"  %v{n} = {last} add(%v{n - 1}, %v{n - 1})" for n in range(1, 13)]
    lines += [
        f"  %t = {last} transpose(%p), dimensions={{3,1,0,2}}",
        f"  ROOT %r = {last} add(%v12, %t)",
    ]
    module, instruction = fusion(first, "\n".join(lines), last)
    assert reads_of(module, instruction)[0].sectors == SECTOR_BYTES / 4


@pytest.mark.parametrize(
    ("sizes", "order"),
    [
        ((8192, 8192), (1, 0)),  # through shared memory
        ((64, 512, 512), (0, 2, 1)),
        ((512, 64, 512), (2, 1, 0)),
        ((64, 32, 16, 512), (2, 3, 0, 1)),  # two pairs change places
        ((512, 512, 64), (1, 0, 2)),  # the minor dimension stays
        ((8, 2048, 32, 128), (0, 2, 1, 3)),
    ],
)
def test_what_xla_tiles_and_what_stays_is_coalesced(
    sizes: tuple[int, ...], order: tuple[int, ...]
) -> None:
    assert reads_of(*transposed("f32", sizes, order)) == {}


def test_a_transposition_behind_element_wise_instructions_is_tiled() -> None:
    lines = "  %t = f32[4096,4096] transpose(%p), dimensions={1,0}\n  ROOT %s = f32[4096,4096] exponential(%t)"
    assert reads_of(*fusion("f32[4096,4096]", lines, "f32[4096,4096]")) == {}


def test_a_narrow_transposition_is_not_tiled() -> None:
    found = reads_of(*transposed("f32", (4, 1 << 20), (1, 0)))
    assert found == {}  # four rows side by side: each warp reads whole sectors of them
    found = reads_of(*transposed("f32", (1 << 20, 4), (1, 0)))
    assert found[0].sectors == 4  # one of four elements that lie together


@pytest.mark.parametrize("dimension", [0, 1])
def test_reductions_over_either_dimension_are_coalesced(dimension: int) -> None:
    line = (
        f"  %z = f32[] constant(0)\n"
        f"  ROOT %s = f32[4096] reduce(%p, %z), dimensions={{{dimension}}}, to_apply=%add"
    )
    assert reads_of(*fusion("f32[4096,4096]", line, "f32[4096]", "kInput")) == {}


def test_a_column_takes_a_sector_for_each_row_and_half_a_row_does_not() -> None:
    column = "  ROOT %s = f32[65536,1] slice(%p), slice={[0:65536], [3:4]}"
    assert reads_of(*fusion("f32[65536,1024]", column, "f32[65536,1]"))[0].sectors == 8
    half = "  ROOT %s = f32[65536,512] slice(%p), slice={[0:65536], [0:512]}"
    assert reads_of(*fusion("f32[65536,1024]", half, "f32[65536,512]")) == {}


def test_a_broadcast_reads_each_element_once() -> None:
    line = "  ROOT %b = f32[4096,4096] broadcast(%p), dimensions={0}"
    assert reads_of(*fusion("f32[4096]", line, "f32[4096,4096]")) == {}


def test_layouts_move_dimensions_as_transpositions_do() -> None:
    sizes = "[16,128,128,1024]"
    line = f"  ROOT %n = f32{sizes}{{0,2,1,3}} negate(%p)"
    assert (
        reads_of(*fusion(f"f32{sizes}{{3,2,1,0}}", line, f"f32{sizes}{{0,2,1,3}}"))[
            0
        ].sectors
        == 8
    )
    text = (
        "HloModule m\n\nENTRY %main {\n  %p = f32[8192,8192]{1,0} parameter(0)\n"
        "  ROOT %c = f32[8192,8192]{0,1} copy(%p)\n}\n"
    )
    assert reads_of(*parsed(text)) == {}  # a copy is tiled


def test_a_fusion_is_read_by_its_own_layouts_whatever_was_read_before() -> None:
    """Two fusions that differ in nothing else than a layout, and a cache that has seen one."""
    sizes = "f32[64,64,1024]"

    def doubled(layout: str) -> tuple[Module, Instruction]:
        line = f"  ROOT %t = {sizes}{{2,1,0}} add(%p, %p)"
        return fusion(f"{sizes}{layout}", line, f"{sizes}{{2,1,0}}")

    assert not reads_of(*doubled("{2,1,0}"))
    assert reads_of(*doubled("{0,1,2}"))[0].sectors == SECTOR_BYTES / 4
    along, across = f"{sizes}{{2,1,0}}", f"{sizes}{{0,1,2}}"
    first = fusion(along, f"  ROOT %n = {along} negate(%p)", along)
    second = fusion(across, f"  ROOT %n = {across} exponential(%p)", across)
    assert not reads_of(*first)
    assert not reads_of(*second)


def test_a_measured_transposition_is_in_its_range() -> None:
    """c64[8,128,128,1024] to [1024,128,8,128] took about 8 ms in a job on A100, 6 to 7 times its
    bytes.
    """
    module, item = transposed("c64", (8, 128, 128, 1024), (3, 1, 0, 2))
    us = compute_us(module, item, A100)
    found = range_of(module, item, A100, us)
    assert found is not None
    assert found.least_us < 8000 < found.most_us
    assert us > 4 * sum(bytes_accessed(module, item)) / (A100.memory_gb_s * 1e3)


def test_no_read_takes_less_than_its_bytes_or_more_than_a_line_an_element() -> None:
    for dtype, size in (("bf16", 2), ("f32", 4), ("c64", 8)):
        for order in (
            (3, 2, 1, 0),
            (3, 0, 2, 1),
            (1, 3, 0, 2),
            (2, 0, 3, 1),
            (0, 3, 1, 2),
        ):
            for found in reads_of(*transposed(dtype, (24, 40, 56, 72), order)).values():
                assert 1 <= found.sectors <= found.lines <= LINE_BYTES / size
