"""`pgle analyze`: find the parts of a step, its findings and its changes, from traces, runs or
rehearsals. `pgle report` uses this module for all known facts about a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TypeVar

from pgle.account.value import Account, Shown, TimedSteps
from pgle.analyze.account import account_of_trace
from pgle.analyze.analysis import MeasuredStep, measure_step
from pgle.analyze.differences import Differences, find_differences
from pgle.analyze.findings import StepFinding
from pgle.analyze.memory import Memory, find_memory
from pgle.analyze.rules import find_findings
from pgle.analyze.versions import Version, find_versions
from pgle.costs.measure.measured import (
    ProgramCosts,
    TracedProgram,
    measure,
    with_embedded_hlo,
)
from pgle.costs.profile.files import read_profile
from pgle.costs.profile.value import Profile
from pgle.errors import UserError, in_percent
from pgle.files import AnyPath, Progress, as_path, read_bytes
from pgle.next import Next
from pgle.requests.looks import Analyze, Report
from pgle.run.compare import CompareRequest, run_compare
from pgle.run.directory.directory import (
    COMPARED,
    RunDirectory,
    StageFolder,
    free,
    is_run_dir,
    recorded_by,
    stage_of,
)
from pgle.run.directory.manifest import Manifest, read_manifest
from pgle.run.inputs.folder import dump_near
from pgle.run.inputs.found_flags import tune
from pgle.run.inputs.next_command import ON_GPU, launch_of
from pgle.run.inputs.schedule_now import page_of_answer, schedule_now
from pgle.run.inputs.traces import is_trace, read_traces
from pgle.run.target import FROM_WORDS, GpuFound, gpu_of
from pgle.run.timed import timed_steps
from pgle.schedule.predict import Prediction, predict
from pgle.schedule.record import repeated
from pgle.steps.compare import Comparison, LimitCheck
from pgle.trace.table import ModuleKey, Recording, Trace
from pgle.xla.flags.catalogue import DISABLE_ASYNC
from pgle.xla.flags.text import parse_flags
from pgle.xla.hlo.dumps import Dumps, is_hlo, read_dumps, read_modules, read_scheduled
from pgle.xla.hlo.module import MAX_HLO_BYTES, Module, architecture_in_name
from pgle.xla.hlo.proto import buffers_from_bytes
from pgle.xla.targets import (
    BUILT_IN,
    Hardware,
    Target,
    find_hardware,
    load_target,
    target_beside,
)
from pgle.xla.vendors import traced_architecture, vendor_named


@dataclass(frozen=True)
class StepInput:
    """Inputs that describe one step."""

    # traces, run directories, stages, rehearsals or scheduled HLO; several traces are the ranks of
    # one job
    inputs: tuple[AnyPath, ...]
    # HLO dumps of the run; empty: the dumps of run directories, or the HLO that a trace embeds
    hlo: tuple[AnyPath, ...] = ()
    # the GPU, by name or description; None: the one that the HLO names
    target: str | None = None
    # the profile that the scheduler had; None: the run directory's
    profile: AnyPath | None = None

    @property
    def words(self) -> tuple[AnyPath | str, ...]:
        """The command-line words that give the inputs and their HLO."""
        return (*self.inputs, *(f"--hlo={path}" for path in self.hlo))


def step_of(request: Analyze | Report) -> StepInput:
    """Return the step that the request asks about."""
    profile = request.profile if isinstance(request, Analyze) else None
    return StepInput(request.inputs, request.hlo, request.target, profile)


def other_of(request: Analyze | Report) -> StepInput | None:
    """Return the earlier step that the request compares with; None if it compares with none."""
    if not request.against:
        return None
    return StepInput(request.against, request.against_hlo, request.target)


def measured_step(side: StepInput, progress: Progress | None = None) -> MeasuredStep:
    """Read one step's inputs and measure the parts of the main module's step."""
    target = load_target(side.target) if side.target else None
    given = find_hardware(target) if target else None
    profile = _profile(side)
    if len(side.inputs) == 1 and _is_schedule(side.inputs[0]):
        trace, dumps = _simulated(side.inputs[0], profile, given)
    else:
        dumps = read_dumps(side.hlo or _dumped(side.inputs))
        traces = chain.from_iterable(map(_traces, side.inputs))
        trace = read_traces(list(traces), progress=progress)
    measured = measure(trace, dumps)
    costs = measured.costs[0]
    versions = _versions(trace, dumps, costs.program)
    stage = next(filter(None, map(_recorded_in, side.inputs)), None)
    record = None if stage is None else read_manifest(stage.run.path).last(stage.name)
    _check_window(costs, side.inputs[0])
    trace = measured.trace
    if record is not None and not trace.xla_flags:
        trace = replace(trace, xla_flags=record.xla_flags)
    gpu, note = None, ""
    if not trace.on_host:
        gpu, note = _gpu(trace, costs.program.hlo, target)
    hardware = given or (None if gpu is None else gpu.hardware)
    trace = replace(trace, warnings=(*trace.warnings, *filter(None, [note])))
    memory = _memory(trace, costs.program, target, hardware)
    mode = record.mode if record is not None and record.stage == "profile" else ""
    return measure_step(
        trace,
        costs,
        hardware,
        memory=memory,
        used=profile,
        versions=versions,
        mode=mode,
        hardware_from="" if gpu is None else FROM_WORDS[gpu.by],
    )


def _versions(trace: Trace, dumps: Dumps, main: TracedProgram) -> tuple[Version, ...]:
    """Return the main program's other compilations, with HLO from a dump or from the trace."""

    def hlo_of(key: ModuleKey) -> Module | None:
        dumped = [
            module
            for module in dumps.modules
            if (module.name, module.program_id) == (key.name, key.program_id)
        ]
        embedded = replace(main, key=key, hlo=dumped[0] if dumped else None)
        return with_embedded_hlo(trace, embedded).hlo

    return find_versions(trace, main.key.name, hlo_of)


def _check_window(costs: ProgramCosts, path: AnyPath) -> None:
    """Raise `UserError` if the steps take no time, or if the traces have more devices than the
    program. Traces with too many devices come from several runs.
    """
    if costs.window.span_us == 0:
        what = f"the steps of {costs.program.key.name} take no time"
        raise UserError(
            what, where=path, remedy="the trace is damaged; record the program again"
        )
    module = costs.program.hlo
    given = len(costs.window.devices)
    devices = max(costs.ranks, 1 if module is None else module.num_devices)
    if 1 < devices < given:
        what = (
            f"traces of {given} devices, but {costs.program.key.name} runs on {devices}: "
            "these are several runs"
        )
        remedy = (
            "give the ranks of one run; --against takes the directory of the other run"
        )
        raise UserError(what, where=path, remedy=remedy)


def _stage_for(path: AnyPath) -> StageFolder | None:
    """Return the stage that a path names. A run directory stands for its performance run if that
    was traced, else for its profile run.
    """
    if not is_run_dir(path):
        return stage_of(path)
    stages = [RunDirectory(Path(path)).stage(name) for name in ("perf", "profile")]
    return next((stage for stage in stages if stage.traces()), stages[-1])


def _traces(path: AnyPath) -> Sequence[AnyPath]:
    stage = _stage_for(path)
    if stage is None:
        return [path]
    found = stage.traces()
    if not found and not is_run_dir(path):
        raise UserError(
            "this stage was not traced",
            where=path,
            remedy=f"trace a plain run: {_traced_run(stage)}",
        )
    return found or [path]


def _traced_run(stage: StageFolder) -> Next:
    """Return the command that traces a plain run of the program. pgle itself traces profile stages
    only.
    """
    folder = free(stage.run.sibling("traced"))
    launch = replace(launch_of(stage.run), capture=ON_GPU, profiling=())
    return launch.line("profile", folder, "--mode", "async")


def _dumped(inputs: Sequence[AnyPath]) -> tuple[AnyPath, ...]:
    stages = filter(None, map(_recorded_in, inputs))
    return tuple(chain.from_iterable(stage.dumps() for stage in stages))


def _recorded_in(path: AnyPath) -> StageFolder | None:
    """Return the stage that a path names or lies in; None if it is not part of a run directory."""
    return _stage_for(path) or recorded_by(path)


def _profile(side: StepInput) -> Profile | None:
    """Return the profile that the scheduler used; a performance run has it in its run directory."""
    if side.profile is not None:
        return read_profile(side.profile)
    for path in side.inputs:
        stage = _stage_for(path)
        if stage is not None and stage.name == "perf" and stage.run.found_profile:
            return read_profile(stage.run.found_profile)
    return None


def _is_schedule(path: AnyPath) -> bool:
    """Whether a path is a schedule (a rehearsal, a dump or a module) and not a trace."""
    if path.is_dir():
        stage = _stage_for(path)
        if stage is not None:
            is_dumped = bool(stage.dumps()) and not stage.traces()
            return is_dumped and not is_run_dir(path)
        traces = ("**/*.xplane.pb", "*.sqlite", "*.nsys-rep")
        if any(next(path.glob(name), None) for name in traces):
            return False
        return any(map(is_hlo, path.rglob("*after_optimizations*")))
    return is_hlo(path) and not is_trace(path)


def _simulated(
    path: AnyPath, profile: Profile | None, hardware: Hardware | None
) -> tuple[Trace, Dumps]:
    """Return the timeline of the schedule with the longest step, as a trace of two equal steps."""
    stage = stage_of(path)
    if not profile and stage is not None and stage.run.found_profile is not None:
        # the profile of the stage's run, so that all stages of the run use equal costs
        profile = read_profile(stage.run.found_profile)
    folder = schedule_now(path) if stage is None else stage.rank().hlo
    modules = read_scheduled(folder)
    found = [
        (predict(item, profile, hardware or _gpu_of(item), expand_loops=True), item)
        for item in modules
    ]
    prediction, module = max(found, key=lambda pair: pair[0].step_us)
    trace = repeated(module, prediction.timeline)
    estimated = in_percent(prediction.timeline.share_of("estimated"), 0)
    notes = [f"costs {prediction.costs_are}, {estimated} of the time estimated"]
    if stage is not None:
        notes.append(
            f"{path} was not traced: its step is simulated from its schedule; on a GPU: "
            f"{_traced_run(stage)}"
        )
    return replace(trace, warnings=(*trace.warnings, *notes)), Dumps(
        (folder,), (module,)
    )


def _gpu(
    trace: Trace, module: Module | None, named: Target | None
) -> tuple[GpuFound | None, str]:
    """Return the GPU for expected times (None if unknown), and a note for the user (empty if
    none).
    """
    recorded = next(
        (recording for recording in trace.recordings.values() if recording.capability),
        Recording(),
    )
    vendor = recorded.vendor
    is_unknown = bool(vendor) and vendor_named(vendor) is None
    traced = None if is_unknown else traced_architecture(vendor, recorded.capability)
    source = "" if module is None else module.source
    has_name = architecture_in_name(source) is not None
    if source and not has_name and not as_path(source).is_file():
        source = ""  # the HLO is embedded in the trace, and `source` is not a file
    found = gpu_of(source, named, traced)
    if named is not None:
        own = gpu_of(source, traced=traced)
        ran_on = "other GPUs" if is_unknown else own.hardware.name
        note = (
            f"the trace is of {ran_on}; expected times are of {named.name}, "
            "since --target says so"
        )
        return found, note if found.doubt else ""
    if is_unknown:
        note = (
            f"recorded on GPUs of {vendor}, of which pgle knows no peaks: "
            "no expected times are given"
        )
        return None, note
    if module is None:
        return None, ""
    is_assumed = found.by == "nothing"
    note = "no GPU is named: an H100 is assumed; say --target" if is_assumed else ""
    return found, note


def _gpu_of(module: Module) -> Hardware:
    """Return the GPU that a module was compiled for."""
    return gpu_of(module.source).hardware


def _memory(
    trace: Trace,
    program: TracedProgram,
    target: Target | None,
    hardware: Hardware | None,
) -> Memory | None:
    """Return the main module's memory, by XLA's buffer plan. None if no dump or trace holds the
    plan.
    """
    module = program.hlo
    if module is None or not module.is_scheduled or trace.on_host:
        return None
    path = as_path(module.source)
    data = trace.hlo.get(program.key, b"")
    if path.is_file():
        data = read_bytes(path, max_bytes=MAX_HLO_BYTES)
    plan = buffers_from_bytes(data)
    if plan is None:
        return None
    target = target or target_beside(module.source)
    if target is None and hardware is not None and hardware.name in BUILT_IN:
        target = load_target(hardware.name)
    return find_memory(module, plan, target.memory_bytes if target else None)


@dataclass(frozen=True)
class Analysis:
    """A step, the time that it loses, and what to do about that."""

    # the run directory that was given or holds the inputs; None: neither
    run: RunDirectory | None
    step: MeasuredStep  # the main module's step, with its layers, memory and overlap
    findings: tuple[StepFinding, ...]  # sorted by possible saving, largest first
    # commands that follow from the inputs alone, most useful first; a run directory decides its own
    next: tuple[Next, ...]
    warnings: tuple[str, ...]  # one line each
    # what changed since the earlier step `before`; both None without an earlier step
    against: Differences | None
    before: MeasuredStep | None
    convert: Next | None  # the command that makes a profile from the trace
    # this command with the placeholder `hlo` for a dump; None: the HLO is known
    with_hlo: Next | None
    timed: TimedSteps | None  # step times of the run directory
    is_base: bool  # whether the step is a baseline's
    # what `advise` found for the run directory's program
    trials: Shown
    # the page of the rehearsal or search that the step belongs to; None: neither
    page: AnyPath | None = None

    @cached_property
    def account(self) -> Account:
        """The step, and what would shorten it."""
        run = self.run
        search = None if run is None else tune(run)
        found = account_of_trace(
            self.step,
            self.findings,
            search,
            advise=None if run is None else Next.of("advise", run.path),
            is_searched=run is not None and search is None,
            timed=self.timed,
        )
        return found.with_trials(self.trials)

    @property
    def plain(self) -> Next | None:
        """The command that analyzes a step in which collectives overlap. None if this step is one,
        or if the run has none.
        """
        if self.run is None or not self.step.measures_alone:
            return None
        perf = self.run.stage("perf")
        is_there = bool(perf.traces() or perf.dumps())
        return Next.of("analyze", perf.path) if is_there else None

    @property
    def shown_warnings(self) -> tuple[str, ...]:
        """The warnings, without those on costs, which `pgle convert` prints too."""
        known = self.step.costs.warnings
        if self.before is not None:
            known = (*known, *self.before.costs.warnings)
        return tuple(line for line in self.warnings if not line.endswith(known))


def analyze(
    side: StepInput, other: StepInput | None = None, *, progress: Progress | None = None
) -> Analysis:
    """Read the traces and measure the parts of the main module's step.

    Args:
        side: the inputs of the step.
        other: the inputs of an earlier step to compare with; None: no comparison.
        progress: called while files are read.
    """
    step = measured_step(side, progress)
    before = None if other is None else measured_step(other, progress)
    against = None if before is None else find_differences(before, step)
    warnings = _about_trace(step)
    if before is not None and other is not None:
        warnings += [f"{other.inputs[0].name}: {line}" for line in _about_trace(before)]
        if before.costs.program.key.name != step.costs.program.key.name:
            names = f"{before.costs.program.key.name} and {step.costs.program.key.name}"
            warnings.append(
                f"the main modules are {names}: are these runs of one program?"
            )
    recorded = filter(None, map(recorded_by, side.inputs))
    run = next((stage.run for stage in recorded), None)
    next_: tuple[Next, ...] = ()
    if other is not None:
        next_ = _next_of(side, other)
    elif run is None:
        next_ = _next(step, side)
    convert = _conversion(step, side) if run is None else None
    timed = timed_steps(run)
    about = tuple(dict.fromkeys(warnings))
    is_alone = other is None and run is None
    page = page_of_answer(side.inputs[0]) if is_alone else None
    return Analysis(
        run=run,
        step=step,
        findings=find_findings(step),
        next=next_,
        warnings=about,
        against=against,
        before=before,
        convert=convert,
        with_hlo=_with_hlo(step, side),
        timed=timed,
        is_base=_is_base(side),
        trials=_trials(run),
        page=page,
    )


def _trials(run: RunDirectory | None) -> Shown:
    """Return what `advise` found for the program of a run directory; empty without a run
    directory.
    """
    if run is None:
        return {}
    # imported late: a trace alone needs no capture
    from pgle.run.kept_trials import trials_of_run

    return trials_of_run(run)


def _is_base(side: StepInput) -> bool:
    """Whether the step is of a baseline stage."""
    stages = filter(None, map(_stage_for, side.inputs))
    return any(stage.name == "baseline" for stage in stages)


def _about_trace(step: MeasuredStep) -> list[str]:
    """Return warnings on how the traced step differs from a plain run's step."""
    lines = list(step.trace.warnings)
    if step.trace.on_host:
        lines.append("recorded on CPU devices: a GPU takes other times")
    disabled = parse_flags(step.trace.xla_flags).value(DISABLE_ASYNC)
    if not step.mode and disabled is not None:
        lines.append(
            f"recorded with --{DISABLE_ASYNC}, which keeps collectives synchronous: if that "
            "was to measure them for a profile, trace a run without it to see its exposed "
            "communication"
        )
    # a simulated rank stands for all ranks, so its costs need no warning
    if not step.trace.simulated:
        lines += step.costs.warnings
    return lines


def _next(step: MeasuredStep, side: StepInput) -> tuple[Next, ...]:
    """Return this command with the program's HLO dump, if the dump lies in or next to the folder of
    a trace. Empty if the HLO is known or no dump is found.
    """
    if step.module is not None:
        return ()
    modules = {step.costs.program.key.name: step.costs.program.fingerprints}
    paths = [path for path in side.inputs if isinstance(path, Path)]
    # thousands of ranks can share a folder
    for folder in dict.fromkeys(map(_folder_of, paths)):
        found = dump_near(folder, modules)
        if found:
            return (Next.of("analyze", *_words(side), f"--hlo={found}"),)
    return ()


def _folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _with_hlo(step: MeasuredStep, side: StepInput) -> Next | None:
    """Return this command with a placeholder for the HLO dump; None if the HLO is known."""
    if step.module is not None:
        return None
    return Next.of("analyze", *_words(side), "--hlo=hlo")


def _words(side: StepInput) -> list[AnyPath | str]:
    """Return the command-line words that give these inputs and the target."""
    target = [f"--target={side.target}"] if side.target else []
    return [*side.words, *target]


def _conversion(step: MeasuredStep, side: StepInput) -> Next | None:
    """Return the command that makes a profile from a trace; None for a schedule and for CPU
    devices.
    """
    if step.trace.simulated or step.trace.on_host:
        return None
    return Next.of("convert", *side.words, "-o", free(Path("profile.pbtxt")))


def _next_of(side: StepInput, other: StepInput) -> tuple[Next, ...]:
    """Return the command that writes a page of a comparison. The step times of several launches are
    the only proof of a difference.
    """
    before = [f"--against={path}" for path in other.inputs]
    before += [f"--against-hlo={path}" for path in other.hlo]
    page = free(Path("diff.html"))
    return (Next.of("report", *side.words, *before, f"--output={page}"),)


T = TypeVar("T")


@dataclass(frozen=True)
class StageSchedule:
    """The schedule that a stage ran, with the step time that the profile predicts."""

    label: str
    module: Module
    prediction: Prediction


@dataclass(frozen=True)
class RunFacts:
    """All facts about a run that `pgle report` shows."""

    inputs: tuple[AnyPath, ...]  # the paths that were given
    run: RunDirectory | None = None  # None: the inputs are traces
    manifest: Manifest = field(default_factory=Manifest)  # the stages of the run
    analysis: Analysis | None = None  # the trace's analysis; None without a trace
    profile: Profile | None = None  # the cost profile; None: not found
    # comparison, checks: step times of baseline and performance run
    comparison: Comparison | None = None
    checks: tuple[LimitCheck, ...] = ()
    # schedules of the baseline and the performance run, predicted with the profile
    schedules: tuple[StageSchedule, ...] = ()
    missing: tuple[str, ...] = ()  # one line per unknown fact, with the reason


def gather(
    side: StepInput, other: StepInput | None = None, *, progress: Progress | None = None
) -> RunFacts:
    """Read and analyze everything that the inputs hold. A run directory may lack any stage.

    Args:
        side: the inputs.
        other: an earlier step; with one, only the steps are compared.
        progress: called while files are read.
    """
    if other is not None or len(side.inputs) != 1 or not is_run_dir(side.inputs[0]):
        return RunFacts(side.inputs, analysis=analyze(side, other, progress=progress))
    run = RunDirectory(Path(side.inputs[0]))
    missing = []

    def part(what: str, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except UserError as error:
            missing.append(f"{what}: {error.line()}")
            return None

    analysis = part(
        "no timeline and findings", lambda: analyze(side, progress=progress)
    )
    profile = part("no costs", lambda: read_profile(run.profile_to_use()))
    compared = None
    if all(run.stage(name).path.is_dir() for name in COMPARED):
        compared = part(
            "step times not compared",
            lambda: run_compare(CompareRequest((str(run.path),))),
        )
    else:
        missing.append(
            "no before and after: 'pgle run' or 'pgle perf' makes the runs to compare"
        )
    if analysis is None and profile is None and compared is None:
        raise UserError("nothing to report on yet", where=run.path, remedy=missing[0])
    manifest = read_manifest(run.path)
    comparison, checks = compared or (None, ())
    schedules = () if profile is None else _schedules(run, manifest, profile)
    return RunFacts(
        inputs=side.inputs,
        run=run,
        manifest=manifest,
        analysis=analysis,
        profile=profile,
        comparison=comparison,
        checks=checks,
        schedules=schedules,
        missing=tuple(missing),
    )


def _schedules(
    run: RunDirectory, manifest: Manifest, profile: Profile
) -> tuple[StageSchedule, ...]:
    """Return the schedules of baseline and performance run, if both left dumps."""
    found = []
    labels = ("baseline: LHS, no profile", "performance run: LHS with the profile")
    for label, stage in zip(labels, COMPARED, strict=True):
        record = manifest.last(stage)
        modules: list[Module] = []
        with suppress(UserError):
            dumped = read_modules(run.stage(stage).rank().hlo)
            modules = [module for module in dumped if module.is_scheduled]
        if record is None or not modules:
            return ()
        name = str(record.facts.get("module", ""))
        module = max(
            modules, key=lambda item: (item.name == name, len(item.instructions))
        )
        found.append(
            StageSchedule(label, module, predict(module, profile, _gpu_of(module)))
        )
    return tuple(found) if len({item.module.name for item in found}) == 1 else ()
