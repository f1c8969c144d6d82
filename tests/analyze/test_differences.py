"""What changed between two steps: planted changes are told by kind and size, whatever instructions
are called.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.differences import (
    ChangeKind,
    Differences,
    StepChange,
    StepVerdict,
    find_differences,
)
from pgle.cli.main import run
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.text import module_from_text
from tests.analyze.conftest import ROOT, SIDE, Run, repeated

Measure = Callable[..., MeasuredStep]


def module_of(
    *names: str,
    op_names: tuple[str, ...] = ("a", "b", "c"),
    start: str = "all-gather-start.1",
) -> Module:
    """Three kernels that look alike but for the framework's name, and a collective."""
    kernels = "\n".join(
        f'  {name} = f32[1024]{{0}} negate(p), metadata={{op_name="jit(step)/{op_name}/neg" '
        f'source_file="/src/{op_name}.py" source_line=7}}'
        for name, op_name in zip(names, op_names, strict=True)
    )
    text = f"""HloModule jit_step, is_scheduled=true, num_partitions=2

ENTRY main {{
  p = f32[1024]{{0}} parameter(0)
  {start} = (f32[1024]{{0}}, f32[2048]{{0}}) all-gather-start(p), channel_id=1, replica_groups={{{{0,1}}}}, dimensions={{0}}, use_global_device_ids=true
{kernels}
  ROOT done = f32[2048]{{0}} all-gather-done({start})
}}
"""  # noqa: E501
    return module_from_text(
        text.encode(),
        "module_0001.jit_step.sm_9.0_gpu_after_optimizations.txt",
        program_id=1,
    )


def step_of(
    measured: Measure,
    module: Module,
    times: dict[str, float],
    *,
    exposed: float = 0.0,
    gather: float = 50,
) -> MeasuredStep:
    """Kernels one after the other, and a gather beside the last of them that ends `exposed` after
    it.
    """
    runs, clock = [], 0.0
    for name, time in times.items():
        runs.append(Run(name, clock, time))
        clock += time
    start = next(
        item.name for item in module.walk() if item.opcode == "all-gather-start"
    )
    runs.append(Run(start, clock - gather + exposed, gather, SIDE))
    return measured(repeated(*runs, every=10_000), module)


BASE = {"fusion.1": 1000.0, "fusion.2": 2000.0, "fusion.3": 3000.0}


@pytest.fixture
def base(measured: Measure) -> MeasuredStep:
    return step_of(measured, module_of(*BASE), BASE)


def of_instructions(found: Differences) -> list[StepChange]:
    """Without the pause between steps, which gets shorter as kernels get longer: these steps begin
    every 10 ms.
    """
    return [
        change
        for change in found.changes
        if change.group in ("compute", "communication")
    ]


def only(found: Differences) -> tuple[ChangeKind, str, float]:
    (change,) = of_instructions(found)
    return change.kind, change.name, change.delta_us


def test_a_step_against_itself_has_no_change(base: MeasuredStep) -> None:
    found = find_differences(base, base)
    assert (found.changes, found.delta_us, found.other_us) == ((), 0, 0)
    assert found.matched == 4


def test_a_kernel_that_got_slower_under_another_number(
    base: MeasuredStep, measured: Measure
) -> None:
    names = ("fusion.2", "fusion.3", "fusion.1")  # the numbers of other kernels
    after = step_of(
        measured,
        module_of(*names),
        dict(zip(names, (1000.0, 2500.0, 3000.0), strict=True)),
    )
    found = find_differences(base, after)
    assert only(found) == (ChangeKind.SLOWER, "fusion.3", pytest.approx(500))
    (change,) = of_instructions(found)
    assert change.before is not None
    assert (change.before.name, change.source) == ("fusion.2", "/src/b.py:7")
    assert found.renamed == 3


def test_appeared_and_gone(base: MeasuredStep, measured: Measure) -> None:
    names = ("fusion.1", "fusion.2", "fusion.4")
    after = step_of(
        measured,
        module_of(*names, op_names=("a", "b", "new")),
        dict(zip(names, (1000.0, 2000.0, 2500.0), strict=True)),
    )
    found = find_differences(base, after)
    # of one opcode and shape, but the framework calls them differently: another kernel
    assert [
        (change.kind, change.name, change.delta_us) for change in of_instructions(found)
    ] == [
        (ChangeKind.GONE, "fusion.3", pytest.approx(-3000)),
        (ChangeKind.APPEARED, "fusion.4", pytest.approx(2500)),
    ]


@pytest.mark.parametrize(
    ("gather", "kind"),
    [
        pytest.param(50, ChangeKind.HIDDEN_LESS, id="as fast as before"),
        pytest.param(
            69, ChangeKind.HIDDEN_LESS, id="slower by less than half of what is exposed"
        ),
        pytest.param(71, ChangeKind.SLOWER, id="slower by more than half of it"),
    ],
)
def test_a_collective_of_which_more_is_exposed(
    base: MeasuredStep, measured: Measure, gather: float, kind: ChangeKind
) -> None:
    after = step_of(
        measured,
        module_of(*BASE, start="all-gather-start.9"),
        BASE,
        exposed=40,
        gather=gather,
    )
    found = find_differences(base, after)
    assert only(found) == (kind, "all-gather-start.9", pytest.approx(40))
    assert (
        found.after.exposed_communication_us - found.before.exposed_communication_us
        == pytest.approx(40)
    )


def test_changes_add_up(base: MeasuredStep, measured: Measure) -> None:
    after = step_of(
        measured,
        module_of(*BASE),
        {"fusion.1": 1001.0, "fusion.2": 1500.0, "fusion.3": 3300.0},
    )
    found = find_differences(base, after)
    assert sum(
        change.delta_us for change in found.changes
    ) + found.other_us == pytest.approx(found.delta_us, abs=1e-6)
    compute_us = sum(change.delta_us for change in of_instructions(found))
    assert compute_us + 1 == pytest.approx(
        found.after.compute_us - found.before.compute_us
    )
    assert [change.name for change in found.changes] == [
        "fusion.2",
        "fusion.3",
        "between steps",
    ]


def test_without_hlo_by_name(measured: Measure) -> None:
    sides = [
        measured(repeated(Run("fusion.1", 0, one), Run("fusion.2", one, 500)))
        for one in (1000.0, 1200.0)
    ]
    assert only(find_differences(*sides)) == (
        ChangeKind.SLOWER,
        "fusion.1",
        pytest.approx(200),
    )


def test_with_hlo_of_one_side_only_by_name(
    base: MeasuredStep, measured: Measure
) -> None:
    found = find_differences(base, measured(base.trace))
    assert (found.matched, found.changes) == (4, ())


def test_the_real_a100_ranks_run_one_program(pax: MeasuredStep) -> None:
    found = find_differences(pax, pax)
    assert found.verdict == StepVerdict.CANNOT_TELL
    assert (found.matched, found.renamed, found.changes) == (
        len(pax.compute) + len(pax.collectives),
        0,
        (),
    )


@pytest.mark.parametrize("release", ["0.10.2", "0.12.0.1"])
def test_two_schedules_of_one_program_are_matched_through_renames(
    release: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dumps = ROOT / "testdata" / "hlo" / f"jax-{release}"
    assert (
        run(
            [
                "analyze",
                str(dumps / "sync"),
                "--against",
                str(dumps / "async"),
                "--json",
            ]
        )
        == 0
    )
    changes = json.loads(capsys.readouterr().out)["against"]["changes"]
    collectives = [
        change
        for change in changes
        if change["opcode"].startswith(("all-", "reduce-scatter"))
    ]
    assert {change["kind"] for change in collectives} == {"hidden less"}
    assert (
        sum(change["note"].startswith("now synchronous") for change in collectives)
        > len(collectives) / 2
    )
