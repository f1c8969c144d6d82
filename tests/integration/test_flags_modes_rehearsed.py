"""The modes held against the compiler: how many collectives of a profile run lead to the names PGLE
looks for.
"""

from importlib.metadata import version
from pathlib import Path

import pytest

from pgle.run.compiler.compile import CompileRequest, compile_once
from pgle.xla.collectives import walk_collectives
from pgle.xla.flags.catalogue import LHS, SOL, release
from pgle.xla.flags.presets import flags_for
from pgle.xla.hlo.dumps import read_module
from pgle.xla.hlo.schedule_dump import read_schedule_dump
from pgle.xla.lhs_names import lhs_names
from pgle.xla.targets import load_target

pytestmark = [pytest.mark.rehearse, pytest.mark.usefixtures("plugin_loaded_once")]

JAXLIB = version("jaxlib")
PROGRAM = Path(__file__).parents[2] / f"testdata/stablehlo/fsdp_mlp_jax_{JAXLIB}.mlir"
RENAMES = release(JAXLIB) >= release("0.11.1")  # openxla/xla#46463

OFF = (
    f"--{LHS}=false",
    f"--{SOL}=false",
    "--xla_gpu_disable_async_collectives=allcollectives",
)
"""LHS off, as in the profile run of the JAX-Toolbox guide."""


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    if not PROGRAM.exists():
        pytest.skip(f"no program recorded for jaxlib {JAXLIB}")
    target = load_target("h100-sxm")
    done = {}

    def compiled(mode):
        if mode not in done:
            flags = (
                OFF
                if mode == OFF
                else tuple(flag.text for flag in flags_for(mode, JAXLIB).flags)
            )
            folder = tmp_path_factory.mktemp("off" if mode == OFF else mode)
            request = CompileRequest(
                PROGRAM, target.texts, folder, topology="1x1x4", flags=flags
            )
            done[mode] = compile_once(request)
        return done[mode]

    return compiled


def wanted(rehearsed):
    """The names the performance run's scheduler looks up: those of its collectives when LHS ran."""
    schedule = read_schedule_dump(rehearsed("baseline").schedule)
    return {item.name for item, _ in walk_collectives(schedule.module)}


def carried_over(rehearsed, mode):
    """The names to which the collectives of a profile run lead, by their own metadata alone."""
    module = read_module(rehearsed(mode).after_optimizations)
    names = lhs_names(module)
    return {names[item.name] for item, _ in walk_collectives(module)}


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_every_collective_of_a_profile_run_leads_to_its_name(rehearsed, mode):
    assert carried_over(rehearsed, mode) == wanted(rehearsed)


def test_with_lhs_off_names_are_lost_where_collectives_are_renamed(rehearsed):
    kept = wanted(rehearsed) & carried_over(rehearsed, OFF)
    # One reduce-scatter is fused with a slice, and fusions keep their names.
    assert kept == ({"fusion-start"} if RENAMES else wanted(rehearsed))


def test_sync_changes_the_fingerprint_async_does_not(rehearsed):
    assert rehearsed("async").fingerprint == rehearsed("baseline").fingerprint
    assert rehearsed("sync").fingerprint != rehearsed("baseline").fingerprint


def test_both_flags_turn_the_default_of_hopper_off(rehearsed):
    assert rehearsed(OFF).schedule is None


def test_the_baseline_runs_lhs(rehearsed):
    assert rehearsed("baseline").schedule is not None
