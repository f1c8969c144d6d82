"""jaxlib's own converter on what the simulated GPU records of real schedules: the same costs, and
why not where not.

jaxlib averages every kernel in the file. We leave out warm-up, take the median, and of a collective
what the last rank to arrive measured. So both agree where executions do not differ, and differ by
what made them differ.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from simulated import simulate

from pgle.costs.measure.measured import (
    AggregateOptions,
    Measured,
    aggregate,
    find_programs,
    measured_profile,
)
from pgle.costs.measure.samples import parse_statistic
from pgle.costs.profile.value import Cost, CostKind
from pgle.schedule.predict import predict
from pgle.schedule.record import Noise, record
from pgle.trace.table import Trace
from pgle.trace.xplane.read import read_xplane
from pgle.trace.xplane.writer import write_xplane
from pgle.xla.hlo.dumps import read_module
from pgle.xla.hlo.module import Module
from pgle.xla.protos.profiled_instructions_pb2 import ProfiledInstructionsProto
from pgle.xla.targets import TABLE

EXECUTIONS = 8
QUIET = Noise(kernel=0.0, outliers=0.0, warm_up=(), skew=0.0, first_wait_us=0.0)
WARM_UP = Noise(
    kernel=0.0, outliers=0.0, warm_up=(0.17, 0.12), skew=0.0, first_wait_us=0.0
)
LATE = Noise(kernel=0.0, outliers=0.0, warm_up=(), skew=0.0, first_wait_us=3000.0)

PROGRAMS = [
    f"{jax}/{program}"
    for jax in ("jax-0.10.2", "jax-0.12.0.1")
    for program in ("async", "sync", "off", "collectives")
]


def hlo(testdata: Path, program: str) -> Module:
    (path,) = (testdata / "hlo" / program).glob("*gpu_after_optimizations.hlo.pb.xz")
    return read_module(path)


def recorded(module: Module, noise: Noise, folder: Path) -> Trace:
    """The trace of 4 ranks, written as a profiler's file and read again."""
    timeline = simulate(module, {}, hardware=TABLE["a100-40gb"], expand_loops=True)
    trace = record(module, timeline, ranks=4, executions=EXECUTIONS, noise=noise)
    path = folder / "host.xplane.pb"
    path.write_bytes(write_xplane(trace))
    return read_xplane([path])


def jaxlib_costs(folder: Path) -> dict[str, float]:
    profiler = pytest.importorskip("jax.experimental.profiler")
    proto = ProfiledInstructionsProto.FromString(
        profiler.get_profiled_instructions_proto(str(folder))
    )
    return {cost.name: cost.cost_us for cost in proto.costs}


def our_costs(
    trace: Trace, module: Module, options: AggregateOptions | None = None
) -> list[Cost]:
    """Ours without those of whole loops, which jaxlib does not have."""
    (result,) = aggregate(trace, find_programs(trace, [module]), options)
    return [cost for cost in result.costs if cost.kind != CostKind.LOOP]


def by_run_time_name(costs: list[Cost]) -> dict[str, float]:
    """jaxlib has the names of the trace; we file collectives under those that LHS looks up."""
    return {cost.trace_name or cost.name: cost.cost_us for cost in costs}


@pytest.mark.parametrize("program", PROGRAMS)
def test_executions_that_do_not_differ_cost_the_same(
    testdata: Path, tmp_path: Path, program: str
):
    module = hlo(testdata, program)
    ours = by_run_time_name(our_costs(recorded(module, QUIET, tmp_path), module))
    assert ours == pytest.approx(jaxlib_costs(tmp_path), rel=1e-3)


@pytest.mark.parametrize("program", PROGRAMS)
def test_warm_up_is_in_jaxlibs_mean_by_its_share_of_the_executions(
    testdata: Path, tmp_path: Path, program: str
):
    module = hlo(testdata, program)
    costs = our_costs(recorded(module, WARM_UP, tmp_path), module)
    share = sum(WARM_UP.warm_up) / EXECUTIONS
    expected = {
        cost.trace_name or cost.name: cost.cost_us
        * (1 if cost.kind == CostKind.COLLECTIVE else 1 + share)
        for cost in costs
    }
    assert jaxlib_costs(tmp_path) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("program", PROGRAMS)
def test_waits_for_late_ranks_are_in_jaxlibs_mean(
    testdata: Path, tmp_path: Path, program: str
):
    module = hlo(testdata, program)
    trace = recorded(module, LATE, tmp_path)
    ours, theirs = by_run_time_name(our_costs(trace, module)), jaxlib_costs(tmp_path)
    (waits,) = [name for name, cost in ours.items() if theirs[name] > cost * 1.001]
    launches = np.count_nonzero(trace.instruction == trace.instructions.index(waits))
    # The ranks begin 0, 1, 2 and 3 ms late: the first collective waits 3, 2, 1 and 0 ms in their
    # first execution.
    assert (theirs[waits] - ours[waits]) * launches == pytest.approx(6000, rel=1e-3)


@pytest.mark.parametrize("program", PROGRAMS)
def test_with_all_noise_jaxlib_has_our_mean_over_all_executions(
    testdata: Path, tmp_path: Path, program: str
):
    module = hlo(testdata, program)
    mean = parse_statistic("mean")
    costs = our_costs(
        recorded(module, Noise(), tmp_path),
        module,
        AggregateOptions(mean, mean, keep_all=True),
    )
    compute = by_run_time_name(
        [cost for cost in costs if cost.kind != CostKind.COLLECTIVE]
    )
    theirs = jaxlib_costs(tmp_path)
    assert compute == pytest.approx({name: theirs[name] for name in compute}, rel=1e-3)


def test_contention_is_in_simulated_costs_once(testdata: Path) -> None:
    module = hlo(testdata, "jax-0.10.2/async")
    first = predict(module, None, "a100", expand_loops=True)
    trace = record(module, first.timeline, ranks=2, noise=QUIET)
    programs = find_programs(trace, [module])
    profile = measured_profile(
        Measured(trace, programs, aggregate(trace, programs), AggregateOptions())
    )
    again = predict(module, profile, "a100", launch=first.launch)
    assert first.contended_us > 0.01 * first.step_us
    assert again.contention.samples == 0
    assert again.step_us == pytest.approx(first.step_us, rel=0.002)
