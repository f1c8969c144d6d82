"""Copies between device and host memory (offload)."""

from __future__ import annotations

from pgle.xla.async_opcodes import GENERIC_OPCODES
from pgle.xla.collectives import collective_kind
from pgle.xla.hlo.module import HOST_MEMORY_SPACE, Instruction, Module, Shape

_OPCODES = {
    *("copy", "copy-start", "copy-done"),
    *GENERIC_OPCODES,
    *("fusion", "dynamic-update-slice"),
}


def is_host_copy(module: Module, instruction: Instruction) -> bool:
    """Whether an operation moves data between device and host memory (offload)."""
    if instruction.opcode not in _OPCODES:
        return False
    inner = module.operation(instruction)
    if collective_kind(module, inner) is not None:
        return False
    return any(map(_on_host, (inner.shape, *module.operand_shapes(inner))))


def crosses_host_link(module: Module, instruction: Instruction) -> bool:
    """Whether an instruction moves data between device and host, also as a send or receive."""
    return is_host_copy(module, instruction) or instruction.is_host_transfer


def _on_host(shape: Shape) -> bool:
    return shape.memory_space == HOST_MEMORY_SPACE or any(
        _on_host(element) for element in shape.elements
    )
