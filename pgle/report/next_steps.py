"""The commands that lead on from an answer; the first is the one to type now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pgle.files import AnyPath
from pgle.next import Next
from pgle.run.directory.directory import RunDirectory
from pgle.run.inputs import next_command
from pgle.run.inputs.traces import stage_of

if TYPE_CHECKING:
    from pgle.steps.compare import Comparison, LimitCheck
    from pgle.xla.log.verdict import LogVerdict

DUMP = "DUMP"  # the HLO dump of a job, if none was named

Commands = tuple[Next, ...]


def after_conversion(profile: AnyPath, hlo: Sequence[AnyPath]) -> Commands:
    """Check the profile against the module; if no HLO is known, look at the costs."""
    if not hlo:
        return (Next.of("show", profile),)
    return (
        Next.of(
            "verify",
            profile,
            *(word for path in hlo for word in ("--hlo", path)),
        ),
    )


def after_verification(profile: AnyPath, hlo: Sequence[AnyPath]) -> Commands:
    """Run with a profile that fits; outside a run directory predict its effect first."""
    run = _run_of_profile(profile)
    if run is not None:
        return (next_command.following(run),)
    return (
        Next.of("predict", hlo[0], "--profile", profile),
        Next.of("perf", "--profile", profile, "--", *next_command.UNKNOWN),
    )


def after_summary(
    profile: AnyPath, modules: Mapping[str, Collection[str]] | None = None
) -> Commands:
    """Check a profile against its modules.

    Args:
        profile: that was looked at.
        modules: its modules, their fingerprints by name; a dump of them is looked for in its folder
            and in its run.
    """
    run = _run_of_profile(profile)
    near = (
        next_command.dump_near(profile.parent, modules)
        if run is None and isinstance(profile, Path) and modules
        else None
    )
    return after_conversion(
        profile, [Path(run.dump_to_cover if run is not None else near or DUMP)]
    )


def after_confirmation(log: AnyPath, found: LogVerdict) -> Commands:
    """Ask whether it is faster; a profile that was not used is checked first."""
    stage = stage_of(log) or stage_of(log.parent)
    if found.main.verdict != "used":
        profile = Path(found.main.profile or "PROFILE")
        return (
            after_conversion(profile, [Path(DUMP)])
            if stage is None
            else after_summary(stage.run.profile)
        )
    if stage is not None:
        return (next_command.following(stage.run),)
    return (Next.of("compare", "BASELINE_LOG", log),)


def after_comparison(
    found: Comparison, checks: Sequence[LimitCheck] = (), more: Sequence[object] = ()
) -> Commands:
    """By the verdict: keep a faster setting, analyze a slower one, run more if undecided.

    Args:
        found: the comparison.
        checks: of it; one that cannot tell asks for more runs.
        more: the words after ``pgle compare`` that run more of both sides, if they are known.
    """
    from pgle.run.compare import compared_run
    from pgle.steps.compare import explanation, stage_path

    run = compared_run(found)
    if run is not None:
        return after_stages(run, found)
    if found.verdict == "undecided" or any(check.ok is None for check in checks):
        return (
            Next.of(
                "compare",
                *(more or ("--abba", 3, "--", "COMMAND_A", "--vs", "COMMAND_B")),
            ),
        )
    if found.verdict == "slower":
        return (explanation(found),)
    new = stage_path(found.new.runs[0].series.source)
    return (Next.of("history", "add", new, "--name", found.new.label),)


def after_entry(path: Path) -> Commands:
    """The comparison that takes the launch spread from a history."""
    return (Next.of("compare", "BASE", "NEW", "--history", path),)


def after_lint(flags: Sequence[str], file: str | None, *, clean: bool) -> Commands:
    """Rehearse with correct flags; the answer has remedies for the others."""
    if not clean:
        return ()
    given = (
        ("--flags-file", file) if file else tuple(f"--flag={flag}" for flag in flags)
    )
    return (Next.of("rehearse", *given, "--", *next_command.UNKNOWN),)


def after_stages(run: RunDirectory, found: Comparison | None) -> Commands:
    """What the comparison of a run directory's stages leads to; None: there were too few steps to
    compare.
    """
    from pgle.schedule.predict import LEAST_GAIN

    if found is None:
        return (next_command.launch_of(run).line("run", run.path),)
    if found.verdict == "faster" and found.simulated:
        there = run.path.with_name(f"{run.path.name}-gpu")
        return next_command.report_or_analyze(run), next_command.launch_of(
            run
        ).on_gpus().line("run", there)
    if found.verdict == "faster":
        keep = Next.of(
            "flags",
            "preset",
            "pgle-perf",
            "--profile",
            run.found_profile or run.profile,
        )
        return (keep, Next.of("init", "github"))
    if found.verdict == "same" or (
        found.verdict == "slower" and found.change < LEAST_GAIN
    ):
        return (next_command.tune(run) or next_command.report_or_analyze(run),)
    if found.verdict == "slower":
        return (
            Next.of(
                "analyze",
                run.stage("perf").path,
                "--against",
                run.stage("baseline").path,
            ),
        )
    return (
        Next.of("rehearse", run.path)
        if found.simulated
        else next_command.more_runs(run),
    )


def _run_of_profile(profile: AnyPath) -> RunDirectory | None:
    run = RunDirectory(Path(str(profile)).parent)
    return (
        run if run.is_recorded and Path(str(profile)).stem == run.profile.stem else None
    )
