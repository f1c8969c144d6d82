"""Profiles that a command wrote, as pages and as JSON: converted, completed, carried over."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from pgle.costs.profile.value import Cost, CostKind, Origin, most_skewed
from pgle.errors import many, printable
from pgle.next import Commands, to_way
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import Column, Page, Section, Table, Value, table
from pgle.report.profiles import conversion_section, skew_line
from pgle.report.text import Document

if TYPE_CHECKING:
    from pgle.costs.measure.contention import Slowdown
    from pgle.costs.measure.measured import ProgramCosts
    from pgle.costs.profile.carry import By, Carried
    from pgle.costs.profile.coverage import Completion
    from pgle.run.convert import Conversion
    from pgle.run.written import Written
    from pgle.trace.table import Unresolved

MOST_MODULES = 6  # modules on the first screen
# a loop's cost is the sum of its instructions, which are listed too
_NOT_COMPUTE = (CostKind.COLLECTIVE, CostKind.LOOP)


def convert_page(result: Conversion, following: Commands = ()) -> Page:
    """Show what was written and how much was left out. A section has every module."""
    programs = result.measured.costs
    first = programs[0]
    modules = _programs_table(programs)
    identity = _identity(first)
    first_table: Table | None = None
    notes = (_left_out(result), *_remarks(first))
    prefix = f"{first.program.key.name}: "
    warnings = tuple(line.removeprefix(prefix) for line in result.warnings)
    if len(programs) > 1:
        identity = (many(len(programs), "module"),)
        first_table = modules
        notes = (_left_out(result),)
        warnings = result.warnings
    heading = "Converted modules (span: from the first start to the last end)"
    checksums = [(str(item.path), f"sha256 {item.sha256}") for item in result.written]
    return Page(
        title="pgle convert",
        identity=identity,
        verdict=f"wrote {_written_to(result)}: {costs_line(result)}",
        tone="good",
        table=first_table,
        notes=notes,
        sections=(Section("modules", heading, (modules,)),),
        way=to_way(following),
        warnings=warnings,
        about=tuple(checksums),
    )


def _written_to(result: Conversion) -> str:
    """The path of the profile, or the number of profiles and the first path."""
    first, *others = result.written
    path = printable(str(first.path))
    if not others:
        return path
    return f"{many(len(result.written), 'profile')}, the first {path}"


def _identity(found: ProgramCosts) -> tuple[str, ...]:
    """Module, devices, and the executions that were used."""
    window = found.window
    used = f"{window.steps_used} of {many(window.steps_seen, 'execution')}"
    if not math.isnan(window.span_us):
        used = f"{used}, {figures.time(window.span_us)} each"
    devices = many(len(window.devices), "device")
    return printable(found.program.key.name), devices, used


@dataclass(frozen=True, slots=True)
class CostSum:
    """The number of costs, and their sum. A loop counts as its instructions."""

    count: int
    us: float


def _compute(costs: Iterable[Cost]) -> CostSum:
    """The sum of the costs of compute."""
    return _sum_of(cost for cost in costs if cost.kind not in _NOT_COMPUTE)


def _collectives(costs: Iterable[Cost]) -> CostSum:
    """The sum of the costs of collectives."""
    return _sum_of(cost for cost in costs if cost.kind is CostKind.COLLECTIVE)


def _sum_of(costs: Iterable[Cost]) -> CostSum:
    every = [cost.cost_us for cost in costs]
    return CostSum(len(every), sum(every))


def costs_line(result: Conversion) -> str:
    """Count the costs by kind: ``2,514 costs (2,491 compute 120.3 ms, 23 collectives 7.64 ms)``."""
    programs = result.measured.costs
    costs = list(chain.from_iterable(program.costs for program in programs))
    compute = _compute(costs)
    collectives = _collectives(costs)
    parts: list[str] = []
    if compute.count:
        parts.append(f"{compute.count:,} compute {figures.time(compute.us)}")
    if collectives.count:
        number = many(collectives.count, "collective")
        parts.append(f"{number} {figures.time(collectives.us)}")
    names = sum(item.names for item in result.written)
    return f"{many(names, 'cost')} ({', '.join(parts)})"


def _programs_table(programs: Iterable[ProgramCosts]) -> Table:
    """A row for each module that has costs."""
    heads = (
        "module",
        "executions",
        Column("devices", Unit.COUNT),
        Column("span", Unit.TIME),
        Column("compute costs", Unit.COUNT),
        Column("compute", Unit.TIME),
        Column("collective costs", Unit.COUNT),
        Column("collectives", Unit.TIME),
    )
    return table(heads, map(_program_row, programs), shown=MOST_MODULES)


def _program_row(found: ProgramCosts) -> tuple[Value, ...]:
    """A row for a module: the executions used, their span, and its costs by kind."""
    window = found.window
    compute = _compute(found.costs)
    collectives = _collectives(found.costs)
    return (
        printable(found.program.key.name),
        f"{window.steps_used} of {window.steps_seen}",
        len(window.devices),
        None if math.isnan(window.span_us) else window.span_us,
        compute.count,
        compute.us,
        collectives.count,
        collectives.us,
    )


def _remarks(found: ProgramCosts) -> Iterator[str]:
    """Say how far compute differs over the ranks, and how much collectives slow other kernels."""
    most = most_skewed(found.costs)
    if skewed := skew_line(found.skew_us, found.window.span_us, most):
        yield f"per step, {skewed}; costs are typical ones"
    if found.contention is None:
        return
    slowdowns = {
        "matmuls": found.contention.product,
        "other kernels": found.contention.other,
    }
    slower: list[str] = []
    for kind, item in slowdowns.items():
        if item.samples:
            factor = figures.factor(item.likely)
            slower.append(f"{kind} take {factor} as long")
    if slower:
        launches = sum(item.samples for item in slowdowns.values())
        while_it_runs = f"while a collective runs, {', '.join(slower)}"
        yield f"contention: {while_it_runs} ({launches} launches)"


def _left_out(result: Conversion) -> str:
    """Say in one line how much was left out, and why."""
    parts = [
        f"{many(count, 'execution')} ({why})"
        for why, count in _dropped_executions(result).items()
    ]
    parts += [
        f"{item.count:,} activities ({item.reason})"
        for item in result.measured.trace.unresolved
    ]
    if names := _left_names(result):
        parts.append(many(names, "name"))
    if result.other_modules:
        share = figures.share(sum(result.other_modules.values()))
        others = many(len(result.other_modules), "other module")
        parts.append(f"{others} ({share} of time)")
    return f"left out: {', '.join(parts)}" if parts else ""


def _dropped_executions(result: Conversion) -> Counter[str]:
    """Count the executions that were dropped, by reason."""
    counts: Counter[str] = Counter()
    for program in result.measured.costs:
        for why in program.window.dropped.values():
            counts[why.partition(":")[0]] += 1
    return counts


def _left_names(result: Conversion) -> int:
    """Count the names in the trace that got no cost."""
    count = 0
    for program in result.measured.costs:
        count += sum(map(len, program.left_out.values()))
    return count


class SkewedCost(Document):
    """A cost, and its value on the slowest rank."""

    name: str
    cost_us: float
    slowest_us: float | None


class ContentionDocument(Document):
    """How much slower kernels run while collectives do."""

    product: Slowdown
    other: Slowdown


class ConvertedModule(Document):
    """A module whose costs were measured."""

    name: str
    program_id: int | None
    fingerprints: tuple[str, ...]
    executions_used: int
    executions_seen: int
    steps_used: int
    steps_seen: int
    executions_dropped: Mapping[int, str]
    step_us: float
    skew_us: float | None
    left_out: Mapping[str, tuple[str, ...]]
    devices: int
    costs: int
    collectives: int
    compute_us: float
    contention: ContentionDocument | None
    skewed: tuple[SkewedCost, ...]
    collective_us: float


class ConvertDocument(Document):
    """``pgle.convert/1``."""

    written: tuple[Written, ...]
    modules: tuple[ConvertedModule, ...]
    activities: int
    gpu_time_us: float
    unresolved: tuple[Unresolved, ...]
    other_modules: Mapping[str, float]
    warnings: tuple[str, ...]


def convert_document(result: Conversion) -> ConvertDocument:
    """What a conversion measured and wrote."""
    trace = result.measured.trace
    modules = tuple(map(_converted_module, result.measured.costs))
    return ConvertDocument.of_value(
        result, trace, modules=modules, activities=len(trace)
    )


def _converted_module(found: ProgramCosts) -> ConvertedModule:
    """A module in JSON: the executions used, its costs by kind, contention and skew."""
    program, window = found.program, found.window
    compute = _compute(found.costs)
    collectives = _collectives(found.costs)
    contention = None
    if found.contention:
        contention = ContentionDocument.of_value(found.contention)
    skewed = tuple(map(SkewedCost.of_value, most_skewed(found.costs)))
    return ConvertedModule.of_value(
        *(found, program, program.key, window),
        executions_used=window.used,
        executions_seen=window.seen,
        executions_dropped=window.dropped,
        step_us=window.span_us,
        devices=len(window.devices),
        costs=len(found.costs),
        collectives=collectives.count,
        compute_us=compute.us,
        contention=contention,
        skewed=skewed,
        collective_us=collectives.us,
    )


_HOW = {
    Origin.SAME_SHAPE: "as instructions of the same shape",
    Origin.ESTIMATED: "estimated",
}
_BY = {
    "structure": "structure: itself and its neighbours",
    "name": "name, opcode, shape and content",
    "shape": "shapes and place",
    "scaled": "another size or kernel: scaled (estimated)",
}
"""The words for each `By`. Its file imports the estimates, which `convert` does not need."""
# at this share of the time a carried profile passes the default bounds of `pgle verify`
MOSTLY = 0.95
_SUMS = (Column("costs", Unit.COUNT), Column("sum", Unit.TIME))


def _sums(label: tuple[str, ...], costs: Iterable[Cost]) -> Iterator[tuple[Value, ...]]:
    """A table row with `_SUMS`; none without costs."""
    found = _sum_of(costs)
    if found.count:
        yield (*label, found.count, found.us)


def complete_page(
    completions: Sequence[Completion], written: Written, following: Commands = ()
) -> Page:
    """Show for each module how many costs were missing, and how each gap was filled."""
    filled = _all_filled(completions)
    identity = (
        f"{printable(item.module)}: {item.measured:,} of {item.wanted:,} had costs"
        for item in completions
    )
    sha256 = ("sha256", written.sha256)
    gaps = many(len(filled), "gap")
    costs = many(written.names, "cost")
    sections = (
        Section("filled", "Filled, the most expensive first", (_filled_table(filled),)),
        conversion_section(completions[-1].profile.warnings),
    )
    return Page(
        title="pgle complete",
        identity=tuple(identity),
        verdict=f"wrote {written.path}: {gaps} filled, {costs} in all",
        tone="good",
        table=_origins_table(completions),
        sections=sections,
        way=to_way(following),
        about=(sha256,),
        warnings=_completion_warnings(completions),
    )


def _completion_warnings(completions: Sequence[Completion]) -> tuple[str, ...]:
    """What was wrong with the given costs, by module."""
    found: list[str] = []
    for item in completions:
        found += item.warnings
    return tuple(found)


def _all_filled(completions: Sequence[Completion]) -> list[Cost]:
    """The new costs of all modules, the most expensive first."""
    filled: list[Cost] = []
    for item in completions:
        filled += item.filled
    return sorted(filled, key=lambda cost: (-cost.cost_us, cost.name))


def _origins_table(completions: Sequence[Completion]) -> Table:
    """For each module, how its gaps were filled."""
    rows: list[tuple[Value, ...]] = []
    for item in completions:
        for origin, how in _HOW.items():
            target = f" for {item.target}" if origin is Origin.ESTIMATED else ""
            of_origin = (cost for cost in item.filled if cost.origin is origin)
            rows += _sums((printable(item.module), f"{how}{target}"), of_origin)
    return table(("module", "filled", *_SUMS), rows)


def _filled_table(filled: Iterable[Cost]) -> Table:
    """A row for each gap that was filled: its new cost, and where that comes from."""
    rows = (
        (printable(cost.name), printable(cost.opcode), cost.cost_us, cost.origin.value)
        for cost in filled
    )
    return table(("instruction", "what", Column("cost", Unit.TIME), "origin"), rows)


class FilledCost(Document):
    """A cost that filled a gap."""

    name: str
    cost_us: float
    origin: Origin


class CompletedModule(Document):
    """A module whose gaps were filled."""

    name: str
    target: str
    wanted: int
    measured: int
    same_shape: int
    estimated: int
    filled: tuple[FilledCost, ...]


class CompleteDocument(Document):
    """``pgle.complete/1``."""

    written: Written
    modules: tuple[CompletedModule, ...]
    warnings: tuple[str, ...]


def complete_document(
    completions: Sequence[Completion], written: Written
) -> CompleteDocument:
    """The profile that was written, and what was filled for each module."""
    modules = tuple(map(_completed_module, completions))
    return CompleteDocument(written, modules, completions[-1].profile.warnings)


def _completed_module(item: Completion) -> CompletedModule:
    """A module in JSON: how many costs it wanted, had, and got."""
    filled = (FilledCost.of_value(cost, name=cost.full_name) for cost in item.filled)
    return CompletedModule.of_value(
        item,
        name=item.module,
        same_shape=item.count(Origin.SAME_SHAPE),
        estimated=item.count(Origin.ESTIMATED),
        filled=tuple(filled),
    )


def carry_page(carried: Carried, written: Written, following: Commands = ()) -> Page:
    """Show the share of the profile's time that was carried over, and how each cost was matched."""
    count = len(carried.matches)
    of = count + len(carried.left)
    identity = f"{many(count, 'cost')} of {of:,} instructions"
    share = figures.share(carried.share)
    left = ""
    if carried.left:
        instructions = many(len(carried.left), "instruction")
        left = f"{instructions} without a counterpart (--section left)."
    without_cost = _names("instruction without a cost", carried.left)
    without_place = _names("cost without a place", carried.unused)
    sections = (
        Section("left", "Left without a cost", (without_cost,)),
        Section("unused", "Costs without a place", (without_place,)),
    )
    return Page(
        title="pgle carry",
        identity=(identity,),
        verdict=f"wrote {written.path}: {share} of the profile's time carried over",
        tone="good" if carried.share >= MOSTLY else "warn",
        table=_matches_table(carried),
        notes=(left,),
        sections=sections,
        way=to_way(following),
    )


def _matches_table(carried: Carried) -> Table:
    """A row for each way of matching: how many costs, and their sum."""
    rows: list[tuple[Value, ...]] = []
    for by, how in _BY.items():
        costs = (match.cost for match in carried.matches if match.by == by)
        rows += _sums((how,), costs)
    return table(("matched by", *_SUMS), rows)


def _names(head: str, names: Iterable[str]) -> Table:
    return table((head,), ((printable(name),) for name in names))


class CarryDocument(Document):
    """``pgle.carry/1``."""

    written: Written
    carried: int
    of: int
    by: Mapping[By, int]
    time_share: float  # share of the old module's time that was carried
    left: tuple[str, ...]
    unused: tuple[str, ...]


def carry_document(carried: Carried, written: Written) -> CarryDocument:
    """The profile that was written, and how its costs were matched."""
    from pgle.costs.profile.carry import By

    count = len(carried.matches)
    return CarryDocument(
        written=written,
        carried=count,
        of=count + len(carried.left),
        by={by: carried.count(by) for by in By},
        time_share=carried.share,
        left=carried.left,
        unused=carried.unused,
    )
