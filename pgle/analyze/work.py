"""What one instruction computes and moves, how fast the GPU could do it at best, and what its kernels multiplied in.

The HLO says what was asked for; which kernel came of it is the library's choice, and its name says it. Examples, as
NVIDIA's profilers show them: ``ampere_sgemm_128x64_tn``, ``ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_tn``,
``sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_…``, ``cutlass_80_simt_sgemm_…``, ``nvjet_tst_128x256_64x4_1x2_h_bz_TNT``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
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


@dataclass(frozen=True, slots=True)
class Multiplied:
    """How one kernel multiplies."""

    kernel: str  # its name
    dtype: str  # of the factors as the hardware took them, ``tf32`` of f32 ones that it rounded; empty where unknown
    tensor_cores: bool  # whether they went through the Tensor Cores


_SIMT = re.compile(r"ffma|_simt_|(?:^|_)(?:[sdhc]|fp16_s)gemm|convolve_[sdh]gemm")
"""CUDA cores: cuBLAS' and cuDNN's old names, CUTLASS' ``simt``, and ``ffma`` in newer names."""

_XMMA = re.compile(r"xmma_\w*?_(?P<in>[a-z]+\d+(?:m\d)?)[a-z]+\d+(?:m\d)?_(?P<by>[a-z]+\d+(?:m\d)?)[a-z]+\d+_")
"""``…_f32f32_tf32f32_f32_…``: types of both factors, then what they are multiplied in and added up in."""

_SHAPED = re.compile(r"(?:^|_)(?P<add>[a-z])(?:\d{3,6}|\d+x\d+x\d+)(?:\w{2,4})?(?:gemm|fprop|dgrad|wgrad|cudnn)")
"""``s16816gemm``: type of the sum and shape of the Tensor Core's instruction."""

_NVJET = re.compile(r"nvjet_(?:sm\d+_)?(?P<of>[a-z])[a-z]{2,4}_(?P<tf32>tf32_)?")
_NVJET_TYPES = {"t": "bf16", "h": "f16", "q": "f8", "s": "f32", "d": "f64"}
"""First letter of what follows ``nvjet``: type of the first factor."""

_WARP = re.compile(r"w?gmma|hmma|flash_(?:fwd|bwd)|fmha|tensorop")
_TYPES = {"bf16": "bf16", "fp16": "f16", "f16": "f16", "e4m3": "f8", "e5m2": "f8", "tf32": "tf32", "i8": "s8"}


def multiplied(kernel: str) -> Multiplied | None:
    """What a kernel's name says; None if it says nothing, as names of XLA's own kernels."""
    if _SIMT.search(kernel):
        is_double = re.search(r"(?:^|_)dgemm|_f64", kernel) is not None
        return Multiplied(kernel, "f64" if is_double else "f16" if re.search(r"(?:^|_)hgemm", kernel) else "f32", False)
    if match := _XMMA.search(kernel):
        found = {"e4": "f8", "e5": "f8"}.get(match["by"][:2], match["by"])
        return Multiplied(kernel, {"i8": "s8", "u8": "u8"}.get(found, found), found != "f32")
    if match := _NVJET.match(kernel):
        dtype = "tf32" if match["tf32"] else _NVJET_TYPES.get(match["of"], "")
        return Multiplied(kernel, dtype, dtype != "f32")
    if match := _SHAPED.search(kernel):
        named = next((dtype for word, dtype in _TYPES.items() if word in kernel), "")
        plain = {"h": "f16", "s": "tf32", "d": "f64", "i": "s8"}
        return Multiplied(kernel, named or plain.get(match["add"], ""), True)
    return Multiplied(kernel, "", True) if _WARP.search(kernel) else None


def slowest(kernels: Iterable[str]) -> Multiplied | None:
    """What the kernels of one instruction multiplied in: those off the Tensor Cores count before others."""
    found = [item for kernel in sorted(kernels) if (item := multiplied(kernel)) is not None]
    return min(found, key=lambda item: (item.tensor_cores, not item.dtype), default=None)


@dataclass(frozen=True, slots=True)
class Products:
    """Matrix products, convolutions and attention of one type."""

    dtype: str  # they were computed in
    tensor_cores: bool  # whether there
    us: float  # GPU time of the kernels that hold them, in a step
    flops: float  # in a step; 0 without HLO
    peak_tflops: float | None  # of the GPU; None without hardware
    # the part of `us` of which the kernels' names say it; of the rest it is what the HLO asks for
    named_us: float = 0.0

    @property
    def tflops(self) -> float:
        """10^12 operations per second while they run; 0 where unknown."""
        return self.flops / self.us / 1e6 if self.us > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Multiplying:
    """One instruction as `find_products` counts it."""

    us: float  # its time in a step
    count: float  # executions in a step
    asked: Work | None  # of its HLO; None without
    ran: Multiplied | None  # by its kernels' names; None where they do not say

    @property
    def tensor_cores(self) -> bool | None:
        """Whether it multiplied there: as its kernels' names say, else as its HLO asks; None where it is no product."""
        if self.ran is not None:
            return self.ran.tensor_cores
        return None if self.asked is None else self.asked.tensor_cores

    @property
    def dtype(self) -> str:
        """The type it multiplied in."""
        asked = self.asked.dtype if self.asked is not None else ""
        return (self.ran.dtype if self.ran is not None else "") or asked or "an unknown type"


def find_products(ran: Iterable[Multiplying], hardware: Hardware | None) -> tuple[Products, ...]:
    """What ran by type and unit, the one that takes longest first; instructions that multiply nothing are left out."""
    groups: dict[tuple[str, bool], list[Multiplying]] = defaultdict(list)
    for item in ran:
        if item.tensor_cores is not None:
            groups[item.dtype, item.tensor_cores].append(item)
    found = [_products(*key, items, hardware) for key, items in groups.items()]
    return tuple(sorted(found, key=lambda item: (-item.us, item.dtype)))


def _products(dtype: str, tensor_cores: bool, items: Sequence[Multiplying], hardware: Hardware | None) -> Products:
    peak = None if hardware is None else hardware.peak_tflops(dtype) if tensor_cores else hardware.tflops["f32"]
    return Products(
        dtype,
        tensor_cores,
        us=sum(item.us for item in items),
        flops=sum(item.count * item.asked.flops for item in items if item.asked is not None),
        peak_tflops=peak,
        named_us=sum(item.us for item in items if item.ran is not None),
    )
