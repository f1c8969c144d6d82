"""Many schedules of one module: compiled once up to its scheduling, then scheduled again for each profile and flag.

XLA's passes before scheduling take most of the time and see neither the profile nor the scheduler's flags. So the
module is kept as it was before scheduling, and only the passes from there on run again, which is ten times faster.
That leans on names of XLA's passes: it is done only where one whole compilation by this jaxlib had the same result.
"""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pgle.errors import UserError
from pgle.files import write_files
from pgle.run.rehearse.cache import Cache
from pgle.run.rehearse.compile import Compiler
from pgle.run.rehearse.dumps import BEFORE_SCHEDULING
from pgle.run.rehearse.request import OnPhase, RehearsalRequest, RehearsalResult
from pgle.schedule.predict import predict
from pgle.xla.collectives import is_collective_opcode
from pgle.xla.flags.catalogue import catalogue
from pgle.xla.hardware import find_hardware
from pgle.xla.hlo.reader import read_module
from pgle.xla.protos import hlo_pb2
from pgle.xla.targets import parse_target

T = TypeVar("T")

SCHEDULER_FLAGS = frozenset(
    ("--xla_gpu_analytical_latency_estimator_options", "--xla_gpu_experimental_collective_perf_table_path",
     "--xla_gpu_experimental_matmul_perf_table_path",
     *(f"--{setting.name}" for setting in catalogue().values() if setting.stage == "schedule"))
)  # fmt: skip
"""Flags that only the passes from scheduling on read."""

MEMORY_TIES = 0.01
"""Part by which the memory of two schedules that are otherwise the same may differ; measured: 0.003. And part of their
instructions, measured 0.003: short of memory XLA computes some again, by an order of users that no dump keeps."""

TIME_TIES = 0.001  # the same of the times that the scheduler believes, and of the step as predicted

_ONLY, _DISABLED = "--xla_enable_hlo_passes_only=", "--xla_disable_hlo_passes="
# Observed in jaxlib 0.10.2 and 0.12.0.1 (TF_CPP_VMODULE=hlo_pass_pipeline=1): pipelines and passes from there on. Those
# that earlier pipelines have, too, are left out (dce, tuple-simplifier, sanitize-constant-names): they would run once
# more before scheduling, and change what is scheduled (a step of four pipeline stages: by 1.5 %).
_PASSES = (
    "pre-scheduling-passes,dynamic-slice-copy-fusion-async-wrapper,gpu-copy-async-wrapper,latency-hiding-scheduler,"
    "legalize-scheduling-annotations,scheduling-instruction-annotator,scheduled-gpu-module,post-scheduler-xla-transforms,"
    "post-scheduling-passes,async-to-sync-converter,gpu-convert-async-collectives-to-sync,remat-pipeline,"
    "rematerialization,stream-attribute-annotator,cse_barrier_expander,fusion-wrapper,fusion-dispatch-pipeline,"
    "fusion-block-level-rewriter,fusion-dynamic-memcpy-rewriter,pdl-launch-annotation"
)


_GRAPHS = "--xla_gpu_enable_command_buffer="
# Observed with jaxlib 0.4.38: after scheduling, a pass wraps most of the step into a call, whose instructions the final
# HLO then shows no costs of. The schedule itself is the same with and without; later releases leave the HLO alone.


@dataclass(frozen=True)
class _Prepared:
    """A module compiled with certain flags."""

    flags: tuple[str, ...]  # all of them
    compiled: RehearsalResult  # with all passes and without a profile
    module: Path | None  # as it was before scheduling; None where only whole compilations are to be trusted
    # the schedule that the scheduling passes alone make of it, where that is tried; None where it is another
    check: Future[RehearsalResult | None] | None = None

    @property
    def agrees(self) -> bool:
        """Whether the scheduling passes alone may be trusted; waits until that is known."""
        return self.module is not None and (self.check is None or self.check.result() is not None)


@contextmanager
def open_session(
    base: RehearsalRequest, folder: Path, *, python: str, cached: bool, checked: bool = False,
    on_phase: OnPhase = lambda phase: None,
) -> Iterator[Session]:  # fmt: skip
    """A session with a compiler of its own.

    Args:
        base: as of `Session`.
        folder: as of `Session`.
        python: the interpreter whose jaxlib compiles.
        cached: take compilations from the user's cache, and keep them there.
        checked: the scheduling passes alone are held against a whole compilation of this module with these flags, too,
            where this jaxlib's have been trusted before.
        on_phase: as of `Compiler`.
    """
    cache = Cache.of_user() if cached else None
    trusted = cache.trusted(python) if cache and not checked else None
    with Compiler(python, cache=cache, on_phase=on_phase) as compiler:
        yield Session(compiler, base, folder, trusted)


class Session:
    """Schedules of one module; `schedule` may be called from several threads.

    Args:
        compiler: that compiles.
        base: what all schedules share: module, target and topology.
        folder: for everything that is compiled.
        trusted: a file that says that this jaxlib's scheduling passes alone gave the same; written once they did.
    """

    def __init__(self, compiler: Compiler, base: RehearsalRequest, folder: Path, trusted: Path | None = None) -> None:
        self.compiler = compiler
        self.base = base
        self.folder = folder
        self._trusted = trusted
        self.is_distrusted = self._same = False
        self._lock = threading.Lock()
        self._turns: dict[tuple[str, ...], threading.Lock] = {}
        self._prepared: dict[tuple[str, ...], _Prepared] = {}

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
                return check or prepared.compiled
        if prepared.module is not None and not self.is_distrusted:
            with suppress(UserError):  # whatever it is, a whole compilation has the last word
                found = self._again(wanted, prepared.compiled, prepared.module)
                if prepared.agrees:
                    return found
            shutil.rmtree(wanted.dump_dir, ignore_errors=True)
        return self.compiler.compile(wanted)

    def compiled(self, name: str, flags: Sequence[str]) -> RehearsalResult:
        """The module by all passes, without a profile: for what it holds. It may have been left as it was before
        scheduling (`dumps.BEFORE_SCHEDULING`), and else ties may break otherwise than in `schedule`. Whether the
        scheduling passes alone make the same of it may still be tried when this returns.

        Args:
            name: of a folder that may be needed.
            flags: all XLA flags.

        Raises:
            UserError: as `Compiler.compile`.
        """
        wanted = replace(self.base, dump_dir=self.folder / name, flags=_without_graphs(flags))
        return self._prepared_for(wanted).compiled

    def distrust(self) -> None:
        """From now on every schedule is a whole compilation: the scheduling passes alone gave another one."""
        self.is_distrusted = True
        if self._trusted is not None:
            self._trusted.unlink(missing_ok=True)

    def _is_trusted(self) -> bool:
        """Whether one whole compilation by this jaxlib has had the schedule that its scheduling passes alone make."""
        return not self.is_distrusted and (self._same or (self._trusted is not None and self._trusted.exists()))

    def _prepared_for(self, wanted: RehearsalRequest) -> _Prepared:
        early = tuple(flag for flag in wanted.flags if flag.partition("=")[0] not in SCHEDULER_FLAGS)
        with self._lock:
            turn = self._turns.setdefault(early, threading.Lock())
            number = list(self._turns).index(early)
        with turn:  # other flags are compiled at the same time
            prepared = self._prepared.get(early)
            if prepared is None:
                prepared = self._prepared[early] = self._prepare(wanted, early, number)
            return prepared

    def _prepare(self, wanted: RehearsalRequest, early: tuple[str, ...], number: int) -> _Prepared:
        """Compile with all passes, and see whether those from scheduling on are enough from now on."""
        folder = self.folder / f"all-passes{number or ''}"
        request = replace(wanted, dump_dir=folder, profile=None, before_scheduling=True)
        is_limited = any(flag.startswith(_ONLY) for flag in early)
        if not is_limited and self._is_trusted():
            with suppress(UserError):  # as may be of a module that is not scheduled: then it is compiled whole
                compiled = self.compiler.compile(replace(request, until_scheduling=True))
                return _Prepared(wanted.flags, compiled, compiled.after_optimizations)
            shutil.rmtree(folder, ignore_errors=True)
        compiled = self.compiler.compile(request)
        module = folder / BEFORE_SCHEDULING
        if not module.exists() or compiled.schedule is None or is_limited:
            return _Prepared(wanted.flags, compiled, None)
        check = folder / "check" if wanted.profile else wanted.dump_dir
        again = replace(request, dump_dir=check, before_scheduling=False)
        return _Prepared(wanted.flags, compiled, module, _begun(lambda: self._checked(again, compiled, module)))

    def _checked(self, wanted: RehearsalRequest, compiled: RehearsalResult, module: Path) -> RehearsalResult | None:
        """What the scheduling passes alone make of a module, where that is what the whole compilation made of it."""
        reading = _begun(lambda: (_holds(compiled), self._step_us(compiled)))
        try:
            again = self._again(wanted, compiled, module)
            whole, step_us = reading.result()
            near = TIME_TIES * step_us  # what LHS takes for equal may not be
            if _same_schedule(whole, _holds(again)) and abs(self._step_us(again) - step_us) <= near:
                self._same = True
                if self._trusted is not None:
                    write_files({self._trusted: ""}, force=True)
                return again
        except UserError:
            pass
        shutil.rmtree(wanted.dump_dir, ignore_errors=True)
        return None

    def _step_us(self, made: RehearsalResult) -> float:
        """What a step is predicted to take with estimated costs."""
        hardware = find_hardware(parse_target(self.base.target, name="target"))
        return predict(read_module(made.after_optimizations), None, hardware).step_us

    def _again(self, wanted: RehearsalRequest, compiled: RehearsalResult, module: Path) -> RehearsalResult:
        topology = wanted.topology or f"1x1x{compiled.num_devices}"
        # XLA takes only one of both lists; what is disabled and comes before scheduling has been left out already.
        disabled = {
            name for flag in wanted.flags if flag.startswith(_DISABLED) for name in flag.split("=")[1].split(",")
        }
        passes = ",".join(name for name in _PASSES.split(",") if name not in disabled)
        flags = (f"{_ONLY}{passes}", *(flag for flag in wanted.flags if not flag.startswith(_DISABLED)))
        found = self.compiler.compile(replace(wanted, module=module, topology=topology, flags=flags))
        return replace(
            found, before_optimizations=compiled.before_optimizations,
            fingerprint=compiled.fingerprint or found.fingerprint,
            num_partitions=compiled.num_partitions, num_replicas=compiled.num_replicas,
        )  # fmt: skip


def _without_graphs(flags: Sequence[str]) -> tuple[str, ...]:
    """Flags by which no step is wrapped into command buffers."""
    return (*(flag for flag in flags if not flag.startswith(_GRAPHS)), _GRAPHS)


def _begun(work: Callable[[], T]) -> Future[T]:
    """What a function returns that runs beside; a process that ends does not wait for it."""
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found


@dataclass(frozen=True)
class _Scheduled:
    """What is compared of two schedules."""

    times: Mapping[str, tuple[float, float]]  # of every computation what LHS believed: length, exposed; empty: no dump
    memory: int
    opcodes: Counter[str]


def _holds(made: RehearsalResult) -> _Scheduled:
    times = {name: (item.total_cycles, item.total_wasted_cycles) for name, item in made.believed.items()}
    return _Scheduled(times, made.memory.get("total", 0), _opcodes(made.after_optimizations))


def _same_schedule(one: _Scheduled, other: _Scheduled) -> bool:
    """Whether XLA's scheduler made the same of both: length and exposed time of every computation, and collectives.

    Memory and other instructions may differ by a little, since ties between those that cost nothing break otherwise.
    """
    near = abs(one.memory - other.memory) <= MEMORY_TIES * max(one.memory, other.memory)
    if not one.times or not _same_times(one.times, other.times) or not near:
        return False
    differing = (one.opcodes - other.opcodes) + (other.opcodes - one.opcodes)
    return not any(map(is_collective_opcode, differing)) and differing.total() <= MEMORY_TIES * one.opcodes.total()


def _opcodes(dump: Path) -> Counter[str]:
    module = hlo_pb2.HloProto.FromString(dump.read_bytes()).hlo_module
    return Counter(item.opcode for computation in module.computations for item in computation.instructions)


def _same_times(one: Mapping[str, tuple[float, float]], other: Mapping[str, tuple[float, float]]) -> bool:
    """Whether no computation's times differ by more than its length's share of `TIME_TIES`."""
    if one.keys() != other.keys():
        return False
    return all(
        abs(a - b) <= TIME_TIES * max(one[name][0], 1.0)
        for name in one
        for a, b in zip(one[name], other[name], strict=True)
    )
