"""State of loops that a cast leaves in f32, and what a program computes from it.

A cast changes what a loss takes: parameters and data. A loop may begin with an array that the loss
makes itself, such as ``jnp.zeros((batch, width))``. JAX keeps that array's type in all iterations,
and promotes what is computed with it: a product of an f32 state and bf16 weights is one of f32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from pgle.account.levers.flow import RESHAPED, WEIGHTS, Flow
from pgle.xla.hlo.module import Instruction

_CONSTANT = RESHAPED.union(("broadcast",))
"""Opcodes between a constant and an array that is filled with it."""

_MOVED = WEIGHTS.union(("concatenate",))
"""Opcodes between a value and a product of it. XLA joins products that share an input, and puts
their other inputs side by side.
"""

_WIDE = "f32"


class Carried:
    """What stays in f32 because a loop of the forward pass begins with constants.

    HLO does not tell ``jnp.zeros(shape)`` from ``jnp.zeros(shape, x.dtype)``, which a cast changes.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self.loops: set[str] = set()
        """The loops with such a state."""
        self.values: set[str] = set()
        """The values that stay in f32, by the names of their makers (`Flow.made_by`)."""
        self.products: set[str] = set()
        """The products that multiply in f32. XLA may write the result in 16 bits."""
        self.weights: set[str] = set()
        """Weights that these products take. They are cast all the same, and then promoted."""
        starts = list(self._states())
        known = -1
        # which products multiply in f32 depends on weights that are found later
        while known != len(self.weights):
            known = len(self.weights)
            self._follow(starts)

    def _states(self) -> Iterator[str]:
        """The names of each state that begins with constants."""
        flow = self._flow
        for loop in flow.module.walk():
            if loop.opcode != "while":
                continue
            for index, shape in enumerate(loop.shape.elements):
                is_array = shape.dtype == _WIDE and bool(shape.dimensions)
                if is_array and self._begins_with_constants(loop, index):
                    self.loops.add(loop.name)
                    yield from flow.carried(loop.name, index)

    def _begins_with_constants(self, loop: Instruction, index: int) -> bool:
        """Whether a loop's variable is such a state. An array that the loop fills row by row is
        none: it has the type of its rows. Sums of gradients have the type of what they are
        gradients of.
        """
        flow = self._flow
        start, *results = flow.carried(loop.name, index)
        if not results or not self._is_constant(start):
            return False
        for name in results:
            made = self._made(name)
            is_computed = flow.opcode(made) not in ("", "dynamic-update-slice")
            if not is_computed or flow.is_gradient(made):
                return False
        return True

    def _made(self, name: str) -> str:
        """The maker of a value before it is put in another order."""
        while self._flow.opcode(name) in RESHAPED:
            name = self._flow.inputs[name][0]
        return name

    def _is_constant(self, name: str) -> bool:
        flow = self._flow
        ends = [
            each
            for each in flow.looked_at(name, _CONSTANT)
            if flow.opcode(each) not in _CONSTANT
        ]
        return bool(ends) and all(flow.opcode(each) == "constant" for each in ends)

    def _follow(self, starts: Iterable[str]) -> None:
        """Add some values, and what is computed from them."""
        flow = self._flow
        todo = list(starts)
        self.values = set(todo)
        for name in todo:
            found = list(flow.links.get(name, ()))
            for user in flow.users.get(name, ()):
                found += self._of_user(user)
            for each in found:
                if each not in self.values and flow.shape(each).dtype == _WIDE:
                    self.values.add(each)
                    todo.append(each)

    def _of_user(self, user: str) -> Iterator[str]:
        """What stays in f32 because an operation has an input in f32."""
        flow = self._flow
        if not self._is_product(user):
            yield user
        elif not flow.is_gradient(user):
            self.products.add(user)
            yield user
            for name in filter(self._is_weight, flow.inputs[user]):
                self.weights.update(self._origins(name))
        elif self._multiplies_in_f32(user):
            self.products.add(user)
            kept = self._kept(user)
            # else it is the gradient of weights, which has their type
            if not kept or any(map(self._is_weight, kept)):
                yield user

    def _multiplies_in_f32(self, gradient: str) -> bool:
        """Whether a product of the backward pass with an input in f32 is one of f32.

        It multiplies a gradient by a value of the forward pass, in the type that this value had in
        the product there.
        """
        flow = self._flow
        kept = self._kept(gradient) or flow.inputs[gradient]
        if not self.values.isdisjoint(kept):
            return True
        weights = filter(self._is_weight, kept)
        origins = chain.from_iterable(map(self._origins, weights))
        return not self.weights.isdisjoint(origins)

    def _kept(self, product: str) -> list[str]:
        """The inputs of a product that are parameters or come from the forward pass."""
        return [
            name
            for name in self._flow.inputs[product]
            if self._is_of_forward_pass(name)
        ]

    def _is_product(self, name: str) -> bool:
        return name in self._flow.products or name in self._flow.convolutions

    def _is_of_forward_pass(self, name: str) -> bool:
        """Whether a value, or a part of it, is a parameter or was computed in the forward pass."""
        flow = self._flow
        return any(
            self._is_parameter(each)
            or (each in flow.nodes and not flow.is_gradient(each))
            for each in self._origins(name)
        )

    def _is_weight(self, name: str) -> bool:
        """Whether a value is a parameter of the program, or several ones side by side."""
        return all(map(self._is_parameter, self._origins(name)))

    def _is_parameter(self, name: str) -> bool:
        item = self._flow.module.instructions[name]
        is_of_entry = item.computation == self._flow.module.entry
        return is_of_entry and item.opcode == "parameter"

    def _origins(self, name: str) -> Iterator[str]:
        """The values that are moved to make a value."""
        flow = self._flow
        todo = [name]
        seen: set[str] = set()
        for each in todo:
            if each in seen:
                continue
            seen.add(each)
            opcode = flow.opcode(each)
            if flow.variable(each) is not None:
                todo.append(self._of_variable(each))
            elif opcode in _MOVED:
                # the others say where a slice begins
                count = None if opcode == "concatenate" else 1
                todo += flow.inputs[each][:count]
            else:
                yield each

    def _of_variable(self, name: str) -> str:
        """What makes a loop's variable: before the loop, or in it if that is a gradient."""
        flow = self._flow
        found = flow.variable(name)
        if found is None:
            return name
        loop, index = found
        start, *results = flow.carried(loop.name, index)
        for each in map(self._made, results):
            if each in flow.nodes and flow.is_gradient(each):
                return each
        return start
