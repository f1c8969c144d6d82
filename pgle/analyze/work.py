"""What one instruction computes and moves, and how fast the GPU could do it at best."""

from __future__ import annotations

from dataclasses import dataclass

from pgle.costs.estimate.kernels import bytes_accessed, pointwise_operations
from pgle.costs.estimate.products import attention_operations, matmuls
from pgle.xla.hardware import Hardware, dtype_family
from pgle.xla.hlo.module import Instruction, Module, backend_config

_EXACT = frozenset(("HIGHEST", "HIGH"))  # precisions at which XLA computes f32 products without TF32


@dataclass(frozen=True, slots=True)
class Work:
    """One execution of an instruction."""

    flops: float  # multiplications and additions of matrix products, convolutions and attention
    other_operations: float  # elements computed one by one
    bytes: int  # moved between the kernel and device memory, each operand once
    dtype: str = ""  # of the matrix products; empty where there are none
    tensor_cores: bool | None = None  # whether its type and precision let the products run there; None without products

    def peak_tflops(self, hardware: Hardware) -> float:
        """What the GPU does at best of these products."""
        return hardware.peak_tflops(self.dtype) if self.tensor_cores else hardware.tflops["f32"]

    def roofline_us(self, hardware: Hardware) -> float:
        """The larger of arithmetic and memory time, at the peaks of the data sheet."""
        arithmetic = self.flops / self.peak_tflops(hardware) / 1e6 if self.flops else 0.0
        arithmetic += self.other_operations / (hardware.tflops["f32"] / 2) / 1e6
        return max(arithmetic, self.bytes / hardware.memory_gb_s / 1e3)


def work_of(module: Module, instruction: Instruction) -> Work:
    """What one execution of a compute instruction does, by its shapes."""
    products = list(matmuls(module, instruction))
    flops = sum(item.operations for item in products)
    attention = attention_operations(module, instruction)
    dtype = max(products, key=lambda item: item.operations).dtype if products else "bf16" if attention else ""
    return Work(
        flops=flops + attention,
        other_operations=pointwise_operations(module, instruction),
        bytes=bytes_accessed(module, instruction)[0],
        dtype=dtype,
        tensor_cores=_fits_tensor_cores(module, instruction, dtype) if dtype else None,
    )


def _fits_tensor_cores(module: Module, instruction: Instruction, dtype: str) -> bool:
    """Half and smaller types always do; f32 as TF32, unless the program asks for its full precision."""
    family = dtype_family(dtype)
    return family != "f32" and not (family == "tf32" and _is_exact(module, instruction))


def _is_exact(module: Module, instruction: Instruction) -> bool:
    config = backend_config(instruction)
    gemm = config.get("gemm_backend_config", config)
    precision = gemm.get("precision_config", {}) if isinstance(gemm, dict) else {}
    asked = precision.get("operand_precision", []) if isinstance(precision, dict) else []
    names = (instruction, *(item for name in instruction.called if name in module.computations
                            for item in module.computations[name].instructions))  # fmt: skip
    return any(item in _EXACT for item in asked) or any("precision=Precision.HIGH" in item.op_name for item in names)
