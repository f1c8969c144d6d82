"""The differences of two compilations of one program: exact facts, and sure predicted changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pgle.releases.facts import CollectiveUse, ProgramFacts
from pgle.schedule.control import ROUNDED, Controlled
from pgle.schedule.launches import Difference, differences
from pgle.schedule.predict import Gain
from pgle.worth import is_worth
from pgle.xla.flags.catalogue import catalogue, known_in
from pgle.xla.flags.text import Flag

OLD, NEW = "old", "new"
"""Names of the two programs, used as ranks in `ProgramChanges.order`."""
NOTHING = CollectiveUse(0, 0, 0)


@dataclass(frozen=True)
class ProgramChanges:
    """The exact differences between two programs. Pairs are (before, after)."""

    # kinds of collectives whose number, bytes or number of asynchronous ones differ
    collectives: Mapping[str, tuple[CollectiveUse, CollectiveUse]]
    order: Difference | None  # the first place where collectives are in another order
    products: Mapping[str, tuple[int, int]]  # counts by the types of their operands
    # counts by kind of fusion and by target of custom call
    kernels: Mapping[str, tuple[int, int]]
    gone: int  # scheduled instructions without an equal in the new program
    come: int  # scheduled instructions without an equal in the old program
    memory_bytes: tuple[int | None, int | None]
    has_same_fingerprint: bool

    @property
    def is_empty(self) -> bool:
        """Whether both programs do the same work in the same order of collectives."""
        counts = self.collectives or self.products or self.kernels
        return not counts and self.order is None and self.gone == self.come == 0


def changes(before: ProgramFacts, after: ProgramFacts) -> ProgramChanges:
    """Compare the facts of two compilations."""
    kinds = {}
    for kind in {**before.collectives, **after.collectives}:
        old = before.collectives.get(kind, NOTHING)
        new = after.collectives.get(kind, NOTHING)
        if old != new:
            kinds[kind] = (old, new)
    orders = {OLD: before.order, NEW: after.order}
    first = next(iter(differences(orders, {})), None)
    gone = Counter(before.work) - Counter(after.work)
    come = Counter(after.work) - Counter(before.work)
    return ProgramChanges(
        collectives=kinds,
        order=first,
        products=_unequal(before.products, after.products),
        kernels=_unequal(before.kernels, after.kernels),
        gone=gone.total(),
        come=come.total(),
        memory_bytes=(before.memory_bytes, after.memory_bytes),
        has_same_fingerprint=before.fingerprint == after.fingerprint,
    )


def _unequal(
    before: Mapping[str, int], after: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """The counts that differ, by name."""
    found = {}
    for name in {**before, **after}:
        counts = before.get(name, 0), after.get(name, 0)
        if counts[0] != counts[1]:
            found[name] = counts
    return found


def settled(found: Controlled) -> Gain | None:
    """The smaller of two predicted changes, if both compilations agree; None if the change depends
    on autotuning.

    Compilations agree if both change the step in one direction, or if both changes are small.
    """
    if found.other is None:
        return found.first
    first, other = found.shares
    sizes = [abs(first), abs(other)]
    if first * other > 0 and min(sizes) >= ROUNDED:
        return found.answer
    return None if is_worth(max(sizes)) else found.answer


@dataclass(frozen=True, slots=True)
class FlagChange:
    """A flag that two releases treat differently."""

    name: str
    # before, after: its default in each release; None if the release does not know
    # the flag, empty if only that is known
    before: str | None
    after: str | None
    instead: str = ""  # the flag that replaces it
    is_set: bool = False  # whether the program sets it


def flag_changes(
    flags: Iterable[Flag], before: str, after: str
) -> tuple[FlagChange, ...]:
    """The set flags that only one release knows, and other flags of the catalogue with a new
    default.

    Args:
        flags: the flags that the program sets.
        before: a release of jaxlib, such as ``0.7.2``.
        after: another release.
    """
    found = []
    described = catalogue()
    names = {flag.name for flag in flags}
    for name in sorted(names):
        setting = described.get(name)
        if known_in(name, before) is not known_in(name, after):
            instead = "" if setting is None else setting.use
            sides = [_known(name, release) for release in (before, after)]
            found.append(FlagChange(name, sides[0], sides[1], instead, is_set=True))
    for name, setting in described.items():
        known = setting.is_flag and setting.known_in(before) and setting.known_in(after)
        defaults = setting.default(before), setting.default(after)
        if known and name not in names and defaults[0] != defaults[1]:
            found.append(FlagChange(name, defaults[0], defaults[1]))
    return tuple(found)


def _known(name: str, release: str) -> str | None:
    return None if known_in(name, release) is False else ""
