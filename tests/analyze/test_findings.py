"""Each fault that is planted into a step is found, alone; in clean steps nothing is found."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pgle.analyze import analysis
from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.collectives import MeasuredCollective
from pgle.analyze.memory import Memory
from pgle.analyze.rules import RULES, find_findings
from pgle.analyze.window import RowGroup
from pgle.costs.estimate.communication import collective_us
from pgle.costs.estimate.estimate import compute_us
from pgle.costs.profile.value import Cost, Profile
from pgle.report.analyze import headline, way_on
from pgle.run.analyze import Analysis, StepInput, measured_step
from pgle.trace.table import (
    ROW_COLUMNS,
    SIMULATED,
    ActivityKind,
    LeftOutReason,
    ModuleKey,
    OtherWork,
    Trace,
    Unresolved,
)
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.proto import BufferPlan
from pgle.xla.hlo.text import module_from_text
from pgle.xla.targets import TABLE
from tests.analyze.conftest import ROOT, SIDE, Run, made, repeated

H100 = TABLE["h100-sxm"]


def hlo() -> Module:
    """Every instruction that the steps here are made of, as XLA prints them."""
    text = """HloModule jit_step, is_scheduled=true, num_partitions=2

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

ENTRY main {
  x = bf16[4096,4096]{1,0} parameter(0)
  y = bf16[4096,4096]{1,0} parameter(1)
  z = bf16[1024]{0} parameter(2)
  f = f32[16777216]{0} parameter(3)
  i = s32[1024,1]{1,0} parameter(4)
  u = f32[1024]{0} parameter(5)
  w = bf16[32768,4096]{1,0} parameter(6)
  p = f32[4194304]{0} parameter(7), metadata={op_name="params['w']"}
  negate.1 = f32[16777216]{0} negate(f)
  negate.2 = f32[16777216]{0} negate(negate.1)
  negate.3 = f32[1024]{0} negate(u)
  dot.1 = bf16[4096,4096]{1,0} dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  scatter.1 = f32[16777216]{0} scatter(f, i, u), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add
  custom-call.1 = f32[1024]{0} custom-call(u), custom_call_target="opaque"
  copy.1 = f32[16777216]{0} copy(f)
  negate.4.remat = f32[16777216]{0} negate(f)
  negate.5 = f32[16777216]{0} negate(f), metadata={op_name="jit(step)/transpose(jvp(m))/checkpoint/rematted_computation/neg"}
  dot.9 = f32[16777216]{0} custom-call(p, f), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"precision_config":{"operand_precision":["HIGHEST","HIGHEST"]}}}
  all-reduce-start.5 = f32[16777216]{0} all-reduce-start(negate.5), channel_id=4, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add, metadata={op_name="jit(step)/transpose(jvp(m))/psum"}
  all-reduce-done.5 = f32[16777216]{0} all-reduce-done(all-reduce-start.5)
  all-gather-start.1 = (bf16[32768,4096]{1,0}, bf16[65536,4096]{1,0}) all-gather-start(w), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
  all-gather-done.1 = bf16[65536,4096]{1,0} all-gather-done(all-gather-start.1)
  all-gather-start.2 = (bf16[4096,4096]{1,0}, bf16[8192,4096]{1,0}) all-gather-start(x), channel_id=2, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
  all-gather-done.2 = bf16[8192,4096]{1,0} all-gather-done(all-gather-start.2)
  all-reduce.9 = f32[16777216]{0} all-reduce(f), channel_id=3, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
  ROOT result = (f32[16777216]{0}) tuple(negate.2)
}
"""  # noqa: E501
    return module_from_text(
        text.encode(),
        "module_0001.jit_step.sm_9.0_gpu_after_optimizations.txt",
        program_id=1,
    )


MODULE = hlo()


def expected_us(name: str) -> float:
    """What pgle expects an instruction of the module to take."""
    item = MODULE.instructions[name]
    kind = item.opcode.removesuffix("-start")
    if kind.startswith("all-"):
        return collective_us(MODULE, kind, item, H100)
    return compute_us(MODULE, item, H100)


class Step:
    """A step as it is written down: compute one after the other, with launch gaps, and what runs
    beside it.
    """

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.clock = 0.0

    def run(
        self,
        name: str,
        time: float,
        *,
        gap: float = 1.0,
        kind: ActivityKind = ActivityKind.KERNEL,
    ) -> Step:
        self.clock += gap
        self.runs.append(Run(name, self.clock, time, kind=kind))
        self.clock += time
        return self

    def beside(self, name: str, time: float, *, exposed: float = 0.0) -> Step:
        """On another stream, so that its last part has nothing beside it."""
        self.runs.append(Run(name, self.clock - time + exposed, time, SIDE))
        self.clock += exposed
        return self


def usual() -> Step:
    """Ten milliseconds in which nothing is lost."""
    step = (
        Step()
        .run("negate.1", 4000)
        .run("dot.1", expected_us("dot.1") * 1.2)
        .run("custom-call.1", 100)
    )
    step.run("copy.1", 100).beside(
        "all-gather-start.2", expected_us("all-gather-start.2")
    )
    return step.run("negate.2", 5000)


def steps_of(step: Step, *, pause: float = 5.0) -> Trace:
    return repeated(*step.runs, every=step.clock + pause)


def skewed() -> Trace:
    """Device 1 computes longer before a collective that both end together."""
    slow = (
        Step()
        .run("negate.1", 5800)
        .beside("all-gather-start.2", 100, exposed=100)
        .run("negate.2", 4000)
    )
    fast = (
        Step()
        .run("negate.1", 5000)
        .beside("all-gather-start.2", 900, exposed=900)
        .run("negate.2", 4000)
    )
    return made(
        (
            device,
            number,
            [replace(run, start=run.start + 10_000 * number) for run in step.runs],
        )
        for device, step in enumerate((fast, slow))
        for number in range(4)
    )


def slow_pair() -> Trace:
    """All four devices start a collective together; on the last two it takes 250 µs longer."""
    fast = (
        Step()
        .run("negate.1", 5000)
        .beside("all-gather-start.2", 100, exposed=100)
        .run("negate.2", 5000)
        .beside("all-reduce-start.5", 270, exposed=270)
    )
    slow = (
        Step()
        .run("negate.1", 5000)
        .beside("all-gather-start.2", 350, exposed=350)
        .run("negate.2", 5000)
        .beside("all-reduce-start.5", 20, exposed=20)
    )
    return made(
        (
            device,
            number,
            [replace(run, start=run.start + 10_380 * number) for run in step.runs],
        )
        for device, step in enumerate((fast, fast, slow, slow))
        for number in range(4)
    )


def contending() -> Trace:
    """In some of eight steps a copy runs next to ten kernels, which take 1.4 times as long."""
    steps = []
    clock = 0.0
    for number in range(8):
        begin = clock
        step = Step().run("negate.2", 9000)
        factor = 1.4 if number in (2, 3, 6) else 1.0
        for _ in range(10):
            step.run("negate.3", 100 * factor)
        if factor > 1:
            step.beside("copy.1", 1000 * factor)
            step.runs[-1] = replace(step.runs[-1], kind=ActivityKind.MEMCPY)
        runs = [replace(run, start=run.start + begin) for run in step.runs]
        steps += [(device, number, runs) for device in range(2)]
        clock += step.clock + 5
    return made(steps)


LOST_US = 52


def without_stamps() -> Trace:
    """Each of four steps lacks another of its last four kernels, whose record has no stamp. The gap
    that it leaves is worth no finding of its own.
    """
    step = usual()
    for number in range(4):
        step.run(f"negate.{(1, 2, 3)[number % 3]}", LOST_US)
    trace = steps_of(step)
    place = np.arange(len(trace)) % (len(trace) // 8)
    last = len(trace) // 8 - 4
    keep = place != last + trace.execution
    columns = {name: getattr(trace, name)[keep] for name in ROW_COLUMNS}
    lost = Unresolved(LeftOutReason.NO_TIME.word, int((~keep).sum()), 0)
    return replace(trace, unresolved=(lost,), **columns)


def warming_up() -> Trace:
    """The first of many steps is slower."""
    slow = Step().run("negate.1", 9000)
    steps = [slow.runs, *(Step().run("negate.1", 6000).runs for _ in range(5))]
    return made((device, n, [replace(run, start=run.start + 9010 * n) for run in runs]) for device in range(2)
                for n, runs in enumerate(shortened(steps)))  # fmt: skip


def shortened(steps: list[list[Run]]) -> list[list[Run]]:
    """The steps with no more than 10 µs between them."""
    found, clock = [], 0.0
    for number, runs in enumerate(steps):
        begin = number * 9010
        found.append([replace(run, start=run.start + clock - begin) for run in runs])
        clock += max(run.start + run.time for run in runs) + 10
    return found


def many(name: str, count: int, time: float, gap: float) -> Step:
    step = usual()
    for _ in range(count):
        step.run(name, time, gap=gap)
    return step


def recompiling() -> Trace:
    """Between its steps the program runs in another version, as after a change of shapes."""
    step = usual()
    trace = steps_of(step.run("copy.1", 20))
    last = np.flatnonzero(
        np.append(np.diff(trace.execution) != 0, True)
    )  # of each execution
    module, execution = trace.module.copy(), trace.execution.copy()
    module[last[:-1]] = 1
    execution[last[:-1]] = 0
    compiles = np.array(
        [[int(trace.start_ns[last[0]]) - 1000, int(trace.start_ns[last[0]])]]
    )
    return replace(
        trace, module=module, execution=execution, modules=(ModuleKey("jit_step", 1), ModuleKey("jit_step", 2)),
        compiling={"host:1": compiles},
    )  # fmt: skip


def one_slow() -> Trace:
    """The fourth of six steps takes twice as long on both devices."""
    runs, clock = [], 0.0
    for number in range(6):
        step = Step().run("negate.1", 10_000 if number == 3 else 5000)
        runs.append(
            (number, [replace(run, start=run.start + clock) for run in step.runs])
        )
        clock += step.clock + 5
    return made((device, number, step) for device in range(2) for number, step in runs)


def growing() -> Trace:
    """Each of twelve steps takes 1 % longer than the one before, on both devices."""
    runs = []
    clock = 0.0
    for number in range(12):
        step = Step().run("negate.1", 5000 * 1.01**number)
        runs.append(
            (number, [replace(run, start=run.start + clock) for run in step.runs])
        )
        clock += step.clock + 5
    return made((device, number, step) for device in range(2) for number, step in runs)


def with_another_module() -> Trace:
    """Another module runs for 500 µs after each step."""
    step = usual()
    trace = steps_of(step.run("negate.5", 500))
    last = np.flatnonzero(
        np.append(np.diff(trace.execution) != 0, True)
    )  # of each execution
    module = trace.module.copy()
    module[last] = 1
    return replace(
        trace,
        module=module,
        modules=(ModuleKey("jit_step", 1), ModuleKey("jit_metrics", 2)),
    )


def memory_of(share: float) -> Memory:
    """Of a program that needs a share of 64 GiB."""
    peak = int(share * (64 << 30))
    plan = BufferPlan(peak // 2, 0, 0, peak - peak // 2, (), "negate.1")
    return Memory(plan, (), 64 << 30)


def in_graphs(*, pause: float = 5.0) -> Trace:
    """Between two kernels of each step a CUDA graph runs for 2 ms."""
    trace = steps_of(usual().run("copy.1", 100, gap=2002), pause=pause)
    last = np.flatnonzero(trace.instruction == trace.instructions.index("copy.1"))[1::2]
    graphs = OtherWork(
        start_ns=trace.start_ns[last] - 2_001_000,
        duration_ns=np.full(len(last), 2_000_000),
        device=trace.device[last],
        stream=trace.stream[last],
        kind=trace.kind[last],
        reason=np.full(len(last), LeftOutReason.GRAPH_LAUNCH, np.uint8),
    )
    return replace(trace, other=graphs)


def copying_between() -> Trace:
    """In each step a copy of no instruction runs for 2 ms."""
    trace = in_graphs()
    return replace(
        trace,
        other=replace(
            trace.other,
            kind=np.full(len(trace.other), ActivityKind.MEMCPY, np.uint8),
            reason=np.full(len(trace.other), LeftOutReason.NO_RANGE, np.uint8),
        ),
    )


FAULTS = {
    "synchronous-collective": lambda: steps_of(
        usual().run("all-reduce.9", expected_us("all-reduce.9"))
    ),
    "exposed-communication": lambda: steps_of(
        usual()
        .beside("all-gather-start.1", expected_us("all-gather-start.1"), exposed=600)
        .run("negate.3", 20)
    ),
    "rank-skew": skewed,
    "slow-link": slow_pair,
    "slow-steps": one_slow,
    "changing-steps": growing,
    "other-modules": with_another_module,
    "scatter-add": lambda: steps_of(usual().run("scatter.1", 700)),
    "slow-matmul": lambda: steps_of(usual().run("dot.1", 4 * expected_us("dot.1"))),
    "off-tensor-cores": lambda: steps_of(usual().run("dot.9", 300)),
    "input-bound": lambda: steps_of(usual(), pause=1500),
    "idle": lambda: steps_of(usual().run("negate.3", 20, gap=2500)),
    "launch-gaps": lambda: steps_of(many("negate.3", 60, 20, gap=15)),
    "slow-collective": lambda: steps_of(
        usual()
        .beside(
            "all-gather-start.1", 3 * expected_us("all-gather-start.1"), exposed=200
        )
        .run("negate.3", 20)
    ),
    "exposed-copies": lambda: steps_of(
        usual().run("copy.1", 300, kind=ActivityKind.MEMCPY)
    ),
    "contending-copies": contending,
    "needless-rematerialisation": lambda: steps_of(
        usual().run("negate.5", 500).run("negate.4.remat", 300)
    ),
    "stale-profile": lambda: steps_of(usual()),
    "other-work": in_graphs,
    "outside-copies": copying_between,
    "untimed-records": without_stamps,
    "recompilation": recompiling,
    "window": warming_up,
}
KNOWN = {
    "needless-rematerialisation": {"memory": memory_of(0.2)},
    "stale-profile": {
        "used": Profile((Cost("negate.1", 1000.0), Cost("negate.2", 5000.0)))
    },
}
"""What else is known of the steps with these faults."""


def test_every_rule_has_a_fault() -> None:
    assert FAULTS.keys() == RULES.keys()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_nothing_else(fault, measured):
    found = find_findings(measured(FAULTS[fault](), MODULE, **KNOWN.get(fault, {})))
    assert [finding.id for finding in found] == [fault]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_finding_has_rows_and_a_share_below_one(fault, measured):
    (found,) = find_findings(measured(FAULTS[fault](), MODULE, **KNOWN.get(fault, {})))
    assert found.evidence
    assert 0 <= found.share < 1
    tells = ("window", "other-work", "untimed-records")
    assert (found.share == 0) == (fault in tells)


def test_work_of_no_instruction_is_a_part_of_the_step_and_not_idle(measured):
    step = measured(in_graphs(), MODULE)
    assert step.breakdown.other_us == pytest.approx(2000)
    assert step.parts.of(RowGroup.OTHER) == pytest.approx({"CUDA graphs": 2000})
    parts = step.breakdown
    whole = parts.compute_us + parts.exposed_communication_us + parts.exposed_copy_us
    assert whole + parts.other_us + parts.idle_us == pytest.approx(step.step_us)


def analysis_of(step: MeasuredStep) -> Analysis:
    """What `pgle analyze` makes of a step outside of a run directory."""
    return Analysis(
        run=None,
        step=step,
        findings=find_findings(step),
        next=(),
        warnings=(),
        against=None,
        before=None,
        convert=None,
        with_hlo=None,
        timed=None,
        is_base=False,
        trials={},
    )


def test_an_answer_that_cannot_tell_ends_with_how_to_record(measured):
    found = analysis_of(measured(in_graphs(), MODULE))
    assert "has no instruction, most: CUDA graphs" in headline(found)[0]
    assert "nsys profile --cuda-graph-trace=node" in str(way_on(found)[0])


def test_a_saving_above_the_work_of_no_instruction_leads(measured):
    found = analysis_of(measured(in_graphs(pause=20000), MODULE))
    assert headline(found)[0].startswith("Keep the GPU busy between steps: saves")
    assert "prefetch input" in str(way_on(found)[0])


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_found_in_a_clean_step(seed, measured):
    chance = random.Random(seed)
    step = Step()
    for _ in range(20):
        step.run("negate.1", chance.uniform(200, 600), gap=chance.uniform(1, 3))
        step.run("custom-call.1", chance.uniform(20, 60), gap=chance.uniform(1, 8))
    time = expected_us("all-gather-start.2") * chance.uniform(0.9, 1.3)
    step.beside("all-gather-start.2", time, exposed=chance.uniform(0, 20))
    step.run("dot.1", expected_us("dot.1") * chance.uniform(0.9, 1.8))
    trace = steps_of(step, pause=chance.uniform(1, 100))
    costs = measured(trace, MODULE).costs.costs
    used = Profile(
        tuple(
            Cost(cost.name, cost.cost_us * chance.uniform(0.95, 1.05)) for cost in costs
        )
    )
    assert (
        find_findings(
            measured(
                trace, MODULE, memory=memory_of(chance.uniform(0.1, 0.9)), used=used
            )
        )
        == ()
    )


def test_a_profile_run_is_not_blamed_for_collectives_that_pgle_keeps_synchronous(
    measured,
):
    trace = FAULTS["synchronous-collective"]()
    assert find_findings(measured(trace, MODULE, mode="sync")) == ()
    assert [
        finding.id for finding in find_findings(measured(trace, MODULE, mode="async"))
    ] == ["synchronous-collective"]


@pytest.mark.parametrize("fault", ["slow-collective", "launch-gaps"])
def test_a_profile_run_names_a_fault_that_it_may_have_made_itself_and_claims_nothing(
    fault, measured
):
    (found,) = find_findings(measured(FAULTS[fault](), MODULE, mode="sync"))
    assert (found.id, found.share) == (fault, 0.0)
    assert "profile run" in found.unclaimed


@pytest.mark.parametrize(
    "fault",
    [
        "rank-skew",
        "slow-steps",
        "other-modules",
        "input-bound",
        "recompilation",
        "window",
    ],
)
def test_what_the_simulated_gpu_makes_up_is_no_finding(fault, measured):
    trace = replace(FAULTS[fault](), warnings=(SIMULATED,))
    assert find_findings(measured(trace, MODULE)) == ()


def test_what_is_hidden_is_not_exposed_and_the_wait_for_a_rank_is_no_transfer(measured):
    step = measured(skewed(), MODULE)
    (collective,) = step.collectives
    assert collective.time_us == pytest.approx(100)
    assert collective.exposed_us == pytest.approx((100 + 900) / 2, abs=3)
    assert collective.wait_us == pytest.approx(400, abs=3)


def test_one_device_that_pauses_costs_the_others_as_much(measured):
    late = (
        Step()
        .run("negate.1", 4000, gap=2000)
        .beside("all-gather-start.2", 100, exposed=100)
        .run("negate.2", 3000)
    )
    waits = (
        Step()
        .run("negate.1", 4000)
        .beside("all-gather-start.2", 2099, exposed=2099)
        .run("negate.2", 3000)
    )
    trace = made(
        (device, number, [Run("negate.3", 10_000 * number, 900), *(replace(run, start=run.start + 10_000 * number + 900)
                                                                  for run in step.runs)])
        for device, step in enumerate((waits, late))
        for number in range(4)
    )  # fmt: skip
    found = {finding.id: finding for finding in find_findings(measured(trace, MODULE))}
    assert found["idle"].share == pytest.approx(
        0.1, abs=0.005
    )  # 2 ms of 10 on one of two devices
    assert found["rank-skew"].share == pytest.approx(0.2, abs=0.005)
    assert "rank 1 · GPU 1" in found["rank-skew"].number
    assert [(row.name, row.us) for row in found["rank-skew"].evidence[:2]] == [
        ("rank 1 · GPU 1", pytest.approx(2000, abs=5)), ("idle on rank 1 · GPU 1", pytest.approx(2000, abs=5))
    ]  # fmt: skip


def test_bus_bandwidth_is_that_of_nccl_tests(measured):
    step = measured(steps_of(usual()), MODULE)
    collective: MeasuredCollective = step.collectives[0]
    gathered = 8192 * 4096 * 2
    assert collective.bus_gb_s == pytest.approx(gathered / 2 / collective.time_us / 1e3)


def test_without_hlo_the_stream_says_what_is_synchronous(measured):
    step = measured(steps_of(usual().run("all-reduce.9", 600)))
    assert {item.name: item.sync for item in step.collectives} == {
        "all-reduce.9": True,
        "all-gather-start.2": False,
    }


def test_the_real_h100_job_is_slowed_by_a_scatter_and_by_ranks_that_differ(maxtext):
    found = {finding.id: finding for finding in find_findings(maxtext)}
    assert found["scatter-add"].share == pytest.approx(0.43, abs=0.01)
    assert found["scatter-add"].evidence[0].op_name.startswith("jit(train_step)/")
    # by SQL: 11.8 ms, the mean over steps of what the median of the ranks waits in its collectives
    assert found["rank-skew"].share == pytest.approx(11.8 / 124.6, abs=0.006)
    assert "input_scatter_fusion" in [row.name for row in found["rank-skew"].evidence]


def test_ranked_by_what_they_could_save(maxtext):
    shares = [finding.share for finding in find_findings(maxtext)]
    assert shares == sorted(shares, reverse=True)


def test_even_ranks_save_no_more_than_the_time_without_compute(measured):
    late = Step().beside("all-gather-start.2", 100, exposed=100).run("negate.1", 1000)
    waits = (
        Step().beside("all-gather-start.2", 6000, exposed=6000).run("negate.1", 1000)
    )
    trace = made(
        (
            device,
            number,
            [replace(run, start=run.start + every * number) for run in step.runs],
        )
        for device, (step, every) in enumerate(((late, 1_200), (waits, 7_100)))
        for number in range(4)
    )
    step = measured(trace, MODULE)
    skew = {finding.id: finding for finding in find_findings(step)}["rank-skew"]
    assert (
        step.late.us
        > step.step_us - step.breakdown.compute_us
        == pytest.approx(skew.share * step.step_us)
    )


def test_the_time_between_steps_is_that_of_the_table_when_one_step_is_slow(measured):
    gaps = (0, 5_000, 10_000, 15_000, 60_000, 65_000)
    trace = made(
        (0, number, [Run("negate.1", start, 1000)]) for number, start in enumerate(gaps)
    )
    step = measured(trace, MODULE)
    number = {finding.id: finding for finding in find_findings(step)}[
        "input-bound"
    ].number
    assert (
        f"between steps for {step.percent(step.idle_us['between steps'])} of the time"
        in number
    )


def test_the_page_says_every_rule_as_it_is() -> None:
    page = (ROOT / "docs" / "findings.md").read_text()
    rows = [
        f"| `{name}` | {limit.rule} | {limit.source} |" for name, limit in RULES.items()
    ]
    assert [row for row in rows if row not in page] == []


@pytest.mark.parametrize(
    ("target", "said"), [("a100-40gb", []), ("h100", ["the trace is of a100-40gb"])]
)
def test_a_target_that_is_another_gpu_is_said(
    testdata: Path, monkeypatch: pytest.MonkeyPatch, target: str, said: list[str]
) -> None:
    # what a schedule could hide takes seconds, and is not asked here
    monkeypatch.setattr(
        analysis, "find_overlap", lambda _, __, found, *___, **____: (None, found)
    )
    step = measured_step(
        StepInput(
            (testdata / "pax_fsdp4/proc0.sqlite",),
            (testdata / "pax_fsdp4/proc0/dump",),
            target,
        )
    )
    assert [
        line.partition(";")[0] for line in step.trace.warnings if "--target" in line
    ] == said


def test_findings_on_amds_gpus_are_in_amds_words(measured) -> None:
    step = measured(FAULTS["launch-gaps"](), MODULE)
    (found,) = find_findings(replace(step, hardware=TABLE["mi350x"]))
    assert found.todo == "Shorten launch gaps with HIP graphs"
    assert "CUDA" not in found.remedy
