"""Find the collectives of a module: their kind, and the number of devices in a group.

The opcode and the called computation decide, not the name: names follow JAX primitives since jaxlib
0.8.0 (``psum.14`` may be a gather), and the generic ``async-start`` does not say what it wraps.
"""

from __future__ import annotations

from collections.abc import Iterator

from pgle.xla.async_opcodes import GENERIC_OPCODES, is_done, is_start
from pgle.xla.collective_kinds import KIND_OF_OPCODE
from pgle.xla.hlo.module import Instruction, Module, backend_config


def is_collective_opcode(opcode: str) -> bool:
    """Whether an opcode is a collective, or an asynchronous operation that may wrap one."""
    return opcode in KIND_OF_OPCODE or opcode in GENERIC_OPCODES


def collective_kind(module: Module, instruction: Instruction) -> str | None:
    """Return the kind of a collective or of its start or done: one of `COLLECTIVES`, or None.

    An ``async-start`` has the kind that it wraps. A custom fusion with a collective in it (a slice
    fused into a reduce-scatter) has that kind. Transfers to and from the host are not collectives.
    """
    if instruction.is_host_transfer:
        return None
    kind = KIND_OF_OPCODE.get(instruction.opcode)
    if kind is not None:
        return kind
    if instruction.opcode in GENERIC_OPCODES:
        wrapped = module.wrapped(instruction)
        return None if wrapped is None else collective_kind(module, wrapped)
    if instruction.opcode == "fusion" and instruction.fusion_kind == "kCustom":
        for inner in module.called_instructions(instruction):
            if inner.opcode in KIND_OF_OPCODE:
                return KIND_OF_OPCODE[inner.opcode]
    return None


def is_sync(module: Module, instruction: Instruction) -> bool:
    """Whether a collective overlaps nothing: no start, or a start with ``is_sync`` in its config.

    Up to jaxlib 0.11.0, XLA keeps a synchronous collective as a start and a done with that
    attribute. Later releases rewrite it to the plain operation, with a new name.
    """
    if not is_start(instruction):
        return True
    config = backend_config(instruction).get("collective_backend_config")
    return isinstance(config, dict) and config.get("is_sync") is True


def group_size(module: Module, instruction: Instruction) -> int:
    """Return the number of devices in the largest group of a collective.

    Without groups, the collective joins all devices of the module.
    """
    wrapped = module.operation(instruction)
    groups = wrapped.replica_groups or instruction.replica_groups
    if groups:
        return max(len(group) for group in groups)
    pairs = wrapped.source_target_pairs or instruction.source_target_pairs
    devices: set[int] = set()
    for pair in pairs:
        devices.update(pair)
    return len(devices) or module.num_devices


def walk_collectives(module: Module) -> Iterator[tuple[Instruction, str]]:
    """Yield each collective of a module once, with its kind.

    An asynchronous collective is yielded as its start, not as its update, done or wrapped
    operation.
    """
    wrapping: set[str] = set()
    for item in module.walk():
        if item.opcode in GENERIC_OPCODES:
            wrapping.update(item.called)
    for computation in module.computations.values():
        if computation.is_fusion or computation.name in wrapping:
            continue
        for item in computation.instructions:
            if is_done(item) or item.opcode == "async-update":
                continue
            kind = collective_kind(module, item)
            if kind is not None:
                yield item, kind
