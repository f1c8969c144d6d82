"""What `pgle analyze` can be pointed at: traces, run directories and their stages, rehearsals, scheduled HLO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.analyze.analysis import MeasuredStep, measure_step
from pgle.analyze.memory import Memory, find_memory
from pgle.costs.estimate.estimate import hardware_of
from pgle.costs.measure.measured import ProgramCosts, measure
from pgle.costs.measure.naming import Program
from pgle.costs.profile.files import read_profile
from pgle.costs.profile.value import Profile
from pgle.errors import UserError
from pgle.files import AnyPath, Progress, as_path, read_bytes
from pgle.run.directory.directory import RunDirectory, StageFolder
from pgle.run.directory.manifest import StageRecord, read_manifest
from pgle.run.inputs.next_command import launch_of
from pgle.run.inputs.traces import is_run_dir, is_trace, read_traces, stage_of
from pgle.schedule.predict import predict
from pgle.schedule.simulated_gpu import Noise, record
from pgle.trace.table import Kind, Recording, Trace
from pgle.xla.hlo.buffers import buffers_from_bytes
from pgle.xla.hlo.dumps import Dumps, read_dumps
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.proto import MAX_HLO_BYTES
from pgle.xla.hlo.reader import is_hlo, read_scheduled
from pgle.xla.log.evidence import compute_capability
from pgle.xla.targets import BUILT_IN, Hardware, Target, by_capability, find_hardware, load_target, target_beside

STILL = Noise(kernel=0.0, outliers=0.0, outlier_us=0.0, warm_up=(), skew=0.0, first_wait_us=0.0, pause_us=0.0)
"""A simulated step as the schedule has it, without what makes executions differ."""

REHEARSED = ("profiled", "baseline")  # folders of a rehearsal, the one to look at first


@dataclass(frozen=True)
class Side:
    """One step to look at."""

    # traces, run directories or their stages, rehearsals, scheduled HLO; several traces are ranks of one job
    inputs: tuple[AnyPath, ...]
    hlo: tuple[AnyPath, ...] = ()  # dumps of the run; without, dumps of run directories or embedded ones are used
    target: str | None = None  # the GPU, by name or description; None: as the HLO says
    profile: AnyPath | None = None  # what the scheduler was given; None: the run directory's


def measured_step(side: Side, progress: Progress | None = None) -> MeasuredStep:
    """Read one side and take the main module's step apart.

    Raises:
        UserError: an input is bad, or holds no activity of an XLA program.
    """
    target = load_target(side.target) if side.target else None
    given = find_hardware(target) if target else None
    profile = _profile(side)
    if len(side.inputs) == 1 and _is_schedule(side.inputs[0]):
        trace, dumps = _simulated(side.inputs[0], profile or _measured_costs(side.inputs[0]), given)
    else:
        dumps = read_dumps(side.hlo or _dumped(side.inputs))
        trace = read_traces([trace for path in side.inputs for trace in _traces(path)], progress=progress)
    measured = measure(trace, dumps)
    costs, record = measured.costs[0], _record(side)
    _check_ranks(costs, side.inputs[0])
    trace = measured.trace
    if record is not None and not trace.xla_flags:
        trace = replace(trace, xla_flags=record.xla_flags)
    hardware, note = given, ""
    if not on_host(trace):
        own, capability, why = _hardware(trace, costs.program.hlo)
        if target is None:
            hardware, note = (None, "") if costs.program.hlo is None else (own, why)
        elif capability not in (None, target.compute_capability):
            ran_on = own.name if own else "other GPUs"
            note = f"the trace is of {ran_on}; expected times are of {target.name}, since --target says so"
    trace = replace(trace, warnings=(*trace.warnings, *filter(None, [note])))
    memory = _memory(trace, costs.program, target, hardware)
    mode = record.mode if record is not None and record.stage == "profile" else ""
    return measure_step(trace, costs, hardware, memory=memory, used=profile, mode=mode)


def _check_ranks(costs: ProgramCosts, path: AnyPath) -> None:
    """Refuse traces of more devices than the program has, which are of several runs."""
    module, given = costs.program.hlo, len(costs.window.devices)
    devices = max(costs.ranks, 1 if module is None else module.num_devices)
    if 1 < devices < given:
        raise UserError(
            f"traces of {given} devices, but {costs.program.key.name} runs on {devices}: these are several runs",
            where=path,
            remedy="give the ranks of one run; --against takes the directory of the other run",
        )


def _looked_at(path: AnyPath) -> StageFolder | None:
    """The stage that a path names: RUN/STAGE, or of a run directory the performance run if it was traced."""
    if not is_run_dir(path):
        return stage_of(path)
    stages = [RunDirectory(Path(path)).stage(name) for name in ("perf", "profile")]
    return next((stage for stage in stages if stage.traces()), stages[-1])


def _record(side: Side) -> StageRecord | None:
    stage = next(filter(None, map(_looked_at, side.inputs)), None)
    return None if stage is None else read_manifest(stage.run.path).last(stage.name)


def _traces(path: AnyPath) -> Sequence[AnyPath]:
    stage = _looked_at(path)
    if stage is None or is_run_dir(path):
        return [path] if stage is None else stage.traces() or [path]
    if not stage.traces():
        raise UserError("this stage was not traced", where=path, remedy=f"run it again with --capture: {_again(stage)}")
    return stage.traces()


def _again(stage: StageFolder) -> str:
    baseline = ("--baseline",) if stage.name == "baseline" else ()
    return replace(launch_of(stage.run), capture="jax").line("perf", stage.run.path, *baseline, "--force")


def _dumped(inputs: Sequence[AnyPath]) -> tuple[AnyPath, ...]:
    stages = filter(None, map(_looked_at, inputs))
    return tuple(stage.rank().hlo for stage in stages if stage.rank().hlo.is_dir())


def _profile(side: Side) -> Profile | None:
    """The profile that the scheduler was given: of a performance run and a rehearsal the one in its folder."""
    if side.profile is not None:
        return read_profile(side.profile)
    for path in side.inputs:
        stage = _looked_at(path)
        if stage is not None and stage.name == "perf" and stage.run.found_profile is not None:
            return read_profile(stage.run.found_profile)
        if isinstance(path, Path) and (estimated := path / "estimated.pbtxt").is_file():
            return read_profile(estimated)
    return None


def _measured_costs(path: AnyPath) -> Profile | None:
    """The costs that a stage's schedule is simulated with: its run's, so that all its stages have the same."""
    stage = stage_of(path)
    profile = None if stage is None else stage.run.found_profile
    return None if profile is None else read_profile(profile)


def _is_schedule(path: AnyPath) -> bool:
    """Whether it is a rehearsal, a dump, or a module, and no trace."""
    if path.is_dir():
        stage = _looked_at(path)
        if stage is not None:
            return not stage.traces() and stage.rank().hlo.is_dir() and not is_run_dir(path)
        if any(next(path.glob(name), None) for name in ("**/*.xplane.pb", "*.sqlite", "*.nsys-rep")):
            return False
        return next((item for item in path.rglob("*after_optimizations*") if is_hlo(item)), None) is not None
    return is_hlo(path) and not is_trace(path)


def _simulated(path: AnyPath, profile: Profile | None, hardware: Hardware | None) -> tuple[Trace, Dumps]:
    """The timeline of the schedule with the longest step, as a trace of two equal steps."""
    stage = stage_of(path)
    folder = path if stage is None else stage.rank().hlo
    folder = next((path / name for name in REHEARSED if path.is_dir() and (path / name).is_dir()), folder)
    modules = read_scheduled(folder)
    found = [(predict(item, profile, hardware or hardware_of(item), expand_loops=True), item) for item in modules]
    prediction, module = max(found, key=lambda pair: pair[0].step_us)
    trace = record(module, prediction.timeline, ranks=1, executions=2, noise=STILL)
    notes = [f"costs {prediction.costs_are}, {prediction.estimated_share:.0%} of the time estimated"]
    if stage is not None:
        notes.append(f"{path} was not traced: its step is simulated from its schedule; on a GPU: {_again(stage)}")
    return replace(trace, warnings=(*trace.warnings, *notes)), Dumps((folder,), (module,))


def _hardware(trace: Trace, module: Module | None) -> tuple[Hardware | None, tuple[int, int] | None, str]:
    """The GPU that the HLO or else the trace names, None for one that is not in the table; its compute capability; and
    what to say of it."""
    recorded = next((recording for recording in trace.recordings.values() if recording.capability), Recording())
    if recorded.vendor.lower() not in ("", "nvidia"):
        note = f"recorded on GPUs of {recorded.vendor}, of which pgle knows no peaks: no expected times are given"
        return None, None, note
    capability = (module and compute_capability(module)) or recorded.capability
    note = "" if capability else "no GPU is named: an H100 is assumed; say --target"
    return by_capability(capability), capability, note


def on_host(trace: Trace) -> bool:
    """Whether CPU devices ran it."""
    return bool((trace.kind == Kind.HOST).all())


def _memory(trace: Trace, program: Program, target: Target | None, hardware: Hardware | None) -> Memory | None:
    """What the main module needs, by XLA's own plan if its dump or the trace embeds it."""
    module = program.hlo
    if module is None or not module.is_scheduled or on_host(trace):
        return None
    path, data = as_path(module.source), trace.hlo.get(program.key, b"")
    if path.is_file():
        data = read_bytes(path, max_bytes=MAX_HLO_BYTES)
    plan = buffers_from_bytes(data)
    if plan is None:
        return None
    target = target or target_beside(module.source)
    if target is None and hardware is not None and hardware.name in BUILT_IN:
        target = load_target(hardware.name)
    return find_memory(module, plan, target.memory_bytes if target else None)
