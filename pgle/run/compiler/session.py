"""Many schedules of one module: compiled once up to its scheduling, then scheduled again for each profile and flag.

XLA's passes before scheduling take most of the time and see neither the profile nor the scheduler's flags. So the
module is kept as it was before scheduling, and only the passes from there on run again, which is ten times faster.
That leans on names of XLA's passes: it is done only where one whole compilation by this jaxlib had the same result.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pgle.errors import UserError
from pgle.files import sha256, write_files
from pgle.run.compiler.compile import (
    ONLY,
    SCHEDULER_FLAGS,
    Cache,
    Compiler,
    CompileRequest,
    CompileResult,
    OnPhase,
    begun,
)
from pgle.run.compiler.worker import UNSCHEDULED
from pgle.schedule.predict import Prediction, predict
from pgle.xla.targets import Hardware

T = TypeVar("T")

MEMORY_TIES = 0.01
"""Part by which the memory of two schedules that are otherwise the same may differ; measured: 0.003."""
TIME_TIES = 0.001  # the same of the times that the scheduler believes, and of the step as predicted

_GRAPHS = "--xla_gpu_enable_command_buffer="
# Observed with jaxlib 0.4.38: after scheduling, a pass wraps most of the step into a call, whose instructions the final
# HLO then shows no costs of. The schedule itself is the same with and without; later releases leave the HLO alone.


@contextmanager
def open_session(
    base: CompileRequest, hardware: Hardware, *, python: str, cached: bool, checked: bool = False,
    on_phase: OnPhase = lambda phase: None,
) -> Iterator[Session]:  # fmt: skip
    """A session with a compiler of its own, and the user's cache if `cached`. If `checked`, the scheduling passes alone
    are compared with a whole compilation of this module with these flags though this jaxlib's are trusted already."""
    cache = Cache.of_user() if cached else None
    trusted = cache.trusted(python) if cache and not checked else None
    with Compiler(python, cache=cache, on_phase=on_phase) as compiler:
        yield Session(compiler, base, hardware, trusted)


@dataclass(frozen=True)
class Prepared:
    """A module compiled with certain flags and no profile, or about to be: it is there before its own schedule is."""

    flags: tuple[str, ...]  # all of them
    whole: Future[CompileResult]  # by all passes, or up to scheduling where the rest alone is trusted
    unscheduled: Path | None = None  # the module before scheduling; None where only whole compilations are trusted
    devices: int = 0  # that it is compiled for
    # its schedule: by the scheduling passes alone where they make of it what all passes make; None: still to be made
    first: Future[CompileResult] | None = None

    @property
    def agrees(self) -> bool:
        """Whether the scheduling passes alone may be trusted; waits until that is known."""
        return self.unscheduled is not None and (self.first is None or self.first.result() is not self.whole.result())


@dataclass(eq=False)
class Session:
    """Schedules of one module; `schedule` may be called from several threads."""

    compiler: Compiler  # that compiles
    base: CompileRequest  # what all schedules share: module, target and topology; its folder is for all of them
    hardware: Hardware  # that predictions are for
    # a file that says that this jaxlib's scheduling passes alone gave the same; written once they did
    trusted: Path | None = None
    _is_trusted: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # by the flags that passes before scheduling read
    _prepared: dict[tuple[str, ...], Future[Prepared]] = field(default_factory=dict)
    _programs: dict[Path, str] = field(default_factory=dict)
    _predicted: dict[Path, Prediction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._is_trusted = self.trusted is not None and self.trusted.exists()

    def schedule(self, name: str, flags: Sequence[str], profile: Path | None = None) -> CompileResult:
        """One schedule, in a folder of that name. The first with LHS shows whether the scheduling passes alone can make
        later ones.

        Raises:
            UserError: as `Compiler.compile`.
        """
        wanted = self._request(name, flags, profile)
        prepared = self._prepared_for(wanted)
        if prepared.first is not None and profile is None and wanted.flags == prepared.flags:
            return prepared.first.result()
        with suppress(UserError):  # whatever it is, a whole compilation has the last word
            found = self._alone(wanted, prepared) if prepared.unscheduled else None
            if found is not None and prepared.agrees:
                return found
        shutil.rmtree(wanted.dump_dir, ignore_errors=True)
        return self.compiler.compile(wanted)

    def without_profile(self, name: str, flags: Sequence[str]) -> Future[CompileResult]:
        """The module without a profile, maybe as it was before scheduling (`UNSCHEDULED`); else ties may break
        otherwise than in `schedule`, whose arguments these are. Further schedules can be made when this returns."""
        return self._prepared_for(self._request(name, flags)).whole

    def _request(self, name: str, flags: Sequence[str], profile: Path | None = None) -> CompileRequest:
        """A request of this session, by which no step is wrapped into command buffers."""
        kept = (*(flag for flag in flags if not flag.startswith(_GRAPHS)), _GRAPHS)
        return replace(self.base, dump_dir=self.base.dump_dir / name, flags=kept, profile=profile)

    def predicted(self, made: CompileResult) -> Prediction:
        """A schedule's step with estimated costs; predicted once."""
        if made.after_optimizations not in self._predicted:
            self._predicted[made.after_optimizations] = predict(made.scheduled, None, self.hardware)
        return self._predicted[made.after_optimizations]

    def distrust(self) -> None:
        """Later sessions check this jaxlib's scheduling passes again: a whole compilation gave another schedule."""
        if self.trusted is not None:
            self.trusted.unlink(missing_ok=True)

    def program(self, compiled: CompileResult) -> str:
        """What tells programs before scheduling apart, of what `without_profile` gives; empty where nothing does."""
        module = compiled.after_optimizations.with_name(UNSCHEDULED)
        if module not in self._programs:
            self._programs[module] = sha256(module.read_bytes()) if module.exists() else compiled.fingerprint
        return self._programs[module]

    def _prepared_for(self, wanted: CompileRequest) -> Prepared:
        early = tuple(flag for flag in wanted.flags if flag.partition("=")[0] not in SCHEDULER_FLAGS)
        with self._lock:
            if early not in self._prepared:  # other flags are compiled at the same time
                folder = self.base.dump_dir / f"all-passes{len(self._prepared) or ''}"
                self._prepared[early] = begun(lambda: self._prepare(wanted, folder))
        return self._prepared[early].result()

    def _prepare(self, wanted: CompileRequest, folder: Path) -> Prepared:
        """Compile with all passes, and see whether those from scheduling on are enough from now on."""
        request = replace(wanted, dump_dir=folder, profile=None)
        is_limited = any(flag.startswith(ONLY) for flag in wanted.flags)
        if self._is_trusted and not is_limited:
            with suppress(UserError):  # as may be of a module that is not scheduled: then it is compiled whole
                found = self.compiler.compile(replace(request, passes="before scheduling"))
                return Prepared(wanted.flags, begun(lambda: found), found.after_optimizations, found.num_devices)
            shutil.rmtree(folder, ignore_errors=True)
        compiling = self.compiler.start(request)
        whole, devices = compiling.result, compiling.unscheduled.result()
        if not devices or is_limited:
            whole.result()
            return Prepared(wanted.flags, whole, first=whole)
        prepared = Prepared(wanted.flags, whole, folder / UNSCHEDULED, devices)
        again = replace(wanted, dump_dir=folder / "check" if wanted.profile else wanted.dump_dir, profile=None)
        return replace(prepared, first=begun(lambda: self._first(again, prepared)))

    def _first(self, wanted: CompileRequest, prepared: Prepared) -> CompileResult:
        """What the scheduling passes alone make of a module, or the whole compilation where that made another one."""
        reading = begun(lambda: self.predicted(prepared.whole.result()).step_us)
        with suppress(UserError):
            again, step_us = self._alone(wanted, prepared), reading.result()
            near = abs(self.predicted(again).step_us - step_us) <= TIME_TIES * step_us
            if near and same_schedule(prepared.whole.result(), again):  # what LHS takes for equal may not be
                self._is_trusted = True
                if self.trusted is not None:
                    write_files({self.trusted: ""}, force=True)
                return again
        shutil.rmtree(wanted.dump_dir, ignore_errors=True)
        return prepared.whole.result()

    def _alone(self, wanted: CompileRequest, prepared: Prepared) -> CompileResult:
        """What the scheduling passes alone make of a module, where the compilation of all of it succeeds."""
        assert prepared.unscheduled is not None
        topology = wanted.topology or f"1x1x{prepared.devices}"
        alone = replace(wanted, module=prepared.unscheduled, topology=topology, passes="from scheduling on")
        found, compiled = self.compiler.compile(alone), prepared.whole.result()
        fingerprint = compiled.fingerprint or found.fingerprint
        return replace(found, fingerprint=fingerprint, num_devices=compiled.num_devices)


def same_schedule(one: CompileResult, other: CompileResult) -> bool:
    """Whether XLA's scheduler made the same of both: it believed as much of every computation's length and exposed
    time, and the memory is the same. Ties between what costs nothing break otherwise."""
    memory = [made.memory_bytes or 0 for made in (one, other)]
    ours, theirs = one.believed, other.believed
    if not ours or ours.keys() != theirs.keys():
        return False
    pairs = [(item, theirs[name]) for name, item in ours.items()]
    return abs(memory[0] - memory[1]) <= MEMORY_TIES * max(memory) and all(
        max(abs(a.total_cycles - b.total_cycles), abs(a.total_wasted_cycles - b.total_wasted_cycles))
        <= TIME_TIES * max(a.total_cycles, 1.0)
        for a, b in pairs
    )
