"""Names when LHS ran, owners and loops: against XLA's own schedule dumps."""

from pathlib import Path

import pytest

from pgle.costs.profile.lookup import schedulable
from pgle.xla.async_pairs import result_shape
from pgle.xla.collectives import walk_collectives
from pgle.xla.hlo.dumps import read_module, read_modules
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.schedule_dump import read_schedule_dump
from pgle.xla.hlo.trips import trip_count
from pgle.xla.lhs_names import lhs_names
from pgle.xla.owners import loops, owner

PAX = Path(__file__).parents[3] / "testdata" / "pax_fsdp4" / "proc0" / "dump"


@pytest.fixture
def lhs(dumps: Path) -> Module:
    """The performance run's module as LHS saw it."""
    return read_schedule_dump(dumps / "async" / "jit_step.schedule.pb.xz").module


def identities(module: Module, names: dict[str, str]) -> dict[str, tuple[object, ...]]:
    """What each collective is, by its name when LHS ran."""
    return {
        names.get(item.name, item.name): (
            kind,
            (module.wrapped(item) or item).channel_id,
            result_shape(module, item),
        )
        for item, kind in walk_collectives(module)
    }


@pytest.mark.parametrize("run", ["async", "sync"])
def test_scheduling_names_lead_to_what_lhs_saw(
    dumps: Path, lhs: Module, run: str
) -> None:
    (module,) = read_modules(dumps / run)
    assert identities(module, lhs_names(module)) == identities(lhs, {})


@pytest.mark.parametrize("run", ["async", "sync", "off"])
def test_with_a_schedule_dump_every_run_leads_to_what_lhs_saw(
    dumps: Path, lhs: Module, run: str
) -> None:
    (module,) = read_modules(dumps / run)
    assert identities(module, lhs_names(module, lhs)) == identities(lhs, {})


def test_wrapped_names_lead_to_the_start(dumps: Path) -> None:
    (module,) = read_modules(dumps / "async")
    names = lhs_names(module)
    assert names["reduce-scatter.2"] == "reduce-scatter-start"


def test_inside_shard_map_where_all_channels_are_one(dumps: Path) -> None:
    (module,) = read_modules(dumps / "collectives")
    lhs = read_schedule_dump(
        dumps / "collectives" / "jit_collectives.schedule.pb.xz"
    ).module
    assert identities(module, lhs_names(module, lhs)) == identities(lhs, {})


def test_only_collectives_are_mapped(dumps: Path) -> None:
    (module,) = read_modules(dumps / "async")
    inside = {
        item.name
        for item in module.walk()
        if item.opcode in ("fusion", "copy", "while")
    }
    assert not inside & lhs_names(module).keys()


@pytest.fixture(scope="module")
def step() -> Module:
    return read_module(
        PAX
        / "module_0040.pjit__wrapped_step_fn.sm_8.0_gpu_after_optimizations.hlo.pb.xz"
    )


def test_what_is_inside_a_fusion_belongs_to_the_fusion(step: Module) -> None:
    fusion = next(
        item for item in step.entry_computation.instructions if item.opcode == "fusion"
    )
    for inner in step.computations[fusion.called[0]].instructions:
        assert owner(step, inner.name) == fusion.name


def test_what_is_wrapped_belongs_to_the_start(step: Module) -> None:
    assert owner(step, "reduce-scatter.131") == "reduce-scatter-start"


def test_an_instruction_of_the_entry_belongs_to_itself_and_an_unknown_name_to_nothing(
    step: Module,
) -> None:
    assert owner(step, "all-gather-start") == "all-gather-start"
    assert owner(step, "no.such.name") is None


def test_loops_and_their_trip_counts(dumps: Path) -> None:
    (module,) = read_modules(dumps / "async")
    whiles = [item for item in module.walk() if item.opcode == "while"]
    assert [trip_count(module, item) for item in whiles] == [4, 4]
    body = module.computations[whiles[0].called[0]]
    fusion = next(item for item in body.instructions if item.opcode == "fusion")
    inner = module.computations[fusion.called[0]].instructions[0]
    assert (
        loops(module, fusion.name)
        == loops(module, inner.name)
        == ((whiles[0].name, 4),)
    )
    assert loops(module, whiles[0].name) == ()


def test_schedulable_is_what_the_real_step_ran(step: Module) -> None:
    """2 315 fusions, 175 custom calls, 23 collectives: testdata/pax_fsdp4/README.md."""
    opcodes = [item.opcode for item in schedulable(step)]
    assert len(opcodes) == 2315 + 175 + 23
    assert opcodes.count("fusion") == 2315
    assert opcodes.count("custom-call") == 175


def test_a_command_buffer_is_what_it_holds(tmp_path: Path) -> None:
    """Up to jaxlib 0.6 XLA moves scheduled instructions into calls after LHS; other calls are one
    instruction.
    """
    dump = tmp_path / "m.txt"
    dump.write_text(
        "HloModule m, is_scheduled=true\n\n"
        "%command_buffer.3 (p: f32[8]) -> f32[8] {\n"
        "  %p = f32[8]{0} parameter(0)\n"
        "  ROOT %negate.7 = f32[8]{0} negate(%p)\n}\n\n"
        "%helper (q: f32[8]) -> f32[8] {\n"
        "  %q = f32[8]{0} parameter(0)\n"
        "  ROOT %sine.1 = f32[8]{0} sine(%q)\n}\n\n"
        "ENTRY %main (a: f32[8]) -> f32[8] {\n"
        "  %a = f32[8]{0} parameter(0)\n"
        "  %call.1 = f32[8]{0} call(%a), to_apply=%command_buffer.3\n"
        "  ROOT %call.2 = f32[8]{0} call(%call.1), to_apply=%helper\n}\n"
    )
    assert {item.name for item in schedulable(read_module(dump))} == {
        "negate.7",
        "call.2",
    }
