"""Capture, compile twice and price the step of one alternative, in this process or in the workers
of a cluster.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from pgle.errors import UserError, WorkloadError, cut, one_line, some
from pgle.files import sha256
from pgle.run.alternatives import (
    BY_HAND,
    OF_COMMAND,
    Alternative,
    Kind,
    text_of,
)
from pgle.run.capture.captured import (
    CallSite,
    ComparedValues,
    partitioned,
    taken_by,
)
from pgle.run.compiler.compile import Compiler, CompileResult, compiler_with_cache
from pgle.run.compiler.session import Session, session_with
from pgle.run.coverage import MeasuredCosts, measured_for
from pgle.run.process.on_worker import check_jaxlib, kept_for
from pgle.run.process.workers import Workers, in_order
from pgle.run.rehearse_program import RehearseRequest
from pgle.run.second_compilation import unchecked
from pgle.run.step_arguments import work_of
from pgle.run.variants import ProgramVariants, Variants
from pgle.schedule.control import Controlled, hangs_on_choice
from pgle.schedule.predict import Prediction, gain, predict
from pgle.schedule.verdict import Verdict, judge

MOST_SAID = 160  # characters of a failure that the answer quotes
NOW = "now"  # the name of the step of the unchanged program


@dataclass(frozen=True)
class Tried:
    """The compiled and priced step of one program."""

    compiled: CompileResult
    prediction: Prediction
    # prediction with XLA's other choice of kernels for matrix products; None: not compiled, since
    # no such choice can change the answer, or `failure`
    control: Prediction | None
    # prediction from estimated costs alone; None if `prediction` has no measured costs
    estimated: Prediction | None = None
    failure: str = ""  # why there is no second compilation, in one line

    @property
    def step_us(self) -> float:
        """Predicted time of the step with the user's flags, in microseconds."""
        return self.prediction.step_us

    @property
    def costs_are(self) -> str:
        """The name of the kind of costs, such as ``measured and estimated``."""
        return self.prediction.costs_are

    @property
    def profiled_share(self) -> float | None:
        """The share of the step's activity time, 0 to 1, whose cost is not estimated; None: no
        profile.
        """
        if self.estimated is None:
            return None
        return self.prediction.timeline.share_of("measured", "simulated")

    @property
    def measured_share(self) -> float | None:
        """The share of the step's activity time, 0 to 1, whose cost was measured; None: no
        profile.
        """
        if self.estimated is None:
            return None
        return 1.0 - self.prediction.estimated_share

    @property
    def memory_bytes(self) -> int:
        """Device memory that the step needs, in bytes; 0: unknown."""
        return self.compiled.memory_bytes or 0

    @property
    def temp_bytes(self) -> int:
        """The part of `memory_bytes` for values that live within the step; 0: unknown."""
        return self.compiled.memory.get("temp", 0)

    def gain_over(self, base: Tried, work: float = 1.0) -> Controlled:
        """Return this step's gain over `base`, by both compilations.

        Args:
            base: the step to compare with.
            work: how many times as much work this step does.
        """
        first = gain(base.prediction, self.prediction, work)
        if base.control is None or self.control is None:
            return Controlled(first)
        return Controlled(first, gain(base.control, self.control, work))

    def estimated_gain(self, base: Tried, work: float = 1.0) -> Controlled | None:
        """Return the gain over `base` by estimates alone; None if all costs are estimates."""
        if base.estimated is None or self.estimated is None:
            return None
        return Controlled(gain(base.estimated, self.estimated, work))


@dataclass(frozen=True)
class Wanted:
    """An alternative, or several together, whose step is wanted."""

    name: str  # name of the folder for its files
    changes: tuple[Alternative, ...]
    # the captured module; None: it has to be captured
    module: Path | None = None
    # the step that the new step must beat; None: the step of the unchanged program
    over: Tried | None = None


@dataclass(frozen=True)
class Made:
    """The result of one attempt to make the step of an alternative."""

    # the changes, each with the place in the code where it applies
    changes: tuple[Alternative, ...]
    module: Path | None = None  # None: nothing was captured
    program: str = ""  # digest of the module; empty: the change cannot be made
    work: float = 1.0  # data per step, as a multiple of the unchanged program's
    tried: Tried | None = None  # None: the module was not compiled
    failure: str = ""  # why there is no step
    # places in the code that were found and not changed
    left: tuple[CallSite, ...] = ()


@dataclass(frozen=True)
class StepMaker:
    """Make the steps of alternatives to one program. A maker can be pickled if its variants can."""

    variants: Variants
    request: RehearseRequest
    folder: Path  # folder for all files that the maker writes
    base: Tried | None = None  # step of the unchanged program; None: not made yet
    costs: MeasuredCosts | None = None  # None: all costs are estimates

    def make_step(
        self, wanted: Wanted, known: Collection[str], compiler: StepCompiler
    ) -> Made:
        """Capture and compile the step of an alternative. Skip the compilation if `known` has the
        digest.
        """
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
        """Start to capture the step, while another one compiles, if the variants support that."""
        if wanted.module is None and isinstance(self.variants, ProgramVariants):
            self.variants.begin(wanted.changes, self._place(wanted))

    def clear(self, wanted: Wanted) -> None:
        """Remove the files that a lost worker left for this step."""
        shutil.rmtree(self.folder / wanted.name, ignore_errors=True)

    def _place(self, wanted: Wanted) -> Path:
        """Return the folder for captured files."""
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
        elif not any(change.kind in OF_COMMAND for change in changes):
            check_takes_the_same(self.request.module, module)
        return Made(changes, module, digest_of(module), work, left=left)

    def _tried(
        self, wanted: Wanted, module: Path, work: float, compiler: StepCompiler
    ) -> Tried:
        """Return a module's step with the user's flags; add the other choice of kernels if that can
        decide.
        """
        session = compiler.session(self, module, wanted.name)
        flags = (*self.request.flags, *flags_of(wanted.changes))
        first = session.schedule(f"{wanted.name}-first", flags)
        found = self._priced(session, first)
        if not self._can_be_better(found, wanted.over or self.base, work):
            return found
        return self._controlled(session, wanted.name, flags, found)

    def with_base(self, compiler: StepCompiler) -> tuple[StepMaker, Tried, str]:
        """Make the step of the unchanged program.

        Returns:
            A maker that knows this step and the profile's costs, the step, and a note on the costs
            that were carried over from another compilation (empty if none).
        """
        request = self.request
        session = compiler.session(self, request.module, NOW)
        first = session.schedule(f"{NOW}-first", request.flags)
        maker = self
        carried = ""
        if request.profile is not None:
            table = first.table
            found, carried = measured_for(request.profile, table, request.hardware)
            costs = MeasuredCosts(found, table, request.hardware)
            maker = replace(self, costs=costs)
        base = maker._priced(session, first)
        if maker.costs is not None or hangs_on_choice([base.prediction]):
            base = maker._controlled(session, NOW, request.flags, base)
        return replace(maker, base=base), base, carried

    def _controlled(
        self, session: Session, name: str, flags: Sequence[str], found: Tried
    ) -> Tried:
        """Return the step, compiled again with XLA's other choice of kernels for matrix
        products. If there is no second opinion, one compilation decides.
        """
        folder = f"{name}-control"
        try:
            again = session.with_other_kernels(folder, flags)
        except UserError as error:
            return replace(found, failure=unchecked(error))
        other = session.schedule(folder, again)
        return replace(found, control=self._priced(session, other).prediction)

    def _can_be_better(self, found: Tried, over: Tried | None, work: float) -> bool:
        """Whether a second compilation can change the verdict on a step. If the first compilation
        does not find the step better, the second cannot change that. If the unchanged program does
        not fit in memory, a longer step may be worth an edit.
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
    """Return the XLA flags that the changes set."""
    found: list[str] = []
    for change in changes:
        if change.kind == Kind.FLAGS:
            found += change.value.split()
    return tuple(found)


def check_takes_the_same(now: Path, changed: Path) -> None:
    """Refuse an alternative whose step takes other arrays than the program's own: it was captured
    at another call, so both are not the same step. An edit may leave an argument without a use,
    which jax then drops, or add a constant.
    """
    before = taken_by(now)
    after = taken_by(changed)
    missing = [*(before - after)]
    instead = [*(after - before)]
    if missing and instead:
        what = f"{some(instead, 1)} in place of {some(missing, 1)}"
        raise UserError(f"the program called its step with other arrays: {what}")


def digest_of(module: Path) -> str:
    """Return a digest that differs between different programs. It uses the module that XLA
    compiles: jax's dump of a program with custom partitioning holds addresses, which differ by
    process.
    """
    return sha256(partitioned(module).read_bytes())


def _digest(module: Path, flags: Sequence[str]) -> str:
    return " ".join((digest_of(module), *flags))


@dataclass(eq=False)
class StepCompiler:
    """A compiler with one session per module."""

    compiler: Compiler
    sessions: dict[Path, Session] = field(default_factory=dict)

    def session(self, maker: StepMaker, module: Path, name: str) -> Session:
        """Return the session of a module; open one if there is none."""
        if module not in self.sessions:
            request = maker.request
            folder = maker.folder / name / "compiled"
            shutil.rmtree(folder, ignore_errors=True)  # left by a lost worker
            base = replace(
                request.compilation(), module=partitioned(module), dump_dir=folder
            )
            self.sessions[module] = session_with(
                self.compiler, base, request.hardware, checked=False
            )
        return self.sessions[module]


class Makers(Protocol):
    """A way to make many steps: in this process or in workers."""

    def make_all(
        self, maker: StepMaker, wanted: Sequence[Wanted], known: Collection[str]
    ) -> Iterator[Made]:
        """Yield the results in the order of `wanted`, each as soon as it and all before it are
        ready.
        """
        ...

    def compared(
        self, maker: StepMaker, changes: Sequence[Alternative], folder: Path
    ) -> ComparedValues:
        """Return how the changes alter the numbers that the step computes."""
        ...


@dataclass(frozen=True)
class Here:
    """Make steps in this process, one after the other. While one compiles, the next is captured."""

    compiler: StepCompiler

    def make_all(
        self, maker: StepMaker, wanted: Sequence[Wanted], known: Collection[str]
    ) -> Iterator[Made]:
        """Yield results as `Makers.make_all` does. Each distinct program is compiled once."""
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
        """Compare values as `Makers.compared` does."""
        return maker.variants.compared(changes, folder)


@dataclass(frozen=True)
class Elsewhere:
    """Make steps on other machines, each with its own compiler."""

    workers: Workers

    def make_all(
        self, maker: StepMaker, wanted: Sequence[Wanted], known: Collection[str]
    ) -> Iterator[Made]:
        """Yield results as `Makers.make_all` does."""
        make = partial(made_elsewhere, maker, frozenset(known))
        return in_order(self.workers.results(make, wanted))

    def compared(
        self, maker: StepMaker, changes: Sequence[Alternative], folder: Path
    ) -> ComparedValues:
        """Compare values as `Makers.compared` does, in a worker."""
        compare = partial(compared_elsewhere, maker, folder)
        ((_, found),) = self.workers.results(compare, [tuple(changes)])
        return found


def made_elsewhere(maker: StepMaker, known: frozenset[str], wanted: Wanted) -> Made:
    """Run `StepMaker.make_step` in a worker. The worker keeps its compiler for the next step."""
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
    """Return how the changes alter the numbers that the step computes. Runs in a worker."""
    shutil.rmtree(folder, ignore_errors=True)  # left by a lost worker
    return maker.variants.compared(changes, folder)


def _compiler_of(request: RehearseRequest) -> Compiler:
    return compiler_with_cache(request.python, cached=request.asked.cached)
