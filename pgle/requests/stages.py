"""Requests of commands that run a program: `profile`, `perf`, `run`, `auto`; and of `doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from attrs import field, frozen

from pgle.checks import Rule
from pgle.files import AnyPath
from pgle.requests import shared
from pgle.requests.given import local_path, optional_path, place, texts
from pgle.requests.kinds import FOLDER, PORTION, SWITCH, Number, OneOf
from pgle.requests.option import Request, option
from pgle.requests.shared import (
    Bounded,
    Captured,
    Flags,
    OfPython,
    OnDevices,
    OnTarget,
)


@frozen(slots=False, kw_only=True)
class InRunDirectory(Request):
    """The folder that holds all files of an experiment."""

    run_dir: Path = field(
        default=Path("runs/default"),
        converter=place,
        metadata=option(
            "--run-dir",
            "Folder of the experiment.",
            metavar="DIR",
            kind=FOLDER,
            is_recorded=False,
            is_repeated=False,
        ),
    )


@frozen(slots=False, kw_only=True)
class Profiled(Request):
    """The profiler."""

    capture: Literal["auto", "jax", "nsys", "simulated"] = field(
        default="auto",
        metadata=option(
            "--capture",
            "Profiler; simulated needs no GPU. auto: jax if there is a GPU.",
            kind=OneOf(("auto", "jax", "nsys", "simulated")),
        ),
    )


@frozen(slots=False)
class Stage(InRunDirectory, Profiled, OnDevices, Flags, Captured):
    """A program to launch, on a GPU here or on a simulated one."""

    words: tuple[str, ...] = field(
        default=(), converter=texts, metadata=shared.program()
    )
    target: str = field(
        default="h100", kw_only=True, metadata=shared.target(shared.GPU_HELP)
    )
    devices: int | None = field(
        default=None,
        kw_only=True,
        metadata=shared.devices("Devices to simulate.  [default: 4]"),
    )
    force: bool = field(
        default=False,
        kw_only=True,
        metadata=shared.force(
            "Run a stage again; its old folder is kept under another name."
        ),
    )


@frozen(slots=False, kw_only=True)
class InMode(Request):
    """How collectives run while pgle measures them."""

    mode: Literal["sync", "async"] = field(
        default="sync",
        metadata=option(
            "--mode",
            "How collectives run while they are measured; 'pgle profile --help' says more.",
            kind=OneOf(("sync", "async")),
        ),
    )


@frozen(slots=False, kw_only=True)
class Windowed(Request):
    """The part of a run to trace."""

    window: str = field(
        default="auto",
        metadata=option(
            "--window", "The part to trace.", metavar="auto|steps:A-B|seconds:N|all"
        ),
    )


@frozen(slots=False)
class ProfileStage(Stage, InMode, Windowed):
    """A program to trace."""


@frozen(slots=False)
class PerfStage(Stage, Bounded):
    """A program to run with its profile."""

    profile: AnyPath | None = field(
        default=None,
        kw_only=True,
        converter=optional_path,
        metadata=shared.profile("[default: from the run directory]"),
    )
    baseline: bool = field(
        default=False,
        kw_only=True,
        metadata=option(
            "--baseline",
            "Run without the profile, scheduler on: what to compare with.",
            kind=SWITCH,
        ),
    )


@frozen(slots=False)
class Run(Stage, InMode, Windowed, Bounded):
    """A program to take through all stages."""

    fail_slower: float = field(
        default=0.01,
        kw_only=True,
        metadata=option(
            "--fail-slower",
            "Bound on a slowdown.",
            metavar="SHARE",
            kind=PORTION,
            default="1%",
        ),
    )


@frozen(slots=False, kw_only=True)
class AutoPgleRuns(Request):
    """Options of JAX's AutoPGLE."""

    runs: int = field(
        default=3,
        metadata=option(
            "--runs",
            "Executions of each function to trace.",
            kind=Number(Rule(1, whole=True)),
        ),
    )
    percentile: int = field(
        default=90,
        metadata=option(
            "--percentile",
            "Percentile of the costs over these executions.",
            kind=Number(Rule(0, 100, whole=True)),
        ),
    )
    then_nsys: bool = field(
        default=False,
        metadata=option(
            "--then-nsys",
            "Run again under nsys, with the compiled program from the cache.",
            kind=SWITCH,
        ),
    )
    cache: Path | None = field(
        default=None,
        converter=local_path,
        metadata=option(
            "--cache",
            "JAX's compilation cache.  [default: a new one in the run directory]",
            metavar="DIR",
            kind=FOLDER,
        ),
    )


@frozen(slots=False)
class Auto(InRunDirectory, AutoPgleRuns, Windowed, Flags):
    """A program to profile with AutoPGLE."""

    words: tuple[str, ...] = field(
        default=(), converter=texts, metadata=shared.program()
    )
    force: bool = field(
        default=False,
        kw_only=True,
        metadata=shared.force("Run again; old folders are kept under other names."),
    )


@frozen(slots=False, kw_only=True)
class Proved(Request):
    """Whether to run the whole chain on a small program, and where."""

    prove: bool = field(
        default=False,
        metadata=option(
            "--prove",
            "Run the whole chain on a small program, and say what each link proves.",
            kind=SWITCH,
        ),
    )
    run_dir: Path | None = field(
        default=None,
        converter=local_path,
        metadata=option(
            "--run-dir",
            "Where runs are to be kept; with --prove: a new folder.  "
            "[default: ., with --prove runs/proof]",
            metavar="DIR",
            kind=FOLDER,
            is_general=False,
        ),
    )


@frozen(slots=False, kw_only=True)
class Doctor(Proved, Profiled, OnTarget, OfPython):
    """A check of this machine."""

    target: str = field(default="h100", metadata=shared.target(shared.GPU_HELP))
