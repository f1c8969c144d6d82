"""Requests of commands that compare step times, or add them to a history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from attrs import field, frozen

from pgle.checks import Rule
from pgle.requests import shared, words_of
from pgle.requests.given import Paths, local_path, place, texts
from pgle.requests.kinds import (
    FOLDER,
    LOCAL,
    PAIR,
    PATTERN,
    PORTION,
    SIDES,
    SWITCH,
    Number,
    PathOf,
    Word,
)
from pgle.requests.option import Request, argument, option
from pgle.requests.shared import Forced
from pgle.worth import LEAST_GAIN

if TYPE_CHECKING:
    import numpy.typing as npt

Times: TypeAlias = "Paths | npt.ArrayLike | Sequence[npt.ArrayLike]"
"""Paths of runs, an array of step times in seconds, or several such arrays, one for each run."""


@frozen(slots=False, kw_only=True)
class Assumed(Request):
    """How to compare two sides, and the limits that NEW must keep."""

    paired: bool = field(
        default=False,
        metadata=option(
            "--paired",
            "Run i of BASE belongs to run i of NEW.",
            kind=SWITCH,
            meaning="run i of `base` belongs to run i of `new`.",
        ),
    )
    labels: tuple[str, str] = field(
        default=("", ""),
        metadata=option(
            "--label",
            "Names of the sides in the output.",
            metavar="BASE NEW",
            kind=PAIR,
            meaning="names of the sides in the answer; empty: by their paths.",
        ),
    )
    fail_slower: float | None = field(
        default=None,
        metadata=option(
            "--fail-slower",
            "Fail if NEW is shown to be slower by more than this: 2%.",
            metavar="SHARE",
            kind=PORTION,
            meaning="the answer is not ok if `new` is shown to be slower by more than this "
            "share: 0.02.",
        ),
    )
    fail_undecided: bool = field(
        default=False,
        metadata=option(
            "--fail-undecided",
            "Fail also if the runs cannot tell.",
            kind=SWITCH,
            meaning="the answer is not ok either if the runs cannot tell.",
        ),
    )
    require_faster: bool = field(
        default=False,
        metadata=option(
            "--require-faster",
            "Fail unless NEW is faster.",
            kind=SWITCH,
            meaning="the answer is not ok unless `new` is faster.",
        ),
    )
    max_loss_change: float | None = field(
        default=None,
        metadata=option(
            "--max-loss-change",
            "Fail if the loss differs by more.",
            metavar="SHARE",
            kind=PORTION,
            meaning="the answer is not ok if the loss differs by more, as a share.",
        ),
    )
    confidence: float = field(
        default=0.95,
        metadata=option(
            "--confidence",
            "Confidence of the intervals.",
            kind=Number(Rule(0.5, 0.9999)),
            meaning="confidence of the intervals.",
        ),
    )
    same_within: float = field(
        default=LEAST_GAIN,
        metadata=option(
            "--same-within",
            "Differences up to this size count as equal.",
            metavar="SHARE",
            kind=PORTION,
            default="0.5%",
            meaning="differences up to this share count as equal.",
        ),
    )
    launch_spread: float | None = field(
        default=None,
        metadata=option(
            "--launch-spread --run-noise",
            "How much launches differ (standard deviation); used if each side has one run.",
            metavar="SHARE",
            kind=PORTION,
            meaning="standard deviation between launches as a share, where each side has one "
            "run: 0.003; None: assumed.",
        ),
    )
    history: Path | None = field(
        default=None,
        converter=local_path,
        metadata=option(
            "--history",
            "Take that spread from a history file of pgle.",
            metavar="FILE",
            kind=LOCAL,
            meaning="history file from which that spread is taken.",
        ),
    )
    warmup: int | None = field(
        default=None,
        metadata=option(
            "--warmup",
            "Steps to leave out at the start.  [default: found]",
            metavar="N",
            kind=Number(Rule(0, whole=True)),
            meaning="steps to leave out at the start; None: found.",
        ),
    )
    window: tuple[int | None, int | None] | None = field(
        default=None,
        metadata=option(
            "--steps",
            "Only these step numbers.",
            metavar="FIRST:LAST",
            kind=Word(words_of.step_range),
            meaning="the first and the last step number to take, either may be None.",
        ),
    )


@frozen(slots=False, kw_only=True)
class ConsoleLines(Request):
    """How to find step times in a console log."""

    pattern: str | None = field(
        default=None,
        metadata=option(
            "--pattern",
            "Your console lines: groups s, ms or us, and perhaps step and loss.",
            metavar="REGEX",
            kind=PATTERN,
            meaning="regular expression for console lines: a group ``s``, ``ms`` or ``us``, "
            "and perhaps ``step`` and ``loss``.",
        ),
    )


@frozen(slots=False)
class Comparing(Assumed, ConsoleLines):
    """How to read and compare two sides."""


@frozen(slots=False)
class Compare(Comparing):
    """Two sides, as the library takes them."""

    base: Times = field(
        metadata=argument("BASE", "paths of runs, or step times in seconds.")
    )
    new: Times | None = field(
        default=None,
        metadata=argument(
            "NEW", "the same; None: `base` is a folder that holds both sides."
        ),
    )


@frozen(slots=False)
class Sides(Request):
    """Two sides, as a command line gives them."""

    words: tuple[str, ...] = field(
        default=(),
        metadata=argument(
            "[BASE NEW | -- COMMAND...]",
            "BASE and NEW; one folder that holds both; or the command or commands.",
            kind=SIDES,
            is_listed=True,
        ),
    )
    base: tuple[str, ...] = field(
        default=(),
        kw_only=True,
        converter=texts,
        metadata=option(
            "--base",
            "A further run of BASE; repeatable, globs too.",
            metavar="PATH",
            is_listed=True,
        ),
    )
    new: tuple[str, ...] = field(
        default=(),
        kw_only=True,
        converter=texts,
        metadata=option(
            "--new",
            "A further run of NEW; repeatable, globs too.",
            metavar="PATH",
            is_listed=True,
        ),
    )


@frozen(slots=False, kw_only=True)
class Abba(Request):
    """Runs of both sides, in A-B-B-A order."""

    rounds: int = field(
        default=0,
        metadata=option(
            "--abba",
            "Run N rounds of four runs.",
            metavar="N",
            kind=Number(Rule(0, whole=True)),
        ),
    )
    profile: Path | None = field(
        default=None,
        converter=local_path,
        metadata=shared.profile(
            "With --abba: profile of side B.", kind=LOCAL, is_general=False
        ),
    )
    run_dir: Path = field(
        default=Path("runs/abba"),
        converter=place,
        metadata=option(
            "--run-dir",
            "With --abba: where the runs are kept; the same command resumes.",
            metavar="DIR",
            kind=FOLDER,
            is_general=False,
        ),
    )


@frozen(slots=False, kw_only=True)
class Pages(Request):
    """Where to write a comparison."""

    html: Path | None = field(
        default=None,
        converter=local_path,
        metadata=option(
            "--html",
            "Write a report of one file.",
            metavar="FILE",
            kind=PathOf(ends=(".html", ".htm")),
        ),
    )
    github: bool = field(
        default=False,
        metadata=option(
            "--github",
            "Write job summary and outputs of a GitHub Actions step.",
            kind=SWITCH,
        ),
    )


@frozen(slots=False)
class CompareRuns(Sides, Comparing, Abba, Pages, Forced):
    """The request of `pgle compare` on a command line."""


@frozen(slots=False)
class Entered(Request):
    """Runs, and facts about them for an entry of a history."""

    runs: tuple[str, ...] = field(
        converter=texts,
        metadata=argument("RUN...", "runs, as in `CompareRuns`.", is_listed=True),
    )
    name: str = field(
        kw_only=True,
        metadata=option(
            "--name",
            "The workload; trends are kept by name and hardware.",
            metavar="NAME",
        ),
    )
    hardware: str | None = field(
        default=None,
        kw_only=True,
        metadata=option(
            "--hardware",
            "Hardware of the run.  [default: from nvidia-smi]",
            metavar="NAME",
        ),
    )
    commit: str | None = field(
        default=None,
        kw_only=True,
        metadata=option(
            "--commit",
            "Commit of the program.  [default: from the record of the run, else of the "
            "working directory]",
            metavar="ID",
        ),
    )
    when: str | None = field(
        default=None,
        kw_only=True,
        metadata=option("--time", "ISO 8601.  [default: now]", metavar="TIME"),
    )
    note: str = field(
        default="",
        kw_only=True,
        metadata=option("--note", "A comment on the entry.", metavar="TEXT"),
    )


@frozen(slots=False, kw_only=True)
class InHistory(Request):
    """The file of a history."""

    path: Path = field(
        default=Path("perf/history.jsonl"),
        converter=place,
        metadata=option(
            "--file", "History file (JSON lines).", metavar="FILE", kind=LOCAL
        ),
    )


@frozen(slots=False)
class AddToHistory(Entered, ConsoleLines, InHistory):
    """Runs of one state of a program to add to a history."""
