"""Profiles as pages and as JSON: what one holds, and how two differ."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from msgspec.structs import replace

from pgle.costs.profile.value import (
    Cost,
    CostChange,
    CostKind,
    Difference,
    Fault,
    KindTotal,
    Oddity,
    Origin,
    ProfileDiff,
    Summary,
    Total,
    module_records,
)
from pgle.errors import many, printable, shown, some
from pgle.files import Json
from pgle.next import Commands, to_way
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import Column, Page, Prose, Section, Table, Value, table
from pgle.report.text import Document

#: share of the time above which the wait for the slowest rank gets a line
MIN_SKEW = 0.01
ROWS, CHANGES = 10, 12  # costs and changes on the first screen

_TITLES = {
    Fault.DUPLICATE: "names with several costs",
    Fault.REMAT: "effects of .remat in names",
    Fault.NOT_FINITE: "costs that are not finite",
    Fault.NEGATIVE: "negative costs",
    Fault.HUGE: "costs that are not times",
    Fault.ZERO: "costs of 0",
    Fault.NAME: "names that match nothing",
    Fault.DONE: "costs of a -done",
    Fault.LOOP: "costs of whole loops",
}


def profile_page(name: str, summary: Summary, following: Commands = ()) -> Page:
    """Show the most expensive costs first, then sums by kind. Warnings name costs that XLA uses
    differently from how they look.
    """
    faults = _fault_groups(summary.findings)
    origin = tuple(map(Prose, _provenance(summary.provenance)))
    sections = (
        _faults_section(faults),
        Section("origin", "Where this comes from", origin),
        conversion_section(summary.warnings),
    )
    identity = (name, *_about(summary), ranks_given(summary.warnings))
    skew = skew_line(summary.skew_us, summary.total_us, summary.skewed)
    return Page(
        title=f"pgle show {name}",
        identity=identity,
        verdict=_sum_line(summary),
        tone="warn" if faults else "",
        table=_instructions(summary),
        notes=(*_kinds(summary), skew),
        sections=sections,
        way=to_way(following),
        warnings=tuple(group.line for group in faults),
    )


def _sum_line(summary: Summary) -> str:
    """``2,514 costs (of 2,520 entries), 128 ms if each instruction runs once``."""
    of = ""
    if summary.entries != summary.names:
        of = f" (of {summary.entries:,} entries)"
    total = figures.time(summary.total_us)
    costs = many(summary.names, "cost")
    return f"{costs}{of}, {total} if each instruction runs once"


_RANKS = re.compile(r"\d+ of (\d+|several) ranks")


def ranks_given(warnings: Iterable[str]) -> str:
    """Return ``2 of 4 ranks`` from the warnings of a conversion; empty if all ranks were given."""
    for line in warnings:
        if found := _RANKS.search(line):
            return found[0]
    return ""


def conversion_section(warnings: Sequence[str]) -> Section:
    """Fold away the warnings that the conversion of the profile already printed."""
    lines = tuple(Prose(shown(line)) for line in warnings)
    return Section("conversion", "Warnings of the conversion", lines)


def _about(summary: Summary) -> Iterator[str]:
    """Yield the modules, and the origin of the costs."""
    if records := list(module_records(summary.provenance)):
        yield some([str(record.get("name")) for record in records], 1)
    elif summary.modules:
        yield f"fingerprint {some([module[:12] for module in summary.modules], 2)}"
    if not summary.described:
        yield "no sidecar: kinds are guessed from names"
        return
    origins: list[str] = []
    for origin in Origin:
        costs = summary.origins.get(origin)
        if costs:
            origins.append(f"{costs:,} {origin}")
    yield ", ".join(origins)


def _kinds(summary: Summary) -> Iterator[str]:
    """Yield ``compute 2,491 costs, 120.3 ms (94.0 %) · …``, and the remedy for guessed kinds."""
    yield " · ".join(map(_kind_words, summary.kinds))
    if any(total.guessed for total in summary.kinds) and summary.described:
        yield "Kinds marked ? are guessed from names: give the HLO (pgle convert --hlo DUMP)."


def _kind_words(total: KindTotal) -> str:
    """Return ``compute 2,491 costs, 120.3 ms (94.0 %)``. A loop has no share, because its time is
    also in the costs of its body.
    """
    share = figures.share(total.share)
    if total.kind is CostKind.LOOP:
        share = "in its body's costs already"
    name = _marked(total.kind, is_guess=bool(total.guessed))
    costs = many(total.count, "cost")
    return f"{name} {costs}, {figures.time(total.total_us)} ({share})"


def _marked(kind: CostKind, *, is_guess: bool) -> str:
    """The name of a kind, with a question mark if it is a guess."""
    return f"{kind.value}?" if is_guess else kind.value


def skew_line(skew_us: float | None, of_us: float, skewed: Sequence[Cost]) -> str:
    """Say how much longer compute takes on the slowest rank, and which instruction adds most. The
    line is empty if the difference is small.
    """
    if skew_us is None or skew_us <= MIN_SKEW * of_us:
        return ""
    share = f" ({figures.share(skew_us / of_us)})" if of_us > 0 else ""
    longer = f"compute takes {figures.time(skew_us)}{share} longer on the slowest rank"
    if not skewed:
        return longer
    most = skewed[0]
    slowest = figures.time(most.slowest_us or 0.0)
    times = f"{figures.time(most.cost_us)}, there {slowest}"
    return f"{longer}, most in {shown(most.full_name)} ({times})"


def _provenance(provenance: Mapping[str, object]) -> Iterator[str]:
    """Yield the origin of a profile in a few lines, as far as `pgle` recorded it."""
    given = cast(Iterable[Mapping[str, object]], provenance.get("inputs", ()))
    inputs = [str(item.get("name")) for item in given]
    if inputs:
        how = _statistics(provenance)
        tool = provenance.get("tool", "unknown")
        yield shown(f"from {some(inputs, 4)}{how}, by {tool}")
    for module in module_records(provenance)[:4]:
        yield shown(_module_words(module))


def _statistics(provenance: Mapping[str, object]) -> str:
    """`` (stat median, collective stat min)``: how samples became costs; empty if not recorded."""
    keys = filter(provenance.get, ("stat", "collective_stat"))
    stats = ", ".join(f"{key} {provenance[key]}" for key in keys)
    return f" ({stats})".replace("_", " ") if stats else ""


def _module_words(module: Json) -> str:
    """``module jit_step, 5 of 6 executions over 4 devices, fingerprint 0123456789ab``."""
    words = [f"module {module.get('name')}"]
    used = module.get("executions_used")
    if used is not None:
        words.append(f", {used} of {module.get('executions_seen')} executions")
    devices = module.get("devices")
    if devices:
        words.append(f" over {devices} devices")
    heads = [name[:12] for name in module.get("fingerprints", ())]
    if heads:
        words.append(f", fingerprint {' '.join(heads)}")
    return "".join(words)


def _instructions(summary: Summary) -> Table:
    """A row for each of the costliest costs, and how many more there are."""
    heads = (
        "instruction",
        Column("cost", Unit.TIME),
        Column("share", Unit.SHARE),
        "kind",
        Column("samples", Unit.COUNT),
        Column("spread", Unit.SHARE),
        "origin",
    )
    costs = summary.costs
    are_measured = all(cost.origin is Origin.MEASURED for cost in costs)
    has_origins = summary.described and not are_measured
    rows: list[tuple[Value, ...]] = []
    for cost in costs:
        origin = cost.origin.value if has_origins else ""
        rows.append((*_cost_cells(cost, summary), origin))
    left = summary.names - len(costs)
    return replace(table(heads, rows, shown=ROWS), more=left)


def _cost_cells(cost: Cost, summary: Summary) -> tuple[Value, ...]:
    """Name, cost, share, kind, samples and spread."""
    is_finite = math.isfinite(cost.cost_us)
    return (
        cost.full_name,
        cost.cost_us if is_finite else str(cost.cost_us),
        _share(cost, summary),
        _marked(cost.likely_kind, is_guess=not cost.kind),
        cost.samples or None,
        cost.spread if cost.samples > 1 else None,
    )


def _share(cost: Cost, summary: Summary) -> float | None:
    """A cost's share of the total; None for loops and for costs that the total counts as 0."""
    if cost.likely_kind is CostKind.LOOP or summary.total_us <= 0:
        return None
    is_valid = math.isfinite(cost.cost_us) and cost.cost_us >= 0
    return cost.cost_us / summary.total_us if is_valid else None


@dataclass(frozen=True)
class _FaultGroup:
    """The findings of one fault, the most important first; at least one."""

    fault: Fault
    findings: tuple[Oddity, ...]

    @property
    def effects(self) -> list[str]:
        """What XLA does with each name; a single text if it does the same with all."""
        without_values = [item.message for item in self.findings if not item.values_us]
        if without_values:
            return without_values
        effects: dict[str, None] = {}
        for item in self.findings:
            *_, effect = item.message.split("; ", 1)
            effects[effect] = None
        return list(effects)

    @property
    def line(self) -> str:
        """The fault, how many names have it, and its effect if it is the same for all."""
        title = _TITLES[self.fault]
        effect, *others = self.effects
        named = sum(bool(item.values_us) for item in self.findings)
        if not named:
            return f"{title}: {effect}"
        counted = f"{title} ({named})"
        return counted if others else f"{counted}: {effect}"

    def rows(self) -> Iterator[tuple[Value, ...]]:
        """A row for each name, with its effect if effects differ."""
        differ = len(self.effects) > 1
        for item in self.findings:
            name = item.name or "(no name)"
            effect = item.message if differ else ""
            yield name, _costs(item), _TITLES[self.fault], effect


def _fault_groups(findings: Sequence[Oddity]) -> list[_FaultGroup]:
    """The findings of each fault, those first that matter most."""
    groups: list[_FaultGroup] = []
    for fault in Fault:
        mine = [item for item in findings if item.fault is fault]
        if mine:
            mine.sort(key=_importance, reverse=True)
            groups.append(_FaultGroup(fault, tuple(mine)))
    return groups


def _faults_section(groups: Sequence[_FaultGroup]) -> Section:
    """Every name with a fault, its costs, and what XLA does with it."""
    rows: list[tuple[Value, ...]] = []
    for group in groups:
        rows += group.rows()
    listed = table(("name", "costs", "it has", "what XLA does"), rows)
    return Section("findings", "Names that XLA takes otherwise", (listed,))


def _costs(finding: Oddity) -> str:
    """Return ``62: 1 µs to 15.85 ms → 1 µs``: the number and range of a name's costs, and the one
    that XLA uses.
    """
    values = finding.values_us
    listed = ", ".join(map(_any_cost, values))
    if len(values) > 2:
        ends = f"{_any_cost(min(values))} to {_any_cost(max(values))}"
        listed = f"{len(values)}: {ends}"
    if finding.effective_us is None or len(values) == 1:
        return listed
    return f"{listed} → {_any_cost(finding.effective_us)}"


def _any_cost(us: float) -> str:
    """A cost in words. It may be infinite or not a number."""
    return figures.time(us) if math.isfinite(us) else str(us)


def _importance(finding: Oddity) -> float:
    """Return how far the costs of a name differ, in µs; for a single cost, its size."""
    finite = [value for value in finding.values_us if math.isfinite(value)]
    if len(finite) > 1:
        return max(finite) - min(finite)
    return abs(finite[0]) if finite else 0.0


class ListedCost(Document):
    """A cost as `pgle show --json` lists it."""

    name: str
    cost_us: float
    kind: CostKind
    opcode: str
    shape: str
    samples: int
    min_us: float
    max_us: float
    spread: float
    slowest_us: float | None
    trace_name: str
    origin: Origin
    share: float | None
    kind_is_guess: bool


class ProfileDocument(Document):
    """``pgle.show/1`` of a profile."""

    profile: str
    entries: int
    names: int
    total_us: float
    skew_us: float | None
    kinds: tuple[KindTotal, ...]
    origins: Mapping[Origin, int]
    modules: tuple[str, ...]
    provenance: Mapping[str, object]
    instructions: tuple[ListedCost, ...]
    findings: tuple[Oddity, ...]
    warnings: tuple[str, ...]


def profile_document(name: str, summary: Summary) -> ProfileDocument:
    """A profile with the costs that the summary lists."""
    listed = tuple(_listed_cost(cost, summary) for cost in summary.costs)
    return ProfileDocument.of_value(summary, profile=name, instructions=listed)


def _listed_cost(cost: Cost, summary: Summary) -> ListedCost:
    """A cost in JSON. Its kind may be a guess from its name."""
    return ListedCost.of_value(
        cost,
        name=cost.full_name,
        kind=cost.likely_kind,
        share=_share(cost, summary),
        kind_is_guess=not cost.kind,
    )


_WORDS = {
    CostChange.CHANGED: "changed",
    CostChange.NOISE: "within noise",
    CostChange.REPLACED: "another instruction of the same name",
    CostChange.ADDED: "added",
    CostChange.REMOVED: "removed",
    CostChange.SAME: "the same",
}
_NOTED = (CostChange.ADDED, CostChange.REMOVED, CostChange.NOISE)


def diff_page(old: str, new: str, diff: ProfileDiff, following: Commands = ()) -> Page:
    """Show the largest changes in time first; a section has the sums by kind."""
    changed = _changed(diff)
    heads = (
        "instruction",
        "kind",
        Column("old", Unit.TIME),
        Column("new", Unit.TIME),
        Column("change", Unit.CHANGE_TIME),
        Column("", Unit.CHANGE),
        "note",
    )
    largest = table(heads, map(_difference, changed), shown=CHANGES)
    kinds = Section("kinds", "By kind", (_kinds_table(diff),))
    is_noise = all(item.change is CostChange.NOISE for item in changed)
    return Page(
        title=f"pgle diff {old} {new}",
        identity=(f"{old} → {new}",),
        verdict="No change beyond noise" if is_noise else _sums_line(diff),
        table=largest,
        notes=(_change_counts(diff),),
        sections=(kinds,),
        way=to_way(following),
        warnings=tuple(diff.warnings),
    )


def _changed(diff: ProfileDiff) -> list[Difference]:
    """Every name that differs between the profiles."""
    return [item for item in diff.differences if item.change is not CostChange.SAME]


def _sums_line(diff: ProfileDiff) -> str:
    """``Sum of costs 120 ms → 128 ms (+6.7 %)``."""
    counted = [total for total in diff.totals if total.kind is not CostKind.LOOP]
    before_us = sum(total.old_us for total in counted)
    after_us = sum(total.new_us for total in counted)
    sums = f"Sum of costs {figures.time(before_us)} → {figures.time(after_us)}"
    if before_us <= 0:
        return sums
    return f"{sums} ({figures.change(after_us / before_us - 1)})"


def _change_counts(diff: ProfileDiff) -> str:
    """``12 changed, 3 added``."""
    counts: list[str] = []
    for change, word in _WORDS.items():
        if count := diff.count(change):
            counts.append(f"{count:,} {word}")
    return ", ".join(counts)


def _kinds_table(diff: ProfileDiff) -> Table:
    """The names and the sum of costs of each kind, in both profiles."""
    names = (Column("old names", Unit.COUNT), Column("new names", Unit.COUNT))
    times = (
        Column("old", Unit.TIME),
        Column("new", Unit.TIME),
        Column("change", Unit.CHANGE),
    )
    heads = ("kind", *names, *times)
    return table(heads, map(_kind_row, diff.totals))


def _kind_row(total: Total) -> tuple[Value, ...]:
    """A row for a kind of costs in both profiles."""
    change = total.new_us / total.old_us - 1 if total.old_us > 0 else None
    return (
        total.kind.value,
        total.old_count,
        total.new_count,
        total.old_us,
        total.new_us,
        change,
    )


def _difference(item: Difference) -> tuple[Value, ...]:
    """A row for a name: its cost in both profiles, and what changed."""
    change = None
    if item.ratio is not None and math.isfinite(item.ratio):
        change = item.ratio - 1
    return (
        printable(item.name),
        _marked(item.kind, is_guess=item.kind_is_guess),
        item.old_us,
        item.new_us,
        item.delta_us,
        change,
        printable(_change_note(item)),
    )


def _change_note(item: Difference) -> str:
    """Say what happened to a name, or which instruction it was and is now. A plain change has no
    note.
    """
    if item.change in _NOTED:
        return _WORDS[item.change]
    return f"was {item.was}, is {item.now}" if item.was else ""


class ListedDifference(Document):
    """A name in two profiles as `pgle diff --json` lists it."""

    name: str
    change: CostChange
    kind: CostKind
    kind_is_guess: bool
    old_us: float | None
    new_us: float | None
    noise_us: float | None
    was: str
    now: str
    delta_us: float
    ratio: float | None


class DiffDocument(Document):
    """``pgle.diff/1``: every name that differs between the profiles."""

    old: str
    new: str
    counts: Mapping[CostChange, int]
    totals: tuple[Total, ...]
    differences: tuple[ListedDifference, ...]
    warnings: tuple[str, ...]


def diff_document(old: str, new: str, diff: ProfileDiff) -> DiffDocument:
    """Two profiles, named as the user named them, and their differences."""
    return DiffDocument.of_value(
        diff,
        old=old,
        new=new,
        counts={change: diff.count(change) for change in CostChange},
        differences=tuple(map(ListedDifference.of_value, _changed(diff))),
    )
