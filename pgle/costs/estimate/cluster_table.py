"""Measured tables that XLA's speed-of-light model reads: what collectives and matrix products took on a cluster.

Format: text of ``xla.gpu.DeviceHloInstructionProfiles`` (openxla/xla `xla/service/gpu/model/hlo_op_profile.proto`),
for ``--xla_gpu_experimental_collective_perf_table_path`` and ``…_matmul_perf_table_path``. A collective has its
throughput in bytes per second, as nccl-tests count them; a product has its clock cycles. A given table replaces XLA's
own, and XLA then takes the nearest point. So points that were not measured come from XLA's own measurements.
Observed with jaxlib 0.10.2 and 0.12.0.1: `probe_collectives` and `probe_matmuls` ask any other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import median

from pgle.costs.estimate.communication import collective_us, group_of, payload_bytes, rows
from pgle.costs.estimate.kernels import Matmul, matmuls
from pgle.costs.profile.value import Cost
from pgle.xla.collectives import KINDS, collective_kind, group_size
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.targets import Hardware

BANDWIDTH_BOUND = 1.5  # a collective that takes so much longer on half the network says how fast that is
NEAR = 2.0  # a point of XLA's own table gives way to a measured one of its kind and group within this factor of bytes

_DTYPES = {"bf16": "BF16", "f16": "F16", "f32": "F32", "f8e4m3fn": "F8E4M3FN", "f8e5m2": "F8E5M2"}


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective of some size."""

    kind: str  # ``all-gather`` …
    size_bytes: int  # as nccl-tests count them: gathered, reduced, to be scattered
    group: int  # devices in each replica group
    groups: int = 1  # replica groups


def measured_transfers(module: Module, costs: Iterable[Cost]) -> dict[Transfer, float]:
    """Microseconds of the collectives of a module that XLA's table can hold; of equal ones the median."""
    found: dict[Transfer, list[float]] = defaultdict(list)
    for cost in costs:
        instruction = module.instructions.get(cost.traced)
        kind = collective_kind(module, instruction) if instruction is not None else None
        if instruction is None or kind is None or KINDS[kind].measured != kind or cost.cost_us <= 0:
            continue
        wrapped = module.wrapped(instruction) or instruction
        size, group = payload_bytes(module, kind, wrapped), group_size(module, instruction)
        if size >= 4 * group > 4:
            groups = max(module.num_devices // group, 1)
            found[Transfer(kind, size - size % (4 * group), group, groups)].append(cost.cost_us)
    return {transfer: median(times) for transfer, times in sorted(found.items(), key=lambda item: _order(item[0]))}


def measured_networks(module: Module, costs: Iterable[Cost], hardware: Hardware) -> list[float]:
    """For each collective that crosses hosts, the network with which its estimate is what it took.

    In GB/s per GPU and direction. Those that latency decides, and those outside 1 GB/s to NVLink's bandwidth, are left.
    """
    found = []
    for cost in costs:
        instruction = module.instructions.get(cost.traced)
        kind = collective_kind(module, instruction) if instruction is not None else None
        if instruction is None or kind is None or group_of(module, instruction, hardware).hosts == 1:
            continue
        wrapped = module.wrapped(instruction) or instruction

        def estimated_us(gb_s: float, kind: str = kind, item: Instruction = wrapped) -> float:
            return collective_us(module, kind, item, replace(hardware, nic_gb_s=gb_s))

        slow, fast = 1.0, hardware.nvlink_gb_s
        half, whole = estimated_us(hardware.nic_gb_s / 2), estimated_us(hardware.nic_gb_s)
        if half < BANDWIDTH_BOUND * whole or not estimated_us(fast) < cost.cost_us < estimated_us(slow):
            continue
        while fast > 1.001 * slow:
            middle = sqrt(slow * fast)
            slow, fast = (slow, middle) if estimated_us(middle) < cost.cost_us else (middle, fast)
        found.append(fast)
    return found


def measured_products(module: Module, costs: Iterable[Cost]) -> dict[Matmul, float]:
    """Microseconds of the instructions that compute one matrix product and little else; of equal ones the median."""
    found: dict[Matmul, list[float]] = defaultdict(list)
    for cost in costs:
        instruction = module.instructions.get(cost.traced)
        if instruction is None or collective_kind(module, instruction) is not None or cost.cost_us <= 0:
            continue
        products = list(matmuls(module, instruction))
        if len(products) == 1 and products[0].batch == 1 and products[0].dtype in _DTYPES:
            found[products[0]].append(cost.cost_us)
    return {item: median(times) for item, times in sorted(found.items(), key=lambda pair: repr(pair[0]))}


def completed_transfers(measured: dict[Transfer, float], gpu: str) -> dict[Transfer, float]:
    """Measured transfers, and XLA's own where none was measured near them."""
    own = {
        Transfer(kind, int(size), int(group)): float(us)
        for name, kind, group, size, us in rows("collectives.tsv")
        if name == gpu and kind in KINDS
    }
    kept = {transfer: us for transfer, us in own.items() if not any(_near(transfer, item) for item in measured)}
    return {**measured, **kept}


def _near(own: Transfer, measured: Transfer) -> bool:
    same = own.kind == measured.kind and own.group == measured.group
    return same and 1 / NEAR <= own.size_bytes / measured.size_bytes <= NEAR


def _order(transfer: Transfer) -> tuple[str, int, int, int]:
    return transfer.kind, transfer.group, transfer.groups, transfer.size_bytes


def collective_table(points: dict[Transfer, float], key: str) -> str:
    """The table of collectives as text.

    Args:
        key: what XLA calls the GPU: ``sm_90``, ``sm_100_B200``; another key is ignored without a word.
    """
    return _table(key, [_collective_entry(transfer, us) for transfer, us in points.items()])


def matmul_table(points: dict[Matmul, float], key: str, clock_ghz: float) -> str:
    """The table of matrix products as text.

    Args:
        clock_ghz: of the GPU's description, by which XLA turns cycles into time.
    """
    return _table(key, [_product_entry(product, us * clock_ghz * 1e3) for product, us in points.items()])


def _table(key: str, entries: Sequence[str]) -> str:
    return f'entries {{\n  key: "{key}"\n  value {{\n{"".join(entries)}  }}\n}}\n'


def _elements(transfer: Transfer) -> int:
    """Elements of the result, taken for f32."""
    return transfer.size_bytes // 4 // (transfer.group if transfer.kind == "reduce-scatter" else 1)


def _collective_entry(transfer: Transfer, us: float) -> str:
    devices = transfer.group * transfer.groups
    list_ = (
        f"num_replica_groups: {transfer.groups} num_devices_per_group: {transfer.group} "
        f"iota_reshape_dims: {devices} iota_transpose_perm: 0"
    )
    shape = _shape("F32", _elements(transfer))
    return (
        f'    entries {{\n      instruction {{ opcode: "{transfer.kind}" {shape} dimensions: 0 '
        f"channel_id: 1 id: 1 operand_ids: 0 use_global_device_ids: true iota_collective_device_list {{ {list_} }} }}\n"
        f"      network_throughput_bytes_per_sec: {max(int(transfer.size_bytes / us * 1e6), 1)}\n    }}\n"
    )


def _product_entry(product: Matmul, cycles: float) -> str:
    dtype = _DTYPES[product.dtype]
    m, n, k = product.m, product.n, product.k
    return (
        f'    entries {{\n      instruction {{ name: "dot" opcode: "dot" {_shape(dtype, m, n)} id: 2 operand_ids: 0 '
        "operand_ids: 1 dot_dimension_numbers { lhs_contracting_dimensions: 1 rhs_contracting_dimensions: 0 } }\n"
        f'      operands {{ name: "a" opcode: "parameter" {_shape(dtype, m, k)} id: 0 }}\n'
        f'      operands {{ name: "b" opcode: "parameter" {_shape(dtype, k, n)} id: 1 parameter_number: 1 }}\n'
        f"      clock_cycles: {max(round(cycles), 1)}\n    }}\n"
    )


def _shape(dtype: str, *dimensions: int) -> str:
    order = " ".join(f"minor_to_major: {axis}" for axis in reversed(range(len(dimensions))))
    sizes = " ".join(f"dimensions: {size} is_dynamic_dimension: false" for size in dimensions)
    return f"shape {{ element_type: {dtype} {sizes} layout {{ {order} }} }}"


def probe_collectives(transfers: Sequence[Transfer]) -> str:
    """An HLO module whose schedule shows what XLA believes of each transfer: ``c0``, ``c1`` …, with nothing else."""
    group, groups = transfers[0].group, transfers[0].groups
    lines, results = [], []
    for number, item in enumerate(transfers):
        out = _elements(item)
        given = item.size_bytes // 4 // (group if item.kind == "all-gather" else 1)
        rest = "" if item.kind == "all-to-all" else ", use_global_device_ids=true"
        rest += ", to_apply=add" if KINDS[item.kind].moves == "gradients" else ""
        rest += "" if item.kind == "all-reduce" else ", dimensions={0}"
        lines += [
            f"  p{number} = f32[{given}]{{0}} parameter({number})",
            f"  c{number} = f32[{out}]{{0}} {item.kind}(p{number}), channel_id={number + 1}, "
            f"replica_groups=[{groups},{group}]<=[{groups * group}]{rest}",
            f"  n{number} = f32[{out}]{{0}} negate(c{number})",
        ]
        results.append((f"n{number}", f"f32[{out}]{{0}}"))
    add = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n\n"
    return _probe(add, lines, results, groups * group)


def probe_matmuls(products: Sequence[Matmul]) -> str:
    """An HLO module whose schedule shows what XLA believes of each product; one gather, else LHS has nothing to do."""
    lines = [
        "  x = f32[1048576]{0} parameter(0)",
        "  g = f32[8388608]{0} all-gather(x), channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}, "
        "use_global_device_ids=true",
        "  n = f32[8388608]{0} negate(g)",
    ]
    results = [("n", "f32[8388608]{0}")]
    for number, item in enumerate(products):
        result = f"{item.dtype}[{item.m},{item.n}]{{1,0}}"
        lines += [
            f"  a{number} = {item.dtype}[{item.m},{item.k}]{{1,0}} parameter({2 * number + 1})",
            f"  b{number} = {item.dtype}[{item.k},{item.n}]{{1,0}} parameter({2 * number + 2})",
            f"  d{number} = {result} dot(a{number}, b{number}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
        ]
        results.append((f"d{number}", result))
    return _probe("", lines, results, 8)


def _probe(before: str, lines: Sequence[str], results: Sequence[tuple[str, str]], devices: int) -> str:
    shapes, names = (", ".join(part) for part in zip(*((shape, name) for name, shape in results), strict=True))
    root = f"  ROOT r = ({shapes}) tuple({names})"
    body = "\n".join([*lines, root])
    return f"HloModule probe, num_partitions={devices}\n\n{before}ENTRY e {{\n{body}\n}}\n"
