"""Requests of commands that look at logs, traces and runs."""

from __future__ import annotations

from attrs import field, frozen

from pgle.files import AnyPath
from pgle.requests import shared
from pgle.requests.given import optional_path, paths, some_paths
from pgle.requests.kinds import FILE
from pgle.requests.option import Request, argument, option
from pgle.requests.profiles import hlo
from pgle.requests.shared import Bounded, Forced


@frozen(slots=False)
class Confirm(Bounded):
    """A log to check for the use of a profile."""

    log: tuple[AnyPath, ...] = field(
        converter=some_paths,
        metadata=argument(
            "LOG...",
            "stdout and stderr of the run; one file for each rank, or a folder of them; or a run "
            "directory.",
            is_listed=True,
        ),
    )
    module: str | None = field(
        default=None,
        kw_only=True,
        metadata=shared.module(
            "The main module; default: the one that weighs most in the log.",
            "regular expression for the main module; None: the weightiest.",
        ),
    )
    schedule: AnyPath | None = field(
        default=None,
        kw_only=True,
        converter=optional_path,
        metadata=option(
            "--schedule",
            "Schedule dump of the same run (file or directory), with the scheduler's costs.",
            metavar="PATH",
            kind=FILE,
            meaning="schedule dump of the same run.",
        ),
    )
    profile: AnyPath | None = field(
        default=None,
        kw_only=True,
        converter=optional_path,
        metadata=shared.profile(
            "The profile of the run; default: the one that the log names.",
            "profile of the run; None: the one that the log names.",
        ),
    )
    jax: str | None = field(
        default=None,
        kw_only=True,
        metadata=option(
            "--jax",
            "The jax that wrote the log; default: guessed from its wordings.",
            metavar="VERSION",
            meaning="version of the jax that wrote the log; None: guessed.",
        ),
    )


@frozen(slots=False, kw_only=True)
class OfTracedRun(Request):
    """The HLO and the GPU of a traced run."""

    hlo: tuple[AnyPath, ...] = field(
        default=(),
        converter=paths,
        metadata=hlo("HLO dumps of the traced run.", " of the traced run"),
    )
    target: str | None = field(
        default=None,
        metadata=shared.target(
            "GPU for expected times: h100, a100, …  [default: as the HLO says]",
            "GPU for expected times; None: as the HLO says.",
        ),
    )


@frozen(slots=False, kw_only=True)
class Scheduled(Request):
    """The profile that the scheduler used."""

    profile: AnyPath | None = field(
        default=None,
        converter=optional_path,
        metadata=shared.profile(
            "Profile that the scheduler used.  [default: from RUN/perf]",
            "profile that the scheduler used; None: from the run directory.",
        ),
    )


@frozen(slots=False, kw_only=True)
class Against(Request):
    """An earlier run of the program."""

    against: tuple[AnyPath, ...] = field(
        default=(),
        converter=paths,
        metadata=option(
            "--against",
            "Another run of the program: show what changed since. A directory means all ranks "
            "in it.",
            metavar="OTHER",
            kind=FILE,
            is_listed=True,
            meaning="another run of the program, from before; then the answer says what changed.",
        ),
    )
    against_hlo: tuple[AnyPath, ...] = field(
        default=(),
        converter=paths,
        metadata=option(
            "--against-hlo",
            "HLO dump of that run.",
            metavar="PATH",
            kind=FILE,
            is_listed=True,
            meaning="HLO dumps of that run.",
        ),
    )


@frozen(slots=False)
class Analyze(OfTracedRun, Scheduled, Against):
    """A measured step to take apart."""

    inputs: tuple[AnyPath, ...] = field(
        converter=some_paths,
        metadata=argument(
            "INPUT...",
            "traces (several are ranks of one job), a run directory or a stage of it, a "
            "rehearsal, scheduled HLO.",
            kind=FILE,
            is_listed=True,
        ),
    )


@frozen(slots=False)
class ReportFiles(Request):
    """The inputs of a page, and the files to write it to."""

    inputs: tuple[AnyPath, ...] = field(
        converter=some_paths,
        metadata=argument(
            "RUN...", "inputs, as in `Analyze`.", kind=FILE, is_listed=True
        ),
    )
    outputs: tuple[AnyPath, ...] = field(
        default=(),
        kw_only=True,
        converter=paths,
        metadata=option(
            "-o --output",
            "FILE.html, .md, .json or, for Perfetto, .json.gz or .trace.json; repeatable.",
            metavar="FILE",
            kind=FILE,
            is_listed=True,
            is_repeated=False,
            is_general=False,
        ),
    )


@frozen(slots=False)
class Report(ReportFiles, OfTracedRun, Against, Forced):
    """The request of `pgle report`."""


@frozen(slots=False)
class OrderOfRanks(Request):
    """Ranks to check: do all start their collectives in the same order?"""

    paths: tuple[AnyPath, ...] = field(
        converter=some_paths,
        metadata=argument(
            "DUMPS|RUN|LOGS...",
            "dumps or logs of each rank, a folder of them, or a run directory.",
            kind=FILE,
            is_listed=True,
        ),
    )
