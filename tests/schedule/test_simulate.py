"""Small modules written out by hand, with whole-number costs and no launch gaps unless a test is
about them.
"""

import pytest
from simulated import simulate

from pgle.costs.measure.contention import LaunchGaps
from pgle.costs.profile.value import Cost, Origin
from pgle.errors import UserError
from pgle.schedule.simulate import Stream, Timeline
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape

NO_GAPS = LaunchGaps(gap_us=0.0, switch_us=0.0, host_us=0.0)
ARRAY = Shape("f32", (8,))


def op(
    name: str, opcode: str = "fusion", *operands: str, **fields: object
) -> Instruction:
    return Instruction(name, opcode, ARRAY, "", tuple(operands), **fields)  # type: ignore[arg-type]


def module(*entry: Instruction, **bodies: tuple[Instruction, ...]) -> Module:
    computations = {
        name: Computation(name, instructions, instructions[-1].name)
        for name, instructions in {"entry": tuple(entry), **bodies}.items()
    }
    return Module(
        "jit_step", 1, "", "entry", computations, is_scheduled=True, num_partitions=4
    )


def loop(name: str, body: str, trips: int) -> Instruction:
    return op(
        name,
        "while",
        called=(body,),
        backend_config=f'{{"known_trip_count":{{"n":"{trips}"}}}}',
    )


def run(
    of: Module, launch: LaunchGaps = NO_GAPS, *, expand: bool = False, **costs: float
) -> Timeline:
    named = {
        name.replace("_", "-"): Cost(name.replace("_", "-"), value)
        for name, value in costs.items()
    }
    return simulate(of, named, launch=launch, expand_loops=expand)


def rows(timeline: Timeline) -> list[tuple[str, float, float]]:
    names = [timeline.names[code] for code in timeline.instruction.tolist()]
    return list(
        zip(names, timeline.start_us.tolist(), timeline.end_us.tolist(), strict=True)
    )


GATHER = (
    op("ag-start", "all-gather-start"),
    op("a"),
    op("ag-done", "all-gather-done", "ag-start"),
    op("b"),
)


def test_kernels_follow_each_other() -> None:
    assert rows(run(module(op("a"), op("b")), a=2, b=3)) == [("a", 0, 2), ("b", 2, 5)]


def test_a_gap_stands_before_every_kernel_but_the_first() -> None:
    assert rows(run(module(op("a"), op("b")), LaunchGaps(1.0, 0.0, 0.0), a=2, b=3)) == [
        ("a", 0, 2),
        ("b", 3, 6),
    ]


def test_an_instruction_of_three_kernels_has_three_gaps() -> None:
    launch = LaunchGaps(1.0, 0.0, 0.0, kernels={"b": 3})
    assert rows(run(module(op("a"), op("b")), launch, a=2, b=3))[1] == ("b", 5, 8)


def test_a_short_collective_is_hidden() -> None:
    found = run(module(*GATHER), ag_start=3, a=5, b=2)
    assert rows(found) == [("ag-start", 0, 3), ("a", 0, 5), ("b", 5, 7)]
    assert found.breakdown.exposed_communication_us == 0
    assert found.breakdown.overlap == 1


def test_a_done_holds_the_compute_stream_until_the_collective_ends() -> None:
    found = run(module(*GATHER), ag_start=9, a=5, b=2)
    assert rows(found)[-1] == ("b", 9, 11)
    assert found.exposures[0].exposed_us == 4


def test_collectives_of_one_queue_run_in_order() -> None:
    second = (
        op("rs-start", "reduce-scatter-start"),
        op("rs-done", "reduce-scatter-done", "rs-start"),
    )
    found = run(
        module(GATHER[0], second[0], GATHER[2], second[1]), ag_start=3, rs_start=4
    )
    assert rows(found) == [("ag-start", 0, 3), ("rs-start", 3, 7)]


def test_send_and_receive_run_beside_each_other() -> None:
    found = run(
        module(op("recv", "recv"), op("send", "send"), op("d", "recv-done", "recv")),
        recv=3,
        send=4,
    )
    assert rows(found) == [("recv", 0, 3), ("send", 0, 4)]


def test_a_collective_that_xla_left_synchronous_runs_on_the_compute_stream() -> None:
    config = '{"collective_backend_config":{"is_sync":true}}'
    start = op("ag-start", "all-gather-start", backend_config=config)
    found = run(module(start, *GATHER[1:]), ag_start=3, a=5, b=2)
    assert rows(found) == [("ag-start", 0, 3), ("a", 3, 8), ("b", 8, 10)]
    assert found.exposures[0].sync
    assert found.breakdown.exposed_communication_us == 3


def test_a_plain_collective_is_synchronous_and_found_by_its_scheduling_name() -> None:
    found = run(
        module(op("psum.14", "all-reduce", scheduling_name="ar-start"), op("a")),
        ar_start=7,
        a=1,
    )
    assert rows(found) == [("psum.14", 0, 7), ("a", 7, 8)]
    assert found.exposures[0].filed_as == "ar-start"


def test_copies_run_on_their_own_stream() -> None:
    found = run(
        module(op("c", "copy-start"), op("a"), op("d", "copy-done", "c")), c=9, a=5
    )
    assert found.stream.tolist() == [Stream.COPY, Stream.COMPUTE]
    assert found.breakdown.exposed_copy_us == 4


@pytest.mark.parametrize(
    ("second", "us"), [(0, 18), (5, 9)]
)  # 5 is XLA's host memory space
def test_copies_of_one_direction_queue_and_the_two_directions_do_not(
    second: int, us: float
) -> None:
    to_device = op("c", "copy-start")
    other = Instruction("e", "copy-start", Shape("f32", (8,), memory_space=second), "")
    found = run(
        module(to_device, other, op("d", "copy-done", "c"), op("f", "copy-done", "e")),
        c=9,
        e=9,
    )
    assert found.step_us == us


def test_asynchronous_compute_takes_its_turn_on_the_gpu() -> None:
    body = (op("inner"),)
    found = run(
        module(
            op("s", "async-start", called=("body",)),
            op("a"),
            op("d", "async-done", "s"),
            body=body,
        ),
        s=9,
        a=5,
    )
    assert (found.step_us, found.breakdown.compute_us) == (14, 14)


def test_a_kernel_that_ends_later_never_lets_what_waits_begin_earlier() -> None:
    launch = LaunchGaps(1.0, 5.0, 0.0)
    ends = [
        run(module(*GATHER), launch, ag_start=9, a=a, b=2).step_us
        for a in (8.9, 9.1, 12.9, 13.1)
    ]
    assert ends == sorted(ends)


def test_the_host_waits_for_the_device_before_a_branch() -> None:
    of = module(op("a"), op("c", "conditional", called=("p",)), p=(op("x"),))
    found = run(of, LaunchGaps(0.0, 0.0, 4.0), a=100, x=2)
    assert rows(found)[-1] == ("x", 104, 106)


def test_a_loop_takes_its_body_times_its_trips() -> None:
    of = module(op("a"), loop("w", "body", 1000), op("b"), body=(op("x"), op("y")))
    found = run(of, a=1, b=1, x=2, y=3)
    assert found.step_us == 1 + 1000 * 5 + 1
    assert found.loops[0].trips == 1000
    assert found.count.sum() == 2 + 2000


def test_a_folded_loop_needs_no_more_rows_for_more_trips() -> None:
    def rows_for(trips: int) -> int:
        return len(run(module(loop("w", "body", trips), body=(op("x"),)), x=2))

    assert rows_for(10) == rows_for(10_000)


def test_folded_and_expanded_loops_tell_the_same() -> None:
    body = (
        op("s", "all-gather-start"),
        op("x"),
        op("d", "all-gather-done", "s"),
        loop("inner", "body2", 7),
    )
    of = module(
        op("a"), loop("w", "body", 50), op("b"), body=body, body2=(op("y"), op("z"))
    )
    launch = LaunchGaps(0.5, 2.0, 0.25)
    folded, expanded = (
        run(of, launch, expand=e, a=1, b=1, s=9, x=4, y=1, z=2) for e in (False, True)
    )
    assert len(expanded) > len(folded)
    assert expanded.step_us == pytest.approx(folded.step_us)
    assert expanded.breakdown.idle_us == pytest.approx(folded.breakdown.idle_us)
    assert expanded.breakdown.exposed_communication_us == pytest.approx(
        folded.breakdown.exposed_communication_us
    )


def test_a_collective_may_run_beside_a_loop() -> None:
    found = run(
        module(GATHER[0], loop("w", "body", 100), GATHER[2], body=(op("x"),)),
        ag_start=150,
        x=1,
    )
    assert found.step_us == 150
    assert found.exposures[0].exposed_us == 50


def test_a_loop_that_waits_for_an_earlier_collective_is_simulated_until_it_is_steady() -> (
    None
):
    body = (op("s", "all-gather-start"), op("x"), op("d", "all-gather-done", "s"))
    found = run(
        module(GATHER[0], loop("w", "body", 10), GATHER[2], body=body),
        ag_start=20,
        s=1,
        x=5,
    )
    assert found.step_us == 21 + 9 * 5


def test_what_ends_in_the_midst_of_a_loop_is_exposed_as_if_every_iteration_were_drawn() -> (
    None
):
    body = (op("s", "all-gather-start"), op("x"), op("d", "all-gather-done", "s"))
    of = module(
        op("c", "copy-start"),
        loop("w", "body", 32),
        op("e", "copy-done", "c"),
        body=body,
    )
    launch = LaunchGaps(1.0, 5.0, 0.0)
    folded, expanded = (
        run(of, launch, expand=e, c=333, s=9, x=4).breakdown for e in (False, True)
    )
    assert folded.exposed_copy_us == pytest.approx(expanded.exposed_copy_us)
    assert folded.idle_us == pytest.approx(expanded.idle_us)


def test_a_loop_of_unknown_length_runs_once_and_says_so() -> None:
    found = run(module(op("w", "while", called=("body",)), body=(op("x"),)), x=5)
    assert found.step_us == 5
    assert found.lower_bound
    assert found.warnings[0].startswith(
        "the step is a lower bound: XLA does not know how often w runs"
    )


def test_of_branches_the_longest_is_taken() -> None:
    found = run(
        module(op("c", "conditional", called=("p", "q")), p=(op("x"),), q=(op("y"),)),
        x=2,
        y=6,
    )
    assert rows(found) == [("y", 0, 6)]


def test_a_slow_host_bounds_short_kernels() -> None:
    found = run(
        module(*(op(f"k{i}") for i in range(5))),
        LaunchGaps(0.0, 0.0, 4.0),
        **{f"k{i}": 1.0 for i in range(5)},
    )
    assert [start for _, start, _ in rows(found)] == [0, 4, 8, 12, 16]


def test_a_host_that_falls_behind_inside_a_loop_bounds_its_later_iterations() -> None:
    # The long kernel gives the host a lead of 96; each iteration uses up 2 of it; then 4 per
    # iteration instead of 2.
    found = run(
        module(op("a"), loop("w", "body", 100), body=(op("x"),)),
        LaunchGaps(0.0, 0.0, 4.0),
        a=100,
        x=2,
    )
    assert found.step_us == pytest.approx(100 * 4 + 2, abs=8)


def test_the_start_wins_over_the_wrapped_name() -> None:
    wrapped = Computation("inner", (op("rs.1", "reduce-scatter"),), "rs.1")
    of = module(
        op("rs-start", "async-start", called=("inner",)),
        op("d", "async-done", "rs-start", called=("inner",)),
    )
    of = Module(of.name, 1, "", "entry", {**of.computations, "inner": wrapped}, True)
    costs = {"rs.1": Cost("rs.1", 5.0), "rs-start": Cost("rs-start", 3.0)}
    assert simulate(of, {"rs.1": costs["rs.1"]}, launch=NO_GAPS).step_us == 5
    assert simulate(of, costs, launch=NO_GAPS).step_us == 3


def test_what_is_not_measured_is_counted() -> None:
    costs = {"a": Cost("a", 3.0), "b": Cost("b", 1.0, origin=Origin.ESTIMATED)}
    assert (
        simulate(module(op("a"), op("b")), costs, launch=NO_GAPS).estimated_share
        == 0.25
    )


def test_an_empty_module_takes_no_time() -> None:
    found = run(module(op("p", "parameter")))
    assert (len(found), found.step_us) == (0, 0.0)


def test_calls_of_calls_that_make_millions_of_rows_are_refused() -> None:
    first = (op("x"),)
    bodies = {
        f"c{level}": tuple(
            op(f"a{level}{side}", "call", called=(f"c{level - 1}",)) for side in "lr"
        )
        for level in range(1, 31)
    }
    with pytest.raises(
        UserError,
        match=r"its calls run \d+ instructions 3,221,225,\d+ times in one step",
    ):
        run(module(op("top", "call", called=("c30",)), c0=first, **bodies))


LATE = LaunchGaps(0.0, 0.0, 0.0, begin_us=4.0)  # the last rank begins 4 µs later


def test_a_step_waits_for_the_rank_that_begins_last() -> None:
    found = run(module(*GATHER), LATE, ag_start=3, a=1, b=2)
    assert (found.step_us, rows(found)[0]) == (4 + 3 + 2, ("ag-start", 4, 7))


def test_nobody_waits_for_the_last_rank_at_a_hidden_collective() -> None:
    assert run(module(*GATHER), LATE, ag_start=3, a=9, b=2).step_us == 11


def test_ranks_are_together_after_they_have_waited() -> None:
    twice = (
        op("first-start", "all-gather-start"),
        op("first-done", "all-gather-done", "first-start"),
        *GATHER,
    )
    found = run(module(*twice), LATE, first_start=3, ag_start=3, a=1, b=2)
    assert found.step_us == 4 + 3 + 3 + 2
