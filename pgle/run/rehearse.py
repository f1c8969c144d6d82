"""`pgle rehearse` as a function: one module, compiled with and without a profile, and what that changes."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from pgle.costs.estimate.estimate import PARTITIONED_LATER, assumed_warnings, opaque_warnings
from pgle.costs.measure.contention import Contention
from pgle.costs.profile.files import encode_profile, profile_files, read_profile, sidecar, sidecar_path
from pgle.costs.profile.lookup import LookupTable, estimate_profile
from pgle.costs.profile.value import Profile, effective_costs
from pgle.errors import UserError
from pgle.files import write_files
from pgle.run.ask.flag_probe import installed, lint_flags
from pgle.run.ask.plugins import repair
from pgle.run.capture.captured import CapturedProgram, candidates, capture_warnings, choose_module, no_step, partitioned
from pgle.run.compiler.compile import OnPhase, RehearsalRequest, RehearsalResult, devices_in
from pgle.run.compiler.session import open_session
from pgle.run.confirm import confirm_compiled
from pgle.run.coverage import fitted
from pgle.run.directory.out import claim
from pgle.run.process.environment import (
    DEFAULT_FRACTION,
    EFFORTS,
    MEMORY_FRACTION,
    OF_CPUS,
    checked_effort,
    flags_with,
    memory_fraction,
    user_flags,
)
from pgle.schedule.compare import Move, Placement, compare_placements, placements
from pgle.schedule.predict import Prediction, predict
from pgle.xla.flags.catalogue import known_in, release
from pgle.xla.flags.presets import LHS, SOL
from pgle.xla.flags.text import Finding, FlagList, typed_flag
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.names import loops
from pgle.xla.log.events import SCHEDULER_MEMORY
from pgle.xla.log.verdict import ModuleVerdict, ProfileUse
from pgle.xla.targets import Hardware, Target, find_hardware

TPU_KERNEL = "tpu_custom_call"  # what jax lowers Pallas to for TPUs

NEAR = 0.03
"""Part of the memory limit. On one public program 3.7 GiB less of 138.2 (2.7 %) ended rematerialisation, and the step
got shorter by several per cent (marin-community/marin, pull request 8070)."""

UNREAD_SHARE = 0.001  # of the step; less than that is not worth a line


def memory_warnings(compiled: RehearsalResult, allocator_bytes: int, target: Target) -> list[str]:
    """Whether memory (of the job's allocator; 0: unknown) is so short that XLA schedules for memory and not for
    speed."""
    found = SCHEDULER_MEMORY.search(compiled.log.read_text(errors="replace"))
    used, limit = (int(found[1]), int(found[2])) if found else (0, 0)
    need, have = compiled.memory_bytes or 0, allocator_bytes or target.memory_bytes
    remedy = f"raise {MEMORY_FRACTION[0]} as the job has it, rematerialise more, or take a larger --target"
    if need > have:
        return [
            f"the step needs {_gib(need)} and jax's allocator has {_gib(have)} of {target.name}: it does not fit, and "
            f"XLA then schedules for memory, not for speed; {remedy}"
        ]
    if used > limit:
        return [
            f"the scheduler is short of memory ({_gib(used)} of temporaries, {_gib(limit)} left for them), so it "
            f"overlaps less compute with collectives; {remedy}"
        ]
    return near_limit(need, have)


def near_limit(need: int, have: int) -> list[str]:
    """Whether the need is so near the limit (bytes) that a small change of memory changes what XLA makes of a
    program."""
    if abs(need - have) > NEAR * have:
        return []
    return [
        f"{_gib(need)} of {_gib(have)} are needed, within {NEAR:.0%} of the memory limit: the gain may turn, since XLA "
        "computes values again to stay below it"
    ]


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def unread_warnings(prediction: Prediction, placed: Iterable[Placement]) -> list[str]:
    """Collectives that run though nothing reads their results."""
    unread = [item for item in placed if item.unread]
    took = sum(item.cost_us * item.count for item in unread)
    if took < UNREAD_SHARE * prediction.step_us:
        return []
    return [
        f"{len(unread)} collectives ({unread[0].name} …) run though nothing reads their results: {took / 1e3:,.0f} ms "
        "of communication a step; the collective pipeliner leaves them where one reduction reads another's result, and "
        "XLA removes no collective: do without --xla_gpu_enable_pipelined_all_reduce (xla_gpu_pipeline_all_reduce)"
    ]


def custom_call_warnings(module: Module, measured: Collection[str]) -> list[str]:
    """The unknowns of the custom calls of a scheduled module: their costs, or how they would be partitioned."""
    lines = opaque_warnings(module, measured)
    targets = {item.custom_call_target for item in module.walk()}
    if TPU_KERNEL in targets:
        lines.append(
            f"{TPU_KERNEL} is a kernel for TPUs, which no GPU runs, so this program was lowered for TPUs: lower it for "
            "GPUs (lowering_platforms=('cuda',)), or rehearse the program itself"
        )
    if PARTITIONED_LATER in targets:
        lines.append(
            f"how the program partitions its {PARTITIONED_LATER} calls (jax's custom_partitioning) is not in the "
            "module: their operands are gathered here; rehearse the program itself, with a Python that has jax's CUDA "
            "plugin, or a job's *.after_spmd_partitioner dump (--xla_dump_to)"
        )
    return lines


def lhs_warnings(flags: Iterable[str], *, runs: bool) -> list[str]:
    """Whether LHS runs though the user's flags turn it off."""
    if not runs or FlagList(tuple(map(typed_flag, flags))).is_true(LHS) is not False:
        return []
    return [
        f"LHS runs though --{LHS} is false: on this GPU --{SOL} turns it on, and it is on by default; for a schedule "
        f"without LHS add --{SOL}=false"
    ]


def belief_warnings(believed_us: float | None, step_us: float) -> list[str]:
    """Whether LHS without a profile takes more time to be exposed than the whole step has.

    jaxlib 0.11 takes asynchronous fusions of slices for milliseconds.
    """
    if believed_us is None or believed_us <= step_us:
        return []
    return [
        f"without a profile LHS expects {believed_us / 1e3:,.1f} ms of exposed time, more than the predicted step of "
        f"{step_us / 1e3:,.1f} ms: its guesses are far off, and so may be its order; use a profile, or compare with "
        "another jaxlib"
    ]


LHS_ON = "--xla_gpu_enable_latency_hiding_scheduler=true"
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
    base = request.setting.request(request.target, request.out, topology=request.topology)
    if request.profile is not None:
        read_profile(request.profile)  # a bad profile is refused before anything is compiled
    flags = (LHS_ON, *request.setting.flags)
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


def _has_default(request: RehearseRequest) -> bool:
    """Whether the user's flags alone make another schedule: no LHS by default for the GPU, nor by the user's choice."""
    jaxlib = release(installed(request.setting.python).jaxlib)
    asked = any(flag.startswith((LHS_ON.partition("=")[0], *LHS_BY_LEVEL)) for flag in request.setting.flags)
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


def _of_both(baseline: Side, profiled: Side) -> tuple[str, ...]:
    differ = "the two compilations differ by more than the profile (their fingerprints differ)"
    same = baseline.compiled.fingerprint == profiled.compiled.fingerprint
    lines = [line for side in (baseline, profiled) for line in side.prediction.timeline.warnings]
    return tuple(dict.fromkeys(lines if same else [differ, *lines]))


def _names(profile: Profile, side: Side) -> Collection[str]:
    return effective_costs(profile, side.compiled.fingerprint)


OURS: Mapping[str, str] = {
    "xla_dump_to": "give the folder with -o",
    "xla_gpu_pgle_profile_file_or_directory_path": "give the profile with --profile",
}
"""Flags that a rehearsal sets itself, and what to do instead."""


MODEL_OPTIONS = "xla_gpu_analytical_latency_estimator_options"
OF_XLA = 8  # GPUs of a host, as XLA's model assumes (openxla/xla `sol_gpu_cost_model.cc`)

_ENDS_XLA = ("unknown", "removed", "too-new", "needs-value", "bad-value")
OLDEST_PYTHON = (3, 11)  # that can run pgle's half of the compiler's process


@dataclass(frozen=True)
class Setting:
    """The module to compile, and how."""

    module: Path  # the file
    others: tuple[str, ...]  # the other modules, which were not chosen, in words, the largest first
    python: str  # the interpreter whose jaxlib compiles
    flags: tuple[str, ...]  # of the user, from XLA_FLAGS and from the command line, as text; the later wins
    warnings: tuple[str, ...]  # one line each
    # part of the GPU's memory that the job's allocator has; 0: it has no limit
    memory_fraction: float = DEFAULT_FRACTION
    topology: str | None = None  # of a captured step that is for other devices than were asked for
    no_step: str = ""  # why the module is no step of its captured program
    assumed: bool = False  # nobody names how many devices the captured program has

    def request(
        self, target: Target, out: Path, *, topology: str | None, flags: tuple[str, ...] = ()
    ) -> RehearsalRequest:
        """What all compilations of it for one target share."""
        return RehearsalRequest(
            module=partitioned(self.module),
            target=target.text,
            portable_target=target.portable_text,
            allocator_bytes=int(self.memory_fraction * target.memory_bytes),
            dump_dir=out,
            topology=self.topology or topology,
            flags=flags,
        )


def settle(modules: Sequence[Path], choose: str | None, program: CapturedProgram, flags: Sequence[str]) -> Setting:
    """Everything that is decided before the first compilation.

    Args:
        modules: one file, or all of a program or folder.
        choose: which, as in `choose_module`; None: the program's step.
        program: that compiled them; its environment compiles where it can.
        flags: from the command line, after XLA_FLAGS and the flags that the program sets itself.

    Raises:
        UserError: no module matches, or XLA would end over a flag.
    """
    module = choose_module(modules, choose) if len(modules) > 1 or choose else modules[0]
    python, warnings = _compiling_python(program)
    kept, more = checked_flags(flags, python, program.flags_of(module))
    doubt = repair(installed(python).versions, python)
    if doubt and doubt.fails:
        warnings = (*warnings, f"the CUDA plugin: {doubt.what}; {doubt.line}")
    others = candidates([path for path in modules if path != module])
    remarks = (*capture_warnings(module), *warnings, *more)
    unsure = "" if choose else no_step(module)
    return Setting(module, tuple(others), python, kept, remarks, memory_fraction(os.environ), no_step=unsure)


def told_of_hosts(setting: Setting, target: Target, topology: str | None, network_gb_s: float | None) -> Setting:
    """The setting with a flag by which XLA's speed-of-light model, too, knows the hosts and the network of the user.

    XLA assumes hosts of 8 GPUs and a network of its own. Nothing changes if that is right, if no collective can cross
    hosts, if the user has set the flag, or if the jaxlib does not know it.

    Args:
        setting: as the user has it.
        target: the GPU.
        topology: ``SxHxD``; None: not known.
        network_gb_s: what the user says of the network, per GPU and direction.
    """
    shape = setting.topology or topology
    hardware = find_hardware(target, topology=shape, network_gb_s=network_gb_s)
    together, devices = hardware.devices_per_host, devices_in(shape) if shape else math.inf
    options = {"gpus_per_node": f"{together}"} if together != OF_XLA and devices > min(together, OF_XLA) else {}
    if network_gb_s and devices > together:
        options["nic_speed_gbps"] = f"{network_gb_s:g}"  # in GB/s, whatever its name says
    given = any(typed_flag(flag).name == MODEL_OPTIONS for flag in setting.flags)
    if not options or given or known_in(MODEL_OPTIONS, installed(setting.python).jaxlib) is False:
        return setting
    flag = f"--{MODEL_OPTIONS}={','.join(f'{name}={value}' for name, value in options.items())}"
    line = f"XLA's own cost model gets your topology and network by {flag}; give your job the same flag"
    return replace(setting, flags=(*setting.flags, flag), warnings=(*setting.warnings, line))


def _compiling_python(program: CapturedProgram) -> tuple[str, tuple[str, ...]]:
    """The program's own interpreter where that can compile for GPUs, else ours, with a warning where they differ."""
    is_new = program.version >= OLDEST_PYTHON
    if program.plugin and is_new and shutil.which(program.python):
        return program.python, ()
    ours = installed().jaxlib
    if not program.python or program.jaxlib == ours:
        return sys.executable, ()
    mended = repair({"jaxlib": program.jaxlib}, program.python)
    if not program.plugin:
        why, remedy = "has no CUDA plugin", mended.line if mended else "install one there"
    elif not is_new:
        why, remedy = f"is Python {'.'.join(map(str, program.version))}", "use Python 3.11 or newer there"
    else:
        why, remedy = "is not on this machine", f"compile where jaxlib {program.jaxlib} is"
    what = f"the program runs jaxlib {program.jaxlib} ({program.python} {why}), and pgle's jaxlib {ours} compiles here"
    return sys.executable, (f"{what}: releases differ by several per cent; {remedy}",)


def checked_flags(given: Sequence[str], python: str, own: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The user's flags that count, what a captured program asks of XLA by its `own` too, and warnings.

    A flag that the program sets and the jaxlib that compiles does not take is left out: another one ran the program.

    Raises:
        UserError: the jaxlib that compiles would end over one of them.
    """
    environment, warnings = [], []
    for flag in flags_with(own):
        if flag.name in OURS:
            warnings.append(f"--{flag.name} of XLA_FLAGS is left out; {OURS[flag.name]}")
        elif flag.name not in OF_CPUS and not flag.name.startswith("xla_dump_"):
            environment.append(flag)
    typed = [typed_flag(text) for text in given]
    for flag in typed:
        if flag.name in OURS:
            raise UserError("rehearse sets this flag itself", where=f"--flag {flag.word}", remedy=OURS[flag.name])
        if flag.name in EFFORTS:
            checked_effort(flag, f"--flag {flag.word}")
    if not environment and not typed:
        return (), tuple(warnings)
    of_xla = tuple(flag for flag in (*environment, *typed) if flag.name not in EFFORTS)
    found = lint_flags(FlagList(of_xla), python=python).findings
    errors = [finding for finding in found if finding.level == "error"]
    ours = {flag.name for flag in (*user_flags().flags, *typed)}
    for finding in errors:
        if finding.code in _ENDS_XLA and finding.flag in ours:
            raise _refused(finding, any(flag.name == finding.flag for flag in typed))
    unknown = {finding.flag for finding in errors if finding.code in _ENDS_XLA}
    warnings += [f"{finding.line()}{' (left out)' * (finding.flag in unknown)}" for finding in errors]
    return tuple(flag.word for flag in (*environment, *typed) if flag.name not in unknown), tuple(warnings)


def _refused(finding: Finding, is_typed: bool) -> UserError:
    where = f"{'--flag' if is_typed else 'XLA_FLAGS:'} --{finding.flag}"
    return UserError(finding.message, where=where, remedy=finding.remedy or "see: pgle flags lint")
