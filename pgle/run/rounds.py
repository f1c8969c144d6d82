"""Runs of two commands in ABBA order, so that drift (clocks, neighbours, storage) falls on both
alike.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec

from pgle.errors import UserError, WorkloadError
from pgle.files import read_bytes, sha256, write_files
from pgle.masking import kept_argv
from pgle.run.directory.directory import COMPARED, PROGRAM_FILES, RunDirectory, free
from pgle.run.directory.rounds import OWN, PLAN, Plan, finished_sides, read_plan
from pgle.run.inputs.step_times import read_runs
from pgle.run.process.process import last_line, launch, named_files
from pgle.xla.flags.text import kept_flags


@dataclass(frozen=True)
class Rounds:
    """What to run, and where."""

    words: tuple[str, ...]  # of the command or, with ``--vs`` between them, of both
    count: int  # rounds, of two runs of each side
    profile: Path | None  # cost profile of side B
    folder: Path  # of the runs
    pattern: str | None  # regular expression for step times in console logs


def run_rounds(
    asked: Rounds, tell: Callable[[str], None]
) -> tuple[list[str], list[str]]:
    """Run what has not been run yet, in rounds of ABBA and BAAB; the folders with the step times of
    A and B, in pairs.

    ``{run}`` in a command is the run's folder, as is PGLE_RUN_DIR in its environment. What it
    prints is kept in ``output.log`` there. The same request continues where it stopped. Step times
    that cannot be read end all, so that no hours go by for runs that cannot be compared.
    """
    commands, inside = _commands(asked)
    base, new = map(kept_argv, commands)
    plan = Plan(
        base=base, new=new, inside=inside, inputs=_inputs(commands), finished=()
    )
    letters = "".join(("ABBA", "BAAB")[turn % 2] for turn in range(asked.count))
    with RunDirectory(asked.folder).held():
        finished = _finished(asked.folder, plan)[: len(letters)]
        for number, letter in enumerate(letters[len(finished) :], len(finished) + 1):
            folder = free(
                asked.folder / f"{number:02d}-{letter}", "."
            )  # a run that failed may have left one
            tell(f"run {number} of {len(letters)} ({letter}): {folder}")
            _run(commands[letter == "B"], folder, f"run {number} ({letter})")
            read_runs(str(folder / inside[letter == "B"]), pattern=asked.pattern)
            finished.append(folder.name)
            plan = msgspec.structs.replace(plan, finished=tuple(finished))
            text = json.dumps(msgspec.to_builtins(plan), indent=2) + "\n"
            write_files({asked.folder / PLAN: text}, force=True)
        return finished_sides(asked.folder)


def _commands(
    asked: Rounds,
) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], tuple[str, str]]:
    """The two commands of ``A… --vs B…``; with a profile one, without (A) and with it (B); and
    `Plan.inside`.

    That runs by `pgle perf`, which sets the flags and confirms the use.
    """
    words, profile = asked.words, asked.profile
    if profile is None:
        where = [place for place, word in enumerate(words) if word == "--vs"]
        if len(where) != 1 or where[0] in (0, len(words) - 1):
            remedy = (
                "pgle compare --abba 3 -- COMMAND_A --vs COMMAND_B, or --profile PROFILE "
                "-- COMMAND"
            )
            raise UserError("needs two commands", where="--abba", remedy=remedy)
        return (words[: where[0]], words[where[0] + 1 :]), OWN
    if not words:
        raise UserError(
            "needs a command",
            where="--abba",
            remedy="pgle compare --abba 3 --profile P -- COMMAND",
        )
    if not profile.is_file():
        raise UserError(
            "no such file", where=profile, remedy="make it with pgle convert"
        )
    perf = (sys.executable, "-m", "pgle", "perf", "--run-dir", "{run}")
    base = (*perf, "--baseline", "--", *words)
    new = (*perf, "--profile", str(profile.resolve()), "--", *words)
    return (base, new), COMPARED


def _inputs(commands: Iterable[Sequence[str]]) -> dict[str, str]:
    """What `Plan.inputs` keeps of the commands and of XLA_FLAGS."""
    words = sorted(chain.from_iterable(map(named_files, commands)))
    found = {
        word: sha256(read_bytes(Path(word)))
        for word in words
        if word.endswith((*PROGRAM_FILES, ".pbtxt", ".pb"))
    }
    return {**found, "XLA_FLAGS": kept_flags(os.environ.get("XLA_FLAGS", ""))}


def _finished(folder: Path, plan: Plan) -> list[str]:
    """The runs that a folder holds of this plan."""
    if not (folder / PLAN).exists():
        return []
    kept = read_plan(folder)
    remedy = "choose another --run-dir"
    if (kept.base, kept.new) != (plan.base, plan.new):
        raise UserError("holds runs of other commands", where=folder, remedy=remedy)
    before = kept.inputs
    names = {**plan.inputs, **before} if before else {}
    changed = [name for name in names if before.get(name) != plan.inputs.get(name)]
    if changed:
        what = f"holds runs of another state of the program: {changed[0]} has changed since"
        raise UserError(what, where=folder, remedy=remedy)
    return list(kept.finished)


def _run(command: Sequence[str], folder: Path, name: str) -> None:
    """Run a command; raises `WorkloadError` with its exit code if it failed: finished runs are
    kept.
    """
    words = [word.replace("{run}", str(folder)) for word in command]
    folder.mkdir(parents=True)
    log = folder / "output.log"
    code = launch(
        words,
        {**os.environ, "PGLE_RUN_DIR": str(folder)},
        log,
        is_shown=False,
        has_stdin=False,
    )
    if code:
        reason = f": {last[:200]}" if (last := last_line(log)) else ""
        what = f"{name} ended with code {code}{reason}; see {log}"
        raise WorkloadError(
            code, f"{what}; mend it, then the same command continues with this run"
        )
