"""`pgle analyze`: traces and HLO dumps in, the parts of a step, its findings, and what changed since another out."""

from __future__ import annotations

from dataclasses import dataclass

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.differences import Differences, find_differences
from pgle.analyze.findings import Finding
from pgle.analyze.rules import find_findings
from pgle.files import Progress
from pgle.next import Next
from pgle.run.experiment.directory import RunDirectory
from pgle.run.experiment.onward import launch_of, tune
from pgle.run.inputs.measured_step import Side, measured_step, on_host
from pgle.run.inputs.traces import stage_of
from pgle.schedule.moves import DISABLE_ASYNC


@dataclass(frozen=True)
class Analysis:
    """A step, what it loses, and what to do."""

    step: MeasuredStep  # the main module's, with its layers, memory and overlap
    findings: tuple[Finding, ...]  # the one that could save most first
    next: str  # what to do first
    warnings: tuple[str, ...]  # one line each
    against: Differences | None = None  # what changed since the other step; None where there is none


def analyze(side: Side, other: Side | None = None, *, progress: Progress | None = None) -> Analysis:
    """Read the traces and take the main module's step apart.

    Args:
        side: the step.
        other: another step of the same program, from before, to say what changed since.
        progress: told how much is read.

    Raises:
        UserError: an input is bad, or holds no activity of an XLA program.
    """
    step = measured_step(side, progress)
    before = None if other is None else measured_step(other, progress)
    against = None if before is None else find_differences(before, step)
    findings = find_findings(step)
    warnings = [*_about_trace(step, side)]
    if before is not None and other is not None:
        warnings += [f"{other.inputs[0].name}: {line}" for line in _about_trace(before, other)]
        if before.costs.program.key.name != step.costs.program.key.name:
            names = f"{before.costs.program.key.name} and {step.costs.program.key.name}"
            warnings.append(f"the main modules are {names}: are these runs of one program?")
    next_ = _next(step, findings, side) if against is None else _next_of(against)
    return Analysis(step, findings, next_, tuple(dict.fromkeys(warnings)), against)


def _about_trace(step: MeasuredStep, side: Side) -> list[str]:
    """What makes the traced step another one than that of a plain run."""
    lines = list(step.trace.warnings)
    if on_host(step.trace):
        lines.append("recorded on CPU devices: these times are no GPU's")
    if not step.mode and DISABLE_ASYNC in step.trace.xla_flags:
        lines.append(
            f"recorded with {DISABLE_ASYNC}, which keeps collectives synchronous: if that was to measure them for a "
            "profile, trace a run without it to see what is exposed there"
        )
    return lines if step.trace.simulated else [*lines, *step.costs.warnings]  # one simulated rank stands for all


def _next(step: MeasuredStep, findings: tuple[Finding, ...], side: Side) -> str:
    saving = [finding for finding in findings if finding.share]
    if step.measures_alone:
        return _next_of_profile_run(step, side)
    if step.module is None:
        command = Next.of("analyze", *side.inputs, "--hlo", "DUMP_DIR")
        return f"With the HLO more can be said, by instruction and link: {command}"
    if not saving and step.trace.simulated and not _runs(side):
        return "Nothing stands out in this schedule. Measured costs make it sure: pgle profile -- COMMAND"
    if not saving:
        words = [*side.inputs, *(f"--hlo={path}" for path in side.hlo), "-o", "profile.pbtxt"]
        return f"Nothing stands out. A profile for the scheduler: {Next.of('convert', *words)}"
    first = saving[0]
    return f"Begin with {first.title} (up to {first.share:.1%} of the step): {first.remedy}."


def _next_of_profile_run(step: MeasuredStep, side: Side) -> str:
    """After a run whose collectives were kept apart: where to see what a plain run loses, and what would save it."""
    run = _runs(side)[0]
    perf = run.stage("perf")
    known = bool(perf.traces()) or perf.rank().hlo.is_dir()
    make = "" if known else f"\n  {launch_of(run).line('perf', run.path)}"
    most = 0.0 if step.overlap is None else step.overlap.hideable_us / step.step_us
    brings = f" (a better schedule alone saves at most {most:.1%} of the step)" if step.overlap else ""
    flags = "" if (run.path / "tuned").exists() else f"\nFlags that hide more{brings}:\n  {tune(run)}"
    return f"What a plain run exposes:{make}\n  {Next.of('analyze', perf.path)}{flags}"


def _runs(side: Side) -> list[RunDirectory]:
    return [stage.run for stage in map(stage_of, side.inputs) if stage is not None]


def _next_of(found: Differences) -> str:
    """After a comparison: where to look, and what it would bring."""
    worst = next((change for change in found.changes if change.delta_us > 0), None)
    if not found.changes:
        return "Nothing changed that is worth a look."
    if found.share <= 0 or worst is None:
        return "Nothing got slower that is worth a look: keep the change."
    where = f" ({worst.source})" if worst.source else ""
    return f"Look at {worst.name}{where} first: its change takes {worst.share:.1%} of the step."
