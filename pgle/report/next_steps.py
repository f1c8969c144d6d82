"""The next commands after an answer; the first is the one to type now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pgle.files import AnyPath
from pgle.next import Commands, Next, Sentence
from pgle.run.directory.directory import RunDirectory, stage_of

if TYPE_CHECKING:
    from pgle.account.value import Shown
    from pgle.run.ranks import Ranks
    from pgle.steps.compare import Comparison, LimitCheck
    from pgle.xla.log.verdict import LogVerdict

DUMP = "DUMP"  # stands for a job's HLO dump if none was named

NO_DUMP = Sentence.todo(
    "give the profile to the job in --xla_gpu_pgle_profile_file_or_directory_path; "
    "then run ",
    Next.of("verify"),
    " with the job's dump (--xla_dump_to) to see how much of the profile fits",
)


def way_in_run(
    run: RunDirectory,
    found: Comparison | None = None,
    shown: Shown | None = None,
    *,
    is_judged: bool = False,
) -> Commands:
    """Return what follows in a run directory. Every answer on it uses the same facts, and so leads
    to the same step. This reads and compares step times and prices a step, so an answer calls it
    once.

    Args:
        found: the comparison of its stages, if the caller has it.
        shown: the trials of its program's edits, if the caller has them.
        is_judged: whether the caller knows that all stages are complete and XLA uses the profile.
    """
    # answers outside a run directory do not need these imports
    from pgle.report.next_in_run import way_of_run
    from pgle.run.known_run import known_of_run

    return way_of_run(run, known_of_run(run, found, shown, is_judged=is_judged))


def after_conversion(profile: AnyPath, hlo: Sequence[AnyPath]) -> Commands:
    """Check the profile against the module; if no HLO is known, show the profile."""
    if not hlo:
        return (Next.of("show", profile),)
    dumps = chain.from_iterable(("--hlo", path) for path in hlo)
    return (Next.of("verify", profile, *dumps),)


def after_verification(profile: AnyPath, hlo: Sequence[AnyPath]) -> Commands:
    """Run with the verified profile; outside a run directory predict its effect first."""
    run = run_of_profile(profile)
    if run is not None:
        return way_in_run(run)
    return (Next.of("predict", hlo[0], "--profile", profile),)


def in_run_of(profile: AnyPath, commands: Commands) -> Commands:
    """Return the same commands. A command that profiles a program uses the run directory recorded
    in a profile.
    """
    run = run_of_profile(profile)
    if run is None:
        return commands
    from pgle.run.inputs.next_command import launch_of

    again = launch_of(run).line("profile", run.path, "--force")

    def filled(item: Next | Sentence) -> Next | Sentence:
        is_profile = isinstance(item, Next) and item.name == again.name
        return again if is_profile else item

    return tuple(map(filled, commands))


def after_summary(
    profile: AnyPath, modules: Mapping[str, Collection[str]] | None = None
) -> Commands:
    """Check a profile against its modules.

    Args:
        profile: the profile that was shown.
        modules: fingerprints of its modules, by name. Their dump is searched in the profile's
            folder and run.
    """
    from pgle.run.inputs.folder import dump_near

    run = run_of_profile(profile)
    dump = None
    if run is not None:
        dump = run.dump_to_cover
    elif isinstance(profile, Path) and modules:
        dump = dump_near(profile.parent, modules)
    return (NO_DUMP,) if dump is None else after_conversion(profile, [Path(dump)])


def after_confirmation(log: AnyPath, found: LogVerdict) -> Commands:
    """Ask whether the profile makes the step faster. If XLA did not use it, check it first. In a
    run directory return its next move.
    """
    run = run_of_log(log)
    if run is not None:
        return way_in_run(run)
    if found.main.verdict != "used":
        unknown = Sentence.todo("see what the log says of the profile")
        return (found.main.remedy or unknown,)
    words = "XLA used the profile; compare the step times of both jobs"
    return (Sentence.todo(words),)


def after_ranks(paths: Sequence[AnyPath], found: Ranks) -> Commands:
    """Fix what makes ranks disagree, or what hides it. If the ranks of a run directory agree,
    return its next move.
    """
    again = Next.of("ranks", *paths)
    if found.differences:
        same = "give all ranks the same jaxlib, flags, profile and autotuning results"
        return (Sentence.todo(f"{same}, run the job again, then ", again),)
    if found.unknown:
        dumps = "start every rank with --xla_dump_to in a folder of its own, then "
        return (Sentence.todo(dumps, again),)
    if found.stuck:
        return (Sentence.todo("look for a rank that ended or is slow"),)
    run = RunDirectory(Path(str(paths[0])))
    if run.is_recorded:
        return way_in_run(run)
    return (Sentence.done("the order of collectives cannot make this job hang"),)


def after_comparison(
    found: Comparison, checks: Sequence[LimitCheck] = (), more: Sequence[object] = ()
) -> Commands:
    """Follow the verdict: keep a faster setting, analyze a slower one, run more if undecided.

    Args:
        found: the comparison.
        checks: its limits; an undecided limit asks for more runs.
        more: the words after ``pgle compare`` that run both sides again, if known.
    """
    from pgle.run.compare import compared_run, run_of_pairs
    from pgle.steps.compare import explanation

    of_stages = compared_run(found)
    run = of_stages or run_of_pairs(found)
    if run is not None:
        return way_in_run(run, found if of_stages else None)
    if found.verdict == "undecided" or any(check.ok is None for check in checks):
        words = more or ("--abba", 3, "--", "COMMAND_A", "--vs", "COMMAND_B")
        return (Next.of("compare", *words),)
    if found.verdict == "slower":
        return (explanation(found),)
    if found.verdict == "same":
        return (Sentence.done("both sides take the same time"),)
    return (Sentence.todo(f"keep {found.new.label}: it is faster"),)


def after_entry(path: Path) -> Commands:
    """Return the option that makes a comparison take the launch spread from a history."""
    option = Next(("--history", str(path)))
    return (Sentence.todo("give it to a comparison with ", option),)


def after_lint(flags: Sequence[str], file: str | None, *, clean: bool) -> Commands:
    """Rehearse with correct flags. For wrong flags the answer already has remedies."""
    if not clean:
        return ()
    given = tuple(f"--flag={flag}" for flag in flags)
    if file:
        given = ("--flags-file", file)
    command = Next.of("rehearse", *given)
    return (Sentence.done("no error; what they do is shown by ", command),)


def run_of_log(log: AnyPath) -> RunDirectory | None:
    """Return the run directory of a log, or of a folder with one; None without one."""
    stage = stage_of(log) or stage_of(log.parent)
    return None if stage is None else stage.run


def run_of_profile(profile: AnyPath) -> RunDirectory | None:
    """Return the run directory of a profile; None if it does not belong to one."""
    path = Path(str(profile))
    run = RunDirectory(path.parent)
    is_of_run = run.is_recorded and path.stem == run.profile.stem
    return run if is_of_run else None
