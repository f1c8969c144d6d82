"""The public record: what others measured for a flag on a GPU training step, with links.

The data file in this folder, `flags_record.toml`, is our own compilation of published figures. No figure of pgle
depends on it: it is shown next to predictions, and `benchmarks/public_record.py` compares the two.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pgle.errors import many
from pgle.xla.flags.catalogue import catalogue

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
    text = files("pgle.xla").joinpath("data", "flags_record.toml").read_text(encoding="utf-8")
    return tuple(_effect(entry) for entry in tomllib.loads(text)["effect"])


def _effect(entry: Mapping[str, Any]) -> Effect:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return Effect(**values)


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


def summary(effects: Iterable[Effect]) -> str:
    """How many reports there are, their range, and on which kind of program: ``3 reports, +2.4 to +7.1 %, …``."""
    found = tuple(effects)
    if not found:
        return "no report"
    readings = sorted(reading for effect in found for reading in effect.change)
    ends = dict.fromkeys(f"{reading:+.1f}".replace("-", "−") for reading in (readings[0], readings[-1]))
    dense = sum(effect.model == "dense" for effect in found)
    return f"{many(len(found), 'report')}, {' to '.join(ends)} %, {dense or 'none'} on a dense model"
