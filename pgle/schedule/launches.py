"""In which order a program starts its collectives, and whether programs that run together agree.

This file and its imports need only the standard library. The hook imports it inside the user's
program, whose interpreter may lack pgle's other dependencies.

A rank runs one program on its devices. A communicator matches the collectives of its members by
the order in which each member starts them (NCCL user guide, "Group calls" and "Concurrency between
NCCL and CUDA calls"). XLA keeps a communicator for each group of devices, and others for transfers
between pairs (xla/backends/gpu/collectives/gpu_clique_key.h). It runs asynchronous collectives on
one stream, and synchronous ones on the stream of the compute.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import prod
from typing import NamedTuple

from pgle.errors import some

MOST_EVENTS = 200_000
"""pgle looks at this many events of a program at most. It cuts a loop that would bring more."""
MOST_MOVES = 2_000_000
"""`_Waits` follows this many events at most, of all devices together."""

MAIN = "main"  # the stream of the compute, on which synchronous collectives run
COLLECTIVES = "collectives"  # the stream of asynchronous collectives
PAIRS = "pairs"  # the stream of transfers between pairs of devices
ANY = ""  # sends and receives, which wait for no earlier collective

POINT_TO_POINT = ("collective-permute", "send", "recv")
"""Kinds that move data between pairs of devices. `Collective.groups` holds (source, target) pairs
for them.
"""

UNEXPLAINED = "no known setting differs: compare the program, the jaxlib and the autotuning results"
HANG = "hang"
MIX = "mix"  # kinds, sizes and groups agree at every place, but the data differ


def lane(kind: str, role: str) -> str:
    """The stream on which a collective waits."""
    if kind in ("send", "recv"):
        return ANY
    if role == "sync":
        return MAIN
    return PAIRS if kind in POINT_TO_POINT else COLLECTIVES


_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")


class Collective(NamedTuple):
    """One collective of a program."""

    kind: str  # ``all-gather``
    shape: str  # of its result: ``bf16[8,128]``
    # devices of each group; (source, target) for `POINT_TO_POINT`
    groups: tuple[tuple[int, ...], ...]
    lane: str  # the stream that it waits on
    label: str = ""  # its name in the program (``op_name``)
    channel: int = 0  # XLA's channel id; 0 if it has none

    @property
    def work(self) -> tuple[object, ...]:
        """A key that is equal for two collectives that NCCL matches. NCCL compares sizes, not
        shapes.
        """
        kind = self.kind in POINT_TO_POINT or self.kind
        sizes = []
        for dtype, dimensions in _ARRAY.findall(self.shape):
            lengths = [int(length) for length in dimensions.split(",") if length]
            sizes.append((dtype, prod(lengths)))
        return kind, *sizes

    def __str__(self) -> str:
        what = f"{self.kind} {self.shape}"
        if self.kind in POINT_TO_POINT:
            return what
        sizes = sorted({len(group) for group in self.groups})
        return f"{what} over {' and '.join(map(str, sizes))} devices"


class Line(NamedTuple):
    """The part of one instruction that the order depends on."""

    name: str
    role: str  # ``sync``, ``start``, ``done``, ``loop``, ``call`` or ``async``
    collective: Collective | None = None  # only a sync or a start has one
    # names of computations; for a loop its condition, then its body
    called: tuple[str, ...] = ()
    trips: int | None = None  # iterations of a loop; None if unknown
    operand: str = ""  # for a done, the name of the start that it waits for


class Launches(NamedTuple):
    """The order in which a program starts its collectives."""

    devices: int  # how many run the program together
    collectives: tuple[Collective, ...]
    # 2 × index into `collectives` when one starts; 2 × index + 1 when the program waits for it
    events: tuple[int, ...]
    is_cut: bool = False  # whether a loop runs more iterations than `events` holds

    @property
    def starts(self) -> list[int]:
        """Indices into `collectives`, in the order of their starts."""
        return [event // 2 for event in self.events if event % 2 == 0]

    def digest(self) -> str:
        """A SHA-256 digest that is equal for two programs with the same order."""
        return hashlib.sha256(self.to_text().encode()).hexdigest()

    def to_text(self) -> str:
        """JSON that `from_text` reads."""
        return json.dumps(self)


def from_text(text: str) -> Launches:
    """Read what `Launches.to_text` wrote."""
    devices, collectives, events, is_cut = json.loads(text)
    found = []
    for kind, shape, groups, *others in collectives:
        pairs = tuple(tuple(group) for group in groups)
        found.append(Collective(kind, shape, pairs, *others))
    return Launches(devices, tuple(found), tuple(events), is_cut)


class _Walk:
    """Walks computations as a program executes them, a loop once for each iteration."""

    def __init__(self, computations: Mapping[str, Sequence[Line]]) -> None:
        self.collectives: list[Collective] = []
        self.is_cut = False
        self._computations = computations
        self._begun: dict[str, list[int]] = {}  # indices by the name of the start
        self._indices: dict[Collective, int] = {}
        self._known: dict[str, list[int]] = {}

    def events(self, computation: str) -> list[int]:
        """The events of one execution of a computation."""
        if computation not in self._known:
            # in a damaged dump, a computation may call itself
            self._known[computation] = []
            found: list[int] = []
            for line in self._computations.get(computation, ()):
                found += self._of_line(line)
            self._known[computation] = found[:MOST_EVENTS]
            self.is_cut |= len(found) > MOST_EVENTS
        return self._known[computation]

    def _of_line(self, line: Line) -> list[int]:
        """The events of one instruction, with those of the computations that it calls."""
        if line.role == "loop":
            return self._of_loop(line)
        if line.role == "done":
            started = self._begun.get(line.operand, [])
            self._begun[line.name] = started  # an update passes it on
            return [2 * index + 1 for index in started]
        if line.collective is not None:
            index = self._index(line.collective)
            self._begun[line.name] = [index]
            start = 2 * index
            return [start] if line.role == "start" else [start, start + 1]
        inner: list[int] = []
        for name in line.called:
            inner += self.events(name)
        if line.role != "async":
            return inner
        starts = [event for event in inner if event % 2 == 0]
        self._begun[line.name] = [event // 2 for event in starts]
        return starts

    def _of_loop(self, line: Line) -> list[int]:
        """The events of a loop: its condition, then body and condition in each iteration."""
        condition, body = map(self.events, line.called[:2])
        once = [*body, *condition]
        if not once:
            return []
        most = MOST_EVENTS // len(once)
        trips = 1 if line.trips is None else line.trips
        if line.trips is None or trips > most:
            self.is_cut = True
        return [*condition, *(once * min(trips, most))]

    def _index(self, collective: Collective) -> int:
        """The place of a collective in `collectives`; a new one is added."""
        known = self._indices.setdefault(collective, len(self.collectives))
        if known == len(self.collectives):
            self.collectives.append(collective)
        return known


def launches(
    entry: str, computations: Mapping[str, Sequence[Line]], devices: int
) -> Launches:
    """The order in which a program starts its collectives.

    Args:
        entry: name of the computation that runs first.
        computations: by name, the instructions that matter, in schedule order.
        devices: how many devices run the program together.
    """
    walk = _Walk(computations)
    events = walk.events(entry)
    return Launches(devices, tuple(walk.collectives), tuple(events), walk.is_cut)


class Side(NamedTuple):
    """What some ranks start where they differ from others."""

    ranks: tuple[str, ...]
    collective: Collective | None  # None if these ranks start nothing more there


class Difference(NamedTuple):
    """A place where ranks disagree."""

    effect: str  # `HANG` or `MIX`
    communicator: tuple[int, ...]  # devices
    position: int  # which collective on the communicator, counted from 1
    sides: tuple[Side, Side]


_Communicator = tuple[bool, tuple[int, ...]]
"""Whether the communicator is a pair (source, target), and its devices."""


def _communicators(collective: Collective) -> list[_Communicator]:
    """The communicators that a collective uses: one for each group, or pair."""
    if collective.kind in POINT_TO_POINT:
        return [(True, pair) for pair in collective.groups]
    return [(False, tuple(sorted(group))) for group in collective.groups]


class _Program:
    """A program with the ranks that run it."""

    def __init__(self, order: Launches) -> None:
        self.order = order
        self.ranks: list[str] = []
        self.starts = order.starts
        self._parts = [frozenset(_communicators(item)) for item in order.collectives]

    def sequence(self, communicator: _Communicator, unlike: str) -> list[int]:
        """Places in `starts` of the collectives on a communicator, except the kind `unlike`."""
        kinds = [item.kind for item in self.order.collectives]
        return [
            place
            for place, index in enumerate(self.starts)
            if communicator in self._parts[index] and kinds[index] != unlike
        ]

    def total_order(self) -> tuple[object, ...]:
        """The groups and the work of all collectives, in the order of their starts."""
        each = [(item.groups, item.work) for item in self.order.collectives]
        return tuple(each[index] for index in self.starts)

    def at(self, place: int) -> Collective:
        """The collective that starts at a place in `starts`."""
        return self.order.collectives[self.starts[place]]


def differences(
    orders: Mapping[str, Launches], placed: Mapping[str, Sequence[int]]
) -> list[Difference]:
    """Find where ranks would start other collectives than their peers.

    Args:
        orders: the order of each rank's program, by rank.
        placed: the devices of each rank, as the programs number them. If a rank has no entry, pgle
            takes every communicator as shared.

    Returns:
        The first difference of each program from its peers. If there is none, a circle of ranks
        that wait for one another. Empty if all ranks agree.
    """
    programs: dict[str, _Program] = {}
    for rank, order in orders.items():
        program = programs.setdefault(order.digest(), _Program(order))
        program.ranks.append(rank)
    if len(programs) < 2:
        return []
    most_first = sorted(programs.values(), key=lambda item: -len(item.ranks))
    owners = _owners(most_first, placed)
    found = _by_communicator(most_first, owners)
    return found or _by_progress(most_first, owners)


def _owners(
    programs: Sequence[_Program], placed: Mapping[str, Sequence[int]]
) -> list[int]:
    """The program that each device runs, as an index into `programs`; -1 if unknown."""
    devices = max(_device_count(program.order) for program in programs)
    owners = [-1] * devices
    for number, program in enumerate(programs):
        for rank in program.ranks:
            if not placed.get(rank):
                return [_mixed(device, len(programs)) for device in range(devices)]
            for device in placed[rank]:
                if device < devices:
                    owners[device] = number
    return owners


def _device_count(order: Launches) -> int:
    """How many devices a program has, with those that only its groups name."""
    count = order.devices
    for collective in order.collectives:
        for group in collective.groups:
            count = max(count, 1 + max(group, default=0))
    return count


def _mixed(device: int, count: int) -> int:
    """Choose a program for a device so that groups of neighbours, and of strides, mix programs.

    The choice is the sum of the device's digits in base `count`, modulo `count`. For two programs
    that is the Thue-Morse sequence.
    """
    total = 0
    while device:
        total += device % count
        device //= count
    return total % count


def _by_communicator(
    programs: Sequence[_Program], owners: Sequence[int]
) -> list[Difference]:
    """The first difference of each program from its peers on a communicator that they share."""
    first: dict[int, tuple[int, Difference]] = {}  # by number of the program
    for communicator in _shared(programs, owners):
        for number, begun, difference in _on(communicator, programs, owners):
            known = first.setdefault(number, (begun, difference))
            if begun < known[0]:
                first[number] = (begun, difference)
    in_order = sorted(first.values(), key=lambda item: item[0])
    return [difference for _, difference in in_order]


def _shared(programs: Sequence[_Program], owners: Sequence[int]) -> list[_Communicator]:
    """Communicators whose members run several programs, one for each set that is alike."""
    found: dict[object, _Communicator] = {}
    orders = [program.order.collectives for program in programs]
    for collective in dict.fromkeys(chain.from_iterable(orders)):
        for communicator in _communicators(collective):
            is_pair, devices = communicator
            running = [owners[device] for device in devices]
            if len(set(running) - {-1}) > 1:
                alike = tuple(running) if is_pair else frozenset(running)
                found.setdefault((collective.groups, alike), communicator)
    return list(dict.fromkeys(found.values()))


def _on(
    communicator: _Communicator, programs: Sequence[_Program], owners: Sequence[int]
) -> Iterable[tuple[int, int, Difference]]:
    """Compare each program on a communicator with the most frequent one (of a pair, the source's).

    Yields (number of the program, place in the most frequent one's starts, difference).
    """
    is_pair, devices = communicator
    members = list(dict.fromkeys(owners[device] for device in devices))
    numbers = [number for number in members if number >= 0]
    base = numbers[0] if is_pair else min(numbers)
    known = programs[base].sequence(communicator, "recv")
    for number in numbers:
        if number == base:
            continue
        other = programs[number].sequence(communicator, "send")
        place = _first_unlike(programs[base], known, programs[number], other)
        if place is None:
            continue
        at, effect = place
        sides = (_side(programs[base], known, at), _side(programs[number], other, at))
        begun = known[at] if at < len(known) else len(programs[base].starts)
        difference = Difference(effect, devices, at + 1, sides)
        yield max(number, base), begun, difference


def _side(program: _Program, places: Sequence[int], at: int) -> Side:
    """What the ranks of a program start at a place of a sequence."""
    collective = program.at(places[at]) if at < len(places) else None
    return Side(tuple(program.ranks), collective)


def _first_unlike(
    one: _Program, mine: Sequence[int], other: _Program, theirs: Sequence[int]
) -> tuple[int, str] | None:
    """The first place where two sequences differ, and its effect; None if they are equal."""
    if one.order.is_cut != other.order.is_cut:
        return None  # one side counts a loop once, the other counts every iteration
    common = min(len(mine), len(theirs))
    ours = [one.at(place) for place in mine[:common]]
    others = [other.at(place) for place in theirs[:common]]
    is_unlike = [a.work != b.work for a, b in zip(ours, others, strict=True)]
    is_longer = len(mine) != len(theirs) and not one.order.is_cut
    hangs = is_longer or any(is_unlike)
    name_of = _name_of(one.order, other.order)
    our_names = list(map(name_of, ours))
    other_names = list(map(name_of, others))
    if sorted(our_names) != sorted(other_names):
        # another release of jax uses other names, so only shapes can tell them apart
        our_names = [(item.shape,) for item in ours]
        other_names = [(item.shape,) for item in others]
    for place in range(common):
        if is_unlike[place] or our_names[place] != other_names[place]:
            return place, HANG if hangs else MIX
    return (common, HANG) if hangs else None


def _name_of(
    one: Launches, other: Launches
) -> Callable[[Collective], tuple[object, ...]]:
    """A function that gives a collective a key, to compare it across both programs.

    The key has shape and label. It has the channel too if both programs give the same collectives
    the same channels.
    """
    mine = _by_channel(one)
    theirs = _by_channel(other)
    common = mine.keys() & theirs.keys()
    if common and all(mine[channel] == theirs[channel] for channel in common):
        return lambda item: (item.shape, item.label, item.channel)
    return lambda item: (item.shape, item.label)


def _by_channel(order: Launches) -> dict[int, set[tuple[object, str]]]:
    """Work and labels of the collectives on each channel."""
    found: dict[int, set[tuple[object, str]]] = {}
    for item in order.collectives:
        if item.channel:
            found.setdefault(item.channel, set()).add((item.work, item.label))
    return found


_Meeting = tuple[_Communicator, int]
"""A communicator, and the number of a collective on it, from 0."""


class _Waits:
    """A graph over all devices: which collective or point of a program must end before which."""

    def __init__(self, programs: Sequence[_Program], owners: Sequence[int]) -> None:
        self._after: dict[object, list[object]] = {}
        self._open: dict[object, int] = {}  # how many things each one still waits for
        # the collectives of each device, in order
        self.met: dict[int, list[tuple[_Meeting, Collective]]] = {}
        running = [device for device, owner in enumerate(owners) if owner >= 0]
        most = MOST_MOVES // max(len(running), 1)
        for device in running:
            order = programs[owners[device]].order
            self._device(device, order, order.events[:most])

    def _device(self, device: int, order: Launches, events: Sequence[int]) -> None:
        """Add what one device starts and waits for."""
        met = self.met.setdefault(device, [])
        counts: dict[_Communicator, int] = {}
        lanes: dict[str, list[_Meeting]] = {}
        begun: dict[int, deque[list[_Meeting]]] = {}
        # a place in the program; everything after it waits for it
        point: object = (device, 0)
        for at, event in enumerate(events, 1):
            index, is_wait = divmod(event, 2)
            item = order.collectives[index]
            pending = begun.setdefault(index, deque())
            if is_wait:
                following = (device, at)
                waited_for = pending.popleft() if pending else []
                self._edges([point, *waited_for], following)
                point = following
                continue
            meetings: list[_Meeting] = []
            for communicator in _communicators(item):
                if _takes_part(item, communicator, device):
                    number = counts.get(communicator, 0)
                    counts[communicator] = number + 1
                    meetings.append((communicator, number))
            pending.append(meetings)
            met += [(meeting, item) for meeting in meetings]
            for meeting in meetings:
                self._edges([point, *lanes.get(item.lane, [])], meeting)
            if meetings and item.lane != ANY:
                lanes[item.lane] = meetings

    def _edges(self, sources: Sequence[object], target: object) -> None:
        """Let a target wait for some sources."""
        for source in sources:
            self._after.setdefault(source, []).append(target)
        self._open[target] = self._open.get(target, 0) + len(sources)

    def never(self) -> set[object]:
        """Everything that never ends, because it waits for itself directly or through others."""
        ready = [(device, 0) for device in self.met]
        ended: list[object] = list(ready)
        while ended:
            for target in self._after.get(ended.pop(), ()):
                self._open[target] -= 1
                if not self._open[target]:
                    ended.append(target)
        return {item for item, count in self._open.items() if count}


def _takes_part(item: Collective, communicator: _Communicator, device: int) -> bool:
    """Whether a device takes part: in a send only the source, in a receive only the target."""
    _, devices = communicator
    if item.kind == "send":
        return device == devices[0]
    if item.kind == "recv":
        return device == devices[-1]
    return device in devices


def _by_progress(
    programs: Sequence[_Program], owners: Sequence[int]
) -> list[Difference]:
    """Find a circle of ranks that wait for one another, though each communicator has one order.

    There is no such circle if all ranks start the same work on the same groups in the same order.
    Then all can start the first collective that has not ended, whatever they wait for.
    """
    if len({item.total_order() for item in programs}) < 2:
        return []
    waits = _Waits(programs, owners)
    never = waits.never()
    stuck: dict[int, tuple[_Meeting, Side]] = {}  # what each device waits for first
    for device, met in waits.met.items():
        ranks = tuple(programs[owners[device]].ranks)
        for meeting, collective in met:
            if meeting in never:
                stuck[device] = (meeting, Side(ranks, collective))
                break
    for meeting, ours in stuck.values():
        (_, devices), number = meeting
        for other in filter(stuck.get, devices):
            their_meeting, theirs = stuck[other]
            if their_meeting != meeting:
                return [Difference(HANG, devices, number + 1, (ours, theirs))]
    return []


def line_of(difference: Difference, cause: str) -> str:
    """Describe a difference in one line: effect, ranks, place, cause."""
    one, other = difference.sides
    devices = some(map(str, difference.communicator), 4)
    what = "could hang" if difference.effect == HANG else "could mix data"
    return (
        f"the job {what}: {_ranks(one)} {_starts(one)} where "
        f"{_ranks(other)} {_starts(other)} (collective "
        f"{difference.position:,} on devices {devices}): {cause}"
    )


def _starts(side: Side) -> str:
    """What a side starts, in words."""
    if side.collective is None:
        return "would start nothing more"
    return f"would start {side.collective}"


def _ranks(side: Side) -> str:
    """The ranks of a side, in words."""
    noun = "rank" if len(side.ranks) == 1 else "ranks"
    return f"{noun} {some(side.ranks, 4)}"


def explained(difference: Difference, known: Mapping[str, Mapping[str, str]]) -> str:
    """Why the ranks of a difference disagree, in words; `UNEXPLAINED` if no known setting differs.

    Args:
        known: settings by rank, as `cause_of` takes them.
    """
    one, other = (known[side.ranks[0]] for side in difference.sides)
    return cause_of(one, other) or UNEXPLAINED


def cause_of(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Why two ranks compile differently: at most three settings whose values differ, in words.

    Args:
        one: a rank's settings by name, the most important first: another release explains all
            other differences.
        other: the other rank's settings, under the same names.

    Returns:
        Empty if no setting differs.
    """
    found = []
    for name in {**one, **other}:
        mine = one.get(name) or "not set"
        theirs = other.get(name) or "not set"
        if mine != theirs:
            found.append(f"{name} differs ({mine}; {theirs})")
    return "; ".join(found[:3])
