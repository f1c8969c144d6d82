"""`pgle perf-table`: traces in, measured tables for XLA's speed-of-light model out, tried on the compiler."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.costs.estimate.cluster_table import (
    Transfer,
    collective_table,
    completed_transfers,
    matmul_table,
    measured_products,
    measured_transfers,
    probe_collectives,
    probe_matmuls,
)
from pgle.costs.estimate.kernels import Matmul
from pgle.costs.lookup.contention import as_if_alone
from pgle.costs.lookup.table import LookupTable
from pgle.costs.measure.measured import Measured, measure, measured_profile
from pgle.costs.profile.files import encode_profile
from pgle.costs.profile.value import Profile
from pgle.errors import UserError
from pgle.files import AnyPath, Progress, check_absent, write_files
from pgle.run.compiler.compile import Compiler
from pgle.run.compiler.request import RehearsalRequest
from pgle.run.convert import ConvertRequest
from pgle.run.fitted import under_other_flags
from pgle.run.inputs.traces import read_traces
from pgle.schedule.predict import Gain, Prediction, gain, predict
from pgle.xla.hlo.dumps import read_dumps
from pgle.xla.hlo.reader import read_module
from pgle.xla.hlo.schedule_dump import LhsSchedule, read_schedule_dump
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
class Step:
    """A predicted step of the measured program under one set of costs given to the scheduler."""

    label: str  # which
    step_us: float  # of the schedule; all schedules use one table of costs
    exposed_us: float
    costs_are: str  # ``measured``, ``estimated`` or ``mixed``
    estimated_share: float  # of the activity time, the part that was not measured
    gain: Gain  # over XLA's own table


@dataclass(frozen=True)
class PerfTable:
    """What was measured, written and tried."""

    transfers: Mapping[Transfer, float]  # measured collectives, microseconds
    products: Mapping[Matmul, float]  # measured matrix products, microseconds
    filled: int  # points taken from XLA's own table
    key: str  # what the installed jaxlib calls the GPU; empty where it was not asked or takes no table
    jaxlib: str  # that was asked; empty where none was
    ignored: tuple[Transfer, ...]  # measured collectives of which XLA believes something else
    ignored_products: tuple[Matmul, ...]  # and matrix products
    written: tuple[AnyPath, ...]  # the files
    steps: tuple[Step, ...]  # what the table gives on the measured program; empty where it cannot be compiled
    warnings: tuple[str, ...]  # one line each


def perf_table(
    request: ConvertRequest, target: Target, *, rehearse: bool = False, progress: Progress | None = None
) -> PerfTable:
    """Measure, write ``OUT`` (collectives) and ``OUT`` with ``.matmul`` before its suffix, and try both.

    Args:
        request: traces and their HLO; `out` is the table of collectives.
        target: the GPU that they are of.
        rehearse: compile the measured program too, from its before_optimizations dump, to predict what the table gives.

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
    for program in programs:
        assert program.program.hlo is not None
        transfers |= measured_transfers(program.program.hlo, program.costs)
        products |= measured_products(program.program.hlo, program.costs)
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
        steps: tuple[Step, ...] = ()
        warnings: tuple[str, ...] = ()
        tried = f"under none of the names tried for {target.name} ({', '.join(trial.keys)})"
        if not key:
            warnings = (f"jaxlib {trial.jaxlib} takes the table {tried}",)
        elif rehearse:
            steps, warnings = _steps(trial, request, replace(measured, costs=(programs[0],)), list(files))
    return PerfTable(
        transfers, products, len(complete) - len(transfers), key, trial.jaxlib, ignored, ignored_products,
        tuple(files), steps, warnings,
    )  # fmt: skip


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
        folder = self.new_folder()
        (folder / "probe.hlo").write_text(hlo)
        (folder / "table.pbtxt").write_text(table)
        return self.schedule(folder / "probe.hlo", (*PROBE_FLAGS, f"{flag}={folder / 'table.pbtxt'}"))[0]

    def new_folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))

    def schedule(self, module: Path, flags: Sequence[str], profile: Path | None = None) -> tuple[LhsSchedule, Path]:
        """What LHS believed, and the scheduled module."""
        result = self.compiler.compile(
            RehearsalRequest(
                module=module,
                target=self.target.text,
                portable_target=self.target.portable_text,
                dump_dir=self.new_folder() / "out",
                flags=tuple(flags),
                profile=profile,
            )
        )
        self.jaxlib = result.jaxlib
        if result.schedule is None:
            raise UserError("the scheduler left no schedule dump", where=module, remedy=f"see {result.log}")
        return read_schedule_dump(result.schedule), result.after_optimizations


def _is_among(us: float, believed: Sequence[float]) -> bool:
    return any(abs(time / us - 1) < SAME for time in believed)


def _steps(
    trial: _Trial, request: ConvertRequest, measured: Measured, tables: Sequence[AnyPath]
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """What the tables give on the main program, next to XLA's own and to a profile: predicted steps.

    All schedules use one table of costs: the same work has the same measured cost under every name.
    """
    program, hardware = measured.costs[0].program, find_hardware(trial.target)
    source = _before_optimizations(request, program.key.name)
    if source is None or program.hlo is None:
        return (), ("no before_optimizations dump of the program, so what the table gives was not predicted",)
    profile = as_if_alone(measured_profile(measured), program.hlo)
    measured_on = LookupTable(program.hlo)

    def scheduled(flags: Sequence[str], given: Path | None = None) -> tuple[Prediction, Profile]:
        schedule, after = trial.schedule(Path(str(source)), (*PROBE_FLAGS[:2], *flags), given)
        module = read_module(after)
        table = LookupTable(module, schedule.module)
        costs, _ = under_other_flags(profile, measured_on, table, hardware)
        return predict(module, costs, hardware), costs

    plain, costs = scheduled(())
    path = trial.new_folder() / "profile.pbtxt"
    path.write_bytes(encode_profile(costs, path.suffix))
    given, _ = scheduled(
        [f"{MATMULS_FLAG if '.matmul' in table.name else COLLECTIVES_FLAG}={table}" for table in tables]
    )
    profiled, _ = scheduled((), path)
    found = {"XLA's own table": plain, "this table": given, "a profile": profiled}
    return tuple(
        Step(label, item.step_us, item.exposed_us, item.costs_are, item.estimated_share, gain(plain, item))
        for label, item in found.items()
    ), ()


def _before_optimizations(request: ConvertRequest, name: str) -> AnyPath | None:
    folders = [path for path in request.hlo if path.is_dir()]
    files = [file for folder in folders for file in folder.glob(f"*.{name}.before_optimizations.*")]
    return min(files, key=str, default=None)
