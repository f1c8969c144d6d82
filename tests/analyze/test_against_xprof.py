"""What XProf's own converter makes of the same xplanes (extra `xprof`): times, counts, bytes and
operations agree.

Where they differ, and why:
- XProf counts no operations of library calls for matrix products (`custom-call`), so only fused and
plain ones compare.
- It leaves out what a convolution's window has in the padding, pgle counts the whole window: 12 %
more here.
- Its GB/s of memory are GiB/s.
- It counts launches: a call of two kernels is two occurrences here and there; its step times need
step markers, which
  these traces lack, while pgle's steps are executions of the main module.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from pgle.analyze.layers import work_of
from pgle.trace.table import Trace
from pgle.trace.xplane.read import read_xplane
from pgle.xla.hlo.proto import module_from_bytes
from tests.analyze.conftest import ROOT

converter = pytest.importorskip(
    "xprof.convert.raw_to_tool_data", reason="needs the xprof extra"
)
Row = dict[str, object]
Key = tuple[int | None, str]


@pytest.fixture(scope="module", params=["jax08_gemm", "jax_conv_minimal_08_tw003"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Trace, dict[Key, Row]]:
    """A trace as pgle reads it, and XProf's statistics by program and instruction."""
    path = ROOT / "testdata" / "jax_xplane" / f"{request.param}.xplane.pb"
    copy = shutil.copy(
        path, tmp_path_factory.mktemp("xprof")
    )  # it leaves caches beside what it reads
    table = json.loads(converter.xspace_to_tool_data([str(copy)], "hlo_stats", {})[0])
    names = [column["id"] for column in table["cols"]]
    rows = [
        dict(zip(names, (cell.get("v") for cell in row["c"]), strict=True))
        for row in table["rows"]
    ]
    return read_xplane([Path(path)]), {
        (int(row["program_id"]), row["hlo_op_name"]): row for row in rows
    }


def keys(trace: Trace) -> list[Key]:
    return [
        (trace.modules[module].program_id, trace.instructions[code])
        for module, code in zip(
            trace.module.tolist(), trace.instruction.tolist(), strict=True
        )
    ]


def test_time_and_count_of_every_instruction(
    both: tuple[Trace, dict[Key, Row]],
) -> None:
    trace, theirs = both
    counts, times = Counter(keys(trace)), Counter[Key]()
    for key, ns in zip(keys(trace), trace.duration_ns.tolist(), strict=True):
        times[key] += ns
    assert counts == {key: row["occurrences"] for key, row in theirs.items()}
    assert {key: ns / 1e3 for key, ns in times.items()} == pytest.approx(
        {k: row["total_time"] for k, row in theirs.items()}
    )


def test_bytes_and_operations(both: tuple[Trace, dict[Key, Row]]) -> None:
    trace, theirs = both
    modules = {
        key.program_id: module_from_bytes(data, key.name)
        for key, data in trace.hlo.items()
    }
    compared = 0
    for (program, name), row in theirs.items():
        module, each_us = modules[program], float(row["avg_time"])  # type: ignore[arg-type]
        made = module.instructions[name]
        work = work_of(module, made)
        moved = float(row["measured_memory_bw"]) * 2**30 * each_us / 1e6  # type: ignore[arg-type]
        if moved:
            assert work.bytes == pytest.approx(moved, rel=0.03, abs=8)
            compared += 1
        operations = float(row["model_flop_rate"]) * each_us * 1e3  # type: ignore[arg-type]
        if operations:
            padding = 1.13 if "conv" in name else 1.001
            assert operations * 0.999 <= work.flops <= operations * padding
    assert compared >= 4
