"""What `pgle verify` found, as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import PurePath

from pgle.costs.lookup.coverage import Coverage, ModuleCoverage, Share
from pgle.costs.lookup.gaps import Gap
from pgle.costs.profile.effective import Fault
from pgle.costs.profile.value import CostKind, Origin, join_name, split_name
from pgle.errors import cut, many, some
from pgle.next import quoted, word_of
from pgle.report import json
from pgle.report.text import Console, console, duration, printable, show_rest, table, warn
from pgle.xla.checker import LIGHT_SPEED, CheckerCounts
from pgle.xla.log.module_verdict import Bounds

GAPS_SHOWN = 12
UNUSED_SHOWN = 8
MISMATCHES_SHOWN = 6

_WHOLE = "|covered|of|share"


def show_text(profile: str, coverage: Coverage, bounds: Bounds) -> None:
    """The main module in full, the others in a line each; warnings on stderr."""
    out = console()
    main = coverage.main
    for index, module in enumerate(main):
        if index and replace(module, fingerprint="", source="") == replace(main[0], fingerprint="", source=""):
            known = module.fingerprint[:12] or module.source
            out.print(printable(f"the same for the compilation of another process ({known}…)"), style="dim")
        else:
            _module(out, profile, module)
    _others(out, [module for module in coverage.modules if not module.is_main])
    _unused(out, coverage)
    out.print()
    failures = list(_failures(coverage, bounds))
    for line in failures:
        out.print(f"FAILED: {printable(line)}", style="bold red", soft_wrap=True)
    if not failures:
        out.print(f"ok: {_has_costs(main, bounds)}", style="bold green", soft_wrap=True)
    invalid = "costs that are no time: 'pgle complete PROFILE --hlo DUMP -o OUT' treats them as gaps"
    hints = [_filled(invalid, profile, main[0])] if coverage.invalid else []
    hints += [_filled(hint, profile, module) for module in main for hint in module.hints]
    for hint in dict.fromkeys(hints):
        out.print(f"- {printable(hint)}")
    warn(_warnings(coverage))


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
            f"{lost} of {least.collectives.total:.0f} collectives lack a cost; XLA plans {duration(least.lost_us)} "
            f"for them in a {duration(least.step_us)} step (bound {1 - bounds.collectives:.1%})"
        )
    if any((module.time.value or 0.0) < bounds.time for module in coverage.main):
        yield _has_costs(coverage.main, bounds)
    if coverage.invalid:
        listed = some((f"{item.name} ({item.values_us[0]:g})" for item in coverage.invalid), UNUSED_SHOWN)
        yield f"costs that are negative or not finite, which XLA takes as they are: {listed}"


def _has_costs(main: Sequence[ModuleCoverage], bounds: Bounds) -> str:
    """What is covered of the compilation of which it is least, in the words of `pgle confirm`."""
    share = min(module.time.value or 0.0 for module in main)
    return f"the profile has costs for {share:.1%} of the step's time as XLA plans it (asked for: {bounds.time:.1%})"


def _module(out: Console, profile: str, module: ModuleCoverage) -> None:
    known = f" ({module.fingerprint[:12]}…)" if module.fingerprint else ""
    out.print(printable(f"{profile} against {module.module}{known}"), style="bold", soft_wrap=True)
    out.print(f"instructions by their names when LHS ran: {_AGAINST[module.against]}", style="dim", soft_wrap=True)
    step = Share(module.time.covered, module.step_us)
    times = [("sum of costs", step, _basis(module))]
    if _percent(step) != _percent(module.time):
        times.append(("as XLA plans it", module.time, "gaps at what XLA takes them for"))
    counts = (("instructions", module.count), ("collectives", module.collectives))
    rows = [(name, f"{of.covered:,.0f}", f"{of.total:,.0f}", _percent(of), "") for name, of in counts]
    rows += [(name, duration(of.covered), duration(of.total), _percent(of), why) for name, of, why in times]
    out.print(table(("", "covered", "of", "share", ""), rows, right="covered|of|share", whole=_WHOLE))
    if module.filled_in:
        out.print(
            f"{module.filled_in:,} of these costs are not measured: simulated, estimated, or of an instruction of the "
            "same shape",
            style="yellow",
        )
    if module.log is not None:
        out.print(f"XLA will log: {_log(module.log)}", style="dim")
    _gaps(out, module)
    _mismatches(out, module)


_AGAINST = {
    "schedule dump": "those of the schedule dump",
    "scheduling names": "the HLO's scheduling names",
    "final names": "those of the final HLO, which holds no scheduling names",
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


def _percent(share: Share) -> str:
    return "–" if share.value is None else f"{share.value:.1%}"


def _basis(module: ModuleCoverage) -> str:
    parts = []  # short: a longer text narrows the numbers
    if module.basis.get(Origin.SAME_SHAPE):
        parts.append(f"{module.basis[Origin.SAME_SHAPE]:,} from the same shape")
    if module.basis.get(Origin.ESTIMATED):
        parts.append(f"{module.basis[Origin.ESTIMATED]:,} estimated ({module.estimated_for})")
    return f"gaps: {', '.join(parts)}" if parts else ""


def _gaps(out: Console, module: ModuleCoverage) -> None:
    if not module.gaps:
        return
    is_model = module.fallback == LIGHT_SPEED
    what = (
        "XLA (jaxlib ≥ 0.10.2) models them" if is_model else "the greater of the two times is an instruction's weight"
    )
    out.print()
    out.print(
        f"{many(len(module.gaps), 'instruction')} without a cost, collectives and then the heaviest first; {what}",
        style="yellow",
    )
    rows = [
        (
            cut(gap.name, 34),
            f"~{duration(gap.cost_us)}" + (" est." if gap.basis == Origin.ESTIMATED else ""),
            "model" if is_model and not gap.is_mismatch else _assumed(gap),
            f"{gap.weight_us / module.time.total:.1%}" if module.time.total else "–",
            cut(_hint(gap), 32),
        )
        for gap in sorted(module.gaps, key=lambda gap: gap.kind != CostKind.COLLECTIVE)[:GAPS_SHOWN]
    ]
    out.print(table(("instruction", "costs", "XLA takes", "weight", "hint"), rows, right="costs|weight|XLA takes"))
    show_rest(out, len(module.gaps) - GAPS_SHOWN)


def _assumed(gap: Gap) -> str:
    return duration(gap.assumed_us) if isfinite(gap.assumed_us) and gap.assumed_us >= 0 else f"{gap.assumed_us:g}"


def _hint(gap: Gap) -> str:
    return "name is of another instruction" if gap.is_mismatch and not gap.hint else gap.hint


def _mismatches(out: Console, module: ModuleCoverage) -> None:
    if not module.mismatches:
        return
    out.print()
    out.print(
        f"{len(module.mismatches):,} names match an instruction of another opcode or shape (XLA would take them)",
        style="yellow",
    )
    rows = [
        (cut(item.name, 30), duration(item.cost_us), cut(item.profile_op, 28), cut(item.module_op, 28))
        for item in module.mismatches[:MISMATCHES_SHOWN]
    ]
    out.print(table(("name", "cost", "in the profile", "in the module"), rows, right="cost"))
    show_rest(out, len(module.mismatches) - MISMATCHES_SHOWN)


def _others(out: Console, others: Sequence[ModuleCoverage]) -> None:
    if not others:
        return
    shared = [module for module in others if module.count.covered or module.mismatches]
    out.print()
    names = f"the profile has names of instructions of {len(shared) or 'none'} of them"
    out.print(f"{many(len(others), 'other module')}; {names}", style="dim")


def _unused(out: Console, coverage: Coverage) -> None:
    if not coverage.unused:
        return
    total = sum(item.cost.cost_us for item in coverage.unused if 0 < item.cost.cost_us < float("inf"))
    out.print()
    out.print(f"{many(len(coverage.unused), 'cost')} that no module takes, {duration(total)}", style="yellow")
    heaviest = sorted(coverage.unused, key=lambda item: (-item.cost.cost_us, item.name))
    rows = [
        (cut(_short(item.name), 44), duration(item.cost.cost_us), cut(item.reason, 40))
        for item in heaviest[:UNUSED_SHOWN]
    ]
    out.print(table(("name", "cost", "why"), rows, right="cost"))
    show_rest(out, len(heaviest) - UNUSED_SHOWN)


def _short(name: str) -> str:
    """A name with the head of its fingerprint, as fingerprints are shown everywhere."""
    fingerprint, bare = split_name(name)
    return join_name(f"{fingerprint[:12]}…", bare) if len(fingerprint) > 12 else name


def _warnings(coverage: Coverage) -> list[str]:
    counts = {fault: sum(item.fault == fault for item in coverage.findings) for fault in Fault}
    odd = ", ".join(f"{count} {fault.value}" for fault, count in counts.items() if count)
    return [*coverage.warnings, *([f"the profile has oddities ({odd}): see 'pgle show'"] if odd else [])]


def show_json(profile: str, coverage: Coverage, bounds: Bounds) -> None:
    """``pgle.verify/1``."""
    json.show(
        "pgle.verify/1",
        {
            "ok": coverage.is_ok(bounds),
            "failed": list(_failures(coverage, bounds)),
            "profile": profile,
            "min_time_coverage": bounds.time,
            "min_collectives": bounds.collectives,
            "modules": [_record(profile, module) for module in coverage.modules],
            "unused": [item.name for item in coverage.unused],
            "unused_details": [
                {"name": item.name, "cost_us": item.cost.cost_us, "reason": item.reason} for item in coverage.unused
            ],
            "findings": coverage.findings,
            "warnings": _warnings(coverage),
        },
    )


def _record(profile: str, module: ModuleCoverage) -> dict[str, object]:
    shares = {name: getattr(module, name) for name in ("count", "time", "collectives")}
    return {
        "name": module.module,
        **json.picked(module, "fingerprint program_id source"),
        "main": module.is_main,
        "names_from": module.against,
        "coverage": {
            **{name: share.value for name, share in shares.items()},
            "without_lost_collectives": module.kept_share,
        },
        "totals": {
            "instructions": module.count,
            "time_us": module.time,
            "collectives": module.collectives,
            "step_us": module.step_us,
            "lost_collectives_us": module.lost_us,
            "weights_from": module.basis,
            "estimated_for": module.estimated_for,
        },
        "names": {"own": module.own_names, "bare": module.bare_names, "other_fingerprint": module.other_names},
        **json.picked(module, "unchecked filled_in"),
        "missing": [gap.name for gap in module.gaps],
        "gaps": module.gaps,
        "mismatched": module.mismatches,
        "xla_takes_gaps_for": module.fallback,
        "xla_log": None
        if module.log is None
        else {"found": module.log.found, "missing": len(module.log.missing), "idle": len(module.log.idle)},
        "hints": [_filled(hint, profile, module) for hint in module.hints],
    }
