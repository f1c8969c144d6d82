"""Find the arguments of a step that loops take apart along their leading axes, such as a sequence
with time first, or the parts of a batch whose gradients are added up. Their batch is on the axis
after those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgle.account.levers.batch_rows import keeps_leading

_FUNCTION = re.compile(r"^  func\.func \w+ @(\S+?)\(")
_ASSIGNED = re.compile(r"^ +(%\w+)(?::\d+)? = (.*)")
_RETURNED = re.compile(r"^    return (.*?) :")
_VALUE = re.compile(r"%\w+(?:#\d+)?")
_CALLED = re.compile(r"call @([^\s(]+)\(([^)]*)\)")
_LOOPED = re.compile(r"(%iterArg\w*) = (%\w+(?:#\d+)?)")
_TYPE = re.compile(r"tensor<((?:\d+x)*)[^>x]+>")
_LOOP = "stablehlo.while("
_SLICE = "stablehlo.dynamic_slice "
_MOVES = ("stablehlo.transpose ", "stablehlo.reverse ", "stablehlo.slice ")
"""Operations whose result may have other axes in the place of the leading ones."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A value that begins with an argument's axes, without those that loops have taken."""

    argument: int
    axis: int  # how many leading axes loops have taken


def scanned_axes(text: str, sizes: Mapping[int, Sequence[int]]) -> Mapping[int, int]:
    """How many leading axes of its arguments a step takes apart in loops.

    Args:
        text: its module, StableHLO as jax dumps it.
        sizes: of the arguments in question, by their number.
    """
    search = _Search(_functions(text), sizes)
    held = {f"%arg{number}": frozenset((_Held(number, 0),)) for number in sizes}
    search.visit("main", held)
    return search.found


def _functions(text: str) -> Mapping[str, Sequence[str]]:
    """The lines of each function of a module, by its name."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        begun = _FUNCTION.match(line)
        if begun is not None:
            lines = found.setdefault(begun[1], [])
        lines.append(line)
    return found


_Values = dict[str, frozenset[_Held]]  # what values hold, by name


class _Search:
    """Follows arguments through the functions of a module."""

    def __init__(
        self,
        functions: Mapping[str, Sequence[str]],
        sizes: Mapping[int, Sequence[int]],
    ) -> None:
        self._functions = functions
        self._sizes = sizes
        self._known: dict[object, Sequence[frozenset[_Held]]] = {}
        self.found = dict.fromkeys(sizes, 0)

    def visit(self, name: str, held: _Values) -> Sequence[frozenset[_Held]]:
        """Follow what a function holds. Return what each of its results holds."""
        key = (name, frozenset(held.items()))
        if key not in self._known:
            self._known[key] = ()
            self._known[key] = self._results(name, held)
        return self._known[key]

    def _results(self, name: str, held: _Values) -> Sequence[frozenset[_Held]]:
        returned: Sequence[str] = ()
        for line in self._functions.get(name, ()):
            assigned = _ASSIGNED.match(line)
            if assigned is not None:
                held.update(self._made(assigned[1], assigned[2], held))
                continue
            ended = _RETURNED.match(line)
            if ended is not None:
                returned = _VALUE.findall(ended[1])
        return [held.get(value, frozenset()) for value in returned]

    def _made(self, result: str, operation: str, held: _Values) -> _Values:
        """What an operation's results hold, or the variables of a loop."""
        if operation.startswith(_LOOP):
            pairs = _LOOPED.findall(operation)
            return {one: held.get(value, frozenset()) for one, value in pairs}
        taken: set[_Held] = set()
        for value in _VALUE.findall(operation):
            taken |= held.get(value, frozenset())
        if not taken or operation.startswith(_MOVES):
            return {}
        called = _CALLED.search(operation)
        if called is not None:
            return self._called(result, called, held)
        types = [_sizes(found) for found in _TYPE.findall(operation)]
        if not types:
            return {}
        is_slice = operation.startswith(_SLICE)
        follow = self._sliced if is_slice else self._kept
        following = (follow(one, types) for one in taken)
        return {result: frozenset(one for one in following if one is not None)}

    def _called(self, result: str, called: re.Match[str], held: _Values) -> _Values:
        """What the results of a call hold."""
        inner = {
            f"%arg{at}": held[value]
            for at, value in enumerate(_VALUE.findall(called[2]))
            if value in held
        }
        made = self.visit(called[1], inner)
        if len(made) == 1:
            return {result: made[0]}
        return {f"{result}#{at}": one for at, one in enumerate(made)}

    def _kept(self, taken: _Held, types: Sequence[tuple[int, ...]]) -> _Held | None:
        """What the result of an operation holds of its operand."""
        left = self._sizes[taken.argument][taken.axis :]
        return taken if left and keeps_leading(types[-1], left) else None

    def _sliced(self, taken: _Held, types: Sequence[tuple[int, ...]]) -> _Held | None:
        """What a slice of one element along the first axis holds."""
        whole, made = types[0], types[-1]
        left = self._sizes[taken.argument][taken.axis :]
        is_one = whole[:1] > (1,) and made == (1, *whole[1:])
        if not left or not is_one or whole[:2] != tuple(left[:2]):
            return None
        axis = taken.axis + 1
        self.found[taken.argument] = max(self.found[taken.argument], axis)
        return _Held(taken.argument, axis)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x")[:-1]))
