"""What XLA really takes from a profile: prefixes filtered, equal names merged, ``.remat`` stripped.

Source: ``FilterWithFingerprint`` in openxla/xla ``xla/service/gpu/gpu_hlo_schedule.cc`` and the table of
``xla/service/profile_guided_latency_estimator.cc``; checked against the compiler in `tests/costs/test_effective.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pgle.costs.profile import Cost, CostKind, Profile

_REMAT_SUFFIX = re.compile(r"\.remat[0-9]*\Z")
_DONE = re.compile(r".+-done(\.\d+)*")
_START = re.compile(r"(.+)-start((?:\.\d+)*)")


def effective_costs(profile: Profile, fingerprint: str = "") -> Mapping[str, Cost]:
    """The costs that XLA uses for a module, by instruction name.

    Names with a prefix count only for the module of that fingerprint. Of equal names the last wins; but if any name
    that counts holds ``.remat``, all lose a trailing ``.remat`` or ``.rematN`` and equal ones are averaged.

    Args:
        profile: as read.
        fingerprint: of the module; empty: only names without prefix.
    """
    averages, groups = _grouped(profile, fingerprint)
    return {name: _merged(name, costs, averages) for name, costs in groups.items()}


def effective_entries(profile: Profile) -> tuple[Cost, ...]:
    """Each cost that XLA can use, once: by fingerprint (bare names first), in file order; what it never uses is gone.

    Entries of one fingerprint are merged among themselves; a module takes those of its own before bare ones.
    """
    entries: list[Cost] = []
    for fingerprint in sorted({cost.fingerprint for cost in profile.costs}):
        own = Profile(tuple(cost for cost in profile.costs if cost.fingerprint == fingerprint))
        entries += effective_costs(own, fingerprint).values()
    return tuple(entries)


def _grouped(profile: Profile, fingerprint: str) -> tuple[bool, Mapping[str, Sequence[Cost]]]:
    """Whether XLA averages, and the costs that count for a module by the name that XLA gives them."""
    kept = [cost for cost in profile.costs if "::" not in cost.name and cost.fingerprint in ("", fingerprint)]
    averages = any(".remat" in cost.name for cost in kept)
    groups: dict[str, list[Cost]] = {}
    for cost in kept:
        name = _REMAT_SUFFIX.sub("", cost.name) if averages else cost.name
        groups.setdefault(name, []).append(cost)
    return averages, groups


def _merged(name: str, costs: Sequence[Cost], averages: bool) -> Cost:
    if len(costs) == 1 or not averages:
        return replace(costs[-1], name=name)
    return replace(
        costs[-1],
        name=name,
        cost_us=sum(cost.cost_us for cost in costs) / len(costs),
        samples=sum(cost.samples for cost in costs),
        min_us=min(cost.min_us for cost in costs),
        max_us=max(cost.max_us for cost in costs),
    )


class Fault(StrEnum):
    """What can be odd about a profile that XLA accepts without a word."""

    DUPLICATE = "duplicate"
    REMAT = "remat"
    NOT_FINITE = "not-finite"
    NEGATIVE = "negative"
    ZERO = "zero"
    NAME = "name"
    DONE = "done"
    LOOP = "loop"
    MASKED = "masked"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in a profile that does not do what it seems to.

    Attributes:
        fault: which kind.
        name: as the profile spells it.
        message: what XLA does with it, one clause.
        values_us: the costs concerned, in file order; none where it is about the whole profile.
        effective_us: what XLA takes; None where it takes nothing.
    """

    fault: Fault
    name: str
    message: str
    values_us: tuple[float, ...] = ()
    effective_us: float | None = None


def profile_findings(profile: Profile) -> tuple[Finding, ...]:
    """What a user should know about a profile before giving it to XLA, in file order within each kind."""
    modules = sorted({"", *(cost.fingerprint for cost in profile.costs)})
    findings = [finding for fingerprint in modules for finding in _merges(profile, fingerprint)]
    for cost in profile.costs:
        findings += _value(cost)
    for cost in {cost.full_name: cost for cost in profile.costs}.values():
        findings += _name(cost)
    return (*findings, *_masked(profile, modules))


def _merges(profile: Profile, fingerprint: str) -> Iterator[Finding]:
    """Several costs that become one for a module; for no prefix: those that do so for every module."""
    averages, groups = _grouped(profile, fingerprint)
    rule = "some name holds .remat, so XLA averages equal names" if averages else "XLA takes the last"
    for name, costs in groups.items():
        merged = _merged(name, costs, averages)
        if len(costs) == 1 or (fingerprint and not any(cost.fingerprint for cost in costs)):
            continue
        spellings = dict.fromkeys(cost.name for cost in costs)
        same = len(spellings) == 1
        message = f"{len(costs)} costs; {rule}" if same else f"XLA averages {_some(spellings)}"
        values = tuple(cost.cost_us for cost in costs)
        spelled = f"{fingerprint}::{name}" if fingerprint else name
        yield Finding(Fault.DUPLICATE if same else Fault.REMAT, spelled, message, values, merged.cost_us)
    if averages and (not fingerprint or any(cost.fingerprint and ".remat" in cost.name for cost in _flat(groups))):
        count = sum(".remat" in cost.name for cost in _flat(groups))
        what = f".remat in {count} of the names: XLA cuts a trailing .remat or .rematN off all and averages equal ones"
        yield Finding(Fault.REMAT, "", what)


def _flat(groups: Mapping[str, Sequence[Cost]]) -> Iterable[Cost]:
    return (cost for costs in groups.values() for cost in costs)


def _value(cost: Cost) -> Iterator[Finding]:
    if "::" in cost.name:
        return
    if not math.isfinite(cost.cost_us):
        fault, what = Fault.NOT_FINITE, f"cost is {cost.cost_us}; XLA uses it, and its schedule means nothing"
    elif cost.cost_us < 0:
        fault, what = Fault.NEGATIVE, "negative cost; XLA uses it as it is"
    elif cost.cost_us == 0:
        fault, what = Fault.ZERO, "cost is 0; XLA takes it for free, not for unknown"
    else:
        return
    yield Finding(fault, cost.full_name, what, (cost.cost_us,), cost.cost_us)


def _name(cost: Cost) -> Iterator[Finding]:
    effective: float | None = None
    if "::" in cost.name:
        fault, what = Fault.NAME, "not FINGERPRINT::NAME; XLA drops it"
    elif not cost.name:
        fault, what = Fault.NAME, "has no name; matches nothing"
    elif cost.name.startswith("%") or any(char.isspace() for char in cost.name):
        fault, what = Fault.NAME, "has % or a blank, which instruction names never have; matches nothing"
    elif _DONE.fullmatch(cost.name):
        fault, what = Fault.DONE, "cost of a -done; XLA looks up only its start"
    elif cost.likely_kind == CostKind.LOOP:
        fault, what, effective = (
            Fault.LOOP,
            "whole loop; XLA takes it where the loop stands, and the costs in its body beside it",
            cost.cost_us,
        )
    else:
        return
    yield Finding(fault, cost.full_name, what, (cost.cost_us,), effective)


def _masked(profile: Profile, fingerprints: Iterable[str]) -> Iterator[Finding]:
    """Costs under the name that an ``async-start`` wraps, beside one of the start itself: the start's counts."""
    for fingerprint in fingerprints:
        table = effective_costs(profile, fingerprint)
        for start in table.values():
            match = _START.fullmatch(start.name)
            if match is None:
                continue
            sure = table.get(start.trace_name) if start.trace_name else None
            wrapped = sure or table.get(match[1] + match[2])
            if wrapped is None or (fingerprint and not (start.fingerprint or wrapped.fingerprint)):
                continue
            condition = "" if sure else "if it is what that starts, "
            what = f"{start.name} has a cost too; {condition}XLA takes that of the start"
            values = (wrapped.cost_us, start.cost_us)
            yield Finding(Fault.MASKED, wrapped.full_name, what, values, start.cost_us)


def _some(names: Iterable[str], limit: int = 4) -> str:
    """The first names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
