"""Find the instructions that multiply matrices: dots, convolutions, attention and library calls."""

from __future__ import annotations

from pgle.xla.hlo.module import Instruction, Module


def is_attention(instruction: Instruction) -> bool:
    """Whether it calls fused attention: cuDNN's, Transformer Engine's, or any whose name says
    so.
    """
    target = instruction.custom_call_target.lower()
    return "fmha" in target or "attn" in target or "flash_attention" in target


def is_convolution(instruction: Instruction) -> bool:
    """Whether it is a convolution, also a call of cuDNN."""
    return (
        instruction.opcode == "convolution" or "$conv" in instruction.custom_call_target
    )


def is_gemm(instruction: Instruction) -> bool:
    """Whether it is a matrix product, also a call of a library."""
    if instruction.opcode != "custom-call":
        return instruction.opcode == "dot"
    target = instruction.custom_call_target
    return any(word in target for word in ("cublas", "matmul", "gemm"))


def is_product(module: Module, instruction: Instruction) -> bool:
    """Whether an instruction multiplies matrices.

    True for dots, convolutions and attention, as library calls and inside a fusion, too.
    """
    opcode = instruction.opcode
    if opcode in ("fusion", "async-start", "call"):
        called = module.called_instructions(instruction)
        return any(is_product(module, item) for item in called)
    if opcode == "custom-call":
        return (
            is_gemm(instruction)
            or is_convolution(instruction)
            or is_attention(instruction)
        )
    return opcode in ("dot", "convolution")
