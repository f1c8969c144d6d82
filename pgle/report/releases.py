"""The page and the JSON of `pgle rehearse --jax A,B`: exact facts first, then the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pgle.errors import many, shown, some
from pgle.next import Next, to_way
from pgle.releases.changes import FlagChange, ProgramChanges, settled
from pgle.releases.facts import CollectiveUse, ProgramFacts
from pgle.report import text
from pgle.report.control import longer
from pgle.report.page import figures
from pgle.report.page.figures import Unit
from pgle.report.page.value import (
    Column,
    Page,
    Prose,
    Section,
    Table,
    Tone,
    Value,
    table,
)
from pgle.report.text import Document, flat
from pgle.run.releases import Release, ReleasesResult, Upgrade
from pgle.run.second_compilation import Schedules
from pgle.schedule.control import ROUNDED, Controlled
from pgle.schedule.launches import Difference
from pgle.worth import LEAST_GAIN, is_worth

SAME = "same"
_MOST = 4  # most kinds, types or flags that a line names


def releases_page(found: ReleasesResult) -> Page:
    """Show the last release's step as the verdict, with a row for each fact and a column for each
    release.
    """
    first = found.releases[0].rehearsal
    compiled = first.baseline.compiled
    words, tone = headline(found)
    sections = (
        Section("kernels", "What the releases made otherwise", _kernels(found)),
        Section("defaults", "Defaults that changed", _defaults(found)),
        Section("compiled", "What each release compiled", (_files(found),)),
    )
    releases = " → ".join(item.by.release for item in found.releases)
    identity = (
        compiled.module_name,
        f"{compiled.num_devices} × {found.request.target.name}",
        f"jaxlib {releases}",
        f"step predicted from {first.costs_are} costs; all else exact",
    )
    return Page(
        title=f"pgle rehearse --jax: {compiled.module_name}",
        identity=identity,
        verdict=words,
        tone=tone,
        table=facts_table(found),
        notes=tuple(map(shown, _notes(found))),
        sections=sections,
        way=to_way([_following(found)]),
        warnings=found.warnings,
    )


def headline(found: ReleasesResult) -> tuple[str, Tone]:
    """Say how the last release changes the step, with a tone."""
    for item in found.releases:
        asked = item.rehearsal.request
        if asked.no_step:
            return "Cannot tell: no training step was found", "bad"
        if why := item.rehearsal.lower_bound_why:
            return f"Cannot tell of the step: {shown(why)}", "warn"
    last = found.upgrades[-1]
    return step_words(last.step, last.after.by.release)


def step_words(found: Controlled, release: str) -> tuple[str, Tone]:
    """Say how a release changes the step, with a tone. A change counts only if both compilations
    show it.
    """
    gain = settled(found)
    if gain is None:
        assert found.other is not None
        sides = " or ".join(_longer(one.share) for one in (found.first, found.other))
        why = "depends on what autotuning picks"
        return f"The step with jaxlib {release} {why}: {sides}", "warn"
    if not is_worth(abs(gain.share)):
        most = figures.share(LEAST_GAIN)
        return f"jaxlib {release} changes the step by less than {most}", "good"
    tone: Tone = "good" if gain.share > 0 else "warn"
    return f"The step gets {_longer(gain.share)} with jaxlib {release}", tone


def _longer(share: float) -> str:
    """``1.4 % longer``; ``unchanged`` if the change would be rounded to nothing."""
    return "unchanged" if abs(share) < ROUNDED else longer(share)


# The table: facts as rows.


def facts_table(found: ReleasesResult) -> Table:
    """A table of exact facts, then of the step in both compilations."""
    releases = found.releases
    facts = [item.facts for item in releases]
    made = [
        _fact_row("collectives a step", _count, facts),
        _fact_row("  asynchronous", _asynchronous, facts),
        _change_row("  order", _place, found),
        _fact_row("matrix products", _types, facts),
        _fact_row("fusions", _fusions, facts),
        _change_row("instructions without an equal", _equals, found),
    ]
    kept = [
        _change_row("fingerprint", _fingerprint, found),
        _fact_row("peak memory", _memory, facts),
        _change_row("of a profile pgle carry keeps", _carried, found),
    ]
    rows = [*made, *kept, *_step_rows(found)]
    return table(("", *(item.by.release for item in releases)), rows, shown=16)


def _fact_row(
    name: str, word: Callable[[ProgramFacts], str], facts: Sequence[ProgramFacts]
) -> tuple[str, ...]:
    """A fact of every release. Later releases show it only if it differs from the first."""
    first, *others = map(word, facts)
    named = {first: SAME}
    return (name, first, *(named.get(other, other) for other in others))


def _change_row(
    name: str, word: Callable[[Upgrade], str], found: ReleasesResult
) -> tuple[str, ...]:
    """Differences from the first release."""
    return (name, "", *map(word, found.upgrades))


def _count(facts: ProgramFacts) -> str:
    """The number of collectives, and the bytes that they move."""
    uses = facts.collectives.values()
    count = sum(use.count for use in uses)
    size_bytes = sum(use.size_bytes for use in uses)
    return f"{count:,}, {figures.size(size_bytes)}"


def _asynchronous(facts: ProgramFacts) -> str:
    """How many of the collectives are asynchronous."""
    count = sum(use.asynchronous for use in facts.collectives.values())
    return f"{count:,}"


def _types(facts: ProgramFacts) -> str:
    """The matrix products by their types, the most frequent first."""
    ordered = sorted(facts.products.items(), key=lambda item: -item[1])
    return some([f"{count:,} {types}" for types, count in ordered], _MOST)


def _fusions(facts: ProgramFacts) -> str:
    """The number of fusions."""
    names = (name for name in facts.kernels if name.startswith("fusion "))
    count = sum(facts.kernels[name] for name in names)
    return f"{count:,}"


def _memory(facts: ProgramFacts) -> str:
    return figures.size(facts.memory_bytes)


def _place(found: Upgrade) -> str:
    """Where the order of collectives begins to differ from the first release."""
    order = found.exact.order
    return SAME if order is None else f"differs from no. {order.position:,} on"


def _fingerprint(found: Upgrade) -> str:
    return SAME if found.exact.has_same_fingerprint else "another"


def _carried(found: Upgrade) -> str:
    """The share of a profile's time that the other release still finds."""
    return figures.share(found.carried_share)


def _equals(found: Upgrade) -> str:
    """How many instructions of the later release have no equal in the first one, and how many it
    has.
    """
    instructions = sum(found.after.facts.work.values())
    return f"{found.exact.come:,} of {instructions:,}"


def _step_rows(found: ReleasesResult) -> Iterator[tuple[str, ...]]:
    """The step without and with a profile, each in both compilations if all releases have two."""
    # a list for each compilation that all releases have
    compilations = list(zip(*(item.schedules for item in found.releases), strict=False))
    name = "step, no profile"
    for schedules in compilations:
        yield (name, *_times([each.baseline.step_us for each in schedules]))
        name = "  control"
    name = "step with a profile"
    for schedules in compilations:
        yield (name, *_times([each.profiled.step_us for each in schedules]))
        name = "  control"


def _times(steps_us: Sequence[float]) -> list[str]:
    """The steps of all releases. Later ones have their change from the first."""
    first_us, *others_us = steps_us
    words = [figures.time(first_us)]
    for step_us in others_us:
        share = step_us / first_us - 1 if first_us else None
        words.append(f"{figures.time(step_us)} ({figures.change(share)})")
    return words


# Lines below the table: what exactly differs.


def _notes(found: ReleasesResult) -> Iterator[str]:
    """The exact differences of each release, then what they do to the step."""
    controls = (item.rehearsal.control for item in found.releases)
    flags = {control.flag for control in controls if control is not None}
    if flags:
        yield f"control: {', '.join(sorted(flags))}; scheduled, kernels not compiled"
    for item in found.upgrades:
        release = item.after.by.release
        for line in change_lines(item):
            yield f"{release}: {line}"
        if len(found.upgrades) > 1:
            step, _ = step_words(item.step, release)
            yield f"{release}: {step}"
        profiled, _ = step_words(item.profiled, release)
        yield f"{release}, with a profile: {profiled}"
    if found.captured_by:
        yield (
            f"the program was traced by jax {found.captured_by}: "
            "another version may trace a different program"
        )


def change_lines(found: Upgrade) -> Iterator[str]:
    """Yield the exact differences between releases, a line for each fact."""
    exact = found.exact
    for kind, (before, after) in exact.collectives.items():
        yield f"{kind}: {_use(before)} → {_use(after)}{_real(found, kind)}"
    if exact.order is not None:
        yield _order_line(found, exact.order)
    if exact.products:
        also = "in both compilations"
        if found.control is None:
            also = "no control"
        elif found.control.products != exact.products:
            also = f"control: {_pairs(found.control.products) or SAME}"
        yield f"matrix products: {_pairs(exact.products)} ({also})"
    for flag in found.flags:
        if flag.is_set:
            yield _flag_line(flag, found)


def _use(use: CollectiveUse) -> str:
    """``12 (8 asynchronous, 1.50 GiB)``: the collectives of a kind."""
    size = figures.size(use.size_bytes)
    return f"{use.count:,} ({use.asynchronous:,} asynchronous, {size})"


def _real(found: Upgrade, kind: str) -> str:
    """Mark a difference that only one of both compilations shows."""
    if found.control is None:
        return ""
    return "" if kind in found.control.collectives else " (not in the control)"


def _order_line(found: Upgrade, order: Difference) -> str:
    """Name the first collective that two releases start in another order."""
    before, after = (str(side.collective or "nothing more") for side in order.sides)
    devices = some(map(str, order.communicator), _MOST)
    return (
        f"collective {order.position:,} on devices {devices} is {after}; "
        f"{found.before.by.release} starts {before}"
    )


def _pairs(counts: Mapping[str, tuple[int, int]]) -> str:
    """``f32 × f32 12 → 14``: counts before and after."""
    words = [f"{name} {old:,} → {new:,}" for name, (old, new) in counts.items()]
    return some(words, _MOST)


def _flag_line(flag: FlagChange, found: Upgrade) -> str:
    """Name a flag of the user that one of both releases does not know."""
    gone_from = found.after if flag.after is None else found.before
    words = f"--{flag.name} is unknown to jaxlib {gone_from.by.release}"
    return f"{words}; use {flag.instead}" if flag.instead else words


# Sections.


def _kernels(found: ReleasesResult) -> tuple[Table | Prose, ...]:
    """The kernels of each release whose number differs from the first."""
    parts: list[Table | Prose] = []
    heads = (
        "kind",
        Column("before", Unit.COUNT),
        Column("after", Unit.COUNT),
        "control",
    )
    for item in found.upgrades:
        rows: list[tuple[Value, ...]] = []
        for name, (before, after) in item.exact.kernels.items():
            rows.append((name, before, after, _control_pair(item.control, name)))
        parts.append(Prose(f"jaxlib {item.after.by.release}", tone="head"))
        parts.append(table(heads, rows))
        gone = many(item.exact.gone, "scheduled instruction")
        parts.append(Prose(f"{gone} of the old module have no equal in the new one."))
    return tuple(parts)


def _control_pair(control: ProgramChanges | None, name: str) -> str:
    """The same counts in the second compilation; ``same`` if they do not differ."""
    if control is None:
        return ""
    pair = control.kernels.get(name)
    return SAME if pair is None else f"{pair[0]:,} → {pair[1]:,}"


def _defaults(found: ReleasesResult) -> tuple[Table, ...]:
    """The flags whose default differs, unless the user sets them."""
    rows: list[tuple[Value, ...]] = []
    for item in found.upgrades:
        release = item.after.by.release
        for flag in item.flags:
            if flag.is_set:
                continue
            name = f"--{flag.name}"
            rows.append((release, name, flag.before, flag.after))
    return (table(("jaxlib", "flag", "before", "after"), rows),)


def _files(found: ReleasesResult) -> Table:
    rows = map(_file_row, found.releases)
    return table(("jaxlib", "interpreter", "HLO"), rows)


def _file_row(item: Release) -> tuple[Value, ...]:
    return item.by.release, item.by.python, str(_module_of(item))


def _following(found: ReleasesResult) -> Next:
    """Return the command that predicts the last release's module."""
    return Next.of("predict", _module_of(found.releases[-1]))


def _module_of(item: Release) -> Path:
    """The file of the module that a release compiled without a profile."""
    return text.near(item.rehearsal.baseline.compiled.after_optimizations)


class CompiledSteps(Document):
    """A step without and with a profile."""

    step_us: float
    exposed_us: float
    profiled_us: float
    profiled_exposed_us: float


class ReleaseDocument(Document):
    """What one release compiled from the program."""

    jaxlib: str
    python: str
    hlo: Path
    fingerprint: str
    memory_bytes: int | None
    by_kind: Mapping[str, CollectiveUse]
    products: Mapping[str, int]
    control_products: Mapping[str, int]
    kernels: Mapping[str, int]
    instructions: int
    dropped: tuple[str, ...]
    compiled: tuple[CompiledSteps, ...]


class OrderChange(Document):
    """The first place where the order of collective starts differs, and what each release starts
    there.
    """

    position: int
    starts: tuple[str, ...]


class ExactChanges(Document):
    """The exact differences; pairs are (before, after)."""

    by_kind: Mapping[str, tuple[CollectiveUse, CollectiveUse]]
    order: OrderChange | None
    products: Mapping[str, tuple[int, int]]
    kernels: Mapping[str, tuple[int, int]]
    gone: int
    come: int
    memory_bytes: tuple[int | None, int | None]
    has_same_fingerprint: bool


class StepGain(Document):
    """The share of the step that the release saves. Negative means that the step gets longer."""

    depends: bool
    share: float | None
    first_share: float
    control_share: float | None


class UpgradeDocument(Document):
    """What changes from one release to another."""

    releases: Mapping[Literal["from", "to"], str] = flat()
    exact: ExactChanges
    control: ExactChanges | None
    flags: tuple[FlagChange, ...]
    carried_share: float
    step: StepGain
    profiled: StepGain


class ReleasesDocument(Document):
    """``pgle.releases/1``."""

    module: Path
    devices: int
    target: str
    flags: tuple[str, ...]
    costs_are: str
    captured_by: str
    releases: tuple[ReleaseDocument, ...]
    upgrades: tuple[UpgradeDocument, ...]
    verdict: str
    warnings: tuple[str, ...]


def releases_document(found: ReleasesResult) -> ReleasesDocument:
    """Compare every later release with the first, for one program."""
    first = found.releases[0].rehearsal
    request = found.request
    verdict, _ = headline(found)
    return ReleasesDocument(
        module=request.module,
        devices=first.baseline.compiled.num_devices,
        target=request.target.name,
        flags=request.flags,
        costs_are=first.costs_are,
        captured_by=found.captured_by,
        releases=tuple(map(_release, found.releases)),
        upgrades=tuple(map(_upgrade, found.upgrades)),
        verdict=verdict,
        warnings=found.warnings,
    )


def _release(item: Release) -> ReleaseDocument:
    """What a release compiled, in JSON."""
    facts = item.facts
    control = item.control_facts
    compiled = item.rehearsal.baseline.compiled
    control_products = {} if control is None else control.products
    return ReleaseDocument.of_value(
        facts,
        jaxlib=item.by.release,
        python=item.by.python,
        hlo=compiled.after_optimizations,
        by_kind=facts.collectives,
        control_products=control_products,
        instructions=sum(facts.work.values()),
        dropped=item.dropped,
        compiled=tuple(map(_steps, item.schedules)),
    )


def _steps(side: Schedules) -> CompiledSteps:
    """The steps of one compilation, without and with a profile, in microseconds."""
    return CompiledSteps(
        step_us=side.baseline.step_us,
        exposed_us=side.baseline.exposed_us,
        profiled_us=side.profiled.step_us,
        profiled_exposed_us=side.profiled.exposed_us,
    )


def _upgrade(item: Upgrade) -> UpgradeDocument:
    """What changes from the first release to a later one, in JSON."""
    return UpgradeDocument.of_value(
        item,
        releases={"from": item.before.by.release, "to": item.after.by.release},
        exact=_exact(item.exact),
        control=None if item.control is None else _exact(item.control),
        step=_step_gain(item.step),
        profiled=_step_gain(item.profiled),
    )


def _exact(found: ProgramChanges) -> ExactChanges:
    return ExactChanges.of_value(
        found,
        by_kind=found.collectives,
        order=None if found.order is None else _order_change(found.order),
    )


def _order_change(found: Difference) -> OrderChange:
    starts = tuple(str(side.collective or "") for side in found.sides)
    return OrderChange(found.position, starts)


def _step_gain(found: Controlled) -> StepGain:
    """The share of the step that a release saves. It depends on autotuning if its sign does."""
    gain = settled(found)
    return StepGain(
        depends=gain is None,
        share=None if gain is None else gain.share,
        first_share=found.first.share,
        control_share=None if found.other is None else found.other.share,
    )
