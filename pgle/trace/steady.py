"""Which executions of a module are steady. Warm-up and truncated executions are found by rule and
reported.

Rules for each module:
1. *truncated*: the first or last execution on a device has fewer GPU activities than usual there.
   The edge of the recording cut it off.
2. *warm-up*: the leading executions, without a gap, that meet one of three conditions on the
   typical device. That is the median over devices, since one slow device says nothing about the
   others. At least two executions stay.
   - Their compute time exceeds the median of the second half by more than `WARM_UP_EXCESS`, and by
     more than the noise of the second half on all devices (at most `MAX_WARM_UP_EXCESS`).
     Collectives do not count, because they wait.
   - They take longer than the median, from first start to last end, by more than `LONG_EXCESS` and
     the noise.
   - Their compute time exceeds that of the next executions by as much. If these get longer over
     time, the line through them counts.
3. *lost records*: an execution between others has fewer activities than usual on a device, but took
   as long as usual. This rule needs a program with a fixed number of activities. A program that did
   less work would take less time.

An execution that is dropped on one device is dropped on all, because its collectives need every
rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pgle.errors import in_percent, many
from pgle.trace.columns import (
    BEYOND_CHANCE,
    BLOCK_ROWS,
    EARLIEST,
    LATEST,
    NO_ROWS,
    Flags,
    Floats,
    Ints,
    distinct,
    heads,
    median,
    noise_of,
)
from pgle.trace.records import WITHOUT_TIME
from pgle.trace.table import Trace
from pgle.xla.guessed_kinds import guess_kind

WARM_UP_EXCESS = 0.02
"""A leading execution is warm-up if its compute time exceeds the steady median by this share.
Steady executions of the real 4 × A100 step in testdata/ differ by 0.4 %. Its warm-up executions are
3.6 to 17 % slower.
"""

MAX_WARM_UP_EXCESS = 0.1
"""A leading execution that is slower than this share is warm-up, even if executions differ more:
they may all be getting faster.
"""

LONG_EXCESS = 0.5
"""A leading execution is also warm-up if it takes longer than the steady median by this share,
because it loads libraries and creates communicators. The first execution on 4 × H100 (MaxText,
NVIDIA/JAX-Toolbox) takes 20 times as long as later ones. Its compute time on two of these devices
is no longer than theirs.
"""

NEXT = 6
"""An execution is compared with at least this many later ones. With fewer, no rank test separates
growth from noise at 1 %.
"""
MOST_BEHIND = 300
"""An execution is compared with at most this many later ones: tests over pairs take quadratic time.
"""

LOST_SHARE = 0.005  # share of the activities; the loss of fewer changes no answer
LOST_MANY = 10  # activities; if fewer are missing, they must also have taken long
FEWEST_LEFT = 2  # executions in a row; the pause after a single one is unknown
# share of executions with the usual number of activities; below it, a smaller number is no loss
SAME_COUNT = 2 / 3

Rows: TypeAlias = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class ModuleExecutions:
    """Executions of modules on devices, n rows ordered by (module, device, execution)."""

    # module, device, execution: int64[n] keys into the trace
    module: Ints
    device: Ints
    execution: Ints
    rows: Ints  # int64[n], number of GPU activities
    # start_ns, end_ns: int64[n], first start and last end
    start_ns: Ints
    end_ns: Ints
    compute_ns: Floats  # float64[n], GPU time without collectives
    keep: Flags  # bool[n], False for dropped executions
    # why an execution was dropped, by (module, execution)
    reasons: dict[tuple[int, int], str]
    # number of missing activities in the middle of an execution, by (module, execution) and device
    lost: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.module)

    @property
    def span_ns(self) -> Ints:
        """int64[n], last end - first start."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class MeasuredWindow:
    """The executions of a module from which the costs come."""

    used: int  # executions used, summed over devices
    seen: int  # executions in the trace, summed over devices
    # executions used on the device with most; `analyze` calls them steps
    steps_used: int
    steps_seen: int  # executions in the trace on the device with most
    dropped: Mapping[int, str]  # reason by execution number
    # median span of a used execution in microseconds, first start to last end; NaN if none is used
    span_us: float
    # devices that ran the module, as indices into `Trace.devices`
    devices: tuple[int, ...]
    fewest: int = 0  # executions in the trace on the device with fewest
    # number of activities missing in the middle, by execution number and device
    lost: Mapping[int, Mapping[int, int]] = field(default_factory=dict)


def compute_ns(trace: Trace) -> Floats:
    """Return float64[modules]: GPU time of each module in ns, without collectives, which mostly
    wait.

    The module with the most compute is the main module: a barrier can wait longer than any step.
    """
    communicates = _communicates(trace)
    found = np.zeros(len(trace.modules))
    for at in range(0, len(trace), BLOCK_ROWS):
        rows = slice(at, at + BLOCK_ROWS)
        ns = np.where(communicates[trace.instruction[rows]], 0, trace.duration_ns[rows])
        found += np.bincount(trace.module[rows], weights=ns, minlength=len(found))
    return found


def _communicates(trace: Trace) -> Flags:
    """Return bool[instructions]: whether each instruction is a collective, by its name."""
    return np.array(
        [guess_kind(name) == "collective" for name in trace.instructions] or [False]
    )


def find_executions(trace: Trace, collective: Flags | None = None) -> ModuleExecutions:
    """Find every execution in the trace, and mark the steady ones.

    Args:
        trace: n activities.
        collective: bool[len(trace.instructions)], True for instructions that communicate. If None,
            names decide.
    """
    if collective is None:
        collective = _communicates(trace)
    devices = max(len(trace.devices), 1)
    last = int(trace.execution.max(initial=0)) + 1

    def blocks() -> Iterator[tuple[slice | Rows, Ints]]:
        """Yield blocks of rows, to save memory, with the number of each row's execution."""
        for at in range(0, len(trace), BLOCK_ROWS):
            rows: slice | Rows = slice(at, at + BLOCK_ROWS)
            if (trace.execution[rows] < 0).any():
                rows = np.flatnonzero(trace.execution[rows] >= 0) + at
            of_device = (
                trace.module[rows].astype(np.int64) * devices + trace.device[rows]
            )
            yield rows, of_device * last + trace.execution[rows]

    keys = distinct(
        np.concatenate([NO_ROWS, *(key[heads(key)] for _, key in blocks())])
    )
    count = np.zeros(len(keys), np.int64)
    compute = np.zeros(len(keys))
    first = np.full(len(keys), LATEST)
    final = np.full(len(keys), EARLIEST)
    for rows, key in blocks():
        number = np.searchsorted(keys, key)
        start = trace.start_ns[rows]
        duration = trace.duration_ns[rows]
        count += np.bincount(number, minlength=len(keys))
        weights = np.where(collective[trace.instruction[rows]], 0, duration)
        compute += np.bincount(number, weights=weights, minlength=len(keys))
        np.minimum.at(first, number, start)
        np.maximum.at(final, number, start + duration)
    found = ModuleExecutions(
        module=keys // last // devices,
        device=keys // last % devices,
        execution=keys % last,
        rows=count,
        start_ns=first,
        end_ns=final,
        compute_ns=compute,
        keep=np.ones(len(keys), dtype=bool),
        reasons={},
    )
    _mark(found, untimed(trace))
    return found


def untimed(trace: Trace) -> int:
    """Return the number of activities that were left out because their time is impossible."""
    words = {reason.word for reason in WITHOUT_TIME}
    return sum(item.count for item in trace.unresolved if item.reason in words)


def measured_window(
    executions: ModuleExecutions, module: int, keep_all: bool
) -> tuple[Flags, MeasuredWindow]:
    """Choose the executions of one module to measure.

    Args:
        executions: all executions in the trace.
        module: index into `Trace.modules`.
        keep_all: also use warm-up and truncated executions.

    Returns:
        bool[executions], and what was dropped.
    """
    here = executions.module == module
    keep = here & (executions.keep | keep_all)
    kept = np.zeros(int(executions.execution.max(initial=0)) + 1, dtype=bool)
    kept[executions.execution[keep]] = True
    dropped = (
        {}
        if keep_all
        else {
            number: why
            for (of, number), why in executions.reasons.items()
            if of == module
        }
    )
    spans = executions.span_ns[keep]
    # `np.unique` imports `numpy.ma`, which takes a tenth of a small conversion
    counts = np.bincount(executions.device[here])
    devices = np.flatnonzero(counts)
    per_device = counts[devices].tolist()
    steps_used = int(np.bincount(executions.device[keep]).max(initial=0))
    span_us = median(spans) / 1e3 if len(spans) else float("nan")
    lost = {
        number: fewer for (of, number), fewer in executions.lost.items() if of == module
    }
    return kept, MeasuredWindow(
        used=int(keep.sum()),
        seen=int(here.sum()),
        steps_used=steps_used,
        steps_seen=max(per_device, default=0),
        dropped=dict(sorted(dropped.items())),
        span_us=span_us,
        devices=tuple(devices.tolist()),
        fewest=min(per_device, default=0),
        lost=lost,
    )


def _mark(found: ModuleExecutions, untimed: int) -> None:
    """Set `keep` and `reasons` of newly found executions.

    Args:
        untimed: number of activities left out because they have no time.
    """
    for module in distinct(found.module):
        of_module = np.flatnonzero(found.module == module)
        dropped: dict[int, str] = {}
        for device in distinct(found.device[of_module]):
            here = of_module[found.device[of_module] == device]
            _drop_truncated(found, here, dropped)
        whole = _without(found, of_module, dropped)
        lost = _lost(found, _by_device(found, whole))
        dropped |= _reasons(lost)
        left = _without(found, whole, dropped)
        dropped |= dict(_warm_up(found, _by_device(found, left)))
        if untimed:
            more = _untimed(found, _without(found, left, dropped), untimed)
            dropped |= _reasons(more)
            lost |= more
        for number, counts in lost.items():
            found.lost[int(module), number] = counts
        for execution, reason in sorted(dropped.items()):
            found.reasons[int(module), execution] = reason
        found.keep[of_module] = ~np.isin(found.execution[of_module], list(dropped))


def _without(found: ModuleExecutions, rows: Rows, dropped: Mapping[int, str]) -> Rows:
    """Return the rows of executions that are not dropped."""
    return rows[~np.isin(found.execution[rows], list(dropped))]


def _by_device(found: ModuleExecutions, rows: Rows) -> list[Rows]:
    """Return the rows of each device."""
    device = found.device[rows]
    return [rows[device == one] for one in distinct(device)]


def _reasons(lost: Mapping[int, Mapping[int, int]]) -> dict[int, str]:
    """Return why executions with lost records do not count."""
    reasons = {}
    for number, counts in lost.items():
        missing = many(sum(counts.values()), "activity record")
        devices = many(len(counts), "device")
        reasons[number] = f"lost records: {missing} missing on {devices}"
    return reasons


def _drop_truncated(
    found: ModuleExecutions, here: Ints, dropped: dict[int, str]
) -> None:
    """Drop the first or the last execution on a device if the recording cut it off."""
    if len(here) < 3:
        return
    usual = median(found.rows[here])
    for edge in (here[0], here[-1]):
        if found.rows[edge] < (1 - LOST_SHARE) * usual:
            dropped[int(found.execution[edge])] = (
                f"truncated: {int(found.rows[edge])} of usually {usual:.0f} activities"
            )


def _lost(
    found: ModuleExecutions, by_device: Sequence[Rows]
) -> dict[int, dict[int, int]]:
    """Count the activities missing in executions between others, by execution and device.

    Return nothing if every execution lacks some.
    """
    lost: dict[int, dict[int, int]] = {}
    numbers: set[int] = set()
    for here in by_device:
        here = here[np.argsort(found.start_ns[here], kind="stable")]
        numbers.update(found.execution[here].tolist())
        rows = found.rows[here]
        usual = median(rows) if len(here) > 2 else 0.0
        if np.count_nonzero(rows == usual) < SAME_COUNT * len(here):
            continue
        # time available to an execution: from the end of the previous one to the start of the next
        had = (found.start_ns[here[2:]] - found.end_ns[here[:-2]]).astype(np.float64)
        compute = found.compute_ns[here]
        less = median(compute) - compute[1:-1]
        missing = usual - rows[1:-1]
        as_long = had >= median(had) - np.maximum(less, 0.0) / 2
        is_many = (missing >= LOST_MANY) | (less >= WARM_UP_EXCESS * median(compute))
        is_lost = (missing > LOST_SHARE * usual) & is_many & as_long
        for at in np.flatnonzero(is_lost).tolist():
            of_execution = lost.setdefault(int(found.execution[here[at + 1]]), {})
            of_execution[int(found.device[here[0]])] = int(missing[at])
    return lost if len(lost) < len(numbers) else {}


def _untimed(
    found: ModuleExecutions, whole: Rows, untimed: int
) -> dict[int, dict[int, int]]:
    """Count the activities without a time that executions lack, by execution and device.

    All devices run one program, so a complete execution has the largest number of activities. If
    more are missing than had no time, executions differ in what they run. Then nothing is returned,
    as when too few executions in a row would remain.
    """
    usual = int(found.rows[whole].max(initial=0))
    missing = usual - found.rows[whole]
    if int(missing.sum()) > untimed:
        return {}
    lost: dict[int, dict[int, int]] = {}
    for at in np.flatnonzero(missing > LOST_SHARE * usual).tolist():
        row = whole[at]
        of_execution = lost.setdefault(int(found.execution[row]), {})
        of_execution[int(found.device[row])] = int(missing[at])
    numbers = distinct(found.execution[whole])
    run = np.bincount(np.cumsum(np.isin(numbers, list(lost))))
    # Each run except the first begins with the lost execution before it, which must not count.
    longest = max([int(run[0]), *(run[1:] - 1).tolist()]) if len(run) else 0
    return lost if longest >= FEWEST_LEFT else {}


def _above_steady(
    found: ModuleExecutions, values: Floats, by_device: Sequence[Rows]
) -> tuple[Mapping[int, list[float]], float]:
    """Compare executions with the steady ones on each device, as shares of the second half's
    median.

    Returns:
        By execution, the excess on each device that ran at least three. Then the noise of the
        second half around its median (`noise_of`).
    """
    excess: dict[int, list[float]] = {}
    apart = []
    for here in by_device:
        steady = median(values[here[len(here) // 2 :]]) if len(here) > 2 else 0.0
        if steady > 0:
            above = values[here] / steady - 1
            apart.append(np.abs(above[len(here) // 2 :]))
            for number, share in zip(
                found.execution[here].tolist(), above.tolist(), strict=True
            ):
                excess.setdefault(number, []).append(share)
    return excess, noise_of(np.concatenate(apart)) if apart else 0.0


def _above_next(
    found: ModuleExecutions, by_device: Sequence[Rows], number: int
) -> float:
    """Return by how much one execution's compute exceeds the next ones', beyond noise.

    If steps grow, the second half of the executions hides a warm-up. So this comparison uses only
    the next executions: `NEXT` of them, or half of all if that is more, at most `MOST_BEHIND`.

    Returns:
        The excess as a share, the median over devices with enough executions; 0 within noise.
    """
    excess = []
    for here in by_device:
        at = int(np.searchsorted(found.execution[here], number))
        if at >= len(here) - NEXT or found.execution[here[at]] != number:
            continue
        mine = found.compute_ns[here]
        ahead = min(max(NEXT, len(here) // 2), MOST_BEHIND)
        expected, noise = _expected(mine[at + 1 : at + 1 + ahead])
        above = mine[at] / expected - 1 if expected > 0 else 0.0
        limit = max(WARM_UP_EXCESS, noise, _noise_of_changes(mine))
        excess.append(above if above > limit else 0.0)
    return median(np.array(excess)) if excess else 0.0


def _expected(behind: Floats) -> tuple[float, float]:
    """Extrapolate an execution's value from the ones after it.

    Returns:
        The value, and the noise of those executions as a share of it.
    """
    place = np.arange(len(behind))
    one, other = np.triu_indices(len(behind), 1)
    slope = 0.0
    if _grows(behind):  # median slope of all pairs (Theil and Sen)
        slope = median((behind[other] - behind[one]) / (other - one))
    level = median(behind - slope * place)
    rest = np.abs(behind - slope * place - level)
    expected = level - slope
    return expected, noise_of(rest) / expected if expected > 0 else 0.0


def _grows(values: Floats) -> bool:
    """Whether values rise or fall over time, by the rank test of Mann and Kendall."""
    count = len(values)
    one, other = np.triu_indices(count, 1)
    ordered = abs(float(np.sign(values[other] - values[one]).sum()))
    deviation = np.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return bool((ordered - 1) / deviation > BEYOND_CHANCE)


def _noise_of_changes(values: Floats) -> float:
    """Return the noise of executions as a share, from the changes between neighbours.

    Steady growth and steps between levels do not count as noise.
    """
    change = np.diff(np.log(np.maximum(values, 1)))
    return noise_of(np.abs(change - median(change))) / float(np.sqrt(2))


def _warm_up(
    found: ModuleExecutions, by_device: Sequence[Rows]
) -> Iterator[tuple[int, str]]:
    """Yield the leading executions that exceed the limits on the typical device, with the
    reason.
    """
    compute, noise = _above_steady(found, found.compute_ns, by_device)
    span, span_noise = _above_steady(found, found.span_ns.astype(np.float64), by_device)
    limit = min(max(WARM_UP_EXCESS, noise), MAX_WARM_UP_EXCESS)
    for number in sorted(compute)[: max(len(compute) // 2, len(compute) - 2)]:
        here = np.array(compute[number])
        if median(here) > limit:
            slow = int((here > limit).sum())
            where = f" on {slow} of {len(here)} devices" if slow < len(here) else ""
            yield (
                number,
                f"warm-up: compute {in_percent(median(here))} above the steady median{where}",
            )
        elif (longer := median(np.array(span[number]))) > max(LONG_EXCESS, span_noise):
            yield (
                number,
                f"warm-up: {1 + longer:.1f} times the steady median from first start to last end",
            )
        elif (above := _above_next(found, by_device, number)) > 0:
            yield (
                number,
                f"warm-up: compute {in_percent(above)} above the executions behind it",
            )
        else:
            return
