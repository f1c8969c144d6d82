"""What is read off a timeline: the identity of its parts, the shortest step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgle.costs.measure.contention import LaunchGaps
from pgle.costs.profile.value import Cost
from pgle.schedule.bounds import shortest_step_us
from pgle.schedule.predict import read_program
from pgle.schedule.simulate import Timeline, breakdown, run_program
from pgle.trace.intervals import union
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape
from pgle.xla.targets import TABLE

ARRAY = Shape("f32", (8,))
SPANS = st.lists(st.tuples(st.floats(0, 90), st.floats(0.1, 10)), max_size=15)


@given(SPANS, SPANS, SPANS)
def test_the_parts_of_a_step_add_up(
    compute: list[tuple[float, float]],
    communication: list[tuple[float, float]],
    copy: list[tuple[float, float]],
) -> None:
    sets = [
        union([s for s, _ in spans], [s + d for s, d in spans])
        for spans in (compute, communication, copy)
    ]
    found = breakdown(*sets, step_us=100.0)
    parts = (
        found.compute_us,
        found.exposed_communication_us,
        found.exposed_copy_us,
        found.idle_us,
    )
    assert sum(parts) == pytest.approx(100.0)
    assert min(parts) >= -1e-9
    assert 0 <= found.overlap <= 1 + 1e-9


@st.composite
def schedules(draw: st.DrawFn) -> tuple[Module, dict[str, Cost], LaunchGaps]:
    """Modules of kernels, async pairs whose dones come later, and loops over such bodies."""
    costs: dict[str, Cost] = {}

    def instructions(prefix: str) -> tuple[Instruction, ...]:
        found, pending = [Instruction(f"{prefix}p", "parameter", ARRAY, prefix)], []
        for i in range(draw(st.integers(1, 8))):
            kind = draw(
                st.sampled_from(
                    ("fusion", "all-gather-start", "copy-start", "all-reduce", "done")
                )
            )
            if kind == "done":
                if not pending:
                    continue
                start = pending.pop(draw(st.integers(0, len(pending) - 1)))
                opcode = start.opcode.replace("start", "done")
                found.append(
                    Instruction(f"{prefix}{i}", opcode, ARRAY, prefix, (start.name,))
                )
                continue
            before = (found[-1].name,) if draw(st.booleans()) else ()
            found.append(Instruction(f"{prefix}{i}", kind, ARRAY, prefix, before))
            costs[f"{prefix}{i}"] = Cost(
                f"{prefix}{i}", float(draw(st.integers(0, 20)))
            )
            pending += [found[-1]] if kind.endswith("start") else []
        for start in pending:
            opcode = start.opcode.replace("start", "done")
            found.append(
                Instruction(f"{start.name}d", opcode, ARRAY, prefix, (start.name,))
            )
        return tuple(found)

    entry, body = instructions("e"), instructions("b")
    trips = draw(st.integers(0, 30))
    config = f'{{"known_trip_count":{{"n":"{trips}"}}}}'
    loop = Instruction("w", "while", ARRAY, "e", called=("b",), backend_config=config)
    at = draw(st.integers(0, len(entry)))
    computations = {
        "e": Computation("e", (*entry[:at], loop, *entry[at:]), entry[-1].name),
        "b": Computation("b", body, body[-1].name),
    }
    gaps = [draw(st.sampled_from((0.0, 0.5, 3.0))) for _ in range(3)]
    return (
        Module("m", 1, "", "e", computations, True, num_partitions=2),
        costs,
        LaunchGaps(*gaps),
    )


def run(
    case: tuple[Module, dict[str, Cost], LaunchGaps], *, expand: bool = False
) -> Timeline:
    module, costs, launch = case
    return run_program(
        read_program(module, costs, TABLE["h100-sxm"]), launch, expand_loops=expand
    )


@given(schedules())
def test_every_step_is_the_sum_of_its_parts(
    case: tuple[Module, dict[str, Cost], LaunchGaps],
) -> None:
    found = run(case).breakdown
    parts = (
        found.compute_us,
        found.exposed_communication_us,
        found.exposed_copy_us,
        found.idle_us,
    )
    assert sum(parts) == pytest.approx(found.step_us, abs=1e-6)


@given(schedules())
def test_folding_loops_changes_no_sum(
    case: tuple[Module, dict[str, Cost], LaunchGaps],
) -> None:
    folded, expanded = run(case), run(case, expand=True)
    assert folded.step_us == pytest.approx(expanded.step_us, abs=1e-6)
    assert folded.count.sum() == expanded.count.sum()
    assert folded.duration_us.sum() == pytest.approx(
        expanded.duration_us.sum(), abs=1e-6
    )
    assert folded.breakdown.compute_us == pytest.approx(
        expanded.breakdown.compute_us, abs=1e-6
    )
    assert folded.breakdown.idle_us == pytest.approx(
        expanded.breakdown.idle_us, abs=1e-6
    )
    assert folded.breakdown.exposed_copy_us == pytest.approx(
        expanded.breakdown.exposed_copy_us, abs=1e-6
    )


@given(schedules())
def test_no_schedule_beats_the_shortest_step(
    case: tuple[Module, dict[str, Cost], LaunchGaps],
) -> None:
    module, costs, launch = case
    bound = shortest_step_us(
        module, read_program(module, costs, TABLE["h100-sxm"]), launch
    )
    assert bound <= run(case).step_us + 1e-6


def test_the_shortest_step_of_independent_work_is_the_busier_stream() -> None:
    names = (
        ("s", "all-gather-start", ()),
        ("d", "all-gather-done", ("s",)),
        ("a", "fusion", ()),
        ("b", "fusion", ()),
    )
    entry = tuple(
        Instruction(name, opcode, ARRAY, "e", operands)
        for name, opcode, operands in names
    )
    module = Module(
        "m", 1, "", "e", {"e": Computation("e", entry, "b")}, True, num_partitions=2
    )
    costs = {
        name: Cost(name, cost) for name, cost in (("s", 9.0), ("a", 4.0), ("b", 3.0))
    }
    bound = shortest_step_us(
        module,
        read_program(module, costs, TABLE["h100-sxm"]),
        LaunchGaps(0.0, 0.0, 0.0),
    )
    assert bound == 9.0


def test_of_branches_the_shortest_step_takes_the_longest() -> None:
    fork = Instruction("c", "conditional", ARRAY, "e", called=("p", "q"))
    bodies = {
        name: Computation(
            name, (Instruction(f"{name}x", "fusion", ARRAY, name),), f"{name}x"
        )
        for name in "pq"
    }
    module = Module(
        "m", 1, "", "e", {"e": Computation("e", (fork,), "c"), **bodies}, True
    )
    costs = {name: Cost(name, cost) for name, cost in (("px", 2.0), ("qx", 6.0))}
    assert (
        shortest_step_us(
            module,
            read_program(module, costs, TABLE["h100-sxm"]),
            LaunchGaps(0.0, 0.0, 0.0),
        )
        == 6
    )


def test_the_shortest_step_knows_that_a_gather_comes_before_its_use() -> None:
    names = (
        ("s", "all-gather-start", ()),
        ("d", "all-gather-done", ("s",)),
        ("a", "fusion", ("d",)),
    )
    entry = tuple(
        Instruction(name, opcode, ARRAY, "e", operands)
        for name, opcode, operands in names
    )
    module = Module(
        "m", 1, "", "e", {"e": Computation("e", entry, "a")}, True, num_partitions=2
    )
    bound = shortest_step_us(
        module,
        read_program(
            module, {"s": Cost("s", 9.0), "a": Cost("a", 4.0)}, TABLE["h100-sxm"]
        ),
        LaunchGaps(0.0, 0.0, 0.0),
    )
    assert bound == 13.0
