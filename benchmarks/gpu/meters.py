"""Two ways to a row: run a case on the GPU, or predict it where there is none. Both compile it with
XLA.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from benchmarks.gpu.cases import Case, filled, shapes
from benchmarks.gpu.results import Results, Row

MEASURED_S = (
    0.02  # least length of one measurement: the clock and the launch do not count
)
MEASUREMENTS = 7
MOST_LAUNCHES = 200  # of one measurement
MOST_STEPS = 30
LEAST_STEPS = 5
STEPS_S = 1.5  # seconds that the steps of one case may take
TRACED = 3  # executions of each case in the trace of its group
SIMULATED = "simulated: predicted from the module that XLA compiled without a GPU"
LAUNCHES = "{} measurements of {} launches each, the last waited for; medians"
STEPS = "{} steps after {} of warm-up, each waited for; medians"
WARM_UP = 3


@dataclass(frozen=True)
class Measured:
    """A row, and what was recorded for it by file name."""

    row: Row
    recordings: dict[str, bytes] = field(default_factory=dict)


class Meter(Protocol):
    """Measures cases, a group at a time."""

    def begin(self, group: Sequence[Case]) -> None:
        """Compile a group, in parallel. No case of it is measured before all are compiled."""

    def measure(self, case: Case) -> Measured:
        """Measure a case of the group."""

    def end(self, group: Sequence[Case]) -> dict[str, bytes]:
        """Return what is recorded of a group as a whole, by file name."""


def measure_all(
    cases: Sequence[Case], meter: Meter, results: Results, group_size: int
) -> None:
    """A row for each case; that of a case that fails says why."""
    for begin in range(0, len(cases), group_size):
        group = cases[begin : begin + group_size]
        meter.begin(group)
        for case in group:
            try:
                measured = meter.measure(case)
            except Exception as error:
                measured = Measured(
                    Row(case.name, case.kind, base=case.base, error=failure(error))
                )
            results.add(measured.row, measured.recordings)
        for name, data in meter.end(group).items():
            results.keep(name, data)
        results.write(complete=False)


def failure(error: BaseException) -> str:
    """An error in one line."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:300]}"


class GpuMeter:
    """The GPU of this machine."""

    def __init__(self) -> None:
        self.groups = 0
        self.compiled: dict[str, Future[tuple[Any, str]]] = {}
        self.peak_bytes = 0

    def begin(self, group: Sequence[Case]) -> None:
        """Compile in threads: XLA leaves Python free meanwhile."""
        with ThreadPoolExecutor() as pool:
            self.compiled = {case.name: pool.submit(compiled, case) for case in group}

    def measure(self, case: Case) -> Measured:
        """Median over measurements, and the peak of memory if it is a new one."""
        executable, source = self.compiled[case.name].result()
        arguments = filled(case)
        self._new_peak()  # of making the arguments
        times = step_times if case.is_step else launch_times
        found, how = times(lambda: executable(*arguments))
        memory = executable.memory_analysis()
        row = Row(
            case.name,
            case.kind,
            us=statistics.median(found) * 1e6,
            range_us=(min(found) * 1e6, max(found) * 1e6),
            how=how,
            memory_bytes=self._new_peak(),
            planned_bytes=_planned(memory),
            base=case.base,
        )
        module = executable.runtime_executable().hlo_modules()[0]
        proto = as_hlo_proto(module.as_serialized_hlo_module_proto())
        return Measured(
            row, {f"{case.name}.hlo.pb": proto, f"{case.name}.mlir": source.encode()}
        )

    def end(self, group: Sequence[Case]) -> dict[str, bytes]:
        """The trace of all cases of the group, some executions of each."""
        self.groups += 1
        return {f"group{self.groups:02d}.xplane.pb": self._trace(group)}

    def _trace(self, group: Sequence[Case]) -> bytes:
        import jax

        usable = [
            case for case in group if self.compiled[case.name].exception() is None
        ]
        with tempfile.TemporaryDirectory() as folder:
            jax.profiler.start_trace(folder, profiler_options=without_python())
            try:
                for case in usable:
                    executable, arguments = (
                        self.compiled[case.name].result()[0],
                        filled(case),
                    )
                    for _ in range(TRACED):
                        jax.block_until_ready(executable(*arguments))
            finally:
                jax.profiler.stop_trace()
            return next(Path(folder).rglob("*.xplane.pb")).read_bytes()

    def _new_peak(self) -> int | None:
        """The peak of device memory of this process if it rose since the last call."""
        import jax

        used = jax.devices()[0].memory_stats() or {}
        peak = used.get("peak_bytes_in_use", 0)
        was, self.peak_bytes = self.peak_bytes, max(peak, self.peak_bytes)
        return peak if peak > was else None


def without_python() -> Any:
    """Options of the profiler: no calls of Python functions."""
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    return options


def compiled(case: Case) -> tuple[Any, str]:
    """A case compiled for this machine, and its StableHLO as text."""
    lowered = case.jitted.lower(*shapes(case))
    return lowered.compile(), lowered.as_text(debug_info=True)


def _planned(memory: Any) -> int | None:
    """Device memory of one execution as XLA planned it."""
    if memory is None:
        return None
    sizes = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes")
    total: int = (
        sum(getattr(memory, name) for name in sizes) - memory.alias_size_in_bytes
    )
    return total


def as_hlo_proto(module: bytes) -> bytes:
    """An HloProto (xla/service/hlo.proto) around an HloModuleProto, its first field."""
    from pgle.run.ask.jax_private import submessage

    return submessage(1, module)


def launch_times(launch: Callable[[], Any]) -> tuple[list[float], str]:
    """Seconds of one launch, in several measurements of several launches back to back."""
    import jax

    for _ in range(WARM_UP):
        jax.block_until_ready(launch())
    one_s = _timed(launch, 1)
    launches = min(max(math.ceil(MEASURED_S / one_s), 1), MOST_LAUNCHES)
    found = [_timed(launch, launches) / launches for _ in range(MEASUREMENTS)]
    return found, LAUNCHES.format(MEASUREMENTS, launches)


def step_times(launch: Callable[[], Any]) -> tuple[list[float], str]:
    """Seconds of each of several steps."""
    import jax

    for _ in range(WARM_UP):
        jax.block_until_ready(launch())
    one_s = _timed(launch, 1)
    count = min(max(math.ceil(STEPS_S / one_s), LEAST_STEPS), MOST_STEPS)
    return [_timed(launch, 1) for _ in range(count)], STEPS.format(count, WARM_UP + 1)


def _timed(launch: Callable[[], Any], launches: int) -> float:
    """Seconds until the last of some launches is done."""
    import jax

    begin = time.perf_counter()
    for _ in range(launches):
        result = launch()
    jax.block_until_ready(result)
    return time.perf_counter() - begin


class SimulatedMeter:
    """XLA's compiler without a GPU, and pgle's prediction of what it compiled."""

    def __init__(self, target: str, work: Path) -> None:
        from pgle.run.compiler.compile import Compiler

        self.target, self.work = target, work
        self.compiler = Compiler()
        self.found: dict[str, Future[Measured]] = {}

    def begin(self, group: Sequence[Case]) -> None:
        """Lower one case after the other; compile in two threads."""
        with ThreadPoolExecutor(2) as pool:
            self.found = {case.name: self._started(case, pool) for case in group}

    def _started(self, case: Case, pool: ThreadPoolExecutor) -> Future[Measured]:
        """The prediction of a case, which is made in the pool; jax lowers in this thread only."""
        try:
            module = source_of(case, self.work, self.target)
        except Exception as error:
            failed: Future[Measured] = Future()
            failed.set_exception(error)
            return failed
        return pool.submit(self._predicted, case, module)

    def _predicted(self, case: Case, module: Path) -> Measured:
        row, scheduled = rehearsed(
            case.name, module, self.compiler, self.target, self.work
        )
        row = replace(row, kind=case.kind, base=case.base)
        recordings = {
            f"{case.name}.hlo.pb": scheduled,
            f"{case.name}.mlir": module.read_bytes(),
        }
        return Measured(row, recordings)

    def measure(self, case: Case) -> Measured:
        """The prediction in the place of a measurement."""
        return self.found[case.name].result()

    def end(self, group: Sequence[Case]) -> dict[str, bytes]:
        """Nothing: no trace is made."""
        return {}


def source_of(case: Case, work: Path, target: str) -> Path:
    """The StableHLO of a case for GPUs, without one."""
    from pgle.run.capture.capture import lowered_step
    from pgle.xla.targets import load_target

    folder = Path(tempfile.mkdtemp(dir=work))
    return lowered_step(case.jitted, shapes(case), folder, load_target(target))


def rehearsed(
    name: str, module: Path, compiler: Any, target: str, work: Path
) -> tuple[Row, bytes]:
    """What is predicted for a module compiled without a GPU, and the scheduled module."""
    from pgle.run.compiler.compile import CompileRequest
    from pgle.schedule.predict import predict
    from pgle.xla.targets import find_hardware, load_target

    described = load_target(target)
    folder = Path(tempfile.mkdtemp(dir=work)) / "dump"
    request = CompileRequest(module=module, targets=described.texts, dump_dir=folder)
    result = compiler.compile(request)
    prediction = predict(result.scheduled, None, find_hardware(described))
    row = Row(
        name,
        us=prediction.step_us,
        range_us=prediction.interval_us,
        how=SIMULATED,
        planned_bytes=result.memory_bytes,
    )
    return row, result.after_optimizations.read_bytes()
