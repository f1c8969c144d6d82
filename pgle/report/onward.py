"""The last lines of an answer: what to do next, where that needs a reason also why, and the command that does it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pgle.errors import printable
from pgle.files import AnyPath
from pgle.next import typed
from pgle.report.text import console
from pgle.run.experiment import next_command
from pgle.run.experiment.directory import COMPARED, RunDirectory, free
from pgle.run.inputs.traces import stage_of

if TYPE_CHECKING:
    from pgle.steps.compare import Comparison
    from pgle.steps.gate import Check
    from pgle.xla.log.verdict import LogVerdict

DUMP = "DUMP"  # stands for the HLO dump of a job, where none was named
_STEPS = re.compile(r"/steps[^/]*\.jsonl$")  # of a stage of a run directory


def show_next(lines: Iterable[str], *, stderr: bool = False) -> None:
    """Print them below an answer; with ``PGLE_NEXT=0``, as a script has it that goes on by itself, nothing."""
    out = console(stderr=stderr)
    for line in lines if os.environ.get("PGLE_NEXT") != "0" else ():
        out.print(printable(line), style="dim", soft_wrap=True)


def commands(lines: Iterable[str]) -> tuple[str, ...]:
    """What can be typed of some lines, for a page."""
    return tuple(re.sub(r"^[^:'\"]*: (?=\S)", "", line) for line in lines)


def next_line(run: RunDirectory, command: str) -> str:
    """A command that goes on with a run, as a line; a stage of several ranks is started by each."""
    ranks = next_command.by_every_rank(run) and re.match(r"pgle (perf|profile) ", command)
    return f"next, on every rank: {command}" if ranks else f"next: {command}"


def after_conversion(profile: AnyPath, hlo: Sequence[AnyPath]) -> list[str]:
    """Hold the profile against the module; where no HLO is known, look at the costs."""
    if not hlo:
        return [f"next: {typed('pgle', 'show', profile)}"]
    return [f"next: {typed('pgle', 'verify', profile, *(word for path in hlo for word in ('--hlo', path)))}"]


def after_verification(profile: AnyPath, hlo: Sequence[AnyPath], *, ok: bool) -> list[str]:
    """Run with the profile; outside a run directory ask what it gives first. What failed has its remedies above."""
    run = _run_of_profile(profile)
    if not ok:
        return []
    if run is not None:
        return [next_line(run, next_command.following(run))]
    return [
        f"next: {typed('pgle', 'predict', hlo[0], '--profile', profile)}",
        f"on your GPUs: {typed('pgle', 'perf', '--profile', profile, '--', *next_command.UNKNOWN)}",
    ]


def after_summary(profile: AnyPath, modules: Mapping[str, Collection[str]] | None = None) -> list[str]:
    """Hold a profile that was looked at against its modules, their fingerprints by name, where their dump lies in its
    folder or in its run."""
    from pgle.run.inputs.folder import dump_near

    run = _run_of_profile(profile)
    near = dump_near(profile.parent, modules) if run is None and isinstance(profile, Path) and modules else None
    dump = run.dump_to_cover if run is not None else near or DUMP
    where = f", with the folder of --xla_dump_to as {DUMP}" if dump == DUMP else ""
    return [f"next{where}: {typed('pgle', 'verify', profile, '--hlo', dump)}"]


def after_difference(old: AnyPath, new: AnyPath, *, noisy: bool) -> list[str]:
    """Hold the new profile against its module; two that are the same but for noise are steadier together."""
    if not noisy:
        return after_summary(new)
    return [f"next: {typed('pgle', 'merge', old, new, '-o', free(Path('merged.pbtxt')))}"]


def after_confirmation(log: AnyPath, found: LogVerdict) -> list[str]:
    """Ask whether it is faster. What was not used has its remedy above."""
    if found.main.verdict != "used":
        return []
    stage = stage_of(log) or stage_of(log.parent)
    if stage is not None:
        return [next_line(stage.run, next_command.following(stage.run))]
    return [f"next, with the log of a run without the profile: {typed('pgle', 'compare', 'BASELINE_LOG', log)}"]


def after_comparison(found: Comparison, checks: Sequence[Check] = (), more: Sequence[object] = ()) -> list[str]:
    """By the verdict: keep what is faster, look closer at what is slower, run more where nothing is shown.

    Args:
        found: the comparison.
        checks: shown above; their advice is not repeated.
        more: the words after ``pgle compare`` that run more of both sides, where they are known.
    """
    from pgle.steps.gate import explanation

    told = explanation(found)
    advised = any(told in check.message for check in checks)
    is_open = found.verdict == "undecided" or any(check.ok is None for check in checks)
    return [line for line in _after_comparison(found, told, more, is_open) if not (advised and told in line)]


def _after_comparison(found: Comparison, why: str, more: Sequence[object], is_open: bool) -> list[str]:
    run = _run_of(found)
    if run is not None:
        next_command.record_comparison(run, found)
        return after_stages(run, found)
    if is_open:
        words = more or ("--abba", 3, "--", "COMMAND_A", "--vs", "COMMAND_B")
        return [f"next, for more runs: {typed('pgle', 'compare', *words)}"]
    if found.verdict == "slower":
        return [f"next, with a trace of each: {why}"]
    new = _STEPS.sub("", found.new.runs[0].series.source)
    return [f"next, to see it over months: {typed('pgle', 'history', 'add', new, '--name', found.new.label)}"]


def after_entry(path: Path, name: str) -> list[str]:
    """The trend that an entry of a history was added to."""
    return [f"next: {typed('pgle', 'history', 'show', '--name', name, *_kept_in(path))}"]


def after_trends(path: Path) -> list[str]:
    """The comparison that takes the launch spread from a history."""
    return [f"next: {typed('pgle', 'compare', 'BASE', 'NEW', '--history', path)}"]


def _kept_in(path: Path) -> tuple[str, ...]:
    return () if path == Path("perf/history.jsonl") else ("--file", str(path))


def after_lint(flags: Sequence[str], file: str | None, *, clean: bool) -> list[str]:
    """What flags that hold do to the schedule; those that do not have their remedies above."""
    if not clean:
        return []
    given = ("--flags-file", file) if file else tuple(f"--flag={flag}" for flag in flags)
    return [f"next, what they do to your step: {typed('pgle', 'rehearse', *given, '--', *next_command.UNKNOWN)}"]


def after_stages(run: RunDirectory, found: Comparison | None) -> list[str]:
    """What the comparison of a run directory's stages leads to."""
    from pgle.schedule.verdict import LEAST_GAIN  # numpy and the schedules, which most answers do without

    profile = run.found_profile or run.profile
    if found is None:
        return [
            "Too few steps to say whether it is faster. Let the program run more of them, then:",
            f"next: {next_command.launch_of(run).line('run', run.path)}",
        ]
    if found.verdict == "faster" and found.simulated:
        launch, there = next_command.launch_of(run).on_gpus(), run.path.with_name(f"{run.path.name}-gpu")
        return [
            f"next: {next_command.look_closer(run)}",
            f"on your GPUs, which alone prove it: {launch.line('run', there)}",
        ]
    flags = next_command.against_other_flags(run)
    if found.verdict == "faster":
        return [
            "Keep the profile in your jobs (the first prints the lines to set), and keep slowdowns out (the second):",
            f"next: {typed('pgle', 'flags', 'preset', 'pgle-perf', '--profile', profile)}",
            f"next: {typed('pgle', 'init', 'github')}",
            *([] if flags is None else [f"what the flags bring, against the run under other ones: {flags}"]),
        ]
    if found.verdict == "same" or (found.verdict == "slower" and found.change < LEAST_GAIN):
        if flags is not None:
            return [
                "The profile alone changes next to nothing. What the flags bring, against the run under other ones:",
                f"next: {flags}",
            ]
        return [
            "The profile alone changes next to nothing here; flags beside it may:",
            f"next: {next_command.tune(run)}",
        ]
    if found.verdict == "slower":
        return [
            "Leave this profile out of your jobs.",
            "next, what it changed for the worse: "
            + typed("pgle", "analyze", run.stage("perf").path, "--against", run.stage("baseline").path),
        ]
    if found.simulated:
        return [
            "Not decided by these steps; the schedules, compared without noise, say more:",
            f"next: {typed('pgle', 'rehearse', run.path)}",
        ]
    return ["Not decided by these steps; more runs of both sides are surer:", f"next: {next_command.more_runs(run)}"]


def after_tuning(run: RunDirectory, found: Comparison, flags: Path) -> list[str]:
    """What `pgle run --tune` leads to: `run` is the experiment under the flags that were found, `flags` their file."""
    if found.verdict != "faster":
        return ["The flags that were found are not shown to help. Where the step goes under them:",
                f"next: {next_command.look_closer(run)}"]  # fmt: skip
    if found.simulated:
        there = run.path.parents[1].with_name(f"{run.path.parents[1].name}-gpu")
        launch = next_command.launch_of(RunDirectory(run.path.parents[1])).on_gpus()
        return [f"next: {next_command.look_closer(run)}",
                f"on your GPUs, which alone prove it: {launch.line('run', there, '--tune')}"]  # fmt: skip
    profile = run.found_profile or run.profile
    return [
        f"Keep the flags of {flags} in your jobs, and the profile that was measured under them:",
        f"next: {typed('pgle', 'flags', 'preset', 'pgle-perf', '--profile', profile)}",
    ]


def _run_of_profile(profile: AnyPath) -> RunDirectory | None:
    run = RunDirectory(Path(str(profile)).parent)
    return run if run.is_recorded and Path(str(profile)).stem == run.profile.stem else None


def _run_of(found: Comparison) -> RunDirectory | None:
    """The run directory whose baseline and performance run were compared."""
    sources = [run.series.source for side in (found.base, found.new) for run in side.runs]
    stages = [Path(_STEPS.sub("", source)) for source in sources]
    run = RunDirectory(stages[0].parent)
    return run if run.is_recorded and [*stages] == [run.stage(name).path for name in COMPARED] else None
