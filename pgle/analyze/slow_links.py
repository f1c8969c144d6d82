"""Find collectives whose own transfer takes longer on some ranks than on others: a slow link, not a
late rank.

A late rank starts a collective late. Its peers wait, and all end together. So from the last start
on, the collective takes equally long on all of them. With a slow link, it takes longer on some
ranks even after all have started. Or one group takes longer than equal groups in the same
execution.

Starts are compared on one clock. Between processes, it is the clock on which their collectives end
together (`pgle.costs.measure.alignment`). A program with one collective a step has no such clock.
There a slow link looks like a late rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from pgle.analyze.window import DeviceWindow
from pgle.costs.profile.lookup import Naming, global_ids
from pgle.schedule.simulate import Stream
from pgle.trace.columns import Flags, Floats, Ints, distinct, median
from pgle.trace.intervals import covered
from pgle.worth import LEAST_GAIN
from pgle.xla.collective_kinds import ends_together
from pgle.xla.hlo.module import Module

SLOW_TRANSFER = 0.7
"""A collective is slow below this share of its expected speed (`pgle.analyze.rules`)."""

LEAST_NAMED = 0.001  # share of the step; a collective that costs a rank less is skipped


@dataclass(frozen=True, eq=False)
class Launches:
    """The k launches of collectives of the main module in steps."""

    window: Ints  # int64[k], index into the windows
    row: Ints  # int64[k], row in the window
    execution: Ints  # int64[k]
    name: Ints  # int64[k], index into `Naming.filed`
    group: Ints  # int64[k], index of the replica group; 0 if unknown
    occurrence: Ints  # int64[k], number of the launch among equal ones of its execution
    length_ns: Floats  # float64[k]
    # float64[k], on the clock of the first device; NaN if unknown
    start_ns: Floats

    @property
    def end_ns(self) -> Floats:
        """float64[k], on the clock of `start_ns`."""
        return self.start_ns + self.length_ns

    def of(self, name: int) -> Ints:
        """The rows of one collective.

        Args:
            name: index into `Naming.filed`.
        """
        return np.flatnonzero(self.name == name)


def joined_launches(parts: Sequence[Launches]) -> Launches:
    """Concatenate launches."""
    columns = {
        column.name: np.concatenate([getattr(part, column.name) for part in parts])
        for column in fields(Launches)
    }
    return Launches(**columns)


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A collective that takes longer on some ranks."""

    name: str  # the name of its cost
    devices: tuple[int, ...]  # the slow ranks, as indices into the trace's devices
    us: float  # exposed loss in a mean step of the rank that loses most
    # median time of one execution on these ranks, after the last rank has started
    each_us: float
    usual_us: float  # the same on the other ranks


@dataclass(frozen=True, eq=False)
class SlowLinks:
    """All slow links, and their effect on each of k launches."""

    links: tuple[SlowLink, ...]  # the one that costs most first
    changed: Flags  # bool[k], whether the launch is of such a collective
    waited_ns: Floats  # float64[k], time until the last of its peers has started
    # float64[k], exposed time by which it is longer than on the other ranks
    exposed_ns: Floats


def find_slow_links(
    launches: Launches,
    windows: Sequence[DeviceWindow],
    naming: Naming,
    module: Module | None,
) -> SlowLinks | None:
    """Find the collectives that are slow on some ranks.

    None if no rank loses `LEAST_GAIN` of its steps. Then the loss counts as another difference
    between ranks.
    """
    count = len(launches.row)
    since = np.full(count, np.nan)
    usual = np.full(count, np.nan)
    devices = [windows[0].trace.devices[window.device] for window in windows]
    ids = global_ids(naming, devices)
    for name in distinct(launches.name).tolist():
        one = _OneCollective(launches, name, len(windows))
        pairs = _pairs(naming, name, module)
        filed = naming.filed[name]
        opcode = filed.opcode or filed.name
        peers, alike = _peers(one, opcode, naming.groups[name], pairs, ids)
        last = one.last_start(peers)
        known = np.isfinite(last[np.isfinite(one.start)])
        if np.count_nonzero(known) * 2 < len(known):  # its starts are not on one clock
            continue
        since[one.rows] = one.by_launch(last)
        usual[one.rows] = one.by_launch(_usual(one.end - last, alike))
    own = launches.end_ns - since
    excess = np.where(usual < SLOW_TRANSFER * own, own - usual, 0.0)
    exposed = _exposed(launches, windows, excess)
    lost_ns = np.zeros((len(naming.filed), len(windows)))
    np.add.at(lost_ns, (launches.name, launches.window), exposed)
    steps = sum(window.steps for window in windows) / len(windows)
    step_ns = float(np.mean([window.length / window.steps for window in windows]))
    if lost_ns.sum(axis=0).max() < LEAST_GAIN * step_ns * steps:
        return None
    named = np.flatnonzero(lost_ns.max(axis=1) >= LEAST_NAMED * step_ns * steps)
    links = []
    for name in named.tolist():
        slow = np.flatnonzero((launches.name == name) & (excess > 0))
        most_ns = float(lost_ns[name].max())
        ranks = np.flatnonzero(lost_ns[name] > most_ns / 2).tolist()
        link = SlowLink(
            name=naming.filed[name].name,
            devices=tuple(windows[rank].device for rank in ranks),
            us=most_ns / steps / 1e3,
            each_us=median(own[slow]) / 1e3,
            usual_us=median(usual[slow]) / 1e3,
        )
        links.append(link)
    links.sort(key=lambda link: -link.us)
    changed = np.isin(launches.name, named)
    return SlowLinks(
        links=tuple(links),
        changed=changed & np.isfinite(since),
        waited_ns=since - launches.start_ns,
        exposed_ns=np.where(changed, exposed, 0.0),
    )


def _pairs(
    naming: Naming, name: int, module: Module | None
) -> tuple[tuple[int, int], ...]:
    """The (source, target) pairs of a collective-permute; empty if unknown."""
    if module is None:
        return ()
    made = module.instructions.get(naming.owners[name])
    if made is None:
        return ()
    return module.operation(made).source_target_pairs


def _exposed(
    launches: Launches, windows: Sequence[DeviceWindow], excess: Floats
) -> Floats:
    """float64[k], the exposed part of each excess. An excess is the last part of its launch."""
    exposed = np.zeros(len(excess))
    for number, window in enumerate(windows):
        here = np.flatnonzero((launches.window == number) & (excess > 0))
        if len(here):
            excess_ns = excess[here]
            end = window.end[launches.row[here]]
            compute = window.busy(Stream.COMPUTE)
            hidden_ns = covered(compute, end - excess_ns, end)
            exposed[here] = excess_ns - hidden_ns
    return exposed


class _OneCollective:
    """One collective as a table: a row for each time that it runs, a column for each window."""

    def __init__(self, launches: Launches, name: int, windows: int) -> None:
        rows = launches.of(name)
        window = launches.window[rows]
        most = int(launches.occurrence.max(initial=0)) + 1
        times = launches.execution[rows] * most + launches.occurrence[rows]
        time = np.searchsorted(distinct(times), times)
        shape = (int(time.max(initial=-1)) + 1, windows)
        self.rows = rows
        self._cells = time, window
        self.start = np.full(shape, np.nan)
        self.end = np.full(shape, np.nan)
        self.start[self._cells] = launches.start_ns[rows]
        self.end[self._cells] = launches.end_ns[rows]
        self.group = np.full(windows, -1)
        self.group[window] = launches.group[rows]

    def by_launch(self, table: Floats) -> Floats:
        """float64[rows], the value of a table for each launch."""
        values: Floats = table[self._cells]
        return values

    def last_start(self, peers: Sequence[Ints]) -> Floats:
        """When the last peer of each launch has started; NaN if a peer ended before that.

        Since no peer can end so early, the times of that launch must be wrong.
        """
        last = self.start.copy()
        for columns in peers:
            latest = np.fmax.reduce(self.start[:, columns], axis=1)
            earliest = np.fmin.reduce(self.end[:, columns], axis=1)
            latest[latest >= earliest] = np.nan
            last[:, columns] = np.maximum(last[:, columns], latest[:, None])
        return last


def _usual(own: Floats, alike: Sequence[Ints]) -> Floats:
    """How long launches usually take, on alike ranks; NaN for ranks without alike ones."""
    usual = np.full(own.shape, np.nan)
    for columns in alike:
        usual[:, columns] = _low_median(own[:, columns])[:, None]
    return usual


def _peers(
    one: _OneCollective,
    opcode: str,
    groups: Sequence[Sequence[int]],
    pairs: Sequence[tuple[int, int]],
    ids: Sequence[int],
) -> tuple[list[Ints], list[Ints]]:
    """Find which windows wait for each other in a collective, and which have alike launches.

    Groups of one size are alike if all their ranks were traced. Otherwise they may wait for
    untraced ranks.

    Args:
        opcode: of the collective; without HLO its name.
        groups: replica groups of JAX's global ids; empty if unknown.
        pairs: (source, target) pairs of such ids; empty if unknown.
        ids: JAX's global id of each window; empty if unknown.
    """
    if pairs and ids:
        return _neighbours(pairs, ids)
    if not ends_together(opcode):
        return [], []
    members = []
    whole: dict[int, list[Ints]] = {}
    alike = []
    for at in distinct(one.group[one.group >= 0]).tolist():
        columns = np.flatnonzero(one.group == at)
        members.append(columns)
        size = len(groups[at]) if groups and ids else 0
        if len(columns) == size:
            whole.setdefault(size, []).append(columns)
        elif len(columns) > 1:
            alike.append(columns)
    alike += [np.concatenate(equal) for equal in whole.values()]
    return members, alike


def _neighbours(
    pairs: Sequence[tuple[int, int]], ids: Sequence[int]
) -> tuple[list[Ints], list[Ints]]:
    """`_peers` for a collective-permute. Ranks wait for those that they send to or receive from."""
    column = {number: at for at, number in enumerate(ids)}
    peers = []
    is_whole = np.ones(len(ids), np.bool_)
    for pair in pairs:
        traced = np.array([column[number] for number in pair if number in column])
        if len(traced) == len(pair):
            peers.append(traced)
        else:
            is_whole[traced.astype(np.int64)] = False
    whole = np.flatnonzero(is_whole)
    return peers, [whole] if len(whole) else []


def _low_median(values: Floats) -> Floats:
    """The median of each row without NaN. If the count is even, the lower of the middle two."""
    ordered = np.sort(values, axis=1)  # NaN come last
    known = np.isfinite(values).sum(axis=1)
    low = np.maximum((known - 1) // 2, 0)
    middle: Floats = ordered[np.arange(len(values)), low]
    return middle
