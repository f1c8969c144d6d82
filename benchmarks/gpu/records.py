"""What the profiler, the names of instructions and the compilation cache do on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench, last_line, start
from benchmarks.gpu.results import Results, Row

BUFFERS = {
    "command_buffers_on": (),
    "command_buffers_off": ("--xla_gpu_enable_command_buffer=",),
}
"""XLA's default puts several kernels into one CUDA graph; the empty list switches that off."""
PROFILE_FLAG = "--xla_gpu_pgle_profile_file_or_directory_path="
PROFILE = 'costs {{ name: "{}" cost_us: {} }}\n'


def run(bench: Bench, results: Results) -> None:
    """The rows of each question."""
    for name, flags in BUFFERS.items():
        row, recordings = probed(bench, name, flags)
        results.add(row, recordings)
    _compare_names(results)
    cache_rows(bench, results)


def probed(
    bench: Bench,
    name: str,
    flags: tuple[str, ...],
    cache: Path | None = None,
    size: str = "large",
) -> tuple[Row, dict[str, bytes]]:
    """One start of `probe.py` under XLA flags."""
    out = bench.work / name
    out.mkdir()
    variables = {"XLA_FLAGS": " ".join(flags)}
    if cache is not None:
        variables |= {
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    if bench.simulated:
        variables["JAX_PLATFORMS"] = "cpu"
    if bench.simulated:
        size = "small"
    done = start(
        (sys.executable, "-m", "benchmarks.gpu.probe", str(out), size), variables
    )
    if done.code:
        return Row(name, "records", error=last_line(done)), {}
    facts: dict[str, Any] = json.loads((out / "facts.json").read_text())
    us, how = facts.pop("us"), facts.pop("how")
    if bench.simulated:
        us, how = None, "on the CPU, not timed"
    kept = {f"{name}.{path.name}": path.read_bytes() for path in out.iterdir()}
    recordings = {key: data for key, data in kept.items() if not key.endswith(".json")}
    return Row(name, "records", us=us, how=how, facts=facts), recordings


def _compare_names(results: Results) -> None:
    """Whether both compilations have the same instructions and fingerprint."""
    on, off = (row.facts for row in results.rows[:2])
    if not on or not off:
        return
    one, other = set(on["instructions"]), set(off["instructions"])
    facts = {
        "instructions": [len(one), len(other)],
        "in_both": len(one & other),
        "same_fingerprint": on["fingerprint"] == off["fingerprint"],
    }
    results.add(Row("names", "records", facts=facts))


def cache_rows(bench: Bench, results: Results) -> None:
    """Whether the key of JAX's compilation cache holds the path of the profile, its content, or
    none of both.
    """
    cache, profiles = bench.work / "cache", bench.work / "profiles"
    profiles.mkdir()
    starts = (
        ("cache_first", "one.pbtxt", 1.0),
        ("cache_same", "one.pbtxt", 1.0),
        ("cache_other_path", "other.pbtxt", 1.0),
        ("cache_other_content", "one.pbtxt", 1000.0),
    )
    before: set[str] = set()
    for name, file, cost_us in starts:
        path = profiles / file
        path.write_text(PROFILE.format("gemm_fusion_dot.1", cost_us))
        row, _ = probed(bench, name, (f"{PROFILE_FLAG}{path}",), cache, size="small")
        entries = {entry.name for entry in cache.glob("*-cache")}
        facts = {
            "profile": file,
            "cost_us": cost_us,
            "new_entries": len(entries - before),
        }
        before = entries
        results.add(
            Row(name, "cache", us=row.us, how=row.how, facts=facts, error=row.error)
        )
