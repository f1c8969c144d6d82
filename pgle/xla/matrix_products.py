"""Which instructions multiply matrices: dots, convolutions, attention and calls of libraries."""

from __future__ import annotations

from pgle.xla.hlo.module import Instruction, Module


def is_attention(instruction: Instruction) -> bool:
    """Whether it calls a fused attention: cuDNN's, Transformer Engine's or any with such a name."""
    target = instruction.custom_call_target.lower()
    return "fmha" in target or "attn" in target or "flash_attention" in target


def is_convolution(instruction: Instruction) -> bool:
    """Whether it is a convolution, cuDNN's too."""
    return (
        instruction.opcode == "convolution" or "$conv" in instruction.custom_call_target
    )


def is_gemm(instruction: Instruction) -> bool:
    """Whether it is a matrix product, or a call of a library for one."""
    if instruction.opcode != "custom-call":
        return instruction.opcode == "dot"
    target = instruction.custom_call_target
    return any(word in target for word in ("cublas", "matmul", "gemm"))


def is_product(module: Module, instruction: Instruction) -> bool:
    """Whether an instruction mostly multiplies matrices.

    True for dots, convolutions, attention and calls of libraries for them, also inside a fusion.
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
