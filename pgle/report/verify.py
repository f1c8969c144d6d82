"""Whether a profile fits a module, as a page and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import isfinite
from pathlib import Path, PurePath

from pgle.costs.profile.coverage import (
    FILL,
    MOST_OFF,
    Coverage,
    Gap,
    ModuleCoverage,
    Share,
)
from pgle.costs.profile.value import (
    Cost,
    CostKind,
    Fault,
    Oddity,
    join_name,
    split_name,
)
from pgle.errors import in_percent, many, shown, some
from pgle.files import AnyPath
from pgle.next import COMPLETE, PROFILE, Commands, Sentence, to_way
from pgle.report.next_steps import after_conversion, in_run_of
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import (
    Column,
    Page,
    Part,
    Prose,
    Section,
    Table,
    Value,
    table,
)
from pgle.report.profiles import conversion_section, ranks_given
from pgle.report.text import Document
from pgle.xla.log.verdict import BOUNDS, Bounds

GAPS_SHOWN = 3  # gaps on the first screen
MOST_GAPS = 12  # gaps that their section does not fold away
INVALID_SHOWN = 8


def verify_page(
    profile: str, coverage: Coverage, bounds: Bounds, following: Commands = ()
) -> Page:
    """Show whether the profile covers the main module, and which costs it lacks. Sections have the
    figures.

    Args:
        profile: path of the profile.
        coverage: its coverage.
        bounds: the least coverage.
        following: commands to type if it passes.
    """
    worst = _worst(coverage)
    hints = _hints(profile, coverage, bounds)
    failures = list(_failures(coverage, bounds))
    if failures:
        following = in_run_of(Path(profile), _commands(hints))
    identity = (_names(profile, worst), ranks_given(coverage.inherited))
    page = Page(
        title=f"pgle verify {profile}",
        identity=identity,
        verdict=_has_costs(coverage, bounds),
        tone="warn" if worst.implausible else "good",
        sections=tuple(_sections(worst, coverage, hints)),
        way=to_way(following),
        warnings=(*_warnings(coverage), *_off(worst)),
    )
    return _failed(page, coverage, failures, hints) if failures else page


def _failed(
    page: Page, coverage: Coverage, failures: Sequence[str], hints: Sequence[Sentence]
) -> Page:
    """The page of a profile that fails: reasons, gaps, and what to do."""
    notes = [f"FAILED: {line}" for line in failures[1:]]
    notes += [f"To do: {hint}" for hint in hints[:1]]
    if coverage.unused:
        notes.append(_unused_line(coverage.unused))
    return replace(
        page,
        verdict=f"FAILED: {failures[0]}",
        tone="bad",
        table=_gaps(_worst(coverage), GAPS_SHOWN),
        notes=tuple(notes),
        warnings=tuple(_warnings(coverage)),
    )


def after_coverage(
    profile: AnyPath, hlo: Sequence[AnyPath], coverage: Coverage
) -> Commands:
    """Return what follows. A profile that passes is to be verified; for another one, commands that
    make it pass. If it has too few measured costs for that, measure the program.
    """
    if coverage.is_ok(BOUNDS):
        return after_conversion(profile, hlo)
    worst = coverage.least_measured
    measured = worst.measured.value or 0.0
    if measured >= BOUNDS.time:
        return _commands(_hints(str(profile), coverage, BOUNDS))
    found = f"{worst.costs_are} costs cover {in_percent(measured)} of the step's time"
    asked = f": {found}, and 'pgle verify' asks for {in_percent(BOUNDS.time)}"
    return (Sentence.todo("measure this program with ", PROFILE, asked),)


def _commands(hints: Sequence[Sentence]) -> Commands:
    """The commands of the hints; if they have none, the first hint, or to measure the program."""
    commands = tuple(chain.from_iterable(hint.commands for hint in hints))
    again = Sentence.todo("measure this program with ", PROFILE)
    return commands or tuple(hints[:1]) or (again,)


def _worst(coverage: Coverage) -> ModuleCoverage:
    """The compilation of the main module with the least coverage."""

    def kept(module: ModuleCoverage) -> tuple[float, float]:
        return module.kept_share, module.time.value or 0.0

    return min(coverage.main, key=kept)


def _names(profile: str, module: ModuleCoverage) -> str:
    """``profile.pbtxt → jit_step (0123456789ab…)``."""
    head = f" ({module.fingerprint[:12]}…)" if module.fingerprint else ""
    return f"{profile} → {shown(module.module)}{head}"


def _unused_line(unused: Sequence[Cost]) -> str:
    """Say how many costs no module uses, and their sum."""
    total_us = sum(cost.cost_us for cost in unused if cost.is_valid)
    costs = many(len(unused), "cost")
    return f"{costs} unused, {figures.time(total_us)} (--section unused)"


def _hints(profile: str, coverage: Coverage, bounds: Bounds) -> list[Sentence]:
    """Return what to do, without repetition. Commands name the profile and the dump."""
    hints: list[Sentence] = []
    is_mended = all(module.meets_if_filled(bounds) for module in coverage.main)
    if coverage.invalid and is_mended:
        invalid = Sentence.todo(
            "costs that are not times: ", COMPLETE, " treats them as gaps"
        )
        hints.append(_filled(invalid, profile, coverage.main[0]))
    for module in coverage.main:
        found = module.remedies(bounds)
        useful = [hint for hint in found if hint is not FILL or is_mended]
        hints += [_filled(hint, profile, module) for hint in useful]
    return list(dict.fromkeys(hints))


def _filled(hint: Sentence, profile: str, module: ModuleCoverage) -> Sentence:
    """A hint, with the profile and the dump filled into its commands."""
    dump = PurePath(module.source).parent
    return hint.filled({"PROFILE": PurePath(profile), "DUMP": dump})


def _failures(coverage: Coverage, bounds: Bounds) -> Iterator[str]:
    """Yield why the check failed, for the main module's worst compilation. Hints have the
    remedies.
    """
    least = min(coverage.main, key=lambda module: module.kept_share)
    if least.kept_share < bounds.collectives:
        yield _lost_line(least)
    measured = coverage.least_measured.measured.value or 0.0
    if measured < bounds.time:
        yield _has_costs(coverage, bounds)
    if coverage.invalid:
        names = [f"{item.name} ({item.values_us[0]:g})" for item in coverage.invalid]
        what = "costs that are negative or not finite, which XLA takes as they are"
        yield f"{what}: {some(names, INVALID_SHOWN)}"


def _lost_line(module: ModuleCoverage) -> str:
    """Say how many collectives lack a cost, and their share of the step."""
    collectives = module.collectives
    lost = round(collectives.total - collectives.covered)
    number = f"{lost} of {collectives.total:.0f} collectives lack a cost"
    weight = f"{figures.time(module.lost_us)} ({_weighed(module)})"
    step = figures.time(module.step_us)
    return f"{number}: {weight} of a {step} step"


def _weighed(module: ModuleCoverage) -> str:
    """Say where the weights of a module's missing collectives come from."""
    lost = [gap for gap in module.gaps if gap.kind is CostKind.COLLECTIVE]
    assumed = [gap for gap in lost if gap.weight_us > gap.total_us]
    if not assumed:
        return "estimated"
    return "as XLA assumes" if len(assumed) == len(lost) else "estimated or assumed"


def _has_costs(coverage: Coverage, bounds: Bounds) -> str:
    """Say how much of the step measured costs cover, and what estimates add, by the compilation
    with the least coverage.
    """
    worst = coverage.least_measured
    covered = figures.share(worst.time.value or 0.0)
    measured = figures.share(worst.measured.value or 0.0)
    asked = figures.share(bounds.time)
    if measured == covered:
        return f"the profile covers {covered} of the step's time (asked for: {asked})"
    return (
        f"{worst.costs_are} costs cover {measured} of the step's time (asked for: {asked}; with "
        f"estimates: {covered})"
    )


def _sections(
    module: ModuleCoverage, coverage: Coverage, hints: Sequence[Sentence]
) -> Iterator[Section]:
    """What is covered, the gaps, costs that nothing uses, and what to do."""
    yield Section("coverage", "What is covered", tuple(_covered(module, coverage)))
    if module.gaps:
        yield _gaps_section(module)
    unused = sorted(coverage.unused, key=lambda cost: (-cost.cost_us, cost.full_name))
    rows = ((shown(_short(cost.full_name)), cost.cost_us) for cost in unused)
    costs = table(("name", Column("cost", Unit.TIME)), rows)
    yield Section("unused", "Costs that no module uses", (costs,))
    yield Section("hints", "What to do", tuple(Prose(str(hint)) for hint in hints))
    yield conversion_section(coverage.inherited)


def _gaps_section(module: ModuleCoverage) -> Section:
    """The instructions without a cost, and what their weight means."""
    weights = "Weight: the time that it probably takes or that XLA assumes, whichever is more."
    if module.is_modelled:
        weights = "XLA (jaxlib ≥ 0.10.2) models the time of a gap."
    parts = (Prose(weights), _gaps(module, MOST_GAPS))
    return Section("gaps", "Instructions without a cost", parts)


def _covered(module: ModuleCoverage, coverage: Coverage) -> Iterator[Part]:
    """Counts and times that the profile covers, and how the names were compared."""
    counts = (Column("covered", Unit.COUNT), Column("of", Unit.COUNT))
    instructions = _share_row("instructions", module.count)
    collectives = _share_row("collectives", module.collectives)
    heads = ("", *counts, Column("share", Unit.SHARE))
    yield table(heads, (instructions, collectives))
    times = (Column("covered", Unit.TIME), Column("of", Unit.TIME))
    costs = _share_row("sum of costs", Share(module.time.covered, module.step_us))
    planned = _share_row("as XLA plans it, gaps at what XLA assumes", module.time)
    yield table(("", *times, Column("", Unit.SHARE)), (costs, planned))
    yield Prose(f"Names: {_AGAINST[module.against]}.")
    if module.filled_in:
        how = "simulated, estimated, or those of an instruction of the same shape"
        yield Prose(f"{module.filled_in:,} of these costs are not measured: {how}.")
    others = [item for item in coverage.modules if not item.is_main]
    if others:
        shared = sum(bool(item.count.covered or item.mismatched) for item in others)
        modules = many(len(others), "other module")
        names = f"names of instructions of {shared} of {modules}"
        yield Prose(f"The profile has {names}.")


def _share_row(name: str, share: Share) -> tuple[Value, ...]:
    return name, share.covered, share.total, share.value


_AGAINST = {
    "schedule dump": "those of the schedule dump",
    "scheduling names": "the HLO's scheduling names",
    "final names": "those of the final HLO (this dump has no scheduling names)",
}


def _gaps(module: ModuleCoverage, most: int) -> Table:
    """Instructions without a cost: collectives first, then the others, the heaviest first.

    Args:
        most: number of rows shown.
    """
    gaps = sorted(module.gaps, key=lambda gap: gap.kind != CostKind.COLLECTIVE)
    rows = (_gap_row(gap, module) for gap in gaps)
    times = (
        Column("takes, estimated", Unit.TIME),
        Column("XLA assumes", Unit.TIME),
        Column("weight", Unit.SHARE),
    )
    heads = ("instruction without a cost", *times, "hint")
    return table(heads, rows, shown=most)


def _gap_row(gap: Gap, module: ModuleCoverage) -> tuple[Value, ...]:
    """A row for an instruction without a cost: its estimate, and what XLA assumes."""
    total_us = module.time.total
    weight = gap.weight_us / total_us if total_us else None
    assumed = _assumed(gap, is_modelled=module.is_modelled)
    return shown(gap.name), gap.cost_us, assumed, weight, shown(gap.hint)


def _assumed(gap: Gap, *, is_modelled: bool) -> Value:
    """Return the time that XLA assumes for a missing instruction; a text if it is not a time."""
    if is_modelled and not gap.is_mismatch:
        return "model"
    is_time = isfinite(gap.assumed_us) and gap.assumed_us >= 0
    return gap.assumed_us if is_time else f"{gap.assumed_us:g}"


def _short(name: str) -> str:
    """Shorten the fingerprint in a name, as every answer does."""
    fingerprint, bare = split_name(name)
    return join_name(f"{fingerprint[:12]}…", bare) if len(fingerprint) > 12 else name


def _off(module: ModuleCoverage) -> Iterator[str]:
    """Yield costs that are impossible for their instructions. A profile that fails gets no such
    warning.
    """
    if not module.implausible:
        return
    first, *others = module.implausible
    cost = f"{shown(first.name)} costs {figures.time(first.cost_us)}"
    estimate = f"the estimate is {figures.time(first.estimate_us)}"
    more = ""
    if others:
        number = many(len(others), "other cost")
        more = f"; as far off ({MOST_OFF:.0f} times): {number}"
    yield f"{cost}, {estimate}{more}: the profile may be of another program"


def _warnings(coverage: Coverage) -> Iterator[str]:
    """The warnings of the check, and how many names XLA reads otherwise."""
    yield from coverage.warnings
    faults = Counter(item.fault for item in coverage.findings)
    odd = [f"{faults[fault]} {fault.value}" for fault in Fault if faults[fault]]
    if odd:
        yield f"XLA reads some names otherwise ({', '.join(odd)}): see 'pgle show'"


class CoveredShares(Document):
    """The covered parts of a module, as shares of 1."""

    count: float | None
    time: float | None
    measured: float | None
    collectives: float | None
    without_lost_collectives: float


class CoveredTotals(Document):
    """The covered and total amounts of a module."""

    instructions: Share
    time_us: Share
    collectives: Share
    step_us: float
    lost_collectives_us: float


class VerifiedModule(Document):
    """A profile compared with one module."""

    name: str
    fingerprint: str
    program_id: int | None
    source: str
    main: bool
    names_from: str
    coverage: CoveredShares
    totals: CoveredTotals
    missing: tuple[str, ...]
    unchecked: int
    filled_in: int
    gaps: tuple[Gap, ...]
    xla_takes_gaps_for: str
    hints: tuple[Sentence, ...]


class VerifyDocument(Document):
    """``pgle.verify/1``."""

    ok: bool
    failed: tuple[str, ...]
    profile: str
    min_time_coverage: float
    min_collectives: float
    modules: tuple[VerifiedModule, ...]
    unused: tuple[str, ...]
    findings: tuple[Oddity, ...]
    warnings: tuple[str, ...]


def document(profile: str, coverage: Coverage, bounds: Bounds) -> VerifyDocument:
    """A profile compared with modules, and whether it reaches the bounds."""
    modules = [_verified_module(profile, module, bounds) for module in coverage.modules]
    return VerifyDocument(
        ok=coverage.is_ok(bounds),
        failed=tuple(_failures(coverage, bounds)),
        profile=profile,
        min_time_coverage=bounds.time,
        min_collectives=bounds.collectives,
        modules=tuple(modules),
        unused=tuple(cost.full_name for cost in coverage.unused),
        findings=coverage.findings,
        warnings=(*coverage.inherited, *_warnings(coverage)),
    )


def _verified_module(
    profile: str, module: ModuleCoverage, bounds: Bounds
) -> VerifiedModule:
    hints = [_filled(hint, profile, module) for hint in module.remedies(bounds)]
    missing = [gap.name for gap in module.gaps]
    totals = CoveredTotals.of_value(
        module,
        instructions=module.count,
        time_us=module.time,
        lost_collectives_us=module.lost_us,
    )
    return VerifiedModule.of_value(
        module,
        name=module.module,
        main=module.is_main,
        names_from=module.against,
        coverage=_shares(module),
        totals=totals,
        missing=tuple(missing),
        xla_takes_gaps_for=module.fallback,
        hints=tuple(hints),
    )


def _shares(module: ModuleCoverage) -> CoveredShares:
    return CoveredShares(
        count=module.count.value,
        time=module.time.value,
        measured=module.measured.value,
        collectives=module.collectives.value,
        without_lost_collectives=module.kept_share,
    )
