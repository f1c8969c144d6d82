"""A second compilation of each row, with other kernels for products: what it turns, on rows a
person can read.
"""

from __future__ import annotations

from pgle.scale.answer import RowControl, ScaleRow
from pgle.scale.control import ScaleControl, answer_of_both

FLAG = "--xla_gpu_enable_triton_gemm=false"


def row(
    devices: int, step_us: float, other_us: float | None = None, mesh: str = ""
) -> ScaleRow:
    """A row whose second compilation takes `other_us`; None: it makes the same program."""
    second = None if other_us is None else plain(devices, other_us, mesh)
    return plain(devices, step_us, mesh, RowControl(FLAG, second))


def plain(
    devices: int, step_us: float, mesh: str, control: RowControl | None = None
) -> ScaleRow:
    values = {"mesh": mesh} if mesh else {}
    return ScaleRow(
        devices,
        values=values,
        shown=values,
        step_us=step_us,
        least_us=0.95 * step_us,
        most_us=1.2 * step_us,
        operations=1e9,
        control=control,
    )


def controlled(*rows: ScaleRow) -> ScaleControl:
    _, control = answer_of_both(rows)
    assert control is not None
    return control


def test_a_program_that_breaks_by_one_compilation_only_depends_on_the_kernels() -> None:
    control = controlled(row(8, 100, 100), row(64, 105, 120))
    assert control.breaks
    assert control.depends
    assert control.other.scales_to == 8


def test_both_compilations_that_break_at_one_size_agree() -> None:
    assert not controlled(row(8, 100, 200), row(64, 130, 250)).depends


def test_the_best_variant_of_one_compilation_only_depends_on_the_kernels() -> None:
    control = controlled(row(8, 100, 110, mesh="a"), row(8, 104, 105, mesh="b"))
    assert control.is_other_best
    assert [[one.values["mesh"] for one in pair] for pair in control.swapped] == [
        ["a", "b"]
    ]


def test_variants_that_no_compilation_tells_apart_keep_the_verdict() -> None:
    assert not controlled(
        row(8, 100, 100.01, mesh="a"), row(8, 100.01, 100, mesh="b")
    ).depends


def test_ranges_hold_those_of_both_compilations() -> None:
    found, _ = answer_of_both([row(8, 100, 200)])
    low, high = found.rows[0].interval_us
    assert low < 100 < 200 < high
    assert found.best[-1] is found.rows[0]
    assert found.first is found.rows[0]


def test_rows_with_the_same_program_twice_have_no_control() -> None:
    _, control = answer_of_both([row(8, 100)])
    assert control is None
