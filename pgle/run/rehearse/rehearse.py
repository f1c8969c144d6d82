"""`pgle rehearse` as a function: one module, compiled with and without a profile, and what that changes."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from pgle.costs.estimate.estimate import estimate_profile
from pgle.costs.estimate.ranges import assumed_warnings
from pgle.costs.lookup.contention import Contention
from pgle.costs.lookup.table import LookupTable
from pgle.costs.profile.effective import effective_costs
from pgle.costs.profile.files import encode_profile, profile_files, read_profile, sidecar_path
from pgle.costs.profile.sidecar import sidecar
from pgle.costs.profile.value import Profile
from pgle.errors import UserError
from pgle.files import write_files
from pgle.run.ask.flag_probe import installed
from pgle.run.confirm import confirm_compiled
from pgle.run.fitted import fitted
from pgle.run.rehearse.compiler.compile import matches_job
from pgle.run.rehearse.compiler.request import OnPhase, RehearsalResult
from pgle.run.rehearse.compiler.session import open_session
from pgle.run.rehearse.folder import claim
from pgle.run.rehearse.settings import Setting
from pgle.run.rehearse.warnings import (
    belief_warnings,
    custom_call_warnings,
    lhs_warnings,
    memory_warnings,
    unread_warnings,
)
from pgle.schedule.moves import Move, compare_placements, placements
from pgle.schedule.predict import Prediction, predict
from pgle.schedule.verdict import judge_gain
from pgle.xla.flags.catalogue import release
from pgle.xla.hardware import Hardware, find_hardware
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.names import loops
from pgle.xla.log.module_verdict import ModuleVerdict, ProfileUse
from pgle.xla.targets import Target

LHS = "--xla_gpu_enable_latency_hiding_scheduler=true"
LHS_BY_LEVEL = tuple(f"--jax_optimization_level=O{level}" for level in (1, 2, 3))
LHS_BY_DEFAULT = (9, 0)  # compute capability from which on XLA runs LHS without being asked (jaxlib 0.8 and later)


@dataclass(frozen=True)
class RehearseRequest:
    """What to rehearse."""

    setting: Setting  # the module, the jaxlib that compiles it, and the user's XLA flags, which win over ours
    target: Target  # the GPU
    out: Path  # folder for dumps, profile and pictures; new or empty
    profile: Path | None = None  # measured costs; None: estimates stand in for them
    topology: str | None = None  # ``SxHxD``; None: one host
    # dump directory or fingerprint of the job that wrote the module, to say whether it recompiles to the same
    job: str | None = None
    cached: bool = True  # take compilations from the user's cache, and keep them there
    network_gb_s: float | None = None  # network bandwidth per GPU and direction; None: the target's

    @property
    def hardware(self) -> Hardware:
        """The GPU, its hosts and its network: one value for the whole answer."""
        topology = self.setting.topology or self.topology
        return find_hardware(self.target, topology=topology, network_gb_s=self.network_gb_s)


@dataclass(frozen=True)
class Side:
    """One of the schedules."""

    compiled: RehearsalResult  # what the compiler left
    module: Module  # the scheduled module
    prediction: Prediction  # one step, with the cost table that both sides share

    @property
    def believed_exposed_us(self) -> float | None:
        """Exposed communication of a step as LHS itself sees it; None where it left no dump."""
        believed = self.compiled.believed
        if not believed:
            return None
        return sum(item.total_wasted_cycles * self._runs(name) for name, item in believed.items())

    def _runs(self, computation: str) -> int:
        """How often a computation runs in a step; loops of unknown length count once."""
        found = self.module.computations.get(computation)
        return prod(trips or 1 for _, trips in loops(self.module, found.root)) if found is not None else 1


@dataclass(frozen=True)
class Rehearsal:
    """Baseline (LHS without a profile) against profiled."""

    setting: Setting  # what was compiled, by which jaxlib, with which flags of the user
    target: Target  # the GPU it was compiled for
    default: Side | None  # the schedule that XLA makes by the user's flags alone; None where that is LHS too
    # baseline, profiled: LHS without the profile and with it
    baseline: Side
    profiled: Side
    verdict: ModuleVerdict  # whether XLA used the profile for this module, with its proof
    moves: tuple[Move, ...]  # collectives, the largest change of exposed time first
    costs_are: str  # ``measured``, ``estimated`` or ``mixed``: the table behind every prediction
    profile: Path  # the profile that was given to XLA
    worth: str  # one sentence: is PGLE worth a job, and why
    matches_job: bool | None  # whether the baseline has the fingerprint of the job; None where not asked
    warnings: tuple[str, ...]  # one line each
    tune: str = ""  # the command that looks for flags
    measure: str = ""  # the command that measures the program

    @property
    def used(self) -> bool:
        """Whether XLA used the profile, and enough of it."""
        return self.verdict.verdict is ProfileUse.USED

    @property
    def good(self) -> bool:
        """Whether a step was compiled, and used the profile if there is anything that it could move."""
        return not self.setting.no_step and (self.used or not self.moves)


def rehearse(request: RehearseRequest, on_phase: OnPhase = lambda phase: None) -> Rehearsal:
    """Compile with and without the profile, and as XLA would by itself; simulate all with one cost table; compare.

    Raises:
        UserError: the module, target, profile or a flag is bad, or the CUDA plugin is missing.
    """
    hardware = request.hardware
    base = request.setting.request(
        request.target, request.out, topology=request.topology, as_job=request.job is not None
    )
    if request.profile is not None:
        read_profile(request.profile)  # a bad profile is refused before anything is compiled
    flags = (LHS, *request.setting.flags)
    python = request.setting.python
    with (
        ThreadPoolExecutor(3) as pool,  # outside the session, whose end ends what still compiles
        open_session(
            base, request.out, hardware, python=python, cached=request.cached, checked=True, on_phase=on_phase
        ) as session,
    ):
        # The other schedules are made while the module is compiled whole, and while it is tried whether its scheduling
        # passes alone make the same of it.
        whole = session.begun("baseline", flags)
        own = request.setting.flags
        plain = pool.submit(session.schedule, "default", own) if _has_default(request) else None
        guess = request.profile
        if guess is None and whole.result().schedule is not None and not whole.result().kept:
            guess = _estimated(request.out, whole.result(), hardware)
        estimates = None if guess is None else guess.read_bytes()
        ahead = None if guess is None else pool.submit(session.schedule, "profiled", flags, guess)
        first = session.schedule("baseline", flags)
        profile = request.profile or _estimated(request.out, first, hardware)
        given = read_profile(profile)
        if request.profile is not None:
            table = LookupTable(first.scheduled, None if first.lhs is None else first.lhs.module)
            fit = fitted(profile, given, table, hardware)
            if fit.note:
                profile, given = request.out / "carried.pbtxt", fit.profile
                claim(profile)
                claim(sidecar_path(profile))
                write_files(profile_files(profile, given), force=True)
        # Estimates of the scheduled modules are nearer than estimates of LHS's input.
        costs = None if request.profile is None else given

        def side(made: RehearsalResult, contention: Contention | None = None) -> Side:
            if costs is None:
                return Side(made, made.scheduled, session.predicted(made))
            return Side(made, made.scheduled, predict(made.scheduled, costs, hardware, contention=contention))

        baseline = side(first)
        measured = baseline.prediction.contention
        # A schedule dump of LHS shows that XLA runs it unasked; then this is the baseline again.
        default = None if plain is None or plain.result().lhs is not None else side(plain.result(), measured)
        second = None if ahead is None else ahead.result()
        if second is None or profile.read_bytes() != estimates:
            shutil.rmtree(request.out / "profiled", ignore_errors=True)
            second = session.schedule("profiled", flags, profile)
        profiled = side(second, measured)
    verdict = confirm_compiled(second.log, second.lhs, given)
    moves = compare_placements(
        placements(baseline.module, baseline.prediction.timeline, request.setting.flags),
        placements(profiled.module, profiled.prediction.timeline, request.setting.flags),
    )
    is_modelled = request.target.compute_capability >= LHS_BY_DEFAULT  # XLA guesses a constant for any older GPU
    costs_are = "estimated" if request.profile is None else baseline.prediction.costs_are
    return Rehearsal(
        setting=request.setting,
        target=request.target,
        default=default,
        baseline=baseline,
        profiled=profiled,
        verdict=verdict,
        moves=moves,
        costs_are=costs_are,
        profile=profile,
        worth=_worth(request.setting, verdict, baseline, profiled, moves, costs_are),
        matches_job=_matches(request, first),
        warnings=(
            *request.setting.warnings,
            *given.warnings,
            *custom_call_warnings(baseline.module, () if request.profile is None else _names(given, baseline)),
            *memory_warnings(first, base.allocator_bytes, request.target),
            *assumed_warnings(baseline.module, hardware, is_named=request.network_gb_s is not None),
            *lhs_warnings(request.setting.flags, runs=first.lhs is not None),
            *(belief_warnings(baseline.believed_exposed_us, baseline.prediction.step_us) if is_modelled else ()),
            *unread_warnings(baseline.prediction, [move.before for move in moves if move.before is not None]),
            *_of_both(baseline, profiled),
        ),
    )


def _worth(
    setting: Setting, verdict: ModuleVerdict, baseline: Side, profiled: Side, moves: Sequence[Move], costs_are: str
) -> str:
    """Is PGLE worth a job? Schedules of no step, or for which XLA did not take the profile, say nothing about it."""
    if setting.no_step:
        return f"Cannot tell: {setting.no_step}."
    if moves and verdict.verdict is not ProfileUse.USED:
        used = "used only a part of" if verdict.verdict is ProfileUse.PARTLY_USED else "did not use"
        return f"Cannot tell: XLA {used} the profile here ({verdict.why})."
    return judge_gain(baseline.prediction, profiled.prediction, moves, costs_are)


def _has_default(request: RehearseRequest) -> bool:
    """Whether the user's flags alone make another schedule: no LHS by default for the GPU, nor by the user's choice."""
    jaxlib = release(installed(request.setting.python).jaxlib)
    asked = any(flag.startswith((LHS.partition("=")[0], *LHS_BY_LEVEL)) for flag in request.setting.flags)
    recent = request.target.compute_capability >= LHS_BY_DEFAULT and jaxlib >= (0, 8)
    return not asked and not recent


def _estimated(out: Path, compiled: RehearsalResult, hardware: Hardware) -> Path:
    """A profile of estimates, so that XLA can be asked what it would do with roughly true costs.

    They are of the instructions that LHS saw, where it left a dump: later passes rename and repeat some. In the order
    of their names, since LHS breaks ties in an order of its own.
    """
    profile = estimate_profile(compiled.scheduled if compiled.lhs is None else compiled.lhs.module, hardware)
    profile = replace(profile, costs=tuple(sorted(profile.costs, key=lambda cost: cost.name)))
    if not profile.costs:
        raise UserError("the module has no instruction that costs anything", where=out)
    path = out / "estimated.pbtxt"
    data = encode_profile(profile, path.suffix)
    claim(path)
    claim(path.with_name(f"{path.name}.json"))
    write_files({path: data, sidecar_path(path): sidecar(profile, data)}, force=True)  # of a guess
    return path


def _matches(request: RehearseRequest, compiled: RehearsalResult) -> bool | None:
    if request.job is None:
        return None
    return matches_job(compiled, Path(request.job) if Path(request.job).exists() else request.job)


def _of_both(baseline: Side, profiled: Side) -> tuple[str, ...]:
    differ = "the two compilations differ by more than the profile (their fingerprints differ)"
    same = baseline.compiled.fingerprint == profiled.compiled.fingerprint
    lines = [line for side in (baseline, profiled) for line in side.prediction.timeline.warnings]
    return tuple(dict.fromkeys(lines if same else [differ, *lines]))


def _names(profile: Profile, side: Side) -> Collection[str]:
    return effective_costs(profile, side.compiled.fingerprint)
