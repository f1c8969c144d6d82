"""The rules of `analyze`: losses of a measured step, each with its limit and its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pgle.account.value import OpportunityKind, StepPart
from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.exposed import exposed, slow_collectives, stale_profile, synchronous
from pgle.analyze.findings import Observation, StepFinding
from pgle.analyze.overhead import (
    contending_copies,
    copies,
    host_gaps,
    input_bound,
    launch_gaps,
    other_modules,
    outside_copies,
)
from pgle.analyze.recording import (
    MUCH_OTHER,
    other_work,
    recompilation,
    untimed_records,
    window_remarks,
)
from pgle.analyze.slow_kernels import (
    off_tensor_cores,
    rematerialised_for_nothing,
    scatters,
    slow_matmuls,
)
from pgle.analyze.uneven import rank_skew, slow_link
from pgle.analyze.unsteady import changing_steps, slow_steps
from pgle.worth import LEAST_GAIN
from pgle.xla.targets import Hardware
from pgle.xla.vendors import maker_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A loss to look for in a step, and the limit that makes it a finding."""

    id: str  # of the rule and of its finding
    find: Callable[[MeasuredStep], Observation | None]
    title: str  # title of the finding
    todo: str  # the action, if it saves time
    # least value of the figure in `condition`; a share of the step, unless that names another
    limit: float
    # the condition of a finding in words; `rule` replaces ``{limit}``
    condition: str
    source: str  # source of the limit
    # its kind in the account; None if a schedule or flags mend it, or if it saves nothing
    kind: OpportunityKind | None = None
    part: StepPart = StepPart.IDLE  # the part of the step that the saving shortens
    is_bound: bool = False  # whether the loss is only an upper bound of the saving
    needs_gpu: bool = False  # whether it is only a bound if the GPU is unknown
    # False if the simulated GPU invents it (a host that pauses, ranks that differ, its costs)
    holds_if_simulated: bool = True

    @property
    def rule(self) -> str:
        """The condition of a finding, in words."""
        return self.condition.format(limit=f"{self.limit * 100:g} %")

    def finding(self, step: MeasuredStep) -> StepFinding | None:
        """The rule's finding in a step; None if the limit is not reached."""
        if step.trace.simulated and not self.holds_if_simulated:
            return None
        seen = self.find(step)
        if seen is None:
            return None
        share = seen.lost_us / step.step_us
        reached = share if seen.reached is None else seen.reached
        if reached < self.limit:
            return None
        return StepFinding(
            id=self.id,
            title=self.title,
            todo=self.todo,
            share=0.0 if seen.unclaimed else share,
            reached=reached,
            lost_us=seen.lost_us,
            number=seen.number,
            evidence=seen.evidence,
            remedy=seen.remedy,
            unclaimed=seen.unclaimed,
        )


def find_findings(step: MeasuredStep) -> tuple[StepFinding, ...]:
    """All findings in a step, the one that could save most first."""
    if step.step_us <= 0:
        return ()
    tried = (rule.finding(step) for rule in RULES.values())
    findings = [finding for finding in tried if finding is not None]
    findings.sort(key=lambda finding: -finding.share)
    return tuple(_worded(finding, step.hardware) for finding in findings)


def _worded(finding: StepFinding, hardware: Hardware | None) -> StepFinding:
    """The finding in the words of the GPU's vendor."""
    if hardware is None:
        return finding
    maker = maker_of(hardware)
    return replace(
        finding,
        number=maker.worded(finding.number),
        remedy=maker.worded(finding.remedy),
        title=maker.worded(finding.title),
        todo=maker.worded(finding.todo),
    )


_OWN = "pgle's proposal"
_TENSORFLOW = "TensorFlow guide, Optimize GPU performance"
_RULES = (
    Rule(
        id="synchronous-collective",
        find=synchronous,
        title="synchronous collectives",
        todo="Make collectives asynchronous",
        limit=LEAST_GAIN,
        condition="exposed time of synchronous collectives above {limit} of the step",
        source="marin-community/marin#8054",
    ),
    Rule(
        id="exposed-communication",
        find=exposed,
        title="exposed communication",
        todo="Hide exposed collectives",
        limit=0.03,
        condition="exposed asynchronous communication of at least {limit} of the step",
        source=f"{_OWN}: what PGLE can give",
    ),
    Rule(
        id="rank-skew",
        find=rank_skew,
        title="waits for the slowest rank",
        todo="Even out the ranks",
        limit=0.02,
        condition=(
            "ranks wait for the last one for at least {limit} of the step, compared within "
            "each step"
        ),
        source=_OWN,
        holds_if_simulated=False,
        kind=OpportunityKind.RANK_SKEW,
        part=StepPart.COMMUNICATION,
    ),
    Rule(
        id="slow-link",
        find=slow_link,
        title="collectives slow on some ranks",
        todo="Check the links of the slow ranks",
        limit=LEAST_GAIN,
        condition=(
            "collectives below 70 % of their speed on the other ranks of the group, or in "
            "equal groups, after all have started, for at least {limit} of the step"
        ),
        source=_OWN,
        holds_if_simulated=False,
        kind=OpportunityKind.SLOW_LINK,
        part=StepPart.COMMUNICATION,
    ),
    Rule(
        id="slow-steps",
        find=slow_steps,
        title="slow steps",
        todo="Find what slows single steps",
        limit=LEAST_GAIN,
        condition=(
            "steps that take 5 % longer than the median step, or hosts that pause in single "
            "steps, by at least {limit} of the mean step"
        ),
        source=_OWN,
        holds_if_simulated=False,
        kind=OpportunityKind.SLOW_STEPS,
    ),
    Rule(
        id="changing-steps",
        find=changing_steps,
        title="steps that change over time",
        todo="Find why steps change over time",
        limit=LEAST_GAIN,
        condition=(
            "steps that grow, change level or take turns beyond chance (5 % of shuffled "
            "steps, F test at 1 %), and lengthen the mean step by at least {limit}"
        ),
        source=_OWN,
        holds_if_simulated=False,
        kind=OpportunityKind.CHANGING_STEPS,
        part=StepPart.COMPUTE,
    ),
    Rule(
        id="other-modules",
        find=other_modules,
        title="other modules",
        todo="Merge other modules into the step",
        limit=LEAST_GAIN,
        condition="modules but the main one run alone for at least {limit} of the step",
        source=_OWN,
        holds_if_simulated=False,
        kind=OpportunityKind.OTHER_MODULES,
        part=StepPart.COMPUTE,
    ),
    Rule(
        id="scatter-add",
        find=scatters,
        title="scatters",
        todo="Replace scatters",
        limit=0.05,
        condition="scatters of at least {limit} of the step",
        source="openxla/xla#46225, #26371",
        kind=OpportunityKind.SCATTER,
        part=StepPart.COMPUTE,
        is_bound=True,
    ),
    Rule(
        id="slow-matmul",
        find=slow_matmuls,
        title="slow matrix products",
        todo="Speed up slow matrix products",
        limit=LEAST_GAIN,
        condition=(
            "matrix products below 50 % of the speed that XLA's table and a roofline give"
        ),
        source=f"{_OWN}; XLA's table",
        holds_if_simulated=False,
        kind=OpportunityKind.SLOW_PRODUCTS,
        part=StepPart.COMPUTE,
    ),
    Rule(
        id="off-tensor-cores",
        find=off_tensor_cores,
        title="matrix products off the Tensor Cores",
        todo="Use the Tensor Cores",
        limit=LEAST_GAIN,
        condition=(
            "matrix products of at least {limit} of the step off the Tensor Cores, by kernel "
            "name, else by type and precision"
        ),
        source=_TENSORFLOW,
        kind=OpportunityKind.PRECISION,
        part=StepPart.COMPUTE,
        needs_gpu=True,
    ),
    Rule(
        id="input-bound",
        find=input_bound,
        title="idle between steps",
        todo="Keep the GPU busy between steps",
        limit=0.05,
        condition="idle between steps for at least {limit} of the time",
        source=f"{_OWN}; {_TENSORFLOW}",
        holds_if_simulated=False,
        kind=OpportunityKind.INPUT,
    ),
    Rule(
        id="idle",
        find=host_gaps,
        title="host gaps inside steps",
        todo="Keep the host out of the step",
        limit=LEAST_GAIN,
        condition="gaps over 20 µs inside steps, for at least {limit} of the step",
        source=_OWN,
        kind=OpportunityKind.HOST,
    ),
    Rule(
        id="launch-gaps",
        find=launch_gaps,
        title="launch gaps",
        todo="Shorten launch gaps with CUDA graphs",
        limit=0.05,
        condition="gaps of up to 20 µs inside steps, for at least {limit} of the step",
        source=_OWN,
        holds_if_simulated=False,
        kind=OpportunityKind.LAUNCH_GAPS,
        is_bound=True,
    ),
    Rule(
        id="slow-collective",
        find=slow_collectives,
        title="slow collectives",
        todo="Check slow transfers",
        limit=LEAST_GAIN,
        condition=(
            "collectives below 70 % of the speed that XLA's table gives for size and group"
        ),
        source=f"{_OWN}; XLA's table",
        kind=OpportunityKind.SLOW_COLLECTIVES,
        part=StepPart.COMMUNICATION,
        is_bound=True,
    ),
    Rule(
        id="exposed-copies",
        find=copies,
        title="exposed copies",
        todo="Hide or avoid exposed copies",
        limit=LEAST_GAIN,
        condition="exposed copies of at least {limit} of the step",
        source="openxla/xla#45983",
        kind=OpportunityKind.COPIES,
        part=StepPart.COPIES,
    ),
    Rule(
        id="outside-copies",
        find=outside_copies,
        title="copies outside of the program",
        todo="Hide or avoid copies outside of the program",
        limit=LEAST_GAIN,
        condition=(
            "copies of no instruction, while nothing else runs, for at least {limit} of the "
            "step"
        ),
        source=_OWN,
        holds_if_simulated=False,
        kind=OpportunityKind.OUTSIDE_COPIES,
        part=StepPart.OTHER,
    ),
    Rule(
        id="contending-copies",
        find=contending_copies,
        title="copies that slow what they overlap",
        todo="Move copies away from compute",
        limit=LEAST_GAIN,
        condition=(
            "kernels and collectives that take longer next to copies or memsets than in steps"
            " without (sign test at 1 %), by at least {limit} of the step"
        ),
        source=_OWN,
        holds_if_simulated=False,
        kind=OpportunityKind.CONTENDING_COPIES,
        part=StepPart.COMPUTE,
    ),
    Rule(
        id="needless-rematerialisation",
        find=rematerialised_for_nothing,
        title="needless rematerialisation",
        todo="Recompute less",
        limit=0.03,
        condition=(
            "rematerialisation of at least {limit} of the step while half of the memory is "
            "free"
        ),
        source=_OWN,
        kind=OpportunityKind.REMAT,
        part=StepPart.COMPUTE,
    ),
    Rule(
        id="stale-profile",
        find=stale_profile,
        title="stale profile",
        todo="Record the profile again",
        limit=0.1,
        condition=(
            "costs of the scheduler's profile that are off by at least {limit} of the step"
        ),
        source=_OWN,
        holds_if_simulated=False,
        kind=OpportunityKind.STALE_PROFILE,
        part=StepPart.COMMUNICATION,
        is_bound=True,
    ),
    Rule(
        id="other-work",
        find=other_work,
        title="GPU work of no instruction",
        todo="Record so that all work has an instruction",
        limit=MUCH_OTHER,
        condition=(
            "work of no instruction but copies, while nothing else runs, for at least "
            "{limit} of the step"
        ),
        source=_OWN,
        holds_if_simulated=False,
    ),
    Rule(
        id="untimed-records",
        find=untimed_records,
        title="records without a time stamp",
        todo="Record all times",
        limit=LEAST_GAIN,
        condition=(
            "records without a time stamp whose work takes at least {limit} of the step "
            "elsewhere"
        ),
        source=_OWN,
        holds_if_simulated=False,
    ),
    Rule(
        id="recompilation",
        find=recompilation,
        title="repeated compilation",
        todo="Compile the step once",
        limit=1,
        condition=(
            "two program ids of the main program on one device, or XLA compiles while the "
            "steps run"
        ),
        source="Mocz, GPU/JAX Profiling",
        holds_if_simulated=False,
        kind=OpportunityKind.RECOMPILATION,
    ),
    Rule(
        id="window",
        find=window_remarks,
        title="more than steady steps in the trace",
        todo="",
        limit=1,
        condition=(
            "warm-up, CUDA graphs, several fingerprints, or autotuning of at least 1 % of GPU"
            " time in the trace"
        ),
        source=_OWN,
        holds_if_simulated=False,
    ),
)
RULES: Mapping[str, Rule] = {rule.id: rule for rule in _RULES}
"""Every rule, by the id of its finding."""
