"""What kind of operation an instruction is by its HLO, and which custom calls launch nothing."""

from __future__ import annotations

from pgle.xla.collectives import collective_kind
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.matrix_products import is_product

FREE_TARGETS = frozenset(
    (
        "AllocateBuffer",
        "Sharding",
        "annotate_device_placement",
        "MoveToHost",
        "MoveToDevice",
    )
)
"""Custom calls that launch nothing."""


def kind_of(module: Module, instruction: Instruction) -> str:
    """Return the label of an instruction in a picture.

    It is the kind of a collective, ``matmul``, or the opcode of the operation that it runs.
    """
    kind = collective_kind(module, instruction)
    if kind is not None:
        return kind
    if is_product(module, instruction):
        return "matmul"
    operation = module.operation(instruction)
    return operation.opcode.removesuffix("-start")
