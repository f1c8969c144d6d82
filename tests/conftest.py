"""Shared ways to make readable inputs."""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import numpy as np
import pytest
from kept_compiler import KeptCompilers
from schemas import violations

from pgle.report import text as report
from pgle.trace.table import ActivityKind, Device, ModuleKey, Trace

for name in (
    "PGLE",
    "RUN",
    "TARGET",
    "DEVICES",
    "CAPTURE",
    "MODE",
    "CMD",
    "MAKEFLAGS",
    "MAKELEVEL",
    "MFLAGS",
):
    os.environ.pop(
        name, None
    )  # of the make that runs the tests; what they start would take them for its own

hypothesis.settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile(
    "any machine"
)  # no test depends on how busy the machine is

Row = tuple[int, int, str, int, int, int]
"""(device, execution, instruction, launch, start µs, duration µs)"""


@cache
def _has(*names: str) -> bool:
    return any(
        importlib.util.find_spec(name.split(".")[0]) and importlib.util.find_spec(name)
        for name in names
    )


MISSING = {
    "gpu": None if shutil.which("nvidia-smi") else "needs an NVIDIA GPU",
    "nsys": None if shutil.which("nsys") else "needs nsys",
    "slurm": None if shutil.which("srun") else "needs Slurm",
    "tensorflow": None if _has("tensorflow") else "needs the tensorflow extra",
    "rehearse": None
    if _has("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
    else "needs the CUDA plugin wheels: pip install 'pgle[rehearse-cuda13]'",
}
"""Why tests with a marker cannot run here; None where they can."""


LONG = ("slow", "rehearse", "browser")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """All that is collected lives to the end: the garbage collector does not look at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)  # tests read modules of many small values
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker, reason in MISSING.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
    long = {item.path for item in items if any(map(item.get_closest_marker, LONG))}
    # Files that take longest come first: no worker is left alone with one of them at the end.
    items.sort(
        key=lambda item: (item.path not in long, "integration" not in item.path.parts)
    )


@pytest.fixture(autouse=True)
def default_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output is as wide as in a pipe, wherever the tests run."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def printed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every object that a test prints with --json satisfies its schema in docs/schemas."""
    wrong: list[str] = []
    print_json = report.print_json

    def checked(schema: str, value: Mapping[str, Any]) -> None:
        wrong.extend(violations(json.loads(report.as_json(schema, value))))
        print_json(schema, value)

    if _has("jsonschema"):
        monkeypatch.setattr(report, "print_json", checked)
    yield
    assert not wrong, (
        "an output is not what its type says, or python scripts/record_schemas.py is to be run"
    )


@pytest.fixture(scope="module")
def read_once() -> Iterator[None]:
    """For modules that run several commands on the same recordings."""
    from once import testdata_is_read_once

    with testdata_is_read_once():
        yield


@pytest.fixture(scope="session")
def kept_compilers() -> Iterator[KeptCompilers]:
    kept = KeptCompilers()
    yield kept
    kept.end()


@pytest.fixture(scope="module")
def plugin_loaded_once(kept_compilers: KeptCompilers) -> Iterator[None]:
    """For modules whose tests compile, and are not about the compiler's process."""
    with kept_compilers.used():
        yield


@pytest.fixture(scope="session")
def record() -> ModuleType:
    """The program testdata/hlo/record.py, which compiles without a GPU."""
    if not any(
        importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)
    ):
        pytest.skip("needs the CUDA plugin wheels")
    path = Path(__file__).parents[1] / "testdata" / "hlo" / "record.py"
    spec = importlib.util.spec_from_file_location("record", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def live_dumps(record: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dumps as testdata/hlo/README.md describes them, of the installed jax; made once for all
    processes of a run.
    """
    parent = tmp_path_factory.getbasetemp()
    live = (
        parent.parent if "PYTEST_XDIST_WORKER" in os.environ else parent
    ) / "hlo-live"
    with live.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not live.exists():
            made = Path(tempfile.mkdtemp(dir=live.parent))
            record.record_runs(made, list(record.RUNS))
            made.rename(live)
    return live


@pytest.fixture
def testdata() -> Path:
    return Path(__file__).parent.parent / "testdata"


@pytest.fixture
def make_trace() -> Callable[..., Trace]:
    """Make a trace of one module from rows (device, execution, instruction, launch, start µs,
    duration µs).
    """

    def make(
        rows: Iterable[Row],
        *,
        module: str = "jit_step",
        global_ids: tuple[int, ...] | None = None,
    ) -> Trace:
        rows = sorted(rows, key=lambda row: (row[0], row[4]))
        names = tuple(dict.fromkeys(row[2] for row in rows))
        count = max((row[0] for row in rows), default=0) + 1
        ids = global_ids or tuple(range(count))

        def column(values: Iterable[int], dtype: type) -> np.ndarray:
            return np.array(list(values), dtype=dtype)

        return Trace(
            start_ns=column((row[4] * 1000 for row in rows), np.int64),
            duration_ns=column((row[5] * 1000 for row in rows), np.int64),
            kind=np.full(len(rows), ActivityKind.KERNEL, np.uint8),
            device=column((row[0] for row in rows), np.int32),
            stream=np.zeros(len(rows), np.int32),
            module=np.zeros(len(rows), np.int32),
            instruction=column((names.index(row[2]) for row in rows), np.int32),
            execution=column((row[1] for row in rows), np.int32),
            instance=column((row[3] for row in rows), np.int32),
            modules=(ModuleKey(module, 1),),
            instructions=names,
            devices=tuple(Device("host:1", i, ids[i]) for i in range(count)),
        )

    return make
