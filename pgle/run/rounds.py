"""Run two commands in ABBA order, so that drift (clocks, neighbours, storage) affects both
equally.
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

    # the words of the command, or of both commands with ``--vs`` between them
    words: tuple[str, ...]
    count: int  # rounds; each has two runs per side
    profile: Path | None  # cost profile of side B
    folder: Path  # folder for the runs
    pattern: str | None  # regular expression for step times in console logs


def run_rounds(
    asked: Rounds, tell: Callable[[str], None]
) -> tuple[list[str], list[str]]:
    """Run what has not run yet, in rounds of ABBA and BAAB. Return the folders with the step times
    of A and of B, in pairs.

    ``{run}`` in a command and PGLE_RUN_DIR in its environment name the folder of the run. The
    command's output is kept there in ``output.log``. The same request continues after an
    interruption. If step times cannot be read, the rounds stop, so that no hours are wasted.
    """
    commands, inside = _commands(asked)
    base, new = map(kept_argv, commands)
    plan = Plan(
        base=base, new=new, inside=inside, inputs=_inputs(commands), finished=()
    )
    letters = ("ABBABAAB" * asked.count)[: 4 * asked.count]
    with RunDirectory(asked.folder).held():
        finished = _finished(asked.folder, plan)[: len(letters)]
        for number, letter in enumerate(letters[len(finished) :], len(finished) + 1):
            # left by a run that failed
            folder = free(asked.folder / f"{number:02d}-{letter}", ".")
            tell(f"run {number} of {len(letters)} ({letter}): {folder}")
            side = "AB".index(letter)
            _run(commands[side], folder, f"run {number} ({letter})")
            read_runs(str(folder / inside[side]), pattern=asked.pattern)
            finished.append(folder.name)
            plan = msgspec.structs.replace(plan, finished=tuple(finished))
            text = json.dumps(msgspec.to_builtins(plan), indent=2) + "\n"
            write_files({asked.folder / PLAN: text}, force=True)
        return finished_sides(asked.folder)


def _commands(
    asked: Rounds,
) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], tuple[str, str]]:
    """Return the two commands of ``A… --vs B…``, and `Plan.inside`. With a profile there is one
    command, run without the profile (A) and with it (B).

    The profiled command runs by `pgle perf`, which sets the flags and confirms that XLA uses the
    profile.
    """
    words, profile = asked.words, asked.profile
    if profile is None:
        at = words.index("--vs") if words.count("--vs") == 1 else 0
        base, new = words[:at], words[at + 1 :]
        if not base or not new:
            remedy = (
                "pgle compare --abba 3 -- COMMAND_A --vs COMMAND_B, or --profile PROFILE "
                "-- COMMAND"
            )
            raise UserError("needs two commands", where="--abba", remedy=remedy)
        return (base, new), OWN
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
    """Return the part of the commands and of XLA_FLAGS that `Plan.inputs` records."""
    words = sorted(chain.from_iterable(map(named_files, commands)))
    found = {
        word: sha256(read_bytes(Path(word)))
        for word in words
        if word.endswith((*PROGRAM_FILES, ".pbtxt", ".pb"))
    }
    return {**found, "XLA_FLAGS": kept_flags(os.environ.get("XLA_FLAGS", ""))}


def _finished(folder: Path, plan: Plan) -> list[str]:
    """Return the finished runs of this plan in a folder."""
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
    """Run a command. Raise `WorkloadError` with its exit code if it failed. Finished runs are
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
