"""Which devices compute the same value. They do if all inputs of the value are the same on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import inf

from pgle.account.levers.flow import RESHAPED, Flow
from pgle.xla.collective_kinds import KIND_OF_OPCODE
from pgle.xla.hlo.module import Instruction
from pgle.xla.hlo.replica_groups import Groups

Classes = tuple[int, ...]
"""The number of each device's class, by device. Devices of one class have the same value. Classes
are numbered in the order of their first device.
"""

_Variable = tuple[str, int]  # a loop, and a place in its state

_UNLIKE = (
    *("partition-id", "replica-id", "rng", "infeed", "recv", "recv-done"),
    *("while", "conditional"),
)
"""Opcodes whose result may differ from device to device. A loop's result is a tuple; each of its
elements has classes of its own.
"""

_JOINED = ("all-reduce", "all-gather", "collective-broadcast")
"""Collectives that give all devices of a group the same result."""


class Alike:
    """The classes of all values of a module, by name."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._module = flow.module
        count = flow.module.num_devices
        self._same: Classes = (0,) * count
        self._apart: Classes = tuple(range(count))
        self._found: dict[str, Classes] = {}
        self._carried: dict[_Variable, Classes] = {}
        self._both = cache(both)
        if count > 1 and flow.module.num_replicas == 1:
            self._settle()

    def copies(self, name: str) -> int:
        """How many devices at least compute the same value; 1 if some device alone has its value.

        A value of unknown class counts as 1.
        """
        classes = self._found.get(name)
        return 1 if classes is None else copies_of(classes)

    def _settle(self) -> None:
        """Assume that all values are the same everywhere, and split classes until nothing changes.

        One pass is not enough: a loop may carry a value from one iteration to the next.
        """
        is_changed = True
        while is_changed:
            is_changed = False
            for name in self._flow.nodes:
                found = self._of_node(name)
                is_changed |= found != self._of(name)
                self._found[name] = found
            for variable, before in list(self._carried.items()):
                found = self._all(self._flow.carried(*variable))
                is_changed |= found != before
                self._carried[variable] = found

    def _of(self, name: str) -> Classes:
        """The classes of a value, as far as they are known so far."""
        if name in self._flow.nodes:
            return self._found.get(name, self._same)
        item = self._module.instructions[name]
        variable = self._flow.variable(name)
        if variable is not None:
            loop, index = variable
            return self._carried.setdefault((loop.name, index), self._same)
        if item.opcode == "parameter":
            return self.of_parameter(item)
        if item.opcode in ("get-tuple-element", "tuple"):
            return self._all(map(self._flow.made_by, item.operands))
        return self._apart

    def _all(self, names: Iterable[str]) -> Classes:
        """The classes of a value that is computed from others."""
        found = self._same
        for name in names:
            found = self._both(found, self._of(name))
        return found

    def of_parameter(self, item: Instruction) -> Classes:
        """The classes of a program's parameter, by its sharding. Any other parameter counts as
        different on every device.
        """
        number = item.parameter_number
        shards = self._module.shards
        if item.computation != self._module.entry or number is None:
            return self._apart
        found = shards[number] if number < len(shards) else ()
        if len(found) == 1:
            return self._same
        return numbered(found) if len(found) == len(self._same) else self._apart

    def _of_node(self, name: str) -> Classes:
        node = self._flow.nodes[name]
        opcode = node.opcode
        if opcode in _UNLIKE:
            return self._apart
        if opcode == "dynamic-slice" and (row := self._row(name)):
            return numbered(row)
        given = self._all(self._flow.inputs[name])
        operation = self._module.operation(node)
        kind = KIND_OF_OPCODE.get(operation.opcode)
        if kind is None or opcode.endswith(("-done", "-update")):
            return given
        if kind in ("send", "recv"):
            return self._apart
        if kind == "collective-permute":
            return _permuted(given, operation.source_target_pairs)
        is_split = kind not in _JOINED
        return moved(given, operation.replica_groups, is_split=is_split)

    def _row(self, name: str) -> tuple[int, ...]:
        """The values that devices take from a row of constants, one each, if the device number is
        the index; else empty.
        """
        row, *starts = self._flow.inputs[name]
        values = self._module.instructions[row].row
        if len(values) != len(self._same) or len(starts) != 1:
            return ()
        is_by_device = self._flow.comes_from(starts[0], ("partition-id",), RESHAPED)
        return values if is_by_device else ()


def copies_of(classes: Classes) -> int:
    """The number of devices in the smallest class."""
    return min(Counter(classes).values())


def numbered(labels: Iterable[object]) -> Classes:
    """Turn labels of devices into classes: devices with equal labels have one class."""
    numbers: dict[object, int] = {}
    return tuple([numbers.setdefault(label, len(numbers)) for label in labels])


def both(one: Classes, other: Classes) -> Classes:
    """The classes of devices that have one class in both inputs."""
    if one == other:
        return one
    return numbered(zip(one, other, strict=True))


def moved(given: Classes, groups: Groups, *, is_split: bool) -> Classes:
    """The classes after a collective.

    Args:
        given: the classes before it.
        groups: groups of devices; if empty, all devices are one group.
        is_split: whether each device of a group gets a part of its own.
    """
    devices = range(len(given))
    labels: list[object] = [-1 - device for device in devices]
    for group in groups or (tuple(devices),):
        held = tuple([given[device] for device in group if device in devices])
        for place, device in enumerate(group):
            if device in devices:
                labels[device] = (held, place if is_split else 0)
    return numbered(labels)


def _permuted(given: Classes, pairs: Sequence[tuple[int, int]]) -> Classes:
    """The classes after a collective-permute. Devices that receive nothing have zeros."""
    sources: Mapping[int, int] = {target: source for source, target in pairs}
    labels = []
    for device in range(len(given)):
        source = sources.get(device)
        labels.append(inf if source is None else given[source])
    return numbered(labels)
