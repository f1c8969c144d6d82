"""Many schedules of one module: compiled once up to its scheduling, then scheduled again for each profile and flag.

XLA's passes before scheduling take most of the time and see neither the profile nor the scheduler's flags. So the
module is kept as it was before scheduling, and only the passes from there on run again, which is ten times faster.
That leans on names of XLA's passes: it is done only where one whole compilation by this jaxlib had the same result.
Likewise it is kept as it was before collectives are combined, from where other thresholds of combiners start: where
that way makes the same program of a whole compilation's own thresholds.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TypeVar

from pgle.errors import UserError
from pgle.files import write_files
from pgle.run.compiler.cache import Cache, Prepared, Stopped, begun, done
from pgle.run.compiler.compile import Compiler
from pgle.run.compiler.dumps import BEFORE, SCHEDULING, Stage, dataflow_of, keep_before_stages
from pgle.run.compiler.request import (
    ONLY,
    SCHEDULER_FLAGS,
    TIME_TIES,
    OnPhase,
    Phase,
    RehearsalRequest,
    RehearsalResult,
    before_combiners,
    holds,
    same_schedule,
)
from pgle.schedule.predict import Prediction, predict
from pgle.xla.targets import Hardware

T = TypeVar("T")

_GRAPHS = "--xla_gpu_enable_command_buffer="
# Observed with jaxlib 0.4.38: after scheduling, a pass wraps most of the step into a call, whose instructions the final
# HLO then shows no costs of. The schedule itself is the same with and without; later releases leave the HLO alone.


@contextmanager
def open_session(
    base: RehearsalRequest, folder: Path, hardware: Hardware, *, python: str, cached: bool,
    checked: bool = False, combining: bool = True,
    on_phase: OnPhase = lambda phase: None,
) -> Iterator[Session]:  # fmt: skip
    """A session with a compiler of its own.

    Args:
        base: as of `Session`.
        folder: as of `Session`.
        hardware: as of `Session`.
        python: the interpreter whose jaxlib compiles.
        cached: take compilations from the user's cache, and keep them there.
        checked: the scheduling passes alone are compared with a whole compilation of this module with these flags, too,
            where this jaxlib's have been trusted before.
        combining: as of `Session`.
        on_phase: as of `Compiler`.
    """
    cache = Cache.of_user() if cached else None
    trusted = cache.trusted(python) if cache and not checked else None
    with Compiler(python, cache=cache, on_phase=on_phase) as compiler:
        yield Session(compiler, base, folder, hardware, trusted, combining=combining)


class Session:
    """Schedules of one module; `schedule` may be called from several threads.

    Args:
        compiler: that compiles.
        base: what all schedules share: module, target and topology.
        folder: for everything that is compiled.
        hardware: that predictions are for.
        trusted: a file that says that this jaxlib's scheduling passes alone gave the same; written once they did.
        combining: other flags than the first may start from the module before combining. Then what XLA makes from there
            on may have other names than in a job.
    """

    def __init__(
        self, compiler: Compiler, base: RehearsalRequest, folder: Path, hardware: Hardware,
        trusted: Path | None = None, *,
        combining: bool = True,
    ) -> None:  # fmt: skip
        self.compiler = compiler
        self.base = base
        self.folder = folder
        self.hardware = hardware
        self._trusted = trusted
        self.is_distrusted = self._same = False
        self._lock = threading.Lock()
        self._turns: dict[tuple[str, ...], threading.Lock] = {}
        self._prepared: dict[tuple[str, ...], Prepared] = {}
        self._numbers = count()
        self._combining = combining
        self._fused: dict[tuple[str, ...], Prepared] = {}  # by flags except the combiners'
        self._programs: dict[Path, str] = {}
        self._predicted: dict[Path, Prediction] = {}
        self._combines: dict[Path, bool] = {}  # whether the passes from combining on, alone, make their programs

    def schedule(self, name: str, flags: Sequence[str], profile: Path | None = None) -> RehearsalResult:
        """One schedule. The first with LHS shows whether later ones can be made by the scheduling passes alone.

        Args:
            name: of its folder.
            flags: all XLA flags of this schedule.
            profile: of costs.

        Raises:
            UserError: as `Compiler.compile`.
        """
        wanted = replace(self.base, dump_dir=self.folder / name, flags=_without_graphs(flags), profile=profile)
        prepared = self._prepared_for(wanted)
        if profile is None and wanted.flags == prepared.flags and not self.is_distrusted:
            check = prepared.check.result() if prepared.check else None
            if check is not None or not prepared.agrees:
                return check or prepared.whole.result()
        if prepared.module is not None and not self.is_distrusted:
            with suppress(UserError):  # whatever it is, a whole compilation has the last word
                found = self._alone("scheduling", wanted, prepared.module, prepared.whole)
                if prepared.agrees:
                    return found
            shutil.rmtree(wanted.dump_dir, ignore_errors=True)
        return self.compiler.compile(wanted)

    def begun(self, name: str, flags: Sequence[str], *, named_as_job: bool = False) -> Future[RehearsalResult]:
        """The module without a profile: for what it holds. It may have been left as it was before scheduling
        (`dumps.BEFORE`), and else ties may break otherwise than in `schedule`. When this returns further schedules can
        be made, while all passes run, and while a test shows whether the scheduling passes alone give the same.

        Args:
            name: of a folder that may be needed.
            flags: all XLA flags.
            named_as_job: by all passes up to there, which give the names of a job; so for schedules from now on, too.

        Raises:
            UserError: as `Compiler.compile`.
        """
        wanted = replace(self.base, dump_dir=self.folder / name, flags=_without_graphs(flags))
        return self._prepared_for(wanted, named_as_job=named_as_job).whole

    def predicted(self, made: RehearsalResult) -> Prediction:
        """A schedule's step with estimated costs; predicted once."""
        if made.after_optimizations not in self._predicted:
            self._predicted[made.after_optimizations] = predict(made.scheduled, None, self.hardware)
        return self._predicted[made.after_optimizations]

    def program(self, compiled: RehearsalResult) -> str:
        """What tells programs before scheduling apart, of what `begun` gives; empty where that is not known."""
        module = compiled.after_optimizations.with_name(BEFORE["scheduling"])
        if module not in self._programs:
            self._programs[module] = dataflow_of(module) if module.exists() else compiled.fingerprint
        return self._programs[module]

    def distrust(self) -> None:
        """From now on every schedule is a whole compilation: the scheduling passes alone gave another one."""
        self.is_distrusted = True
        self._prepared = {early: made for early, made in self._prepared.items() if not made.is_from_combining}
        self._fused.clear()
        if self._trusted is not None:
            self._trusted.unlink(missing_ok=True)

    def _is_trusted(self) -> bool:
        """Whether one whole compilation by this jaxlib has had the schedule that its scheduling passes alone make."""
        return not self.is_distrusted and (self._same or (self._trusted is not None and self._trusted.exists()))

    def _turn(self, *what: str) -> threading.Lock:
        with self._lock:
            return self._turns.setdefault(what, threading.Lock())

    def _prepared_for(self, wanted: RehearsalRequest, *, named_as_job: bool = False) -> Prepared:
        early = tuple(flag for flag in wanted.flags if flag.partition("=")[0] not in SCHEDULER_FLAGS)
        with self._turn(*early):  # other flags are compiled at the same time
            prepared = self._prepared.get(early)
            if prepared is None or (named_as_job and prepared.is_from_combining):
                prepared = None if named_as_job else self._combined(wanted, early)
                self._prepared[early] = prepared = prepared or self._prepare(wanted, early)
            return prepared

    def _prepare(self, wanted: RehearsalRequest, early: tuple[str, ...]) -> Prepared:
        """Compile with all passes, and see whether those from scheduling on are enough from now on."""
        folder = self._next_folder("all-passes")
        request = replace(wanted, dump_dir=folder, profile=None, before_stages=True)
        is_limited = any(flag.startswith(ONLY) for flag in early)
        if not is_limited and self._is_trusted():
            with suppress(UserError):  # as may be of a module that is not scheduled: then it is compiled whole
                found = self.compiler.compile(replace(request, until_scheduling=True))
                stopped = Stopped(found.after_optimizations, found.num_devices)
                return self._kept(early, Prepared(wanted.flags, done(found), stopped))
            shutil.rmtree(folder, ignore_errors=True)
        whole, module = self._begun_whole(request)
        if module is None or is_limited or self.is_distrusted:
            whole.result()
            return Prepared(wanted.flags, whole, None)
        check = folder / "check" if wanted.profile else wanted.dump_dir
        again = replace(request, dump_dir=check, before_stages=False)
        checking = begun(lambda: self._checked(again, module, whole))
        return self._kept(early, Prepared(wanted.flags, whole, module, checking))

    def _begun_whole(self, request: RehearsalRequest) -> tuple[Future[RehearsalResult], Stopped | None]:
        """A whole compilation, once the module is as it is before scheduling; None where it is never dumped so."""
        stopped, path = Future[Stopped | None](), request.dump_dir / BEFORE["scheduling"]

        def on_phase(phase: Phase) -> None:
            if phase.name == SCHEDULING and not stopped.done():
                keep_before_stages(request.dump_dir)
                stopped.set_result(Stopped(path, phase.devices) if path.exists() else None)

        def on_end(whole: Future[RehearsalResult]) -> None:
            if not stopped.done():
                found = None if whole.exception() else whole.result()
                stopped.set_result(Stopped(path, found.num_devices) if found and path.exists() else None)

        whole = begun(lambda: self.compiler.compile(request, on_phase))
        whole.add_done_callback(on_end)
        return whole, stopped.result()

    def _kept(self, early: tuple[str, ...], prepared: Prepared) -> Prepared:
        if self._combining and prepared.fused:
            self._fused.setdefault(before_combiners(early), prepared)
        return prepared

    def _combined(self, wanted: RehearsalRequest, early: tuple[str, ...]) -> Prepared | None:
        """Start before combining, if a compilation with the same flags except the combiners' kept that stage.

        None where it was not, and where its own program does not come out of it by the passes from there on alone.
        """
        first = self._fused.get(before_combiners(early))
        if first is None or not self._is_trusted():
            return None
        with self._turn("combining", *first.flags):
            if (key := first.whole.result().log) not in self._combines:
                found = self._from_combining(wanted, first, first.flags)
                self._combines[key] = found is not None and self.program(found) == self.program(first.whole.result())
        compiled = self._from_combining(wanted, first, wanted.flags) if self._combines[key] else None
        if compiled is None:
            return None
        stopped = Stopped(compiled.after_optimizations, compiled.num_devices)
        return Prepared(wanted.flags, done(compiled), stopped, is_from_combining=True)

    def _from_combining(
        self, wanted: RehearsalRequest, first: Prepared, flags: tuple[str, ...]
    ) -> RehearsalResult | None:
        folder = self._next_folder("combined")
        request = replace(wanted, dump_dir=folder, flags=flags, profile=None, until_scheduling=True)
        with suppress(UserError):
            if first.fused:
                return replace(self._alone("combining", request, first.fused, first.whole), fingerprint="")
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def _next_folder(self, name: str) -> Path:
        number = next(self._numbers)
        return self.folder / f"{name}{number or ''}"

    def _checked(
        self, wanted: RehearsalRequest, module: Stopped, compiled: Future[RehearsalResult]
    ) -> RehearsalResult | None:
        """What the scheduling passes alone make of a module, where that is what the whole compilation made of it."""
        reading = begun(lambda: (holds(compiled.result()), self.predicted(compiled.result()).step_us))
        try:
            again = self._alone("scheduling", wanted, module, compiled)
            whole, step_us = reading.result()
            near = TIME_TIES * step_us  # what LHS takes for equal may not be
            if same_schedule(whole, holds(again)) and abs(self.predicted(again).step_us - step_us) <= near:
                self._same = True
                if self._trusted is not None:
                    write_files({self._trusted: ""}, force=True)
                return again
        except UserError:
            pass
        shutil.rmtree(wanted.dump_dir, ignore_errors=True)
        return None

    def _alone(
        self, stage: Stage, wanted: RehearsalRequest, module: Stopped, whole: Future[RehearsalResult]
    ) -> RehearsalResult:
        """What the passes of a stage alone make of a module that was compiled up to there, where `whole` succeeds."""
        topology = wanted.topology or f"1x1x{module.devices}"
        found = self.compiler.compile(replace(wanted, module=module.path, topology=topology, passes=stage))
        compiled = whole.result()
        return replace(
            found, before_optimizations=compiled.before_optimizations,
            fingerprint=compiled.fingerprint or found.fingerprint,
            num_partitions=compiled.num_partitions, num_replicas=compiled.num_replicas,
        )  # fmt: skip


def _without_graphs(flags: Sequence[str]) -> tuple[str, ...]:
    """Flags by which no step is wrapped into command buffers."""
    return (*(flag for flag in flags if not flag.startswith(_GRAPHS)), _GRAPHS)
