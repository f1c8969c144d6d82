"""Profiles that were measured rank by rank, with execution numbers that mean the same execution in all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pgle.costs.profile.align import EndTable, Window, align, covering
from pgle.costs.profile.cost_table import Source
from pgle.costs.profile.value import Ends


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


def align_profiles(inputs: Sequence[Source]) -> AlignedProfiles:
    """What to add to the execution numbers of each profile so that they mean the same execution in all.

    Args:
        inputs: those that do not say when their collectives ended keep their numbers.
    """
    shifts: list[dict[str, int]] = [{} for _ in inputs]
    warnings = []
    kept: dict[str, tuple[Ends, ...]] = {}
    for fingerprint in dict.fromkeys(fingerprint for source in inputs for fingerprint in source.ends):
        members = {at: ends for at, source in enumerate(inputs) if (ends := source.ends.get(fingerprint))}
        windows = [Window(inputs[at].label, tuple(map(_table, ends))) for at, ends in members.items()]
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


def _unplaced(inputs: Sequence[Source]) -> list[str]:
    """A line where executions are compared with others though nothing says which is which."""
    having: dict[str, list[str]] = {}
    lacking: dict[str, list[str]] = {}
    for source in inputs:
        for fingerprint in source.compared:
            (having if source.ends.get(fingerprint) else lacking).setdefault(fingerprint, []).append(source.label)
    compared = {name: labels for name, labels in lacking.items() if len(labels) + len(having.get(name, ())) > 1}
    labels = list(dict.fromkeys(label for found in compared.values() for label in found))
    if not labels:
        return []
    return [
        f"{len(labels)} of {len(inputs)} inputs do not say when their collectives ended (first {labels[0]}), so "
        "executions are matched by their order; unless all windows begin with the same step, convert these again"
    ]
