"""`pgle compare` as a function: paths or commands in, the comparison and its checks out."""

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
    """What to compare."""

    # BASE and NEW; one folder that holds both; or, with `rounds`, the command or commands
    words: tuple[str, ...]
    base: tuple[str, ...] = ()  # more runs of BASE
    new: tuple[str, ...] = ()  # more runs of NEW
    rules: Rules = field(default_factory=Rules)  # which steps to leave out
    assumptions: Assumptions = field(default_factory=Assumptions)  # of the statistics
    limits: Limits = field(default_factory=Limits)  # of the gate
    pattern: str | None = None  # regular expression for console logs
    rounds: int = 0  # rounds of ABBA; 0: only read
    profile: Path | None = None  # cost profile of side B, with `rounds`
    run_dir: Path = Path("runs/abba")  # folder of the ABBA runs
    labels: tuple[str, str] = ("", "")  # names of the sides; empty: from the paths
    history: Path | None = None  # file of a history that shows how much launches differ


def request_of(
    asked: Comparing,
    words: tuple[str, ...] = (),
    base: tuple[str, ...] = (),
    new: tuple[str, ...] = (),
) -> CompareRequest:
    """What to compare, by what was asked of two sides: as in `CompareRequest`."""
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
    """What to compare, by a command line."""
    return replace(
        request_of(asked, asked.words, asked.base, asked.new),
        rounds=asked.rounds,
        profile=asked.profile,
        run_dir=asked.run_dir,
    )


def run_compare(
    request: CompareRequest, tell: Callable[[str], None] = lambda line: None
) -> tuple[Comparison, tuple[LimitCheck, ...]]:
    """Read (or first run) both sides, compare, and hold the result against the limits.

    `tell` gets one line before each ABBA run. Raises `WorkloadError` if the command of one failed.
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
    """Compare two sides, and hold the result against the limits."""
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
    """The comparison of both sides in a folder; None if there are too few steps for one."""
    try:
        return run_compare(CompareRequest((str(folder),)))[0]
    except UserError:  # `pgle compare` says why
        return None


def timed_of(found: Comparison) -> TimedSteps:
    """A comparison of baseline and performance run, as an account has it."""
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
    """The run directory whose baseline and performance run were compared; None if these were other
    runs.
    """
    runs = (*found.base.runs, *found.new.runs)
    stages = [Path(stage_path(one.series.source)) for one in runs]
    run = RunDirectory(stages[0].parent)
    compared = [run.stage(name).path for name in COMPARED]
    return run if run.is_recorded and stages == compared else None


def run_of_pairs(found: Comparison) -> RunDirectory | None:
    """The run directory that pairs of runs were made for; None if they were for none."""
    sides = (*found.base.runs, *found.new.runs)
    stages = [Path(stage_path(one.series.source)) for one in sides]
    pairs = {stage.parent.parent for stage in stages}
    folder = pairs.pop()
    run = RunDirectory(folder.parent)
    is_one = not pairs and run.is_recorded and (folder / PLAN).is_file()
    return run if is_one else None


def record_comparison(run: RunDirectory, found: Comparison) -> None:
    """Keep in the manifest that the step times were compared; where it cannot be written, they were
    none the less.
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
            return [str(folder / COMPARED[0])], [str(folder / COMPARED[1])], False
    if len(words) not in (0, 2):
        raise UserError(
            f"two sides are needed, {len(words)} given",
            remedy="pgle compare BASE NEW; further runs of a side with --base and --new",
        )
    base, new = [*words[:1], *request.base], [*words[1:], *request.new]
    if not base or not new:
        raise UserError(
            "two sides are needed",
            remedy="pgle compare BASE NEW, or --base PATH … --new PATH …",
        )
    return base, new, False


def _run(
    request: CompareRequest, tell: Callable[[str], None]
) -> tuple[list[str], list[str]]:
    """Run both sides first."""
    # a comparison that only reads starts no program and loads nothing that does
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
    """Short names of the sides: the last part of the path in which they differ."""
    for one, two in zip(
        reversed(Path(base[0]).parts), reversed(Path(new[0]).parts), strict=False
    ):
        if one != two and len(one) <= 24 and len(two) <= 24:
            letters = [RUN.fullmatch(name) for name in (one, two)]
            return ("A", "B") if all(letters) else (one, two)
    return "base", "new"
