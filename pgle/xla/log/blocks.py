"""Blocks of XLA's log: what was said during the scheduling of one module."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from pgle.xla.log.events import Event

MAX_NAMES = 2000
"""Missing names kept per module; more are counted only."""

_END = re.compile(r"(.+)-(start|done)(?:\.\d+)*")


@dataclass(slots=True)
class Block:
    """What the log says about the scheduling of one module.

    Attributes:
        rank: what stands before XLA's prefix on its lines (``[3]``), to tell ranks of one log apart.
        module: its name; empty where no line names it.
        fingerprint: where a line gives it.
        read: the profile was parsed.
        profile: the profile was given to the scheduler.
        found: instructions with a cost; None where no line counts them.
        missing: instructions without; None where no line counts them.
        missing_names: at most `MAX_NAMES` of them.
        missing_ends: how many of all of them are the start or the done of what, such as ``("fusion", "done")``.
        counted: the line that counts.
        not_in_module: the "may not applicable" line of 2024.
        no_file: first line that says the profile is not there.
        unreadable: first line that says it cannot be parsed.
        syntax: where it is wrong, from the parser.
        lhs: the scheduler ran.
        estimator: another cost model was taken.
        discarded: the accuracy checker failed the compilation.
        costs_found: VLOG lines that take a cost from the profile.
        order: number of the block in the log.
        began: time of day of its first line; None where lines have none.
        ended: the same of the last line before the next block.
        closed: the module is done; the next line belongs to another.
    """

    rank: str
    order: int
    module: str = ""
    fingerprint: str = ""
    read: Event | None = None
    profile: Event | None = None
    found: int | None = None
    missing: int | None = None
    missing_names: list[str] = field(default_factory=list)
    missing_ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    counted: Event | None = None
    not_in_module: Event | None = None
    no_file: Event | None = None
    unreadable: Event | None = None
    syntax: Event | None = None
    lhs: Event | None = None
    estimator: Event | None = None
    discarded: Event | None = None
    costs_found: int = 0
    began: float | None = None
    ended: float | None = None
    closed: bool = False

    def miss(self, name: str) -> None:
        """Note a name that the log lists as missing."""
        if len(self.missing_names) < MAX_NAMES:
            self.missing_names.append(name)
        if end := _END.fullmatch(name):
            self.missing_ends[end[1], end[2]] += 1

    @property
    def covered(self) -> tuple[int, int]:
        """Instructions with a cost, and all that want one: XLA's numbers without the dones.

        XLA finds an asynchronous fusion or copy twice, for its cost and for its latency, and misses its done, which
        costs nothing. Dones of collectives are never listed.
        """
        dones = {what: count for (what, end), count in self.missing_ends.items() if end == "done"}
        twice = sum(max(count - self.missing_ends[what, "start"], 0) for what, count in dones.items())
        found, missing = self.found or 0, self.missing or 0
        covered = max(found - twice, 0)
        return covered, covered + max(missing - sum(dones.values()), 0)

    @property
    def weight(self) -> tuple[int, int, float]:
        """How much of a program this module is: scheduler memory, instructions counted, seconds; all 0 if unknown."""
        memory = self.lhs.count or 0 if self.lhs else 0
        seconds = 0.0 if self.began is None or self.ended is None else (self.ended - self.began) % 86_400
        return memory, (self.found or 0) + (self.missing or 0), seconds


@dataclass
class Blocks:
    """A whole log.

    Attributes:
        last: the last block per (rank, module); of unnamed ones the weightiest.
        times: how many blocks there were per (rank, module).
        reads: for how many modules each profile was parsed.
        info: first INFO line of XLA, None where there is none.
        compiled: first line that says a module is compiled.
        cache_hits: modules that JAX loaded from its cache, with the line.
        flag_refused: XLA ended over a flag.
        discarded: the accuracy checker failed a compilation, as Python reports it (without a module).
        empty_trace: AutoPGLE recorded nothing.
        prints_missing: True where this XLA lists instructions without a cost (0.5.1 and newer).
    """

    last: dict[tuple[str, str], Block] = field(default_factory=dict)
    times: dict[tuple[str, str], int] = field(default_factory=dict)
    reads: dict[str, int] = field(default_factory=dict)
    info: Event | None = None
    compiled: Event | None = None
    cache_hits: dict[str, Event] = field(default_factory=dict)
    flag_refused: Event | None = None
    discarded: Event | None = None
    empty_trace: Event | None = None
    prints_missing: bool = False
