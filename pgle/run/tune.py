"""`pgle tune` as a function: search the flags and the profile that make a step fastest, with the
real compiler.

How a flag gets into the answer: in `pgle/tune/search.py`, `axes` makes settings from the flags of
the catalogue, and `search` passes them to `_Search.attempt`, one axis at a time. `Bench.trial`
compiles a setting and simulates it in all worlds. `holds_up` accepts the setting. `_Search.prove`
compiles the best setting again, with all passes. `pgle/report/tune.py` words the result.

The same command repeats a search that was stopped. This is fast, since the search is deterministic
and its compilations are in the cache.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pgle import __version__
from pgle.account.schedule_gains import ScheduleGains, moved_words, pays
from pgle.account.scheduled import PlannedMemory, account_of_schedule
from pgle.account.value import (
    Account,
    Basis,
    Opportunity,
    OpportunityKind,
    StepBase,
    StepPart,
    TimedSteps,
)
from pgle.costs.estimate.unknown import assumed_warnings
from pgle.costs.profile.carry import under_other_flags
from pgle.costs.profile.coverage import cover, estimate_profile
from pgle.costs.profile.files import profile_files
from pgle.costs.profile.lookup import LookupTable
from pgle.costs.profile.value import Profile
from pgle.errors import UserError, as_change, in_percent, points_into
from pgle.files import AnyPath, Json, check_absent, read_bytes, sha256, write_files
from pgle.next import Next
from pgle.requests.kinds import FOUND_BY_SEARCH, PROCESSES
from pgle.run.ask.jaxlib import installed
from pgle.run.compiler.compile import SCHEDULER_FLAGS, CompileResult, OnPhase
from pgle.run.compiler.session import Session, open_session
from pgle.run.compiler.worker import UNSCHEDULED, is_full
from pgle.run.confirm import confirm_compiled
from pgle.run.coverage import measured_for
from pgle.run.directory.directory import (
    STORED,
    TIMELINE,
    RunDirectory,
    check_ours,
    check_question,
    emptied,
)
from pgle.run.inputs.next_command import ProgramLaunch
from pgle.run.kept_trials import kept_trials
from pgle.run.process.on_worker import Seen, check_jaxlib, kept_for
from pgle.run.process.workers import Workers, in_order, workers
from pgle.run.rehearse_program import (
    LHS_ON,
    RehearseRequest,
    asked_of_search,
    has_default,
    near_limit,
)
from pgle.run.second_compilation import (
    Control,
    Schedules,
    control,
    fp8_choice_warning,
    lhs_gain,
    profile_gain,
    unchecked,
)
from pgle.run.timed import timed_steps
from pgle.run.unmoved import unmoved_warnings
from pgle.schedule.control import Controlled, hangs_on_choice, other_choice
from pgle.schedule.placements import Move, compare_placements, placements
from pgle.schedule.predict import Gain, Prediction, predict
from pgle.steps.compare import change
from pgle.tune.search import (
    PROGRESS,
    Axis,
    Flags,
    OverWorlds,
    Setting,
    Trial,
    axes,
    best,
    exposed_by_kind,
    holds_up,
    judge,
    nothing_to_gain,
    search,
    steps_in,
    without_one,
    worlds,
)
from pgle.worth import is_worth
from pgle.xla.flags.catalogue import inert_warnings
from pgle.xla.flags.text import FlagList, typed_flag
from pgle.xla.hlo.module import Module
from pgle.xla.log.verdict import ModuleVerdict, ProfileUse

FOUND = ("flags.txt", "profile.pbtxt", "profile.pbtxt.json")
"""Files of what a search found, in its folder."""
NAME = "search.json"  # file that identifies a search, which alone may reuse the folder

AT_ONCE = min(os.cpu_count() or 1, 3)
"""Number of parallel compilations. Each needs a core, and the search tries at most three settings
at a time.
"""
SCHEDULES = ("profile", "again")
"""Folders of a setting's schedules with its profile. The second is used if the first schedule has
names without a cost.
"""

SAME_STEP, SAME_MEMORY = 0.001, 0.01
"""Relative differences that count as equal, for the step and for temporary memory. Ties between
instructions may break differently.
"""
CLOSE = 0.1
"""Share of the memory limit. A setting that leaves less free memory than this is also judged with
less memory.
"""
LESS = 0.05
"""Share of the memory limit by which memory is then reduced. XLA keeps this share free when it
plans (`--xla_gpu_memory_limit_slop_factor=95`), and its plan does not know the job's other memory.
"""
PROOFS = 3  # most settings that are compiled whole before the search gives up
WORLDS = worlds(20)


@dataclass(frozen=True)
class Simulated:
    """A setting with its schedule and prediction."""

    trial: Trial  # the setting's figures
    module: Module  # the scheduled module
    prediction: Prediction  # prediction of the step
    # costs of the prediction, which XLA was given too, except for `Bench.baseline`
    profile: Profile


@dataclass(frozen=True)
class Proven:
    """An accepted setting, compiled whole."""

    scheduled: Simulated  # the schedule from all passes
    # comparison with the profile alone, over the worlds of the search
    judged: OverWorlds
    # comparison with the profile alone if the job has a little less memory (`LESS`); None if both
    # need much less than that
    in_less: OverWorlds | None
    # comparison by two compilations; None: nothing depends on the kernels for products
    control: Controlled | None
    # better by the search's rule and by both compilations, and not longer with less memory
    accepted: bool
    use: ModuleVerdict  # whether XLA used the new profile, by its log and schedule
    # share of the new module's time that has a cost in the new profile, 0 to 1
    coverage: float
    # relative change of the step from the trial's; 0 if both compilations agree
    change: float
    memory_change: float  # relative change of temporary memory from the trial's
    written: tuple[Path, ...] = ()  # files that were written

    @property
    def saved(self) -> Gain:
        """The gain over the profile alone, averaged over the worlds; the smaller gain of both
        compilations.
        """
        return gain_of(self.judged) if self.control is None else self.control.answer

    @property
    def used(self) -> bool:
        """Whether XLA used the new profile, and enough of its costs."""
        return self.use.verdict is ProfileUse.USED

    @property
    def agrees(self) -> bool:
        """Whether step and memory equal the trial's."""
        return _agree(self.change, self.memory_change)


@dataclass(frozen=True)
class Gains:
    """The gains of LHS and of the profile with the user's own flags, as in a rehearsal."""

    profile: Controlled
    #: schedule with the user's flags; None: these also use LHS
    default: Simulated | None = None
    #: gain of LHS over `default`; None: there is no `default`
    lhs: Controlled | None = None
    failure: str = ""  # why no second compilation checked them, in one line


@dataclass(frozen=True)
class Tuning:
    """The result of a search."""

    # what was tuned; its folder is new, empty, or that of an equal search
    request: RehearseRequest
    budget: int  # most trials
    # ``better``, ``no-room``, ``not-better``, or ``cannot-tell`` (every step is a lower bound)
    verdict: str
    baseline: Simulated  # LHS without a profile, with the user's own flags
    pgle: Simulated  # the user's own flags with the profile
    proof: Proven | None  # proof of the best setting; None: no setting is better
    trials: tuple[Trial, ...]  # all trials, in order
    # trials of the best setting without one flag, by this flag
    without: dict[str, Trial]
    # settings that the search accepted and the proof rejected, with the reason
    refused: tuple[str, ...]
    # kind of the program's costs, such as ``measured``; costs of new collectives are modelled
    costs_are: str
    jaxlib: str  # version of the jaxlib that compiled
    # how pgle runs the program of this module
    launch: ProgramLaunch = field(default_factory=ProgramLaunch)
    gains: Gains | None = None  # gains of LHS and the profile; None: flags were found
    measure: Next | None = None  # the command that measures the program
    advise: Next | None = None  # the command that tries edits of the program
    # the run directory, if it is searched with its own settings; else None
    run: RunDirectory | None = None
    warnings: tuple[str, ...] = ()  # one line each

    @cached_property
    def account(self) -> Account:
        """The step and what would shorten it. The step has the profile if it was timed or if flags
        were found for it.
        """
        request = self.request
        timed = timed_steps(self.launch.run)
        side, base = self.pgle, StepBase.PROFILED
        if self.proof is None and timed is None:
            side, base = self.now, StepBase.NOW
        return account_of_schedule(
            side.module,
            side.prediction,
            request.hardware,
            tried=self._tried(timed),
            facts=request.facts,
            memory=PlannedMemory(side.trial.memory_bytes, request.allocator_bytes),
            advise=self.advise,
            is_searched=True,
            base=base,
            timed=timed,
        ).with_trials(kept_trials(request))

    def _tried(self, timed: TimedSteps | None) -> Iterable[Opportunity]:
        """Return a trial of the found flags, else of the profile."""
        if self.proof is not None:
            return (self._of_flags(self.proof),)
        if self.gains is None or timed is not None:
            return ()
        return ScheduleGains(
            lhs=self.gains.lhs,
            profile=self.gains.profile,
            now_us=self.now.prediction.step_us,
            lhs_us=self.baseline.prediction.step_us,
            moved=moved_words(self.moves),
            is_measured=self.costs_are == "measured",
            lhs_flag=LHS_ON,
            measure=self.measure,
        ).opportunities

    @property
    def now(self) -> Simulated:
        """The schedule that the user's flags make."""
        default = None if self.gains is None else self.gains.default
        return self.baseline if default is None else default

    @property
    def moves(self) -> tuple[Move, ...]:
        """The collectives without and with the profile."""
        sides = (self.baseline, self.pgle)
        placed = [
            placements(side.module, side.prediction.timeline, self.request.flags)
            for side in sides
        ]
        return compare_placements(*placed)

    def _of_flags(self, proof: Proven) -> Opportunity:
        """Return the opportunity of setting the found flags."""
        saved = proof.saved
        step_us = self.pgle.prediction.step_us
        return Opportunity(
            kind=OpportunityKind.FLAGS,
            expected_us=saved.share * step_us,
            least_us=saved.low * step_us,
            most_us=saved.high * step_us,
            part=StepPart.COMMUNICATION,
            basis=Basis.COMPILED,
            title="Try these flags",
            why=f"shorter in {proof.judged.won} of {proof.judged.of} variations of the costs",
            tried="" if proof.used else "not proven: XLA did not use the whole profile",
        )

    @property
    def tuned(self) -> Simulated:
        """The schedule of the best setting. If none is better, that of the profile alone."""
        return self.pgle if self.proof is None else self.proof.scheduled

    @property
    def good(self) -> bool:
        """Whether the search proved a better setting, or showed that none exists."""
        return self.verdict != "cannot-tell" and (self.proof is None or self.proof.used)


OnTrial = Callable[[Trial, Trial], None]
"""Called with each trial and the trial of the profile alone. The first call has the latter twice.
"""


def tune(
    request: RehearseRequest,
    budget: int = 20,
    *,
    where: str = PROCESSES,
    on_trial: OnTrial = lambda trial, pgle: None,
    on_phase: OnPhase = lambda phase: None,
) -> Tuning:
    """Search, judge and prove.

    Args:
        request: what to tune.
        budget: most trials.
        where: the `workers` that make trials.
        on_trial: called with each trial.
        on_phase: called at each phase.
    """
    check(request)  # raises errors before any compilation
    with _makers(request, where) as makers, open_bench(request, on_phase) as bench:
        write_files(
            {request.out / NAME: json.dumps(_question(request), indent=1) + "\n"},
            force=True,
        )
        on_trial(bench.pgle.trial, bench.pgle.trial)
        unknown = bench.pgle.trial.lower_bound
        room = not unknown and not nothing_to_gain(bench.pgle.prediction)
        found = _Search(bench, on_trial, makers)
        proof = found.run(budget) if room else None
        if proof is None:  # remove results of an earlier search with another limit
            for name in FOUND:
                (request.out / name).unlink(missing_ok=True)
        without = {} if proof is None else found.without(proof.scheduled.trial)
        gains = bench.gains() if proof is None and not unknown else None
        unmoved = unmoved_warnings(bench.session, request.flags, bench.first)
        doubts = [fp8_choice_warning(bench.session, bench.first)]
    if gains is not None:
        doubts.append(gains.failure)
    pgle = bench.pgle
    verdict = "not-better" if proof is None else "better"
    if unknown:
        verdict = "cannot-tell"
    elif not room:
        verdict = "no-room"
    network = assumed_warnings(
        pgle.module, request.hardware, is_named=request.asked.names_network
    )
    flags = FlagList(tuple(map(typed_flag, request.flags)))
    warnings = [
        *request.warnings,
        *bench.first.warnings,
        bench.carried,
        *pgle.prediction.timeline.warnings,
        *network,
        *inert_warnings(flags, bench.jaxlib),
        *unmoved,
        *doubts,
        *_warnings(request, pgle, proof),
    ]
    return Tuning(
        request=request,
        budget=budget,
        verdict=verdict,
        baseline=bench.baseline,
        pgle=pgle,
        proof=proof,
        trials=tuple(found.trials),
        without=without,
        refused=tuple(found.refused),
        gains=gains,
        costs_are=pgle.prediction.costs_are
        if request.profile is not None
        else "estimated",
        jaxlib=bench.jaxlib,
        warnings=tuple(filter(None, warnings)),
    )


def check(request: RehearseRequest) -> None:
    """Raise `UserError` for a request that is wrong without any compilation."""
    for name in (*FOUND, TIMELINE, STORED, NAME):
        check_absent(request.out / name, force=True)
    for name in ("trials", "proof"):
        check_ours(request.out / name)
    check_question(
        request.out / NAME, _question(request), "the trials of another search"
    )


def _question(request: RehearseRequest) -> Json:
    """Return everything that a trial depends on, except its flags."""
    return {
        "schema": "pgle.search/1",
        "pgle": __version__,
        "jaxlib": installed(request.python).jaxlib,
        **asked_of_search(request.asked, request.program, request.target),
        "module": sha256(read_bytes(request.module)),
        "flags": list(request.flags),
        "memory_fraction": request.memory_fraction,
        "topology": request.topology,
    }


ProgramKey = tuple[str, str]
"""The program before scheduling, and the flags that the scheduler reads."""


@dataclass(frozen=True)
class MadeTrial:
    """A trial and the key of its program; the key is None if there is no schedule."""

    trial: Trial
    program: ProgramKey | None = None


class Bench:
    """Compile settings and simulate them. Several threads may call `schedule`.

    Attributes:
        first: the module, scheduled without a profile.
        baseline: LHS alone, with the user's own flags.
        pgle: the user's own flags, with LHS and the profile.
        jaxlib: version of the jaxlib that compiles.
        carried: a line on the costs that were carried over to this module; empty if none.
        memory_share: share of the GPU's memory that the program needs, 0 to 1.
    """

    def __init__(self, request: RehearseRequest, session: Session) -> None:
        self.request = request
        self.session = session
        self._programs: dict[ProgramKey, Trial] = {}
        self._costs: dict[Path, tuple[Profile, int]] = {}
        self._complete: set[Path] = set()
        self._is_whole = False  # whether all passes compiled `baseline` and `pgle`
        result = self.first = session.schedule("no-profile", session.base.flags)
        self.jaxlib = result.jaxlib
        self.carried = ""
        self.memory_share = (result.memory_bytes or 0) / request.target.memory_bytes
        self._first = table = result.table
        if request.profile is None:
            self._given = estimate_profile(table.module, request.hardware)
        else:
            self._given, self.carried = measured_for(
                request.profile, table, request.hardware
            )
        self.baseline = self.simulated(
            ({}, "no profile"), result, *self._estimated(table)
        )
        try:
            self.pgle = self.schedule(({}, "the profile"))
        except UserError as error:
            raise UserError(
                f"does not compile with the profile: {error}", where=request.module
            ) from None
        self._programs[self.program({})] = self.pgle.trial

    def trial(self, setting: Setting) -> MadeTrial:
        """Return the figures of a setting, or the reason for none. A program that another setting
        also compiled to is not simulated again.
        """
        flags, label = setting
        folder = self.folder_of(flags)
        try:
            program = self.program(flags)
            known = self._programs.get(program)
            if known is None:
                known = self.schedule(setting).trial
                # another thread may have made this program meanwhile
                self._programs.setdefault(program, known)
            return MadeTrial(replace(known, flags=flags, label=label), program)
        except UserError as error:
            if is_full(folder.parent):
                raise
            return MadeTrial(Trial(flags, label, failure=str(error)))
        finally:
            for made in ("names", *SCHEDULES):
                shutil.rmtree(folder / made, ignore_errors=True)

    def schedule(self, setting: Setting) -> Simulated:
        """Compile a setting for its names, give these names costs, compile with these costs, and
        simulate.
        """
        flags, _ = setting
        folder = self.folder_of(flags)
        named = self._named(flags)
        # settings that differ in scheduler flags share this program
        program = named.after_optimizations
        path = folder / "profile.pbtxt"
        for name in SCHEDULES:
            if program not in self._costs:
                self._costs[program] = self._estimated(named.table)
            profile, modelled = self._costs[program]
            write_files(profile_files(path, profile), force=True)
            shutil.rmtree(folder / name, ignore_errors=True)
            result = self.session.schedule(
                f"{folder.name}/{name}", self.options(flags), path
            )
            if not self._has_new_names(program, result):
                break
        return self.simulated(setting, result, profile, modelled)

    def simulated(
        self, setting: Setting, result: CompileResult, profile: Profile, modelled: int
    ) -> Simulated:
        """Return a compilation simulated with its costs, unchanged and in all worlds."""
        module = result.scheduled
        prediction = predict(module, profile, self.request.hardware)
        trial = Trial(
            *setting,
            step_us=prediction.step_us,
            exposed_us=prediction.exposed_us,
            exposed_by_kind=exposed_by_kind(prediction),
            worlds_us=steps_in(WORLDS, module, prediction),
            temp_bytes=result.memory.get("temp"),
            memory_bytes=result.memory_bytes,
            lower_bound=prediction.lower_bound,
            modelled=modelled,
            program=result.fingerprint,
        )
        return Simulated(trial, module, prediction, profile)

    def whole(
        self, tried: Simulated, folder: Path, *, profile: bool = True
    ) -> tuple[Simulated, CompileResult]:
        """Compile a setting by all passes, with its trial's profile or without one, and simulate
        it.
        """
        emptied(folder)
        flags = tried.trial.flags
        wanted = replace(self.session.base, dump_dir=folder, flags=self.options(flags))
        if profile:
            wanted = replace(wanted, profile=self.folder_of(flags) / "profile.pbtxt")
        result = self.session.compiler.compile(wanted)
        return self.simulated(
            (flags, tried.trial.label), result, tried.profile, tried.trial.modelled
        ), result

    def compile_whole(self) -> None:
        """Compile the two schedules that settings are compared with again, by all passes: the one
        without a profile, and `pgle`. It is done once, after a setting's whole compilation differed
        from its scheduling passes alone.
        """
        if not self._is_whole:
            self._is_whole = True
            self.session.distrust()
            self.baseline, _ = self.whole(
                self.baseline, self.session.base.dump_dir / "baseline", profile=False
            )
            self.pgle, _ = self.whole(self.pgle, self.session.base.dump_dir / "pgle")

    def controlled(self, found: Simulated) -> Controlled | None:
        """Compare a setting with the profile alone, by two compilations. None if nothing depends on
        the kernels for products.

        Both compilations use the setting and its costs in all worlds. The second one uses other
        kernels for products.
        """
        alone = self.pgle
        tried = found.trial
        if not hangs_on_choice([alone.prediction, found.prediction]):
            return None
        gained = gain_of(judge(tried.worlds_us, alone.trial.worlds_us))
        flag = typed_flag(other_choice(self.options(tried.flags)))
        other = {flag.name: flag.value or ""}
        try:
            for flags in ({}, tried.flags):
                folder = self.folder_of({**flags, **other}).name
                self.session.with_other_kernels(f"{folder}/names", self.options(flags))
        except UserError as error:
            return Controlled(gained, failure=unchecked(error))
        after = self.schedule(({**tried.flags, **other}, tried.label)).trial
        before = self.schedule((other, alone.trial.label)).trial
        return Controlled(gained, gain_of(judge(after.worlds_us, before.worlds_us)))

    def gains(self) -> Gains:
        """Return the gains of LHS and the profile with the user's own flags, as a rehearsal does.
        The second compilation is made only if the first gains enough.
        """
        default = self._default({}, self.baseline.profile)
        first = _schedules(self.first, default, self.baseline, self.pgle)
        found = self._control(first)
        return Gains(
            profile=profile_gain(first, found),
            default=default,
            lhs=lhs_gain(first, found),
            failure="" if found is None else found.failure,
        )

    def _control(self, first: Schedules) -> Control | None:
        """Return the second compilation; None if the first gains too little, or if nothing depends
        on the kernels for products.
        """
        gained = (profile_gain(first, None), lhs_gain(first, None))
        is_open = any(each is not None and pays(each) for each in gained)
        if not is_open or not hangs_on_choice([first.baseline, first.profiled]):
            return None
        flags = self.options({})
        flag = other_choice(flags)
        has_default = first.default is not None
        make = partial(self._with_flag, flag, has_default=has_default)
        return control(self.session, flags, flag, make)

    def _with_flag(self, flag: str, *, has_default: bool) -> Schedules:
        """Return the schedules of `gains` with one more flag."""
        typed = typed_flag(flag)
        flags = {typed.name: typed.value or ""}
        after = self.schedule((flags, "the profile"))
        folder = f"{self.folder_of(flags).name}/no-profile"
        result = self.session.schedule(folder, self.options(flags))
        costs, modelled = self._estimated(result.table)
        before = self.simulated((flags, "no profile"), result, costs, modelled)
        default = self._default(flags, costs) if has_default else None
        return _schedules(result, default, before, after)

    def _default(self, flags: Flags, costs: Profile) -> Simulated | None:
        """Return the schedule with the user's flags and more; None if it uses LHS too."""
        if not has_default(self.request):
            return None
        more = (f"--{name}={value}" for name, value in flags.items())
        folder = f"{self.folder_of(flags).name}/default"
        result = self.session.schedule(folder, (*self.request.flags, *more))
        if result.lhs is not None:
            return None
        return self.simulated((flags, "no LHS"), result, costs, 0)

    def in_less_memory(self, trial: Trial) -> OverWorlds | None:
        """Compare a setting with the profile alone, with a little less memory. None if both need
        much less than the limit.

        Memory decides what XLA recomputes, and so the sign of a change. No plan knows the need
        within the last few per cent.
        """
        base = self.session.base
        have = base.allocator_bytes
        sides = (trial, self.pgle.trial)
        need = max(side.memory_bytes or 0 for side in sides)
        if not have or need < (1 - CLOSE) * have:
            return None
        # only the scheduler reads this limit
        self.session.base = replace(base, allocator_bytes=int(have * (1 - LESS)))
        try:
            after, before = (
                self.schedule((side.flags, side.label)).trial for side in sides
            )
            return judge(after.worlds_us, before.worlds_us)
        finally:
            self.session.base = base

    def axes(self) -> tuple[Axis, ...]:
        """Return what can be changed in the program besides the user's own flags."""
        given = [typed_flag(flag).name for flag in self.request.flags]
        return axes(self.baseline.module, self.jaxlib, given, self.memory_share)

    def options(self, flags: Flags) -> tuple[str, ...]:
        """Return all XLA flags of a setting."""
        return (
            *self.session.base.flags,
            *(f"--{name}={value}" for name, value in flags.items()),
        )

    def folder_of(self, flags: Flags) -> Path:
        """Return the folder in which a setting is compiled."""
        return (
            self.session.base.dump_dir
            / sha256(json.dumps(sorted(flags.items())).encode())[:12]
        )

    def _has_new_names(self, program: Path, result: CompileResult) -> bool:
        """Whether a schedule has names that the program before scheduling lacks. These then get
        costs.

        Since jaxlib 0.12, scheduling wraps copies of slices in loops. LHS assumes 5 ms for each
        without a cost.
        """
        if program.name != UNSCHEDULED or program in self._complete:
            return False
        self._complete.add(program)
        final = LookupTable(result.scheduled)
        known = final.costs(self._costs[program][0])
        if all(
            name in known or row.is_optional or not row.accepted
            for name, row in final.rows.items()
        ):
            return False
        self._costs[program] = self._estimated(result.table)
        return True

    def _estimated(self, table: LookupTable) -> tuple[Profile, int]:
        """Return the costs under a setting's names, and how many collectives are modelled."""
        return under_other_flags(self._given, self._first, table, self.request.hardware)

    def _named(self, flags: Flags) -> CompileResult:
        return self.session.without_profile(
            f"{self.folder_of(flags).name}/names", self.options(flags)
        ).result()

    def program(self, flags: Flags) -> ProgramKey:
        """Return what determines a schedule: the program before scheduling, and the scheduler's
        flags.
        """
        early: dict[str, str] = {}
        late: dict[str, str] = {}
        for name, value in flags.items():
            part = late if f"--{name}" in SCHEDULER_FLAGS else early
            part[name] = value
        named = self._named(flags)
        program = self.session.program(named) or json.dumps(early, sort_keys=True)
        return program, json.dumps(late, sort_keys=True)


@contextmanager
def open_bench(
    request: RehearseRequest, on_phase: OnPhase = lambda phase: None
) -> Iterator[Bench]:
    """Open a bench whose dumps have their own folder. The folder is emptied first, and removed at
    the end.
    """
    folder = request.out / "trials"
    emptied(folder)
    base = replace(request.compilation(), dump_dir=folder)
    with open_session(
        base,
        request.hardware,
        python=request.python,
        cached=request.asked.cached,
        on_phase=on_phase,
    ) as session:
        try:
            yield Bench(request, session)
        except BaseException as error:
            full = isinstance(error, UserError) and is_full(folder)
            if full or not points_into(error, folder):
                shutil.rmtree(folder, ignore_errors=True)
            if full:  # on a full disk XLA truncates its dumps without an error
                remedy = (
                    "free some and give the same command again, or choose another folder "
                    "with -o DIR"
                )
                raise UserError(
                    "no space left on the device", where=request.out, remedy=remedy
                ) from None
            raise
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _makers(request: RehearseRequest, where: str) -> Iterator[TrialMakers | None]:
    """Yield the makers of trials on other machines; None: this machine makes them."""
    if where == PROCESSES:
        yield None
        return
    there = request.absolute()
    with workers(where, AT_ONCE, Seen(there.files_read)) as found:
        yield TrialMakers(found, there)


@dataclass(frozen=True)
class TrialMakers:
    """Make trials on other machines, each with its own bench."""

    workers: Workers
    request: RehearseRequest

    def trials(self, bench: Bench, settings: Sequence[Setting]) -> list[MadeTrial]:
        """Return the trials, in the order of the settings."""
        make = partial(trial_elsewhere, self.request, bench.jaxlib)
        return list(in_order(self.workers.results(make, settings)))


def trial_elsewhere(
    request: RehearseRequest, jaxlib: str, setting: Setting
) -> MadeTrial:
    """Run `Bench.trial` in a worker. The bench is kept for the request's next trial."""
    bench = kept_for(request, _temporary_bench)
    check_jaxlib(request.python, bench.jaxlib, jaxlib)
    made = bench.trial(setting)
    failure = made.trial.failure.replace(str(bench.request.out), str(request.out))
    return replace(made, trial=replace(made.trial, failure=failure))


@contextmanager
def _temporary_bench(request: RehearseRequest) -> Iterator[Bench]:
    """Open a bench in a temporary folder."""
    with (
        TemporaryDirectory(prefix="pgle-trials-") as out,
        open_bench(replace(request, out=Path(out))) as bench,
    ):
        yield bench


class _Search:
    """The trials of one search."""

    def __init__(
        self, bench: Bench, on_trial: OnTrial, makers: TrialMakers | None = None
    ) -> None:
        self.request = bench.request
        self.bench = bench
        self.on_trial = on_trial
        self.makers = makers
        self.trials: list[Trial] = []
        self.refused: list[str] = []

    def run(self, budget: int) -> Proven | None:
        """Search, then prove the best setting. If a proof fails, prove the next best."""
        bench = self.bench
        pgle = bench.pgle.trial
        shortest_us = bench.pgle.prediction.shortest_us
        search(pgle, shortest_us, bench.axes(), self.attempt, budget=budget)
        left = [trial for trial in self.trials if self._is_better(trial)]
        for _ in range(PROOFS):
            trial = best(pgle, left)
            if trial is pgle:
                return None
            proof = self.prove(self._simplified(trial))
            if proof.accepted:
                return replace(proof, written=self.write(proof))
            left.remove(trial)
            # figures of the whole compilation
            self.trials[self.trials.index(trial)] = proof.scheduled.trial
            self.refused.append(_refusal(proof))
        return None

    def attempt(self, settings: Sequence[Setting]) -> list[Trial]:
        """Make trials of these settings in parallel, and add them to the search."""
        made = self._tried(settings)
        self.trials += made
        return made

    def _tried(self, settings: Sequence[Setting]) -> list[Trial]:
        """Make trials of these settings in parallel. They are not added to the trials of the
        search.
        """
        known = [self.bench.pgle.trial, *self.trials]
        for made in self._made(settings):
            trial = self._labelled(made)
            # another trial may have made an equal program at the same time or on another machine
            alike = (
                other
                for other in known
                if other.program == trial.program and not other.same_as
            )
            twin = next(
                (other for other in alike if other.worlds_us == trial.worlds_us), None
            )
            if twin and trial.program and not trial.same_as:
                trial = replace(trial, same_as=twin.label)
            known.append(trial)
            self.on_trial(known[-1], self.bench.pgle.trial)
        return known[1 + len(self.trials) :]

    def _made(self, settings: Sequence[Setting]) -> Iterator[MadeTrial]:
        """Yield the trials of these settings in order, made by this machine or by others."""
        if self.makers is not None:
            yield from self.makers.trials(self.bench, settings)
            return
        with ThreadPoolExecutor(AT_ONCE) as threads:
            yield from threads.map(self.bench.trial, settings)

    @cached_property
    def _labels(self) -> dict[ProgramKey, str]:
        """The label of the first trial of each program."""
        return {self.bench.program({}): self.bench.pgle.trial.label}

    def _labelled(self, made: MadeTrial) -> Trial:
        """Return a trial. If an earlier trial had an equal program, `same_as` names it."""
        if made.program in self._labels:
            return replace(made.trial, same_as=self._labels[made.program])
        if made.program is not None:
            self._labels[made.program] = made.trial.label
        return made.trial

    def without(self, accepted: Trial) -> dict[str, Trial]:
        """Return the trials of the accepted setting without one flag, by this flag."""
        settings = without_one(accepted)
        return dict(zip(settings, self._tried(list(settings.values())), strict=True))

    def _simplified(self, trial: Trial) -> Trial:
        """Return the trial without flags that gain nothing; presets contain such flags."""

        def is_as_good(other: Trial) -> bool:
            is_near = other.mean_us <= trial.mean_us * (1 + PROGRESS)
            return is_near and self._is_better(other)

        fewer = self.without(trial).items()
        idle = [name for name, other in fewer if is_as_good(other)]
        one_by_one = ([name] for name in idle)
        for names in (idle, *one_by_one):
            rest = {
                flag: value for flag, value in trial.flags.items() if flag not in names
            }
            if rest and len(rest) < len(trial.flags):
                other = self._tried([(rest, f"without {', '.join(names)}")])[0]
                if is_as_good(other):
                    trial = replace(other, label=trial.label, same_as="")
        return trial

    def _is_better(self, trial: Trial) -> bool:
        return all(
            holds_up(trial, side.trial)
            for side in (self.bench.baseline, self.bench.pgle)
        )

    def prove(self, trial: Trial) -> Proven:
        """Compile a setting whole, confirm the profile's use by XLA's log and schedule, and
        simulate again.
        """
        bench, out = self.bench, self.request.out
        tried = bench.schedule((trial.flags, trial.label))
        found, result = bench.whole(tried, out / "proof")
        changes = (
            _change(found.trial.step_us, trial.step_us),
            _change(found.trial.temp_bytes, trial.temp_bytes),
        )
        if not _agree(*changes):
            bench.compile_whole()
        is_better = self._is_better(found.trial)
        in_less = bench.in_less_memory(found.trial) if is_better else None
        control = bench.controlled(found) if is_better else None
        is_sure = control is None or is_worth(control.answer.share)
        is_won_in_less = in_less is None or in_less.mean < 0
        of_lhs = {result.scheduled.name: result.lhs.module if result.lhs else None}
        covered = cover(tried.profile, [result.scheduled], of_lhs)
        coverage = min((item.time.value or 0.0 for item in covered.main), default=0.0)
        return Proven(
            scheduled=found,
            judged=judge(found.trial.worlds_us, bench.pgle.trial.worlds_us),
            in_less=in_less,
            control=control,
            accepted=is_better and is_sure and is_won_in_less,
            use=confirm_compiled(result, tried.profile),
            coverage=coverage,
            change=changes[0],
            memory_change=changes[1],
        )

    def write(self, proof: Proven) -> tuple[Path, ...]:
        """Write ``flags.txt`` and its profile."""
        out = self.request.out
        own = self.bench.options({})
        found = self.bench.options(proof.scheduled.trial.flags)[len(own) :]
        lines = (*own, FOUND_BY_SEARCH, *found)
        files: dict[AnyPath, bytes | str] = {out / "flags.txt": "\n".join(lines) + "\n"}
        files |= profile_files(out / "profile.pbtxt", proof.scheduled.profile)
        write_files(files, force=True)
        return tuple(Path(str(path)) for path in files)


def _schedules(
    compiled: CompileResult,
    default: Simulated | None,
    baseline: Simulated,
    pgle: Simulated,
) -> Schedules:
    """The schedules of one compilation, as a rehearsal compares them."""
    return Schedules(
        compiled=compiled,
        baseline=baseline.prediction,
        profiled=pgle.prediction,
        default=None if default is None else default.prediction,
    )


def gain_of(judged: OverWorlds) -> Gain:
    """Return the mean gain over the worlds, with the smallest and the largest."""
    return Gain(-judged.mean, -judged.worst, -judged.best, 0.0)


def _change(after: float | None, before: float | None) -> float:
    return after / before - 1 if after and before else 0.0


def _agree(step_change: float, memory_change: float) -> bool:
    return abs(step_change) < SAME_STEP and abs(memory_change) < SAME_MEMORY


def _refusal(proof: Proven) -> str:
    """Return why the proof rejected a setting that the trials accepted."""
    label = proof.scheduled.trial.label
    if proof.in_less is not None and proof.in_less.mean >= 0:
        return (
            f"{label}: if the job has {in_percent(LESS, 0)} less memory, the step changes by "
            f"{as_change(proof.in_less.mean)}"
        )
    if proof.control is not None and proof.control.other is not None:
        sides = (proof.control.first, proof.control.other)
        changes = " or ".join(as_change(-side.share) for side in sides)
        if not is_worth(proof.control.answer.share):
            return f"{label}: it depends on what autotuning picks, the step changes by {changes}"
    won = f"{proof.judged.won} of {proof.judged.of} variations of the costs"
    return (
        f"{label}: compiled whole, the step changes by {as_change(proof.change, 2)} and is shorter "
        f"in {won} only"
    )


def _warnings(
    request: RehearseRequest, pgle: Simulated, proof: Proven | None
) -> list[str]:
    tuned = pgle.trial if proof is None else proof.scheduled.trial
    have = request.allocator_bytes
    near = near_limit(tuned.memory_bytes, have) if tuned.memory_bytes and have else ""
    lines = [near] if near else []
    if proof is None:
        return lines
    if proof.control is not None:
        lines.append(proof.control.failure)
    before, after = pgle.trial.temp_bytes, proof.scheduled.trial.temp_bytes
    if before and after and after > 1.05 * before:
        lines.append(f"temporary memory grows by {in_percent(after / before - 1, 0)}")
    if not proof.agrees:
        lines.append(
            "trials end at the schedule; compiled to the end, the step differs by "
            f"{change(proof.change)} and temporary memory by {change(proof.memory_change)}; "
            "the verdict has those figures"
        )
    return lines
