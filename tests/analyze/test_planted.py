"""Faults of known size in the real 4 × A100 recording: found by name and size, alone and with
--against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from faults import Faulty, clock_moved, kernels_twice, other_process, repeat, twice

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.differences import StepVerdict, find_differences
from pgle.analyze.rules import find_findings
from pgle.errors import UserError
from pgle.run.analyze import StepInput, measured_step

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("work_found_once")]

ROOT = Path(__file__).parents[2]
PAX = ROOT / "testdata" / "pax_fsdp4"
DUMP = PAX / "proc0" / "dump"
MAIN = "pjit__wrapped_step_fn"
STEADY = (2, 3, 4)
MS = 1_000_000  # ns
MANY = 9  # steady executions of the longer recording


def exports() -> list[Path]:
    return [PAX / f"{rank}.sqlite" for rank in ("proc0", "proc3")]


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The recording with six more executions, each the last one with kernels that differ by 0.05
    %.
    """
    files = Faulty(exports(), tmp_path_factory.mktemp("longer"), MAIN).paths
    for path in files:
        repeat(path, MAIN, MANY - len(STEADY), jitter=0.0005)
    return files


def side(paths: Sequence[Path]) -> StepInput:
    return StepInput(tuple(paths), hlo=(DUMP,))


@dataclass(frozen=True)
class Fault:
    """What is planted, and under which names and sizes it is to be found."""

    plant: Callable[[Faulty], float]  # plants it; what it adds to a mean step, in ms
    finding: str  # id, empty: none
    names: tuple[str, ...] = ()  # in the finding's words or its evidence
    # group or name of the row of ``--against`` that grew by as much; "late": what ranks wait;
    # empty: it is spread over many
    row: str = ""
    base_ms: float = 0.0  # what the finding counts in the clean recording
    is_many: bool = False  # in the longer recording
    verdict: StepVerdict | None = StepVerdict.LONGER
    # whether the finding's share is what is planted; else only a part of that can be saved
    is_saved: bool = True
    also: str = ""  # another such row, whose growth is a part of what is planted


def whole(faulty: Faulty) -> range:
    """Warm-up too."""
    return range(int(faulty.ranks[0].execution.max()) + 1)


def every(faulty: Faulty) -> range:
    return range(2, int(faulty.ranks[0].execution.max()) + 1)


def late(rank: int, ms: float, *, busy: bool = False) -> Callable[[Faulty], float]:
    def plant(faulty: Faulty) -> float:
        for execution in every(faulty):
            faulty.hold(rank, execution, round(ms * MS), busy=busy)
        return ms

    return plant


def slow_link(rank: int, name: str, ms: float) -> Callable[[Faulty], float]:
    def plant(faulty: Faulty) -> float:
        faulty.slow_link(rank, name, every(faulty), round(ms * MS))
        return ms

    return plant


def slow_gpu(rank: int, factor: float) -> Callable[[Faulty], float]:
    return lambda faulty: faulty.slow_compute(rank, factor, every(faulty)) / MS


def in_turn(sizes: Sequence[float]) -> Callable[[Faulty], float]:
    def plant(faulty: Faulty) -> float:
        for execution in every(faulty):
            faulty.hold(
                execution % 2, execution, round(sizes[execution % len(sizes)] * MS)
            )
        used = [sizes[execution % len(sizes)] for execution in every(faulty)]
        return sum(used) / len(used)

    return plant


def gap(
    ms: float, executions: Sequence[int] | None = None, at: float = 0.5
) -> Callable[[Faulty], float]:
    def plant(faulty: Faulty) -> float:
        chosen = list(executions or every(faulty))
        for execution in chosen:
            faulty.hold_all(execution, at, round(ms * MS))
        return ms * len(chosen) / len(every(faulty))

    return plant


def pause(ms: float) -> Callable[[Faulty], float]:
    """Between steps: before the first kernel of all but the first."""

    def plant(faulty: Faulty) -> float:
        for rank in faulty.ranks:
            for execution in list(every(faulty))[1:]:
                rank.shift(int(rank.start[rank.of(execution)].min()), round(ms * MS))
        return ms

    return plant


def stretched(factor: float, executions: Sequence[int]) -> Callable[[Faulty], float]:
    def plant(faulty: Faulty) -> float:
        added = 0.0
        for execution in executions:
            rows = [rank.of(execution) for rank in faulty.ranks]
            spans = [
                rank.end[here].max() - rank.start[here].min()
                for rank, here in zip(faulty.ranks, rows, strict=True)
            ]
            added += float(sum(spans)) / len(spans) * (factor - 1)
            faulty.stretch(execution, factor)
        return added / len(every(faulty)) / MS

    return plant


def longer_instruction(name: str, factor: float) -> Callable[[Faulty], float]:
    def plant(faulty: Faulty) -> float:
        faulty.lengthen(
            name,
            factor,
            [number for number in whole(faulty) if number not in every(faulty)],
        )
        return (
            faulty.lengthen(name, factor, every(faulty)) / MS
        )  # an execution of warm-up waits for seconds

    return plant


def split(parts: int, gap_us: float) -> Callable[[Faulty], float]:
    return lambda faulty: faulty.split(parts, round(gap_us * 1000), every(faulty)) / MS


def module(name: str, ms: float) -> Callable[[Faulty], float]:
    def plant(faulty: Faulty) -> float:
        faulty.insert(name, round(ms * MS), list(every(faulty))[:-1])
        return ms

    return plant


def copied(ms: float) -> Callable[[Faulty], float]:
    def plant(faulty: Faulty) -> float:
        faulty.copy(round(ms * MS), 0.5, every(faulty))
        return ms

    return plant


def contending(
    kernels: int, factor: float, executions: Sequence[int]
) -> Callable[[Faulty], float]:
    """A copy next to kernels of some executions."""

    def plant(faulty: Faulty) -> float:
        gained = faulty.contending_copy(kernels, factor, 0.3, executions)
        return gained * len(executions) / len(every(faulty)) / MS

    return plant


def other_kernels(name: str, kernel: str, factor: float) -> Callable[[Faulty], float]:
    def plant(faulty: Faulty) -> float:
        faulty.rename(name, kernel)
        return faulty.lengthen(name, factor, whole(faulty)) / MS

    return plant


# what the clean recordings hold of it already, in ms
WAITS, WAITS_LONGER = 0.41, 0.76
PAUSES, LAUNCH_GAPS = 3.77, 2.99
SLOW = 2.5  # of collectives below XLA's table
GATHER, PRODUCT = "all-gather-start.2", "custom-call.219.0"

FAULTS: dict[str, Fault] = {
    "rank 3 late: its host pauses 5 ms": Fault(
        late(1, 5), "rank-skew", ("proc3:",), "late", WAITS_LONGER, True
    ),
    "rank 0 late: its host pauses 4 ms": Fault(
        late(0, 4), "rank-skew", ("proc0:",), "late", WAITS_LONGER, True
    ),
    "rank 3 late: a kernel takes 6 ms longer": Fault(
        late(1, 6, busy=True), "rank-skew", ("proc3:",), "late", WAITS
    ),
    "rank 0 late: a kernel takes 3 ms longer": Fault(
        late(0, 3, busy=True), "rank-skew", ("proc0:",), "late", WAITS_LONGER, True
    ),
    "a collective 5 ms longer on rank 3 alone": Fault(
        slow_link(1, GATHER, 5),
        "slow-link",
        (GATHER, "proc3:"),
        GATHER,
        also="waits for other ranks",
        is_many=True,
    ),
    "a collective 3 ms longer on rank 0 alone": Fault(
        slow_link(0, "all-gather-start.5", 3),
        "slow-link",
        ("all-gather-start.5", "proc0:"),
        "all-gather-start.5",
        also="waits for other ranks",
    ),
    "all compute of rank 0 takes 5 % longer": Fault(
        slow_gpu(0, 1.05),
        "rank-skew",
        ("all compute", "5.0 % slower", "proc0:"),
        "late",
        base_ms=WAITS,
    ),
    "a rank late in turn by 3 to 4.5 ms": Fault(
        in_turn((3, 3.5, 4.5)),
        "rank-skew",
        ("last in 5 of 9", "last in 4 of 9"),
        "late",
        WAITS_LONGER,
        True,
    ),
    "a gap of 3 ms in every step": Fault(
        gap(3), "idle", ("before",), "host gaps", 0.1, True
    ),
    "a gap of 2 ms early in every step": Fault(
        gap(2, at=0.2), "idle", ("before",), "host gaps", 0.15
    ),
    "a gap of 50 ms in one of three steps": Fault(
        gap(50, (3,)),
        "slow-steps",
        ("execution 3", "host gaps"),
        "slow steps",
        verdict=None,
    ),
    "a gap of 30 ms in one of nine steps": Fault(
        gap(30, (6,)),
        "slow-steps",
        ("execution 6", "host gaps"),
        "slow steps",
        0,
        True,
        verdict=None,
    ),
    "one of three steps 40 % longer on all ranks": Fault(
        stretched(1.4, (4,)),
        "slow-steps",
        ("execution 4", "compute"),
        "slow steps",
        verdict=None,
    ),
    "one of nine steps 40 % longer on all ranks": Fault(
        stretched(1.4, (7,)),
        "slow-steps",
        ("execution 7", "compute"),
        "slow steps",
        0,
        True,
        verdict=None,
    ),
    "a pause of 12 ms between steps": Fault(
        pause(12), "input-bound", (), "between steps", PAUSES
    ),
    "another module of 12 ms between steps": Fault(
        module("jit_metrics", 12),
        "other-modules",
        ("jit_metrics",),
        "jit_metrics",
        0,
        True,
    ),
    "another module of 2 ms between steps": Fault(
        module("jit_lr", 2), "other-modules", ("jit_lr",), "jit_lr"
    ),
    "an exposed collective five times as long": Fault(
        longer_instruction("all-gather-start.2", 5),
        "slow-collective",
        ("all-gather-start.2",),
        "all-gather-start.2",
        SLOW,
    ),
    "a product twice as long": Fault(longer_instruction(PRODUCT, 2), "", (), PRODUCT),
    "a product in other kernels, off the Tensor Cores": Fault(
        other_kernels(PRODUCT, "ampere_sgemm_128x64_tn", 4),
        "off-tensor-cores",
        (PRODUCT, "sgemm"),
        PRODUCT,
        is_saved=False,
    ),
    "kernels split in ten, 2 µs between": Fault(
        split(10, 2), "launch-gaps", ("launch gaps",), "launch gaps", LAUNCH_GAPS
    ),
    "a copy slows 150 kernels in one of three steps": Fault(
        contending(150, 1.5, (3,)),
        "contending-copies",
        ("copies outside of instructions", "in 1 of 3 steps"),
        "slow steps",
        verdict=None,
    ),
    "a copy slows 100 kernels in two of nine steps": Fault(
        contending(100, 1.5, (4, 8)),
        "contending-copies",
        ("copies outside of instructions", "in 2 of 9 steps"),
        is_many=True,
        verdict=None,
    ),
    "a copy of 3 ms in every step": Fault(copied(3), "exposed-copies", (), "copies"),
}


@pytest.fixture(scope="module")
def clean() -> MeasuredStep:
    return measured_step(side(exports()))


@pytest.fixture(scope="module")
def clean_longer(longer: list[Path]) -> MeasuredStep:
    return measured_step(side(longer))


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_by_name_and_size(
    name: str,
    tmp_path: Path,
    longer: list[Path],
    clean: MeasuredStep,
    clean_longer: MeasuredStep,
) -> None:
    fault = FAULTS[name]
    faulty = Faulty(longer if fault.is_many else exports(), tmp_path, MAIN)
    planted = fault.plant(faulty)
    step = measured_step(side(faulty.write()))
    findings, against = (
        find_findings(step),
        find_differences(clean_longer if fault.is_many else clean, step),
    )
    if fault.finding:
        (finding,) = (one for one in findings if one.id == fault.finding)
        words = f"{finding.number} {' '.join(f'{row.name} {row.note}' for row in finding.evidence)}"
        assert all(part in words for part in fault.names), words
        if fault.is_saved:
            assert finding.share * step.step_us / 1e3 == pytest.approx(
                planted + fault.base_ms, rel=0.1
            )
    assert against.delta_us / 1e3 == pytest.approx(planted, rel=0.1)
    assert sum(
        change.delta_us for change in against.changes
    ) + against.other_us == pytest.approx(against.delta_us)
    if fault.row == "late":
        grown = against.late_us[1] - against.late_us[0]
    else:
        grown = sum(
            change.delta_us
            for change in against.changes
            if {fault.row, fault.also} & {change.group, change.name}
        )
    if fault.row:
        assert grown / 1e3 == pytest.approx(planted, rel=0.1)
    if fault.verdict is not None:
        assert against.verdict == fault.verdict, against.why


def test_nothing_is_found_in_the_clean_recording(
    clean: MeasuredStep, clean_longer: MeasuredStep
) -> None:
    assert {one.id for one in find_findings(clean_longer)} == {
        "slow-collective",
        "window",
    }
    assert find_differences(clean, clean_longer).verdict == StepVerdict.CANNOT_TELL


def test_a_collective_that_is_longer_but_hidden_costs_nothing(
    tmp_path: Path, clean: MeasuredStep
) -> None:
    faulty = Faulty(exports(), tmp_path, MAIN)
    for rank in faulty.ranks:
        for execution in every(faulty):
            (row,) = (
                at
                for at in rank.of(execution).tolist()
                if rank.name[at] == "all-gather-start.4"
            )
            rank.end[row] += 50_000
    against = find_differences(clean, measured_step(side(faulty.write())))
    assert abs(against.delta_us) < 20
    assert against.verdict == StepVerdict.CANNOT_TELL


def test_a_third_step_of_warm_up_is_left_out(
    tmp_path: Path, clean: MeasuredStep
) -> None:
    faulty = Faulty(exports(), tmp_path, MAIN)
    faulty.stretch(2, 1.2)
    step = measured_step(side(faulty.write()))
    (window,) = (one for one in find_findings(step) if one.id == "window")
    assert "3 executions of warm-up" in window.number
    assert step.step_us == pytest.approx(clean.step_us, rel=0.01)


@pytest.mark.parametrize("repeated", [twice, kernels_twice])
def test_events_that_are_recorded_twice_count_once(
    repeated: Callable[..., None], tmp_path: Path, clean: MeasuredStep
) -> None:
    faulty = Faulty(exports(), tmp_path, MAIN)
    faulty.edit(repeated)
    step = measured_step(side(faulty.paths))
    assert step.breakdown == clean.breakdown
    assert [one.id for one in find_findings(step)] == [
        one.id for one in find_findings(clean)
    ]
    assert any("recorded twice" in line for line in step.trace.warnings)


@pytest.mark.parametrize(
    ("factor", "words", "lost"),
    [
        (
            lambda place: 1.01**place,
            "longer from execution 2 to 10 (1.0 % each)",
            0.039,
        ),
        (lambda place: 1 + 0.05 * (place >= 4), "longer from execution 6 on", 0.027),
        (lambda place: 1 + 0.08 * (place % 2), "every second step is", 0.034),
    ],
)
def test_steps_that_change_over_time_are_found(
    factor: Callable[[int], float],
    words: str,
    lost: float,
    tmp_path: Path,
    longer: list[Path],
) -> None:
    faulty = Faulty(longer, tmp_path, MAIN)
    for place, execution in enumerate(every(faulty)):
        faulty.stretch(execution, factor(place))
    findings = find_findings(measured_step(side(faulty.write())))
    (found,) = (one for one in findings if one.id == "changing-steps")
    assert words in found.number
    assert found.share == pytest.approx(lost, rel=0.1)
    assert "slow-steps" not in {one.id for one in findings}


@pytest.mark.parametrize(
    ("waits", "words"), [(True, "the other ranks wait"), (False, "no other rank waits")]
)
def test_the_host_of_a_pause_is_named_and_whether_the_others_wait(
    waits: bool, words: str, tmp_path: Path, longer: list[Path]
) -> None:
    faulty = Faulty(longer, tmp_path, MAIN)
    if waits:
        faulty.hold(1, 6, 20 * MS)
    else:  # the other rank goes on: no collective makes it wait
        paused = faulty.ranks[1]
        paused.shift(int(paused.start[paused.of(6)[100]]), 20 * MS)
    findings = find_findings(measured_step(side(faulty.write())))
    (found,) = (one for one in findings if one.id == "slow-steps")
    (row,) = (row for row in found.evidence if row.name.startswith("host of"))
    assert "proc3" in row.name
    assert "in execution 6" in row.note
    assert words in row.note
    assert row.us * MANY == pytest.approx(20_000, rel=0.1)


def test_two_late_ranks_are_two(tmp_path: Path, longer: list[Path]) -> None:
    faulty = Faulty(longer, tmp_path, MAIN)
    for execution in every(faulty):
        faulty.hold(0, execution, 3 * MS)
        faulty.hold(1, execution, 5 * MS)
    findings = find_findings(measured_step(side(faulty.write())))
    (found,) = (one for one in findings if one.id == "rank-skew")
    assert "GPU 0 (proc3:" in found.number
    assert "GPU 0 (proc0:" in found.number


def test_all_compute_that_is_slower_alike_is_one_row(
    tmp_path: Path, clean: MeasuredStep
) -> None:
    faulty = Faulty(exports(), tmp_path, MAIN)
    for execution in every(faulty):
        faulty.stretch(execution, 1.03)
    against = find_differences(clean, measured_step(side(faulty.write())))
    first = against.changes[0]
    assert (first.group, first.note) == ("compute", "+3.0 % each")
    assert first.delta_us == pytest.approx(0.03 * clean.breakdown.compute_us, rel=0.1)
    assert abs(against.other_us) < 0.1 * against.delta_us


def test_one_slower_product_is_not_all_compute(
    tmp_path: Path, clean: MeasuredStep
) -> None:
    faulty = Faulty(exports(), tmp_path, MAIN)
    faulty.lengthen(PRODUCT, 2, every(faulty))
    against = find_differences(clean, measured_step(side(faulty.write())))
    assert against.changes[0].name == PRODUCT


def test_a_warm_up_before_steps_that_grow_is_left_out(
    tmp_path: Path, longer: list[Path]
) -> None:
    faulty = Faulty(longer, tmp_path, MAIN)
    for place, execution in enumerate(every(faulty)):
        faulty.stretch(execution, 1.04 if place == 0 else 1.01**place)
    step = measured_step(side(faulty.write()))
    assert {0, 1, 2} == set(step.costs.window.dropped)


def test_the_clock_of_a_rank_does_not_matter(
    tmp_path: Path, clean: MeasuredStep
) -> None:
    faulty = Faulty(exports(), tmp_path, MAIN)
    faulty.edit(clock_moved(7_000_000_123), rank=1)
    step = measured_step(side(faulty.paths))
    assert (step.breakdown, step.late) == (clean.breakdown, clean.late)


def test_ranks_of_one_run_are_not_compared_as_two_runs() -> None:
    one, two = (measured_step(StepInput((path,), hlo=(DUMP,))) for path in exports())
    found = find_differences(one, two)
    assert (found.verdict, found.why) == (
        StepVerdict.CANNOT_TELL,
        "both sides are ranks of one run",
    )
    assert any("1 of 4 ranks" in line for line in one.costs.warnings)


def test_a_slow_step_is_no_skew_and_the_profile_stays_typical(
    tmp_path: Path, clean: MeasuredStep
) -> None:
    faulty = Faulty(exports(), tmp_path, MAIN)
    faulty.stretch(4, 1.4)
    step = measured_step(side(faulty.write()))
    assert step.costs.skew_us is not None
    assert step.costs.skew_us < 500
    before, after = (
        sum(
            cost.cost_us * cost.samples / one.costs.window.used
            for cost in one.costs.costs
        )
        for one in (clean, step)
    )
    assert after == pytest.approx(before, rel=0.02)


def test_more_ranks_than_the_program_has_are_refused(tmp_path: Path) -> None:
    paths = []
    for job in range(3):
        faulty = Faulty(exports(), tmp_path / str(job), MAIN)
        faulty.edit(other_process(job * 16))
        paths += faulty.paths
    with pytest.raises(
        UserError, match="traces of 6 devices, but pjit__wrapped_step_fn runs on 4"
    ):
        measured_step(side(paths))
