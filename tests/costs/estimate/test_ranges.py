"""Costs that data decides have a range; custom calls of which nothing is known are named."""

from dataclasses import replace

import pytest

from pgle.costs.estimate.estimate import estimator
from pgle.costs.estimate.known import Basis, unmodelled, unmodelled_warnings
from pgle.costs.estimate.passes import sort_passes
from pgle.costs.estimate.scatters import (
    ADDED_US,
    FREQUENT,
    SAME_ADDED_US,
    SAME_SWAPPED_US,
    SWAPPED_US,
)
from pgle.costs.estimate.unknown import (
    RADIX_SHORT,
    Range,
    assumed_warnings,
    range_of,
)
from pgle.schedule.predict import predict
from pgle.xla.hlo.module import (
    HOST_MEMORY_SPACE,
    Computation,
    Instruction,
    Module,
    Shape,
)
from pgle.xla.targets import TABLE

H100 = TABLE["h100-sxm"]
X = Instruction("x", "parameter", Shape("f32", (4096, 128)), "e", parameter_number=0)


def module(*items: Instruction) -> Module:
    return Module(
        "m", 1, "", "e", {"e": Computation("e", (X, *items), items[-1].name)}, True
    )


def found(*items: Instruction) -> Range:
    of = module(*items)
    known = range_of(of, items[-1], H100, estimator(of, H100)(items[-1]))
    assert known is not None
    return known


def operand(name: str, dtype: str, *dimensions: int, memory: int = 0) -> Instruction:
    return Instruction(
        name,
        "parameter",
        Shape(dtype, dimensions, memory_space=memory),
        "e",
        parameter_number=1,
    )


@pytest.mark.parametrize(
    ("dtype", "added_us", "same_us"),
    [
        ("s32", ADDED_US, SAME_ADDED_US),
        ("f32", ADDED_US, SAME_SWAPPED_US),
        ("bf16", SWAPPED_US, SAME_SWAPPED_US),
    ],
)
def test_the_most_frequent_row_of_a_text_waits_and_equal_rows_are_a_line_of_their_own(
    dtype: str, added_us: float, same_us: float
) -> None:
    scatter = Instruction(
        "s", "scatter", Shape(dtype, (4096, 128)), "e", ("x", "i", "u")
    )
    known = found(operand("i", "s32", 1000, 1), operand("u", dtype, 1000, 128), scatter)
    assert known.most_us - known.least_us == pytest.approx(1000 * FREQUENT * added_us)
    assert known.extreme_us == pytest.approx(known.least_us + 1000 * same_us)


def test_a_histogram_waits_for_its_bins_though_all_are_as_frequent() -> None:
    count = 1 << 20
    items = (
        operand("bins", "s64", 256),
        operand("i", "s32", count, 1),
        operand("u", "s64", count),
    )
    scatter = Instruction("s", "scatter", Shape("s64", (256,)), "e", ("bins", "i", "u"))
    of = module(*items, scatter)
    assert estimator(of, H100)(scatter) == pytest.approx(
        count / 256 * ADDED_US, rel=0.1
    )


def routed(*, sorted_payload: bool = True) -> Range:
    """A scatter of 8,192 rows of bf16 into 1,024, at an argsort divided by 8, or at sorted values
    divided by 8.
    """
    tokens = Shape("s32", (8192,))
    keys = Instruction("k", "parameter", tokens, "e", parameter_number=2)
    iota = Instruction("iota", "iota", tokens, "e")
    both = Shape("tuple", elements=(tokens, tokens))
    index = Instruction(
        "g",
        "get-tuple-element",
        tokens,
        "e",
        ("sort",),
        tuple_index=int(sorted_payload),
    )
    items = (
        keys, iota, Instruction("sort", "sort", both, "e", ("k", "iota")), index,
        Instruction("eight", "constant", tokens, "e"), Instruction("i", "divide", tokens, "e", ("g", "eight")),
        operand("out", "bf16", 1024, 64), operand("u", "bf16", 8192, 64),
        Instruction("s", "scatter", Shape("bf16", (1024, 64)), "e", ("out", "i", "u")),
    )  # fmt: skip
    return found(*items)


def test_rows_of_a_divided_argsort_repeat_as_often_as_it_is_longer_than_the_result() -> (
    None
):
    bounded, unbounded = routed(), routed(sorted_payload=False)
    assert bounded.most_us - bounded.least_us == pytest.approx(8 * SWAPPED_US)
    assert unbounded.most_us - unbounded.least_us == pytest.approx(
        8192 * FREQUENT * SWAPPED_US
    )
    assert bounded.extreme_us == pytest.approx(bounded.least_us + 8 * SAME_SWAPPED_US)


def pooled(*windows: tuple[int, int], count: int = 1000) -> Range:
    """The gradient of max pooling, where windows overlap."""
    values = Shape("f32", (count,))
    places = Shape("s32", (count,))
    selected = Instruction(
        "w",
        "reduce-window",
        Shape("tuple", elements=(values, places)),
        "e",
        ("x",),
        windows=windows,
    )
    scatter = Instruction(
        "s",
        "scatter",
        Shape("f32", (4000,)),
        "e",
        ("x", "i", "u"),
        op_name="jit(step)/transpose(jvp())/select_and_scatter_add",
    )
    indices = operand("i", "s32", 1000, 1)
    return found(selected, indices, operand("u", "f32", 1000), scatter)


def test_a_place_of_max_pooling_repeats_as_often_as_windows_cover_it() -> None:
    known = pooled((1, 1), (3, 2), (3, 2))
    assert known.extreme_us == pytest.approx(known.least_us + 4 * SAME_SWAPPED_US)
    assert known.most_us == pytest.approx(known.least_us + 4 * ADDED_US)


def test_without_its_windows_all_places_of_max_pooling_may_be_one() -> None:
    known = pooled((3, 2), count=999)
    assert known.extreme_us == pytest.approx(known.least_us + 1000 * SAME_SWAPPED_US)


def test_a_scatter_that_overwrites_has_no_rows_that_wait() -> None:
    scatter = Instruction(
        "s", "scatter", X.shape, "e", ("x", "i", "u"), called=("replace",)
    )
    items = operand("i", "s32", 1000, 1), operand("u", "f32", 1000, 128), scatter
    combiner = Computation("replace", (operand("a", "f32"), operand("b", "f32")), "b")
    of = module(*items)
    of = replace(of, computations={**of.computations, "replace": combiner})
    known = range_of(of, scatter, H100, 5.0)
    assert known is not None
    assert (known.least_us, known.most_us, known.extreme_us) == (5.0, 5.0, 5.0)


def test_a_gather_of_elements_takes_up_to_a_sector_for_each() -> None:
    gather = Instruction("g", "gather", Shape("f32", (1 << 20,)), "e", ("x", "i"))
    assert found(operand("i", "s32", 1 << 20, 2), gather).most_us == pytest.approx(
        32 * (1 << 20) / 3352e3
    )


def test_a_gather_of_long_rows_has_no_range() -> None:
    gather = Instruction("g", "gather", Shape("f32", (1 << 20, 128)), "e", ("x", "i"))
    of = module(operand("i", "s32", 1 << 20, 1), gather)
    assert range_of(of, gather, H100, estimator(of, H100)(gather)) is None


def test_a_sort_by_comparison_moves_all_once_for_each_distance_beyond_a_block() -> None:
    radix, bitonic = sort_passes(
        Instruction("s", "sort", Shape("f32", (1 << 13,)), "e", ("x",))
    )
    assert (radix, bitonic) == (4, 1 + 2 + 3)


def test_a_radix_sort_reaches_less_of_the_bandwidth_than_a_copy() -> None:
    target = "xla.gpu.ext.cub_sort_keys"
    sort = Instruction(
        "s",
        "custom-call",
        Shape("f32", (1 << 24,)),
        "e",
        ("x",),
        custom_call_target=target,
    )
    known = found(sort)
    assert known.most_us / known.least_us == pytest.approx(RADIX_SHORT)


def permuted(*pairs: tuple[int, int]) -> Instruction:
    return Instruction(
        "p", "collective-permute", X.shape, "e", ("x",), source_target_pairs=pairs
    )


def test_a_permute_inside_a_host_is_between_its_links_and_xlas_table() -> None:
    item = replace(permuted((0, 1), (1, 0)), shape=Shape("f32", (1 << 26,)))
    known = range_of(module(item), item, H100, 4000.0)
    assert known is not None
    assert known.least_us < known.most_us == 4000.0


def test_a_permute_between_hosts_has_no_such_range() -> None:
    item = permuted((0, 8), (8, 0))
    assert range_of(module(item), item, H100, 4000.0) is None


def test_an_attention_call_may_be_of_the_slowest_or_the_fastest_release() -> None:
    q = operand("q", "bf16", 8, 4096, 32, 128)
    call = Instruction(
        "a",
        "custom-call",
        q.shape,
        "e",
        ("q", "q", "q"),
        custom_call_target="__cudnn$fmhaSoftmax",
    )
    assert found(q, call).most_us / found(q, call).least_us == pytest.approx(1.2 / 0.78)


def test_a_copy_to_the_host_may_share_its_link() -> None:
    copy = Instruction(
        "c",
        "copy",
        Shape("f32", (4096, 128), memory_space=HOST_MEMORY_SPACE),
        "e",
        ("x",),
    )
    assert found(copy).most_us == 2 * found(copy).least_us


def test_a_convolution_is_at_most_that_without_tensor_cores() -> None:
    kernel = operand("k", "bf16", 3, 3, 256, 256)
    image = operand("i", "bf16", 32, 56, 56, 256)
    convolution = Instruction(
        "c", "convolution", Shape("bf16", (32, 56, 56, 256)), "e", ("i", "k")
    )
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
    of = module(
        call("mine"), call("__cublas$gemm"), call("stated", 777_000), call("Sharding")
    )
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
        module(*items, Instruction("s", "scatter", X.shape, "e", ("x", "i", "u"))),
        None,
        H100,
    )
    assert [item.name for item in prediction.uncertain] == ["s"]
    assert prediction.steps_us.most_data > prediction.step_us


def reduced(*devices: int) -> Module:
    item = Instruction(
        "r", "all-reduce", X.shape, "e", ("x",), replica_groups=(devices,)
    )
    return replace(module(item), num_partitions=16)


def test_a_network_that_nobody_named_is_assumed() -> None:
    across = reduced(0, 8)
    (line,) = assumed_warnings(across, H100, is_named=False)
    assert "50 GB/s per GPU and direction is assumed: name yours with --network" in line
    assert assumed_warnings(across, H100, is_named=True) == []
    assert assumed_warnings(reduced(0, 1), H100, is_named=False) == []


def test_the_range_of_a_step_holds_every_network_that_the_gpu_is_rented_with() -> None:
    large = replace(X, shape=Shape("f32", (1 << 26,)))
    item = Instruction(
        "r", "all-reduce", large.shape, "e", ("x",), replica_groups=(tuple(range(16)),)
    )
    of = Module(
        "m",
        1,
        "",
        "e",
        {"e": Computation("e", (large, item), "r")},
        True,
        num_partitions=16,
    )
    a100 = TABLE["a100-40gb"]
    low, high = predict(of, None, a100).interval_us
    slowest = predict(of, None, a100.on_network(1.7)).step_us
    assert low < slowest < high
    named = predict(of, None, a100.on_network(1.7))
    assert named.interval_us[1] < 2 * named.step_us


def test_a_gather_of_rows_has_a_thread_for_four_neighbours() -> None:
    rows = 1 << 18
    table = Instruction(
        "t", "parameter", Shape("bf16", (50304, 1024)), "e", parameter_number=0
    )
    index = Instruction(
        "i", "parameter", Shape("s32", (rows,)), "e", parameter_number=1
    )
    inner = (
        replace(table, name="p0", computation="f"),
        replace(index, name="p1", computation="f"),
        Instruction("g", "gather", Shape("bf16", (rows, 1024)), "f", ("p0", "p1")),
    )
    fusion = Instruction(
        "fusion",
        "fusion",
        inner[-1].shape,
        "e",
        ("t", "i"),
        called=("f",),
        fusion_kind="kLoop",
    )
    computations = {
        "e": Computation("e", (table, index, fusion), "fusion"),
        "f": Computation("f", inner, "g", True),
    }
    of = Module("m", 1, "", "e", computations, True)
    read_and_written_us = 2 * rows * 1024 * 2 / 3352e3
    assert estimator(of, H100)(fusion) < 1.3 * read_and_written_us
