"""What XLA dumped of a program: its final modules, and the same modules as LHS saw them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pgle.errors import UserError, choices
from pgle.files import AnyPath, read_bytes

if TYPE_CHECKING:
    from pgle.xla.hlo.module import Module

_FINGERPRINT = re.compile(rb"(?:\x0a\x16fingerprint_before_lhs\x12\x20|fingerprint_before_lhs=\")(?P<hex>[0-9a-f]{32})")


def fingerprint_of(dump: AnyPath) -> str:
    """The ``fingerprint_before_lhs`` of a dump, HloProto or HLO text; empty where it has none.

    Read off the raw bytes (of a protobuf the map entry: key field 1, value field 2), so that a dump of any size costs
    one search.

    Raises:
        UserError: it cannot be read.
    """
    from pgle.xla.hlo.proto import MAX_HLO_BYTES  # and protobuf, which most answers do without

    found = _FINGERPRINT.search(read_bytes(dump, max_bytes=MAX_HLO_BYTES))
    return found["hex"].decode() if found else ""


@dataclass(frozen=True)
class Dumps:
    """The HLO dumps of a program."""

    paths: tuple[AnyPath, ...] = ()  # files and directories, as given
    modules: tuple[Module, ...] = ()  # after optimisation, in the order of their paths; several processes' may be mixed
    schedules: Mapping[str, AnyPath] = field(default_factory=dict)  # schedule dumps by module name

    def lhs_module(self, name: str) -> Module | None:
        """A module as LHS saw it, from its schedule dump; None if absent.

        Raises:
            UserError: the dump is damaged.
        """
        if name not in self.schedules:
            return None
        from pgle.xla.hlo.schedule_dump import read_schedule_dump

        file = self.schedules[name]
        given = (module for module in self.modules if module.source == str(file))
        return next(given, None) or read_schedule_dump(file).module


def read_dumps(paths: Sequence[AnyPath]) -> Dumps:
    """The dumps in files and directories; schedule dumps of LHS are looked for in the same folders.

    Raises:
        UserError: one is missing, damaged or holds no HLO.
    """
    if not paths:
        return Dumps()
    from pgle.xla.hlo.reader import read_modules  # protocol buffers take a tenth of a small conversion
    from pgle.xla.hlo.schedule_dump import find_schedule_dumps

    modules = tuple(module for path in paths for module in read_modules(path))
    schedules: dict[str, AnyPath] = {}
    for path in paths:
        schedules = {**find_schedule_dumps(path), **schedules}
    return Dumps(tuple(paths), modules, schedules)


def no_match(pattern: str, modules: Sequence[Module]) -> UserError:
    """The error where no module of a dump has a name that ``--module`` matches."""
    remedy = choices(pattern, (module.name for module in modules))
    return UserError("no module of the dump matches", where=f"--module {pattern}", remedy=remedy)


def first_names(modules: Sequence[Module]) -> str:
    """The names of the first modules, for a message."""
    return ", ".join(dict.fromkeys(module.name for module in modules[:5]))
