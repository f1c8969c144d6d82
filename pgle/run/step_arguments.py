"""What a step's module takes (StableHLO as jax dumps it): its state, its batch, and how both are
divided over devices.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pgle.account.levers.batch_rows import (
    DataArray,
    axis_among,
    batch_among,
    state_among,
)
from pgle.run.scanned_arguments import scanned_axes

_ARGUMENT = re.compile(r"%arg\d+: tensor<([^>]+)>")
_NAMED = re.compile(r'^(#loc\d*) = loc\("([^"]+)"', re.MULTILINE)
_PLACED = re.compile(r'loc\((?:"([^"]+)"|(#loc\d*))\)')
_DONOR = "jax.buffer_donor"
_DONATED = re.compile(rf"tf\.aliasing_output|{_DONOR}")
_RETURNS = ") -> "
_SIGNED = re.compile(r"^i(?=\d)")  # begins a type of integers with a sign
_ROOT = re.compile(r"[A-Za-z_]\w*")


def state_of(text: str) -> list[str]:
    """Arguments of a module, StableHLO as jax dumps it, whose types are all among its results and
    none of which is donated: its state, by the names of the function's parameters.
    """
    kinds: dict[str, list[str]] = {}
    for argument in _arguments(text):
        kinds.setdefault(argument.name, []).append(argument.kind)
    state = state_among(kinds, _returned(text))
    donated = _donated(text)
    return [name for name in state if name not in donated]


def _donated(text: str) -> frozenset[str]:
    """Parameters of a step of which an argument is donated."""
    found = (one.name for one in _arguments(text) if _DONATED.search(one.text))
    return frozenset(found)


def marked_as_donated(text: str, names: Sequence[str]) -> str:
    """A module, StableHLO as jax dumps it, that donates the arguments of some parameters."""
    main = _main(text)
    changed = main
    for argument in _arguments(text):
        if argument.name in names:
            kind, end, rest = argument.text.partition("> ")
            others = f", {rest[1:]}" if rest.startswith("{") else f"}} {rest}"
            donated = f"{kind}{end}{{{_DONOR} = true{others}"
            changed = changed.replace(argument.text, donated)
    return text.replace(main, changed)


def work_of(before: str, after: str) -> float:
    """How many times as much data the step of a module takes as that of another one. Data are the
    arguments that are not among the results, and whose shapes are in one module only: frozen
    weights have the same in both.
    """
    was = _taken_only(before)
    now = _taken_only(after)
    old = _elements(was - now)
    new = _elements(now - was)
    return new / old if old and new else 1.0


def _taken_only(text: str) -> Counter[tuple[int, ...]]:
    """Shapes of the arguments of a module that are not among its results."""
    arguments = list(_arguments(text))
    kinds = {argument.text: (argument.kind,) for argument in arguments}
    returned = set(state_among(kinds, _returned(text)))
    return Counter(one.sizes for one in arguments if one.text not in returned)


def _elements(shapes: Counter[tuple[int, ...]]) -> int:
    return sum(math.prod(shape) * count for shape, count in shapes.items())


@dataclass(frozen=True)
class _Argument:
    """An argument of a module."""

    text: str  # as it is written
    kind: str  # ``8x4xf32``
    name: str  # of the function's parameter that holds it

    @property
    def number(self) -> int:
        """Its place among the arguments of the module."""
        return int(self.text.partition(":")[0].removeprefix("%arg"))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of its axes."""
        return tuple(map(int, self.kind.split("x")[:-1]))

    @property
    def dtype(self) -> str:
        """The type of its elements, as HLO names it."""
        return _SIGNED.sub("s", self.kind.split("x")[-1].replace("ui", "u"))

    @property
    def axes(self) -> frozenset[str]:
        """Mesh axes that divide it."""
        return frozenset(re.findall(r'"(\w+)"', "".join(_SHARDED.findall(self.text))))


def _main(text: str) -> str:
    """The line of a module that begins its entry."""
    return next((line for line in text.splitlines() if " @main(" in line), "")


def _returned(text: str) -> list[str]:
    """The type of each result of a module: ``8x4xf32``."""
    returned = _main(text).partition(_RETURNS)[2]
    return re.findall(r"tensor<([^>]+)>", returned)


def _arguments(text: str) -> Iterator[_Argument]:
    """The arguments whose parameters are known."""
    taken = _main(text).partition(_RETURNS)[0].partition("@main(")[2]
    names = dict(_NAMED.findall(text))
    for part in re.split(r", (?=%arg\d)", taken):
        kind = _ARGUMENT.match(part)
        places = list(_PLACED.finditer(part))
        if kind is None or not places:
            continue
        name = places[-1][1] or names.get(places[-1][2], "")
        root = _ROOT.match(name)
        if root is not None:
            yield _Argument(part, kind[1], root[0])


_MESH = re.compile(r"^ *sdy\.mesh @(\w+) = <\[([^\]]*)\]", re.MULTILINE)
_AXIS = re.compile(r'"(\w+)"=(\d+)')
_SHARDED = re.compile(r"#sdy\.sharding<@\w+, \[([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class Holder:
    """A parameter of a step that holds arrays of the batch, and the axis of its rows."""

    name: str
    axis: int
    is_mixed: bool  # whether it holds other arrays, too


@dataclass(frozen=True, slots=True)
class WholeBatch:
    """A batch that every device has whole, and the mesh axes that can divide it."""

    holders: tuple[Holder, ...]
    axis: int  # of the rows of its largest array
    size: int  # number of its rows
    mesh: str  # the mesh's name in the module
    axes: tuple[str, ...]  # that divide it

    @property
    def names(self) -> tuple[str, ...]:
        """The step's parameters that hold it."""
        return tuple(dict.fromkeys(holder.name for holder in self.holders))

    @property
    def spec(self) -> str:
        """The spec in short: ``P("data")``, or ``P(None, "data")`` after an axis of a loop."""
        return f"P({self._entries(self.axis)})"

    def _entries(self, axis: int) -> str:
        names = ", ".join(f'"{name}"' for name in self.axes)
        divided = names if len(self.axes) == 1 else f"({names})"
        return "None, " * axis + divided

    @property
    def edit(self) -> str:
        """What a user writes first in the step, where ``mesh`` is the mesh of the weights."""
        return "\n".join(map(self._edit_of, self.holders))

    def _edit_of(self, holder: Holder) -> str:
        name, axis = holder.name, holder.axis
        spec = f"jax.sharding.PartitionSpec({self._entries(axis)})"
        divided = f"jax.sharding.NamedSharding(mesh, {spec})"
        if not holder.is_mixed:
            return f"{name} = jax.lax.with_sharding_constraint({name}, {divided})"
        one = f"jax.lax.with_sharding_constraint(a, {divided})"
        place = f"{axis}:{axis + 1}" if axis else ":1"
        is_batch = f"jax.numpy.shape(a)[{place}] == ({self.size},)"
        return f"{name} = jax.tree.map(lambda a: {one} if {is_batch} else a, {name})"

    def divides(self, name: str, sizes: Sequence[int]) -> Holder | None:
        """The holder whose edit divides an array of a parameter; None if none does."""
        for holder in self.holders:
            if holder.name == name and sizes[holder.axis :][:1] == (self.size,):
                return holder
        return None


def whole_batch(text: str) -> WholeBatch | None:
    """The batch of a module that no mesh axis divides.

    The batch is what the step does not return (`batch_among`); a parameter holds it if its largest
    array does. Axes that divide no argument divide it; if there are none, all axes do. None:
    nothing is known, or the axes do not divide the size.
    """
    meshes = _MESH.findall(text)
    if len(meshes) != 1:
        return None
    mesh, listed = meshes[0]
    sizes = {name: int(size) for name, size in _AXIS.findall(listed)}
    used: set[str] = set()
    for one in _arguments(text):
        used |= one.axes
    axes = [axis for axis, size in sizes.items() if size > 1]
    free = [axis for axis in axes if axis not in used] or axes
    data = _data_of(text)
    arrays = [each.array for each in data]
    first = batch_among(arrays)
    count = math.prod(sizes[axis] for axis in free)
    if first is None or not free or first.rows % count:
        return None
    holders = _holding(first.rows, data)
    if all(holder.name != first.name for holder in holders):
        return None  # an axis divides it already
    axis = axis_among(arrays, first.rows)
    return WholeBatch(holders, axis, first.rows, mesh, tuple(free))


@dataclass(frozen=True, slots=True)
class _Data:
    """An argument that is no state, and its array with the axis of its rows."""

    argument: _Argument
    array: DataArray


def _data_of(text: str) -> list[_Data]:
    """The arguments of a step that it does not return."""
    kept = _kept_by(text)
    data = [one for one in _arguments(text) if one.name not in kept]
    axes = scanned_axes(text, {one.number: one.sizes for one in data if one.sizes})
    found = []
    for one in data:
        axis = axes.get(one.number, 0)
        found.append(_Data(one, DataArray(one.name, one.dtype, one.sizes, axis)))
    return found


def _kept_by(text: str) -> frozenset[str]:
    """Parameters of a step that it returns: its state, donated or not."""
    return _donated(text).union(state_of(text))


def _holding(size: int, data: Iterable[_Data]) -> tuple[Holder, ...]:
    """Parameters that no axis divides, and whose largest array has `size` rows, with each axis that
    these rows are on.
    """
    largest: dict[str, DataArray] = {}
    axes: dict[str, set[int]] = {}
    divided: set[str] = set()
    others: set[str] = set()
    for each in data:
        one = each.array
        if each.argument.axes:
            divided.add(one.name)
        known = largest.setdefault(one.name, one)
        if one.count > known.count:
            largest[one.name] = one
        if one.rows == size:
            axes.setdefault(one.name, set()).add(one.axis)
        else:
            others.add(one.name)
    found = []
    for name, one in largest.items():
        if name in divided or one.rows != size:
            continue
        is_mixed = name in others or len(axes[name]) > 1
        found += [Holder(name, axis, is_mixed) for axis in sorted(axes[name])]
    return tuple(found)


def with_divided_batch(text: str, batch: WholeBatch) -> str:
    """A module that divides its batch first, as `WholeBatch.edit` does."""
    main = _main(text)
    before, begun, rest = text.partition(f"{main}\n")
    body, ended, after = rest.partition("\n  }")
    lines = []
    for one in _arguments(text):
        holder = batch.divides(one.name, one.sizes)
        if holder is None:
            continue
        number = one.text.partition(":")[0]
        made = f"{number}_divided"
        axes = ", ".join(f'"{axis}"' for axis in batch.axes)
        spec = ["{}"] * len(one.sizes)
        spec[holder.axis] = f"{{{axes}}}"
        how = f"<@{batch.mesh}, [{', '.join(spec)}]> : tensor<{one.kind}>"
        body = re.sub(rf"{number}\b", made, body)
        lines.append(f"    {made} = sdy.sharding_constraint {number} {how}\n")
    return "".join((before, begun, *lines, body, ended, after))
