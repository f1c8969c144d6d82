"""Whether a profile fits a module, and whether XLA used it, as pages and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import PurePath
from typing import TYPE_CHECKING

from pgle.costs.profile.value import CostKind, Fault, join_name, split_name
from pgle.errors import cut, many, shown, some
from pgle.next import COMPLETE, Commands, Sentence, to_way
from pgle.report import text
from pgle.report.page import figures
from pgle.report.page.value import Cell, Page, Part, Prose, Section, Table, Tone, table
from pgle.report.profiles import conversion_section, ranks_given
from pgle.xla.log.verdict import Bounds, LogVerdict, ModuleVerdict, ProfileUse

if TYPE_CHECKING:
    from pgle.costs.profile.coverage import (
        Coverage,
        ModuleCoverage,
    )  # numpy, which `confirm` does without

GAPS_SHOWN = 3  # on the first screen
INVALID_SHOWN = 8


def verify_page(
    profile: str, coverage: Coverage, bounds: Bounds, following: Commands = ()
) -> Page:
    """Whether the profile covers the main module, and what it lacks of it; the figures in sections.

    Args:
        profile: its path.
        coverage: of it.
        bounds: what it must reach.
        following: commands for a profile that does.
    """
    main = coverage.main
    worst = min(main, key=lambda module: (module.kept_share, module.time.value or 0.0))
    failures, hints = list(_failures(coverage, bounds)), _hints(profile, coverage)
    commands = [command for hint in hints for command in hint.commands]
    total = sum(cost.cost_us for cost in coverage.unused if cost.is_valid)
    unused = f"{many(len(coverage.unused), 'cost')} unused, {figures.time(total)} (--section unused)"
    notes = (
        *(f"FAILED: {line}" for line in failures[1:]),
        *(f"To do: {hint}" for hint in hints[:1]),
        unused if coverage.unused else "",
    )
    return Page(
        title=f"pgle verify {profile}",
        identity=(
            f"{profile} → {shown(worst.module)}{f' ({worst.fingerprint[:12]}…)' if worst.fingerprint else ''}",
            ranks_given(coverage.inherited),
        ),
        verdict=f"FAILED: {failures[0]}" if failures else _has_costs(main, bounds),
        tone="bad" if failures else "warn" if worst.implausible else "good",
        table=_gaps(worst, GAPS_SHOWN) if failures else None,
        notes=notes if failures else (),
        sections=tuple(_sections(worst, coverage, hints)),
        way=to_way(commands if failures else following),
        warnings=(*_warnings(coverage), *([] if failures else _off(worst))),
    )


def _hints(profile: str, coverage: Coverage) -> list[Sentence]:
    """What to do, each once, with commands that name the profile and the dump."""
    hints = []
    if coverage.invalid:
        invalid = Sentence.of(
            "costs that are no time: ", COMPLETE, " treats them as gaps"
        )
        hints.append(_filled(invalid, profile, coverage.main[0]))
    for module in coverage.main:
        hints += [_filled(hint, profile, module) for hint in module.hints]
    return list(dict.fromkeys(hints))


def _filled(hint: Sentence, profile: str, module: ModuleCoverage) -> Sentence:
    """A hint whose commands name the profile and the dump."""
    dump = PurePath(module.source).parent
    return hint.filled({"PROFILE": PurePath(profile), "DUMP": dump})


def _failures(coverage: Coverage, bounds: Bounds) -> Iterator[str]:
    """Why the check failed, of the worst compilation of the main module; what to do is in the
    hints.
    """
    least = min(coverage.main, key=lambda module: module.kept_share)
    if least.kept_share < bounds.collectives:
        lost = round(least.collectives.total - least.collectives.covered)
        yield (
            f"{lost} of {least.collectives.total:.0f} collectives lack a cost: {figures.time(least.lost_us)} "
            f"({_weighed(least)}) of a {figures.time(least.step_us)} step"
        )
    if any((module.measured.value or 0.0) < bounds.time for module in coverage.main):
        yield _has_costs(coverage.main, bounds)
    if coverage.invalid:
        listed = some(
            (f"{item.name} ({item.values_us[0]:g})" for item in coverage.invalid),
            INVALID_SHOWN,
        )
        yield f"costs that are negative or not finite, which XLA takes as they are: {listed}"


def _weighed(module: ModuleCoverage) -> str:
    """Where the weights of a module's lost collectives come from."""
    assumed = {
        gap.weight_us > gap.total_us
        for gap in module.gaps
        if gap.kind is CostKind.COLLECTIVE
    }
    return (
        "estimated or assumed"
        if len(assumed) > 1
        else "as XLA assumes"
        if True in assumed
        else "estimated"
    )


def _has_costs(main: Sequence[ModuleCoverage], bounds: Bounds) -> str:
    """The coverage of the compilation with the least, in the words of `pgle confirm`."""
    worst = min(main, key=lambda module: module.measured.value or 0.0)
    covered, asked = figures.share(worst.time.value or 0.0), figures.share(bounds.time)
    measured = figures.share(worst.measured.value or 0.0)
    by = "" if measured == covered else f", {measured} by measured costs"
    return f"the profile covers {covered} of the step's time{by} (asked for: {asked})"


def _sections(
    module: ModuleCoverage, coverage: Coverage, hints: Sequence[Sentence]
) -> Iterator[Section]:
    yield Section("coverage", "What is covered", tuple(_covered(module, coverage)))
    weights = "Weight: the time that it probably takes or that XLA assumes, whichever is more."
    if module.is_modelled:
        weights = "XLA (jaxlib ≥ 0.10.2) models the time of a gap."
    if module.gaps:
        yield Section(
            "gaps", "Instructions without a cost", (Prose(weights), _gaps(module, 12))
        )
    unused = sorted(coverage.unused, key=lambda cost: (-cost.cost_us, cost.full_name))
    rows = ((shown(_short(cost.full_name)), cost.cost_us) for cost in unused)
    yield Section(
        "unused", "Costs that no module uses", (table("name | cost (time)", rows),)
    )
    yield Section("hints", "What to do", tuple(Prose(str(hint)) for hint in hints))
    yield conversion_section(coverage.inherited)


def _covered(module: ModuleCoverage, coverage: Coverage) -> Iterator[Part]:
    from pgle.costs.profile.coverage import Share

    counts = {"instructions": module.count, "collectives": module.collectives}
    times = {
        "sum of costs": Share(module.time.covered, module.step_us),
        "as XLA plans it, gaps at what XLA assumes": module.time,
    }
    for heads, shares in (
        (" | covered (count) | of (count) | share (share)", counts),
        (" | covered (time) | of (time) | (share)", times),
    ):
        yield table(
            heads,
            (
                (name, share.covered, share.total, share.value)
                for name, share in shares.items()
            ),
        )
    yield Prose(f"Names: {_AGAINST[module.against]}.")
    if module.filled_in:
        how = "simulated, estimated, or those of an instruction of the same shape"
        yield Prose(f"{module.filled_in:,} of these costs are not measured: {how}.")
    others = [item for item in coverage.modules if not item.is_main]
    if others:
        shared = sum(bool(item.count.covered or item.mismatched) for item in others)
        yield Prose(
            f"The profile has names of instructions of {shared} of {many(len(others), 'other module')}."
        )


_AGAINST = {
    "schedule dump": "those of the schedule dump",
    "scheduling names": "the HLO's scheduling names",
    "final names": "those of the final HLO (this dump has no scheduling names)",
}


def _gaps(module: ModuleCoverage, most: int) -> Table:
    """Collectives first, then the heaviest."""
    rows = []
    for gap in sorted(module.gaps, key=lambda gap: gap.kind != CostKind.COLLECTIVE):
        valid = isfinite(gap.assumed_us) and gap.assumed_us >= 0
        assumed = gap.assumed_us if valid else f"{gap.assumed_us:g}"
        if module.is_modelled and not gap.is_mismatch:
            assumed = "model"
        weight = gap.weight_us / module.time.total if module.time.total else None
        rows.append((shown(gap.name), gap.cost_us, assumed, weight, shown(gap.hint)))
    heads = "instruction without a cost | takes, estimated (time) | XLA assumes (time) | weight (share) | hint"
    return table(heads, rows, shown=most)


def _short(name: str) -> str:
    """A name with the head of its fingerprint, as fingerprints are shown everywhere."""
    fingerprint, bare = split_name(name)
    return join_name(f"{fingerprint[:12]}…", bare) if len(fingerprint) > 12 else name


def _off(module: ModuleCoverage) -> Iterator[str]:
    """Costs that their instructions cannot have; a profile that fails is of another program in any
    case.
    """
    from pgle.costs.profile.coverage import MOST_OFF

    if module.implausible:
        first, others = module.implausible[0], len(module.implausible) - 1
        cost, estimate = figures.time(first.cost_us), figures.time(first.estimate_us)
        more = (
            f"; as far off ({MOST_OFF:.0f} times): {many(others, 'other cost')}"
            if others
            else ""
        )
        what = f"{shown(first.name)} costs {cost}, the estimate is {estimate}{more}"
        yield f"{what}: the profile may be of another program"


def _warnings(coverage: Coverage) -> list[str]:
    counts = {
        fault: sum(item.fault == fault for item in coverage.findings) for fault in Fault
    }
    odd = ", ".join(
        f"{count} {fault.value}" for fault, count in counts.items() if count
    )
    return [
        *coverage.warnings,
        *([f"XLA reads some names otherwise ({odd}): see 'pgle show'"] if odd else []),
    ]


def document(profile: str, coverage: Coverage, bounds: Bounds) -> dict[str, object]:
    """``pgle.verify/1`` without its name."""
    return {
        "ok": coverage.is_ok(bounds),
        "failed": list(_failures(coverage, bounds)),
        "profile": profile,
        **text.picked(bounds, "min_time_coverage=time min_collectives=collectives"),
        "modules": [_record(profile, module) for module in coverage.modules],
        "unused": [cost.full_name for cost in coverage.unused],
        "findings": coverage.findings,
        "warnings": [*coverage.inherited, *_warnings(coverage)],
    }


def _record(profile: str, module: ModuleCoverage) -> dict[str, object]:
    return {
        **text.picked(
            module,
            "name=module fingerprint program_id source main=is_main names_from=against",
        ),
        "coverage": text.picked(
            module,
            (
                "count=count.value time=time.value measured=measured.value "
                "collectives=collectives.value without_lost_collectives=kept_share"
            ),
        ),
        "totals": text.picked(
            module,
            "instructions=count time_us=time collectives step_us lost_collectives_us=lost_us",
        ),
        "missing": [gap.name for gap in module.gaps],
        **text.picked(module, "unchecked filled_in gaps xla_takes_gaps_for=fallback"),
        "hints": [_filled(hint, profile, module) for hint in module.hints],
    }


MAX_NAMES = 4
PROOF = 96  # characters of the line that proves it; `--section modules` has all

_DONE = re.compile(r"-done(\.\d+)*$")
_USE_WORDS = {
    ProfileUse.USED: "profile used",
    ProfileUse.PARTLY_USED: "profile partly used",
    ProfileUse.USED_WITHOUT_MATCHES: "profile read, but no name matches",
    ProfileUse.ENDED: "the program ended, though the scheduler took the profile",
    ProfileUse.DIFFERENT: "the ranks used different profiles",
    ProfileUse.NOT_USED: "profile not used",
    ProfileUse.WRONG_FORMAT: "profile not readable",
    ProfileUse.CANNOT_TELL: "cannot tell whether the profile was used",
}
USE_TONES: dict[ProfileUse, Tone] = {
    ProfileUse.USED: "good",
    ProfileUse.PARTLY_USED: "warn",
    ProfileUse.USED_WITHOUT_MATCHES: "warn",
    ProfileUse.CANNOT_TELL: "warn",
    ProfileUse.ENDED: "bad",
    ProfileUse.DIFFERENT: "bad",
    ProfileUse.NOT_USED: "bad",
    ProfileUse.WRONG_FORMAT: "bad",
}


def confirm_page(log: str, verdict: LogVerdict, following: Commands = ()) -> Page:
    """The main module: whether it used the profile, and why; the other modules in a section."""
    main, others = verdict.main, verdict.modules[1:]
    uses = {use: sum(item.verdict is use for item in others) for use in ProfileUse}
    ranks = f"ranks: {_ranks_text(verdict.ranks)}" if len(verdict.ranks) > 1 else ""
    counts = ", ".join(
        f"{count} {use.replace('-', ' ')}" for use, count in uses.items() if count
    )
    rest = (
        f"{many(len(others), 'other module')}: {counts} (--section modules)"
        if others
        else ""
    )
    lines = (
        f"{many(verdict.sub_modules, 'module')} of the kernel autotuner and of fusions are left out."
        if verdict.sub_modules
        else "",
        *(
            f"{path} was read for {many(times, 'module')}."
            for path, times in verdict.reads.items()
        ),
    )
    return Page(
        title=f"pgle confirm {log}",
        identity=(log,),
        verdict=shown(use_line(main)),
        tone=USE_TONES[main.verdict],
        notes=tuple(map(shown, (ranks, *main_lines(main), rest))),
        sections=(
            Section(
                "modules",
                "Modules",
                (_module_rows(verdict.modules), *map(Prose, map(shown, lines))),
            ),
        ),
        way=to_way(following),
        warnings=tuple(verdict.warnings),
    )


def use_line(main: ModuleVerdict) -> str:
    """``jit_train_step: profile used (36 of 36 instructions)``."""
    counted = (
        f" ({main.covered:,} of {main.wanted:,} instructions)"
        if main.wanted and main.covered is not None
        else ""
    )
    return f"{name_of(main)}: {_USE_WORDS[main.verdict]}{counted}"


def main_lines(main: ModuleVerdict) -> Iterator[str]:
    """What follows `use_line`: the reason, the proof, the gaps, the remedy."""
    yield main.why
    if main.line is not None:
        yield cut(f"line {main.line}: {main.proof}", PROOF)
    if lacking := [name for name in main.missing_names if not _DONE.search(name)]:
        yield f"XLA missed: {some(lacking, MAX_NAMES)}"
    if main.remedy:
        yield f"{'note' if main.verdict is ProfileUse.USED else 'to do'}: {main.remedy}"


def _ranks_text(ranks: Mapping[str, ProfileUse]) -> str:
    parts = []
    for use in dict.fromkeys(ranks.values()):
        names = [
            rank or "(no label)" for rank, verdict in ranks.items() if verdict is use
        ]
        parts.append(f"{use} on {some(names, MAX_NAMES)}")
    return "; ".join(parts)


def name_of(item: ModuleVerdict) -> str:
    """The module's name, or what to call one that the log never names."""
    return item.module or "(module not named)"


def confirm_document(verdict: LogVerdict) -> dict[str, object]:
    """``pgle.confirm/1`` without its name; `used` is whether the main module used the profile."""
    return {
        "used": verdict.main.verdict is ProfileUse.USED,
        **text.picked(verdict, "main modules ranks sub_modules reads warnings"),
    }


def _module_rows(items: Sequence[ModuleVerdict]) -> Table:
    rows = (
        (
            shown(f"{name_of(item)}{f' ×{item.times}' if item.times > 1 else ''}"),
            Cell(str(item.verdict), USE_TONES[item.verdict]),
            item.found,
            item.missing,
            "" if item.line is None else str(item.line),
            shown(item.proof),
        )
        for item in items
    )
    return table(
        "module | verdict | XLA found (count) | XLA missed (count) | line | proof", rows
    )
