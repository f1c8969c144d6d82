"""`pgle compare` as a function: paths or commands in, the comparison and its checks out.

With ``--abba`` it runs both sides in ABBA order, so that drift (clocks, neighbours, storage) falls on both alike.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from pgle.errors import UserError, WorkloadError
from pgle.files import read_bytes, sha256, write_files
from pgle.masking import kept_argv, kept_flags
from pgle.run.directory.directory import COMPARED, PROGRAM_FILES, RunDirectory, free
from pgle.run.history import make_trends, measured_spread
from pgle.run.inputs.step_times import read_runs, read_side
from pgle.run.process.process import last_line, launch
from pgle.steps.compare import Comparison, LimitCheck, Limits, compare, gate
from pgle.steps.estimate import Assumptions
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
) -> tuple[Comparison, tuple[LimitCheck, ...]]:
    """Read (or first run) both sides, compare, and hold the result against the limits.

    Args:
        request: what to compare.
        tell: called with one line before each ABBA run.

    Raises:
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
    """The two commands of ``A… --vs B…``; with a profile one, without (A) and with it (B).

    That runs by `pgle perf`, which sets the flags and confirms the use.
    """
    words, profile = request.words, request.profile
    if profile is None:
        where = [place for place, word in enumerate(words) if word == "--vs"]
        if len(where) != 1 or where[0] in (0, len(words) - 1):
            remedy = "pgle compare --abba 3 -- COMMAND_A --vs COMMAND_B, or --profile PROFILE -- COMMAND"
            raise UserError("needs two commands", where="--abba", remedy=remedy)
        return Plan(request.rounds, words[: where[0]], words[where[0] + 1 :], request.run_dir)
    if not words:
        raise UserError("needs a command", where="--abba", remedy="pgle compare --abba 3 --profile P -- COMMAND")
    if not profile.is_file():
        raise UserError("no such file", where=profile, remedy="make it with pgle convert")
    perf = (sys.executable, "-m", "pgle", "perf", "--run-dir", "{run}")
    base, new = (*perf, "--baseline", "--", *words), (*perf, "--profile", str(profile.resolve()), "--", *words)
    return Plan(request.rounds, base, new, request.run_dir, COMPARED)


def _labels(base: list[str], new: list[str]) -> tuple[str, str]:
    """Short names of the sides: the last part of the path in which they differ."""
    for one, two in zip(reversed(Path(base[0]).parts), reversed(Path(new[0]).parts), strict=False):
        if one != two and len(one) <= 24 and len(two) <= 24:
            letters = [RUN.fullmatch(name) for name in (one, two)]
            return ("A", "B") if all(letters) else (one, two)
    return "base", "new"


PLAN = "abba.json"
OWN = ("", "")  # a run's folder itself has step times; else the folders of its stages
RUN = re.compile(r"\d\d+-([AB])(?:\.\d+)?")  # folder of a run
Letter = Literal["A", "B"]


@dataclass(frozen=True)
class Plan:
    """What to run."""

    rounds: int  # rounds of four runs, ABBA and BAAB in turn
    base: tuple[str, ...]  # command A
    new: tuple[str, ...]  # command B
    folder: Path  # where every run gets a folder of its own, and the plan is kept
    # where in a run's folder step times lie, for A and B; empty: in the folder itself
    inside: tuple[str, str] = OWN

    def order(self) -> tuple[Letter, ...]:
        """The runs in order; run 2 i and run 2 i + 1 are a pair."""
        return tuple(letter for turn in range(self.rounds) for letter in ("ABBA", "BAAB")[turn % 2])  # type: ignore[misc]

    def inputs(self) -> dict[str, str]:
        """SHA-256 of the files that decide what runs, by the word that names them, and XLA's flags."""
        named = {
            word: Path(word) for word in (*self.base, *self.new) if word.endswith((*PROGRAM_FILES, ".pbtxt", ".pb"))
        }
        found = {word: sha256(read_bytes(path)) for word, path in sorted(named.items()) if path.is_file()}
        return {**found, "XLA_FLAGS": kept_flags(os.environ.get("XLA_FLAGS", ""))}


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A plan as `PLAN` in its folder keeps it, with what has been run of it."""

    schema: Literal["pgle.abba/1"] = "pgle.abba/1"
    base: tuple[str, ...] = ()  # masked
    new: tuple[str, ...] = ()
    inside: tuple[str, str]
    inputs: dict[str, str] = {}
    finished: tuple[str, ...]  # folders of runs, in order

    def __post_init__(self) -> None:
        letters = "".join(match[1] if (match := RUN.fullmatch(name)) else "?" for name in self.finished)
        whole = all(set(letters[i : i + 2]) == {"A", "B"} for i in range(0, len(letters) - 1, 2))
        if "?" in letters or not whole or self.inside not in (OWN, COMPARED):
            raise ValueError("no plan of pgle")


def run_abba(
    plan: Plan, tell: Callable[[str], None], on_end: Callable[[str], object] = lambda path: None
) -> tuple[list[str], list[str]]:
    """Run what has not been run yet; the folders with the step times of A and of B, in pairs.

    ``{run}`` in a command is the run's folder, as is PGLE_RUN_DIR in its environment. What it prints is kept in
    ``output.log`` there. The same plan continues where it stopped.

    Args:
        plan: what to run.
        tell: called with one line before each run.
        on_end: given the path of a run's step times as it ends; what it raises ends all, so that no hours go by for
            runs that cannot be compared.

    Raises:
        WorkloadError: a command failed; its exit code is passed on, finished runs are kept.
    """
    with RunDirectory(plan.folder).held():
        finished, inputs = _finished(plan), plan.inputs()
        order = plan.order()
        for number, letter in enumerate(order):
            if number < len(finished):
                continue
            folder = free(plan.folder / f"{number + 1:02d}-{letter}", ".")  # a run that failed may have left one
            tell(f"run {number + 1} of {len(order)} ({letter}): {folder}")
            _run(plan.base if letter == "A" else plan.new, folder, f"run {number + 1} ({letter})")
            on_end(str(folder / plan.inside[letter == "B"]))
            finished.append(folder.name)
            kept = _Kept(
                base=kept_argv(plan.base), new=kept_argv(plan.new), inside=plan.inside, inputs=inputs,
                finished=tuple(finished),
            )  # fmt: skip
            write_files({plan.folder / PLAN: json.dumps(msgspec.to_builtins(kept), indent=2) + "\n"}, force=True)
        return sides(plan.folder)


def sides(folder: Path) -> tuple[list[str], list[str]]:
    """The folders with step times of a finished or unfinished ABBA folder: A's and B's, whole pairs only."""
    kept = _load(folder)
    names, inside = kept.finished, kept.inside
    pairs = [sorted(names[i : i + 2], key=lambda name: name.split("-")[1]) for i in range(0, len(names) - 1, 2)]
    found = tuple([str(folder / pair[side] / inside[side]) for pair in pairs] for side in (0, 1))
    if not found[0]:
        raise UserError("holds no finished pair of runs", where=folder, remedy="run pgle compare --abba again")
    return found[0], found[1]


def _load(folder: Path) -> _Kept:
    try:
        return msgspec.convert(json.loads(read_bytes(folder / PLAN)), _Kept)
    except (ValueError, RecursionError):
        remedy = "choose another --run-dir"
        raise UserError("is not a plan of pgle compare --abba", where=folder / PLAN, remedy=remedy) from None


def _finished(plan: Plan) -> list[str]:
    if not (plan.folder / PLAN).exists():
        return []
    kept, remedy = _load(plan.folder), "choose another --run-dir"
    if (kept.base, kept.new) != (kept_argv(plan.base), kept_argv(plan.new)):
        raise UserError("holds runs of other commands", where=plan.folder, remedy=remedy)
    now = plan.inputs()
    for name in [name for name in {**now, **kept.inputs} if kept.inputs and kept.inputs.get(name) != now.get(name)]:
        what = f"holds runs of another state of the program: {name} has changed since"
        raise UserError(what, where=plan.folder, remedy=remedy)
    return list(kept.finished)[: 4 * plan.rounds]


def _run(command: Sequence[str], folder: Path, name: str) -> None:
    words = [word.replace("{run}", str(folder)) for word in command]
    folder.mkdir(parents=True)
    log = folder / "output.log"
    code = launch(words, {**os.environ, "PGLE_RUN_DIR": str(folder)}, log, is_shown=False)
    if code:
        reason = f": {last[:200]}" if (last := last_line(log)) else ""
        what = f"{name} ended with code {code}{reason}; see {log}"
        raise WorkloadError(code, f"{what}; mend it, then the same command continues with this run")
