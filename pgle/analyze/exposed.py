"""Findings about exposed communication, and about the profile that should hide it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.collectives import MeasuredCollective
from pgle.analyze.findings import ROWS, EvidenceRow, Observation, evidence_of
from pgle.analyze.slow_links import SLOW_TRANSFER
from pgle.errors import in_percent, in_words, many
from pgle.next import PROFILE, REHEARSE, RUN, TUNE
from pgle.schedule.placements import DISABLE_ASYNC

LEAST_HIDDEN = 0.001  # share of the step; a profile that could hide less is not advised

_AS_THEY_ARE = (
    f"these collectives as they are: '{TUNE}' tries combined, split and pipelined ones"
)
_NOTHING_INDEPENDENT = (
    f"no compute is independent of them, so no schedule hides {_AS_THEY_ARE}"
)
_MAKE_ASYNC = (
    f"make them asynchronous: see that {DISABLE_ASYNC} does not name their kind, "
    f"then '{REHEARSE}' says whether the scheduler finds compute to overlap them with"
)
_CHECK_LINKS = (
    "check NVLink and NCCL's choice (NCCL_DEBUG=INFO), and the kernels that overlap them, "
    "which take bandwidth and SMs"
)
_TRACE_ALL = (
    "trace all ranks first: that separates waiting from transfer; if they are still slow: "
    f"{_CHECK_LINKS}"
)
_ALONE = (
    "a profile run exposes every collective to measure it alone; "
    "the trace of a plain run shows what stays exposed"
)


def synchronous(step: MeasuredStep) -> Observation | None:
    """Find synchronous collectives. None if the profile run itself made them synchronous."""
    if step.measures_alone:
        return None
    ours = [item for item in _most_exposed(step) if item.sync]
    hideable = any(item.hideable_us for item in ours)
    is_stuck = bool(step.exposed_collectives) and not hideable
    return Observation(
        sum(item.transfer_exposed_us for item in ours),
        many(len(ours), "synchronous collective"),
        _exposed_rows((item, _kind_and_reason(item)) for item in ours),
        _NOTHING_INDEPENDENT if is_stuck else _MAKE_ASYNC,
    )


def _kind_and_reason(item: MeasuredCollective) -> str:
    """The kind of a collective, and the reason why it is exposed if known."""
    return f"{item.kind}; {item.why}" if item.why else str(item.kind)


def _most_exposed(step: MeasuredStep) -> list[MeasuredCollective]:
    return sorted(step.collectives, key=lambda item: -item.transfer_exposed_us)


def _exposed_rows(
    noted: Iterable[tuple[MeasuredCollective, str]],
) -> tuple[EvidenceRow, ...]:
    """Evidence rows for the first of some exposed collectives, each with a note."""
    return evidence_of(
        (item, item.transfer_exposed_us, note)
        for item, note in noted
        if item.transfer_exposed_us > 0
    )


def exposed(step: MeasuredStep) -> Observation:
    """Find asynchronous collectives that no compute overlaps, after the last rank arrived."""
    ours = [item for item in _most_exposed(step) if not item.sync]
    return Observation(
        step.async_exposed_us,
        "asynchronous collectives run while nothing computes",
        _exposed_rows((item, item.kind) for item in ours),
        _how_to_hide(ours, step),
    )


def _how_to_hide(collectives: Iterable[MeasuredCollective], step: MeasuredStep) -> str:
    """Advise how to hide collectives: by a profile if a schedule can, else by other flags."""
    overlap = step.overlap
    if overlap is None:
        return (
            f"give the scheduler measured costs ('{RUN}'), "
            f"or search flags without a GPU ('{TUNE}')"
        )
    judged = [
        (item.transfer_exposed_us, item.hideable_us)
        for item in collectives
        if item.hideable_us is not None
    ]
    hideable = sum(hideable_us for _, hideable_us in judged) / step.step_us
    stuck = sum(exposed_us for exposed_us, _ in judged) / step.step_us - hideable
    if hideable < LEAST_HIDDEN:
        return f"no schedule hides {_AS_THEY_ARE}"
    profile = f"a fresh profile ('{PROFILE}')"
    if overlap.profile is None:
        profile = f"a profile of this program ('{RUN}')"
    return (
        f"there is compute to hide {in_percent(hideable)} of the step behind: "
        f"{profile} lets the scheduler see it; the other {in_percent(stuck)} no schedule "
        f"hides: '{TUNE}' tries combined and pipelined collectives"
    )


def slow_collectives(step: MeasuredStep) -> Observation | None:
    """Find collectives that are slower than in XLA's table. Only their exposed time counts. A
    profile run cannot show that time, since it runs each collective alone.
    """
    if step.hardware is None:
        return None
    slow = sorted(_slower_than_table(step.collectives), key=lambda row: -row[1])
    partly = ""
    remedy = _CHECK_LINKS
    if len(step.windows) < max(step.costs.ranks, 2):
        partly = " (waits for the ranks that are missing count as transfer)"
        remedy = _TRACE_ALL
    return Observation(
        sum(lost_us for _, lost_us, _ in slow),
        f"{many(len(slow), 'collective')} run at less than 70 % of the speed expected on "
        f"{step.hardware.name.upper()}{partly}",
        evidence_of(slow),
        remedy,
        unclaimed=_ALONE if step.measures_alone else "",
    )


def _slower_than_table(
    collectives: Iterable[MeasuredCollective],
) -> Iterator[tuple[MeasuredCollective, float, str]]:
    """Slow collectives, each with the microseconds that it costs a step, and a note."""
    for item in collectives:
        link = item.link
        if link is None or link.estimate_us >= SLOW_TRANSFER * item.time_us:
            continue
        longer_us = (item.time_us - link.estimate_us) * item.count
        yield (
            item,
            min(longer_us, item.transfer_exposed_us),
            f"{in_words(item.time_us)}, expected {in_words(link.estimate_us)}",
        )


def stale_profile(step: MeasuredStep) -> Observation | None:
    """Find that the scheduler's profile has other costs than this run measured."""
    used = None if step.overlap is None else step.overlap.profile
    if step.overlap is None or used is None:
        return None
    wrong = [row for row in used.rows if row.profile_us is not None and row.error_us]
    us = sum(abs(row.error_us) for row in wrong)
    rows = (
        EvidenceRow(
            row.name,
            abs(row.error_us),
            f"{in_words(row.profile_us or 0.0)} in the profile, "
            f"{in_words(row.measured_us)} measured",
        )
        for row in wrong[:ROWS]
    )
    off = in_percent(used.off)
    return Observation(
        min(step.overlap.hideable_us, us),
        f"the profile's costs are off by {off}: {step.percent(us)} of the step",
        tuple(rows),
        f"profile this program on this hardware again ('{PROFILE}'): its shapes, flags or "
        "clocks differ from the profile run",
        reached=us / step.step_us,
    )
