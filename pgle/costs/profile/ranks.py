"""Profiles that were measured rank by rank, with execution numbers that mean the same execution in all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pgle.costs.profile.align import EndTable, Window, align, covering
from pgle.costs.profile.names import split_name
from pgle.costs.profile.value import Ends, Profile


@dataclass(frozen=True)
class AlignedProfiles:
    """Where the windows of profiles begin.

    Attributes:
        shifts: by input, what to add to its execution numbers, by fingerprint.
        ends: for their merger, what `Profile.ends` keeps.
        warnings: one line each.
    """

    shifts: tuple[Mapping[str, int], ...]
    ends: Mapping[str, tuple[Ends, ...]]
    warnings: tuple[str, ...]


def align_profiles(inputs: Sequence[tuple[str, Profile]]) -> AlignedProfiles:
    """What to add to the execution numbers of each profile so that they mean the same execution in all.

    Args:
        inputs: label and profile. Those that do not say when their collectives ended keep their numbers.
    """
    shifts: list[dict[str, int]] = [{} for _ in inputs]
    warnings = []
    kept: dict[str, tuple[Ends, ...]] = {}
    for fingerprint in dict.fromkeys(fingerprint for _, profile in inputs for fingerprint in profile.ends):
        members = {at: ends for at, (_, profile) in enumerate(inputs) if (ends := profile.ends.get(fingerprint))}
        windows = [Window(inputs[at][0], tuple(map(_table, ends))) for at, ends in members.items()]
        found = align(windows)
        for at, by in zip(members, found.shift, strict=True):
            shifts[at][fingerprint] = by
        lengths = [len(window.executions()) for window in windows]
        if line := found.describe(min(lengths), max(lengths)):
            warnings.append(f"{next(iter(members.values()))[0].module}: {line}; trace the same steps on all")
        kept[fingerprint] = covering(
            replace(one, first=one.first + by)
            for ends, by in zip(members.values(), found.shift, strict=True)
            for one in ends
        )
    return AlignedProfiles(tuple(shifts), kept, (*warnings, *_unplaced(inputs)))


def _table(ends: Ends) -> EndTable:
    ns = np.array(ends.ns, np.float64).reshape(len(ends.ns), len(ends.columns))
    return EndTable(ends.columns, ns, ends.first, ends.utc_ns)


def _unplaced(inputs: Sequence[tuple[str, Profile]]) -> list[str]:
    """A line where executions are compared with others though nothing says which is which."""
    having: dict[str, list[str]] = {}
    lacking: dict[str, list[str]] = {}
    for label, profile in inputs:
        for fingerprint in {split_name(name)[0] for name in profile.occurrences}:
            (having if profile.ends.get(fingerprint) else lacking).setdefault(fingerprint, []).append(label)
    compared = {name: labels for name, labels in lacking.items() if len(labels) + len(having.get(name, ())) > 1}
    labels = list(dict.fromkeys(label for found in compared.values() for label in found))
    if not labels:
        return []
    return [
        f"{len(labels)} of {len(inputs)} inputs do not say when their collectives ended (first {labels[0]}), so "
        "executions are matched by their order; unless all windows begin with the same step, convert these again"
    ]


def renumbered(profile: Profile, by: Mapping[str, int]) -> Profile:
    """The profile with execution numbers moved by so many, by fingerprint."""
    if not any(by.values()):
        return profile
    occurrences = {
        name: _renumbered(table, by.get(split_name(name)[0], 0)) for name, table in profile.occurrences.items()
    }
    return replace(profile, occurrences=occurrences)


def _renumbered(table: Mapping[str, float], by: int) -> Mapping[str, float]:
    if not by:
        return table
    split = ((key.partition("."), value) for key, value in table.items())
    return {f"{int(execution) + by}.{rest}": value for (execution, _, rest), value in split}
