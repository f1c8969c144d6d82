"""Time to turn a large xplane into numbers: our reader against jaxlib's C++ converter, same file,
one run.

    python benchmarks/xplane_convert.py                     # 300 k and 2 M kernel events
    python benchmarks/xplane_convert.py --events 300000 --readers

`--readers` also times two other ways to get at the events, which were not chosen:
`jax.profiler.ProfileData`, and the generated protobuf classes. Each reader runs in its own process;
the peak is that process's resident memory.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from pgle.trace.table import ActivityKind, Device, ModuleKey, Trace
from pgle.xla.protos import xplane_pb2

DEVICES, INSTRUCTIONS, STREAMS = 8, 2000, 4
CUDA_STATS = {
    "context_id": "$$1",
    "theoretical_occupancy_pct": 50.0,
    "occupancy_min_grid_size": 132,
    "occupancy_suggested_block_size": 1024,
}
"""What CUPTI adds to every kernel beyond what the writer writes; with it an event has ten stats."""
VALUE_FIELDS = {str: "str_value", float: "double_value", int: "int64_value"}


def large_trace(events: int) -> Trace:
    """A step of 2,000 instructions on 8 devices, again and again."""
    per_device = events // DEVICES
    count = per_device * DEVICES
    number = np.tile(np.arange(per_device), DEVICES)
    instruction = number % INSTRUCTIONS
    random = np.random.default_rng(0)
    duration = random.integers(2_000, 200_000, INSTRUCTIONS)[
        instruction
    ] + random.integers(0, 500, count)
    ends = np.cumsum((duration + 500).reshape(DEVICES, per_device), axis=1).ravel()
    kinds = (
        "gemm_fusion_dot",
        "loop_add_fusion",
        "all-gather-start",
        "input_reduce_fusion",
        "custom-call",
    )
    return Trace(
        start_ns=1_700_000_000_000_000_000 + ends - duration,
        duration_ns=duration,
        kind=np.where(
            instruction % 50 == 0, ActivityKind.MEMCPY, ActivityKind.KERNEL
        ).astype(np.uint8),
        device=np.repeat(np.arange(DEVICES, dtype=np.int32), per_device),
        stream=(13 + instruction % STREAMS).astype(np.int32),
        module=np.zeros(count, np.int32),
        instruction=instruction.astype(np.int32),
        execution=(number // INSTRUCTIONS).astype(np.int32),
        instance=number.astype(np.int32),
        modules=(ModuleKey("jit_train_step", 42),),
        instructions=tuple(f"{kinds[i % len(kinds)]}.{i}" for i in range(INSTRUCTIONS)),
        devices=tuple(Device("host:1", ordinal) for ordinal in range(DEVICES)),
    )


def as_cupti(data: bytes) -> bytes:
    """A written xplane with `CUDA_STATS` on every event of a GPU."""
    space = xplane_pb2.XSpace.FromString(data)
    for plane in space.planes:
        if plane.name.startswith("/device:GPU:"):
            stats = []
            for name, value in CUDA_STATS.items():
                number = len(plane.stat_metadata) + 1
                plane.stat_metadata[number].CopyFrom(
                    xplane_pb2.XStatMetadata(id=number, name=name)
                )
                stat = xplane_pb2.XStat(metadata_id=number)
                setattr(stat, VALUE_FIELDS[type(value)], value)
                stats.append(stat)
            for line in plane.lines:
                for event in line.events:
                    event.stats.extend(stats)
    return space.SerializeToString()


def read_ours(folder: Path) -> int:
    from pgle.trace.xplane.read import find_xplanes, read_xplane

    return len(read_xplane(find_xplanes(folder)))


def read_jaxlib(folder: Path) -> int:
    from jax.experimental.profiler import get_profiled_instructions_proto

    return len(get_profiled_instructions_proto(str(folder)))


def read_profile_data(folder: Path) -> int:
    from jax.profiler import ProfileData

    data = ProfileData.from_serialized_xspace(
        next(folder.glob("*.xplane.pb")).read_bytes()
    )
    rows = []
    for plane in data.planes:
        for line in plane.lines if plane.name.startswith("/device:GPU:") else ():
            for event in line.events:
                stats = dict(event.stats)
                rows.append(
                    (
                        event.start_ns,
                        event.duration_ns,
                        stats["hlo_op"],
                        stats["hlo_module"],
                    )
                )
    return len(rows)


def read_protobuf(folder: Path) -> int:
    from pgle.xla.protos import xplane_pb2

    space = xplane_pb2.XSpace.FromString(next(folder.glob("*.xplane.pb")).read_bytes())
    rows = []
    for plane in space.planes:
        ids = {item.name: key for key, item in plane.stat_metadata.items()}
        wanted = (ids.get("hlo_op"), ids.get("hlo_module"))
        for line in plane.lines if plane.name.startswith("/device:GPU:") else ():
            for event in line.events:
                found = [
                    stat.ref_value for stat in event.stats if stat.metadata_id in wanted
                ]
                rows.append((event.offset_ps, event.duration_ps, *found))
    return len(rows)


READERS = {
    "pgle": read_ours,
    "jaxlib": read_jaxlib,
    "ProfileData": read_profile_data,
    "protobuf": read_protobuf,
}


def measure(reader: str, folder: Path) -> tuple[float, float]:
    """Seconds and peak MiB of one reader in a process of its own; imports are not counted."""
    command = [sys.executable, __file__, "--child", reader, str(folder)]
    output = subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.split()
    return float(output[-2]), float(output[-1])


def child(reader: str, folder: Path) -> None:
    import jax.experimental.profiler
    import jax.profiler  # noqa: F401

    import pgle.trace.xplane.read  # noqa: F401

    start = time.perf_counter()
    READERS[reader](folder)
    seconds = time.perf_counter() - start
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, nargs="+", default=[300_000, 2_000_000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--readers",
        action="store_true",
        help="time ProfileData and protobuf classes as well",
    )
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], Path(options.child[1]))
        return
    import jaxlib

    from pgle.trace.xplane.writer import write_xplane

    readers = list(READERS) if options.readers else ["pgle", "jaxlib"]
    print(f"jaxlib {jaxlib.__version__}, best of {options.repeat}")
    for events in options.events:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            trace = large_trace(events)
            start = time.perf_counter()
            data = as_cupti(write_xplane(trace))
            seconds = time.perf_counter() - start
            (folder / "host.xplane.pb").write_bytes(data)
            size = f"{len(data) / 2**20:,.0f} MiB"
            print(f"{events:,} events, {size}, written in {seconds:.2f} s")
            del trace, data
            # in turn, so that a busy machine slows all of them
            runs = [
                {reader: measure(reader, folder) for reader in readers}
                for _ in range(options.repeat)
            ]
            best = {reader: min(run[reader] for run in runs) for reader in readers}
            for reader, (seconds, peak) in best.items():
                ratio = seconds / best["jaxlib"][0]
                print(
                    f"  {reader:12} {seconds:8.2f} s  {ratio:6.2f} x jaxlib  peak {peak:6,.0f} MiB"
                )


if __name__ == "__main__":
    main()
