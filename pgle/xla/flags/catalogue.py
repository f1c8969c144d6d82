"""The catalogue of settings: meaning, default, which jaxlib knows each, and what others measured for it.

Two data files of this package are read once: `flags_catalogue.toml` and `flags_environment.toml` describe the settings
that matter to latency hiding, `flags_known.tsv` lists every flag that ten published jaxlib releases accept, found by
offering each name to the XLA inside the wheels.

The data file in this folder, `flags_record.toml`, is our own compilation of published figures. No figure of pgle
depends on it: it is shown next to predictions, and `benchmarks/public_record.py` compares the two.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from statistics import median
from typing import Any, Literal

from pgle.errors import UserError, many
from pgle.next import FLAGS_LIST

OLDEST = "0.4.26"  # the oldest jaxlib that the catalogue speaks of


def release(version: str) -> tuple[int, ...]:
    """A jaxlib version as a tuple for comparing: ``0.10.2`` → (0, 10, 2); suffixes such as ``.dev2026`` are cut.

    Raises:
        UserError: it does not begin with a number.
    """
    parts: list[int] = []
    for part in version.strip().removeprefix("v").split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        parts.append(int(digits))
        if digits != part:
            break
    if not parts:
        raise UserError(f"'{version}' is not a version of jaxlib", remedy="write it as in --jaxlib 0.10.2")
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    name: str  # as it is written
    reader: str  # ``XLA_FLAGS`` for flags; for environment variables whose they are (``JAX``, ``NCCL`` …)
    kind: str  # ``bool``, ``int``, ``float``, ``string``, ``list`` or ``choice``
    meaning: str  # what it does
    defaults: tuple[tuple[str, str], ...] = ()  # (release, value) pairs, the value from that release on
    since: str = ""  # first release that knows it; empty: as old as the catalogue
    gone: str = ""  # first release that does not; ``always``: none ever did; empty: still there
    values: tuple[str, ...] = ()  # what a choice or list may hold; empty where open
    use: str = ""  # the name of what replaces it
    remarks: tuple[str, ...] = ()  # traps
    fingerprint: str = ""  # ``changes``, ``same`` or empty (not known)
    source: tuple[str, ...] = ()  # where the facts are from
    # ``program``: it decides what the instructions are; ``schedule``: only the passes from scheduling on read it;
    # empty: neither, or not known
    stage: str = ""
    tries: tuple[str, ...] = ()  # values that a search for flags tries
    about: str = ""  # the kind of collective that it moves; empty: all, or none in particular
    where: str = ""  # what a program needs for it to do anything (`pgle.tune.moves`); empty: nothing
    interacts: tuple[str, ...] = ()  # settings that change what it does

    @property
    def is_flag(self) -> bool:
        """Whether it belongs into XLA_FLAGS."""
        return self.reader == "XLA_FLAGS"

    def default(self, version: str | None = None) -> str | None:
        """Its default in a jaxlib release, or in the newest; None where not known."""
        at = None if version is None else release(version)
        values = [value for start, value in self.defaults if at is None or release(start) <= at]
        if values:
            return values[-1]
        return self.defaults[0][1] if self.defaults and not self.since else None

    def known_in(self, version: str) -> bool:
        """Whether that jaxlib release knows it."""
        if self.gone == "always":
            return False
        at = release(version)
        return (not self.since or release(self.since) <= at) and (not self.gone or at < release(self.gone))

    @property
    def lifetime(self) -> str:
        """In words: ``all``, ``>=0.5.1``, ``<0.6.0``, ``0.4.33 to before 0.4.36`` or ``never``."""
        if self.gone == "always":
            return "never"
        if self.since and self.gone:
            return f"{self.since} to before {self.gone}"
        return f">={self.since}" if self.since else f"<{self.gone}" if self.gone else "all"


@dataclass(frozen=True, slots=True)
class KnownFlags:
    """Every flag of several jaxlib releases."""

    releases: tuple[str, ...]  # the ones that were asked, oldest first
    kinds: Mapping[str, str]  # kind of value by flag: ``bool``, ``int``, ``float``, ``string`` or ``choice``
    present: Mapping[str, frozenset[str]]  # by flag, the releases that know it

    def known_in(self, name: str, version: str) -> bool | None:
        """Whether a release knows the flag; None where the releases before and after it disagree."""
        at = release(version)
        before = [item for item in self.releases if release(item) <= at]
        after = [item for item in self.releases if release(item) >= at]
        near = {before[-1] if before else self.releases[0], after[0] if after else self.releases[-1]}
        answers = {item in self.present.get(name, frozenset()) for item in near}
        return answers.pop() if len(answers) == 1 else None


@cache
def catalogue() -> Mapping[str, Setting]:
    """Every setting that is described, by name; flags first."""
    settings: dict[str, Setting] = {}
    for file, reader in (("flags_catalogue.toml", "XLA_FLAGS"), ("flags_environment.toml", "")):
        for entry in _entries(file, "setting"):  # one ``default``, or ``defaults`` by release
            default = entry.pop("default", None)
            defaults = ((OLDEST, default),) if default is not None else tuple(map(tuple, entry.pop("defaults", ())))
            settings[entry["name"]] = Setting(**({"reader": reader} | entry | {"defaults": defaults}))
    return settings


@cache
def known_flags() -> KnownFlags:
    """The flags of all releases that were asked."""
    lines = [line for line in _data("flags_known.tsv").splitlines() if line and not line.startswith("#")]
    releases = tuple(lines[0].split("\t")[1].split())
    kinds: dict[str, str] = {}
    present: dict[str, frozenset[str]] = {}
    for line in lines[1:]:
        name, kind, spans = line.split("\t")
        kinds[name] = kind
        present[name] = frozenset(item for span in spans.split(",") for item in _span(span, releases))
    return KnownFlags(releases, kinds, present)


def find(name: str) -> Setting:
    """The setting called `name`; leading dashes and a value after ``=`` are cut, JAX names may be in lower case.

    Raises:
        UserError: there is none; the remedy names the nearest.
    """
    wanted = name.strip().lstrip("-").split("=")[0]
    settings = catalogue()
    if wanted.upper() in settings:
        return settings[wanted.upper()]
    for candidate in (wanted, f"xla_gpu_{wanted}", f"xla_gpu_enable_{wanted}"):
        if candidate in settings:
            return settings[candidate]
        kind = known_flags().kinds.get(candidate)
        if kind is not None:
            return Setting(candidate, "XLA_FLAGS", kind, "(not described in the catalogue)", **_observed(candidate))
    near = nearest(wanted, [*settings, *known_flags().kinds])
    hint = f"did you mean {near[0]}?" if near else f"'{FLAGS_LIST}' shows the described ones"
    raise UserError(f"no setting called '{wanted}'", remedy=hint)


def known_in(name: str, version: str) -> bool | None:
    """Whether a jaxlib release knows the flag, from the catalogue and the recorded releases; None where not certain."""
    setting = catalogue().get(name)
    if setting is not None and setting.is_flag:
        return setting.known_in(version)
    return known_flags().known_in(name, version)


def older_name(name: str, version: str) -> str:
    """What a release that does not know the flag yet calls it; empty where it has no name for it, or several."""
    older = [item.name for item in catalogue().values() if item.use == name and item.known_in(version)]
    return older[0] if len(older) == 1 else ""


def nearest(name: str, candidates: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """The candidates spelled most like `name`, best first; empty where none is near."""
    return tuple(get_close_matches(name, sorted(set(candidates)), count, cutoff=0.8))


def _observed(name: str) -> dict[str, Any]:
    table = known_flags()
    seen = [item for item in table.releases if item in table.present[name]]
    next_ones = table.releases[table.releases.index(seen[-1]) + 1 :]
    since = "" if seen[0] == table.releases[0] else seen[0]
    return {"since": since, "gone": next_ones[0] if next_ones else "", "source": ("asked of the published wheels",)}


def _span(span: str, releases: tuple[str, ...]) -> tuple[str, ...]:
    first, _, last = span.partition("-")
    start = releases.index(first)
    return releases[start : releases.index(last or first) + 1]


def _entries(file: str, kind: str) -> list[dict[str, Any]]:
    """The tables of a data file, their lists as tuples."""
    tables = tomllib.loads(_data(file))[kind]
    return [{key: tuple(value) if isinstance(value, list) else value for key, value in each.items()} for each in tables]


def _data(name: str) -> str:
    return files("pgle.xla").joinpath("data", name).read_text(encoding="utf-8")


_OFF = ("false", "off", "0", "")


@dataclass(frozen=True, slots=True)
class Effect:
    """One published comparison of two settings of one program."""

    id: str  # a name of our own
    set: tuple[str, ...]  # what was changed, ``NAME=value``, or ``NAME`` if left at its default; empty: no flag
    change: tuple[float, ...]  # per cent of the step time, one number for each reading; minus is shorter
    program: str  # what was run
    model: Literal["experts", "dense", "kernel"]  # which kind of program that is
    gpus: str  # how many of which
    base: str  # what it was compared with
    source: str  # link
    unseen: str = ""  # why a model of the schedule cannot predict it; empty: it can be compiled and simulated
    note: str = ""  # what else a reader must know

    @property
    def readings(self) -> str:
        """The changes of the step time in words: ``+3.4 % and −1 %``."""
        return " and ".join(f"{reading:+.2g} %".replace("-", "−").replace("+0 %", "0 %") for reading in self.change)

    @property
    def line(self) -> str:
        """The effect in one line."""
        more = f" with {many(len(self.set) - 1, 'other flag')}" if len(self.set) > 1 else ""
        return f"{self.readings}{more}: {self.program}, {self.gpus}. {self.source}"


@cache
def public_record() -> tuple[Effect, ...]:
    """All effects, in the order of the file."""
    return tuple(Effect(**entry) for entry in _entries("flags_record.toml", "effect"))


def effects_of(name: str, value: str | None = None) -> tuple[Effect, ...]:
    """The effects in which a setting was changed, under its older and newer names too.

    Args:
        name: of the flag or the variable, without dashes.
        value: only changes in this direction, on or off; a number counts as on. None: all.
    """
    known = catalogue()
    current = known[name].use or name if name in known else name
    names = {name, current, *(other.name for other in known.values() if other.use == current)}
    return tuple(effect for effect in public_record() if any(_is_change(text, names, value) for text in effect.set))


def _is_change(text: str, names: set[str], value: str | None) -> bool:
    name, _, other = text.partition("=")
    return name in names and (value is None or (value.lower() in _OFF) == (other.lower() in _OFF))


def is_slower(effects: Iterable[Effect]) -> bool:
    """Whether most readings say that the step got longer."""
    readings = [reading for effect in effects for reading in effect.change]
    return bool(readings) and median(readings) > 0


def summary(effects: Iterable[Effect]) -> str:
    """How many reports there are, their range, and on which kind of program: ``3 reports, +2.4 to +7.1 %, …``."""
    found = tuple(effects)
    if not found:
        return "no report"
    readings = sorted(reading for effect in found for reading in effect.change)
    ends = dict.fromkeys(f"{reading:+.1f}".replace("-", "−") for reading in (readings[0], readings[-1]))
    dense = sum(effect.model == "dense" for effect in found)
    return f"{many(len(found), 'report')}, {' to '.join(ends)} %, {dense or 'none'} on a dense model"
