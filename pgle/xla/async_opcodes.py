"""Opcodes of asynchronous operations: which instruction starts one, which waits for it."""

from __future__ import annotations

from pgle.xla.hlo.module import Instruction

GENERIC_OPCODES = ("async-start", "async-update", "async-done")
"""Opcodes that do not say what they wrap."""


def is_start(instruction: Instruction) -> bool:
    """Whether an instruction begins an asynchronous operation: ``…-start``, ``send`` or
    ``recv``.
    """
    opcode = instruction.opcode
    return opcode.endswith("-start") or opcode in ("send", "recv")


def is_done(instruction: Instruction) -> bool:
    """Whether an instruction waits for an asynchronous operation."""
    return instruction.opcode.endswith("-done")
