"""Costs carried over to another module: to one of other names, of another release, of another
size.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.costs.profile.carry import By, Carried, carry, scale_by
from pgle.costs.profile.lookup import LookupTable
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile
from pgle.xla.hlo.dumps import read_module
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.targets import find_hardware

pytestmark = pytest.mark.usefixtures("read_once")

STEP = "pax_fsdp4/proc0/dump/module_0040.pjit__wrapped_step_fn.sm_8.0_gpu_after_optimizations.hlo.pb.xz"
RELEASES = ("jax-0.10.2", "jax-0.12.0.1")


def renamed(module: Module) -> tuple[Module, dict[str, str]]:
    """The module with every instruction's name drawn anew, and old name → new name."""
    names = list(module.instructions)
    drawn = [f"instruction.{number}" for number in range(len(names))]
    random.Random(7).shuffle(drawn)
    new = dict(zip(names, drawn, strict=True))

    def one(item: Instruction) -> Instruction:
        operands, after = (
            tuple(map(new.__getitem__, group))
            for group in (item.operands, item.control_predecessors)
        )
        return replace(
            item,
            name=new[item.name],
            operands=operands,
            control_predecessors=after,
            scheduling_name="",
        )

    computations = {
        name: replace(
            found,
            instructions=tuple(map(one, found.instructions)),
            root=new[found.root],
        )
        for name, found in module.computations.items()
    }
    return replace(module, computations=computations), new


def costs_for(table: LookupTable, seed: int = 3) -> Profile:
    """Another cost for every instruction."""
    draw = random.Random(seed)
    return Profile(
        tuple(
            row.cost(draw.uniform(1, 1000), Origin.MEASURED)
            for row in table.rows.values()
        )
    )


def test_each_instruction_of_a_real_step_gets_its_own_cost_back_whatever_its_name(
    testdata: Path,
) -> None:
    module = read_module(testdata / STEP)
    other, new = renamed(module)
    old = LookupTable(module)
    profile = costs_for(old)
    costs = old.costs(profile)
    found = {
        match.name: match.cost.cost_us
        for match in carry(profile, old, LookupTable(other)).matches
    }
    own = [
        name
        for name, row in old.rows.items()
        if found.get(new[row.instruction.name]) == costs[name].cost_us
    ]
    total = sum(costs[name].cost_us * row.executions for name, row in old.rows.items())
    assert (
        sum(costs[name].cost_us * old.rows[name].executions for name in own)
        > 0.99 * total
    )


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("way", [RELEASES, RELEASES[::-1]])
def test_a_profile_is_carried_to_another_release(
    testdata: Path, way: tuple[str, str], mode: str
) -> None:
    old, new = (
        LookupTable(
            read_module(
                next(
                    (testdata / "hlo" / release / mode).glob("*optimizations.hlo.pb.xz")
                )
            )
        )
        for release in way
    )
    carried = carry(costs_for(old), old, new, scale_by(old, new, find_hardware("h100")))
    assert (
        carried.share > 0.85
    )  # every instruction costs alike here; of real steps 94 to 100 % is carried
    for match in carried.matches:
        assert new.rows[match.name].opcode == match.cost.opcode


HLO = """HloModule jit_step, is_scheduled=true, num_partitions={devices}

ENTRY %main (p: bf16[128,256]) -> bf16[{whole},256] {{
  %p = bf16[128,256] parameter(0)
  %dot.1 = bf16[128,256] custom-call(%p, %p), custom_call_target="__cublas$gemm", metadata={{op_name="jit(step)/dot"}}
  ROOT %{name} = bf16[{whole},256] all-gather(%dot.1), replica_groups={{{{{group}}}}}, dimensions={{0}}, \
metadata={{op_name="jit(step)/gather" scheduling_name="{name}"}}
}}
"""


def gathering(tmp_path: Path, devices: int, name: str = "all-gather.1") -> LookupTable:
    group = ",".join(map(str, range(devices)))
    text = HLO.format(devices=devices, whole=128 * devices, group=group, name=name)
    path = tmp_path / f"{devices}{name}.txt"
    path.write_text(text)
    return LookupTable(read_module(path))


MEASURED = Profile((
    Cost("dot.1", 100.0, kind=CostKind.COMPUTE), Cost("all-gather.1", 40.0, kind=CostKind.COLLECTIVE),
))  # fmt: skip


def carried_to(tmp_path: Path, devices: int, factor: float | None) -> Carried:
    return carry(
        MEASURED,
        gathering(tmp_path, 4),
        gathering(tmp_path, devices, "g.7"),
        lambda was, row: factor,
    )


def test_a_collective_of_a_larger_group_is_scaled_and_marked(tmp_path: Path) -> None:
    carried = carried_to(tmp_path, 16, 2.5)
    (match,) = [match for match in carried.matches if match.by is By.SCALED]
    assert (match.name, match.was, match.cost.cost_us, match.cost.origin) == (
        "g.7", "all-gather.1", 100.0, Origin.ESTIMATED,
    )  # fmt: skip
    assert carried.left == ()
    assert carried.share == 1.0


def test_a_collective_that_nobody_can_scale_is_left(tmp_path: Path) -> None:
    carried = carried_to(tmp_path, 16, None)
    assert carried.left == ("g.7",)
    assert carried.unused == ("all-gather.1",)
    assert carried.share == pytest.approx(100 / 140)


def test_the_same_group_under_another_name_is_measured(tmp_path: Path) -> None:
    assert [match.cost.origin for match in carried_to(tmp_path, 4, 9.0).matches] == [
        Origin.MEASURED
    ] * 2


def test_the_command_writes_a_profile_that_verify_accepts(
    testdata: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = (testdata / "hlo" / release / "async" for release in RELEASES)
    table = LookupTable(read_module(next(old.glob("*optimizations.hlo.pb.xz"))))
    text = "".join(
        f'costs {{ name: "{row.filed_as}" cost_us: 5 }}\n'
        for row in table.rows.values()
    )
    (tmp_path / "old.pbtxt").write_text(text)
    words = [
        str(tmp_path / "old.pbtxt"),
        "--from",
        str(old),
        "--to",
        str(new),
        "-o",
        str(tmp_path / "new.pbtxt"),
    ]
    assert run(["carry", *words]) == 0
    assert (
        "of the profile's time carried over" in capsys.readouterr().out.splitlines()[1]
    )
    assert run(["verify", str(tmp_path / "new.pbtxt"), "--hlo", str(new)]) == 0


def test_a_profile_that_verify_would_refuse_leads_to_measuring(
    testdata: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = str(testdata / "hlo" / RELEASES[0] / "async")
    given, out = tmp_path / "p.pbtxt", tmp_path / "new.pbtxt"
    given.write_text('costs { name: "all-gather-start" cost_us: 500 }')
    assert run(["carry", str(given), "--from", dump, "--to", dump, "-o", str(out)]) == 0
    said = capsys.readouterr().out
    assert "Next: pgle verify" not in said
    assert "Now: measure this program" in said
    assert run(["verify", str(out), "--hlo", dump]) == 1


def test_modules_that_share_nothing_are_refused(
    testdata: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.pbtxt").write_text('costs { name: "nothing" cost_us: 5 }')
    dump = str(testdata / "hlo" / RELEASES[0] / "async")
    assert (
        run(
            [
                "carry",
                str(tmp_path / "p.pbtxt"),
                "--from",
                dump,
                "--to",
                dump,
                "-o",
                str(tmp_path / "o.pbtxt"),
            ]
        )
        == 2
    )
    assert "no cost of any instruction" in capsys.readouterr().err
    assert not (tmp_path / "o.pbtxt").exists()


def test_a_profile_of_another_program_is_refused(
    testdata: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump, out = str(testdata / "hlo" / RELEASES[0] / "async"), tmp_path / "o.pbtxt"
    foreign = (
        testdata / "maxtext_pgle/llama2_70b_bf16_pgle_16vm.pbtxt"
    )  # it has all-gather-start and fusion.1, too
    assert (
        run(["carry", str(foreign), "--from", dump, "--to", dump, "-o", str(out)]) == 2
    )
    assert (
        "--from is not the module that this profile was measured on"
        in capsys.readouterr().err
    )
    assert not out.exists()


def test_the_share_is_of_all_the_profile_s_time(tmp_path: Path) -> None:
    other = Cost(
        "fusion.9", 60.0, kind=CostKind.COMPUTE
    )  # of no instruction of the module
    loop = Cost("while.1", 500.0, kind=CostKind.LOOP)  # its body's costs count
    profile = Profile((*MEASURED.costs, other, loop))
    assert carry(
        profile, gathering(tmp_path, 4), gathering(tmp_path, 4, "g.7")
    ).share == pytest.approx(140 / 200)


SCALED = """HloModule jit_step, is_scheduled=true, num_partitions=4

%fused (p: bf16[64,128]) -> bf16[128,64] {{
  %p = bf16[64,128] parameter(0)
  ROOT %t = bf16[128,64] transpose(%p), dimensions={{1,0}}
}}

ENTRY %main (p: bf16[64,128]) -> (bf16[128,64], {gathered}) {{
  %p = bf16[64,128] parameter(0)
  %t.1 = bf16[128,64] fusion(%p), kind={kind}, calls=%fused
  %g = {gathered} all-gather({operands}), replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}, \
metadata={{op_name="gather" scheduling_name="g"}}
  ROOT %r = (bf16[128,64], {gathered}) tuple(%t.1, %g)
}}
"""


def test_another_kernel_and_gathers_combined_otherwise_are_scaled_by_estimates(
    tmp_path: Path,
) -> None:
    tables = []
    for kind, operands, gathered in (
        ("kInput", "%p", "bf16[256,128]"),
        ("kLoop", "%p, %p", "(bf16[256,128], bf16[256,128])"),
    ):
        path = tmp_path / f"{kind}.txt"
        path.write_text(SCALED.format(kind=kind, operands=operands, gathered=gathered))
        tables.append(LookupTable(read_module(path)))
    measured = Profile(
        (
            Cost("t.1", 10.0, kind=CostKind.COMPUTE),
            Cost("g", 40.0, kind=CostKind.COLLECTIVE),
        )
    )
    found = {
        match.name: match
        for match in carry(measured, *tables, lambda was, row: 3.0).matches
    }
    assert {name: (match.by, match.cost.cost_us) for name, match in found.items()} == {
        "t.1": (By.SCALED, 30.0), "g": (By.SCALED, 120.0),
    }  # fmt: skip
    assert {match.cost.origin for match in found.values()} == {Origin.ESTIMATED}


LAYERS = """HloModule jit_step, is_scheduled=true

%fused (p: f32[{layers},64]) -> f32[{layers},64] {{
  %p = f32[{layers},64] parameter(0)
  ROOT %a = f32[{layers},64] add(%p, %p)
}}

ENTRY %main (p: f32[{layers},64]) -> f32[{layers},64] {{
  %p = f32[{layers},64] parameter(0)
  ROOT %{name} = f32[{layers},64] fusion(%p), kind=kLoop, calls=%fused{metadata}
}}
"""


@pytest.mark.parametrize(
    ("names", "metadata"),
    [
        (("loop_add_fusion", "loop_add_fusion.3"), ""),
        (("update", "fusion.9"), ', metadata={op_name="jit(step)/add"}'),
    ],
)
def test_after_a_change_of_the_number_of_layers_a_kernel_is_scaled_from_the_same_line_or_form(
    tmp_path: Path, names: tuple[str, str], metadata: str
) -> None:
    tables = []
    for layers, name in zip((4, 6), names, strict=True):
        path = tmp_path / f"{layers}.txt"
        path.write_text(LAYERS.format(layers=layers, name=name, metadata=metadata))
        tables.append(LookupTable(read_module(path)))
    measured = Profile((Cost(names[0], 10.0, kind=CostKind.COMPUTE),))
    (match,) = carry(measured, *tables, lambda was, row: 1.5).matches
    assert (match.by, match.cost.cost_us) == (By.SCALED, 15.0)
    assert match.cost.origin is Origin.ESTIMATED
