"""A measured step by layer and source line: the work of each instruction, and its share of the
GPU's peak.

The HLO has the product that the program asks for. The library chooses the kernel, whose name shows
the type and unit. Examples, as NVIDIA's profilers show them: ``ampere_sgemm_128x64_tn``,
``ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_tn``, ``sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_…``,
``cutlass_80_simt_sgemm_…``, ``nvjet_tst_128x256_64x4_1x2_h_bz_TNT``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pgle.analyze.collectives import MeasuredCollective
from pgle.costs.estimate.estimate import bytes_accessed, pointwise_operations
from pgle.costs.estimate.products import attention_operations, matmuls
from pgle.costs.profile.value import Cost, has_remat
from pgle.xla.hlo.module import Instruction, Module, backend_config
from pgle.xla.targets import Hardware, dtype_family

# with these precisions, XLA computes f32 products without TF32
_EXACT = frozenset(("HIGHEST", "HIGH"))


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one execution of an instruction."""

    flops: float  # multiplications and additions of matrix products, convolutions and attention
    other_operations: float  # number of elements computed one by one
    bytes: int  # moved between kernel and device memory, each operand once
    dtype: str = ""  # of the matrix products; empty without products
    # whether type and precision let the products run on Tensor Cores; None without products
    tensor_cores: bool | None = None

    def peak_tflops(self, hardware: Hardware) -> float:
        """The GPU's peak for these products, in 10^12 operations a second."""
        return _peak(hardware, self.dtype, bool(self.tensor_cores))

    def roofline_us(self, hardware: Hardware) -> float:
        """The larger of arithmetic and memory time in microseconds, at the data sheet's peaks."""
        arithmetic = (
            self.flops / self.peak_tflops(hardware) / 1e6 if self.flops else 0.0
        )
        arithmetic += self.other_operations / (hardware.tflops["f32"] / 2) / 1e6
        return max(arithmetic, self.bytes / hardware.memory_gb_s / 1e3)


def _peak(hardware: Hardware, dtype: str, tensor_cores: bool) -> float:
    return hardware.peak_tflops(dtype) if tensor_cores else hardware.tflops["f32"]


def work_of(module: Module, instruction: Instruction) -> Work:
    """The work of one execution of a compute instruction, by its shapes."""
    products = list(matmuls(module, instruction))
    flops = sum(item.operations for item in products)
    attention = attention_operations(module, instruction)
    dtype = "bf16" if attention else ""
    if products:
        dtype = max(products, key=lambda item: item.operations).dtype
    return Work(
        flops=flops + attention,
        other_operations=pointwise_operations(module, instruction),
        bytes=bytes_accessed(module, instruction)[0],
        dtype=dtype,
        tensor_cores=_fits_tensor_cores(module, instruction, dtype) if dtype else None,
    )


def _fits_tensor_cores(module: Module, instruction: Instruction, dtype: str) -> bool:
    """Whether products may run on Tensor Cores. Types of 16 and fewer bits always may. f32 may (as
    TF32), unless the program asks for full precision.
    """
    if (family := dtype_family(dtype)) != "tf32":
        return family != "f32"
    config = backend_config(instruction)
    gemm = config.get("gemm_backend_config", config)
    precision = gemm.get("precision_config", {}) if isinstance(gemm, dict) else {}
    asked = (
        precision.get("operand_precision", []) if isinstance(precision, dict) else []
    )
    inner = module.called_instructions(instruction)
    is_exact = any(
        "precision=Precision.HIGH" in item.op_name for item in (instruction, *inner)
    )
    return not is_exact and not _EXACT.intersection(asked)


@dataclass(frozen=True, slots=True)
class Multiplied:
    """How one kernel multiplies."""

    kernel: str  # its name
    # type of the factors in the hardware: ``tf32`` for rounded f32 factors; empty if unknown
    dtype: str
    tensor_cores: bool  # whether it uses Tensor Cores


_SIMT = re.compile(r"ffma|_simt_|(?:^|_)(?:[sdhc]|fp16_s)gemm|convolve_[sdh]gemm")
"""Kernels on CUDA cores: old names of cuBLAS and cuDNN, CUTLASS' ``simt``, and ``ffma`` in newer
names.
"""

_XMMA = re.compile(
    r"xmma_\w*?_(?P<in>[a-z]+\d+(?:m\d)?)[a-z]+\d+(?:m\d)?_(?P<by>[a-z]+\d+(?:m\d)?)[a-z]+\d+_"
)
"""``…_f32f32_tf32f32_f32_…``: types of both factors, then the types of multiplication and sum."""

_SHAPED = re.compile(
    r"(?:^|_)(?P<add>[a-z])(?:\d{3,6}|\d+x\d+x\d+)(?:\w{2,4})?(?:gemm|fprop|dgrad|wgrad|cudnn)"
)
"""``s16816gemm``: the type of the sum, and the shape of the Tensor Core instruction."""

_NVJET = re.compile(r"nvjet_(?:sm\d+_)?(?P<of>[a-z])[a-z]{2,4}_(?P<tf32>tf32_)?")
_NVJET_TYPES = {"t": "bf16", "h": "f16", "q": "f8", "s": "f32", "d": "f64"}
"""The letter after ``nvjet_``, and the type of the first factor that it means."""

_TENSILE = re.compile(r"^Cijk_A\w{3}_B\w{3}_(?P<of>[FB]8|I8|[BHSD])")
"""Kernels of hipBLASLt and rocBLAS: the indices of both factors, then the type of the first."""
_TENSILE_TYPES = {
    "F8": "f8",
    "B8": "f8",
    "I8": "s8",
    "B": "bf16",
    "H": "f16",
    "S": "f32",
    "D": "f64",
}
_MATRIX_CORES = re.compile(r"_MI\d+x\d+x\d+|xdl|gtcx|wmma")
"""Words for instructions of matrix cores in kernels of Tensile, MIOpen and Composable Kernel."""
_MIOPEN = re.compile(r"^igemm_|^naive_conv|^miopen|_ZN2ck|ck_tile|kernel_grouped_conv")

_WARP = re.compile(r"w?gmma|hmma|flash_(?:fwd|bwd)|fmha|tensorop")
_TYPES = {
    "bf16": "bf16",
    "fp16": "f16",
    "f16": "f16",
    "e4m3": "f8",
    "e5m2": "f8",
    "tf32": "tf32",
    "i8": "s8",
}


def _simt_type(kernel: str) -> str:
    """The type in which a kernel multiplies without Tensor Cores."""
    if re.search(r"(?:^|_)dgemm|_f64", kernel):
        return "f64"
    return "f16" if re.search(r"(?:^|_)hgemm", kernel) else "f32"


def _xmma_type(word: str) -> str:
    """HLO's name of a type in the name of an XMMA kernel."""
    if word.startswith(("e4", "e5")):
        return "f8"
    return "s8" if word == "i8" else word


def multiplied(kernel: str) -> Multiplied | None:
    """How a kernel multiplies, by its name; None if the name does not tell, as for XLA's own
    kernels.
    """
    if _SIMT.search(kernel):
        return Multiplied(kernel, _simt_type(kernel), False)
    if match := _XMMA.search(kernel):
        return Multiplied(kernel, _xmma_type(match["by"]), match["by"] != "f32")
    if match := _NVJET.match(kernel):
        dtype = "tf32" if match["tf32"] else _NVJET_TYPES.get(match["of"], "")
        return Multiplied(kernel, dtype, dtype != "f32")
    is_matrix = _MATRIX_CORES.search(kernel) is not None
    if match := _TENSILE.match(kernel):
        return Multiplied(kernel, _TENSILE_TYPES[match["of"]], is_matrix)
    if _MIOPEN.search(kernel):
        return Multiplied(kernel, _named_type(kernel), is_matrix)
    if match := _SHAPED.search(kernel):
        named = _named_type(kernel)
        plain = {"h": "f16", "s": "tf32", "d": "f64", "i": "s8"}
        return Multiplied(kernel, named or plain.get(match["add"], ""), True)
    return Multiplied(kernel, "", True) if _WARP.search(kernel) else None


def _named_type(kernel: str) -> str:
    """The type in a kernel's name; empty if it names none."""
    return next((dtype for word, dtype in _TYPES.items() if word in kernel), "")


def slowest(kernels: Iterable[str]) -> Multiplied | None:
    """The kernel of one instruction that decides how it multiplied, by name. A kernel without
    Tensor Cores counts before others. None if no name tells.
    """
    found = [
        item for kernel in sorted(kernels) if (item := multiplied(kernel)) is not None
    ]
    return min(
        found, key=lambda item: (item.tensor_cores, not item.dtype), default=None
    )


@dataclass(frozen=True, slots=True)
class Products:
    """Matrix products, convolutions and attention of one type."""

    dtype: str  # the type in which they were computed
    tensor_cores: bool  # whether they ran on Tensor Cores
    us: float  # GPU time in a step of the kernels with these products
    flops: float  # in a step; 0 without HLO
    peak_tflops: float | None  # of the GPU; None without hardware
    # the part of `us` whose type is in kernels' names; the type of the rest is from HLO
    named_us: float = 0.0

    @property
    def tflops(self) -> float:
        """10^12 operations per second while they run; 0 if unknown."""
        return self.flops / self.us / 1e6 if self.us > 0 else 0.0


@dataclass(frozen=True, slots=True)
class MeasuredInstruction:
    """One compute instruction of the main module."""

    cost: Cost  # its measured cost
    instruction: Instruction | None  # of the final module; None without HLO
    us: float  # time of all its executions in a step
    count: float  # executions in a step
    work: Work | None  # of one execution, by its HLO; None without HLO
    # how its kernels multiplied; None if their names do not tell
    ran: Multiplied | None = None

    @property
    def name(self) -> str:
        """The name of its cost, as in profiles."""
        return self.cost.name

    @property
    def op_name(self) -> str:
        """The framework's name; empty without HLO."""
        return "" if self.instruction is None else self.instruction.op_name

    @property
    def tensor_cores(self) -> bool | None:
        """Whether it multiplied on Tensor Cores, by its kernels' names, else by its HLO; None if it
        multiplies nothing.
        """
        if self.ran is not None:
            return self.ran.tensor_cores
        return None if self.work is None else self.work.tensor_cores

    @property
    def dtype(self) -> str:
        """The type of its product, by its kernels' names, else by its HLO; ``an unknown type`` if
        neither tells.
        """
        asked = self.work.dtype if self.work is not None else ""
        return (
            (self.ran.dtype if self.ran is not None else "")
            or asked
            or "an unknown type"
        )


def find_products(
    compute: Iterable[MeasuredInstruction], hardware: Hardware | None
) -> tuple[Products, ...]:
    """The products of a step by type and unit, the longest first. Other instructions are left
    out.
    """
    groups: dict[tuple[str, bool], list[MeasuredInstruction]] = defaultdict(list)
    for item in compute:
        if item.tensor_cores is not None:
            groups[item.dtype, item.tensor_cores].append(item)
    found = [
        _products(dtype, tensor_cores, items, hardware)
        for (dtype, tensor_cores), items in groups.items()
    ]
    return tuple(sorted(found, key=lambda item: (-item.us, item.dtype)))


def _products(
    dtype: str,
    tensor_cores: bool,
    items: Sequence[MeasuredInstruction],
    hardware: Hardware | None,
) -> Products:
    """The sum of instructions that multiply one type on one unit."""
    done = ((item.count, item.work) for item in items if item.work is not None)
    peak = None if hardware is None else _peak(hardware, dtype, tensor_cores)
    return Products(
        dtype,
        tensor_cores,
        us=sum(item.us for item in items),
        flops=sum(count * work.flops for count, work in done),
        peak_tflops=peak,
        named_us=sum(item.us for item in items if item.ran is not None),
    )


class TrainingPhase(StrEnum):
    """A phase of training. JAX writes its transformations into ``op_name``."""

    FORWARD = "forward"
    BACKWARD = "backward"
    REMATERIALISED = "rematerialised"
    OPTIMIZER = "optimizer"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Layer:
    """The instructions of one part of the program."""

    name: str  # its scopes (``decoder/layers/mlp``), or file and line
    phase: str  # empty in tables over all phases
    us: float  # GPU time in a step, the sum of its kernels
    exposed_us: float  # exposed time of its collectives in a step
    instructions: int  # number of instructions
    flops: float  # of matrix products in a step
    bytes: float  # moved in a step
    # time of the same work at the GPU's peaks; None without hardware
    roofline_us: float | None
    source: str = ""  # file and line of the costliest instruction; empty if unknown


@dataclass(frozen=True)
class Layers:
    """A step by parts of the program."""

    scopes: tuple[Layer, ...]  # by scope and phase, the costliest first
    lines: tuple[Layer, ...]  # by file and line, the one with most GPU time first
    # model flops utilisation: time at the GPU's peak of all products except rematerialisation, as a
    # share of the step
    mfu: float | None = None
    hfu: float | None = None  # the same with rematerialisation

    def phase_us(self, phase: TrainingPhase) -> float:
        """GPU microseconds of a phase in a step."""
        return sum(layer.us for layer in self.scopes if layer.phase == phase)


def find_layers(
    module: Module,
    compute: Iterable[MeasuredInstruction],
    collectives: Iterable[MeasuredCollective],
    step_us: float,
    hardware: Hardware | None,
) -> Layers:
    """Group the instructions of the main module by scope and source line.

    Args:
        step_us: length of the step, for utilisation.
        hardware: the GPU; without it, utilisation and rooflines are None.
    """
    phases = phases_of(module)

    def origin(made: Instruction) -> tuple[Instruction, TrainingPhase]:
        return described(module, made), phases.get(made.name, TrainingPhase.OTHER)

    rows = [
        _Row(*origin(item.instruction), item.us, 0.0, item.count, item.work)
        for item in compute
        if item.instruction is not None
    ]
    rows += [
        _Row(*origin(item.instruction), 0.0, item.exposed_us, item.count, None)
        for item in collectives
        if item.instruction is not None
    ]

    def group(key: Callable[[_Row], tuple[str, str]]) -> list[Layer]:
        groups: dict[tuple[str, str], list[_Row]] = defaultdict(list)
        for row in rows:
            groups[key(row)].append(row)
        found = [_layer(*names, items, hardware) for names, items in groups.items()]
        return sorted(
            found,
            key=lambda layer: (-layer.us - layer.exposed_us, layer.name, layer.phase),
        )

    def utilisation(counted: Iterable[_Row]) -> float | None:
        if hardware is None or step_us <= 0:
            return None
        least = [
            row.count * row.work.flops / row.work.peak_tflops(hardware)
            for row in counted
            if row.work is not None
        ]
        return sum(least) / 1e6 / step_us

    scopes = group(lambda row: (scope_of(row.named.op_name), row.phase))
    lines = group(lambda row: (row.named.source, ""))
    return Layers(
        scopes=tuple(scopes),
        lines=tuple(sorted(lines, key=lambda line: -line.us)),
        mfu=utilisation(
            row for row in rows if row.phase != TrainingPhase.REMATERIALISED
        ),
        hfu=utilisation(rows),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One instruction in a step, with its origin."""

    named: Instruction  # the instruction whose metadata shows the origin
    phase: TrainingPhase
    us: float  # GPU time of compute; 0 for collectives
    exposed_us: float  # exposed time of a collective; 0 for compute
    count: float  # executions in a step
    work: Work | None  # of one execution; None for collectives


def _layer(
    name: str, phase: str, rows: Sequence[_Row], hardware: Hardware | None
) -> Layer:
    done = [(row.count, row.work) for row in rows if row.work is not None]
    flops = sum(count * work.flops for count, work in done)
    moved_bytes = sum(count * work.bytes for count, work in done)
    roofline_us = None
    if hardware is not None:
        roofline_us = sum(count * work.roofline_us(hardware) for count, work in done)
    costliest = max(rows, key=lambda row: row.us + row.exposed_us)
    return Layer(
        name=name,
        phase=phase,
        us=sum(row.us for row in rows),
        exposed_us=sum(row.exposed_us for row in rows),
        instructions=len(rows),
        flops=flops,
        bytes=moved_bytes,
        roofline_us=roofline_us,
        source=costliest.named.source,
    )


def described(module: Module, instruction: Instruction) -> Instruction:
    """The instruction whose metadata shows the origin: itself, or one inside it if it has no
    ``op_name``.
    """
    if instruction.op_name or instruction.opcode == "while":
        return instruction
    for name in instruction.called:
        if name not in module.computations:
            continue
        for item in reversed(module.computations[name].instructions):
            if "/" in item.op_name:
                return item
    return instruction


def phases_of(module: Module) -> dict[str, TrainingPhase]:
    """The phase of every scheduled instruction, by its ``op_name``.

    An instruction without ``op_name`` (copies, collectives that XLA made) has the phase of its
    operands. One outside of differentiation that needs gradients belongs to the optimizer. If the
    module computes no gradients, everything is forward.
    """
    found: dict[str, TrainingPhase] = {}
    # callees before callers, since a body's phases depend only on its own op_names
    for name in reversed(module.scheduled):
        for item in module.computations[name].instructions:
            found[item.name] = _phase(described(module, item).op_name, item, found)
    return (
        found
        if TrainingPhase.BACKWARD in found.values()
        else dict.fromkeys(found, TrainingPhase.FORWARD)
    )


def _phase(
    op_name: str, item: Instruction, found: Mapping[str, TrainingPhase]
) -> TrainingPhase:
    if has_remat(item.name) or "rematted_computation" in op_name:
        return TrainingPhase.REMATERIALISED
    if "transpose(" in op_name:
        return TrainingPhase.BACKWARD
    if "jvp(" in op_name:
        return TrainingPhase.FORWARD
    before = [found[name] for name in item.operands if name in found]
    if "/" not in op_name:
        return next(
            (phase for phase in before if phase != TrainingPhase.OTHER),
            TrainingPhase.OTHER,
        )
    after = (
        TrainingPhase.BACKWARD,
        TrainingPhase.REMATERIALISED,
        TrainingPhase.OPTIMIZER,
    )
    return (
        TrainingPhase.OPTIMIZER
        if any(phase in after for phase in before)
        else TrainingPhase.OTHER
    )


_STRUCTURE = frozenset(
    (
        "while",
        "body",
        "cond",
        "closed_call",
        "core_call",
        "eval_jaxpr",
        "checkpoint",
        "rematted_computation",
        "remat",
        "remat2",
        "shard_map",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "scan",
        "branch_0_fun",
        "branch_1_fun",
        "main",
        "pjit",
    )
)
"""Parts of ``op_name`` that JAX adds, and that are not names in the program."""

_WRAPPED = re.compile(r"(\w+)\((.*)\)$")


def scope_of(op_name: str) -> str:
    """The scopes of the program in an ``op_name``.

    ``jit(step)/jit(main)/transpose(jvp(decoder))/while/body/mlp/wo/dot_general[…]`` gives
    ``decoder/mlp/wo``.
    """
    parts = op_name.partition("[")[0].split("/")
    parts = parts[1:] if parts[0].startswith(("jit(", "pjit(")) else parts
    return "/".join(
        scope
        for part in parts[:-1]
        if (scope := _scope(part)) and scope not in _STRUCTURE
    )


def _scope(part: str) -> str:
    wrapped = _WRAPPED.match(part)
    if wrapped is None:
        return part
    name, inner = wrapped.groups()
    is_private = inner.startswith("_") or inner == "main"
    if name in ("jit", "pjit") and is_private:
        return ""
    return _scope(inner)


def folded(
    layers: Sequence[Layer], most: int
) -> tuple[tuple[str, tuple[Layer, ...]], ...]:
    """Put layers into groups by name, with ``*`` for numbers. The costliest group is split as long
    as there are at most `most` groups.

    Args:
        layers: by scope and phase.
        most: largest number of groups.

    Returns:
        Name and layers of each group, the costliest first.
    """
    groups: dict[tuple[str, ...], list[Layer]] = {(): list(layers)}
    is_split = True
    while is_split:
        is_split = False
        for path in sorted(groups, key=lambda path: -_total_us(groups[path])):
            inner = _split(path, groups[path])
            count = len(groups) - 1 + len(inner)
            is_split = inner != {path: groups[path]} and count <= most
            if is_split:
                del groups[path]
                groups |= inner
                break
    named = [
        ("/".join(filter(None, path)), tuple(items)) for path, items in groups.items()
    ]
    return tuple(sorted(named, key=lambda group: -_total_us(group[1])))


def _split(
    path: tuple[str, ...], layers: Sequence[Layer]
) -> dict[tuple[str, ...], list[Layer]]:
    """Split layers by their next scope. Layers without one stay together, under the path with an
    empty name at its end.
    """
    found: dict[tuple[str, ...], list[Layer]] = defaultdict(list)
    for layer in layers:
        inner = path
        if path[-1:] != ("",):
            parts = re.sub(r"\d+", "*", layer.name).split("/")
            following = parts[len(path) :]
            inner = (*path, following[0] if following else "")
        found[inner].append(layer)
    return dict(found)


def _total_us(layers: Iterable[Layer]) -> float:
    return sum(layer.us + layer.exposed_us for layer in layers)


def short_source(source: str) -> str:
    """``attentions.py:288`` of ``/opt/maxtext/MaxText/layers/attentions.py:288``."""
    return source.rpartition("/")[2]
