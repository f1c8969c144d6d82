"""`pgle analyze`: traces and HLO dumps in, the parts of a step, its findings, and what changed since another out."""

from __future__ import annotations

from dataclasses import dataclass

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.differences import Differences, Verdict, find_differences
from pgle.analyze.findings import Finding
from pgle.analyze.rules import find_findings
from pgle.analyze.rules.communication import LEAST_HIDDEN
from pgle.files import Progress
from pgle.next import Next
from pgle.run.experiment.directory import RunDirectory
from pgle.run.experiment.next_command import following, launch_of, tune
from pgle.run.inputs.measured_step import Side, measured_step, on_host
from pgle.run.inputs.traces import stage_of
from pgle.schedule.moves import DISABLE_ASYNC

WORTH_A_LOOK = 0.01  # of the step; a row that grew by so much is named, whatever can be said of the whole step


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
        progress: called with how much is read.

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
    """What makes the traced step differ from a plain run's."""
    lines = list(step.trace.warnings)
    if on_host(step.trace):
        lines.append("recorded on CPU devices: these times are no GPU's")
    if not step.mode and DISABLE_ASYNC in step.trace.xla_flags:
        lines.append(
            f"recorded with {DISABLE_ASYNC}, which keeps collectives synchronous: if that was to measure them for a "
            "profile, trace a run without it to see what is exposed there"
        )
    return lines if step.trace.simulated else [*lines, *step.costs.warnings]  # one simulated rank represents all


def _next(step: MeasuredStep, findings: tuple[Finding, ...], side: Side) -> str:
    saving = [finding for finding in findings if finding.share]
    if step.measures_alone:
        return _next_of_profile_run(step, side)
    if step.module is None:
        command = Next.of("analyze", *side.inputs, "--hlo", "DUMP_DIR")
        return f"With the HLO more can be said, by instruction and link: {command}"
    if not saving and step.trace.simulated and not _runs(side):
        return "No problem found in this schedule. Measured costs would confirm it: pgle profile -- COMMAND"
    if not saving and _runs(side):
        return f"No problem found.\n  {following(_runs(side)[0])}"
    if not saving:
        words = [*side.inputs, *(f"--hlo={path}" for path in side.hlo), "-o", "profile.pbtxt"]
        return f"No problem found. A profile for the scheduler: {Next.of('convert', *words)}"
    first = saving[0]
    return f"Begin with {first.title} (up to {first.share:.1%} of the step): {first.remedy}."


def _next_of_profile_run(step: MeasuredStep, side: Side) -> str:
    """After a run whose collectives were kept apart: where to see what a plain run loses, and what would save it."""
    run = _runs(side)[0]
    perf = run.stage("perf")
    known = bool(perf.traces()) or perf.rank().hlo.is_dir()
    make = "" if known else f"\n  {launch_of(run).line('perf', run.path)}"
    lines = f"What a plain run exposes:{make}\n  {Next.of('analyze', perf.path)}"
    if not known or (run.path / "tuned").exists():
        return lines
    plain = measured_step(Side((perf.path,), target=side.target))
    room = 0.0 if plain.overlap is None else plain.overlap.hideable_us + plain.overlap.stuck_us
    if room < LEAST_HIDDEN * plain.step_us:
        return lines
    source = "predicted" if plain.trace.simulated else "measured"
    return (
        f"{lines}\nFlags that hide more ({room / plain.step_us:.1%} of the {source} step of the performance run is "
        f"exposed):\n  {tune(run)}"
    )


def _runs(side: Side) -> list[RunDirectory]:
    return [stage.run for stage in map(stage_of, side.inputs) if stage is not None]


def _next_of(found: Differences) -> str:
    """After a comparison: where to look, and what it would bring."""
    worst = next((change for change in found.changes if change.delta_us > 0), None)
    lines, later = [], (found.late_us[1] - found.late_us[0]) / found.before.step_us
    if worst is not None and later >= max(worst.share, WORTH_A_LOOK):
        rank = found.late_rank or "the ranks, which are late in turn"
        lines.append(f"Look at {rank} first: the others wait {later:.1%} of the step longer for it.")
    elif worst is not None and (found.verdict == Verdict.LONGER or worst.share >= WORTH_A_LOOK):
        what = worst.name + (f" ({worst.source or worst.note})" if worst.source or worst.note else "")
        lines.append(f"Look at {what} first: its change takes {worst.share:.1%} of the step.")
    if found.verdict == Verdict.CANNOT_TELL and found.noise_us is None:
        lines.append("Record more steps of each run, or compare step times: pgle compare BASE NEW")
    elif found.verdict == Verdict.SHORTER:
        lines.append("Confirm it with step times of several launches: pgle compare BASE NEW")
    return "\n".join(lines) or "Nothing changed by more than noise."
