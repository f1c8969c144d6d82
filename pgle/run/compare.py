"""`pgle compare` as a function: compare two sides, given by paths or commands, and check the
limits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from pgle.account.value import Basis, TimedSteps
from pgle.errors import UserError
from pgle.requests.steps import CompareRuns, Comparing
from pgle.run.directory.directory import COMPARED, RunDirectory
from pgle.run.directory.manifest import (
    COMPARE,
    StageRecord,
    extend_manifest,
    is_compared,
    now,
    read_manifest,
)
from pgle.run.directory.rounds import PLAN, RUN, finished_sides
from pgle.run.history import read_history
from pgle.run.inputs.step_times import read_side
from pgle.steps.compare import Comparison, LimitCheck, Limits, compare, gate, stage_path
from pgle.steps.estimate import (
    Assumptions,
    given_spread,
    make_trends,
    measured_spread,
)
from pgle.steps.series import Rules, Side, check_runs


@dataclass(frozen=True)
class CompareRequest:
    """The inputs and settings of a comparison."""

    # BASE and NEW; one folder that holds both; or, with `rounds`, the command or commands
    words: tuple[str, ...]
    base: tuple[str, ...] = ()  # further runs of BASE
    new: tuple[str, ...] = ()  # further runs of NEW
    rules: Rules = field(default_factory=Rules)  # which steps to leave out
    # assumptions of the statistics
    assumptions: Assumptions = field(default_factory=Assumptions)
    limits: Limits = field(default_factory=Limits)  # limits that the change must keep
    pattern: str | None = None  # regular expression for console logs
    rounds: int = 0  # rounds of ABBA to run; 0: run nothing, only read
    profile: Path | None = None  # cost profile of side B, with `rounds`
    run_dir: Path = Path("runs/abba")  # folder of the ABBA runs
    labels: tuple[str, str] = ("", "")  # names of the sides; empty: from the paths
    # history file whose entries show how much launches differ
    history: Path | None = None


def request_of(
    asked: Comparing,
    words: tuple[str, ...] = (),
    base: tuple[str, ...] = (),
    new: tuple[str, ...] = (),
) -> CompareRequest:
    """Return a `CompareRequest` with the given paths and the settings of `asked`."""
    if asked.fail_undecided and asked.fail_slower is None:
        raise UserError(
            "needs a bound", where="--fail-undecided", remedy="add --fail-slower 2%"
        )
    first, last = asked.window or (None, None)
    return CompareRequest(
        words,
        base,
        new,
        rules=Rules(asked.warmup, first, last),
        assumptions=Assumptions(
            asked.confidence,
            asked.same_within,
            paired=asked.paired,
            launch_spread=given_spread(asked.launch_spread),
        ),
        limits=Limits(
            fail_slower=asked.fail_slower,
            fail_undecided=asked.fail_undecided,
            require_faster=asked.require_faster,
            max_loss_change=asked.max_loss_change,
        ),
        pattern=asked.pattern,
        labels=asked.labels,
        history=asked.history,
    )


def request_of_command(asked: CompareRuns) -> CompareRequest:
    """Return the request that a command line makes."""
    return replace(
        request_of(asked, asked.words, asked.base, asked.new),
        rounds=asked.rounds,
        profile=asked.profile,
        run_dir=asked.run_dir,
    )


def run_compare(
    request: CompareRequest, tell: Callable[[str], None] = lambda line: None
) -> tuple[Comparison, tuple[LimitCheck, ...]]:
    """Read both sides (run them first with `rounds`), compare them, and check the limits.

    Args:
        request: the sides and the settings.
        tell: called with one line before each ABBA run.

    Raises:
        WorkloadError: the command of a run failed.
    """
    base, new, paired = _paths(request, tell)
    assumptions = replace(
        request.assumptions, paired=paired or request.assumptions.paired
    )
    labels = [
        label or fallback
        for label, fallback in zip(request.labels, _labels(base, new), strict=True)
    ]
    one, two = (
        read_side(label, paths, rules=request.rules, pattern=request.pattern)
        for label, paths in zip(labels, (base, new), strict=True)
    )
    return judged(one, two, replace(request, assumptions=assumptions))


def judged(
    one: Side, two: Side, request: CompareRequest
) -> tuple[Comparison, tuple[LimitCheck, ...]]:
    """Compare two sides, and check the result against the limits."""
    assumptions = request.assumptions
    if request.history is not None and assumptions.launch_spread is None:
        check_runs((*one.runs, *two.runs))
        trends = make_trends(read_history(request.history)[0])
        spread = measured_spread(
            trends, one.median_s, simulated=one.simulated, source=str(request.history)
        )
        assumptions = replace(assumptions, launch_spread=spread)
    found = compare(one, two, assumptions)
    return found, gate(found, request.limits)


def compared_in(folder: Path) -> Comparison | None:
    """Return the comparison of both sides in a folder; None if the folder has too few steps."""
    try:
        return run_compare(CompareRequest((str(folder),)))[0]
    except UserError:  # `pgle compare` reports the reason
        return None


def timed_of(found: Comparison) -> TimedSteps:
    """Return the step times of a comparison in the form that an account needs, in microseconds."""
    low, high = found.ci
    return TimedSteps(
        base_us=found.base.median_s * 1e6,
        step_us=found.new.median_s * 1e6,
        change=found.change,
        least=low - 1,
        most=high - 1,
        verdict=found.verdict,
        basis=Basis.SIMULATED if found.simulated else Basis.MEASURED,
    )


def compared_run(found: Comparison) -> RunDirectory | None:
    """Return the run directory whose baseline and performance run were compared; None for other
    runs.
    """
    runs = (*found.base.runs, *found.new.runs)
    stages = [Path(stage_path(one.series.source)) for one in runs]
    run = RunDirectory(stages[0].parent)
    compared = [run.stage(name).path for name in COMPARED]
    return run if run.is_recorded and stages == compared else None


def run_of_pairs(found: Comparison) -> RunDirectory | None:
    """Return the run directory in which the pairs of runs were made; None for other runs."""
    sides = (*found.base.runs, *found.new.runs)
    stages = [Path(stage_path(one.series.source)) for one in sides]
    pairs = {stage.parent.parent for stage in stages}
    folder = pairs.pop()
    run = RunDirectory(folder.parent)
    is_one = not pairs and run.is_recorded and (folder / PLAN).is_file()
    return run if is_one else None


def record_comparison(run: RunDirectory, found: Comparison) -> None:
    """Record the comparison in the run's manifest. Skip the record if the manifest cannot be
    written.
    """
    facts = {"verdict": found.verdict.value, "change": found.change}
    with suppress(UserError, OSError):
        if not is_compared(read_manifest(run.path)):
            extend_manifest(
                run.path,
                StageRecord(
                    COMPARE, started=now(), ended=now(), exit_code=0, facts=facts
                ),
            )


def _paths(
    request: CompareRequest, tell: Callable[[str], None]
) -> tuple[list[str], list[str], bool]:
    """The paths of both sides and whether they come in pairs."""
    words = request.words
    if request.rounds:
        return *_run(request, tell), True
    if len(words) == 1 and not request.base and not request.new:
        folder = Path(words[0])
        if (folder / PLAN).is_file():
            return *finished_sides(folder), True
        if all((folder / stage).is_dir() for stage in COMPARED):
            one, two = (str(folder / stage) for stage in COMPARED)
            return [one], [two], False
    if len(words) not in (0, 2):
        raise UserError(
            f"two sides are needed, {len(words)} given",
            remedy="pgle compare BASE NEW; further runs of a side with --base and --new",
        )
    base = [*words[:1], *request.base]
    new = [*words[1:], *request.new]
    if not base or not new:
        raise UserError(
            "two sides are needed",
            remedy="pgle compare BASE NEW, or --base PATH … --new PATH …",
        )
    return base, new, False


def _run(
    request: CompareRequest, tell: Callable[[str], None]
) -> tuple[list[str], list[str]]:
    """Run both sides in rounds of ABBA, and return their paths."""
    # imported late: a comparison that only reads needs no code that starts programs
    from pgle.run.rounds import Rounds, run_rounds

    asked = Rounds(
        request.words,
        request.rounds,
        profile=request.profile,
        folder=request.run_dir,
        pattern=request.pattern,
    )
    return run_rounds(asked, tell)


def _labels(base: list[str], new: list[str]) -> tuple[str, str]:
    """Return short names of the sides: the last parts of the paths that differ."""
    of_base = reversed(Path(base[0]).parts)
    of_new = reversed(Path(new[0]).parts)
    for one, two in zip(of_base, of_new, strict=False):
        if one != two and len(one) <= 24 and len(two) <= 24:
            letters = [RUN.fullmatch(name) for name in (one, two)]
            return ("A", "B") if all(letters) else (one, two)
    return "base", "new"
