"""What a measured step loses to collectives and to ranks that differ: one function per finding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from statistics import median

from pgle.analyze.analysis import ROWS, Evidence, Found, MeasuredStep, evidence_of, in_percent, in_words
from pgle.analyze.collectives import MeasuredCollective
from pgle.costs.estimate.communication import LAUNCH_US, Group, group_us
from pgle.errors import many
from pgle.next import DOCTOR, PROFILE, REHEARSE, RUN, TUNE
from pgle.schedule.compare import DISABLE_ASYNC
from pgle.xla.collectives import KINDS

LEAST_HIDDEN = 0.001  # of the step; less is no reason for another profile
SMALL_BYTES = 1 << 20  # of a collective that ought to be combined with others
SMALL_COUNT = 8  # such collectives of one computation that are too many
SLOW_SHARE = 0.7  # of the expected speed; below that a collective is slow


def synchronous(step: MeasuredStep) -> Found | None:
    """Collectives in turn with compute, unless the recording itself keeps them so."""
    if step.measures_alone:
        return None
    ours = [item for item in _most_exposed(step) if item.sync]
    judged = {} if step.overlap is None else {item.name: item for item in step.overlap.collectives}
    why = {item.name: judged[item.name].why if item.name in judged else "" for item in ours}
    stuck = bool(judged) and not any(judged[item.name].hideable_us for item in ours if item.name in judged)
    return Found(
        sum(item.transfer_exposed_us for item in ours),
        many(len(ours), "synchronous collective"),
        _rows((item, "; ".join(filter(None, (item.kind, why[item.name])))) for item in ours),
        _NOTHING_BESIDE if stuck else _MAKE_ASYNC,
    )


_AS_THEY_ARE = f"these collectives as they are: '{TUNE}' tries combined, split and pipelined ones"
_NOTHING_BESIDE = f"no compute is independent of them, so no schedule hides {_AS_THEY_ARE}"
_MAKE_ASYNC = (
    f"make them asynchronous: see that {DISABLE_ASYNC} does not name their kind, then '{REHEARSE}' says whether "
    "the scheduler finds compute to overlap them with"
)


def _most_exposed(step: MeasuredStep) -> list[MeasuredCollective]:
    return sorted(step.collectives, key=lambda item: -item.transfer_exposed_us)


def _rows(of: Iterable[tuple[MeasuredCollective, str]]) -> tuple[Evidence, ...]:
    """The first of some exposed collectives, each with a note."""
    return evidence_of((item, item.transfer_exposed_us, note) for item, note in of if item.transfer_exposed_us > 0)


def exposed(step: MeasuredStep) -> Found:
    """Asynchronous collectives that no compute overlaps, after the last rank arrived."""
    ours = [item for item in _most_exposed(step) if not item.sync]
    return Found(
        step.async_exposed_us,
        "asynchronous collectives run while nothing computes",
        _rows((item, f"{item.kind}, overlaps {', '.join(item.beside[:2]) or 'nothing'}") for item in ours),
        _remedy(step, {item.name for item in ours}),
    )


def _remedy(step: MeasuredStep, names: Collection[str]) -> str:
    """A profile where a schedule could hide it, other flags where none can."""
    overlap = step.overlap
    if overlap is None:
        return f"give the scheduler measured costs ('{RUN}'), or search flags without a GPU ('{TUNE}')"
    judged = [item for item in overlap.collectives if item.name in names]
    hideable = sum(item.hideable_us for item in judged) / step.step_us
    stuck = sum(item.exposed_us for item in judged) / step.step_us - hideable
    profile = f"a profile of this program ('{RUN}')" if overlap.use is None else f"a fresh profile ('{PROFILE}')"
    if hideable < LEAST_HIDDEN:
        return f"no schedule hides {_AS_THEY_ARE}"
    return (
        f"there is compute to hide {in_percent(hideable)} of the step behind: {profile} lets the scheduler see it; the "
        f"other {in_percent(stuck)} no schedule hides: '{TUNE}' tries combined and pipelined collectives"
    )


def rank_skew(step: MeasuredStep) -> Found | None:
    """A rank that arrives later at collectives than the others, which wait for it.

    Even ranks save no more than the time in which the mean rank does not compute.
    """
    late = step.late
    if not late.devices:
        return None
    of_one, enough_us = late.devices[0][1], LEAST_LATE * late.us
    waited_us = of_one if of_one >= (1 - LEAST_LATE) * late.us else late.us
    ranks = [
        Evidence(step.rank_name(device), us, f"the others wait for it; last in {count} of {late.steps} steps")
        for device, us, count in late.devices
        if us >= enough_us
    ]
    skew = sorted(((item, (item.cost.skew_us or 0.0) * item.count) for item in step.compute), key=lambda row: -row[1])
    longer = list(evidence_of((item, us, "longer on the slowest rank") for item, us in skew if us >= enough_us))
    idlest, more_us = _idlest(step)
    if more_us >= enough_us:
        longer.insert(0, Evidence(f"idle on {idlest}", more_us, "more than on the other ranks"))
    who = f"for {step.late_rank}" if step.late_rank else "for the last one, which differs"
    waits = sorted(step.collectives, key=lambda item: -item.wait_us)[:1]
    return Found(
        min(waited_us, step.step_us - step.breakdown.compute_us),
        f"the other ranks wait {in_words(waited_us)} a step {who}",
        (
            *ranks[:ROWS],
            *longer[:ROWS],
            *evidence_of((item, item.wait_us, "waits here, mean over ranks") for item in waits),
        ),
        "even out these instructions: alike data on each rank, or an algorithm whose time does not hang on the data; "
        f"if all of them are slow on one rank, check its clocks ('{DOCTOR}' there); if it is idle, check its host",
    )


LEAST_LATE = 0.1  # of the wait; what explains less is not shown


def _idlest(step: MeasuredStep) -> tuple[str, float]:
    """The device with most gaps over 20 µs inside steps, and how much more that is than on the typical other one."""
    if len(step.windows) < 2:
        return "", 0.0
    us = [float(item.waits.length[item.waits.inside].sum()) / item.steps / 1e3 for item in step.windows]
    most = max(range(len(us)), key=us.__getitem__)
    return step.rank_name(step.windows[most].device), us[most] - median(us[:most] + us[most + 1 :])


_CHECK_LINKS = (
    "check NVLink and NCCL's choice (NCCL_DEBUG=INFO), and the kernels that overlap them, which take bandwidth and SMs"
)


def slow_collectives(step: MeasuredStep) -> Found | None:
    """Collectives slower than XLA's table; only their exposed time counts."""
    if step.hardware is None:
        return None
    linked = [(item, item.link.estimate_us) for item in step.collectives if item.link is not None]
    slow = [
        (item, min((item.time_us - expected) * item.count, item.transfer_exposed_us), expected)
        for item, expected in linked
        if expected < SLOW_SHARE * item.time_us
    ]
    slow.sort(key=lambda row: -row[1])
    partly, remedy = "", _CHECK_LINKS
    if len(step.windows) < max(step.costs.ranks, 2):
        partly = " (waits for the ranks that are missing count as transfer)"
        remedy = f"trace all ranks first: that separates waiting from transfer; if they are still slow: {_CHECK_LINKS}"
    return Found(
        sum(lost for _, lost, _ in slow),
        f"{many(len(slow), 'collective')} run at less than 70 % of the speed expected on {step.hardware.name.upper()}"
        f"{partly}",
        evidence_of((item, us, f"{in_words(item.time_us)}, expected {in_words(best)}") for item, us, best in slow),
        remedy,
    )


def small_collectives(step: MeasuredStep) -> Found | None:
    """Collectives of one computation that could be one: each but one would save its latency."""
    if step.hardware is None:
        return None
    groups: dict[tuple[str, str, int], list[tuple[MeasuredCollective, int]]] = defaultdict(list)
    for item in step.collectives:
        if item.link is not None and item.link.payload_bytes < SMALL_BYTES:
            computation = item.instruction.computation if item.instruction else ""
            groups[item.kind, computation, item.link.group].append((item, item.link.payload_bytes))
    rows = []
    for (kind, computation, group), items in groups.items():
        if len(items) >= SMALL_COUNT:
            table = KINDS[kind].measured
            fixed = group_us(table, Group(group, 1), 1, step.hardware) if table else LAUNCH_US
            counts = [item.count for item, _ in items]
            saved = min((sum(counts) - max(counts)) * fixed, sum(item.transfer_exposed_us for item, _ in items))
            size = sum(payload for _, payload in items) / len(items) / 1024
            rows.append(Evidence(f"{len(items)} × {kind}", saved, f"{size:.3g} KiB each, in {computation}"))
    return Found(
        sum(row.us for row in rows),
        "small collectives could be combined, which saves latency",
        tuple(sorted(rows, key=lambda row: -row.us)[:ROWS]),
        f"raise --xla_gpu_{{all_gather,all_reduce,reduce_scatter}}_combine_threshold_bytes; '{TUNE}' tries them",
    )
