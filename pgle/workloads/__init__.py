"""Programs to profile, real on GPUs, runnable on virtual CPU devices: their arguments, devices, step loop and records.

A workload is a step function and a function that makes its inputs. It runs on GPUs, on virtual CPU devices, or is only
compiled (`--compile-only`), which is all that a rehearsal needs and takes no memory for its arrays.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Workload:
    """A program to profile."""

    step: Callable[[Any], Any]  # one step, from state to state
    state: Any  # pytree of `jax.ShapeDtypeStruct` with shardings
    gpu_only: bool = False  # it says what jax lowers for GPUs alone and silently drops for CPUs: memory kinds


def _arguments(description: str | None, **own: int | str | bool) -> argparse.Namespace:
    """What the command line says: the options of every workload, and its own, with their defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--devices", type=int, default=4, help="number of devices, GPUs or virtual CPU devices")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--platform", choices=["auto", "gpu", "cpu"], default="auto")
    parser.add_argument("--compile-only", action="store_true", help="compile the step, run nothing")
    parser.add_argument("--record", type=Path, help="append one JSON line per step to this file")
    for name, default in own.items():
        kind: dict[str, Any] = {"action": "store_true"} if default is False else {"type": type(default)}
        words = name.replace("_", " ")
        parser.add_argument(f"--{words.replace(' ', '-')}", default=default, help=words, **kind)
    return parser.parse_args()


def prepare(options: argparse.Namespace) -> Any:
    """Choose the platform, import jax, and return a list of `options.devices` devices."""
    wants_cpu = options.platform == "cpu" or os.environ.get("JAX_PLATFORMS") == "cpu"
    if wants_cpu or (options.platform == "auto" and not Path("/proc/driver/nvidia/version").exists()):
        os.environ["JAX_PLATFORMS"] = "cpu"
        flags = os.environ.get("XLA_FLAGS", "")
        if "xla_force_host_platform_device_count" not in flags:
            count = f"--xla_force_host_platform_device_count={options.devices}"
            os.environ["XLA_FLAGS"] = f"{flags} {count}".strip()
    import jax

    devices = jax.devices()
    if len(devices) < options.devices:
        sys.exit(f"{options.devices} devices wanted, {len(devices)} {devices[0].platform} there; say --devices")
    return devices[: options.devices]


def run(options: argparse.Namespace, workload: Workload) -> None:
    """Compile or run a workload; prints a line per step and records it."""
    import jax

    step = jax.jit(workload.step, donate_argnums=0)
    if options.compile_only and workload.gpu_only and jax.devices()[0].platform == "cpu":
        _leave_gpu_module(step.trace(workload.state).lower(lowering_platforms=("cuda",)), workload.step.__name__)
        return
    if options.compile_only:
        step.lower(workload.state).compile()
        print(f"compiled {workload.step.__name__}")
        return
    state = jax.block_until_ready(_values(workload.state))
    for number in range(options.steps):
        begin = time.perf_counter()
        with jax.profiler.StepTraceAnnotation("step", step_num=number):
            state = jax.block_until_ready(step(state))
        seconds = time.perf_counter() - begin
        print(f"step {number}: {seconds:.6f} s", flush=True)
        if options.record:
            with options.record.open("a") as file:
                file.write(json.dumps({"step": number, "step_time_s": round(seconds, 9)}) + "\n")


def _leave_gpu_module(lowered: Any, name: str) -> None:
    """Write a step lowered for GPUs where jax would have dumped the one that it compiles."""
    folder = os.environ.get("JAX_DUMP_IR_TO")
    if folder:
        (Path(folder) / f"jax_ir0000_jit_{name}_compile.mlir").write_text(lowered.as_text())
    print(f"lowered {name} for cuda")


def _values(shapes: Any) -> Any:
    """Small random numbers in the shapes and shardings of a state."""
    import jax

    def make() -> Any:
        leaves, tree = jax.tree.flatten(shapes)
        keys = jax.random.split(jax.random.key(0), len(leaves))
        return tree.unflatten(
            [(jax.random.normal(key, x.shape) * 0.02).astype(x.dtype) for key, x in zip(keys, leaves, strict=True)]
        )

    return jax.jit(make, out_shardings=jax.tree.map(lambda x: x.sharding, shapes))()


def main(
    build: Callable[[argparse.Namespace, Any], Workload], description: str | None, **own: int | str | bool
) -> None:
    """The program of a workload: parse, build, run; `own` are its options besides those of every workload."""
    options = _arguments(description, **own)
    devices = prepare(options)
    run(options, build(options, devices))


def array(mesh: Any, shape: tuple[int, ...], dtype: str, *axes: str | None) -> Any:
    """The shape of an array whose dimensions are sharded over mesh axes."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))


def mesh(devices: Sequence[Any], **axes: int) -> Any:
    """A device mesh with named axes, e.g. ``mesh(devices, data=4)``."""
    import numpy as np
    from jax.sharding import Mesh

    return Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes))


def shard_map(function: Callable[..., Any], mesh: Any, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """`jax.shard_map` without replication checks, wherever this jax keeps it."""
    import inspect

    import jax

    transform: Any = getattr(jax, "shard_map", None)
    if transform is None:
        from jax.experimental import shard_map as old

        transform = old.shard_map
    check = "check_vma" if "check_vma" in inspect.signature(transform).parameters else "check_rep"
    mapped: Callable[..., Any] = transform(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **{check: False}
    )
    return mapped
