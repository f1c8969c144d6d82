"""Profiles of ranks that were each reduced on their own: execution numbers that mean the same execution in all.

As `pgle.costs.measure.align` has it for traces, from what their sidecars keep of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from pgle.costs.measure.align import Alignment, covering, nearest_first
from pgle.costs.measure.match import Evidence, match
from pgle.costs.profile.names import split_name
from pgle.costs.profile.value import Ends, Profile

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Aligned:
    """Profiles whose execution numbers mean the same.

    Attributes:
        profiles: in the order of the inputs.
        ends: for their merger, what `Profile.ends` keeps.
        warnings: one line each.
    """

    profiles: tuple[Profile, ...]
    ends: Mapping[str, tuple[Ends, ...]]
    warnings: tuple[str, ...]


def align_profiles(inputs: Sequence[tuple[str, Profile]]) -> Aligned:
    """The profiles of ranks with execution numbers that mean the same execution in all.

    Args:
        inputs: label and profile. Those that do not say when their collectives ended keep their numbers.
    """
    fingerprints = dict.fromkeys(fingerprint for _, profile in inputs for fingerprint in profile.ends)
    shifts: list[dict[str, int]] = [{} for _ in inputs]
    warnings = []
    kept: dict[str, tuple[Ends, ...]] = {}
    for fingerprint in fingerprints:
        members = [number for number, (_, profile) in enumerate(inputs) if profile.ends.get(fingerprint)]
        windows = [_Window(inputs[number][0], inputs[number][1].ends[fingerprint]) for number in members]
        found = _place(windows)
        for number, by in zip(members, found.shift.tolist(), strict=True):
            shifts[number][fingerprint] = by
        lengths = [len(window.executions) for window in windows]
        if line := found.describe(min(lengths), max(lengths)):
            warnings.append(f"{windows[0].ends[0].module}: {line}; trace the same steps on all")
        kept[fingerprint] = found.ends
    profiles = tuple(_moved(profile, by) for (_, profile), by in zip(inputs, shifts, strict=True))
    return Aligned(profiles, kept, (*warnings, *_unplaced(inputs)))


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


class _Window:
    """The ends of one input as arrays.

    Attributes:
        label: the input's.
        ends: by process; not empty.
        places: the column numbers of each.
        tables: float64[executions, columns] ns of each, NaN where it did not run.
        columns: of any process.
        executions: numbers of those with an end.
    """

    def __init__(self, label: str, ends: tuple[Ends, ...]) -> None:
        self.label, self.ends = label, ends
        self.tables = [np.array(one.ns, np.float64).reshape(len(one.ns), len(one.columns)) for one in ends]
        self.places = [{column: place for place, column in enumerate(one.columns)} for one in ends]
        self.columns = dict.fromkeys(column for one in ends for column in one.columns)
        self.executions = sorted(
            {
                one.first + int(row)
                for one, table in zip(ends, self.tables, strict=True)
                for row in np.flatnonzero(np.isfinite(table).any(axis=1))
            }
        )


def _place(windows: Sequence[_Window]) -> Alignment:
    """How the windows lie on each other."""
    having: dict[tuple[str, int], list[int]] = {}
    for number, window in enumerate(windows):
        for column in window.columns:
            having.setdefault(column, []).append(number)

    def closeness(at: int) -> Codes:
        others = [number for column in windows[at].columns for number in having[column]]
        return np.bincount(others, minlength=len(windows)).astype(np.int64)

    shift = np.zeros(len(windows), np.int64)
    weakest, unclear = Evidence.CLOCK, ""
    for number, partner in nearest_first(len(windows), closeness):
        by, evidence = _match(windows[partner], windows[number])
        shift[number] = shift[partner] + by
        if evidence >= Evidence.NONE and evidence > weakest:
            unclear = windows[number].label
        weakest = max(weakest, evidence)
    shift -= shift.min()
    moves = shift.tolist()
    begins = [min(one.first for one in window.ends) + by for window, by in zip(windows, moves, strict=True)]
    numbers = Counter(
        execution + by for window, by in zip(windows, moves, strict=True) for execution in window.executions
    )
    return Alignment(
        shift=shift,
        evidence=weakest,
        apart=max(begins) - min(begins),
        unclear=unclear,
        whole=sum(count == len(windows) for count in numbers.values()),
        ends=covering(
            replace(one, first=one.first + by) for window, by in zip(windows, moves, strict=True) for one in window.ends
        ),
    )


def _match(one: _Window, other: _Window) -> tuple[int, Evidence]:
    """What to add to the execution numbers of `other`, and what tells; by the processes that have most in common."""

    def shared(pair: tuple[int, int]) -> list[tuple[str, int]]:
        return [column for column in one.ends[pair[0]].columns if column in other.places[pair[1]]]

    pair = max(product(range(len(one.ends)), range(len(other.ends))), key=lambda pair: len(shared(pair)))
    first, second = one.ends[pair[0]], other.ends[pair[1]]
    columns = shared(pair)
    by, evidence = match(
        one.tables[pair[0]][:, [one.places[pair[0]][column] for column in columns]],
        other.tables[pair[1]][:, [other.places[pair[1]][column] for column in columns]],
        None if first.utc_ns is None or second.utc_ns is None else float(first.utc_ns - second.utc_ns),
    )
    return first.first + by - second.first, evidence


def _moved(profile: Profile, by: Mapping[str, int]) -> Profile:
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
