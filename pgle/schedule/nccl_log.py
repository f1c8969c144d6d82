"""The order of collectives in a log of NCCL (``NCCL_DEBUG=INFO``, ``NCCL_DEBUG_SUBSYS=COLL``).

Each line names the process, the GPU, the collective, its size, and the communicator by an address
of that process. It also has the collective's number on the communicator (``opCount``, hexadecimal).
A log may begin late. So ranks are compared from the first number that all members have logged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from pgle.schedule.launches import MAIN, Collective, Launches

NCCL_MARK = b"NCCL INFO "

_CALL = re.compile(
    r"(?P<process>[\w.-]+:\d+):\d+ \[(?P<gpu>\d+)\] NCCL INFO (?P<kind>[A-Z]\w+): "
    r"opCount (?P<number>[0-9a-f]+) .*?\bcount (?P<count>\d+) datatype (?P<type>\d+) "
    r".*?\bcomm (?P<comm>0x[0-9a-f]+) \[nranks=(?P<ranks>\d+)\]"
)
_TYPES = ("s8", "u8", "s32", "u32", "s64", "u64", "f16", "f32", "f64", "bf16")
"""XLA's names of NCCL's types; the index is the number in ``ncclDataType_t`` (nccl.h)."""


class _Call(NamedTuple):
    """One line of the log."""

    number: int  # ``opCount``
    kind: str
    shape: str  # ``f32[512]``

    def collective(self, groups: tuple[tuple[int, ...], ...]) -> Collective:
        """This call as a collective over groups of devices."""
        label = f"opCount {self.number:x}"
        return Collective(self.kind, self.shape, groups, MAIN, label)


class _Communicator(NamedTuple):
    """A communicator, as one rank knows it."""

    size: int  # how many ranks it has
    address: str  # in the rank's process


def nccl_orders(lines: Iterable[str]) -> Mapping[str, Launches]:
    """The order of each rank, by ``host:pid [gpu]``; empty if NCCL wrote none of the lines.

    Ranks know a communicator by different addresses. So pgle takes communicators of two ranks as
    the same if they have the same size. If a rank has several of one size, it leaves them out.
    """
    calls: dict[str, dict[_Communicator, list[_Call]]] = {}  # by rank
    for line in lines:
        found = _CALL.search(line)
        if found is None:
            continue
        rank = f"{found['process']} [{found['gpu']}]"
        communicator = _Communicator(int(found["ranks"]), found["comm"])
        of_rank = calls.setdefault(rank, {})
        of_rank.setdefault(communicator, []).append(_call(found))
    chosen: dict[int, dict[str, list[_Call]]] = {}
    for rank, of_rank in calls.items():
        sizes = [communicator.size for communicator in of_rank]
        for communicator, listed in of_rank.items():
            size = communicator.size
            if sizes.count(size) == 1:
                chosen.setdefault(size, {})[rank] = listed
    return _orders(chosen)


def _call(found: re.Match[str]) -> _Call:
    """Read a line of the log."""
    number = int(found["type"])
    dtype = _TYPES[number] if number < len(_TYPES) else f"type{number}"
    shape = f"{dtype}[{found['count']}]"
    return _Call(int(found["number"], 16), found["kind"], shape)


def _orders(chosen: Mapping[int, Mapping[str, list[_Call]]]) -> dict[str, Launches]:
    """The order of each rank.

    Args:
        chosen: calls by size of the communicator, then by rank.
    """
    ranks = list(dict.fromkeys(chain.from_iterable(chosen.values())))
    found: dict[str, list[Collective]] = {rank: [] for rank in ranks}
    for size, listed in chosen.items():
        first = max(calls[0].number for calls in listed.values())
        seen = [ranks.index(rank) for rank in listed]
        # the log has no line of the others
        others = range(len(ranks), len(ranks) + size - len(seen))
        groups = ((*seen, *others),)
        for rank, calls in listed.items():
            for call in calls:
                if call.number >= first:
                    found[rank].append(call.collective(groups))
    return {rank: _launches(len(ranks), items) for rank, items in found.items()}


def _launches(devices: int, items: list[Collective]) -> Launches:
    """The order of one rank, from the collectives that it started."""
    known = {item: index for index, item in enumerate(dict.fromkeys(items))}
    events = tuple(2 * known[item] for item in items)
    # is_cut: a log that ends early means that its rank is behind, not that it starts nothing more
    return Launches(devices, tuple(known), events, is_cut=True)
