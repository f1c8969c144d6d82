"""The folder of runs in ABBA order: its plan, and the paths of both sides' step times."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from pgle.errors import UserError
from pgle.files import read_bytes
from pgle.run.directory.directory import COMPARED

PLAN = "abba.json"
PAIRS = "abba"  # folder in a run directory with pairs of runs of its program
OWN = ("", "")  # step times are in a run's folder itself, not in folders of stages
IN_ROUND = 4  # runs in a round: A, B, B and A
RUN = re.compile(r"\d\d+-([AB])(?:\.\d+)?")  # folder of a run


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The planned runs, as `PLAN` stores them in the folder."""

    schema: Literal["pgle.abba/1"] = "pgle.abba/1"
    base: tuple[str, ...] = ()  # command A, masked
    new: tuple[str, ...] = ()  # command B
    # folders in a run's folder that hold the step times of A and B; empty: the run's folder itself
    inside: tuple[str, str]
    # what decides the runs: SHA-256 of the files, by the word that names them, and XLA's flags
    inputs: dict[str, str] = {}
    # folders of the runs so far, in order; run 2 i and run 2 i + 1 are a pair
    finished: tuple[str, ...]

    def __post_init__(self) -> None:
        runs = [match for match in map(RUN.fullmatch, self.finished) if match]
        letters = [match[1] for match in runs]
        is_known = len(runs) == len(self.finished) and self.inside in (OWN, COMPARED)
        is_paired = all(
            {first, second} == {"A", "B"}
            for first, second in zip(letters[::2], letters[1::2], strict=False)
        )
        if not is_known or not is_paired:
            raise ValueError("no plan of pgle")


def abba_words(
    rounds: int, profile: Path | None, folder: Path, words: Sequence[str]
) -> tuple[object, ...]:
    """The words after ``pgle compare`` that run a program, or two, in A-B-B-A order."""
    return (
        "--abba",
        rounds,
        *(("--profile", profile) if profile else ()),
        "--run-dir",
        folder,
        "--",
        *words,
    )


def finished_sides(folder: Path) -> tuple[list[str], list[str]]:
    """Return the folders with step times of A and of B, whole pairs only. The runs may be
    unfinished.
    """
    plan = read_plan(folder)
    names = iter(plan.finished)
    pairs = [
        sorted(pair, key=lambda name: name.split("-")[1])
        for pair in zip(names, names, strict=False)
    ]
    if not pairs:
        raise UserError(
            "holds no finished pair of runs",
            where=folder,
            remedy="run pgle compare --abba again",
        )
    first, second = plan.inside
    return (
        [str(folder / one / first) for one, _ in pairs],
        [str(folder / other / second) for _, other in pairs],
    )


def are_whole(folder: Path) -> bool:
    """Whether an ABBA folder has only whole rounds, and no run was begun after them."""
    if not (folder / PLAN).is_file():
        return False
    finished = len(read_plan(folder).finished)
    runs = (item.name for item in folder.iterdir() if RUN.fullmatch(item.name))
    begun = max((int(name.partition("-")[0]) for name in runs), default=0)
    return finished > 0 and finished % IN_ROUND == 0 and begun <= finished


def read_plan(folder: Path) -> Plan:
    """Read the plan of a folder."""
    try:
        return msgspec.convert(json.loads(read_bytes(folder / PLAN)), Plan)
    except (ValueError, RecursionError):
        raise UserError(
            "is not a plan of pgle compare --abba",
            where=folder / PLAN,
            remedy="choose another --run-dir",
        ) from None
