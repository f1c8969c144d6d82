"""`pgle analyze`: traces and HLO dumps in, the parts of a step, its findings, and what changed since another out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.differences import Differences, find_differences
from pgle.analyze.findings import Finding
from pgle.analyze.rules import find_findings
from pgle.analyze.rules.communication import LEAST_HIDDEN
from pgle.files import Progress
from pgle.next import Next
from pgle.run.directory.directory import RunDirectory
from pgle.run.inputs.folder import dump_near
from pgle.run.inputs.measured_step import Side, measured_step, on_host
from pgle.run.inputs.next_command import UNKNOWN, following, launch_of, tune
from pgle.run.inputs.traces import stage_of
from pgle.schedule.compare import DISABLE_ASYNC


@dataclass(frozen=True)
class Analysis:
    """A step, what it loses, and what to do."""

    step: MeasuredStep  # the main module's, with its layers, memory and overlap
    findings: tuple[Finding, ...]  # the one that could save most first
    next: tuple[str, ...]  # commands, the nearest first
    warnings: tuple[str, ...]  # one line each
    # against, before: what changed since another step, and that step; None without one
    against: Differences | None = None
    before: MeasuredStep | None = None

    @property
    def shown_warnings(self) -> tuple[str, ...]:
        """The warnings without those on the costs, which `pgle convert` gives too."""
        known = [line for step in (self.step, self.before) if step is not None for line in step.costs.warnings]
        return tuple(line for line in self.warnings if not line.endswith(tuple(known) or ("\0",)))


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
    next_ = _next(step, side) if other is None else _next_of(side, other)
    return Analysis(step, findings, next_, tuple(dict.fromkeys(warnings)), against, before)


def _about_trace(step: MeasuredStep, side: Side) -> list[str]:
    """What makes the traced step differ from a plain run's."""
    lines = list(step.trace.warnings)
    if on_host(step.trace):
        lines.append("recorded on CPU devices: these times are no GPU's")
    if not step.mode and DISABLE_ASYNC in step.trace.xla_flags:
        lines.append(
            f"recorded with {DISABLE_ASYNC}, which keeps collectives synchronous: if that was to measure them for a "
            "profile, trace a run without it to see its exposed communication"
        )
    return lines if step.trace.simulated else [*lines, *step.costs.warnings]  # one simulated rank represents all


def _next(step: MeasuredStep, side: Side) -> tuple[str, ...]:
    """Commands, the nearest first."""
    target = [f"--target={side.target}"] if side.target else []
    words = [*side.inputs, *(f"--hlo={path}" for path in side.hlo), *target]
    runs = _runs(side)
    if runs and step.measures_alone:
        return tuple(_next_of_profile_run(step, side))
    if runs:
        line, own = following(runs[0]), {str(Next.of("analyze", *side.inputs)), str(Next.of("analyze", runs[0].path))}
        return tuple(filter(None, [tune(runs[0]) if line in own else line]))
    page = str(Next.of("report", *words))
    if step.module is None:
        found = _dump(step, side)
        return (str(Next.of("analyze", *words, f"--hlo={found}")), page) if found else (page,)
    if step.trace.simulated:
        return page, str(Next.of("profile", "--", *UNKNOWN))
    return page, str(Next.of("convert", *words, "-o", "profile.pbtxt"))


def _dump(step: MeasuredStep, side: Side) -> Path | None:
    """The HLO dump of the step in or next to its traces, if there is one."""
    program = step.costs.program
    modules = {program.key.name: program.fingerprints}
    folders = dict.fromkeys(path if path.is_dir() else path.parent for path in side.inputs if isinstance(path, Path))
    return next(filter(None, (dump_near(folder, modules) for folder in folders)), None)


def _next_of_profile_run(step: MeasuredStep, side: Side) -> Iterator[str]:
    """After a run whose collectives ran alone: where to see what a plain run loses, and what would save it."""
    run = _runs(side)[0]
    perf = run.stage("perf")
    known = bool(perf.traces()) or perf.rank().hlo.is_dir()
    if not known:
        yield launch_of(run).line("perf", run.path)
    yield str(Next.of("analyze", perf.path))
    if not known or (run.path / "tuned").exists():
        return
    plain = measured_step(Side((perf.path,), target=side.target))
    room = 0.0 if plain.overlap is None else plain.overlap.hideable_us + plain.overlap.stuck_us
    if room >= LEAST_HIDDEN * plain.step_us:
        yield from filter(None, [tune(run)])


def _runs(side: Side) -> list[RunDirectory]:
    return [stage.run for stage in map(stage_of, side.inputs) if stage is not None]


def _next_of(side: Side, other: Side) -> tuple[str, ...]:
    """After a comparison: its page; and step times of several launches, which alone prove a difference."""
    words = [*side.inputs, *(f"--hlo={path}" for path in side.hlo)]
    words += [f"--against={path}" for path in other.inputs] + [f"--against-hlo={path}" for path in other.hlo]
    page = str(Next.of("report", *words, "--output=diff.html"))
    return page, str(Next.of("compare", "BASE", "NEW"))
