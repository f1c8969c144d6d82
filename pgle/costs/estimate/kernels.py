"""What one compute instruction takes: matrix products as XLA measured them, the rest by a roofline of its shapes."""

from __future__ import annotations

from math import prod

from pgle.costs.estimate.products import attention_operations, first_array, matmul_us, matmuls, operand_shape
from pgle.xla.hardware import (
    ATTENTION_EFFICIENCY,
    KERNEL_US,
    MEMORY_EFFICIENCY,
    PCIE_EFFICIENCY,
    Hardware,
)
from pgle.xla.hlo.module import HOST_MEMORY_SPACE, Computation, Instruction, Module, Shape

_SLICES = ("dynamic-slice", "slice", "gather")
_MOVES = frozenset(
    ("parameter", "constant", "broadcast", "bitcast", "reshape", "transpose", "copy", "tuple", "get-tuple-element",
     "iota", "slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad", "gather", "dot", "convolution",
     "fusion")
)  # fmt: skip


def compute_us(module: Module, instruction: Instruction, hardware: Hardware) -> float:
    """Microseconds of one execution of a compute instruction: the larger of arithmetic and memory time.

    Args:
        module: holds it; fused computations are looked into.
        instruction: a fusion, dot, custom call, copy or any other op with a kernel.
    """
    products = sum(matmul_us(item, hardware) for item in matmuls(module, instruction))
    products += attention_operations(module, instruction) / (hardware.tflops["f16"] * ATTENTION_EFFICIENCY * 1e6)
    pointwise = pointwise_operations(module, instruction) / (hardware.tflops["f32"] / 2 * 1e6)
    device, host = bytes_accessed(module, instruction)
    memory = device / (hardware.memory_gb_s * MEMORY_EFFICIENCY * 1e3)
    link = host / (hardware.pcie_gb_s * PCIE_EFFICIENCY * 1e3)
    return max(products + pointwise, KERNEL_US + max(pointwise, memory, link))


def pointwise_operations(module: Module, instruction: Instruction) -> int:
    """Elements that the ops of a fusion compute one by one; each counts as one operation, transcendental or not."""
    fused = _fused(module, instruction)
    return sum(
        prod(_widest(module, item)) for item in (fused.instructions if fused else ()) if item.opcode not in _MOVES
    )


def _widest(module: Module, item: Instruction) -> tuple[int, ...]:
    """The dimensions that an op loops over: of a reduction those of what it reduces."""
    shape = operand_shape(module, item, 0) if item.opcode in ("reduce", "reduce-window") else None
    return (shape or item.shape).dimensions


def bytes_accessed(module: Module, instruction: Instruction) -> tuple[int, int]:
    """Bytes that an instruction must move: (device memory, host memory).

    Operands count once, those of which only slices are read by the slices; an update in place counts by the update.
    """
    fused = _fused(module, instruction)
    partly = _read_in_part(fused) if fused is not None else {}
    sizes: list[tuple[int, Shape]] = []
    if instruction.opcode in _SLICES:
        sizes += [(2 * instruction.shape.size_bytes, instruction.shape)]
    elif instruction.opcode == "dynamic-update-slice":
        update = operand_shape(module, instruction, 1)
        sizes += [(2 * update.size_bytes, instruction.shape)] if update is not None else []
    else:
        sizes += [(_written(fused, instruction), first_array(instruction.shape) or instruction.shape)]
        seen: set[str] = set()
        for index, name in enumerate(instruction.operands):
            operand = module.instructions.get(name)
            if operand is None or name in seen or operand.shape.dtype in ("token", "tuple"):
                continue
            seen.add(name)
            whole = operand.shape.size_bytes
            sizes.append((min(partly.get(index, whole), whole), operand.shape))
    device = sum(size for size, shape in sizes if shape.memory_space != HOST_MEMORY_SPACE)
    host = sum(size for size, shape in sizes if shape.memory_space == HOST_MEMORY_SPACE)
    return device, host


def _fused(module: Module, instruction: Instruction) -> Computation | None:
    if instruction.opcode != "fusion" or not instruction.called:
        return None
    return module.computations.get(instruction.called[0])


def _read_in_part(fused: Computation) -> dict[int, int]:
    """Bytes read of the parameters of a fusion that only slices and updates in place touch, by parameter number."""
    numbers = {item.name: item.parameter_number for item in fused.instructions if item.opcode == "parameter"}
    read = {number: 0 for number in numbers.values() if number is not None}
    for item in fused.instructions:
        for position, name in enumerate(item.operands):
            number = numbers.get(name)
            if number is None or number not in read:
                continue
            if position == 0 and item.opcode in _SLICES:
                read[number] += item.shape.size_bytes
            elif position != 0 or item.opcode != "dynamic-update-slice":
                del read[number]
    return read


def _written(fused: Computation | None, instruction: Instruction) -> int:
    """Bytes written: of a fusion that updates its operand in place only the update."""
    if fused is None:
        return instruction.shape.size_bytes
    by_name = {item.name: item for item in fused.instructions}
    roots = [by_name[fused.root]] if fused.root in by_name else []
    if roots and roots[0].opcode == "tuple":
        roots = [by_name[name] for name in roots[0].operands if name in by_name]
    if not roots:
        return instruction.shape.size_bytes
    written = 0
    for root in roots:
        while root.opcode == "bitcast" and root.operands[0] in by_name:
            root = by_name[root.operands[0]]
        update = by_name.get(root.operands[1]) if root.opcode == "dynamic-update-slice" else None
        written += (update or root).shape.size_bytes
    return written
