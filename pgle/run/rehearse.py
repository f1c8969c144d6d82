"""`pgle rehearse` as a function: compile a module with and without a profile, and compare the
steps.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path

from pgle.account.schedule_gains import ScheduleGains, moved_words
from pgle.account.scheduled import PlannedMemory, account_of_schedule
from pgle.account.value import Account, Shown, TimedSteps
from pgle.costs.estimate.known import PARTITIONED_LATER, unmodelled_warnings
from pgle.costs.estimate.unknown import assumed_warnings
from pgle.costs.measure.contention import Contention
from pgle.costs.profile.coverage import estimate_profile
from pgle.costs.profile.files import profile_files, read_profile
from pgle.costs.profile.value import Profile, effective_costs
from pgle.errors import UserError
from pgle.files import write_files
from pgle.next import Next
from pgle.requests.predictions import Rehearse
from pgle.run.ask.jaxlib import installed
from pgle.run.compiler.compile import CompileResult, OnPhase
from pgle.run.compiler.session import Session, open_session
from pgle.run.confirm import confirm_compiled
from pgle.run.coverage import carried_over
from pgle.run.directory.directory import RunDirectory, claim
from pgle.run.kept_trials import kept_trials
from pgle.run.process.memory import MEMORY_FRACTION
from pgle.run.rehearse_program import (
    LHS_ON,
    RehearseRequest,
    advise_line,
    gib,
    has_default,
    launch_of_program,
    measure_line,
    near_limit,
    prepared,
    tune_line,
)
from pgle.run.second_compilation import FOLDER as CONTROL
from pgle.run.second_compilation import (
    Control,
    Schedules,
    control,
    fp8_products,
    fp8_warning,
    lhs_gain,
    profile_gain,
)
from pgle.run.timed import timed_steps
from pgle.run.unmoved import unmoved_warnings
from pgle.schedule.control import Controlled, hangs_on_choice, other_choice
from pgle.schedule.placements import Move, compare_placements, placements
from pgle.schedule.predict import Prediction, predict
from pgle.xla.flags.catalogue import LHS, SOL, inert_warnings
from pgle.xla.flags.text import FlagList, typed_flag
from pgle.xla.hlo.module import Module
from pgle.xla.log.messages import SCHEDULER_MEMORY
from pgle.xla.log.verdict import ModuleVerdict, ProfileUse
from pgle.xla.owners import loops
from pgle.xla.targets import Hardware, Target

OTHERS_DIFFER = (
    "the two compilations differ by more than the profile (their fingerprints differ)"
)
UNREAD_SHARE = 0.001  # share of the step; a smaller one is not worth a warning


def memory_warning(
    compiled: CompileResult, allocator_bytes: int, target: Target
) -> str:
    """Return a warning about memory; empty if there is enough.

    XLA schedules for memory instead of speed if memory is too short. Near the limit, a small change
    may change XLA's decisions.

    Args:
        compiled: the compilation.
        allocator_bytes: memory of the job's allocator; 0: unknown.
        target: the GPU.
    """
    found = SCHEDULER_MEMORY.search(compiled.log.read_text(errors="replace"))
    used = limit = 0
    if found:
        used, limit = map(int, found.group(1, 2))
    need = compiled.memory_bytes or 0
    have = allocator_bytes or target.memory_bytes
    remedy = (
        f"raise {MEMORY_FRACTION[0]} as the job has it, rematerialise more, or take a "
        "larger --target"
    )
    if need > have:
        return (
            f"the step needs {gib(need)} and jax's allocator has {gib(have)} of "
            f"{target.name}: it does not fit, and XLA then schedules for memory, not for "
            f"speed; {remedy}"
        )
    if used > limit:
        return (
            f"the scheduler is short of memory ({gib(used)} of temporaries, {gib(limit)} "
            f"left for them), so it overlaps less compute with collectives; {remedy}"
        )
    return near_limit(need, have)


def _unread_warning(prediction: Prediction, moves: Iterable[Move]) -> str:
    """Return a warning about collectives whose results nothing reads; empty if there are none."""
    unread = [
        move.before for move in moves if move.before is not None and move.before.unread
    ]
    took = sum(item.cost_us * item.count for item in unread)
    if took < UNREAD_SHARE * prediction.step_us:
        return ""
    return (
        f"{len(unread)} collectives ({unread[0].name} …) run though nothing reads their "
        f"results: {took / 1e3:,.0f} ms of communication a step; the collective pipeliner "
        "leaves them where one reduction reads another's result, and XLA removes no "
        "collective: do without --xla_gpu_enable_pipelined_all_reduce "
        "(xla_gpu_pipeline_all_reduce)"
    )


def _partition_warning(module: Module) -> str:
    """Return a warning if a scheduled module has custom calls that its program would partition."""
    if all(item.custom_call_target != PARTITIONED_LATER for item in module.walk()):
        return ""
    return (
        f"how the program partitions its {PARTITIONED_LATER} calls (jax's "
        "custom_partitioning) is not in the module: their operands are gathered here; "
        "rehearse the program itself, with a Python that has jax's CUDA plugin, or a job's "
        "*.after_spmd_partitioner dump (--xla_dump_to)"
    )


def lhs_warning(flags: Iterable[str], *, runs: bool) -> str:
    """Return a warning if LHS runs although the user's flags turn it off."""
    if not runs or FlagList(tuple(map(typed_flag, flags))).is_true(LHS) is not False:
        return ""
    return (
        f"LHS runs though --{LHS} is false: on this GPU --{SOL} turns it on, and it is on "
        f"by default; for a schedule without LHS add --{SOL}=false"
    )


def belief_warning(believed_us: float | None, step_us: float) -> str:
    """Return a warning if LHS without a profile assumes more exposed time than the whole step
    takes.

    jaxlib 0.11 assumes milliseconds for asynchronous fusions of slices.
    """
    if believed_us is None or believed_us <= step_us:
        return ""
    return (
        f"without a profile LHS expects {believed_us / 1e3:,.1f} ms of exposed time, more "
        f"than the predicted step of {step_us / 1e3:,.1f} ms: its guesses are far off, and "
        "so may be its order; use a profile, or compare with another jaxlib"
    )


@dataclass(frozen=True)
class CompiledSide:
    """One of the compared schedules."""

    compiled: CompileResult  # the compiler's output
    module: Module  # the scheduled module
    # prediction of one step, with the costs that both sides share
    prediction: Prediction

    @property
    def believed_exposed_us(self) -> float | None:
        """Exposed communication of a step in microseconds, as LHS assumes it; None without an LHS
        dump.
        """
        believed = self.compiled.believed
        exposed = 0.0
        for name, item in believed.items():
            found = self.module.computations.get(name)
            around = loops(self.module, found.root) if found is not None else []
            # a loop with unknown trip count counts once
            times = prod(trips or 1 for _, trips in around)
            exposed += item.total_wasted_cycles * times
        return exposed if believed else None


@dataclass(frozen=True)
class Rehearsal:
    """The comparison of the baseline (LHS without a profile) with the profiled schedule."""

    request: RehearseRequest  # what was compiled
    # XLA's schedule with the user's flags alone; None if this schedule uses LHS too
    default: CompiledSide | None
    # baseline, profiled: LHS without the profile and with it
    baseline: CompiledSide
    profiled: CompiledSide
    # whether XLA used the profile for this module, with the evidence
    verdict: ModuleVerdict
    # collectives, sorted by change of exposed time, largest first
    moves: tuple[Move, ...]
    # kind of the costs of all predictions, such as ``measured`` or ``simulated and estimated``
    costs_are: str
    profile: Path  # the profile that XLA was given
    warnings: tuple[str, ...]  # one line each
    # the second compilation; None: no verdict depends on one
    control: Control | None = None
    tune: Next | None = None  # the command that searches for flags
    measure: Next | None = None  # the command that measures the program
    advise: Next | None = None  # the command that tries edits of the program
    timed: TimedSteps | None = None  # step times of the run directory that was given
    # the run directory that was given, if the rehearsal uses the run's settings; else None
    run: RunDirectory | None = None
    trials: Shown = field(default_factory=dict)  # what an earlier `advise` found

    @property
    def used(self) -> bool:
        """Whether XLA used the profile, and enough of its costs."""
        return self.verdict.verdict is ProfileUse.USED

    @property
    def gained(self) -> Controlled:
        """The gain from the profile."""
        return profile_gain(self.schedules, self.control)

    @property
    def lhs_gained(self) -> Controlled | None:
        """The gain from LHS alone; None if XLA uses LHS by default."""
        return lhs_gain(self.schedules, self.control)

    @property
    def now(self) -> CompiledSide:
        """The schedule that the user's flags make."""
        return self.baseline if self.default is None else self.default

    @cached_property
    def account(self) -> Account:
        """The step with the user's flags, and what would shorten it."""
        now, request = self.now, self.request
        tried = ScheduleGains(
            lhs=self.lhs_gained,
            profile=self.gained,
            now_us=now.prediction.step_us,
            lhs_us=self.baseline.prediction.step_us,
            moved=moved_words(self.moves),
            is_measured=self.costs_are == "measured",
            lhs_flag=LHS_ON,
            measure=self.measure,
            timed=self.timed,
        )
        found = account_of_schedule(
            now.module,
            now.prediction,
            request.hardware,
            tried=tried.opportunities if self.holds else (),
            facts=request.facts,
            memory=PlannedMemory(now.compiled.memory_bytes, request.allocator_bytes),
            search=self.tune,
            advise=self.advise,
            is_searched=self.tune is None,
            timed=self.timed,
        )
        return found.with_trials(self.trials)

    @cached_property
    def schedules(self) -> Schedules:
        """The schedules of the compilation with the user's flags."""
        default = None if self.default is None else self.default.prediction
        return Schedules(
            compiled=self.baseline.compiled,
            baseline=self.baseline.prediction,
            profiled=self.profiled.prediction,
            default=default,
            fp8_products=fp8_products(self.baseline.module),
        )

    @property
    def lower_bound_why(self) -> str:
        """Why one of the steps is only a lower bound, which rules out a verdict; empty if neither
        is.
        """
        predictions = (self.profiled.prediction, self.baseline.prediction)
        return next((why for one in predictions if (why := one.lower_bound_why)), "")

    @property
    def holds(self) -> bool:
        """Whether the comparison is valid. A step was compiled, the steps can be compared, and XLA
        used the profile unless it can move nothing.
        """
        is_used = self.used or not self.moves
        return is_used and not (self.request.no_step or self.lower_bound_why)

    @property
    def good(self) -> bool:
        """Whether the comparison is valid, and the program ran without a fault of its own."""
        return self.holds and not self.request.failed


def rehearse(asked: Rehearse, on_phase: OnPhase = lambda phase: None) -> Rehearsal:
    """Compile the step without and with a profile, and compare the predictions.

    If the words start a program, run it first to capture its modules.
    """
    with prepared(asked) as (command, request):
        is_inside = request.module.is_relative_to(request.out)
        request = replace(
            request, out=request.out / "rehearsal" if is_inside else request.out
        )
        run = launch_of_program(command).run
        return replace(
            rehearsed(request, on_phase),
            tune=tune_line(command),
            measure=measure_line(command),
            advise=advise_line(command),
            trials=kept_trials(request),
            timed=timed_steps(run),
            run=run if command.is_as_it_ran else None,
        )


def rehearsed(request: RehearseRequest, on_phase: OnPhase) -> Rehearsal:
    """Compile with the profile, without it, and with the user's flags alone. Simulate all schedules
    with the same costs, and compare them.
    """
    with (
        # opened before the session: when the session ends, it stops compilations that still run
        ThreadPoolExecutor(4) as pool,
        open_session(
            request.compilation(),
            request.hardware,
            python=request.python,
            cached=request.asked.cached,
            checked=True,
            on_phase=on_phase,
        ) as session,
    ):
        made = _Compilations(request, session, pool).run()
    return _compared(request, made)


@dataclass(frozen=True)
class _Compiled:
    """The results of a rehearsal's compilations; the sides are those of `Rehearsal`."""

    default: CompiledSide | None
    baseline: CompiledSide
    profiled: CompiledSide
    profile: Path  # the profile that XLA was given
    given: Profile  # this profile, parsed
    costs: Profile | None  # costs that price the schedules; None: estimates
    control: Control | None
    unmoved: Sequence[str]  # warnings on flags without effect


@dataclass(frozen=True)
class _Ahead:
    """A schedule made early with a profile that may turn out wrong."""

    profile: bytes  # content of the profile that the schedule used
    schedule: Future[CompileResult]


@dataclass(frozen=True)
class _Compilations:
    """The compilations of a rehearsal. Those that need no result of another one run in parallel."""

    request: RehearseRequest
    session: Session
    pool: ThreadPoolExecutor

    @property
    def flags(self) -> tuple[str, ...]:
        """The user's flags, with LHS turned on unless they decide that."""
        return self.session.base.flags

    def run(self) -> _Compiled:
        """Make all schedules, in this order. A ``begin`` method starts a schedule and does not
        wait.

        While the whole module compiles, the other schedules are made from its scheduling passes
        alone. Meanwhile a check shows whether these passes give the schedule of the whole
        compilation.
        """
        whole = self.session.without_profile("baseline", self.flags)
        default_begun = self._begin_default()
        ahead = self._begin_with_guess(whole)
        first = self.session.schedule("baseline", self.flags)
        profile, costs = _profile_for(first, self.request, self.request.out)
        given = read_profile(profile) if costs is None else costs
        baseline = self._side(first, costs)
        contention = baseline.prediction.contention
        default = self._default(default_begun, costs, contention)
        unmoved = self.pool.submit(
            unmoved_warnings, self.session, self.request.flags, first
        )
        control_begun = self._begin_control(baseline, has_default=default is not None)
        second = self._profiled(ahead, profile)
        profiled = self._side(second, costs, contention)
        found = None if control_begun is None else control_begun.result()
        return _Compiled(
            default=default,
            baseline=baseline,
            profiled=profiled,
            profile=profile,
            given=given,
            costs=costs,
            control=found,
            unmoved=unmoved.result(),
        )

    def _begin_default(self) -> Future[CompileResult] | None:
        """Start the schedule with the user's flags alone. Return None if it must equal the
        baseline.
        """
        if not has_default(self.request):
            return None
        return self.pool.submit(self.session.schedule, "default", self.request.flags)

    def _begin_with_guess(self, whole: Future[CompileResult]) -> _Ahead | None:
        """Start the schedule with a profile before the baseline is ready: with the user's profile,
        or with estimates of the program before scheduling. Return None if these estimates are not
        possible yet.
        """
        profile = self.request.profile
        if profile is None:
            compiled = whole.result()
            if compiled.schedule is None or compiled.is_cached:
                return None
            profile = _estimated(self.request.out, compiled, self.request.hardware)
        content = profile.read_bytes()
        begun = self.pool.submit(self.session.schedule, "profiled", self.flags, profile)
        return _Ahead(content, begun)

    def _default(
        self,
        begun: Future[CompileResult] | None,
        costs: Profile | None,
        contention: Contention,
    ) -> CompiledSide | None:
        """Return the side with the user's flags alone. None if XLA left an LHS dump: it then uses
        LHS by default, and this side would repeat the baseline.
        """
        if begun is None or begun.result().lhs is not None:
            return None
        return self._side(begun.result(), costs, contention)

    def _begin_control(
        self, baseline: CompiledSide, *, has_default: bool
    ) -> Future[Control] | None:
        """Start the second compilation. Return None if no verdict depends on the kernels for
        products.
        """
        if not hangs_on_choice([baseline.prediction]):
            return None
        flag = other_choice(self.flags)
        return self.pool.submit(
            _controlled, self.session, self.request, flag, has_default
        )

    def _profiled(self, ahead: _Ahead | None, profile: Path) -> CompileResult:
        """Return the schedule with the profile. Use the early schedule if its profile was right."""
        if ahead is not None:
            made = ahead.schedule.result()
            if profile.read_bytes() == ahead.profile:
                return made
        shutil.rmtree(self.request.out / "profiled", ignore_errors=True)
        return self.session.schedule("profiled", self.flags, profile)

    def _side(
        self,
        made: CompileResult,
        costs: Profile | None,
        contention: Contention | None = None,
    ) -> CompiledSide:
        prediction = _priced(self.session, made, costs, contention)
        return CompiledSide(made, made.scheduled, prediction)


def _compared(request: RehearseRequest, made: _Compiled) -> Rehearsal:
    """Compare the schedules: what XLA used, what moved, and what makes the answer uncertain."""
    baseline = made.baseline
    profiled = made.profiled
    verdict = confirm_compiled(profiled.compiled, made.given)
    moves = compare_placements(
        placements(baseline.module, baseline.prediction.timeline, request.flags),
        placements(profiled.module, profiled.prediction.timeline, request.flags),
    )
    costs_are = (
        "estimated" if request.profile is None else baseline.prediction.costs_are
    )
    result = Rehearsal(
        request=request,
        default=made.default,
        baseline=baseline,
        profiled=profiled,
        verdict=verdict,
        moves=moves,
        costs_are=costs_are,
        profile=made.profile,
        control=made.control,
        warnings=tuple(dict.fromkeys(filter(None, _warnings(request, made, moves)))),
    )
    doubt = fp8_warning(result.schedules, made.control)
    return replace(result, warnings=(*result.warnings, doubt)) if doubt else result


def _warnings(
    request: RehearseRequest, made: _Compiled, moves: Iterable[Move]
) -> Iterator[str]:
    """Yield warnings on what makes the answer uncertain. An empty text is no warning."""
    baseline = made.baseline
    profiled = made.profiled
    yield from request.warnings
    yield from made.given.warnings
    yield from _compilation_warnings(request, baseline, made.costs)
    yield from made.unmoved
    yield _belief_warning(request, baseline)
    yield _unread_warning(baseline.prediction, moves)
    yield "" if made.control is None else made.control.failure
    is_same = baseline.compiled.fingerprint == profiled.compiled.fingerprint
    yield "" if is_same else OTHERS_DIFFER
    yield from baseline.prediction.timeline.warnings
    yield from profiled.prediction.timeline.warnings


def _compilation_warnings(
    request: RehearseRequest, baseline: CompiledSide, costs: Profile | None
) -> Iterator[str]:
    """Yield warnings on what may be wrong in the compilation without a profile. An empty text is no
    warning.
    """
    module = baseline.module
    known = () if costs is None else effective_costs(costs, module.fingerprint)
    yield from baseline.compiled.warnings
    yield from unmodelled_warnings(module, known)
    yield _partition_warning(module)
    yield memory_warning(baseline.compiled, request.allocator_bytes, request.target)
    yield from assumed_warnings(
        module, request.hardware, is_named=request.asked.names_network
    )
    yield lhs_warning(request.flags, runs=baseline.compiled.lhs is not None)
    flags = FlagList(tuple(map(typed_flag, request.flags)))
    yield from inert_warnings(flags, installed(request.python).jaxlib)


def _belief_warning(request: RehearseRequest, baseline: CompiledSide) -> str:
    """Return the warning on XLA's own estimate. Empty for older GPUs, for which XLA assumes a
    constant.
    """
    if not request.target.vendor.is_modelled(request.target.architecture):
        return ""
    return belief_warning(baseline.believed_exposed_us, baseline.prediction.step_us)


def _controlled(
    session: Session, request: RehearseRequest, flag: str, has_default: bool
) -> Control:
    """Make the schedules with the other kernels for products, with costs from the same source."""
    flags = (*session.base.flags, flag)
    own = (*request.flags, flag)

    def schedules() -> Schedules:
        first = session.schedule(f"{CONTROL}/baseline", flags)
        profile, costs = _profile_for(first, request, request.out / CONTROL)
        second = session.schedule(f"{CONTROL}/profiled", flags, profile)
        baseline = _priced(session, first, costs)
        made = [second]
        if has_default:
            made.append(session.schedule(f"{CONTROL}/default", own))
        others = [_priced(session, one, costs, baseline.contention) for one in made]
        return Schedules(
            compiled=first,
            baseline=baseline,
            profiled=others[0],
            default=others[1] if has_default else None,
            fp8_products=fp8_products(first.scheduled),
        )

    return control(session, session.base.flags, flag, schedules)


def _profile_for(
    made: CompileResult, request: RehearseRequest, out: Path
) -> tuple[Path, Profile | None]:
    """Return the profile for XLA, and the costs that price the schedules.

    If the user gives no profile, the profile holds estimates and the costs are None. Schedules are
    then priced by estimates of the scheduled modules, which are more accurate than those of LHS's
    input.

    Args:
        made: the program, scheduled without a profile.
        request: the rehearsal.
        out: the folder for a new profile.
    """
    if request.profile is None:
        return _estimated(out, made, request.hardware), None
    given = read_profile(request.profile)
    costs, note = carried_over(request.profile, given, made.table, request.hardware)
    if not note:
        return request.profile, costs
    path = out / "carried.pbtxt"
    _write(path, costs)
    return path, costs


def _priced(
    session: Session,
    made: CompileResult,
    costs: Profile | None,
    contention: Contention | None = None,
) -> Prediction:
    """Return the predicted step of a schedule, by the given costs or by estimates."""
    if costs is None:
        return session.predicted(made)
    return predict(made.scheduled, costs, session.hardware, contention=contention)


def _estimated(out: Path, compiled: CompileResult, hardware: Hardware) -> Path:
    """Write a profile of estimates, so that XLA can schedule with roughly true costs.

    If LHS left a dump, the costs are those of the instructions that LHS saw, since later passes
    rename and repeat some. They are sorted by name, since LHS breaks ties in its own order.
    """
    module = compiled.scheduled if compiled.lhs is None else compiled.lhs.module
    profile = estimate_profile(module, hardware)
    costs = sorted(profile.costs, key=lambda cost: cost.name)
    if not costs:
        raise UserError("the module has no instruction that costs anything", where=out)
    path = out / "estimated.pbtxt"
    _write(path, replace(profile, costs=tuple(costs)))
    return path


def _write(path: Path, profile: Profile) -> None:
    files = profile_files(path, profile)
    for name in files:
        claim(Path(str(name)))
    write_files(files, force=True)
