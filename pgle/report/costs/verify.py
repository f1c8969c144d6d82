"""What `pgle verify` found, as a page and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import PurePath

from pgle.costs.profile.coverage import MOST_OFF, Coverage, Gap, ModuleCoverage, Share
from pgle.costs.profile.value import CostKind, Fault, Origin, join_name, split_name
from pgle.errors import many, shown, some
from pgle.next import quoted, word_of
from pgle.report import text
from pgle.report.costs.show import conversion_section, ranks_given
from pgle.report.page import figures
from pgle.report.page.value import Page, Part, Prose, Section, Table, table
from pgle.xla.log.evidence import LIGHT_SPEED, CheckerCounts
from pgle.xla.log.verdict import Bounds

GAPS_SHOWN = 3  # on the first screen
INVALID_SHOWN = 8


def verify_page(profile: str, coverage: Coverage, bounds: Bounds, following: Sequence[str] = ()) -> Page:
    """Whether the profile covers the main module, and what it lacks of it; the figures in sections.

    Args:
        profile: its path.
        coverage: of it.
        bounds: what it must reach.
        following: commands for a profile that does.
    """
    main = coverage.main
    worst = min(main, key=lambda module: (module.kept_share, module.time.value or 0.0))
    failures, hints = list(_failures(coverage, bounds)), list(_hints(profile, coverage))
    commands = [command for hint in hints for command in re.findall(r"'(pgle [^']+)'", hint)]
    notes = [f"FAILED: {line}" for line in failures[1:]]
    if failures and hints:
        notes.append(f"To do: {hints[0]}")
    if failures and coverage.unused:
        total = sum(item.cost.cost_us for item in coverage.unused if 0 < item.cost.cost_us < float("inf"))
        notes.append(f"{many(len(coverage.unused), 'cost')} unused, {figures.time(total)} (--section unused)")
    return Page(
        title=f"pgle verify {profile}",
        identity=(f"{profile} → {shown(worst.module)}{_known(worst)}", ranks_given(coverage.inherited)),
        verdict=f"FAILED: {failures[0]}" if failures else _has_costs(main, bounds),
        tone="bad" if failures else "warn" if worst.implausible else "good",
        table=_gaps(worst, GAPS_SHOWN) if failures and worst.gaps else None,
        notes=tuple(notes),
        sections=tuple(_sections(worst, coverage, hints)),
        next=tuple(commands if failures else following),
        warnings=(*_warnings(coverage), *([] if failures else _off(worst))),
    )


def _known(module: ModuleCoverage) -> str:
    return f" ({module.fingerprint[:12]}…)" if module.fingerprint else ""


def _hints(profile: str, coverage: Coverage) -> Iterator[str]:
    """What to do, each once, with commands that name the profile and the dump."""
    main = coverage.main
    invalid = "costs that are no time: 'pgle complete PROFILE --hlo DUMP -o OUT' treats them as gaps"
    hints = [_filled(invalid, profile, main[0])] if coverage.invalid else []
    hints += [_filled(hint, profile, module) for module in main for hint in module.hints]
    yield from dict.fromkeys(hints)


def _filled(hint: str, profile: str, module: ModuleCoverage) -> str:
    """A hint whose commands name the profile and the dump."""
    profile, dump = (quoted(word_of(path)) for path in (PurePath(profile), PurePath(module.source).parent))
    hint = hint.replace("complete PROFILE", f"complete {profile}").replace("OUT'", "OUT.pbtxt'")
    return hint.replace("--hlo DUMP", f"--hlo {dump}")


def _failures(coverage: Coverage, bounds: Bounds) -> Iterator[str]:
    """Why the check failed, of the worst compilation of the main module; what to do is in the hints."""
    least = min(coverage.main, key=lambda module: module.kept_share)
    if least.kept_share < bounds.collectives:
        lost = round(least.collectives.total - least.collectives.covered)
        yield (
            f"{lost} of {least.collectives.total:.0f} collectives lack a cost: {figures.time(least.lost_us)} "
            f"({_weighed(least)}) of a {figures.time(least.step_us)} step"
        )
    if any((module.time.value or 0.0) < bounds.time for module in coverage.main):
        yield _has_costs(coverage.main, bounds)
    if coverage.invalid:
        listed = some((f"{item.name} ({item.values_us[0]:g})" for item in coverage.invalid), INVALID_SHOWN)
        yield f"costs that are negative or not finite, which XLA takes as they are: {listed}"


def _weighed(module: ModuleCoverage) -> str:
    """Where the weights of a module's lost collectives come from."""
    assumed = [gap.weight_us > gap.total_us for gap in module.gaps if gap.kind is CostKind.COLLECTIVE]
    if not any(assumed):
        return "estimated"
    return "as XLA assumes" if all(assumed) else "estimated or assumed"


def _has_costs(main: Sequence[ModuleCoverage], bounds: Bounds) -> str:
    """The coverage of the compilation with the least, in the words of `pgle confirm`."""
    share = min(module.time.value or 0.0 for module in main)
    return f"the profile covers {figures.share(share)} of the step's time (asked for: {figures.share(bounds.time)})"


def _sections(module: ModuleCoverage, coverage: Coverage, hints: Sequence[str]) -> Iterator[Section]:
    yield Section("coverage", "What is covered", tuple(_covered(module, coverage)))
    if module.gaps:
        yield Section("gaps", "Instructions without a cost", (Prose(_fallback(module)), _gaps(module, 12)))
    if module.mismatches:
        rows = ((shown(i.name), i.cost_us, shown(i.profile_op), shown(i.module_op)) for i in module.mismatches)
        heading = "Names of an instruction of another opcode or shape; XLA would take them"
        yield Section("mismatches", heading, (table("name | cost (time) | in the profile | in the module", rows),))
    if coverage.unused:
        unused = sorted(coverage.unused, key=lambda item: (-item.cost.cost_us, item.name))
        rows_of = ((shown(_short(item.name)), item.cost.cost_us, shown(item.reason)) for item in unused)
        yield Section("unused", "Costs that no module uses", (table("name | cost (time) | why", rows_of),))
    if hints:
        yield Section("hints", "What to do", tuple(Prose(hint) for hint in hints))
    yield from conversion_section(coverage.inherited)


def _covered(module: ModuleCoverage, coverage: Coverage) -> Iterator[Part]:
    counts = {"instructions": module.count, "collectives": module.collectives}
    times = {
        "sum of costs": Share(module.time.covered, module.step_us),
        "as XLA plans it, gaps at what XLA assumes": module.time,
    }
    for heads, shares in (
        (" | covered (count) | of (count) | share (share)", counts),
        (" | covered (time) | of (time) | (share)", times),
    ):
        yield table(heads, ((name, share.covered, share.total, share.value) for name, share in shares.items()))
    yield Prose(f"Names: {_AGAINST[module.against]}.")
    if basis := _basis(module):
        yield Prose(basis)
    if module.filled_in:
        how = "simulated, estimated, or those of an instruction of the same shape"
        yield Prose(f"{module.filled_in:,} of these costs are not measured: {how}.")
    if module.log is not None:
        yield Prose(f"XLA will log: {_log(module.log)}")
    others = [item for item in coverage.modules if not item.is_main]
    if others:
        shared = sum(bool(item.count.covered or item.mismatches) for item in others)
        yield Prose(f"The profile has names of instructions of {shared} of {many(len(others), 'other module')}.")


_AGAINST = {
    "schedule dump": "those of the schedule dump",
    "scheduling names": "the HLO's scheduling names",
    "final names": "those of the final HLO (this dump has no scheduling names)",
}


def _log(counts: CheckerCounts) -> str:
    """The accuracy checker's numbers; it also misses what needs no cost."""
    if not counts.missing:
        return "nothing, since no name is missing"
    dones = sum("-done" in name for name in counts.idle)
    starts = sum("-start" in name for name in counts.idle)
    kinds = {"dones": dones, "starts": starts, "in loop conditions": len(counts.idle) - dones - starts}
    free = ", ".join(f"{count} {what}" for what, count in kinds.items() if count)
    return f"Found {counts.found}, Missing {len(counts.missing)}" + (f" ({free}, which need no cost)" if free else "")


def _basis(module: ModuleCoverage) -> str:
    parts = []
    if module.basis.get(Origin.SAME_SHAPE):
        parts.append(f"{module.basis[Origin.SAME_SHAPE]:,} from the same shape")
    if module.basis.get(Origin.ESTIMATED):
        parts.append(f"{module.basis[Origin.ESTIMATED]:,} estimated ({module.estimated_for})")
    return f"Times of gaps: {', '.join(parts)}." if parts else ""


def _fallback(module: ModuleCoverage) -> str:
    if module.fallback == LIGHT_SPEED:
        return "XLA (jaxlib ≥ 0.10.2) models the time of a gap."
    return "Weight: the time that it probably takes or that XLA assumes, whichever is more."


def _gaps(module: ModuleCoverage, most: int) -> Table:
    """Collectives first, then the heaviest."""
    is_model = module.fallback == LIGHT_SPEED
    rows = (
        (
            shown(gap.name),
            gap.cost_us,
            "model" if is_model and not gap.is_mismatch else _assumed(gap),
            gap.weight_us / module.time.total if module.time.total else None,
            shown(_hint(gap)),
        )
        for gap in sorted(module.gaps, key=lambda gap: gap.kind != CostKind.COLLECTIVE)
    )
    heads = "instruction without a cost | takes, estimated (time) | XLA assumes (time) | weight (share) | hint"
    return table(heads, rows, shown=most)


def _assumed(gap: Gap) -> float | str:
    return gap.assumed_us if isfinite(gap.assumed_us) and gap.assumed_us >= 0 else f"{gap.assumed_us:g}"


def _hint(gap: Gap) -> str:
    return "name of another instruction" if gap.is_mismatch and not gap.hint else gap.hint


def _short(name: str) -> str:
    """A name with the head of its fingerprint, as fingerprints are shown everywhere."""
    fingerprint, bare = split_name(name)
    return join_name(f"{fingerprint[:12]}…", bare) if len(fingerprint) > 12 else name


def _off(module: ModuleCoverage) -> Iterator[str]:
    """Costs that their instructions cannot have; a profile that fails is of another program in any case."""
    if module.implausible:
        first, others = module.implausible[0], len(module.implausible) - 1
        cost, estimate = figures.time(first.cost_us), figures.time(first.estimate_us)
        yield (
            f"{shown(first.name)} costs {cost}, the estimate is {estimate}"
            + (f"; as far off ({MOST_OFF:.0f} times): {many(others, 'other cost')}" if others else "")
            + ": the profile may be of another program"
        )


def _warnings(coverage: Coverage) -> list[str]:
    counts = {fault: sum(item.fault == fault for item in coverage.findings) for fault in Fault}
    odd = ", ".join(f"{count} {fault.value}" for fault, count in counts.items() if count)
    return [*coverage.warnings, *([f"the profile has oddities ({odd}): see 'pgle show'"] if odd else [])]


def document(profile: str, coverage: Coverage, bounds: Bounds) -> dict[str, object]:
    """``pgle.verify/1`` without its name."""
    return {
        "ok": coverage.is_ok(bounds),
        "failed": list(_failures(coverage, bounds)),
        "profile": profile,
        "min_time_coverage": bounds.time,
        "min_collectives": bounds.collectives,
        "modules": [_record(profile, module) for module in coverage.modules],
        "unused": [item.name for item in coverage.unused],
        "unused_details": [text.picked(item, "name cost.cost_us reason") for item in coverage.unused],
        "findings": coverage.findings,
        "warnings": [*coverage.inherited, *_warnings(coverage)],
    }


def _record(profile: str, module: ModuleCoverage) -> dict[str, object]:
    log = module.log
    return {
        **text.picked(module, "name=module fingerprint program_id source main=is_main names_from=against"),
        "coverage": text.picked(
            module,
            "count=count.value time=time.value collectives=collectives.value without_lost_collectives=kept_share",
        ),
        "totals": text.picked(
            module,
            "instructions=count time_us=time collectives step_us lost_collectives_us=lost_us "
            "weights_from=basis estimated_for",
        ),
        "names": text.picked(module, "own=own_names bare=bare_names other_fingerprint=other_names"),
        "missing": [gap.name for gap in module.gaps],
        **text.picked(module, "unchecked filled_in gaps mismatched=mismatches xla_takes_gaps_for=fallback"),
        "xla_log": log and {"found": log.found, "missing": len(log.missing), "idle": len(log.idle)},
        "hints": [_filled(hint, profile, module) for hint in module.hints],
    }
