"""The step of one alternative is captured, compiled twice and priced. This process does that, or
the workers of a cluster.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from pgle.errors import UserError, WorkloadError, cut, one_line
from pgle.files import sha256
from pgle.run.alternatives import BY_HAND, Alternative, Kind, text_of, work_of
from pgle.run.capture.captured import CallSite, ComparedValues, partitioned
from pgle.run.compiler.compile import Compiler, CompileResult, compiler_with_cache
from pgle.run.compiler.session import Session, session_with
from pgle.run.coverage import MeasuredCosts, measured_for
from pgle.run.process.on_worker import check_jaxlib, kept_for
from pgle.run.process.workers import Workers, in_order
from pgle.run.rehearse_program import RehearseRequest
from pgle.run.variants import ProgramVariants, Variants
from pgle.schedule.control import Controlled, hangs_on_choice, other_choice
from pgle.schedule.predict import Prediction, gain, predict
from pgle.schedule.verdict import Verdict, judge

MOST_SAID = 160  # characters of a failure that the answer quotes
NOW = "now"  # the program as it is, as a name


@dataclass(frozen=True)
class Tried:
    """One step as it was compiled."""

    compiled: CompileResult
    prediction: Prediction
    # with the other kernels for products; None: nothing hangs on them
    control: Prediction | None
    # by estimates alone, if the prediction has measured costs
    estimated: Prediction | None = None

    @property
    def step_us(self) -> float:
        """By the user's flags."""
        return self.prediction.step_us

    @property
    def costs_are(self) -> str:
        """What its costs are called: ``measured and estimated``, say."""
        return self.prediction.costs_are

    @property
    def profiled_share(self) -> float | None:
        """The part of its activity time, 0 to 1, whose cost is no estimate; None: no profile."""
        if self.estimated is None:
            return None
        return self.prediction.timeline.share_of("measured", "simulated")

    @property
    def measured_share(self) -> float | None:
        """The part of its activity time, 0 to 1, whose cost was measured; None: no profile."""
        if self.estimated is None:
            return None
        return 1.0 - self.prediction.estimated_share

    @property
    def memory_bytes(self) -> int:
        """Device memory that it needs; 0: unknown."""
        return self.compiled.memory_bytes or 0

    @property
    def temp_bytes(self) -> int:
        """The part of `memory_bytes` for values that live within the step; 0: unknown."""
        return self.compiled.memory.get("temp", 0)

    def gain_over(self, base: Tried, work: float = 1.0) -> Controlled:
        """What it gains over another one, by both compilations, if it does `work` times as much."""
        first = gain(base.prediction, self.prediction, work)
        if base.control is None or self.control is None:
            return Controlled(first)
        return Controlled(first, gain(base.control, self.control, work))

    def estimated_gain(self, base: Tried, work: float = 1.0) -> Controlled | None:
        """What it gains by estimates alone; None if all costs are estimates."""
        if base.estimated is None or self.estimated is None:
            return None
        return Controlled(gain(base.estimated, self.estimated, work))


@dataclass(frozen=True)
class Wanted:
    """An alternative, or several together, to make."""

    name: str  # of its folder
    changes: tuple[Alternative, ...]
    # the module that is compiled, if it is captured already
    module: Path | None = None
    # the step that it must be shorter than; None: the program as it is
    over: Tried | None = None


@dataclass(frozen=True)
class Made:
    """What making an alternative has led to."""

    changes: tuple[Alternative, ...]  # at the places where they were found
    module: Path | None = None  # None: nothing was captured
    program: str = ""  # a digest of the module; empty: no change can be made
    work: float = 1.0  # how many times as much data as the program as it is takes
    tried: Tried | None = None  # None: it was not compiled
    failure: str = ""  # why not
    left: tuple[CallSite, ...] = ()  # what was found and stays as it is


@dataclass(frozen=True)
class StepMaker:
    """Makes steps of one program. It can be pickled if its variants can."""

    variants: Variants
    request: RehearseRequest
    folder: Path  # of all that it makes
    base: Tried | None = None  # the program as it is; None: that is still to be made
    costs: MeasuredCosts | None = None  # None: all costs are estimates

    def make_step(
        self, wanted: Wanted, known: Collection[str], compiler: StepCompiler
    ) -> Made:
        """Capture and compile one; a program of which the digest is known is not compiled."""
        found = Made(wanted.changes)
        try:
            found = self._captured(wanted)
            if found.module is None or not found.program or found.program in known:
                return found
            tried = self._tried(wanted, found.module, found.work, compiler)
        except UserError as error:
            return replace(found, failure=cut(one_line(str(error)), MOST_SAID))
        except WorkloadError as error:
            return replace(found, failure=cut(one_line(error.what), MOST_SAID))
        return replace(found, tried=tried)

    def begin(self, wanted: Wanted) -> None:
        """Have its step captured while something else is compiled, if that is possible."""
        if wanted.module is None and isinstance(self.variants, ProgramVariants):
            self.variants.begin(wanted.changes, self._place(wanted))

    def clear(self, wanted: Wanted) -> None:
        """Remove what a worker that was lost has made of it."""
        shutil.rmtree(self.folder / wanted.name, ignore_errors=True)

    def _place(self, wanted: Wanted) -> Path:
        """The folder of what is captured of it."""
        return self.folder / wanted.name / "captured"

    def _captured(self, wanted: Wanted) -> Made:
        if wanted.module is not None:
            digest = _digest(wanted.module, flags_of(wanted.changes))
            return Made(wanted.changes, wanted.module, digest)
        place = self._place(wanted)
        module, sites = self.variants.make_module(wanted.changes, place)
        changes = tuple(change.at(sites) for change in wanted.changes)
        left = tuple(site for site in sites if site.why)
        if any(change.where == BY_HAND for change in changes):
            return Made(changes, left=left)
        work = 1.0
        if any(change.kind == Kind.VARIED for change in changes):
            work = work_of(text_of(self.request.module), text_of(module))
        return Made(changes, module, digest_of(module), work, left=left)

    def _tried(
        self, wanted: Wanted, module: Path, work: float, compiler: StepCompiler
    ) -> Tried:
        """A module's step, by the user's flags and with the other kernels for products."""
        session = compiler.session(self, module, wanted.name)
        flags = (*self.request.flags, *flags_of(wanted.changes))
        first = session.schedule(f"{wanted.name}-first", flags)
        found = self._priced(session, first)
        if not self._can_be_better(found, wanted.over or self.base, work):
            return found
        return self._controlled(session, wanted.name, flags, found)

    def with_base(self, compiler: StepCompiler) -> tuple[StepMaker, Tried, str]:
        """Make the step of the program as it is.

        Returns:
            A maker with that step and the costs of its profile, the step, and what of the profile
            was carried over (empty if nothing).
        """
        request = self.request
        session = compiler.session(self, request.module, NOW)
        first = session.schedule(f"{NOW}-first", request.flags)
        maker = self
        carried = ""
        if request.profile is not None:
            table = first.table
            found, carried = measured_for(request.profile, table, request.hardware)
            maker = replace(self, costs=MeasuredCosts(found, table))
        base = maker._priced(session, first)
        if maker.costs is not None or hangs_on_choice([base.prediction]):
            base = maker._controlled(session, NOW, request.flags, base)
        return replace(maker, base=base), base, carried

    def _controlled(
        self, session: Session, name: str, flags: Sequence[str], found: Tried
    ) -> Tried:
        """A step, compiled again with the other kernels for products."""
        other = session.schedule(f"{name}-control", (*flags, other_choice(flags)))
        return replace(found, control=self._priced(session, other).prediction)

    def _can_be_better(self, found: Tried, over: Tried | None, work: float) -> bool:
        """Whether a second compilation can decide what becomes of a step. If the first one does not
        find it better, the second one cannot make it so. If the program does not fit, a longer step
        may be worth an edit.
        """
        if over is None or over.control is None:
            return False
        if not hangs_on_choice([found.prediction]):
            return False
        if 0 < self.request.allocator_bytes < over.memory_bytes:
            return True
        alone = Controlled(found.gain_over(over, work).first)
        return judge(alone).verdict is Verdict.BETTER

    def _priced(self, session: Session, made: CompileResult) -> Tried:
        by_estimates = session.predicted(made)
        if self.costs is None:
            return Tried(made, by_estimates, None)
        costs = self.costs.of(made.table)
        prediction = predict(made.scheduled, costs, self.request.hardware)
        return Tried(made, prediction, None, by_estimates)


def flags_of(changes: Sequence[Alternative]) -> tuple[str, ...]:
    """The XLA flags that some changes set."""
    found: list[str] = []
    for change in changes:
        if change.kind == Kind.FLAGS:
            found += change.value.split()
    return tuple(found)


def digest_of(module: Path) -> str:
    """What tells two programs apart. What jax dumps of a program with custom partitioning holds
    addresses, which differ from process to process; what XLA compiles of it does not.
    """
    return sha256(partitioned(module).read_bytes())


def _digest(module: Path, flags: Sequence[str]) -> str:
    return " ".join((digest_of(module), *flags))


@dataclass(eq=False)
class StepCompiler:
    """A compiler with a session for each module."""

    compiler: Compiler
    sessions: dict[Path, Session] = field(default_factory=dict)

    def session(self, maker: StepMaker, module: Path, name: str) -> Session:
        """The session of a module."""
        if module not in self.sessions:
            request = maker.request
            folder = maker.folder / name / "compiled"
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that was lost
            base = replace(
                request.compilation(), module=partitioned(module), dump_dir=folder
            )
            self.sessions[module] = session_with(
                self.compiler, base, request.hardware, checked=False
            )
        return self.sessions[module]


class Makers(Protocol):
    """What makes many steps."""

    def make_all(
        self, maker: StepMaker, wanted: Sequence[Wanted], known: Collection[str]
    ) -> Iterator[Made]:
        """The steps in their order, each as soon as it and those before are there."""
        ...

    def compared(
        self, maker: StepMaker, changes: Sequence[Alternative], folder: Path
    ) -> ComparedValues:
        """What some changes do to the step's values."""
        ...


@dataclass(frozen=True)
class Here:
    """Make alternatives in this process, one after the other. While one is compiled, the next is
    captured.
    """

    compiler: StepCompiler

    def make_all(
        self, maker: StepMaker, wanted: Sequence[Wanted], known: Collection[str]
    ) -> Iterator[Made]:
        """As of `Makers`; a program is compiled once."""
        seen = set(known)
        for number, one in enumerate(wanted):
            for begun in wanted[number : number + 2]:
                maker.begin(begun)
            found = maker.make_step(one, seen, self.compiler)
            if found.tried is not None:
                seen.add(found.program)
            yield found

    def compared(
        self, maker: StepMaker, changes: Sequence[Alternative], folder: Path
    ) -> ComparedValues:
        """As of `Makers`."""
        return maker.variants.compared(changes, folder)


@dataclass(frozen=True)
class Elsewhere:
    """Other machines make them, each with a compiler of its own."""

    workers: Workers

    def make_all(
        self, maker: StepMaker, wanted: Sequence[Wanted], known: Collection[str]
    ) -> Iterator[Made]:
        """As of `Makers`."""
        make = partial(made_elsewhere, maker, frozenset(known))
        return in_order(self.workers.results(make, wanted))

    def compared(
        self, maker: StepMaker, changes: Sequence[Alternative], folder: Path
    ) -> ComparedValues:
        """As of `Makers`."""
        compare = partial(compared_elsewhere, maker, folder)
        ((_, found),) = self.workers.results(compare, [tuple(changes)])
        return found


def made_elsewhere(maker: StepMaker, known: frozenset[str], wanted: Wanted) -> Made:
    """`StepMaker.make_step` in a worker, which keeps its compiler for the program's next step."""
    compiler = kept_for(maker.request, _compiler_of)
    maker.clear(wanted)
    found = maker.make_step(wanted, known, StepCompiler(compiler))
    jaxlib = "" if maker.base is None else maker.base.compiled.jaxlib
    if found.tried is not None:
        check_jaxlib(maker.request.python, found.tried.compiled.jaxlib, jaxlib)
    return found


def compared_elsewhere(
    maker: StepMaker, folder: Path, changes: Sequence[Alternative]
) -> ComparedValues:
    """What some changes do to the step's values, found in a worker."""
    shutil.rmtree(folder, ignore_errors=True)  # of a worker that was lost
    return maker.variants.compared(changes, folder)


def _compiler_of(request: RehearseRequest) -> Compiler:
    return compiler_with_cache(request.python, cached=request.asked.cached)
