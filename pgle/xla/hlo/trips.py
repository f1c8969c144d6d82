"""Count how often a loop runs: as XLA states it, else from start, step and bound of its induction
variable.

XLA's passes drop ``known_trip_count`` when they rewrite a loop: pipelined collectives peel
iterations, double buffering unrolls it. Start, step and bound remain as constants. pgle follows
integers through tuples, copies, conversions, fusions, calls and outer loops. Each integer is an
offset and, inside a loop, a multiple of one of the loop's variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pgle.xla.hlo.module import BITS, Computation, Instruction, Module, known_trip_count

_SAME = frozenset(
    ("bitcast", "convert", "copy", "copy-done", "copy-start", "opt-barrier", "reshape")
)
"""Opcodes whose scalar integer result equals their first operand; for a ``copy-start``, its first
element does.
"""

_INVERSE = {"LT": "GE", "GE": "LT", "LE": "GT", "GT": "LE", "EQ": "NE", "NE": "EQ"}
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "EQ": "EQ", "NE": "NE"}
# most instructions to follow for one loop, so that a file cannot exhaust the stack
_MOST_STEPS = 300


@dataclass(frozen=True, slots=True)
class _Linear:
    """An integer: ``factor`` times a variable of the loop, plus ``offset``."""

    offset: int
    factor: int = 0
    variable: int = -1  # element of the loop's tuple; -1 if the factor is 0


_Value = _Linear | None  # None if unknown
_Parameters = Callable[[int, tuple[int, ...]], _Value]
"""Returns the value of a parameter, from its number and a place in its tuple."""


def trip_count(module: Module, loop: Instruction) -> int | None:
    """Return how often the body of a ``while`` runs; None if the module's constants do not tell."""
    known = known_trip_count(loop)
    if known is not None:
        return known
    reader = _Reader(module)
    body, condition = reader.parts(loop)
    if body is None or condition is None:
        return None
    try:
        return reader.count(loop, body, condition)
    except _TooLongError:
        return None


def loop_body(module: Module, loop: Instruction) -> Computation | None:
    """Return the computation that a ``while`` repeats. Its condition is the computation that
    returns a truth value.
    """
    body, _ = _Reader(module).parts(loop)
    return body


class _TooLongError(Exception):
    """A loop's variable would need more instructions than `_MOST_STEPS`."""


@dataclass
class _Reader:
    """Follows integers through a module."""

    module: Module
    steps: int = 0
    # instructions by name, for each computation
    items: dict[str, Mapping[str, Instruction]] = field(default_factory=dict)

    def parts(self, loop: Instruction) -> tuple[Computation | None, Computation | None]:
        """Return the body and the condition of a loop; None for a missing one."""
        body = condition = None
        if loop.opcode != "while":
            return None, None
        for name in loop.called:
            computation = self.module.computations.get(name)
            if computation is None:
                continue
            root = self.find(computation, computation.root)
            if root is None:
                continue
            if root.shape.dtype == "pred" and not root.shape.dimensions:
                condition = computation
            else:
                body = computation
        return body, condition

    def count(
        self, loop: Instruction, body: Computation, condition: Computation
    ) -> int | None:
        """Return the number of iterations until the condition first fails; None if unknown."""
        parameters = self.during(loop, body)
        return self.holds(loop, body, condition, condition.root, parameters)

    def holds(
        self,
        loop: Instruction,
        body: Computation,
        condition: Computation,
        name: str,
        parameters: _Parameters,
        *,
        inverted: bool = False,
    ) -> int | None:
        """Return the number of iterations, counted from the first, for which a condition is true in
        a row; None if unknown.
        """
        item = self.find(condition, name)
        if item is None:
            return None
        if item.opcode == "compare" and len(item.operands) == 2:
            direction = item.direction
            if inverted:
                direction = _INVERSE.get(direction, "")
            one, other = item.operands
            left = self.value(condition, one, (), parameters)
            right = self.value(condition, other, (), parameters)
            return self.compared(loop, body, direction, left, right)
        if item.opcode == "and" and not inverted:
            trips = []
            for each in item.operands:
                count = self.holds(loop, body, condition, each, parameters)
                if count is None:
                    return None
                trips.append(count)
            return min(trips, default=None)
        where = condition
        given = parameters
        inside = self.called(item)
        if item.operands and (item.opcode == "not" or item.opcode in _SAME):
            name = item.operands[0]
        elif inside is not None:
            where = inside
            name = inside.root
            given = self.arguments(condition, item, parameters)
        else:
            return None
        if item.opcode == "not":
            inverted = not inverted
        return self.holds(loop, body, where, name, given, inverted=inverted)

    def compared(
        self,
        loop: Instruction,
        body: Computation,
        direction: str,
        left: _Value,
        right: _Value,
    ) -> int | None:
        """Return the number of iterations, counted from the first, for which a comparison of a loop
        variable with a constant is true in a row; None if unknown.
        """
        if left is None or right is None:
            return None
        if left.factor == 0:
            left, right = right, left
            direction = _MIRRORED.get(direction, "")
        if left.factor == 0 or right.factor != 0:
            return None
        start = self.before(loop, left.variable)
        step = self.step(loop, body, left.variable)
        if start is None or start.factor or step is None:
            return None
        first = left.offset + left.factor * start.offset
        by = left.factor * step
        trips = _trips(direction, first, by, right.offset)
        if trips is None:
            return None
        last = start.offset + step * trips
        return trips if self.fits(loop, left.variable, last) else None

    def fits(self, loop: Instruction, place: int, last: int) -> bool:
        """Whether the variable's type can hold its last value, so it does not wrap around."""
        elements = loop.shape.elements
        if not 0 <= place < len(elements):
            return False
        dtype = elements[place].dtype
        bits = BITS.get(dtype, 0)
        if dtype.startswith("u"):
            return 0 <= last < 1 << bits
        if not dtype.startswith("s"):
            return False
        beyond = 1 << bits - 1
        return -beyond <= last < beyond

    def during(self, loop: Instruction, body: Computation) -> _Parameters:
        """Return a loop's variables while it runs. A variable that no iteration changes keeps its
        value from before.
        """

        def given(number: int, place: tuple[int, ...]) -> _Value:
            if number or len(place) != 1:
                return None
            if self.is_kept(body, place[0]):
                return self.before(loop, place[0])
            return _Linear(0, 1, place[0])

        return given

    def step(self, loop: Instruction, body: Computation, place: int) -> int | None:
        """Return what one iteration adds to a variable; None if it does anything else."""
        after = self.value(body, body.root, (place,), self.during(loop, body))
        if after is None or after.factor != 1 or after.variable != place:
            return None
        return after.offset

    def is_kept(self, body: Computation, place: int) -> bool:
        """Whether no iteration changes a variable."""
        after = self.value(body, body.root, (place,), _variables)
        return after == _Linear(0, 1, place)

    def before(self, loop: Instruction, place: int) -> _Value:
        """Return a variable's value before the loop if it is constant, else None."""
        computation = self.module.computations[loop.computation]
        if not loop.operands:
            return None
        around = self.around(loop.computation)
        found = self.value(computation, loop.operands[0], (place,), around)
        if found is None or found.factor != 0:
            return None
        return found

    def around(self, computation: str) -> _Parameters:
        """Return the parameters of a computation, from the arguments of its only caller."""

        def given(number: int, place: tuple[int, ...]) -> _Value:
            callers = self.module.callers.get(computation, ())
            if len(callers) != 1:
                return None
            (caller,) = callers
            if caller.opcode == "while":
                body, _ = self.parts(caller)
                if body is None or len(place) != 1 or not self.is_kept(body, place[0]):
                    return None
                return self.before(caller, place[0])
            if caller.opcode not in ("call", "fusion", "async-start"):
                return None
            outer = self.module.computations[caller.computation]
            outside = self.around(caller.computation)
            return self.arguments(outer, caller, outside)(number, place)

        return given

    def called(self, item: Instruction) -> Computation | None:
        """Return the computation of a fusion or a call; None for any other instruction."""
        if item.opcode not in ("call", "fusion") or not item.called:
            return None
        return self.module.computations.get(item.called[0])

    def arguments(
        self, computation: Computation, caller: Instruction, parameters: _Parameters
    ) -> _Parameters:
        """Return the parameters of the computation that an instruction calls."""

        def given(number: int, place: tuple[int, ...]) -> _Value:
            if number >= len(caller.operands):
                return None
            return self.value(computation, caller.operands[number], place, parameters)

        return given

    def find(self, computation: Computation, name: str) -> Instruction | None:
        """Return an instruction of a computation; None if it does not exist."""
        items = self.items.get(computation.name)
        if items is None:
            items = {item.name: item for item in computation.instructions}
            self.items[computation.name] = items
        return items.get(name)

    def value(
        self,
        computation: Computation,
        name: str,
        place: tuple[int, ...],
        parameters: _Parameters,
    ) -> _Value:
        """Return an integer scalar: the result of an instruction, or an element of its tuple. None
        if unknown.
        """
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise _TooLongError
        item = self.find(computation, name)
        if item is None:
            return None
        if item.opcode == "parameter" and item.parameter_number is not None:
            return parameters(item.parameter_number, place)
        if item.opcode == "constant" and not place:
            return None if item.constant is None else _Linear(item.constant)
        source = self.source(item, place)
        if source is not None:
            operand, place = source
            return self.value(computation, operand, place, parameters)
        if item.opcode == "while" and len(place) == 1:
            return None  # an iteration may change it
        inside = self.called(item)
        if inside is not None:
            given = self.arguments(computation, item, parameters)
            return self.value(inside, inside.root, place, given)
        if place:
            return None
        values = [
            self.value(computation, each, (), parameters) for each in item.operands
        ]
        return _computed(item.opcode, values)

    def source(
        self, item: Instruction, place: tuple[int, ...]
    ) -> tuple[str, tuple[int, ...]] | None:
        """Return the operand that an instruction passes on at a place of its result, and the place
        there. None if it passes none on.
        """
        if not item.operands:
            return None
        first = item.operands[0]
        if item.opcode == "get-tuple-element" and item.tuple_index is not None:
            return first, (item.tuple_index, *place)
        if item.opcode == "tuple" and place and place[0] < len(item.operands):
            return item.operands[place[0]], place[1:]
        if item.opcode in _SAME:
            return first, place[1:] if item.opcode == "copy-start" else place
        if item.opcode == "while" and len(place) == 1:
            body, _ = self.parts(item)
            if body is not None and self.is_kept(body, place[0]):
                return first, place
        return None


def _variables(number: int, place: tuple[int, ...]) -> _Value:
    """Return a loop's variable as itself."""
    return _Linear(0, 1, place[0]) if number == 0 and len(place) == 1 else None


def _computed(opcode: str, values: list[_Value]) -> _Value:
    """Return the result of an integer operation on known operands; None if unknown."""
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return None
    first, *rest = known
    if opcode == "negate":
        return _negated(first)
    if len(rest) != 1:
        return None
    (second,) = rest
    if opcode == "subtract":
        return _sum(first, _negated(second))
    if opcode == "add":
        return _sum(first, second)
    if opcode == "multiply":
        return _product(first, second)
    if first.factor or second.factor:
        return None
    if opcode == "maximum":
        return _Linear(max(first.offset, second.offset))
    if opcode == "minimum":
        return _Linear(min(first.offset, second.offset))
    return None


def _negated(value: _Linear) -> _Linear:
    """Return an integer with the other sign."""
    return _Linear(-value.offset, -value.factor, value.variable)


def _sum(first: _Linear, second: _Linear) -> _Value:
    """Return the sum of two integers; None if it has two variables."""
    if first.factor and second.factor and first.variable != second.variable:
        return None
    factor = first.factor + second.factor
    offset = first.offset + second.offset
    if factor == 0:
        return _Linear(offset)
    return _Linear(offset, factor, max(first.variable, second.variable))


def _product(first: _Linear, second: _Linear) -> _Value:
    """Return the product of two integers; None if both have a variable."""
    if first.factor and second.factor:
        return None
    constant, other = (second, first) if first.factor else (first, second)
    times = constant.offset
    if times == 0:
        return _Linear(0)
    return _Linear(other.offset * times, other.factor * times, other.variable)


def _trips(direction: str, first: int, by: int, bound: int) -> int | None:
    """Return how many of first, first + by, … compare true in a row; None if there is no end."""
    if direction in ("GT", "GE"):
        mirrored = _MIRRORED[direction]
        return _trips(mirrored, -first, -by, -bound)
    if direction == "LE":
        return _trips("LT", first, by, bound + 1)
    if direction == "LT":
        if first >= bound:
            return 0
        return -(-(bound - first) // by) if by > 0 else None
    if direction == "NE":
        if first == bound:
            return 0
        is_met = by != 0 and (bound - first) % by == 0 and (bound - first) // by > 0
        return (bound - first) // by if is_met else None
    if direction == "EQ":
        if first != bound:
            return 0
        return 1 if by else None
    return None
