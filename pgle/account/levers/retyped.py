"""A module as it would be if the values around some products had 16 bits instead of 32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import cycle

from pgle.account.levers.carried import Carried
from pgle.account.levers.flow import RESHAPED, Flow
from pgle.account.levers.softmax import followed
from pgle.xla.collectives import collective_kind
from pgle.xla.hlo.module import Instruction, Module, Shape

_WIDE, _NARROW = "f32", "bf16"

_GATHERED = RESHAPED.union(("all-gather", "all-gather-start", "all-gather-done"))
"""Opcodes between the new state and the program's results."""

_OF_MANY = frozenset(
    ("all-gather", "all-gather-start", "all-gather-done", "all-reduce", "async-start"),
).union(
    ("all-reduce-start", "all-reduce-done", "async-done", "custom-call", "dot"),
    ("convolution", "gather", "scatter", "sort", "while", "conditional"),
    ("collective-permute", "collective-permute-start", "collective-permute-done"),
    ("dynamic-update-slice", "opt-barrier", "reverse", "all-to-all"),
)
"""Opcodes whose result may have the size of an input, but is not computed element by element."""


_KEPT = RESHAPED.union(("dynamic-slice", "dynamic-update-slice"))
"""Opcodes by which a loop keeps values for the backward pass."""


class Retyped:
    """The changes to a program whose parameters and activations are cast before some products.

    All f32 values change that are connected to the products. Parameters of the program keep their
    type, and a kernel casts each. Kernels that update parameters stay the same.

    Args:
        products: nodes of the f32 products that get 16-bit inputs.
        carried: what keeps 32 bits all the same; None: nothing.
    """

    def __init__(
        self, flow: Flow, products: Iterable[str], carried: Carried | None = None
    ) -> None:
        self._flow = flow
        self._carried = carried
        self._before = flow.module
        entry = flow.module.entry_computation
        self._parameters = {item.name for item in entry.parameters}
        self._updates = self._of_updates()
        self._updating = {flow.kernel[name] for name in self._updates}
        self._narrow = self._joined(products)

    @property
    def casts(self) -> Sequence[Instruction]:
        """The program's parameters that are cast."""
        names = sorted(self._narrow & self._parameters)
        return [self._before.instructions[name] for name in names]

    @property
    def cast_whole(self) -> Sequence[Instruction]:
        """The members of `casts` that are used other than by a lookup of rows."""
        found = []
        for item in self.casts:
            users = {*self._flow.users.get(item.name, ())} - self._updates
            if any(self._flow.opcode(user) != "gather" for user in users):
                found.append(item)
        return found

    @property
    def promotions(self) -> Iterator[tuple[str, Instruction]]:
        """Products, and conversions of their inputs to f32 that are kernels of their own. cuBLAS
        converts nothing, and no other kernel computes the input, not even before the loop.
        """
        flow = self._flow
        wide = () if self._carried is None else self._carried.products
        for product in sorted(wide):
            if flow.kernel[product] != product:
                continue  # a fusion converts what it multiplies
            own = self._before.instructions[product].operands
            for name, before in zip(
                self.module.instructions[product].operands, own, strict=True
            ):
                made_by = flow.made_by(before)
                start = flow.before_loop(made_by) or made_by
                is_given = start not in flow.nodes
                if is_given and name not in self._before.instructions:
                    yield product, self.module.instructions[name]

    @cached_property
    def _cast_names(self) -> Mapping[str, str]:
        """The name of a parameter's cast, by parameter."""
        return {item.name: _cast_name(item.name) for item in self.casts}

    @cached_property
    def kernels(self) -> Mapping[str, Instruction]:
        """By name, the kernels of `module` with an input or a result of another type."""
        found = {}
        for name in dict.fromkeys(self._flow.kernel.values()):
            after = self.module.instructions[name]
            before = self._before.instructions[name]
            if _shapes(self.module, after) != _shapes(self._before, before):
                found[name] = after
        return found

    @cached_property
    def module(self) -> Module:
        """The module with the new types."""
        before = self._before
        computations = {}
        for name, computation in before.computations.items():
            callers = before.callers.get(name, ())
            updates = any(item.name in self._updating for item in callers)
            items: list[Instruction] = []
            for item in computation.instructions:
                is_update = updates or item.name in self._updating
                found = self._retyped(item, updates=is_update)
                items += self._of_one_type(found)
            if name == before.entry:
                items += map(_cast, self.casts)
            computations[name] = replace(computation, instructions=tuple(items))
        return replace(before, computations=computations)

    def _retyped(self, item: Instruction, *, updates: bool) -> Instruction:
        """An instruction with its new types.

        Args:
            updates: whether it is in a kernel that updates state, and so reads uncast state.
        """
        if item.name in self._parameters:
            return item
        operands = item.operands
        if not updates:
            operands = tuple(map(self._cast_names.get, operands, operands))
        shape = item.shape
        if shape.elements:
            shape = self._of_tuple(item)
        elif shape.dtype == _WIDE and self._is_narrow(item.name, updates=updates):
            shape = replace(shape, dtype=_NARROW)
        return replace(item, shape=shape, operands=operands)

    def _of_one_type(self, item: Instruction) -> Iterator[Instruction]:
        """An instruction, after conversions of the operands of a product if their types differ. XLA
        fuses such a conversion.
        """
        flow = self._flow
        is_product = item.name in flow.products or item.name in flow.convolutions
        if not is_product or self._carried is None:
            yield item
            return
        is_wide = item.name in self._carried.products
        is_narrow = item.name in self._narrow and not is_wide
        dtype = _NARROW if is_narrow else _WIDE
        operands = []
        before = self._before.instructions[item.name].operands
        for name, own in zip(item.operands, before, strict=True):
            value = self._before.instructions[own]
            is_other = self._is_narrow(own, updates=False) is not is_narrow
            if value.shape.dtype == _WIDE and is_other:
                convert = _convert(value, dtype, item)
                yield convert
                name = convert.name
            operands.append(name)
        yield replace(item, operands=tuple(operands))

    def _is_narrow(self, name: str, *, updates: bool) -> bool:
        made_by = self._flow.made_by(name)
        if made_by in self._parameters and updates:
            return False
        return made_by in self._narrow

    def _of_tuple(self, item: Instruction) -> Shape:
        """The shape of a tuple with its new types. The state of a loop keeps its types, since its
        tuple costs no time.
        """
        if collective_kind(self._before, item) or item.opcode == "async-start":
            return self._of_collective(item)
        fused = self._before.fused(item)
        makes: Sequence[str] = ()
        if fused is not None:
            makes = self._before.instructions[fused.root].operands
        elif item.opcode == "custom-call":
            makes = (item.name,)
        arrays = list(item.shape.elements)
        for at, name in enumerate(makes[: len(arrays)]):
            is_wide = arrays[at].dtype == _WIDE
            if is_wide and self._is_narrow(name, updates=False):
                arrays[at] = replace(arrays[at], dtype=_NARROW)
        return replace(item.shape, elements=tuple(arrays))

    def _of_collective(self, item: Instruction) -> Shape:
        """The shape of a collective. Each operand has one or two arrays in it, of its own type."""
        narrow = [self._is_narrow(name, updates=False) for name in item.operands]
        in_turn = cycle(narrow or [False])

        def retyped(shape: Shape) -> Shape:
            if shape.elements:
                elements = tuple([retyped(each) for each in shape.elements])
                return replace(shape, elements=elements)
            is_narrow = next(in_turn)
            if shape.dtype == _WIDE and is_narrow:
                return replace(shape, dtype=_NARROW)
            return shape

        return retyped(item.shape)

    def _of_updates(self) -> set[str]:
        """Nodes that compute new state from the old one, element by element."""
        flow = self._flow
        after = self._alike(self._parameters, flow.users)
        before = self._alike(self._results(), flow.inputs)
        found = after & before - self._parameters
        return {name for name in found if flow.opcode(name) not in RESHAPED}

    def _results(self) -> Iterator[str]:
        """The values that the program returns, also before they are gathered."""
        flow = self._flow
        root = self._before.entry_computation.root
        made_by = flow.made_by(root)
        item = self._before.instructions[made_by]
        results = item.operands if item.opcode == "tuple" else (made_by,)
        yield from flow.upstream(map(flow.made_by, results), _GATHERED)

    def _alike(
        self, names: Iterable[str], near: Mapping[str, Sequence[str]]
    ) -> set[str]:
        """Values that are connected to some others by element-wise operations.

        Args:
            near: the neighbours to follow, by name.
        """
        flow = self._flow
        todo = list(names)
        seen = set(todo)
        for name in todo:
            if name in flow.nodes and flow.opcode(name) in _OF_MANY:
                continue
            for other in near.get(name, ()):
                is_same = flow.elements(other) == flow.elements(name)
                if other not in seen and is_same and flow.opcode(other) not in _OF_MANY:
                    seen.add(other)
                    todo.append(other)
        return seen

    def _joined(self, products: Iterable[str]) -> set[str]:
        """Values that f32 values connect to some products, except those of a softmax."""
        flow = self._flow
        todo = list(products)
        stays = set(self._updates)
        if self._carried is not None:
            stays |= self._carried.values
            todo = [name for name in todo if name not in stays]
            todo += self._carried.weights - stays
        ends, wide = self._of_softmax(todo)
        wide |= stays
        seen = set(todo)
        for name in todo:
            if name in ends:
                continue
            for near in self._near(name):
                is_new = near not in seen and near not in wide
                if is_new and flow.shape(near).dtype == _WIDE:
                    seen.add(near)
                    todo.append(near)
        return seen

    def _of_softmax(self, products: Iterable[str]) -> tuple[set[str], set[str]]:
        """The values computed from the exponentials of a softmax: those that products take, and all
        others.
        """
        flow = self._flow
        after: set[str] = set()
        for name in products:
            size = flow.products.get(name)
            if size is not None:
                found = followed(flow, name, size)
                if found.exponential and found.reduced:
                    after.update(found.after)
        ends = {
            name
            for name in after
            if any(user in flow.products for user in flow.users.get(name, ()))
        }
        wide = after - ends
        todo = list(wide)
        for name in todo:
            near = [*flow.links.get(name, ()), *flow.users.get(name, ())]
            for other in near:
                is_kept = flow.opcode(other) in _KEPT or other not in flow.nodes
                if is_kept and other not in wide and other not in ends:
                    wide.add(other)
                    todo.append(other)
        return ends, wide

    def _near(self, name: str) -> Iterator[str]:
        flow = self._flow
        yield from flow.links.get(name, ())
        inputs = flow.inputs.get(name, ())
        is_one = len(inputs) < 2
        if is_one or collective_kind(self._before, flow.nodes[name]) is None:
            yield from inputs
            yield from flow.users.get(name, ())


def _shapes(module: Module, kernel: Instruction) -> list[Shape]:
    """The shapes of a kernel's result and operands; for an asynchronous one, of its inner
    operation.
    """
    inner = module.operation(kernel)
    return [inner.shape, *module.operand_shapes(inner)]


def _cast_name(name: str) -> str:
    return f"{name} in 16 bits"


def _convert(value: Instruction, dtype: str, user: Instruction) -> Instruction:
    return Instruction(
        name=f"{value.name} as {user.name} takes it",
        opcode="convert",
        shape=replace(value.shape, dtype=dtype),
        computation=user.computation,
        operands=(value.name,),
    )


def _cast(parameter: Instruction) -> Instruction:
    shape = replace(parameter.shape, dtype=_NARROW)
    return Instruction(
        name=_cast_name(parameter.name),
        opcode="convert",
        shape=shape,
        computation=parameter.computation,
        operands=(parameter.name,),
    )
