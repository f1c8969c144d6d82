"""A block: what a log says of the scheduling of one module."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from pgle.xla.log.events import Event
from pgle.xla.log.wordings import Kind

MAX_NAMES = 2000  # missing names kept per module; more are counted only

_END = re.compile(r"(.+)-(start|done)(?:\.\d+)*")
_FINGERPRINT_FILE = re.compile(r"(?:^|/)([0-9a-f]{32})\.pb(?:txt)?$")


@dataclass(slots=True)
class Block:
    """What the log says about the scheduling of one module."""

    thread: str  # that schedules it; empty where the log does not say
    order: int  # number of the block in the rank's log
    module: str = ""  # its name; empty where no line names it
    fingerprint: str = ""  # where a line gives it
    lines: dict[Kind, Event] = field(default_factory=dict)  # the first line of each kind
    found: int | None = None  # instructions with a cost; None where no line counts them
    missing: int | None = None  # instructions without; None where no line counts them
    missing_names: list[str] = field(default_factory=list)  # at most `MAX_NAMES` of them
    listed: int = 0  # how many the log lists
    # how many of these are the start or the done of what, such as ``("fusion", "done")``
    missing_ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    costs_found: int = 0  # VLOG lines that take a cost from the profile
    began: float | None = None  # time of day of its first line; None where lines have none
    ended: float | None = None  # the same of the last line before the next block
    closed: bool = False  # the module is done, or the next one has begun

    def miss(self, name: str) -> None:
        """Note a name that the log lists as missing."""
        self.listed += 1
        if len(self.missing_names) < MAX_NAMES:
            self.missing_names.append(name)
        if end := _END.fullmatch(name):
            self.missing_ends[end[1], end[2]] += 1

    @property
    def took_profile(self) -> bool:
        """Whether the scheduler got its costs from the profile."""
        return bool(self.lines.keys() & {Kind.FOUND_PROFILE, Kind.FOUND, Kind.MISSING})

    @property
    def lacked_profile(self) -> bool:
        """Whether a line says that the module was, or would have been, scheduled without the profile."""
        without = {Kind.NO_SUCH_FILE, Kind.UNREADABLE, Kind.OTHER_ESTIMATOR, Kind.LHS_RAN}
        return not self.took_profile and bool(self.lines.keys() & without)

    @property
    def is_past_lookup(self) -> bool:
        """Whether XLA has printed all that it prints between the lookup of the profile and the schedule."""
        return self.closed or Kind.LHS_RAN in self.lines

    @property
    def profile(self) -> str:
        """The profile that was read; empty where none was."""
        return self.lines[Kind.READ].subject if Kind.READ in self.lines else ""

    @property
    def profile_is_its_own(self) -> bool:
        """Whether what it read was meant for this module alone: an option of its compilation, or its file."""
        return self.profile.startswith("fdo_profile") or bool(_FINGERPRINT_FILE.search(self.profile))

    @property
    def fingerprint_sought(self) -> str:
        """The fingerprint of a module that has no file in the directory of profiles; empty for a single file."""
        line = self.lines.get(Kind.NO_SUCH_FILE)
        found = _FINGERPRINT_FILE.search(line.subject) if line else None
        return found[1] if found else ""

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
        """How much of a program this module is: scheduler memory, instructions counted, seconds; all 0 if unknown.

        Half without a name: what 0.7.2 and 0.8.x say of a step's clone in directory mode names no module.
        """
        memory = (self.lines[Kind.LHS_RAN].count or 0 if Kind.LHS_RAN in self.lines else 0) // (1 if self.module else 2)
        seconds = 0.0 if self.began is None or self.ended is None else (self.ended - self.began) % 86_400
        return memory, (self.found or 0) + (self.missing or 0), seconds
