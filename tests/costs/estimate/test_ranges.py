"""Costs that data decides have a range; custom calls of which nothing is known are named."""

from dataclasses import replace

import pytest

from pgle.costs.estimate.estimate import estimator
from pgle.costs.estimate.known import Basis, unmodelled, unmodelled_warnings
from pgle.costs.estimate.passes import sort_passes
from pgle.costs.estimate.unknown import (
    ADDED_ROW_US,
    SWAPPED_ROW_US,
    Range,
    assumed_warnings,
    range_of,
)
from pgle.schedule.predict import predict
from pgle.xla.hlo.module import HOST_MEMORY_SPACE, Computation, Instruction, Module, Shape
from pgle.xla.targets import TABLE

H100 = TABLE["h100-sxm"]
X = Instruction("x", "parameter", Shape("f32", (4096, 128)), "e", parameter_number=0)


def module(*items: Instruction) -> Module:
    return Module("m", 1, "", "e", {"e": Computation("e", (X, *items), items[-1].name)}, True)


def found(*items: Instruction) -> Range:
    of = module(*items)
    known = range_of(of, items[-1], H100, estimator(of, H100)(items[-1]))
    assert known is not None
    return known


def operand(name: str, dtype: str, *dimensions: int, memory: int = 0) -> Instruction:
    return Instruction(
        name, "parameter", Shape(dtype, dimensions, memory_space=memory), "e", parameter_number=1
    )


@pytest.mark.parametrize(("dtype", "row_us"), [("f32", ADDED_ROW_US), ("bf16", SWAPPED_ROW_US)])
def test_a_scatter_takes_up_to_one_row_after_the_other(dtype: str, row_us: float) -> None:
    scatter = Instruction("s", "scatter", Shape(dtype, (4096, 128)), "e", ("x", "i", "u"))
    known = found(operand("i", "s32", 1000, 1), operand("u", dtype, 1000, 128), scatter)
    assert known.most_us - known.least_us == pytest.approx(1000 * row_us)


def routed(*, sorted_payload: bool = True) -> Range:
    """A scatter of 8,192 rows of bf16 into 1,024, at an argsort divided by 8, or at sorted values divided by 8."""
    tokens = Shape("s32", (8192,))
    keys = Instruction("k", "parameter", tokens, "e", parameter_number=2)
    iota = Instruction("iota", "iota", tokens, "e")
    both = Shape("tuple", elements=(tokens, tokens))
    index = Instruction(
        "g", "get-tuple-element", tokens, "e", ("sort",), tuple_index=int(sorted_payload)
    )
    items = (
        keys, iota, Instruction("sort", "sort", both, "e", ("k", "iota")), index,
        Instruction("eight", "constant", tokens, "e"), Instruction("i", "divide", tokens, "e", ("g", "eight")),
        operand("out", "bf16", 1024, 64), operand("u", "bf16", 8192, 64),
        Instruction("s", "scatter", Shape("bf16", (1024, 64)), "e", ("out", "i", "u")),
    )  # fmt: skip
    return found(*items)


def test_rows_of_a_divided_argsort_repeat_as_often_as_it_is_longer_than_the_result() -> None:
    bounded, unbounded = routed(), routed(sorted_payload=False)
    assert bounded.most_us - bounded.least_us == pytest.approx(8 * SWAPPED_ROW_US)
    assert unbounded.most_us - unbounded.least_us == pytest.approx(8192 * SWAPPED_ROW_US)


def test_a_scatter_that_overwrites_has_no_rows_that_wait() -> None:
    scatter = Instruction("s", "scatter", X.shape, "e", ("x", "i", "u"), called=("replace",))
    items = operand("i", "s32", 1000, 1), operand("u", "f32", 1000, 128), scatter
    combiner = Computation("replace", (operand("a", "f32"), operand("b", "f32")), "b")
    of = module(*items)
    of = replace(of, computations={**of.computations, "replace": combiner})
    assert range_of(of, scatter, H100, 5.0) == Range(
        5.0, 5.0, "rows that repeat are added one after the other"
    )


def test_a_gather_takes_up_to_a_sector_for_each_element() -> None:
    gather = Instruction("g", "gather", Shape("f32", (1 << 20, 128)), "e", ("x", "i"))
    assert found(operand("i", "s32", 1 << 20, 1), gather).most_us == pytest.approx(
        32 * (1 << 27) / 3352e3
    )


def test_a_sort_by_comparison_moves_all_once_for_each_distance_beyond_a_block() -> None:
    radix, bitonic = sort_passes(Instruction("s", "sort", Shape("f32", (1 << 13,)), "e", ("x",)))
    assert (radix, bitonic) == (4, 1 + 2 + 3)


def test_a_sort_is_between_both_ways() -> None:
    known = found(Instruction("s", "sort", Shape("f32", (1 << 24,)), "e", ("x",)))
    assert known.most_us / known.least_us == pytest.approx((1 + 13 * 16 // 2) / 4)


def test_attention_may_reach_half_or_three_quarters_of_the_peak() -> None:
    q = operand("q", "bf16", 8, 4096, 32, 128)
    call = Instruction(
        "a", "custom-call", q.shape, "e", ("q", "q", "q"), custom_call_target="__cudnn$fmhaSoftmax"
    )
    assert found(q, call).most_us / found(q, call).least_us == pytest.approx(1.5)


def test_a_copy_to_the_host_may_share_its_link() -> None:
    copy = Instruction(
        "c", "copy", Shape("f32", (4096, 128), memory_space=HOST_MEMORY_SPACE), "e", ("x",)
    )
    assert found(copy).most_us == 2 * found(copy).least_us


def test_a_convolution_is_at_most_that_without_tensor_cores() -> None:
    kernel = operand("k", "bf16", 3, 3, 256, 256)
    image = operand("i", "bf16", 32, 56, 56, 256)
    convolution = Instruction("c", "convolution", Shape("bf16", (32, 56, 56, 256)), "e", ("i", "k"))
    operations = 2 * 32 * 56 * 56 * 256 * 9 * 256
    assert found(image, kernel, convolution).most_us == pytest.approx(
        operations / (67e12) * 1e6, rel=0.01
    )


@pytest.mark.parametrize("opcode", ["add", "dot", "transpose", "reduce"])
def test_what_shapes_decide_has_no_range(opcode: str) -> None:
    item = Instruction("i", opcode, X.shape, "e", ("x", "x"))
    assert range_of(module(item), item, H100, 5.0) is None


def call(target: str, latency_ns: int | None = None) -> Instruction:
    return Instruction(
        f"c{target}",
        "custom-call",
        X.shape,
        "e",
        ("x",),
        custom_call_target=target,
        latency_ns=latency_ns,
    )


def test_custom_calls_without_a_cost_are_named_with_what_to_type() -> None:
    of = module(call("mine"), call("__cublas$gemm"), call("stated", 777_000), call("Sharding"))
    assert unmodelled(of, ())[Basis.UNKNOWN] == {"mine": 1}
    (line,) = unmodelled_warnings(of, ())
    assert "mine × 1" in line
    assert 'set_xla_metadata(latency_metadata="NANOSECONDS")' in line


def test_a_measured_custom_call_is_not_opaque() -> None:
    assert unmodelled_warnings(module(call("mine")), ("cmine",)) == []


def test_what_the_program_states_is_the_estimate() -> None:
    stated = call("stated", 777_000)
    assert estimator(module(stated), H100)(stated) == 777.0


def test_the_interval_of_a_step_holds_what_data_decides() -> None:
    items = (operand("i", "s32", 1000, 1), operand("u", "f32", 1000, 128))
    prediction = predict(
        module(*items, Instruction("s", "scatter", X.shape, "e", ("x", "i", "u"))), None, H100
    )
    assert [item.name for item in prediction.uncertain] == ["s"]
    assert prediction.interval_us[1] > prediction.step_us + 1000 * ADDED_ROW_US


def reduced(*devices: int) -> Module:
    item = Instruction("r", "all-reduce", X.shape, "e", ("x",), replica_groups=(devices,))
    return replace(module(item), num_partitions=16)


def test_a_network_that_nobody_named_is_assumed() -> None:
    across = reduced(0, 8)
    (line,) = assumed_warnings(across, H100, is_named=False)
    assert "50 GB/s per GPU and direction is assumed: name yours with --network" in line
    assert assumed_warnings(across, H100, is_named=True) == []
    assert assumed_warnings(reduced(0, 1), H100, is_named=False) == []
