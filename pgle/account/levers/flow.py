"""Where the values of a scheduled module come from and go to, through fusions.

A *kernel* is an instruction that runs on its own. A *node* is an operation that computes
something: a kernel without a body, or an operation inside a fusion. Parameters of fusions,
elements of tuples and fusions themselves are not nodes. For them, look up the node that makes the
value (`Flow.made_by`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from math import prod

from pgle.costs.estimate.products import Matmul, first_array, matmuls
from pgle.xla.async_opcodes import is_done
from pgle.xla.collectives import collective_kind
from pgle.xla.hlo.module import Instruction, Module, Shape
from pgle.xla.matrix_products import is_convolution, is_gemm

_BODIES = ("while", "conditional", "call", "async-start")
_PASSED = ("fusion", "call")  # parameters of the called computation are their operands
_STANDS_FOR = ("parameter", "get-tuple-element", "tuple", "fusion", "call")

RESHAPED = frozenset(("bitcast", "reshape", "copy", "transpose", "convert"))
"""Opcodes whose result has the operand's values, in another place, layout or type."""

WEIGHTS = RESHAPED.union(
    ("slice", "dynamic-slice", "all-gather", "all-gather-start", "all-gather-done"),
    ("async-start", "async-done", "opt-barrier"),
)
"""Opcodes between a parameter of the program and the weights that a product takes."""

GRADIENT = "transpose("
"""JAX has it in names of the backward pass."""

AGAIN = "rematted_computation"
"""JAX has it in names of values that `jax.checkpoint` computes again."""

_MOST_STEPS = 200  # most values that a search for the origin of a value looks at


class Flow:
    """The nodes of all computations that run, their inputs, users and kernels."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.nodes: dict[str, Instruction] = {}
        self.kernel: dict[str, str] = {}  # the instruction that runs a node, by node
        self.computation: dict[str, str] = {}  # the computation of its kernel, by node
        self._made_by: dict[str, str] = {}
        for name in _running(module):
            for item in module.computations[name].instructions:
                self._add(item, name)

    def opcodes_of(self, kernel: str) -> frozenset[str]:
        """Opcodes of the nodes in a kernel."""
        return self._opcodes.get(kernel, frozenset())

    @cached_property
    def _opcodes(self) -> Mapping[str, frozenset[str]]:
        found: dict[str, set[str]] = {}
        for name, kernel in self.kernel.items():
            found.setdefault(kernel, set()).add(self.nodes[name].opcode)
        return {kernel: frozenset(opcodes) for kernel, opcodes in found.items()}

    def _add(self, kernel: Instruction, computation: str) -> None:
        todo = [kernel]
        for item in todo:
            fused = self.module.fused(item)
            if fused is not None:
                todo += fused.instructions
            elif item.opcode not in _STANDS_FOR:
                self.nodes[item.name] = item
                self.kernel[item.name] = kernel.name
                self.computation[item.name] = computation

    def made_by(self, name: str) -> str:
        """The name of the node that makes a value.

        If no node makes it, as for a parameter of the program, the result is its own name.
        """
        asked = []
        while name not in self._made_by:
            asked.append(name)
            before = self._before(name)
            if before == name or before in asked:
                self._made_by[name] = name
                break
            name = before
        found = self._made_by[name]
        self._made_by.update(dict.fromkeys(asked, found))
        return found

    def _before(self, name: str) -> str:
        """The value one step back that has the same content; the name itself if there is none."""
        item = self.module.instructions[name]
        if item.opcode == "parameter":
            return self._argument(item) or name
        if item.opcode == "get-tuple-element" and item.operands:
            return self._element(item) or name
        if item.opcode in _PASSED:
            return self._result(item) or name
        return name

    def _argument(self, parameter: Instruction) -> str:
        """The operand that a fusion or call passes to a parameter; empty for other parameters."""
        callers = self.module.callers.get(parameter.computation, ())
        number = parameter.parameter_number
        if len(callers) != 1 or callers[0].opcode not in _PASSED or number is None:
            return ""
        given = callers[0].operands[number : number + 1]
        return given[0] if given else ""

    def _element(self, item: Instruction) -> str:
        """The operand of a tuple that a get-tuple-element takes, or a custom call's name; else
        empty.
        """
        name = self.made_by(item.operands[0])
        whole = self.module.instructions[name]
        if whole.opcode == "tuple" and item.tuple_index is not None:
            given = whole.operands[item.tuple_index : item.tuple_index + 1]
            return given[0] if given else ""
        return name if whole.opcode == "custom-call" else ""

    def _result(self, item: Instruction) -> str:
        """The root of the computation that a fusion or call runs."""
        called = self.module.computations.get(item.called[0]) if item.called else None
        return "" if called is None else called.root

    @cached_property
    def inputs(self) -> Mapping[str, tuple[str, ...]]:
        """The makers of a node's operands (`made_by`), by node."""
        return {
            name: tuple(map(self.made_by, node.operands))
            for name, node in self.nodes.items()
        }

    @cached_property
    def users(self) -> Mapping[str, tuple[str, ...]]:
        """The nodes that take a value, by the value's maker (`made_by`)."""
        found: dict[str, list[str]] = {}
        for name, inputs in self.inputs.items():
            for given in dict.fromkeys(inputs):
                found.setdefault(given, []).append(name)
        return {name: tuple(users) for name, users in found.items()}

    @cached_property
    def products(self) -> Mapping[str, Matmul]:
        """The matrix products by node, without convolutions."""
        return dict(self._multiplying(is_gemm))

    @cached_property
    def convolutions(self) -> Mapping[str, Matmul]:
        """The convolutions by node, as the matrix products that they amount to."""
        return dict(self._multiplying(is_convolution))

    def _multiplying(
        self, multiplies: Callable[[Instruction], bool]
    ) -> Iterator[tuple[str, Matmul]]:
        for name, node in self.nodes.items():
            if multiplies(node):
                product = next(matmuls(self.module, node), None)
                if product is not None:
                    yield name, product

    def shape(self, name: str) -> Shape:
        """The shape of a value; for a tuple, the shape of its first array."""
        shape = self.module.instructions[name].shape
        return first_array(shape) or shape

    def opcode(self, name: str) -> str:
        """The opcode of a node; empty if the name is not a node."""
        return self.nodes[name].opcode if name in self.nodes else ""

    def elements(self, name: str) -> int:
        """How many elements a value has."""
        return prod(self.shape(name).dimensions)

    def variable(self, name: str) -> tuple[Instruction, int] | None:
        """The loop that carries a value, and the value's place in the loop's state.

        The value is an element of the state, inside the loop or after it. For other values the
        result is None.
        """
        item = self.module.instructions[name]
        index = item.tuple_index
        if item.opcode != "get-tuple-element" or index is None or not item.operands:
            return None
        state = self.module.instructions[item.operands[0]]
        if state.opcode == "while":
            return state, index
        loops = self.module.callers.get(state.computation, ())
        if state.opcode != "parameter" or not loops or loops[0].opcode != "while":
            return None
        return loops[0], index

    def before_loop(self, name: str) -> str:
        """The initial value of a loop's variable; empty if the name is not such a variable."""
        found = self.variable(name)
        if found is None:
            return ""
        loop, index = found
        given = self.part(loop.operands[0], index)
        return self.made_by(given) if given else ""

    def carried(self, name: str, index: int) -> Iterator[str]:
        """The values of a loop's variable: before the first iteration, and after each."""
        loop = self.module.instructions[name]
        for start in (loop.operands[0], *self._results(loop)):
            yield self.made_by(self.part(start, index) or start)

    def _results(self, loop: Instruction) -> Iterator[str]:
        """The root of a loop's body."""
        for name in loop.called:
            root = self.module.computations[name].root
            if self.module.instructions[root].shape == loop.shape:
                yield root

    @cached_property
    def links(self) -> Mapping[str, tuple[str, ...]]:
        """Other names of a value, by name. A loop carries the value, or a collective of several
        arrays moves it.
        """
        same: dict[tuple[str, int], list[str]] = {}
        found: dict[str, set[str]] = {}
        for item in self.module.instructions.values():
            place = self.variable(item.name)
            if place is not None:
                loop, index = place
                key = loop.name, index
                same.setdefault(key, [*self.carried(*key)]).append(item.name)
        for names in same.values():
            for name in names:
                found.setdefault(name, set()).update(names)
        for name, other in self._moved():
            found.setdefault(name, set()).add(other)
            found.setdefault(other, set()).add(name)
        return {name: tuple(sorted(names)) for name, names in found.items()}

    def _moved(self) -> Iterator[tuple[str, str]]:
        """Pairs of a collective's result and its operand, for collectives of several arrays."""
        items = self.module.instructions
        for item in items.values():
            start = self._start(item)
            if start is not None and len(start.operands) > 1:
                at = item.tuple_index or 0
                yield item.name, self.made_by(start.operands[at])
            elif item.opcode == "async-start":
                inner = self.module.called_instructions(item)
                for each in inner:
                    number = each.parameter_number
                    if each.opcode == "parameter" and number is not None:
                        yield each.name, self.made_by(item.operands[number])

    def _start(self, element: Instruction) -> Instruction | None:
        """The collective that makes an element of a tuple; None if no collective makes it."""
        if element.opcode != "get-tuple-element":
            return None
        item = self.module.instructions[element.operands[0]]
        while is_done(item) and item.operands:
            item = self.module.instructions[item.operands[0]]
        is_moved = collective_kind(self.module, item) is not None
        has_it = (element.tuple_index or 0) < len(item.operands)
        return item if is_moved and has_it else None

    def part(self, name: str, index: int) -> str:
        """An operand of the tuple that makes a value; empty if no tuple makes it."""
        whole = self.module.instructions[self.made_by(name)]
        if whole.opcode != "tuple" or index >= len(whole.operands):
            return ""
        return whole.operands[index]

    def upstream(self, names: Iterable[str], through: Iterable[str]) -> Iterator[str]:
        """Some values and those that they are computed from, nearest first. The search goes on
        before a loop if a value is a loop's variable.

        Args:
            through: opcodes of the nodes whose inputs the search follows.
        """
        opcodes = frozenset(through)
        todo = list(names)
        seen: set[str] = set()
        for name in todo:
            if name in seen:
                continue
            seen.add(name)
            yield name
            if self.opcode(name) in opcodes:
                todo += self.inputs[name]
            before = self.before_loop(name)
            if before:
                todo.append(before)

    def looked_at(self, name: str, through: frozenset[str]) -> Iterator[str]:
        """The first `_MOST_STEPS` values of `upstream`, so that time stays linear in the module."""
        return islice(self.upstream((name,), through), _MOST_STEPS)

    def comes_from(
        self, name: str, opcodes: Iterable[str], through: frozenset[str]
    ) -> bool:
        """Whether a node with one of some opcodes is among the values of `looked_at`."""
        seen = map(self.opcode, self.looked_at(name, through))
        return not set(opcodes).isdisjoint(seen)

    def is_gradient(self, name: str) -> bool:
        """Whether a node belongs to the backward pass, by the framework's name of it."""
        return GRADIENT in self.nodes[name].op_name

    def is_weight(self, name: str) -> bool:
        """Whether a value is a parameter of the program, perhaps sliced, gathered or retyped."""
        for each in self.looked_at(name, WEIGHTS):
            item = self.module.instructions[each]
            if item.opcode == "parameter" and item.computation == self.module.entry:
                return True
        return False


def _running(module: Module) -> list[str]:
    """The computations whose instructions run on their own: the entry, bodies and branches."""
    found = [module.entry]
    for name in found:
        for item in module.computations[name].instructions:
            if item.opcode in _BODIES:
                inside = (each for each in item.called if each in module.computations)
                found += [each for each in inside if each not in found]
    return found
