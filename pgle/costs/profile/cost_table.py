"""Costs of many profiles as columns, a row each: what merging a thousand ranks works on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pgle.costs.profile.effective import effective_entries
from pgle.costs.profile.files import ProfileFile, profile_of
from pgle.costs.profile.sidecar import Sidecar, occurrences
from pgle.costs.profile.value import MAX_COST_US, Cost, CostKind, Ends, Origin, Profile, module_records, split_name
from pgle.next import SHOW
from pgle.trace.table import Column

Codes = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class Description(NamedTuple):
    """What a profile says of an instruction besides its cost."""

    kind: CostKind
    opcode: str
    shape: str
    trace_name: str
    origin: Origin


@dataclass(frozen=True)
class Source:
    """What is kept of an input besides its costs."""

    label: str  # its name
    entries: int  # lines of its profile
    # provenance, warnings, ends: as in `Profile`
    provenance: Mapping[str, object]
    warnings: tuple[str, ...]
    ends: Mapping[str, tuple[Ends, ...]]
    described: bool  # whether a sidecar came along
    refused: tuple[str, ...]  # a line each on costs that were left out
    compared: frozenset[str]  # fingerprints of names with occurrences

    @property
    def only_fingerprint(self) -> str:
        """The fingerprint of the one module that the sidecar names; empty where there is not exactly one."""
        modules = module_records(self.provenance)
        found: Sequence[str] = modules[0].get("fingerprints", ()) if len(modules) == 1 else ()
        return str(found[0]) if len(found) == 1 else ""


@dataclass(frozen=True, eq=False)
class Occurrences:
    """How long collectives took, m rows."""

    row: Small  # int32[m], the cost it is an occurrence of
    # execution, occurrence, group: int32[m], as in the keys of `Profile.occurrences`
    execution: Small
    occurrence: Small
    group: Small
    time_us: Floats  # float64[m]


@dataclass(frozen=True, eq=False)
class CostTable:
    """Costs of several profiles, n rows, in the order of the inputs."""

    occurrences: Occurrences  # of all rows
    names: tuple[tuple[str, str], ...]  # fingerprint and name
    descriptions: tuple[Description, ...]  # each once
    source: Small  # int32[n], number of the input
    name: Small  # int32[n], index into `names`; -1: left out
    description: Small  # int32[n], index into `descriptions`
    # cost_us, min_us, max_us, spread, slowest_us: float64[n], as in `Cost`; `slowest_us` is NaN where unknown
    cost_us: Floats
    samples: Codes  # int64[n]
    min_us: Floats
    max_us: Floats
    spread: Floats
    slowest_us: Floats

    @cached_property
    def described(self) -> tuple[tuple[int, Description], ...]:
        """Each name's different descriptions, in order of first appearance."""
        return tuple(self.descriptions_of(np.flatnonzero(self.name >= 0)))

    def descriptions_of(self, rows: Codes) -> Iterator[tuple[int, Description]]:
        """Each name's different descriptions, in order of first appearance in these rows."""
        pairs = self.name[rows].astype(np.int64) * len(self.descriptions) + self.description[rows]
        _, first = np.unique(pairs, return_index=True)
        for row in rows[np.sort(first)].tolist():
            yield int(self.name[row]), self.descriptions[self.description[row]]

    def cost(self, row: int) -> Cost:
        """One row."""
        fingerprint, name = self.names[self.name[row]]
        found = self.descriptions[self.description[row]]
        slowest_us = float(self.slowest_us[row])
        return Cost(
            name, float(self.cost_us[row]), fingerprint, found.kind, found.opcode, found.shape, int(self.samples[row]),
            float(self.min_us[row]), float(self.max_us[row]), float(self.spread[row]),
            None if np.isnan(slowest_us) else slowest_us, found.trace_name, found.origin,
        )  # fmt: skip


_VALUES: dict[str, Any] = {"samples": 0, "min_us": 0.0, "max_us": 0.0, "spread": 0.0, "slowest_us": None}
_TEXTS: dict[str, Any] = {"kind": "", "opcode": "", "shape": "", "trace_name": "", "origin": None}
"""Columns, and their default if a record lacks them."""
_TYPES = (np.int32, np.int32, np.int32, np.float64, np.int64, *4 * (np.float64,))
"""Types of the columns: source, name, description, cost, and `_VALUES`."""


class _Collector:
    """A `CostTable` that grows by one profile at a time."""

    def __init__(self) -> None:
        self.names: dict[tuple[str, str], int] = {}
        self.written: tuple[str, ...] = ()
        """The names of the last profile. Ranks of one program have the same, to be looked at once."""
        self.numbers: Small = np.empty(0, np.int32)
        self.descriptions: dict[tuple[object, ...], int] = {}
        self.known: list[Description] = []
        self.texts: Sequence[Sequence[object]] = ()
        self.described: Small = np.empty(0, np.int32)
        self.columns: tuple[Column[Any], ...] = tuple(map(Column, _TYPES))
        self.times: tuple[Column[Any], ...] = tuple(map(Column, (*4 * (np.int32,), np.float64)))
        self.rows = self.sources = 0

    def add(self, label: str, given: Profile | ProfileFile) -> Source:
        """The costs that XLA would take and that mean something."""
        if isinstance(given, ProfileFile) and given.sidecar is not None:
            try:
                return self._add_plain(label, given, given.sidecar)
            except (TypeError, ValueError, AttributeError, KeyError, OverflowError):
                pass  # what is odd or damaged is dealt with where a profile is read thoroughly
        return self._add_profile(label, given if isinstance(given, Profile) else profile_of(given))

    def _add_plain(self, label: str, file: ProfileFile, sidecar: Sidecar) -> Source:
        """A file in which every line counts as it is, without a `Cost` each: that takes as long as all the rest.

        Raises:
            ValueError, TypeError, …: it is another one; nothing is kept of it.
        """
        written, cost_us = zip(*file.entries, strict=True)
        if written != self.written and not _count_as_written(written):
            raise ValueError(label)
        times = np.array(cost_us)
        if not bool(((times >= 0) & (times <= MAX_COST_US)).all()):  # NaN is neither
            raise ValueError(label)
        values, texts = (
            [[record.get(name, absent) for record in sidecar.records] for name, absent in of.items()]
            for of in (_VALUES, _TEXTS)
        )
        if {*map(type, values[0])} != {int}:
            raise TypeError(label)
        tables = [(at, occurrences(record)) for at, record in enumerate(sidecar.records) if "occurrences" in record]
        self._append(written, cost_us, values, texts, tables)
        return Source(
            label, len(written), sidecar.provenance, (*file.warnings, *sidecar.warnings), sidecar.ends,
            described=Origin.UNKNOWN.value not in texts[-1],
            refused=(),
            compared=frozenset(split_name(written[at])[0] for at, _ in tables),
        )  # fmt: skip

    def _add_profile(self, label: str, profile: Profile) -> Source:
        entries = effective_entries(profile)
        usable = [cost for cost in entries if cost.is_valid and cost.name]
        values, texts = ([[getattr(cost, field) for cost in usable] for field in of] for of in (_VALUES, _TEXTS))
        written = tuple(cost.full_name for cost in usable)
        tables = [(at, table) for at, name in enumerate(written) if (table := profile.occurrences.get(name))]
        self._append(written, [cost.cost_us for cost in usable], values, texts, tables)
        return Source(
            label, len(profile), profile.provenance, profile.warnings, profile.ends,
            described=all(cost.origin != Origin.UNKNOWN for cost in profile.costs),
            refused=tuple(_refused(profile, entries)),
            compared=frozenset(split_name(name)[0] for name in profile.occurrences),
        )  # fmt: skip

    def _append(
        self,
        written: tuple[str, ...],
        cost_us: Sequence[float],
        values: Sequence[Sequence[float | None]],
        texts: Sequence[Sequence[object]],
        tables: Sequence[tuple[int, Mapping[str, float]]],
    ) -> None:
        """Rows. Nothing is kept of them where a value is no number."""
        columns = [
            np.full(len(written), self.sources), self._numbers(written), self._described(texts), cost_us, *values,
        ]  # fmt: skip
        arrays: list[npt.NDArray[Any]] = [
            np.asarray(column, dtype) for column, dtype in zip(columns, _TYPES, strict=True)
        ]
        for column, array in zip(self.columns, arrays, strict=True):
            column.append(array)
        if tables:
            keys = [_place(key) for _, table in tables for key in table]
            rows = np.array([self.rows + at for at, _ in tables], np.int32)
            time_us = np.array([value for _, table in tables for value in table.values()], np.float64)
            places = np.array(keys, np.int32).reshape(-1, 3).T
            found = np.repeat(rows, [len(table) for _, table in tables]), *places, time_us
            for column, part in zip(self.times, found, strict=True):
                column.append(part)
        self.rows += len(written)
        self.sources += 1

    def _numbers(self, written: tuple[str, ...]) -> Small:
        """The numbers of names as profiles spell them."""
        if written != self.written:
            known = self.names
            numbers = [known.setdefault(split_name(name), len(known)) for name in written]
            self.written, self.numbers = written, np.array(numbers, np.int32)
        return self.numbers

    def _described(self, texts: Sequence[Sequence[object]]) -> Small:
        """The numbers of descriptions, given by column."""
        if texts != self.texts:
            for item in dict.fromkeys(zip(*texts, strict=True)):
                if item not in self.descriptions:
                    kind, opcode, shape, trace_name, origin = map(str, item)
                    self.known.append(Description(CostKind(kind), opcode, shape, trace_name, Origin(origin)))
                    self.descriptions[item] = len(self.descriptions)
            numbers = list(map(self.descriptions.__getitem__, zip(*texts, strict=True)))
            self.texts, self.described = texts, np.array(numbers, np.int32)
        return self.described

    def append(self, table: CostTable, sources: int) -> None:
        """The rows of the next inputs, so many, that were collected apart."""
        numbers = [self.names.setdefault(name, len(self.names)) for name in table.names]
        texts = []
        for found in table.descriptions:
            if found not in self.descriptions:
                self.known.append(found)
            texts.append(self.descriptions.setdefault(found, len(self.descriptions)))
        times = table.occurrences
        values = (table.cost_us, table.samples, table.min_us, table.max_us, table.spread, table.slowest_us)
        codes = (table.source + self.sources, np.array(numbers)[table.name], np.array(texts)[table.description])
        places = (times.row + self.rows, times.execution, times.occurrence, times.group, times.time_us)
        parts: tuple[npt.NDArray[Any], ...] = (*codes, *values, *places)
        for column, part in zip((*self.columns, *self.times), parts, strict=True):
            column.append(part)
        self.rows += len(table.name)
        self.sources += sources

    def table(self) -> CostTable:
        """All rows. The collector is empty afterwards, so that each column is held twice only while it is joined."""
        times = Occurrences(*(column.join() for column in self.times))
        columns: list[Any] = [column.join() for column in self.columns]
        return CostTable(times, tuple(self.names), tuple(self.known), *columns)


@lru_cache(maxsize=1 << 16)
def _place(key: str) -> tuple[int, ...]:
    """Execution, occurrence and group of a key of `Profile.occurrences`."""
    return (*map(int, key.split(".")), 0)[:3]


def _count_as_written(names: Sequence[str]) -> bool:
    """Whether XLA takes every cost under its name, and no other."""
    bare = (split_name(name)[1] if "::" in name else name for name in names)
    odd = any(not name or ".remat" in name or "::" in name for name in bare)
    return not odd and len(set(names)) == len(names)


def _refused(profile: Profile, entries: Sequence[Cost]) -> Iterable[str]:
    """A line each about costs that do not mean anything."""
    bad = [cost for cost in entries if not cost.is_valid]
    if bad:
        yield f"{len(bad)} costs left out, negative, over 30 years or not finite ({bad[0].full_name}: {bad[0].cost_us})"
    nameless = sum(not cost.name for cost in entries if cost.is_valid)
    if nameless:
        yield f"{nameless} cost{'s' * (nameless > 1)} left out, without a name"
    unused = len(profile.costs) - len(entries)
    if unused:
        yield f"{unused} of {len(profile)} costs do not count, as in XLA (repeated or odd names); see `{SHOW}`"


def collect(inputs: Iterable[tuple[str, Profile | ProfileFile]]) -> tuple[CostTable, tuple[Source, ...]]:
    """The costs of all inputs, which are looked at one after the other and not kept."""
    collector = _Collector()
    sources = tuple(collector.add(label, given) for label, given in inputs)
    return collector.table(), sources


def joined(parts: Iterable[tuple[CostTable, tuple[Source, ...]]]) -> tuple[CostTable, tuple[Source, ...]]:
    """What `collect` gives of all inputs, from what it gave of some at a time, in their order."""
    collector = _Collector()
    every: list[Source] = []
    for table, sources in parts:
        collector.append(table, len(sources))
        every += sources
    return collector.table(), tuple(every)
