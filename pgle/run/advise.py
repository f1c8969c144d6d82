"""`pgle advise` as a function: the compiler tries a program's alternatives.

The unchanged program is captured first. Then it waits at its step, which is captured with each
alternative (`variants.py`). Each step is compiled, and priced by the same costs: a profile's, else
estimates. If other kernels for matrix products could change the verdict, it is also compiled with
them. Alternatives that all compilations find shorter are combined, best first. Flags are tried
last, on the best program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import attrs

from pgle.account.levers.replicated import is_undivided
from pgle.account.parts_and_bounds import parts_of
from pgle.account.scheduled import account_of_schedule, step_costs
from pgle.account.value import Account, Shown
from pgle.errors import UserError, in_percent
from pgle.next import Next
from pgle.requests.kinds import PROCESSES
from pgle.requests.predictions import Advise, Rehearse
from pgle.run.alternative_steps import (
    NOW,
    Elsewhere,
    Here,
    Made,
    Makers,
    StepCompiler,
    StepMaker,
    Tried,
    Wanted,
    digest_of,
    flags_of,
)
from pgle.run.alternatives import (
    BY_HAND,
    EXPLICIT,
    EXPLICIT_AXES,
    OF_COMMAND,
    ROUNDING,
    Alternative,
    Kind,
    Written,
    alternatives,
    no_fused_attention,
    text_of,
)
from pgle.run.attempts import Attempt, ending_of, named, shown_of
from pgle.run.capture.captured import CallSite, ComparedValues, executed_alongside
from pgle.run.compiler.compile import OnPhase, compiler_with_cache
from pgle.run.directory.directory import RunDirectory, claim
from pgle.run.inputs.next_command import UNKNOWN
from pgle.run.kept_trials import keep_trials
from pgle.run.process.endings import Ending
from pgle.run.process.on_worker import Seen
from pgle.run.process.workers import check_place, workers
from pgle.run.rehearse import memory_warning
from pgle.run.rehearse_program import (
    LHS_ON,
    RehearseRequest,
    Understood,
    advise_line,
    gib,
    launch_of_program,
    measure_line,
    prepared,
    run_named_by,
    understood,
)
from pgle.run.trainers import decided_by
from pgle.run.untried import (
    AS_ELSEWHERE,
    OTHER_PLACES,
    OVER_BUDGET,
    STOPPED,
    UNCHANGED,
    Attempted,
    Untried,
    by_stake,
    refused_of,
    untried_of,
)
from pgle.run.variants import ProgramVariants, Variants, variants_of, with_values
from pgle.scale.plan import check_names
from pgle.schedule.control import Controlled
from pgle.schedule.predict import Prediction
from pgle.schedule.verdict import Judged, Verdict, judge, turned_by_data
from pgle.tune.search import (
    Axis,
    axes,
    by_exposure,
    exposed_by_kind,
    nothing_to_gain,
)
from pgle.worth import LEAST_GAIN
from pgle.xla.flags.catalogue import LHS
from pgle.xla.flags.text import typed_flag
from pgle.xla.targets import Target

SAVED = 0.05  # share of the memory; smaller savings are not mentioned
SAME_CALL = ComparedValues(why="the same call with a kernel that the CPU lacks")


@dataclass(frozen=True)
class Advised:
    """The results of trying a program's alternatives."""

    request: RehearseRequest  # the unchanged program
    base: Tried
    attempts: tuple[Attempt, ...]  # in the order in which they were tried
    # alternatives that make an identical program, with their place
    unchanged: tuple[str, ...]
    left: int  # alternatives that were not tried
    left_sites: int  # call sites whose alternatives were not tried
    # shell exit code for the signal that ended the trials; 0: no signal
    ended_by: int
    left_out: str  # alternatives that this input does not allow, and why
    #: the command that measures the program; None: the input is not a program
    measure: Next | None
    # this command; None for a function of this process
    again: Next | None
    account: Account  # account of the unchanged step
    # untried opportunities, the largest first, then alternatives, then places
    untried: tuple[Untried, ...] = ()
    left_alone: tuple[CallSite, ...] = ()  # call sites without an alternative
    warnings: tuple[str, ...] = ()
    budget: int = 0  # the budget that would try all alternatives
    # the trials to store for all answers on the program
    shown: Shown = field(default_factory=dict)
    # the given run directory, if it was tried with its own settings; else None
    run: RunDirectory | None = None

    @property
    def whole(self) -> Next | None:
        """The command that tries what the budget left out; None if nothing is left, or for a
        function of this process.
        """
        is_cut = self.open is not None and self.open.why == OVER_BUDGET
        if self.again is None or not is_cut:
            return None
        return self.again.with_options("--budget", self.budget)

    @property
    def interrupted(self) -> bool:
        """Whether the user or the machine ended the trials."""
        return bool(self.ended_by)

    @property
    def exit_code(self) -> int:
        """The exit code: of the signal that ended it; 1 without a step; else that of the program's
        own failure.
        """
        return (
            self.ended_by or int(bool(self.request.no_step)) or self.request.exit_code
        )

    @property
    def open(self) -> Untried | None:
        """The largest opportunity that nobody tried; None if all that matter were tried."""
        return next((item for item in self.untried if item.opportunity), None)

    @property
    def ranked(self) -> list[Attempt]:
        """The attempts, the largest gain first. Attempts that were not compiled come last."""
        return sorted(self.attempts, key=_rank)

    @property
    def best(self) -> Attempt | None:
        """The attempt with the shortest step that both compilations confirm. If the unchanged
        program does not fit, only fitting attempts count. None: nothing helps.
        """
        return best_of(self.attempts)


def placed(change: Alternative) -> str:
    """A change, with its place if it has one."""
    is_known = change.where not in ("", BY_HAND)
    return f"{change.name}, {change.where}" if is_known else change.name


OnAttempt = Callable[[str, int, int], None]
"""Called with the next action, the alternative's number (from 1) and the number of alternatives."""


def advise(
    asked: Advise,
    on_phase: OnPhase = lambda phase: None,
    on_attempt: OnAttempt = lambda what, number, of: None,
    ending: Ending | None = None,
) -> Advised:
    """Try a program's alternatives. Once the unchanged program is known, Ctrl-C or SIGTERM ends
    only the trials, and the answer still comes.
    """
    if asked.function is not None and asked.executor != PROCESSES:
        remedy = "give the words of the program, or leave out the executor"
        what = "a function of this process cannot be tried on other machines"
        raise UserError(what, where="--executor", remedy=remedy)
    check_place(asked.executor)
    with prepared(_as_program(asked)) as (command, request):
        variants = variants_of(asked, command, request)
        if asked.function is not None:  # trace it as its variants are traced
            module, _ = variants.make_module((), request.out / NOW)
            request = replace(request, module=module)
        compiler = compiler_with_cache(
            request.python, cached=request.asked.cached, on_phase=on_phase
        )
        folder = request.out.resolve() / "alternatives"
        claim(folder)
        steps = StepCompiler(compiler)
        with compiler, _at_its_step(asked, variants) as waiting:
            maker = StepMaker(waiting, request.absolute(), folder)
            with _makers(asked, maker, steps) as makers:
                trials = _Trials(
                    asked=asked,
                    command=command,
                    request=request,
                    maker=maker,
                    makers=makers,
                    compiler=steps,
                    on_attempt=on_attempt,
                    ending=ending or Ending(),
                )
                return trials.run()


@contextmanager
def _at_its_step(asked: Advise, variants: Variants) -> Iterator[Variants]:
    """Give the variants of a program that waits at its step. Other machines cannot use that."""
    if asked.executor != PROCESSES or not isinstance(variants, ProgramVariants):
        yield variants
        return
    with variants.at_its_step() as waiting:
        yield waiting


@contextmanager
def _makers(
    asked: Advise, maker: StepMaker, compiler: StepCompiler
) -> Iterator[Makers]:
    """Return what makes the steps of alternatives: this process, or other machines."""
    if asked.executor == PROCESSES:
        yield Here(compiler)
        return
    seen = Seen(maker.request.files_read, maker.folder)
    with workers(asked.executor, asked.budget, seen) as found:
        yield Elsewhere(found)


def _as_program(asked: Advise) -> Rehearse:
    """Return the request in the form of `rehearse`. A run directory is replaced by its program."""
    options = attrs.asdict(asked, recurse=False)
    words = options.pop("words")
    for name in ("budget", "function", "vary", "executor"):
        del options[name]
    if asked.vary:
        check_names(words, asked.vary)
        words = with_values(words, asked.vary, asked, {})
    given = Rehearse(words, **options)
    if run_named_by(words) is None:
        return given
    command = understood(given)
    program = launch_of_program(command).words
    if program == UNKNOWN:
        remedy = "give the program: -- python train.py"
        raise UserError("does not say its program", where=words[0], remedy=remedy)
    return attrs.evolve(command.asked, step=program)


def _run_of(asked: Advise) -> RunDirectory | None:
    """Return the given run directory, if the request does not change the run's settings."""
    is_as_it_ran = not asked.vary and not asked.next_words(Rehearse)
    return run_named_by(asked.words) if is_as_it_ran else None


@dataclass(eq=False)
class _Trials:
    """The trials of one program."""

    asked: Advise
    command: Understood
    request: RehearseRequest
    maker: StepMaker
    makers: Makers
    compiler: StepCompiler  # compiler of this process
    on_attempt: OnAttempt
    ending: Ending
    attempts: list[Attempt] = field(default_factory=list)
    begun: int = 0  # number of alternatives, combinations and flag settings so far
    planned: int = 0  # number known so far; combinations and flags come later
    unchanged: list[str] = field(default_factory=list)
    # alternatives of the program that were tried alone, without flags
    alone: list[Alternative] = field(default_factory=list)
    are_flags_tried: bool = False
    # attempts by the digest of their step's module
    programs: dict[str, Attempt] = field(default_factory=dict)
    # call sites that stay unchanged, each once
    left_alone: dict[CallSite, None] = field(default_factory=dict)
    # the unchanged program's step, and its module's digest; `_make_base` sets both
    base: Tried = field(init=False)
    program: str = field(init=False)

    def run(self) -> Advised:
        """Try each alternative, then combinations of the better ones, then flags."""
        request = self.request
        variants = self.maker.variants
        carried = self._make_base()
        self.ending.interrupts = False
        base = self.base
        account = account_of_schedule(
            base.compiled.scheduled,
            base.prediction,
            request.hardware,
            facts=request.facts,
        )
        is_written_as = Written(
            variants.sites(),
            request.module,
            text_of(request.module),
            words=self.command.asked.words,
            vary=self.asked.vary,
            vendor=request.target.vendor,
            is_too_large=self._is_too_large(base),
            is_undivided=self._is_undivided(account),
            alongside=executed_alongside(request.module),
        )
        every = by_stake(self._possible(is_written_as), account)
        wanted = every[: self.asked.budget]
        if not request.no_step:
            self._try_all(wanted)
        proves = proof(self.command, variants, best_of(self.attempts))
        memory = memory_warning(base.compiled, request.allocator_bytes, request.target)
        doubts = (*self.command.doubts, *base.compiled.warnings)
        said = (*doubts, *request.warnings, carried, memory, *self._unchecked())
        attempted = self._attempted(every, is_written_as)
        shown = shown_of(self.attempts, base, self._kinds_in_vain(every))
        if not request.no_step:
            shown = {**shown, **refused_of(attempted, shown)}
        keep_trials(request, shown)
        left_out = "; ".join(filter(None, (variants.left_out, is_written_as.left_out)))
        untried = self._untried(account, every, is_written_as, attempted)
        again = None if self.asked.function else advise_line(self.command)
        left_sites = len(is_written_as.left_sites())
        left = len(every) - len(self.alone)
        warnings = tuple(filter(None, said))
        return Advised(
            request=request,
            base=base,
            attempts=tuple(self.attempts),
            unchanged=tuple(self.unchanged),
            left=left,
            left_sites=left_sites,
            ended_by=self.ending.code,
            left_out=left_out,
            measure=proves,
            again=again,
            account=account.with_trials(shown),
            left_alone=tuple(self.left_alone),
            untried=tuple(untried),
            warnings=warnings,
            budget=attempted.budget,
            shown=shown,
            run=_run_of(self.asked),
        )

    def _untried(
        self,
        account: Account,
        every: Sequence[Alternative],
        program: Written,
        attempted: Attempted,
    ) -> Iterator[Untried]:
        """Return the program's opportunities, alternatives and places that nobody tried."""
        yield from untried_of(account, attempted)
        how = attempted.how[attempted.left]
        for change in every:
            if change not in self.alone:
                yield Untried(placed(change), attempted.left, how)
        for site in program.left_sites():
            yield Untried(f"{site.kind}, {site.where}", OTHER_PLACES, AS_ELSEWHERE)

    def _attempted(self, every: Sequence[Alternative], program: Written) -> Attempted:
        """Return the kinds that were tried. Words of a trainer's command count for the kinds that
        they decide.
        """
        variants = self.maker.variants
        left_out = frozenset(Kind) - variants.kinds
        left = self._kinds_left(every)
        left_alone = self._kinds_left_alone()
        impossible = {kind: why for kind, why in left_alone.items() if kind not in left}
        impossible |= dict.fromkeys(left_out, "it cannot be tried of what was given")
        if why := no_fused_attention(self.request.target.vendor):
            impossible[Kind.ATTENTION] = why
        if any(one.now == EXPLICIT for one in program.of(Kind.SHARDING)):
            impossible[Kind.SHARDING] = EXPLICIT_AXES
        if program.why_not_donated and not program.donated:
            impossible[Kind.DONATION] = program.why_not_donated
        tried = {*self._kinds_made(), *self._kinds_in_vain(every)}
        if self.are_flags_tried:
            tried.add(Kind.FLAGS)
        possible = {Kind.FLAGS, *(change.kind for change in every)}
        decided = decided_by(self.command.asked.words)
        for kinds in (possible, tried):
            if Kind.WORDS in kinds:
                kinds.update(kind for kind in Kind if kind in decided)
        budget = len(every) + MOST_SETTINGS
        how = {
            OVER_BUDGET: str(advise_line(self.command, "--budget", budget)),
            STOPPED: str(advise_line(self.command)),
        }
        if self.asked.function is not None:
            how = {
                OVER_BUDGET: f"pgle.advise(step, *args, budget={budget})",
                STOPPED: "pgle.advise(step, *args)",
            }
        why_left = STOPPED if self.ending.code else OVER_BUDGET
        return Attempted(
            possible, tried, impossible, left=why_left, how=how, budget=budget
        )

    def _kinds_made(self) -> Collection[Kind]:
        """Return the kinds of which an alternative changed the step."""
        made: set[Kind] = set()
        for item in self.attempts:
            if item.gained is not None:
                made |= {change.kind for change in item.changes}
        return made

    def _kinds_left_alone(self) -> Mapping[Kind, str]:
        """Return the kinds whose places pgle found and did not change, with the reason. Kinds with
        a trial that made a step or failed are left out.
        """
        others = {*self._kinds_made(), *self._kinds_failed()}
        kinds = frozenset(Kind) - others
        found: dict[Kind, str] = {}
        for site in self.left_alone:
            if site.kind in kinds:
                found.setdefault(Kind(site.kind), site.why)
        return found

    def _kinds_failed(self) -> Mapping[Kind, str]:
        """Return the kinds of which no trial made a step and at least one failed, with the trial
        and its result.
        """
        found: dict[Kind, str] = {}
        for item in self.attempts:
            if item.gained is None and len(item.changes) == 1:
                found.setdefault(item.changes[0].kind, ending_of(item))
        made = self._kinds_made()
        return {kind: how for kind, how in found.items() if kind not in made}

    def _kinds_in_vain(self, every: Sequence[Alternative]) -> Mapping[Kind, str]:
        """Return the kinds of which all trials failed or changed nothing, with the trial and its
        result. No edit of such a kind is proposed.
        """
        found = dict(self._kinds_failed())
        others = {*self._kinds_made(), *self._kinds_left_alone()}
        for change in self.alone:
            if change.kind not in others:
                found.setdefault(change.kind, f"{change.name}: {UNCHANGED}")
        left = self._kinds_left(every)
        return {kind: how for kind, how in found.items() if kind not in left}

    def _unchecked(self) -> Iterator[str]:
        """Yield why the second compilation of a step is missing; some are empty."""
        yield self.base.failure
        for item in self.attempts:
            if item.tried is not None and item.tried.failure:
                yield f"{item.name}: {item.tried.failure}"

    def _kinds_left(self, every: Sequence[Alternative]) -> Collection[Kind]:
        """Return the kinds with alternatives that nobody tried."""
        return {change.kind for change in every if change not in self.alone}

    def _make_base(self) -> str:
        """Make the unchanged program's step, `base`. Return a note on costs carried over from its
        profile; empty if there are none.
        """
        self.maker, self.base, carried = self.maker.with_base(self.compiler)
        self.program = digest_of(self.maker.request.module)
        return carried

    def _try_all(self, wanted: Sequence[Alternative]) -> None:
        """Try alternatives, combinations and flags, until Ctrl-C or a signal such as SIGTERM."""
        if self.ending.code:
            return
        try:
            with self.ending.interrupting():
                self._try_each(wanted)
                self._combine()
                self._try_flags(self.asked.budget - len(wanted))
        except (KeyboardInterrupt, SystemExit) as error:
            self.ending.by(error)

    def _possible(self, program: Written) -> list[Alternative]:
        """Return the alternatives that this input allows."""
        every = alternatives(program)
        kinds = self.maker.variants.kinds
        return [change for change in every if change.kind in kinds]

    def _try_each(self, wanted: Sequence[Alternative]) -> None:
        tasks = [
            Wanted(f"{number}", (change,))
            for number, change in enumerate(wanted, start=1)
        ]
        for task, made in zip(tasks, self._made(tasks), strict=True):
            found = self._attempt(made, task.name)
            self.alone += task.changes
            if found is None:
                self.unchanged.append(placed(task.changes[0]))
            else:
                self.attempts.append(found)

    def _made(self, wanted: Sequence[Wanted]) -> Iterator[Made]:
        """Yield the wanted steps, in their order."""
        made = self.makers.make_all(self.maker, wanted, {self.program, *self.programs})
        self.planned += len(wanted)
        for one in wanted:
            self.begun += 1
            self._tell(named(one.changes))
            yield next(made)

    def _tell(self, what: str) -> None:
        self.on_attempt(what, self.begun, self.planned)

    def _combine(self) -> None:
        """Add alternatives to the best one, one by one: first those that help, then those whose
        saving is too small for the original step, but not for the best one.
        """
        better = [item for item in self.attempts if _is_better_alone(item)]
        better.sort(key=lambda item: -item.least)
        if not better:
            return
        best = better[0]
        small = [item for item in self.attempts if _is_small_alone(item, best)]
        small.sort(key=lambda item: -item.least)
        for number, item in enumerate([*better[1:], *small], start=1):
            (change,) = item.changes
            if not _adds(change, best.changes):
                continue
            name = f"both{number}"
            (made,) = self._made([Wanted(name, (*best.changes, change))])
            found = self._attempt(made, name)
            if found is None:
                continue
            self.attempts.append(found)
            if found.verdict is Verdict.BETTER and _is_shorter(found, best):
                best = found

    def _try_flags(self, most: int) -> None:
        """Try the flags that `tune` would try first, on the best program."""
        best = best_of(self.attempts)
        step = self.base
        changes: tuple[Alternative, ...] = ()
        module = self.maker.request.module
        if best is not None and best.tried is not None and best.module is not None:
            step, changes, module = best.tried, best.changes, best.module
        given = [typed_flag(flag).name for flag in self.request.flags]
        settings = flag_settings(step, given, self.request.target)[:most]
        tasks = [
            Wanted(f"flags{number}", (*changes, change), module, step)
            for number, change in enumerate(settings, start=1)
        ]
        for task, made in zip(tasks, self._made(tasks), strict=True):
            found = self._attempt(made, task.name, best)
            if found is not None:
                self.attempts.append(found)
        self.are_flags_tried = most > 0

    def _attempt(
        self, made: Made, name: str, best: Attempt | None = None
    ) -> Attempt | None:
        """Return the result of some changes; None if they change nothing.

        Args:
            best: the attempt to which flags were added; None: the unchanged program.
        """
        self.left_alone.update(dict.fromkeys(made.left))
        if made.failure:
            return Attempt(
                made.changes, Verdict.UNSURE, f"could not be made: {made.failure}"
            )
        if not made.program or made.program == self.program:
            return None
        if made.program in self.programs:
            return _as(self.programs[made.program], made.changes)
        if made.tried is None:
            return None
        work = made.work if best is None else best.work
        gained = made.tried.gain_over(self.base, work)
        found = Attempt(made.changes, Verdict.UNSURE, "", made.tried, gained)
        found = replace(found, module=made.module, work=work)
        before = self.base
        by_estimates = made.tried.estimated_gain(before, work)
        if best is not None and best.tried is not None:
            before = best.tried
            found = replace(found, added=made.tried.gain_over(before))
            by_estimates = made.tried.estimated_gain(before)
        verdict, why = self._judged(
            made.tried, found.deciding_gain, before, by_estimates
        )
        found = replace(found, verdict=verdict, why=why)
        if best is not None:
            found = replace(found, values=best.values)
        elif found.helps:
            found = self._with_values(found, self.maker.folder / name / "values")
        self.programs[made.program] = found
        return found

    def _with_values(self, found: Attempt, folder: Path) -> Attempt:
        """Return the attempt, with its effect on the step's values if it changes them."""
        if not any(change.changes_values for change in found.changes):
            return found
        if len(found.changes) > 1:
            parts = self._values_of_parts(found.changes)
            worst = max(
                parts,
                key=lambda item: (bool(item.why), item.difference),
                default=None,
            )
            return replace(found, values=worst)
        if found.changes[0].is_same_call:
            return replace(found, values=SAME_CALL)
        self._tell(f"comparing values of {found.name}")
        try:
            values = self.makers.compared(self.maker, found.changes, folder)
        except (KeyboardInterrupt, SystemExit):
            why = "values not compared: stopped"
            self.attempts.append(replace(found, verdict=Verdict.UNSURE, why=why))
            self.alone += found.changes
            raise
        found = replace(found, values=values)
        if not values.differs:
            return found
        return replace(found, verdict=Verdict.DIFFERS, why=differing(values))

    def _values_of_parts(
        self, changes: Sequence[Alternative]
    ) -> Iterator[ComparedValues]:
        """Return how each change alone affects the step's values."""
        for item in self.attempts:
            is_part = len(item.changes) == 1 and item.changes[0] in changes
            if is_part and item.values is not None:
                yield item.values

    def _judged(
        self,
        tried: Tried,
        gained: Controlled,
        before: Tried,
        by_estimates: Controlled | None = None,
    ) -> Judged:
        """Judge a compiled alternative. Return the verdict and the reason.

        Args:
            before: the step that the gain refers to.
            by_estimates: the gain by estimates alone, which must not have the opposite sign.
        """
        have = self.request.allocator_bytes
        need = tried.memory_bytes
        is_too_large_before = self._is_too_large(before)
        if self._is_too_large(tried) and not is_too_large_before:
            return Judged(Verdict.WORSE, f"it needs {gib(need)} of {gib(have)}")
        if is_too_large_before and need and not self._is_too_large(tried):
            was = gib(before.memory_bytes)
            return Judged(
                Verdict.FITS, f"it needs {gib(need)} of {gib(have)}, not {was}"
            )
        if tried.prediction.lower_bound:
            return Judged(Verdict.UNSURE, tried.prediction.lower_bound_why)
        found = judge(gained)
        if found.verdict is Verdict.BETTER and is_too_large_before:
            why = f"neither fits: it needs {gib(need)} of {gib(have)}"
            return Judged(Verdict.UNSURE, why)
        if _turns(found.verdict, by_estimates):
            return Judged(Verdict.UNSURE, "estimates alone do not agree with its sign")
        if found.verdict is Verdict.BETTER:
            return found
        why = found.why
        if found.verdict is Verdict.WORSE:
            why = longer_by(before.prediction, tried.prediction)
        data = turned_by_data(before.prediction, tried.prediction)
        parts = (why, data, saved_memory(before, tried))
        return Judged(found.verdict, "; ".join(filter(None, parts)))

    def _is_undivided(self, account: Account) -> bool:
        """Whether the account suggests another sharding of activations."""
        base = self.base
        module = base.compiled.scheduled
        costs = step_costs(module, base.prediction, self.request.hardware)
        return is_undivided(costs, account.opportunities)

    def _is_too_large(self, tried: Tried) -> bool:
        """Whether a step needs more memory than the GPU's allocator has."""
        have = self.request.allocator_bytes
        return bool(have) and tried.memory_bytes > have


def saved_memory(base: Tried, tried: Tried) -> str:
    """Say in a clause how much less memory a step needs; empty if the difference is small."""
    saved = base.memory_bytes - tried.memory_bytes
    if not tried.memory_bytes or saved < SAVED * base.memory_bytes:
        return ""
    return f"it saves {gib(saved)} of memory"


def differing(values: ComparedValues) -> str:
    """Say in a clause how far values differ."""
    explained = "not by rounding: it computes something else"
    if values.are_rounded:
        explained = f"rounding explains {in_percent(values.tolerance, 2)}"
    place = f" in {values.worst}" if values.worst else ""
    return f"values differ by {in_percent(values.difference, 2)}{place}, {explained}"


def _as(other: Attempt, changes: tuple[Alternative, ...]) -> Attempt:
    """Return an attempt that makes the same program as another one."""
    why = f"the same program as {other.name}"
    return replace(other, changes=changes, why=why, same_as=other.name)


def _adds(change: Alternative, to: Sequence[Alternative]) -> bool:
    """Whether a change is another one than some: at another place, or of another kind."""
    if change.kind in ROUNDING:
        return all(one.kind not in ROUNDING for one in to)
    return all((one.kind, one.where) != (change.kind, change.where) for one in to)


def _is_better_alone(item: Attempt) -> bool:
    return item.verdict is Verdict.BETTER and not item.same_as


def _is_small_alone(item: Attempt, best: Attempt) -> bool:
    """Whether an attempt only lacks size, and saves enough next to the best step."""
    is_small = item.verdict is Verdict.UNSURE and not item.why and not item.same_as
    if not is_small or best.gained is None:
        return False
    return item.least >= LEAST_GAIN * (1 - best.gained.first.share)


def _is_shorter(one: Attempt, other: Attempt) -> bool:
    """Whether both compilations find an attempt shorter than another one."""
    if one.tried is None or other.tried is None:
        return False
    return judge(one.tried.gain_over(other.tried)).verdict is Verdict.BETTER


def _rank(item: Attempt) -> tuple[bool, bool, float]:
    """The sort key of an attempt. Attempts without a step are last, after flags that do not help on
    the best program.
    """
    is_idle = bool(flags_of(item.changes)) and not item.helps
    return item.gained is None, is_idle, -item.least


def proof(command: Understood, variants: Variants, best: Attempt | None) -> Next | None:
    """Return the command that measures the program with the best attempt's words; None if it is not
    a program.
    """
    if not command.is_program:
        return None
    changes = () if best is None else best.changes
    # a profile of the unchanged program does not fit the changed one
    command = replace(command, asked=attrs.evolve(command.asked, profile=None))
    in_words = any(change.kind in OF_COMMAND for change in changes)
    if in_words and isinstance(variants, ProgramVariants):
        asked = attrs.evolve(command.asked, step=variants.words(changes))
        command = replace(command, asked=asked)
    return measure_line(command)


def best_of(attempts: Sequence[Attempt]) -> Attempt | None:
    """Return the attempt with the shortest step among those worth an edit; None: nothing helps.
    Between flag settings the earlier wins, unless the later is surely shorter.
    """
    found = [item for item in attempts if item.helps]
    edits = [item for item in found if not flags_of(item.changes)]
    best = max(edits, key=lambda item: item.least, default=None)
    for item in found:
        if not flags_of(item.changes):
            continue
        if best is None or not flags_of(best.changes) or _is_shorter(item, best):
            best = item
    return best


MOST_SETTINGS = 3  # most flag settings that are tried


def flag_settings(
    step: Tried, given: Collection[str], target: Target
) -> list[Alternative]:
    """Return flag settings that may shorten a step: LHS if it is off, then what `tune` tries first
    for each kind of collective. Kinds with more exposed time come first.

    Args:
        given: names of flags that the user has set; they stay.
    """
    if step.prediction.lower_bound or nothing_to_gain(step.prediction):
        return []
    scheduler = ""
    if step.compiled.lhs is None and LHS not in given:
        scheduler = LHS_ON  # off by default; other flags act on what it schedules
    jaxlib = step.compiled.jaxlib
    share = step.memory_bytes / target.memory_bytes
    every = axes(step.compiled.scheduled, jaxlib, given, share)
    listed = by_exposure(every, exposed_by_kind(step.prediction))
    first: dict[str, Axis] = {}  # by the kind of collective
    for axis in listed:
        first.setdefault(axis.kind, axis)
    settings = {"latency-hiding scheduler": [scheduler]} if scheduler else {}
    for axis in first.values():
        flags = [f"--{name}={value}" for name, value in axis.settings[0].items()]
        settings[_setting_name(axis)] = [scheduler, *flags]
    found = []
    for name, flags in list(settings.items())[:MOST_SETTINGS]:
        value = " ".join(filter(None, flags))
        found.append(Alternative(Kind.FLAGS, name, value, value))
    return found


def _setting_name(axis: Axis) -> str:
    """Name the first setting of an axis; a threshold with its size."""
    if not axis.number:
        return axis.name
    mib = int(axis.settings[0][axis.number]) / (1 << 20)
    return f"{axis.name} {mib:.4g} MiB"


def _turns(verdict: Verdict, by_estimates: Controlled | None) -> bool:
    """Whether estimates alone give a change of the opposite sign. Costs measured for only one of
    two programs may all differ from estimates in the same direction.
    """
    if by_estimates is None or verdict not in (Verdict.BETTER, Verdict.WORSE):
        return False
    share = by_estimates.first.share
    return share <= 0 if verdict is Verdict.BETTER else share >= 0


def longer_by(before: Prediction, after: Prediction) -> str:
    """Name the part of the step that grows most; empty if none does."""
    was = parts_of(before.timeline.breakdown)
    growth = {
        part: now_us - was[part]
        for part, now_us in parts_of(after.timeline.breakdown).items()
    }
    most = max(growth, key=lambda part: growth[part])
    if growth[most] <= 0:
        return ""
    return f"{most} grows by {growth[most] / 1e3:,.2f} ms"
