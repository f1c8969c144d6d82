"""Profiles of ranks, or of runs, become one: of each name a statistic over the inputs, and the records of modules.

Percentiles interpolate linearly, as `numpy.percentile` does. jaxlib's ``aggregate_profiled_instructions`` takes the
element ``int(percentile / 100 * (n - 1))`` of the n sorted costs instead, and counts every input once. Here an input
counts as often as it has samples of a name.

A collective's time on one rank includes waiting for the last rank, in each execution another one. A profile has no
executions, so the least over ranks still includes some waiting. Measuring all traces together leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain, pairwise, product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pgle import __version__
from pgle.costs.measure.samples import Statistic, parse_statistic
from pgle.costs.profile.value import (
    Cost,
    CostKind,
    Origin,
    Profile,
    effective_entries,
    join_name,
    likely_kind,
    module_records,
    split_name,
)
from pgle.errors import UserError
from pgle.next import SHOW
from pgle.trace.columns import BLOCK_ROWS, Codes, Flags, Floats, GrowingColumn, heads


class MergeOf(StrEnum):
    """What the inputs are profiles of."""

    RANKS = "ranks"  # ranks of one run
    RUNS = "runs"  # independent measurements of one program


@dataclass(frozen=True)
class MergeOptions:
    """How several costs of one name become one."""

    of: MergeOf = MergeOf.RANKS  # ranks or runs
    stat: Statistic = field(
        default_factory=lambda: parse_statistic("median")
    )  # over inputs, for compute
    collective_stat: Statistic | None = (
        None  # over inputs, for collectives. None: minimum of ranks, `stat` of runs
    )

    @property
    def of_collectives(self) -> Statistic:
        """The statistic over the inputs' costs of a collective."""
        return self.collective_stat or (
            parse_statistic("min") if self.of == MergeOf.RANKS else self.stat
        )


MOST_PARTIAL = 0.1
"""Share of the names that not all inputs have, from which on they may be of other programs or cut off."""


@dataclass(frozen=True)
class MergedProfile:
    """What merging gave."""

    profile: Profile  # one cost per name, ordered by fingerprint and name; the bare names first
    inputs: tuple[str, ...]  # their labels
    partial: tuple[str, ...]  # names that not all inputs have
    conflicts: tuple[str, ...]  # names left out, which are not the same instruction in all inputs

    @property
    def is_of_one(self) -> bool:
        """Whether the inputs seem to be of one program."""
        return len(self.partial) <= MOST_PARTIAL * len(self.profile)


class Text(NamedTuple):
    """What a profile says of an instruction in words; fields as in `Cost`."""

    kind: CostKind
    opcode: str
    shape: str
    trace_name: str
    origin: Origin


NUMBERS = ("cost_us", "samples", "min_us", "max_us", "spread", "slowest_us")
"""Fields of `Cost` that are numbers, in the order of `MergeInput.numbers`."""


@dataclass(frozen=True, eq=False)
class MergeInput:
    """What merging needs of a profile: the n costs that XLA would take and that mean something, as columns."""

    label: str  # its name
    entries: int  # lines of the profile
    left_out: int  # of them those that mean nothing
    provenance: Mapping[str, object]  # as in `Profile`
    warnings: tuple[str, ...]  # as in `Profile`
    described: bool  # whether a sidecar came along
    names: Sequence[str]  # n names as profiles spell them
    texts: Sequence[Text]  # each once
    text: npt.NDArray[np.int32]  # int32[n], index into `texts`
    # float64[len(NUMBERS), n]; NaN where a rank's slowest is unknown. Doubles hold whole numbers of samples up to 2^53.
    numbers: Floats


def merge_input(label: str, profile: Profile) -> MergeInput:
    """A profile, called `label`, for `merge`. Of duplicate names each counts as XLA would take it."""
    usable = [cost for cost in effective_entries(profile) if cost.name and cost.is_valid]
    of = dict(
        zip(
            Cost._fields,
            zip(*usable, strict=True) if usable else [()] * len(Cost._fields),
            strict=True,
        )
    )
    texts = list(zip(*(of[name] for name in Text._fields), strict=True))
    known = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return MergeInput(
        label,
        len(profile),
        len(profile) - len(usable),
        profile.provenance,
        profile.warnings,
        described=Origin.UNKNOWN not in {cost.origin for cost in profile.costs},
        names=[cost.full_name for cost in usable] if any(of["fingerprint"]) else of["name"],
        texts=list(map(Text._make, known)),
        text=np.array([known[text] for text in texts], np.int32),
        numbers=np.array([of[name] for name in NUMBERS], np.float64),
    )


@dataclass(frozen=True, eq=False)
class _Table:
    """The costs of all inputs, n rows in their order."""

    names: tuple[tuple[str, str], ...]  # fingerprint and name
    texts: tuple[Text, ...]  # each once
    # int[n] each, in as many bytes as they need
    source: Codes  # number of the input
    name: Codes  # index into `names`
    text: Codes  # index into `texts`
    numbers: tuple[Floats, ...]  # of each of `NUMBERS` float64[n]

    def only(self, rows: Flags) -> _Table:
        """Some of the rows."""
        if rows.all():
            return self
        numbers = tuple(column[rows] for column in self.numbers)
        return replace(
            self,
            source=self.source[rows],
            name=self.name[rows],
            text=self.text[rows],
            numbers=numbers,
        )

    def described(self) -> dict[int, list[Text]]:
        """By name its different texts, in order of first appearance."""
        found: dict[int, dict[Text, None]] = {}
        for at in range(0, len(self.name), BLOCK_ROWS):
            name, text = self.name[at : at + BLOCK_ROWS], self.text[at : at + BLOCK_ROWS]
            _, first = np.unique(name.astype(np.int64) * len(self.texts) + text, return_index=True)
            for row in np.sort(first).tolist():
                found.setdefault(int(name[row]), {})[self.texts[text[row]]] = None
        return {number: list(texts) for number, texts in found.items()}


def merge(inputs: Iterable[MergeInput], options: MergeOptions | None = None) -> MergedProfile:
    """One profile of several, of which a thousand need not be in memory together.

    Raises:
        UserError: no name is left.
    """
    options = options or MergeOptions()
    table, sources = _joined(inputs)
    table, conflicts = _without_conflicts(table)
    if not len(table.name):
        raise UserError("no cost is left of the inputs", remedy=f"see what they hold with `{SHOW}`")
    seen = np.bincount(table.name, minlength=len(table.names)).tolist()
    costs = dict(_merged(_most_trusted(table), options))
    order = sorted(costs, key=table.names.__getitem__)
    partial = tuple(costs[number].full_name for number in order if seen[number] < len(sources))
    shared = sum(
        costs[number].likely_kind == CostKind.COLLECTIVE and seen[number] > 1 for number in order
    )
    warnings = [
        f"{source.label}: {line}"
        for source in sources
        for line in source.warnings
        if not source.described
    ]
    warnings += (
        f"{source.label}: {source.left_out} of {source.entries} costs do not count (repeated, without a name or no "
        f"time); see `{SHOW}`"
        for source in sources
        if source.left_out
    )
    if conflicts:
        warnings.append(
            f"{len(conflicts)} names left out: another opcode or shape in each input, first {conflicts[0]}"
        )
    if len(partial) > MOST_PARTIAL * len(order):
        warnings.append(
            f"{len(partial)} of {len(order)} names are not in all inputs; are they of one program?"
        )
    if options.of == MergeOf.RANKS and shared:
        warnings.append(
            f"{shared} collectives merged by the {options.of_collectives.name} of the inputs, which still includes "
            "waiting for other ranks; convert all traces together for the exact cost"
        )
    found = tuple(costs[number] for number in order)
    profile = Profile(found, _provenance(sources, options), tuple(dict.fromkeys(warnings)))
    return MergedProfile(profile, tuple(source.label for source in sources), partial, conflicts)


def _joined(inputs: Iterable[MergeInput]) -> tuple[_Table, tuple[MergeInput, ...]]:
    """The costs of all inputs; and the inputs, without their columns."""
    names: dict[str, int] = {}
    texts: dict[Text, int] = {}
    sources: list[MergeInput] = []
    codes, numbers = (
        [GrowingColumn(np.int16) for _ in range(3)],
        [GrowingColumn(np.float64) for _ in NUMBERS],
    )
    last: Sequence[str] = ()
    of_name, none = np.empty(0, np.int64), np.empty(0)
    for number, item in enumerate(inputs):
        if item.names != last:  # ranks mostly have the same names in the same order
            last, of_name = (
                item.names,
                np.array([names.setdefault(name, len(names)) for name in item.names], np.int64),
            )
        of_text = np.array([texts.setdefault(text, len(texts)) for text in item.texts], np.int64)
        for code, of_rows in zip(
            codes, (np.full_like(of_name, number), of_name, of_text[item.text]), strict=True
        ):
            code.append(of_rows)
        for column, values in zip(numbers, item.numbers, strict=True):
            column.append(values)
        sources.append(replace(item, names=(), texts=(), text=none.astype(np.int32), numbers=none))
    source, name, text = (column.join() for column in codes)
    joined = tuple(column.join() for column in numbers)
    return _Table(tuple(map(split_name, names)), tuple(texts), source, name, text, joined), tuple(
        sources
    )


def _without_conflicts(table: _Table) -> tuple[_Table, tuple[str, ...]]:
    """The table without names that are several instructions, and these."""
    several = [
        number
        for number, found in table.described().items()
        if len({text.opcode for text in found} - {""}) > 1
        or len({text.shape for text in found} - {""}) > 1
    ]
    names = sorted(table.names[number] for number in several)
    return table.only(~np.isin(table.name, several)), tuple(join_name(*name) for name in names)


_TRUST = {
    Origin.MEASURED: 0,
    Origin.UNKNOWN: 0,
    Origin.SIMULATED: 1,
    Origin.SAME_SHAPE: 2,
    Origin.ESTIMATED: 3,
}
"""Where inputs have a cost from different origins, the lowest of these counts alone."""


def _most_trusted(table: _Table) -> _Table:
    trust = np.array([_TRUST[text.origin] for text in table.texts], np.int8)[table.text]
    best = np.full(len(table.names), len(_TRUST), np.int8)
    np.minimum.at(best, table.name, trust)
    return table.only(trust == best[table.name])


def _merged(table: _Table, options: MergeOptions) -> Iterator[tuple[int, Cost]]:
    """Of each name one cost. Its spread is the largest within an input or between inputs."""
    texts = {number: _united(found) for number, found in table.described().items()}
    collective = np.zeros(len(table.names), np.bool_)
    for number, text in texts.items():
        collective[number] = (
            text.kind or likely_kind(table.names[number][1])
        ) == CostKind.COLLECTIVE
    slowest_us = _slowest_us(table, options.of)
    # Names in blocks of as many rows: names that few inputs have would make many blocks, and each looks at all rows.
    ends = np.cumsum(np.bincount(table.name, minlength=len(table.names)))
    firsts = heads((ends - 1) // BLOCK_ROWS).tolist()
    for (of, stat), (low, high) in product(
        ((~collective, options.stat), (collective, options.of_collectives)),
        pairwise((*firsts, len(table.names))),
    ):
        chosen = np.flatnonzero((table.name >= low) & (table.name < high) & of[table.name])
        rows = chosen[np.argsort(table.name[chosen], kind="stable")]
        for number, values in _statistics(table, rows, stat) if len(rows) else ():
            fingerprint, name = table.names[number]
            longest = None if np.isnan(slowest_us[number]) else float(slowest_us[number])
            known = dict(zip(NUMBERS, (*values, longest), strict=True))
            yield number, Cost(name, fingerprint=fingerprint, **known, **texts[number]._asdict())


def _statistics(table: _Table, rows: Codes, stat: Statistic) -> Iterator[tuple[int, list[Any]]]:
    """Name and `NUMBERS`, but for the last, of rows that are ordered by name."""
    cost_us, samples, min_us, max_us, spread = (column[rows] for column in table.numbers[:-1])
    first = heads(table.name[rows])
    count = np.diff(np.append(first, len(rows)))
    group = np.repeat(np.arange(len(first)), count)
    weights = np.where(np.minimum.reduceat(samples, first)[group] > 0, samples, 1).astype(np.int64)
    value = stat.over_groups(cost_us, group, len(first), weights)
    stated = (samples > 0) | (count == 1)[group]  # without samples the cost is its range
    between = np.maximum.reduceat(cost_us, first) - np.minimum.reduceat(cost_us, first)
    relative = np.divide(between, value, out=np.zeros(len(first)), where=value > 0)
    columns = (
        value,
        np.add.reduceat(samples, first).astype(np.int64),
        np.minimum.reduceat(np.where(stated, min_us, cost_us), first),
        np.maximum.reduceat(np.where(stated, max_us, cost_us), first),
        np.maximum(np.maximum.reduceat(spread, first), relative),
    )
    for number, *values in zip(
        table.name[rows[first]].tolist(), *map(np.ndarray.tolist, columns), strict=True
    ):
        yield number, values


def _united(texts: Sequence[Text]) -> Text:
    """What the inputs together say of one name."""
    return Text(
        kind=next((text.kind for text in texts if text.kind), CostKind.UNKNOWN),
        opcode=next((text.opcode for text in texts if text.opcode), ""),
        shape=next((text.shape for text in texts if text.shape), ""),
        trace_name=texts[0].trace_name if len({text.trace_name for text in texts}) == 1 else "",
        origin=Origin.UNKNOWN
        if any(text.origin == Origin.UNKNOWN for text in texts)
        else texts[0].origin,
    )


def _slowest_us(table: _Table, of: MergeOf) -> Floats:
    """By name, the time on the slowest rank: of ranks what the input with the slowest says, of runs the mean; else NaN.

    Inputs say nothing of each other's ranks in the same execution, so of ranks the figure is a lower bound. It is taken
    from one input as a whole, since the maximum of each instruction for itself adds up to more than any rank took.
    """
    slowest_us = table.numbers[NUMBERS.index("slowest_us")]
    known = np.isfinite(slowest_us)
    if of == MergeOf.RANKS and known.any():
        sums = np.bincount(table.source[known], weights=slowest_us[known])
        known &= table.source == sums.argmax()
    found: Floats = parse_statistic("mean").over_groups(
        slowest_us[known], table.name[known], len(table.names)
    )
    return found


_ADDED = ("executions_used", "executions_seen", "devices")
_UNITED = ("fingerprints", "rank_ids")
"""Fields of a module's record that add up, and that are united, over inputs."""


def united_modules(provenances: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The first record of each module, with what the others add to it."""
    records: dict[str, list[Mapping[str, Any]]] = {}
    for record in chain.from_iterable(map(module_records, provenances)):
        if "fingerprints" in record:
            records.setdefault(str(record.get("name")), []).append(record)
    return tuple(
        {name: value for name, value in of_module[0].items() if name != "executions_dropped"}
        | {name: sum(record.get(name) or 0 for record in of_module) for name in _ADDED}
        | {
            name: list(dict.fromkeys(chain(*(record.get(name, ()) for record in of_module))))
            for name in _UNITED
        }
        for of_module in records.values()
    )


def _provenance(sources: Sequence[MergeInput], options: MergeOptions) -> dict[str, object]:
    return {
        "tool": f"pgle {__version__}",
        "merged_of": options.of.value,
        "stat": options.stat.name,
        "collective_stat": options.collective_stat.name if options.collective_stat else "",
        "modules": list(united_modules([source.provenance for source in sources])),
        "inputs": [
            {
                "name": source.label,
                "names": source.entries,
                "warnings": list(source.warnings),
                "provenance": dict(source.provenance),
            }
            for source in sources
        ],
    }
