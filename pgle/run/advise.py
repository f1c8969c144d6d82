"""`pgle advise` as a function: the compiler tries a program's alternatives.

The program is captured once as it is, and once for each alternative (`variants.py`). Each step is
compiled twice (the second time with other kernels for products) and priced by one set of estimates.
What both compilations find shorter is then combined, best first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import attrs

from pgle.account.parts_and_bounds import parts_of
from pgle.account.scheduled import account_of_schedule
from pgle.account.value import Account, OpportunityKind
from pgle.errors import UserError, WorkloadError, cut, in_percent, one_line
from pgle.next import Next
from pgle.requests.predictions import Advise, Rehearse
from pgle.run.alternatives import (
    BY_HAND,
    Alternative,
    Kind,
    Written,
    alternatives,
    text_of,
    work_of,
)
from pgle.run.capture.captured import ComparedValues, partitioned
from pgle.run.compiler.compile import (
    Compiler,
    CompileResult,
    OnPhase,
    compiler_with_cache,
)
from pgle.run.compiler.session import session_with
from pgle.run.directory.directory import RunDirectory, claim
from pgle.run.inputs.next_command import UNKNOWN
from pgle.run.rehearse import memory_warning
from pgle.run.rehearse_program import (
    RehearseRequest,
    Understood,
    gib,
    launch,
    measure,
    prepared,
    understood,
)
from pgle.run.variants import Variants, variants_of, with_values
from pgle.scale.plan import check_names
from pgle.schedule.control import Controlled, hangs_on_choice, other_choice
from pgle.schedule.predict import Prediction, gain
from pgle.schedule.verdict import Judged, Verdict, judge, turned_by_data

MOST_SAID = 160  # characters of a failure that the answer quotes
SAVED = 0.05  # share of the memory from which on less of it is said
NOW = "now"  # folder of the program as it is
SAME_CALL = ComparedValues(why="the same call with a kernel that the CPU lacks")


@dataclass(frozen=True)
class Tried:
    """One step as it was compiled."""

    compiled: CompileResult
    prediction: Prediction
    # with the other kernels for products; None: nothing hangs on them
    control: Prediction | None

    @property
    def step_us(self) -> float:
        """By the user's flags."""
        return self.prediction.step_us

    @property
    def memory_bytes(self) -> int:
        """Device memory that it needs; 0: unknown."""
        return self.compiled.memory_bytes or 0

    @property
    def temp_bytes(self) -> int:
        """Of that the memory of values that live within the step; 0: unknown."""
        return self.compiled.memory.get("temp", 0)

    def gain_over(self, base: Tried, work: float = 1.0) -> Controlled:
        """What it gains over another one, by both compilations, if it does `work` times as much."""
        first = gain(base.prediction, self.prediction, work)
        if base.control is None or self.control is None:
            return Controlled(first)
        return Controlled(first, gain(base.control, self.control, work))


@dataclass(frozen=True)
class Attempt:
    """An alternative, or several together, with what became of it."""

    changes: tuple[Alternative, ...]
    verdict: Verdict
    why: str  # one clause; empty: the figures say all
    tried: Tried | None = None  # None: it was not compiled
    gained: Controlled | None = None  # over the program as it is
    same_as: str = ""  # an earlier attempt that makes the same program
    # what it does to the step's values; None: they stay the same, or nobody compared
    values: ComparedValues | None = None

    @property
    def name(self) -> str:
        """Its changes in a few words."""
        return " + ".join(change.name for change in self.changes)

    @property
    def least(self) -> float:
        """The smaller gain of both compilations, as a share of the step."""
        return 0.0 if self.gained is None else min(self.gained.shares)

    @property
    def helps(self) -> bool:
        """Whether it is worth an edit."""
        return self.verdict in (Verdict.BETTER, Verdict.FITS)

    @property
    def are_values_compared(self) -> bool:
        """Whether its results are known to be those of the program, but for rounding."""
        if not any(change.changes_values for change in self.changes):
            return True
        return self.values is not None and not self.values.why


@dataclass(frozen=True)
class Advised:
    """What the compiler says of a program's alternatives."""

    request: RehearseRequest  # the program as it is
    base: Tried
    attempts: tuple[Attempt, ...]  # in the order in which they were tried
    unchanged: int  # alternatives that make the same program
    left: int  # alternatives that were not tried
    left_sites: int  # call sites whose alternatives were not tried
    interrupted: bool  # the user ended it
    left_out: str  # what cannot be tried of what was given, and why
    measure: Next | None  # the command that measures the program; None: it is none
    account: Account  # of the step as it is
    warnings: tuple[str, ...] = ()

    @property
    def ranked(self) -> list[Attempt]:
        """The largest gain first; what was not compiled last."""
        return sorted(self.attempts, key=_rank)

    @property
    def best(self) -> Attempt | None:
        """The shortest step that both compilations confirm, or of those that fit if the program
        as it is does not; None: nothing helps.
        """
        found = [item for item in self.attempts if item.helps]
        return max(found, key=lambda item: item.least, default=None)


OnAttempt = Callable[[str, int, int], None]
"""Called with the name of what is tried next, how many were tried, and how many there are."""


def advise(
    asked: Advise,
    on_phase: OnPhase = lambda phase: None,
    on_attempt: OnAttempt = lambda name, done, of: None,
) -> Advised:
    """Try a program's alternatives. Ctrl-C or SIGTERM ends the trials, not the answer."""
    with prepared(_as_program(asked)) as (known, request):
        variants = variants_of(asked, known, request)
        if asked.function is not None:  # traced as its variants are
            module, _ = variants.made((), request.out / NOW)
            request = replace(request, module=module)
        compiler = compiler_with_cache(
            request.python, cached=request.asked.cached, on_phase=on_phase
        )
        with compiler:
            trials = _Trials(
                asked=asked,
                known=known,
                request=request,
                variants=variants,
                compiler=compiler,
                on_attempt=on_attempt,
            )
            return trials.run()


def _as_program(asked: Advise) -> Rehearse:
    """What was asked for, as `rehearse` takes it: of a run directory its program."""
    options = attrs.asdict(asked, recurse=False)
    words = options.pop("words")
    for name in ("budget", "function", "vary"):
        del options[name]
    if asked.vary:
        check_names(words, asked.vary)
        words = with_values(words, asked.vary, asked, {})
    given = Rehearse(words, **options)
    if len(words) != 1 or not RunDirectory(Path(words[0])).is_recorded:
        return given
    known = understood(given)
    program = launch(known).words
    if program == UNKNOWN:
        remedy = "give the program: -- python train.py"
        raise UserError("does not say its program", where=words[0], remedy=remedy)
    return attrs.evolve(known.asked, step=program)


@dataclass(eq=False)
class _Trials:
    """The trials of one program."""

    asked: Advise
    known: Understood
    request: RehearseRequest
    variants: Variants
    compiler: Compiler
    on_attempt: OnAttempt
    attempts: list[Attempt] = field(default_factory=list)
    unchanged: int = 0
    # by the text of its step's module
    programs: dict[bytes, Attempt] = field(default_factory=dict)

    def run(self) -> Advised:
        """Try each alternative, then combinations of the better ones."""
        request = self.request
        self.out = request.out / "alternatives"
        claim(self.out)
        self.base = self._compiled(request.module, NOW, must_check=False)
        self.program = request.module.read_bytes()
        self.text = text_of(request.module)
        is_written_as = Written(
            self.variants.sites(),
            request.module,
            self.text,
            words=self.known.asked.words,
            vary=self.asked.vary,
            vendor=request.target.vendor,
            is_too_large=self._is_too_large(self.base),
        )
        every = self._possible(is_written_as)
        wanted = every[: self.asked.budget]
        interrupted = self._is_ended(wanted)
        done = sum(len(item.changes) == 1 for item in self.attempts) + self.unchanged
        base = self.base
        proves = measure(self.known) if self.known.is_program else None
        memory = memory_warning(base.compiled, request.allocator_bytes, request.target)
        warnings = filter(None, (*self.known.doubts, *request.warnings, memory))
        account = account_of_schedule(
            base.compiled.scheduled, base.prediction, request.hardware
        )
        account = told_of_trials(account, self.attempts)
        left_out = (self.variants.left_out, is_written_as.left_out)
        return Advised(
            request=request,
            base=base,
            attempts=tuple(self.attempts),
            unchanged=self.unchanged,
            left=len(every) - done,
            left_sites=is_written_as.left_sites(),
            interrupted=interrupted,
            left_out="; ".join(filter(None, left_out)),
            measure=proves,
            account=account,
            warnings=tuple(warnings),
        )

    def _is_ended(self, wanted: Sequence[Alternative]) -> bool:
        """Try alternatives; whether Ctrl-C or a signal such as SIGTERM has ended that."""
        try:
            self._try_each(wanted)
            self._combine()
        except (KeyboardInterrupt, SystemExit):
            return True
        return False

    def _possible(self, program: Written) -> list[Alternative]:
        """The alternatives that can be made of what was given."""
        every = alternatives(program)
        return [change for change in every if change.kind in self.variants.kinds]

    def _try_each(self, wanted: Sequence[Alternative]) -> None:
        for number, change in enumerate(wanted):
            self.on_attempt(change.name, number, len(wanted))
            found = self._attempt((change,), f"{number + 1}")
            if found is None:
                self.unchanged += 1
            else:
                self.attempts.append(found)

    def _combine(self) -> None:
        """Add the better alternatives to the best one, one after the other."""
        better = [item for item in self.attempts if _is_better_alone(item)]
        better.sort(key=lambda item: -item.least)
        if not better:
            return
        best = better[0]
        for number, item in enumerate(better[1:]):
            (change,) = item.changes
            places = {(one.kind, one.where) for one in best.changes}
            if (change.kind, change.where) in places:
                continue
            self.on_attempt(f"with {change.name}", number, len(better) - 1)
            found = self._attempt((*best.changes, change), f"both{number + 1}")
            if found is None:
                continue
            self.attempts.append(found)
            if found.verdict is Verdict.BETTER and _is_shorter(found, best):
                best = found

    def _attempt(self, changes: tuple[Alternative, ...], name: str) -> Attempt | None:
        """What became of some changes; None if they change nothing."""
        try:
            module, sites = self.variants.made(changes, self.out / name / "captured")
            changes = tuple(change.at(sites) for change in changes)
            if any(change.where == BY_HAND for change in changes):
                return None  # nothing is written by hand
            program = module.read_bytes()
            if program == self.program:
                return None
            if program in self.programs:
                return _as(self.programs[program], changes)
            tried = self._compiled(module, name)
        except (UserError, WorkloadError) as error:
            said = cut(one_line(str(error)), MOST_SAID)
            return Attempt(changes, Verdict.UNSURE, f"it fails: {said}")
        gained = self._gained(tried, changes, module)
        verdict, why = self._judged(tried, gained)
        found = Attempt(changes, verdict, why, tried, gained)
        if found.helps:
            found = self._with_values(found, self.out / name / "values")
        self.programs[program] = found
        return found

    def _gained(
        self, tried: Tried, changes: Sequence[Alternative], module: Path
    ) -> Controlled:
        """What a step gains over the program as it is: with other data for each element."""
        if not any(change.kind == Kind.VARIED for change in changes):
            return tried.gain_over(self.base)
        return tried.gain_over(self.base, work_of(self.text, text_of(module)))

    def _with_values(self, found: Attempt, folder: Path) -> Attempt:
        """The attempt with what it does to the step's values, if it changes them."""
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
        values = self.variants.compared(found.changes, folder)
        found = replace(found, values=values)
        if not values.differs:
            return found
        return replace(found, verdict=Verdict.DIFFERS, why=differing(values))

    def _values_of_parts(
        self, changes: Sequence[Alternative]
    ) -> Iterator[ComparedValues]:
        """What each change alone does to the step's values."""
        for item in self.attempts:
            is_part = len(item.changes) == 1 and item.changes[0] in changes
            if is_part and item.values is not None:
                yield item.values

    def _compiled(self, module: Path, name: str, *, must_check: bool = True) -> Tried:
        """A module's step, by the user's flags and with the other kernels for products."""
        request = self.request
        base = replace(
            request.compilation(),
            module=partitioned(module),
            dump_dir=self.out / name / "compiled",
        )
        session = session_with(self.compiler, base, request.hardware, checked=False)
        own = request.flags
        first = session.schedule("first", own)
        prediction = session.predicted(first)
        is_needed = hangs_on_choice([prediction])
        if must_check and self.base.control is None:
            is_needed = False
        control = None
        if is_needed:
            other = session.schedule("control", (*own, other_choice(own)))
            control = session.predicted(other)
        return Tried(first, prediction, control)

    def _judged(self, tried: Tried, gained: Controlled) -> Judged:
        """The verdict on a compiled alternative, and why."""
        have = self.request.allocator_bytes
        need = tried.memory_bytes
        is_base_too_large = self._is_too_large(self.base)
        if self._is_too_large(tried) and not is_base_too_large:
            return Judged(Verdict.WORSE, f"it needs {gib(need)} of {gib(have)}")
        if is_base_too_large and need and not self._is_too_large(tried):
            was = gib(self.base.memory_bytes)
            return Judged(
                Verdict.FITS, f"it needs {gib(need)} of {gib(have)}, not {was}"
            )
        if tried.prediction.lower_bound:
            return Judged(Verdict.UNSURE, tried.prediction.lower_bound_why)
        found = judge(gained)
        if found.verdict is Verdict.BETTER and is_base_too_large:
            why = f"neither fits: it needs {gib(need)} of {gib(have)}"
            return Judged(Verdict.UNSURE, why)
        if found.verdict is Verdict.BETTER:
            return found
        why = found.why
        if found.verdict is Verdict.WORSE:
            why = longer_by(self.base.prediction, tried.prediction)
        data = turned_by_data(self.base.prediction, tried.prediction)
        parts = (why, data, saved_memory(self.base, tried))
        return Judged(found.verdict, "; ".join(filter(None, parts)))

    def _is_too_large(self, tried: Tried) -> bool:
        """Whether a step needs more memory than the GPU's allocator has."""
        have = self.request.allocator_bytes
        return bool(have) and tried.memory_bytes > have


def saved_memory(base: Tried, tried: Tried) -> str:
    """How much less memory a step needs, in a clause; empty if hardly less."""
    saved = base.memory_bytes - tried.memory_bytes
    if not tried.memory_bytes or saved < SAVED * base.memory_bytes:
        return ""
    return f"it saves {gib(saved)} of memory"


OPPORTUNITIES = {
    OpportunityKind.ATTENTION: Kind.ATTENTION,
    OpportunityKind.SCATTER: Kind.LOOKUP,
    OpportunityKind.KEEP_LESS: Kind.CHECKPOINT,
    OpportunityKind.REMAT: Kind.REMAT,
    OpportunityKind.PRECISION: Kind.PRECISION,
    OpportunityKind.DONATION: Kind.DONATION,
}
"""What is tried of an opportunity of the account."""


def told_of_trials(account: Account, attempts: Sequence[Attempt]) -> Account:
    """The account, each opportunity with the best that trying its edit has shown."""
    found = []
    for item in account.opportunities:
        kind = OPPORTUNITIES.get(item.kind)
        tried = [
            one
            for one in attempts
            if one.gained is not None and [each.kind for each in one.changes] == [kind]
        ]
        if tried:
            best = max(tried, key=lambda one: one.least)
            shown = f"{in_percent(-best.least)}, {best.name}, {best.verdict}"
            item = replace(item, tried=shown.replace("-", "−"))
        found.append(item)
    return replace(account, opportunities=tuple(found))


def differing(values: ComparedValues) -> str:
    """How far values are apart, in a clause."""
    explained = f"rounding explains {in_percent(values.tolerance, 2)}"
    return f"values differ by {in_percent(values.difference, 2)}, {explained}"


def _as(other: Attempt, changes: tuple[Alternative, ...]) -> Attempt:
    """An attempt that makes the same program as another one."""
    why = f"the same program as {other.name}"
    return replace(other, changes=changes, why=why, same_as=other.name)


def _is_better_alone(item: Attempt) -> bool:
    return item.verdict is Verdict.BETTER and not item.same_as


def _is_shorter(one: Attempt, other: Attempt) -> bool:
    """Whether an attempt is shorter than another one by both compilations."""
    if one.tried is None or other.tried is None:
        return False
    return judge(one.tried.gain_over(other.tried)).verdict is Verdict.BETTER


def _rank(item: Attempt) -> tuple[bool, float]:
    return item.gained is None, -item.least


def longer_by(before: Prediction, after: Prediction) -> str:
    """Which part of the step grows most, in words; empty if none does."""
    was = parts_of(before.timeline.breakdown)
    growth = {
        part: now_us - was[part]
        for part, now_us in parts_of(after.timeline.breakdown).items()
    }
    most = max(growth, key=lambda part: growth[part])
    if growth[most] <= 0:
        return ""
    return f"{most} grows by {growth[most] / 1e3:,.2f} ms"
