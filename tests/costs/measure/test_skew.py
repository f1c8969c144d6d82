"""What compute takes on the rank that the others wait for."""

import pytest

from pgle.costs.measure.measured import AggregateOptions, aggregate, find_programs
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape


def costs_of(trace):
    (result,) = aggregate(
        trace, find_programs(trace, []), AggregateOptions(keep_all=True)
    )
    return {cost.name: cost for cost in result.costs}, result


def rank(device, *executions):
    """Per execution the durations of ``a``, ``b``, a collective that ends on all ranks together,
    and ``c``.
    """
    rows = []
    for number, (a, b, c) in enumerate(executions):
        start = 10_000 * number
        rows += [
            (device, number, "a", 10 * number, start, a),
            (device, number, "b", 10 * number + 1, start + a, b),
            (
                device,
                number,
                "all-reduce",
                10 * number + 2,
                start + a + b,
                1000 - a - b,
            ),
            (device, number, "c", 10 * number + 3, start + 1000, c),
        ]
    return rows


def test_what_the_slowest_rank_takes_more_than_the_median_is_added_to_the_cost(
    make_trace,
):
    trace = make_trace(
        [*rank(0, (100, 1, 1), (20, 1, 1)), *rank(1, (30, 1, 1), (80, 1, 1))]
    )
    costs, _ = costs_of(trace)
    assert (costs["a"].cost_us, costs["a"].slowest_us) == (55, 55 + (35 + 30) / 2)


def test_a_step_that_is_longer_on_all_ranks_is_no_skew(make_trace):
    steps = [(100, 1, 1), (100, 1, 1), (140, 1, 1)]
    _, result = costs_of(make_trace([*rank(0, *steps), *rank(1, *steps)]))
    assert result.skew_us == 0


def test_an_execution_with_unusual_skew_is_left_out(make_trace):
    usual = [(100, 1, 1)] * 4
    trace = make_trace(
        [*rank(0, *usual, (900, 1, 1)), *rank(1, *[(102, 1, 1)] * 4, (100, 1, 1))]
    )
    assert costs_of(trace)[1].skew_us == pytest.approx(1)


def test_of_four_ranks_the_middle_two_are_compared_with(make_trace):
    trace = make_trace(
        [
            row
            for device, time in enumerate((10, 20, 40, 90))
            for row in rank(device, (time, 1, 1))
        ]
    )
    assert costs_of(trace)[1].skew_us == pytest.approx(90 - (20 + 40) / 2)


def test_one_rank_counts_between_two_collectives(make_trace):
    # rank 0 is slow in a, rank 1 in b: together rank 0 takes longest, so its times count, not the
    # maximum of each
    trace = make_trace([*rank(0, (100, 10, 5)), *rank(1, (10, 90, 7))])
    costs, _ = costs_of(trace)
    assert [costs[name].slowest_us for name in "abc"] == [100, 10, 7]


def test_kernels_that_begin_beside_the_collective_belong_to_one_stretch_on_all_ranks(
    make_trace,
):
    before = [(0, n, "a", 9 * n, 10_000 * n, 50) for n in range(5)]
    rows = before + [
        (0, n, "all-reduce", 9 * n + 1, 10_000 * n + 50, 50) for n in range(5)
    ]
    for n in range(5):  # once the kernel begins before the collective's
        rows.append((0, n, "c", 9 * n + 2, 10_000 * n + (49 if n == 2 else 60), 40))
    trace = make_trace(rows + [(1, *row[1:]) for row in rows])
    costs, _ = costs_of(trace)
    assert (costs["a"].slowest_us, costs["c"].slowest_us) == (50, 40)


def test_collectives_have_none(make_trace):
    costs, _ = costs_of(make_trace([*rank(0, (100, 10, 5)), *rank(1, (10, 90, 7))]))
    assert costs["all-reduce"].slowest_us is None


def test_a_lone_device_has_none(make_trace):
    costs, result = costs_of(make_trace(rank(0, (100, 10, 5))))
    assert costs["a"].slowest_us is None
    assert result.skew_us is None


def test_executions_that_one_rank_lacks_are_left_out(make_trace):
    trace = make_trace([*rank(0, (40, 1, 1), (500, 1, 1)), *rank(1, (40, 1, 1))])
    assert costs_of(trace)[0]["a"].slowest_us == 40


def test_the_step_waits_for_the_sum_over_its_instructions(make_trace):
    trace = make_trace([*rank(0, (100, 0, 10)), *rank(1, (20, 0, 30))])
    _, result = costs_of(trace)
    assert result.skew_us == pytest.approx((100 - 60) + (30 - 20))


def test_ranks_that_do_not_communicate_do_not_wait(make_trace):
    trace = make_trace(
        [(device, 0, "a", 0, 0, 100 + 50 * device) for device in range(2)]
    )
    assert costs_of(trace)[0]["a"].slowest_us is None


def test_an_execution_of_collectives_alone_is_one_that_no_rank_computed_in(make_trace):
    alone = (1, 1, "all-reduce", 20, 10_000, 50)
    trace = make_trace([*rank(0, (40, 1, 1)), *rank(1, (30, 1, 1)), alone])
    assert costs_of(trace)[0]["a"].slowest_us == 35 + (40 - 30) / 2


def beside(device, first, second):
    """Per execution two kernels, during which a collective runs and ends; then one that ranks wait
    for.
    """
    rows = []
    for number in range(4):
        start = 10_000 * number
        rows += [
            (device, number, "a", 10 * number, start, first),
            (device, number, "all-gather", 10 * number + 1, start + first - 5, 30),
            (device, number, "b", 10 * number + 2, start + first, second),
            (device, number, "all-reduce", 10 * number + 3, start + first + second, 50),
        ]
    return rows


def test_nobody_waits_at_the_end_of_a_collective_that_is_hidden(make_trace):
    # rank 0 is 40 µs slower in a, rank 1 in b: they are even at the end that they wait for
    trace = make_trace([*beside(0, 100, 60), *beside(1, 60, 100)])
    assert costs_of(trace)[1].skew_us == pytest.approx(0)


def test_ranks_are_compared_between_the_ends_that_one_of_them_waits_for(make_trace):
    rows = [*beside(0, 100, 60), *beside(1, 100, 90)]
    assert costs_of(make_trace(rows))[1].skew_us == pytest.approx((90 - 60) / 2)


def in_pairs():
    """The step, whose all-reduce is among ranks 0 and 1, and among 2 and 3."""
    reduce = Instruction(
        name="all-reduce",
        opcode="all-reduce",
        shape=Shape("f32", (8,)),
        computation="main",
        replica_groups=((0, 1), (2, 3)),
    )
    others = [Instruction(name, "fusion", Shape("f32", (8,)), "main") for name in "abc"]
    entry = Computation("main", (*others, reduce), "c")
    return Module("jit_step", 1, "f" * 32, "main", {"main": entry}, True)


def test_ranks_of_another_group_are_not_waited_for(make_trace):
    # Ranks 0 and 1 are slow before their all-reduce, ranks 2 and 3 after it: together both pairs
    # take 110 µs, and no rank waits for the other pair.
    times = [(100, 0, 10), (100, 0, 10), (10, 0, 100), (10, 0, 100)]
    trace = make_trace([row for n, time in enumerate(times) for row in rank(n, time)])
    programs = find_programs(trace, [in_pairs()])
    (result,) = aggregate(trace, programs, AggregateOptions(keep_all=True))
    assert result.skew_us == pytest.approx(0)
