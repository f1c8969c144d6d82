"""Requests of commands that predict steps: `predict`, `rehearse`, `tune`, `advise`, `scale`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from attrs import field, frozen

from pgle.checks import Rule
from pgle.files import AnyPath
from pgle.requests import shared, words_of
from pgle.requests.given import StrPath, local_path, optional_path, path, texts, words
from pgle.requests.kinds import FILE, FOLDER, LOCAL, SWITCH, Number, Word
from pgle.requests.option import Option, Request, argument, option
from pgle.requests.shared import (
    DEVICES,
    Costs,
    ForCompiler,
    Network,
    OnDevices,
    OnExecutor,
    PerHost,
)


def output(help: str, meaning: str) -> Mapping[str, Option]:
    """``-o``, an output folder."""
    return option(
        "-o --output",
        help,
        metavar="DIR",
        kind=FOLDER,
        meaning=meaning,
        is_recorded=False,
        is_repeated=False,
        is_general=False,
    )


def vary(shown: str, meaning: str) -> Mapping[str, Option]:
    """``--vary``, values for placeholders.

    Args:
        shown: how the values are used, for the command line.
        meaning: the same for the library.
    """
    return option(
        "--vary",
        f"Values for {{NAME}} in the command; {shown}; repeatable.",
        metavar="NAME=A,B,…",
        kind=Word(words_of.varied),
        meaning=f"values for placeholders in a command, by name; {meaning}",
        is_listed=True,
        is_recorded=False,
        is_repeated=False,
    )


def budget(what: str) -> Mapping[str, Option]:
    """``--budget``, a number of trials."""
    return option(
        "--budget",
        f"{what} at most.",
        kind=Number(Rule(1, whole=True)),
        meaning=f"{what.lower()} at most.",
        is_recorded=False,
        is_repeated=False,
    )


def _by_name(
    given: Mapping[str, Sequence[str]] | None,
) -> Mapping[str, Sequence[str]]:
    return given or {}


@frozen(slots=False)
class Predict(PerHost, Network):
    """A scheduled module, and the hardware to predict it for."""

    hlo: AnyPath = field(
        converter=path,
        metadata=argument(
            "HLO",
            "a dump after optimizations, a schedule dump, or a folder of dumps.",
            kind=FILE,
        ),
    )
    profile: AnyPath | None = field(
        default=None,
        kw_only=True,
        converter=optional_path,
        metadata=shared.profile(
            "Measured costs; without, all are estimated.",
            "measured costs; None: all are estimated.",
        ),
    )
    target: str | None = field(
        default=None,
        kw_only=True,
        metadata=shared.target(
            "GPU, as for 'pgle rehearse'; default: as the dump says.",
            "GPU by name or description; None: as the dump says.",
        ),
    )
    module: str = field(
        default="",
        kw_only=True,
        metadata=shared.module(
            "Which module of a dump directory; else the one with the longest step.",
            "regular expression searched in module names; "
            "empty: the one with the longest step.",
        ),
    )
    devices_per_host: int | None = field(
        default=None,
        kw_only=True,
        metadata=shared.devices_per_host("GPUs that share NVLink; else 8, or 72."),
    )


@frozen(slots=False)
class Rehearse(Costs, OnDevices, ForCompiler):
    """A step to compile with and without a profile."""

    words: tuple[str, ...] = field(
        alias="step",
        converter=words,
        metadata=shared.program(
            "MODULE | FOLDER | RUN | -- COMMAND...",
            "a module's file, a folder of dumps, a run directory; or the words of a command.",
        ),
    )
    output: Path | None = field(
        default=None,
        kw_only=True,
        converter=local_path,
        metadata=output(
            "New folder for dumps, logs and the page. [default: temporary]",
            "new folder for dumps, logs and the page; None: one in the user's cache, "
            "of which the newest 16 stay.",
        ),
    )


@frozen(slots=False)
class Releases(Rehearse):
    """A step to compile with several releases of jax."""

    jax: tuple[str, ...] = field(
        default=(),
        kw_only=True,
        converter=texts,
        metadata=option(
            "--jax",
            "Compile the step with these releases of jax, or Python interpreters; compare.",
            metavar="A,B,…",
            kind=Word(words_of.releases),
            meaning="releases of jax such as ``0.12.0.1``, or Python interpreters that have one. "
            "The first is compared with the others; a single one with the jax of the program.",
            default="",
            is_general=False,
        ),
    )
    yes: bool = field(
        default=False,
        kw_only=True,
        metadata=option(
            "--yes",
            "With --jax: let uv make environments for the releases, in the user's cache.",
            kind=SWITCH,
            meaning="let uv make environments for the releases, in the user's cache.",
            is_recorded=False,
            is_repeated=False,
            is_general=False,
        ),
    )


@frozen(slots=False)
class Tune(Rehearse, OnExecutor):
    """A step to search flags for."""

    words: tuple[str, ...] = field(
        alias="step",
        converter=words,
        metadata=shared.program("MODULE | RUN | -- COMMAND...", "as in `rehearse`."),
    )
    budget: int = field(
        default=20,
        kw_only=True,
        metadata=budget("Trials"),
    )
    output: Path | None = field(
        default=None,
        kw_only=True,
        converter=local_path,
        metadata=output(
            "Folder for flags, profile, trials and page.  [default: RUN/tuned, else tuned]",
            "folder for flags, profile, trials and page; a search that was stopped there "
            "continues. None: ``tuned``, in the run directory if there is one.",
        ),
    )


@frozen(slots=False)
class Advise(Costs, OnExecutor, OnDevices, ForCompiler):
    """A program to try alternatives of."""

    words: tuple[str, ...] = field(
        alias="step",
        converter=words,
        metadata=shared.program(
            "MODULE | RUN | -- COMMAND...",
            "a module's file or a run directory; or the words of a command.",
        ),
    )
    vary: Mapping[str, Sequence[str]] = field(
        default=None,
        kw_only=True,
        converter=_by_name,
        metadata=vary(
            "each is tried against the first",
            "each value is tried against the first one.",
        ),
    )
    budget: int = field(default=20, kw_only=True, metadata=budget("Alternatives"))
    output: Path | None = field(
        default=None,
        kw_only=True,
        converter=local_path,
        metadata=output(
            "New folder for captures, dumps and the page. [default: temporary]",
            "new folder for captures, dumps and the page; None: as in `rehearse`.",
        ),
    )
    # a step of this process and its arguments; `words` then name its module
    function: tuple[Callable[..., Any], Sequence[Any]] | None = field(
        default=None, kw_only=True, repr=False
    )


Build: TypeAlias = "Callable[[int], Sequence[Any]]"
"""A function from a number of GPUs to a step and its arguments."""


def _of_sizes(given: Build | StrPath | Sequence[str]) -> Build | tuple[str, ...]:
    return given if callable(given) else words(given)


def _numbers(given: Sequence[int]) -> tuple[int, ...]:
    return tuple(given)


def _by_size(given: Mapping[int, float] | None) -> Mapping[int, float]:
    return {} if given is None else given


@frozen(slots=False)
class Sized(Request):
    """A program at many sizes."""

    build: Build | tuple[str, ...] = field(
        converter=_of_sizes,
        metadata=shared.program(
            "-- COMMAND... | HLO...",
            "from a number of GPUs to the step and its arguments, as `rehearse` takes them; "
            "a size for which it raises ValueError, or jax refuses the step, is a row that says "
            "why. Or the words of a command with placeholders; or files of modules, one for "
            "each size.",
        ),
    )
    devices: tuple[int, ...] = field(
        default=(),
        converter=_numbers,
        metadata=option(
            "--devices",
            "Numbers of GPUs; all are compared with the smallest.",
            metavar="N,N,…",
            kind=Word(words_of.sizes, DEVICES.rule),
            meaning="numbers of GPUs; all are compared with the smallest. For files, empty.",
            default="",
            is_recorded=False,
            is_repeated=False,
            is_general=False,
        ),
    )

    @property
    def words(self) -> tuple[str, ...]:
        """The command with placeholders, or the files; empty for a function."""
        return () if callable(self.build) else self.build


@frozen(slots=False)
class Scale(Sized, PerHost, ForCompiler, OnExecutor):
    """A step to predict at sizes that the user does not have."""

    vary: Mapping[str, Sequence[str]] = field(
        default=None,
        kw_only=True,
        converter=_by_name,
        metadata=vary("all combinations", "all combinations are tried."),
    )
    fit: str = field(
        default="",
        kw_only=True,
        metadata=option(
            "--fit",
            "Take the last value of this varied name that fits; give values with growing memory.",
            metavar="NAME",
            meaning="take the last value of this varied name that fits; its values must need "
            "more and more memory.",
            is_recorded=False,
            is_repeated=False,
        ),
    )
    measured_us: Mapping[int, float] = field(
        default=None,
        kw_only=True,
        converter=_by_size,
        metadata=option(
            "--measured",
            "A measured step, such as 8=1.56s; it corrects all predictions.",
            metavar="N=TIME",
            kind=Word(words_of.measured, words_of.MEASURED_US),
            meaning="a measured step in microseconds by its size; it corrects all predictions.",
            is_recorded=False,
            is_repeated=False,
        ),
    )
    profile: Path | None = field(
        default=None,
        kw_only=True,
        converter=local_path,
        metadata=shared.profile(
            "Measured costs, carried to every size; without, estimates replace them.",
            "measured costs, carried to every size; None: estimates replace them.",
            LOCAL,
        ),
    )
    measured_on: Path | None = field(
        default=None,
        kw_only=True,
        converter=local_path,
        metadata=option(
            "--from",
            "Dump that the profile was measured on.",
            metavar="HLO",
            kind=LOCAL,
            meaning="HLO dump that the profile was measured on; None: from its run directory, "
            "else the first row.",
        ),
    )
    output: Path | None = field(
        default=None,
        kw_only=True,
        converter=local_path,
        metadata=output(
            "Folder for rows and page; repeat to resume.  [default: temporary]",
            "folder for rows and page; None: as in `rehearse`.",
        ),
    )

    @property
    def out(self) -> Path:
        """The folder for rows and page. It must be set."""
        assert self.output is not None
        return self.output
