"""Schedules of one module. Only the scheduling passes run again for each.

`Session.schedule` makes one schedule. `trust.py` says, as a table of states, when the scheduling
passes alone may make it.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pgle.errors import UserError
from pgle.files import sha256
from pgle.run.compiler.compile import (
    ONLY,
    SCHEDULER_FLAGS,
    Compiler,
    CompileRequest,
    CompileResult,
    OnPhase,
    compiler_with_cache,
)
from pgle.run.compiler.deviceless import only_choice
from pgle.run.compiler.trust import Event, State, Trust
from pgle.run.compiler.worker import UNSCHEDULED
from pgle.schedule.control import other_choice
from pgle.schedule.predict import Prediction, predict
from pgle.xla.hlo.schedule_dump import Statistics
from pgle.xla.targets import Hardware

T = TypeVar("T")

MEMORY_TIES = 0.01
"""Share by which the memory of two equal schedules may differ; 0.003 was measured."""
TIME_TIES = 0.001
"""Share by which the scheduler's own times and the predicted step may differ between equal
schedules.
"""

_GRAPHS = "--xla_gpu_enable_command_buffer="
# Observed with jaxlib 0.4.38: after scheduling, a pass wraps most of the step into a call, and the
# final HLO then shows no costs of the call's instructions. The schedule itself does not change.
# Later releases leave the HLO alone.


@contextmanager
def open_session(
    base: CompileRequest,
    hardware: Hardware,
    *,
    python: str,
    cached: bool,
    checked: bool = False,
    on_phase: OnPhase = lambda phase: None,
) -> Iterator[Session]:
    """Open a session with its own compiler, and the user's cache if `cached`.

    Args:
        checked: check the scheduling passes, even if earlier sessions trust this jaxlib.
    """
    with compiler_with_cache(python, cached=cached, on_phase=on_phase) as compiler:
        yield session_with(compiler, base, hardware, checked=checked)


def session_with(
    compiler: Compiler, base: CompileRequest, hardware: Hardware, *, checked: bool
) -> Session:
    """Make a session with a given compiler; `checked` as in `open_session`."""
    trusted = None
    if compiler.cache is not None and not checked:
        trusted = compiler.cache.trusted(compiler.python, base.vendor)
    return Session(compiler, base, hardware, trusted)


@dataclass(frozen=True)
class SchedulerInput:
    """A program before scheduling, from which schedules are made."""

    module: Path
    devices: int  # number of devices that it is compiled for
    # compiled by all passes, or only by the passes before scheduling if the program is `TRUSTED`
    compiled: Future[CompileResult]


@dataclass(frozen=True)
class Checked:
    """The last state of a program, and the schedule that showed it."""

    state: State  # `TRUSTED`, `EQUAL` or `WHOLE`
    # schedule without a profile: made by the scheduling passes alone if `EQUAL`, by all passes if
    # `WHOLE`; None if `TRUSTED`, because nothing was scheduled yet
    schedule: CompileResult | None


@dataclass(frozen=True)
class Prepared:
    """A program and flags that are ready to be scheduled; `checked` may still be running."""

    flags: tuple[str, ...]  # all flags of the schedule in `checked`
    compiled: Future[CompileResult]  # without a profile
    # None if only all passes together can make a schedule
    scheduler_input: SchedulerInput | None
    checked: Future[Checked]  # not ready while the program is `CHECKING`

    @property
    def state(self) -> State:
        """The state now."""
        return self.checked.result().state if self.checked.done() else State.CHECKING


@dataclass(eq=False)
class Session:
    """Makes schedules of one module. Several threads may call `schedule`.

    Flags that only the scheduler reads share a program. Any other change of flags makes another
    program, which goes through the states of `trust.py`. `_prepare` takes it from its first state
    to one that can make schedules, and `_check` from `CHECKING` to its last state.
    """

    compiler: Compiler  # compiles all programs
    # shared by all schedules: module, target, topology, and the folder for all of them
    base: CompileRequest
    hardware: Hardware  # GPU of the predictions
    #: the file of `Trust`; None: trust only within this session
    trusted: Path | None = None

    def __post_init__(self) -> None:
        self._trust = Trust(self.trusted)
        self._lock = threading.Lock()
        # by the flags that passes before scheduling read
        self._prepared: dict[tuple[str, ...], Future[Prepared]] = {}
        self._programs: dict[Path, str] = {}
        self._predicted: dict[Path, Prediction] = {}

    def schedule(
        self, name: str, flags: Sequence[str], profile: Path | None = None
    ) -> CompileResult:
        """Make one schedule, in a folder of that name."""
        wanted = self._request(name, flags, profile)
        program = self._program(wanted)
        if profile is None and wanted.flags == program.flags:
            first = program.checked.result().schedule
            if first is not None:
                return first
        with suppress(UserError):  # then all passes together show whose fault it is
            if program.scheduler_input is not None and program.state is not State.WHOLE:
                found = self._alone(wanted, program.scheduler_input)
                if program.checked.result().state is not State.WHOLE:
                    return found
        shutil.rmtree(wanted.dump_dir, ignore_errors=True)
        return self.compiler.compile(wanted)

    def without_profile(self, name: str, flags: Sequence[str]) -> Future[CompileResult]:
        """The module compiled without a profile, or only up to scheduling (`UNSCHEDULED`).

        The arguments are those of `schedule`. If it is compiled whole, instructions of equal cost
        may be in another order than in `schedule`. When this returns, `schedule` can start.
        """
        return self._program(self._request(name, flags)).compiled

    def with_other_kernels(self, name: str, flags: Sequence[str]) -> tuple[str, ...]:
        """Return the flags of a second compilation, with the other kernels for matrix products.

        Raise `UserError` if there is no second opinion: the program does not compile with these
        flags, or without a GPU it compiles with one choice of kernels only. All second compilations
        take their flags from here.

        Args:
            name: the folder of the second compilation.
            flags: the flags of the first one.
        """
        flag = other_choice(flags)
        again = (*flags, flag)
        first = self.without_profile(name, flags).result()
        # known after the first compilation; the second would be the same program
        _check_choice(first)
        try:
            other = self.without_profile(name, again).result()
        except UserError as error:
            raise UserError(f"it does not compile with {flag}: {error}") from None
        _check_choice(other)
        return again

    def predicted(self, made: CompileResult) -> Prediction:
        """Predict a schedule's step with estimated costs; each schedule is predicted once."""
        if made.after_optimizations not in self._predicted:
            self._predicted[made.after_optimizations] = predict(
                made.scheduled, None, self.hardware
            )
        return self._predicted[made.after_optimizations]

    def distrust(self) -> None:
        """Make later sessions check this jaxlib's scheduling passes again, because a whole
        compilation gave another schedule.
        """
        self._trust.lose()

    def program(self, compiled: CompileResult) -> str:
        """Identify the program before scheduling, for a result of `without_profile`; empty if
        unknown.
        """
        module = compiled.after_optimizations.with_name(UNSCHEDULED)
        if module not in self._programs:
            is_kept = module.exists()
            identity = sha256(module.read_bytes()) if is_kept else compiled.fingerprint
            self._programs[module] = identity
        return self._programs[module]

    def _request(
        self, name: str, flags: Sequence[str], profile: Path | None = None
    ) -> CompileRequest:
        """Make a request of this session. Steps are not wrapped into command buffers."""
        own = (*(flag for flag in flags if not flag.startswith(_GRAPHS)), _GRAPHS)
        return replace(
            self.base, dump_dir=self.base.dump_dir / name, flags=own, profile=profile
        )

    def _program(self, wanted: CompileRequest) -> Prepared:
        """Return the program of a request. The first caller prepares it."""
        early = tuple(
            flag
            for flag in wanted.flags
            if flag.partition("=")[0] not in SCHEDULER_FLAGS
        )
        with self._lock:
            if early not in self._prepared:  # other flags are compiled in parallel
                folder = self.base.dump_dir / f"all-passes{len(self._prepared) or ''}"
                self._prepared[early] = _in_background(
                    lambda: self._prepare(wanted, folder)
                )
        return self._prepared[early].result()

    def _prepare(self, wanted: CompileRequest, folder: Path) -> Prepared:
        """Take a program from its first state to one that can make schedules."""
        request = replace(wanted, dump_dir=folder, profile=None)
        is_limited = any(flag.startswith(ONLY) for flag in wanted.flags)
        state = State.first(is_trusted=self._trust.holds, is_limited=is_limited)
        if state is State.TRUSTED:
            try:
                return self._up_to_scheduling(request)
            except UserError:  # as for a module without a schedule
                shutil.rmtree(folder, ignore_errors=True)
                state = state.after(Event.REFUSED)
        devices: Future[int] = Future()
        compiled = _in_background(lambda: self._by_all_passes(request, devices))
        can_check = devices.result() > 0 and not is_limited
        state = state.after(Event.KEPT if can_check else Event.NOT_KEPT)
        if state is State.WHOLE:
            checked = _finished(Checked(state, compiled.result()))
            return Prepared(wanted.flags, compiled, None, checked)
        scheduler_input = SchedulerInput(
            folder / UNSCHEDULED, devices.result(), compiled
        )
        has_profile = wanted.profile is not None
        again = folder / "check" if has_profile else wanted.dump_dir
        plain = replace(wanted, dump_dir=again, profile=None)
        checked = _in_background(lambda: self._check(plain, scheduler_input))
        return Prepared(wanted.flags, compiled, scheduler_input, checked)

    def _up_to_scheduling(self, request: CompileRequest) -> Prepared:
        """Compile a `TRUSTED` program with the passes before scheduling only."""
        found = self.compiler.compile(replace(request, passes="before scheduling"))
        compiled = _finished(found)
        scheduler_input = SchedulerInput(
            found.after_optimizations, found.num_devices, compiled
        )
        checked = _finished(Checked(State.TRUSTED, None))
        return Prepared(request.flags, compiled, scheduler_input, checked)

    def _by_all_passes(
        self, request: CompileRequest, devices: Future[int]
    ) -> CompileResult:
        """Compile a program with all passes.

        Args:
            devices: gets the number of devices as soon as the program before scheduling is stored;
                0 if it is not stored.
        """
        count = 0
        try:
            found = self.compiler.compile(request, devices)
            if (request.dump_dir / UNSCHEDULED).exists():
                count = found.num_devices  # taken from the cache
            return found
        finally:
            if not devices.done():
                devices.set_result(count)

    def _check(self, plain: CompileRequest, scheduler_input: SchedulerInput) -> Checked:
        """Take a program from `CHECKING` to its last state, by comparing schedules without a
        profile.
        """
        predicting = _in_background(
            lambda: self.predicted(scheduler_input.compiled.result())
        )
        with suppress(UserError):
            alone = self._alone(plain, scheduler_input)
            step_us = predicting.result().step_us
            difference_us = abs(self.predicted(alone).step_us - step_us)
            # both orders may be equal for LHS
            is_near = difference_us <= TIME_TIES * step_us
            if is_near and same_schedule(scheduler_input.compiled.result(), alone):
                # only programs scheduled by LHS count
                if alone.believed:
                    self._trust.gain()
                return Checked(State.CHECKING.after(Event.SAME), alone)
        shutil.rmtree(plain.dump_dir, ignore_errors=True)
        return Checked(
            State.CHECKING.after(Event.OTHER), scheduler_input.compiled.result()
        )

    def _alone(
        self, wanted: CompileRequest, scheduler_input: SchedulerInput
    ) -> CompileResult:
        """Make a schedule with the scheduling passes alone. If the program's own compilation
        failed, raise its error.
        """
        alone = replace(
            wanted,
            module=scheduler_input.module,
            topology=wanted.topology or f"1x1x{scheduler_input.devices}",
            passes="from scheduling on",
        )
        found = self.compiler.compile(alone)
        compiled = scheduler_input.compiled.result()
        fingerprint = compiled.fingerprint or found.fingerprint
        return replace(
            found,
            fingerprint=fingerprint,
            num_devices=compiled.num_devices,
            detours=compiled.detours,
        )


def _check_choice(compiled: CompileResult) -> None:
    """Raise `UserError` if without a GPU the program compiles with one choice of kernels only."""
    only = only_choice(compiled.detours)
    if only:
        raise UserError(only)


def _in_background(work: Callable[[], T]) -> Future[T]:
    """Run a function in parallel, and return its future. The process does not wait for it at
    exit.
    """
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found


def _finished(value: T) -> Future[T]:
    """Make a future that is already done."""
    found: Future[T] = Future()
    found.set_result(value)
    return found


def same_schedule(one: CompileResult, other: CompileResult) -> bool:
    """Whether two schedules are equal: the scheduler estimated the same length and exposed time for
    every computation, and memory is equal. Instructions without cost may be reordered. If LHS did
    not run, all instructions must be in the same order.
    """
    memory = [made.memory_bytes or 0 for made in (one, other)]
    ours, theirs = one.believed, other.believed
    if not ours and not theirs:
        return one.scheduled.computations == other.scheduled.computations
    if ours.keys() != theirs.keys():
        return False
    if abs(memory[0] - memory[1]) > MEMORY_TIES * max(memory):
        return False
    return all(_are_near(item, theirs[name]) for name, item in ours.items())


def _are_near(one: Statistics, other: Statistics) -> bool:
    """Whether the scheduler estimated the same length and exposed time, up to rounding."""
    most = TIME_TIES * max(one.total_cycles, 1.0)
    length_differs = abs(one.total_cycles - other.total_cycles) > most
    exposed = abs(one.total_wasted_cycles - other.total_wasted_cycles)
    return not length_differs and exposed <= most
