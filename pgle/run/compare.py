"""`pgle compare` as a function: paths or commands in, the comparison and its checks out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pgle.errors import UserError
from pgle.run.abba import PLAN, RUN, Plan, plan_with_profile, run_abba, sides, split_commands
from pgle.run.directory.directory import COMPARED
from pgle.run.inputs.step_times import read_runs, read_side
from pgle.steps.compare import Check, Comparison, Limits, compare, gate
from pgle.steps.estimate import Assumptions
from pgle.steps.history import make_trends, measured_spread
from pgle.steps.series import Rules, check_runs


@dataclass(frozen=True)
class CompareRequest:
    """What to compare."""

    words: tuple[str, ...]  # BASE and NEW; one folder that holds both; or, with `rounds`, the command or commands
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


def run_compare(
    request: CompareRequest, tell: Callable[[str], None] = lambda line: None
) -> tuple[Comparison, tuple[Check, ...]]:
    """Read (or first run) both sides, compare, and hold the result against the limits.

    Args:
        request: what to compare.
        tell: called with one line before each ABBA run.

    Raises:
        UserError: bad usage or input.
        WorkloadError: an ABBA command failed.
    """
    base, new, paired = _paths(request, tell)
    assumptions = replace(request.assumptions, paired=paired or request.assumptions.paired)
    labels = [label or fallback for label, fallback in zip(request.labels, _labels(base, new), strict=True)]
    one, two = (
        read_side(label, paths, rules=request.rules, pattern=request.pattern)
        for label, paths in zip(labels, (base, new), strict=True)
    )
    if request.history is not None and assumptions.launch_spread is None:
        from pgle.run.history import read

        check_runs((*one.runs, *two.runs))
        trends = make_trends(read(request.history)[0])
        spread = measured_spread(trends, one.median_s, simulated=one.simulated, source=str(request.history))
        assumptions = replace(assumptions, launch_spread=spread)
    found = compare(one, two, assumptions)
    return found, gate(found, request.limits)


def _paths(request: CompareRequest, tell: Callable[[str], None]) -> tuple[list[str], list[str], bool]:
    """The paths of both sides and whether they come in pairs."""
    words = request.words
    if request.rounds:
        return *run_abba(_plan(request), tell, partial(read_runs, pattern=request.pattern)), True
    if len(words) == 1 and not request.base and not request.new:
        folder = Path(words[0])
        if (folder / PLAN).is_file():
            return *sides(folder), True
        if all((folder / stage).is_dir() for stage in COMPARED):
            return [str(folder / COMPARED[0])], [str(folder / COMPARED[1])], False
    if len(words) not in (0, 2):
        what = f"two sides are needed, {len(words)} given"
        raise UserError(what, remedy="pgle compare BASE NEW; further runs of a side with --base and --new")
    base, new = [*words[:1], *request.base], [*words[1:], *request.new]
    if not base or not new:
        raise UserError("two sides are needed", remedy="pgle compare BASE NEW, or --base PATH … --new PATH …")
    return base, new, False


def _plan(request: CompareRequest) -> Plan:
    if request.profile is not None:
        if not request.words:
            raise UserError("needs a command", where="--abba", remedy="pgle compare --abba 3 --profile P -- COMMAND")
        if not request.profile.is_file():
            raise UserError("no such file", where=request.profile, remedy="make it with pgle convert")
        return plan_with_profile(request.rounds, request.words, request.profile, request.run_dir)
    return Plan(request.rounds, *split_commands(request.words), request.run_dir)


def _labels(base: list[str], new: list[str]) -> tuple[str, str]:
    """Short names of the sides: the last part of the path in which they differ."""
    for one, two in zip(reversed(Path(base[0]).parts), reversed(Path(new[0]).parts), strict=False):
        if one != two and len(one) <= 24 and len(two) <= 24:
            letters = [RUN.fullmatch(name) for name in (one, two)]
            return ("A", "B") if all(letters) else (one, two)
    return "base", "new"
