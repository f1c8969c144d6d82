"""`pgle perf-table`: traces in, a measured table for XLA's speed-of-light model out, tried on the compiler.

Format: text of ``xla.gpu.DeviceHloInstructionProfiles`` (openxla/xla `xla/service/gpu/model/hlo_op_profile.proto`),
for ``--xla_gpu_experimental_collective_perf_table_path``: the throughput of collectives in bytes per second, as
nccl-tests count them. A given table replaces XLA's own, and XLA then takes the nearest point. So points that were not
measured come from XLA's own measurements. Observed with jaxlib 0.10.2 and 0.12.0.1: `_Trial` asks any other.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import median

from pgle.costs.estimate.communication import collective_us, group_of, payload_bytes, rows
from pgle.costs.measure.measured import measure
from pgle.costs.profile.value import Cost
from pgle.errors import UserError
from pgle.files import AnyPath, Progress, check_absent, write_files
from pgle.run.compiler.compile import Compiler, CompileRequest
from pgle.run.convert import ConvertRequest
from pgle.run.inputs.traces import read_traces
from pgle.xla.collectives import KINDS, collective_kind, group_size
from pgle.xla.hlo.dumps import read_dumps
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.hlo.schedule_dump import LhsSchedule
from pgle.xla.targets import Hardware, Target, find_hardware

COLLECTIVES_FLAG = "--xla_gpu_experimental_collective_perf_table_path"
PROBE_FLAGS = (
    "--xla_gpu_enable_latency_hiding_scheduler=true",
    "--xla_gpu_enable_analytical_sol_latency_estimator=true",
    "--xla_gpu_all_gather_combine_threshold_bytes=0",
    "--xla_gpu_all_reduce_combine_threshold_bytes=0",
    "--xla_gpu_reduce_scatter_combine_threshold_bytes=0",
)
BANDWIDTH_BOUND = (
    1.5  # a collective that takes so much longer on half the network says how fast that is
)
NEAR = 2.0  # a point of XLA's own table gives way to a measured one of its kind and group within this factor of bytes
SAME = 0.01  # XLA keeps throughput and cycles as whole numbers; a believed time within a hundredth is the measured one


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective of some size."""

    kind: str  # ``all-gather`` …
    size_bytes: int  # as nccl-tests count them: gathered, reduced, to be scattered
    group: int  # devices in each replica group
    groups: int = 1  # replica groups


@dataclass(frozen=True)
class PerfTable:
    """What was measured, written and tried."""

    transfers: Mapping[Transfer, float]  # measured collectives, microseconds
    networks_gb_s: tuple[
        float, ...
    ]  # of each collective across hosts, the network by which it took its time
    filled: int  # points taken from XLA's own table
    key: str  # what the installed jaxlib calls the GPU; empty where it was not asked or takes no table
    jaxlib: str  # that was asked; empty where none was
    ignored: tuple[Transfer, ...]  # measured collectives of which XLA believes something else
    written: AnyPath  # the file
    warnings: tuple[str, ...]  # one line each

    @property
    def network_gb_s(self) -> float | None:
        """The median of `networks_gb_s`, for ``--network`` of other commands; None where nothing crossed hosts."""
        return median(self.networks_gb_s) if self.networks_gb_s else None


def perf_table(
    request: ConvertRequest, target: Target, *, progress: Progress | None = None
) -> PerfTable:
    """Measure, write the table, and try it.

    Args:
        request: traces and their HLO; `out` is the table.
        target: the GPU that they are of.

    Raises:
        UserError: an input is bad, nothing was measured, or the output exists.
    """
    check_absent(request.out, force=request.force)
    if target.compute_capability < (9, 0):
        raise UserError(
            "XLA's speed-of-light model, which reads such tables, is for Hopper and Blackwell",
            where=f"--target {target.name}",
            remedy="give it a cost profile: pgle convert",
        )
    trace = read_traces(request.inputs, progress=progress)
    measured = measure(trace, read_dumps(request.hlo), module=request.module)
    hardware = find_hardware(target)
    transfers: dict[Transfer, float] = {}
    networks: list[float] = []
    for found in measured.costs:
        if (module := found.program.hlo) is not None:
            transfers |= measured_transfers(module, found.costs)
            networks += measured_networks(module, found.costs, hardware)
    if not transfers:
        remedy = "give the HLO dump of the traced run with --hlo"
        raise UserError("no collective was measured", where=request.inputs[0], remedy=remedy)
    complete = completed_transfers(transfers, hardware.measured_as)
    with Compiler() as compiler, tempfile.TemporaryDirectory(prefix="pgle-table-") as folder:
        trial = _Trial(compiler, target, Path(folder))
        key, ignored = trial.key_of(transfers)
    write_files(
        {request.out: collective_table(complete, key or trial.keys[0])}, force=request.force
    )
    tried = f"under none of the names tried for {target.name} ({', '.join(trial.keys)})"
    warnings = () if key else (f"jaxlib {trial.jaxlib} takes the table {tried}",)
    filled = len(complete) - len(transfers)
    return PerfTable(
        transfers, tuple(networks), filled, key, trial.jaxlib, ignored, request.out, warnings
    )


class _Trial:
    """Small modules compiled with a table: does XLA believe what it says?"""

    def __init__(self, compiler: Compiler, target: Target, folder: Path) -> None:
        self.compiler, self.target, self.folder = compiler, target, folder
        major, minor = target.compute_capability
        product = target.device.removeprefix("NVIDIA ").split(" ")[0]
        self.keys = (f"sm_{major}{minor}", f"sm_{major}{minor}_{product}")
        self.jaxlib = ""

    def key_of(self, transfers: Mapping[Transfer, float]) -> tuple[str, tuple[Transfer, ...]]:
        """The name under which XLA takes a table, empty where none, and the transfers that it takes no time for."""
        for key in self.keys:
            ignored = tuple(self._ignored(transfers, key))
            if len(ignored) < len(transfers):
                return key, ignored
        return "", tuple(transfers)

    def _ignored(self, points: Mapping[Transfer, float], key: str) -> Iterator[Transfer]:
        alike: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
        for transfer in points:
            alike[transfer.group, transfer.groups].append(transfer)
        for same in alike.values():
            table = collective_table({item: points[item] for item in same}, key)
            believed = [
                found.span_cycles for found in self._compiled(probe(same), table).latencies.values()
            ]
            yield from (
                item
                for item in same
                if not any(abs(us / points[item] - 1) < SAME for us in believed)
            )

    def _compiled(self, hlo: str, table: str) -> LhsSchedule:
        """What LHS believes of a module with a table."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        (folder / "probe.hlo").write_text(hlo)
        (folder / "table.pbtxt").write_text(table)
        result = self.compiler.compile(
            CompileRequest(
                module=folder / "probe.hlo",
                targets=self.target.texts,
                dump_dir=folder / "out",
                flags=(*PROBE_FLAGS, f"{COLLECTIVES_FLAG}={folder / 'table.pbtxt'}"),
            )
        )
        self.jaxlib = result.jaxlib
        if result.lhs is None:
            raise UserError("the scheduler left no schedule dump", where=result.log)
        return result.lhs


def _collectives(
    module: Module, costs: Iterable[Cost]
) -> Iterator[tuple[Cost, Instruction, str, Instruction]]:
    """Costs of collectives, each with its instruction, its kind, and the operation that the instruction wraps."""
    for cost in costs:
        instruction = module.instructions.get(cost.traced)
        kind = collective_kind(module, instruction) if instruction is not None else None
        if instruction is not None and kind is not None:
            yield cost, instruction, kind, module.wrapped(instruction) or instruction


def measured_transfers(module: Module, costs: Iterable[Cost]) -> dict[Transfer, float]:
    """Microseconds of the collectives of a module that XLA's table can hold; of equal ones the median."""
    found: dict[Transfer, list[float]] = defaultdict(list)
    for cost, instruction, kind, wrapped in _collectives(module, costs):
        if KINDS[kind].measured != kind or cost.cost_us <= 0:
            continue
        size, group = payload_bytes(module, kind, wrapped), group_size(module, instruction)
        if size >= 4 * group > 4:
            groups = max(module.num_devices // group, 1)
            found[Transfer(kind, size - size % (4 * group), group, groups)].append(cost.cost_us)
    return {
        transfer: median(times)
        for transfer, times in sorted(found.items(), key=lambda item: _order(item[0]))
    }


def measured_networks(module: Module, costs: Iterable[Cost], hardware: Hardware) -> list[float]:
    """For each collective that crosses hosts, the network with which its estimate is what it took.

    In GB/s per GPU and direction. Those that latency decides, and those outside 1 GB/s to NVLink's bandwidth, are left.
    """
    found = []
    for cost, instruction, kind, wrapped in _collectives(module, costs):
        if group_of(module, instruction, hardware).hosts == 1:
            continue

        def estimated_us(gb_s: float, kind: str = kind, item: Instruction = wrapped) -> float:
            return collective_us(module, kind, item, replace(hardware, nic_gb_s=gb_s))

        slow, fast = 1.0, hardware.nvlink_gb_s
        half, whole = estimated_us(hardware.nic_gb_s / 2), estimated_us(hardware.nic_gb_s)
        if half < BANDWIDTH_BOUND * whole or not estimated_us(fast) < cost.cost_us < estimated_us(
            slow
        ):
            continue
        while fast > 1.001 * slow:
            middle = sqrt(slow * fast)
            slow, fast = (slow, middle) if estimated_us(middle) < cost.cost_us else (middle, fast)
        found.append(fast)
    return found


def completed_transfers(measured: dict[Transfer, float], gpu: str) -> dict[Transfer, float]:
    """Measured transfers, and XLA's own where none was measured near them."""
    own = {
        Transfer(kind, int(size), int(group)): float(us)
        for name, kind, group, size, us in rows("collectives.tsv")
        if name == gpu and kind in KINDS
    }

    def is_measured(own: Transfer) -> bool:
        alike = [
            item.size_bytes for item in measured if (item.kind, item.group) == (own.kind, own.group)
        ]
        return any(1 / NEAR <= own.size_bytes / size <= NEAR for size in alike)

    return {
        **measured,
        **{transfer: us for transfer, us in own.items() if not is_measured(transfer)},
    }


def _order(transfer: Transfer) -> tuple[str, int, int, int]:
    return transfer.kind, transfer.group, transfer.groups, transfer.size_bytes


def collective_table(points: dict[Transfer, float], key: str) -> str:
    """The table of collectives as text.

    Args:
        key: what XLA calls the GPU: ``sm_90``, ``sm_100_B200``; another key is ignored without a word.
    """
    entries = "".join(_entry(transfer, us) for transfer, us in points.items())
    return f'entries {{\n  key: "{key}"\n  value {{\n{entries}  }}\n}}\n'


def _elements(transfer: Transfer) -> int:
    """Elements of the result, taken for f32."""
    return transfer.size_bytes // 4 // (transfer.group if transfer.kind == "reduce-scatter" else 1)


def _entry(transfer: Transfer, us: float) -> str:
    devices = transfer.group * transfer.groups
    list_ = (
        f"num_replica_groups: {transfer.groups} num_devices_per_group: {transfer.group} "
        f"iota_reshape_dims: {devices} iota_transpose_perm: 0"
    )
    sizes = f"dimensions: {_elements(transfer)} is_dynamic_dimension: false"
    shape = f"shape {{ element_type: F32 {sizes} layout {{ minor_to_major: 0 }} }}"
    return (
        f'    entries {{\n      instruction {{ opcode: "{transfer.kind}" {shape} dimensions: 0 '
        f"channel_id: 1 id: 1 operand_ids: 0 use_global_device_ids: true iota_collective_device_list {{ {list_} }} }}\n"
        f"      network_throughput_bytes_per_sec: {max(int(transfer.size_bytes / us * 1e6), 1)}\n    }}\n"
    )


def probe(transfers: Sequence[Transfer]) -> str:
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
        results.append((f"f32[{out}]{{0}}", f"n{number}"))
    add = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n\n"
    shapes, names = (", ".join(part) for part in zip(*results, strict=True))
    body = "\n".join([*lines, f"  ROOT r = ({shapes}) tuple({names})"])
    return f"HloModule probe, num_partitions={groups * group}\n\n{add}ENTRY e {{\n{body}\n}}\n"
