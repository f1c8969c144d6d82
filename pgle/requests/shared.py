"""Options that several commands share. Each is declared here once.

If a command needs another help text or default, it declares the option again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from attrs import evolve, field, frozen

from pgle.checks import SHARE, Rule
from pgle.requests import words_of
from pgle.requests.given import local_path, texts
from pgle.requests.kinds import (
    COMMAND,
    FILE,
    GPU,
    LOCAL,
    PATTERN,
    PROCESSES,
    SWITCH,
    XLA_FLAGS,
    Bandwidth,
    Kind,
    Number,
    Place,
)
from pgle.requests.option import Option, Request, argument, option

DEVICES = Number(words_of.DEVICES)
GPU_HELP = "GPU: a100, a100-80, h100, h200, b200, … or a gpu_target_config.pbtxt."


def target(help: str, meaning: str = "", **how: object) -> Mapping[str, Option]:
    """``--target``."""
    return option(
        "--target", help, metavar="NAME|FILE", kind=GPU, meaning=meaning, **how
    )


def module(
    help: str, meaning: str = "", metavar: str = "REGEX", **how: object
) -> Mapping[str, Option]:
    """``--module REGEX``."""
    return option(
        "--module", help, metavar=metavar, kind=PATTERN, meaning=meaning, **how
    )


def profile(
    help: str, meaning: str = "", kind: Kind = FILE, **how: object
) -> Mapping[str, Option]:
    """``--profile``."""
    return option(
        "--profile", help, metavar="PROFILE", kind=kind, meaning=meaning, **how
    )


def devices(help: str, meaning: str = "") -> Mapping[str, Option]:
    """``--devices``, the number of GPUs on one host."""
    return option(
        "--devices",
        help,
        metavar="N",
        kind=DEVICES,
        meaning=meaning,
        instead_of="topology",
    )


def force(help: str, meaning: str = "") -> Mapping[str, Option]:
    """``--force``."""
    return option(
        "--force",
        help,
        kind=SWITCH,
        meaning=meaning,
        is_recorded=False,
        is_repeated=False,
        is_general=False,
    )


def program(
    metavar: str = "-- COMMAND...", meaning: str = "the words of a command."
) -> Mapping[str, Option]:
    """The argument for the program: a command, or files of it."""
    return argument(metavar, meaning, kind=COMMAND, is_listed=True)


def devices_per_host(help: str) -> Mapping[str, Option]:
    """``--devices-per-host``."""
    return option(
        "--devices-per-host",
        help,
        metavar="N",
        kind=Number(Rule(1, whole=True)),
        meaning="GPUs that share NVLink; None: as the target has.",
    )


@frozen(slots=False, kw_only=True)
class OnTarget(Request):
    """The GPU."""

    target: str | None = field(
        default=None,
        metadata=target(
            f"{GPU_HELP}  [default: the dump's, else h100]",
            "GPU by name or description; None: an H100, or the run directory's GPU.",
        ),
    )


@frozen(slots=False, kw_only=True)
class OnDevices(OnTarget):
    """The number of GPUs, and the hosts that they are on."""

    devices: int | None = field(
        default=None,
        metadata=devices(
            "Devices on one host; short for --topology 1x1xN.",
            "GPUs of one host; None: as many as the step's mesh has.",
        ),
    )
    topology: str | None = field(
        default=None,
        metadata=option(
            "--topology",
            "Slices x hosts of a slice x GPUs of a host: 4x1x8 is 4 hosts of 8 GPUs.",
            metavar="SxHxD",
            meaning="``SxHxD``, slices, hosts of each and devices of each, "
            "instead of `devices`.",
            instead_of="devices",
        ),
    )

    @property
    def shape(self) -> str | None:
        """``SxHxD`` (slices, hosts, devices); None if not given."""
        one_host = f"1x1x{self.devices}" if self.devices else None
        return self.topology or one_host

    def of_shape(self, shape: str | None) -> Self:
        """The request for a topology. For a single host, it has `devices`, which is shorter."""
        one_host = re.fullmatch(r"1x1x([1-9]\d{0,5})", shape or "")
        if one_host is None:
            return evolve(self, devices=None, topology=shape)
        return evolve(self, devices=int(one_host[1]), topology=None)


@frozen(slots=False, kw_only=True)
class PerHost(OnTarget):
    """The number of GPUs on a host."""

    devices_per_host: int | None = field(
        default=None,
        metadata=devices_per_host(
            "GPUs that share NVLink.  [default: the target's, 8 or 72]"
        ),
    )


@frozen(slots=False, kw_only=True)
class Network(Request):
    """The network between hosts."""

    network_gb_s: float | None = field(
        default=None,
        metadata=option(
            "--network",
            "Network bandwidth per GPU, one direction: 50, 50GB/s, 400Gbit/s; "
            "else 25 (A100), 50, or 100 (GB300).",
            metavar="GB/s",
            kind=Bandwidth(Rule(0, 1e6, above=True)),
            meaning="network bandwidth per GPU and direction, in GB/s; "
            "None: as the target has.",
        ),
    )

    @property
    def names_network(self) -> bool:
        """Whether the user gave the network, so that pgle assumes none."""
        return self.network_gb_s is not None


@frozen(slots=False, kw_only=True)
class Flags(Request):
    """Flags for XLA."""

    flags: tuple[str, ...] = field(
        default=(),
        converter=texts,
        metadata=option(
            "--flag",
            "One more XLA flag, after XLA_FLAGS; repeatable.",
            metavar="--xla_…",
            kind=XLA_FLAGS,
            is_listed=True,
            meaning="XLA flags, ``--xla_…=…``, after those of XLA_FLAGS.",
        ),
    )


@frozen(slots=False, kw_only=True)
class Captured(Request):
    """How pgle runs a program to capture its modules."""

    module: str | None = field(
        default=None,
        metadata=module(
            "Without a GPU: which of several modules, by name; else the program's step.",
            "which of several modules, by name or regular expression; None: the step.",
            "NAME|REGEX",
            older="--choose",
        ),
    )
    quiet_s: float = field(
        default=20.0,
        metadata=option(
            "--quiet-for",
            "Without a GPU: stop the program when it has compiled nothing new for so long.",
            metavar="SECONDS",
            kind=Number(Rule(0, 1e9)),
            meaning="stop a command that has compiled nothing new for so long.",
            is_recorded=False,
            is_repeated=False,
        ),
    )


@frozen(slots=False, kw_only=True)
class Cached(Request):
    """Whether pgle keeps compilations."""

    cached: bool = field(
        default=True,
        metadata=option(
            "--cache/--no-cache",
            "Keep compilations in the user's cache, up to PGLE_CACHE_MIB (2048).",
            kind=SWITCH,
            meaning="keep compilations in the user's cache.",
            is_recorded=False,
            is_repeated=False,
        ),
    )


@frozen(slots=False)
class ForCompiler(OnTarget, Network, Flags, Captured, Cached):
    """A compilation for GPUs that this machine lacks."""


@frozen(slots=False, kw_only=True)
class Costs(Request):
    """Measured costs for a module that pgle compiles."""

    profile: Path | None = field(
        default=None,
        converter=local_path,
        metadata=profile(
            "Measured costs; without, estimates replace them.",
            "measured costs; None: estimates replace them.",
            LOCAL,
        ),
    )


@frozen(slots=False, kw_only=True)
class OnExecutor(Request):
    """Where pgle works on many files, sizes or settings. The answer does not depend on it."""

    executor: str = field(
        default=PROCESSES,
        metadata=option(
            "--executor",
            "Where the work is done: by processes here, or by a Dask cluster.",
            metavar="processes|dask://HOST:PORT",
            kind=Place(),
            meaning="where the work is done: by ``processes`` of this machine, or by the workers "
            "of a Dask cluster, ``dask://HOST:PORT``.",
            is_recorded=False,
            is_repeated=False,
        ),
    )


@frozen(slots=False, kw_only=True)
class Forced(Request):
    """Whether pgle overwrites existing files."""

    force: bool = field(
        default=False,
        metadata=force("Overwrite output files that exist.", "overwrite."),
    )


def bound(names: str, help: str, meaning: str) -> Mapping[str, Option]:
    """A lower bound of a profile's coverage, as a share."""
    return option(names, help, kind=Number(SHARE), meaning=meaning)


@frozen(slots=False, kw_only=True)
class Bounded(Request):
    """The coverage that a profile needs to count as used. Defaults are those of
    `pgle.xla.log.verdict.Bounds`.
    """

    min_time_coverage: float = field(
        default=0.95,
        metadata=bound(
            "--min-time-coverage",
            "Exit with 1 if the profile covers less of the main module's time.",
            "share of the main module's time that the profile must cover, 0 to 1.",
        ),
    )
    min_collectives: float = field(
        default=0.99,
        metadata=bound(
            "--min-collectives",
            "Exit with 1 if collectives without a cost weigh more than the rest of the step.",
            "share of the step that is left without collectives that have no cost, 0 to 1.",
        ),
    )


@frozen(slots=False, kw_only=True)
class OfPython(Request):
    """The Python whose jaxlib pgle asks."""

    python: str | None = field(
        default=None,
        metadata=option(
            "--python",
            "Python of your program; pgle asks its jaxlib.  [default: pgle's own]",
            metavar="PATH",
        ),
    )


@frozen(slots=False, kw_only=True)
class OfRelease(Request):
    """A release of jaxlib."""

    jaxlib: str | None = field(
        default=None,
        metadata=option(
            "--jaxlib",
            "Use this release instead of the installed one.",
            metavar="VERSION",
        ),
    )
