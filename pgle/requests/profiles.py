"""Requests of commands that make, check, fill and carry cost profiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen

from pgle.files import AnyPath
from pgle.requests import shared
from pgle.requests.given import optional_path, path, paths, some_paths
from pgle.requests.kinds import FILE, SWITCH
from pgle.requests.option import Option, Request, argument, option
from pgle.requests.shared import Bounded, Forced, OnExecutor


def hlo(meaning: str, of: str = "") -> Mapping[str, Option]:
    """``--hlo``, repeatable.

    Args:
        meaning: help in the library.
        of: the run, for help on the command line: `` of the profiled run``.
    """
    return option(
        "--hlo",
        f"HLO dump file or directory{of}; repeatable.",
        metavar="PATH",
        kind=FILE,
        is_listed=True,
        meaning=meaning,
    )


def written(
    help: str = "Profile to write: .pbtxt or .pb.",
    meaning: str = "profile to write: ``.pbtxt`` or ``.pb``.",
) -> Mapping[str, Option]:
    """``-o``, the profile to write."""
    return option(
        "-o --output",
        help,
        metavar="OUT",
        kind=FILE,
        meaning=meaning,
        is_repeated=False,
        is_general=False,
    )


def per_host() -> Mapping[str, Option]:
    """``--devices-per-host`` for a profile to fill or to carry."""
    return shared.devices_per_host("GPUs that share NVLink.")


@frozen(slots=False)
class Convert(Forced, OnExecutor):
    """Traces to convert to a profile."""

    inputs: tuple[AnyPath, ...] = field(
        converter=some_paths,
        metadata=argument(
            "INPUT...",
            "traces or a run directory; several are ranks of one job.",
            kind=FILE,
            is_listed=True,
        ),
    )
    output: AnyPath | None = field(
        default=None,
        converter=optional_path,
        metadata=written(
            "Profile (.pbtxt, .pb), or a directory: one per module.  "
            "[default: RUN/profile.pbtxt, else profile.pbtxt]",
            "``.pbtxt``, ``.pb`` or a folder; None: ``profile.pbtxt``, "
            "in the run directory if one is converted.",
        ),
    )
    hlo: tuple[AnyPath, ...] = field(
        default=(),
        kw_only=True,
        converter=paths,
        metadata=hlo("HLO dumps of the profiled run.", " of the profiled run"),
    )
    module: str = field(
        default="auto",
        kw_only=True,
        metadata=shared.module(
            "Which modules to convert.",
            "which modules: ``auto``, ``all`` or a regular expression.",
            "auto|all|REGEX",
        ),
    )
    stat: str = field(
        default="median",
        kw_only=True,
        metadata=option(
            "--stat",
            "Compute: median, mean, min, max, pNN.",
            metavar="NAME",
            meaning="statistic of compute: ``median``, ``mean``, ``min``, ``max``, ``pNN``.",
        ),
    )
    collective_stat: str = field(
        default="median",
        kw_only=True,
        metadata=option(
            "--collective-stat",
            "The same for collectives.",
            metavar="NAME",
            meaning="the same for collectives.",
        ),
    )
    fingerprint_names: bool = field(
        default=False,
        kw_only=True,
        metadata=option(
            "--fingerprint-names",
            "Write fingerprint::name, so that other modules ignore the costs.",
            kind=SWITCH,
            meaning="write ``fingerprint::name``, so that other modules ignore the costs.",
        ),
    )
    all_executions: bool = field(
        default=False,
        kw_only=True,
        metadata=option(
            "--all-executions",
            "Keep warm-up and truncated executions.",
            kind=SWITCH,
            meaning="keep warm-up and truncated executions.",
        ),
    )
    complete: str | None = field(
        default=None,
        kw_only=True,
        metadata=option(
            "--complete",
            "Fill gaps, with estimates for this GPU (h100, a100, …).",
            metavar="TARGET",
            meaning="fill gaps with estimates for this GPU.",
        ),
    )


@frozen(slots=False)
class OfProfile(Request):
    """An existing profile."""

    profile: AnyPath = field(
        converter=path, metadata=argument("PROFILE", "the profile.", kind=FILE)
    )


@frozen(slots=False)
class Verify(Bounded, OfProfile):
    """A profile to compare with a module."""

    hlo: tuple[AnyPath, ...] = field(
        default=(),
        converter=paths,
        metadata=hlo("dump files or folders, with LHS's schedule dumps."),
    )
    module: str = field(
        default="",
        kw_only=True,
        metadata=shared.module(
            "Only modules whose name matches.",
            "regular expression searched in module names; empty: all.",
        ),
    )


@frozen(slots=False)
class Complete(Forced, OfProfile):
    """A profile whose gaps to fill."""

    hlo: tuple[AnyPath, ...] = field(
        kw_only=True, converter=some_paths, metadata=hlo("dumps of its program.")
    )
    output: AnyPath = field(
        default=Path("complete.pbtxt"),
        kw_only=True,
        converter=path,
        metadata=written(),
    )
    target: str = field(
        default="",
        kw_only=True,
        metadata=shared.target(
            "GPU of the estimates: h100, a100, …  [default: the dump's]",
            "GPU of the estimates; empty: as the dump says.",
        ),
    )
    module: str = field(
        default="",
        kw_only=True,
        metadata=shared.module(
            "Modules to complete for.  [default: best match]",
            "regular expression for module names; empty: the module that the profile has "
            "most costs of.",
        ),
    )
    devices_per_host: int = field(default=8, kw_only=True, metadata=per_host())


@frozen(slots=False)
class Carry(Forced, OfProfile):
    """A profile to carry to another compilation of its program."""

    old: AnyPath = field(
        kw_only=True,
        converter=path,
        metadata=option(
            "--from",
            "Dump that the profile was measured on.",
            metavar="OLD_HLO",
            kind=FILE,
        ),
    )
    new: AnyPath = field(
        kw_only=True,
        converter=path,
        metadata=option(
            "--to",
            "Dump to carry the profile to.",
            metavar="NEW_HLO",
            kind=FILE,
        ),
    )
    output: AnyPath = field(
        default=Path("carried.pbtxt"),
        kw_only=True,
        converter=path,
        metadata=written(),
    )
    target: str = field(
        default="",
        kw_only=True,
        metadata=shared.target(
            "GPU whose links scale collectives.  [default: the dump's]",
            "GPU by whose links collectives of another size are scaled; empty: as the new "
            "dump says.",
        ),
    )
    devices_per_host: int = field(default=8, kw_only=True, metadata=per_host())
    module: str = field(
        default="",
        kw_only=True,
        metadata=shared.module(
            "Module to carry.  [default: best match]", "as in `Complete`."
        ),
    )
