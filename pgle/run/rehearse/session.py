"""Many schedules of one module: compiled once up to its scheduling, then scheduled again for each profile and flag.

XLA's passes before scheduling take most of the time and see neither the profile nor the scheduler's flags. So the
module is kept as it was before scheduling, and only the passes from there on run again, which is ten times faster.
That leans on names of XLA's passes: it is done only where one whole compilation by this jaxlib had the same result.
"""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from pgle.errors import UserError
from pgle.files import write_files
from pgle.run.rehearse.cache import Cache
from pgle.run.rehearse.compile import Compiler
from pgle.run.rehearse.dumps import BEFORE_SCHEDULING
from pgle.run.rehearse.request import OnPhase, RehearsalRequest, RehearsalResult
from pgle.xla.collectives import is_collective_opcode
from pgle.xla.flags.catalogue import catalogue
from pgle.xla.hlo.schedule_dump import Statistics, read_schedule_dump
from pgle.xla.protos import hlo_pb2

SCHEDULER_FLAGS = frozenset(
    ("--xla_gpu_analytical_latency_estimator_options", "--xla_gpu_experimental_collective_perf_table_path",
     "--xla_gpu_experimental_matmul_perf_table_path",
     *(f"--{setting.name}" for setting in catalogue().values() if setting.stage == "schedule"))
)  # fmt: skip
"""Flags that only the passes from scheduling on read."""

MEMORY_TIES = 0.01
"""Part by which the memory of two schedules that are otherwise the same may differ; measured: 0.003. And part of their
instructions, measured 0.003: short of memory XLA computes some again, by an order of users that no dump keeps."""

TIME_TIES = 0.001  # the same of the times that the scheduler believes

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
    # the schedule that the scheduling passes alone made of it, where that was tried
    check: RehearsalResult | None = None


@contextmanager
def open_session(
    base: RehearsalRequest, folder: Path, *, python: str, cached: bool, on_phase: OnPhase = lambda phase: None
) -> Iterator[Session]:
    """A session with a compiler of its own.

    Args:
        base: as of `Session`.
        folder: as of `Session`.
        python: the interpreter whose jaxlib compiles.
        cached: take compilations from the user's cache, and keep them there.
        on_phase: as of `Compiler`.
    """
    cache = Cache.of_user() if cached else None
    trusted = cache.trusted(python) if cache else None
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
            made = prepared.check if prepared.module is not None else prepared.compiled
            if made is not None:
                return made
        if prepared.module is not None and not self.is_distrusted:
            try:
                return self._again(wanted, prepared.compiled, prepared.module)
            except UserError:  # whatever it is, a whole compilation has the last word
                shutil.rmtree(wanted.dump_dir, ignore_errors=True)
        return self.compiler.compile(wanted)

    def compiled(self, name: str, flags: Sequence[str]) -> RehearsalResult:
        """The module by all passes, without a profile: for what it holds. It may have been left as it was before
        scheduling (`dumps.BEFORE_SCHEDULING`), and else ties may break otherwise than in `schedule`.

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
        try:
            again = self._again(replace(request, dump_dir=check, before_scheduling=False), compiled, module)
            same = _same_schedule(compiled, again)
        except UserError:
            same = False
        if not same:
            shutil.rmtree(check, ignore_errors=True)
            return _Prepared(wanted.flags, compiled, None)
        self._same = True
        if self._trusted is not None:
            write_files({self._trusted: ""}, force=True)
        return _Prepared(wanted.flags, compiled, module, again)

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


def _same_schedule(one: RehearsalResult, other: RehearsalResult) -> bool:
    """Whether XLA's scheduler made the same of both: length and exposed time of every computation, and collectives.

    Memory and other instructions may differ by a little, since ties between those that cost nothing break otherwise.
    """
    if one.schedule is None or other.schedule is None:
        return False
    first, second = (
        {name: (item.total_cycles, item.total_wasted_cycles) for name, item in believed(each.schedule).items()}
        for each in (one, other)
        if each.schedule
    )
    if not _same_times(first, second) or not _near(one.memory.get("total", 0), other.memory.get("total", 0)):
        return False
    counts = [_opcodes(each.after_optimizations) for each in (one, other)]
    differing = (counts[0] - counts[1]) + (counts[1] - counts[0])
    return not any(map(is_collective_opcode, differing)) and differing.total() <= MEMORY_TIES * counts[0].total()


def believed(schedule: Path) -> Mapping[str, Statistics]:
    """What the scheduler believed of every computation; the few dumps read last are not read again."""
    return _believed(schedule, schedule.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _believed(schedule: Path, written_ns: int) -> Mapping[str, Statistics]:
    return {name: item.statistics for name, item in read_schedule_dump(schedule).computations.items()}


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


def _near(one: int, other: int) -> bool:
    return abs(one - other) <= MEMORY_TIES * max(one, other)
