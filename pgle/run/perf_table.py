"""`pgle perf-table`: traces in, measured tables for XLA's speed-of-light model out, tried on the compiler."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pgle.costs.estimate.cluster_table import (
    Transfer,
    collective_table,
    completed_transfers,
    matmul_table,
    measured_networks,
    measured_products,
    measured_transfers,
    probe_collectives,
    probe_matmuls,
)
from pgle.costs.estimate.kernels import Matmul
from pgle.costs.measure.measured import measure
from pgle.errors import UserError
from pgle.files import AnyPath, Progress, check_absent, write_files
from pgle.run.compiler.compile import Compiler, RehearsalRequest
from pgle.run.convert import ConvertRequest
from pgle.run.inputs.traces import read_traces
from pgle.xla.hlo.dumps import read_dumps
from pgle.xla.hlo.schedule_dump import LhsSchedule
from pgle.xla.targets import Target, find_hardware

COLLECTIVES_FLAG = "--xla_gpu_experimental_collective_perf_table_path"
MATMULS_FLAG = "--xla_gpu_experimental_matmul_perf_table_path"
PROBE_FLAGS = (
    "--xla_gpu_enable_latency_hiding_scheduler=true",
    "--xla_gpu_enable_analytical_sol_latency_estimator=true",
    "--xla_gpu_all_gather_combine_threshold_bytes=0",
    "--xla_gpu_all_reduce_combine_threshold_bytes=0",
    "--xla_gpu_reduce_scatter_combine_threshold_bytes=0",
)
SAME = 0.01  # XLA keeps throughput and cycles as whole numbers; a believed time within a hundredth is the measured one


@dataclass(frozen=True)
class PerfTable:
    """What was measured, written and tried."""

    transfers: Mapping[Transfer, float]  # measured collectives, microseconds
    products: Mapping[Matmul, float]  # measured matrix products, microseconds
    networks_gb_s: tuple[float, ...]  # of each collective across hosts, the network by which it took its time
    filled: int  # points taken from XLA's own table
    key: str  # what the installed jaxlib calls the GPU; empty where it was not asked or takes no table
    jaxlib: str  # that was asked; empty where none was
    ignored: tuple[Transfer, ...]  # measured collectives of which XLA believes something else
    ignored_products: tuple[Matmul, ...]  # and matrix products
    written: tuple[AnyPath, ...]  # the files
    warnings: tuple[str, ...]  # one line each

    @property
    def network_gb_s(self) -> float | None:
        """The median of `networks_gb_s`, for ``--network`` of other commands; None where nothing crossed hosts."""
        return median(self.networks_gb_s) if self.networks_gb_s else None


def perf_table(request: ConvertRequest, target: Target, *, progress: Progress | None = None) -> PerfTable:
    """Measure, write ``OUT`` (collectives) and ``OUT`` with ``.matmul`` before its suffix, and try both.

    Args:
        request: traces and their HLO; `out` is the table of collectives.
        target: the GPU that they are of.

    Raises:
        UserError: an input is bad, nothing was measured, the GPU's key is unknown, or an output exists.
    """
    out, matmul_out = request.out, request.out.with_suffix(f".matmul{request.out.suffix}")
    for path in (out, matmul_out):
        check_absent(path, force=request.force)
    if target.compute_capability < (9, 0):
        raise UserError(
            "XLA's speed-of-light model, which reads such tables, is for Hopper and Blackwell",
            where=f"--target {target.name}",
            remedy="give it a cost profile: pgle convert",
        )
    trace = read_traces(request.inputs, progress=progress)
    measured = measure(trace, read_dumps(request.hlo), module=request.module)
    programs = [item for item in measured.costs if item.program.hlo is not None]
    transfers: dict[Transfer, float] = {}
    products: dict[Matmul, float] = {}
    networks: list[float] = []
    for program in programs:
        assert program.program.hlo is not None
        transfers |= measured_transfers(program.program.hlo, program.costs)
        products |= measured_products(program.program.hlo, program.costs)
        networks += measured_networks(program.program.hlo, program.costs, find_hardware(target))
    if not transfers and not products:
        remedy = "give the HLO dump of the traced run with --hlo"
        raise UserError("no collective or matrix product was measured", where=request.inputs[0], remedy=remedy)
    complete = completed_transfers(transfers, find_hardware(target).measured_as)
    with Compiler() as compiler, tempfile.TemporaryDirectory(prefix="pgle-table-") as folder:
        trial = _Trial(compiler, target, Path(folder))
        key, ignored = trial.key_of(transfers)
        ignored_products = trial.ignored_products(products, key) if key and products else ()
        files: dict[AnyPath, bytes | str] = {}
        if transfers:
            files[out] = collective_table(complete, key or trial.keys[0])
        if products:
            files[matmul_out] = matmul_table(products, key or trial.keys[0], target.clock_ghz)
        write_files(files, force=request.force)
    tried = f"under none of the names tried for {target.name} ({', '.join(trial.keys)})"
    warnings = () if key else (f"jaxlib {trial.jaxlib} takes the table {tried}",)
    filled = len(complete) - len(transfers)
    return PerfTable(
        transfers,
        products,
        tuple(networks),
        filled,
        key,
        trial.jaxlib,
        ignored,
        ignored_products,
        tuple(files),
        warnings,
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
        asked = dict(transfers) or {Transfer("all-gather", 1 << 24, 8): 1234.0}
        for key in self.keys:
            ignored = tuple(self._ignored(asked, key))
            if len(ignored) < len(asked):
                return key, ignored if transfers else ()
        return "", tuple(transfers)

    def _ignored(self, points: Mapping[Transfer, float], key: str) -> Iterator[Transfer]:
        alike: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
        for transfer in points:
            alike[transfer.group, transfer.groups].append(transfer)
        for same in alike.values():
            table = collective_table({item: points[item] for item in same}, key)
            schedule = self._compiled(probe_collectives(same), table, COLLECTIVES_FLAG)
            believed = [latency.span_cycles for latency in schedule.latencies.values()]
            for transfer in same:
                if not _is_among(points[transfer], believed):
                    yield transfer

    def ignored_products(self, points: Mapping[Matmul, float], key: str) -> tuple[Matmul, ...]:
        """The products that XLA takes no time for."""
        table = matmul_table(dict(points), key, self.target.clock_ghz)
        schedule = self._compiled(probe_matmuls(list(points)), table, MATMULS_FLAG)
        slots = schedule.entry.slots.values() if schedule.entry is not None else ()
        believed = [slot.cycles for slot in slots]
        return tuple(product for product, us in points.items() if not _is_among(us, believed))

    def _compiled(self, hlo: str, table: str, flag: str) -> LhsSchedule:
        """What LHS believes of a module with a table."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        (folder / "probe.hlo").write_text(hlo)
        (folder / "table.pbtxt").write_text(table)
        result = self.compiler.compile(
            RehearsalRequest(
                module=folder / "probe.hlo",
                target=self.target.text,
                portable_target=self.target.portable_text,
                dump_dir=folder / "out",
                flags=(*PROBE_FLAGS, f"{flag}={folder / 'table.pbtxt'}"),
            )
        )
        self.jaxlib = result.jaxlib
        if result.lhs is None:
            raise UserError("the scheduler left no schedule dump", where=result.log)
        return result.lhs


def _is_among(us: float, believed: Sequence[float]) -> bool:
    return any(abs(time / us - 1) < SAME for time in believed)
