"""Programs to profile, for GPUs or virtual CPU devices: ``python -m pgle.workloads fsdp`` or
``overlap``.

A workload is a step function and the shapes of its state. It runs on GPUs or on virtual CPU
devices. With `--compile-only` it is only compiled, and needs no memory for its arrays. A rehearsal
needs no more.

fsdp: a transformer step with fully sharded parameters: gathers before use, reduce-scatters of
gradients. Layers are unrolled, or scanned with `--scan` (one loop body, costs per iteration).
`--batch` counts sequences over all devices.

overlap: two gathers next to one chain of matmuls, the smallest program whose schedule true costs
improve. The chain could hide both. To the scheduler's constants a gather takes longer than all of
it: one gather gets the whole chain, and the other, the small one or the big one as the version of
XLA has it, gets next to nothing.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclass(frozen=True)
class Workload:
    """A program to profile."""

    step: Callable[[Any], Any]  # one step, from state to state
    state: Any  # pytree of `jax.ShapeDtypeStruct` with shardings


def main(
    build: Callable[[argparse.Namespace, Any], Workload],
    description: str | None,
    **own: int | str | bool,
) -> None:
    """Run a workload as a program: parse options, build, run. `own` are its options besides the
    common ones.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--devices",
        type=int,
        default=4,
        help="number of devices, GPUs or virtual CPU devices",
    )
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--platform", choices=["auto", "gpu", "cpu"], default="auto")
    parser.add_argument(
        "--compile-only", action="store_true", help="compile the step, run nothing"
    )
    for name, default in own.items():
        kind: dict[str, Any] = (
            {"action": "store_true"} if default is False else {"type": type(default)}
        )
        words = name.replace("_", " ")
        parser.add_argument(
            f"--{words.replace(' ', '-')}", default=default, help=words, **kind
        )
    options = parser.parse_args()
    run(options, build(options, _devices(options)))


DRIVERS = ("/proc/driver/nvidia/version", "/dev/kfd")
"""Paths that exist if the driver of NVIDIA's or AMD's GPUs is loaded."""


def _devices(options: argparse.Namespace) -> Any:
    """Return the first `options.devices` devices of the chosen platform."""
    wants_cpu = options.platform == "cpu" or os.environ.get("JAX_PLATFORMS") == "cpu"
    if wants_cpu or (
        options.platform == "auto" and not any(Path(path).exists() for path in DRIVERS)
    ):
        jax.config.update("jax_platforms", "cpu")
        flags = os.environ.get("XLA_FLAGS", "")
        # XLA reads the flags when the first device is made
        if "xla_force_host_platform_device_count" not in flags:
            count = f"--xla_force_host_platform_device_count={options.devices}"
            os.environ["XLA_FLAGS"] = f"{flags} {count}".strip()
    devices = jax.devices()
    if len(devices) < options.devices:
        sys.exit(
            f"{options.devices} devices wanted, {len(devices)} {devices[0].platform} there; "
            "say --devices"
        )
    return devices[: options.devices]


def run(options: argparse.Namespace, workload: Workload) -> None:
    """Compile or run a workload, and print a line for each step."""
    name = workload.step.__name__
    step = jax.jit(workload.step, donate_argnums=0)
    if options.compile_only:
        step.lower(workload.state).compile()
        print(f"compiled {name}")
        return
    state = jax.block_until_ready(_values(workload.state))
    for number in range(options.steps):
        begin = time.perf_counter()
        with jax.profiler.StepTraceAnnotation("step", step_num=number):
            state = jax.block_until_ready(step(state))
        print(f"step {number}: {time.perf_counter() - begin:.6f} s", flush=True)


def _values(shapes: Any) -> Any:
    """Small random numbers in the shapes and shardings of a state."""

    def make() -> Any:
        leaves, tree = jax.tree.flatten(shapes)
        keys = jax.random.split(jax.random.key(0), len(leaves))
        return tree.unflatten(
            [
                (jax.random.normal(key, x.shape) * 0.02).astype(x.dtype)
                for key, x in zip(keys, leaves, strict=True)
            ]
        )

    return jax.jit(make, out_shardings=jax.tree.map(lambda x: x.sharding, shapes))()


def array(mesh: Mesh, shape: tuple[int, ...], dtype: str, *axes: str | None) -> Any:
    """The shape of an array whose dimensions are sharded over mesh axes."""
    return jax.ShapeDtypeStruct(
        shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes))
    )


def mesh(devices: Sequence[Any], **axes: int) -> Mesh:
    """A device mesh with named axes, e.g. ``mesh(devices, data=4)``."""
    return Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes))


def shard_map(
    function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """`jax.shard_map` without replication checks, wherever this jax keeps it."""
    if hasattr(jax, "shard_map"):
        from jax import shard_map as transform
    else:
        from jax.experimental.shard_map import shard_map as transform
    check = (
        "check_vma"
        if "check_vma" in inspect.signature(transform).parameters
        else "check_rep"
    )
    mapped: Callable[..., Any] = transform(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **{check: False}
    )
    return mapped


def fsdp(options: argparse.Namespace, devices: Any) -> Workload:
    """One optimizer step of a decoder without embeddings, squared-error loss, plain SGD."""
    grid = mesh(devices, data=options.devices)
    dtype, d, f = options.dtype, options.model_dim, options.ff_dim
    heads, size = options.heads, options.model_dim // options.heads
    sizes = {
        "query": (d, d),
        "key": (d, d),
        "value": (d, d),
        "out": (d, d),
        "up": (d, f),
        "down": (f, d),
    }

    def gathered(weight: Any) -> Any:
        return jax.lax.with_sharding_constraint(
            weight, NamedSharding(grid, PartitionSpec(None, None))
        )

    def layer(x: Any, weights: dict[str, Any]) -> Any:
        w = {name: gathered(weight) for name, weight in weights.items()}
        batch, length, _ = x.shape
        normed = x * jax.lax.rsqrt(
            jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6
        ).astype(x.dtype)
        q, k, v = (
            (normed @ w[name]).reshape(batch, length, heads, size)
            for name in ("query", "key", "value")
        )
        scores = jax.nn.softmax(
            jnp.einsum("bqhd,bkhd->bhqk", q, k) * size**-0.5, axis=-1
        )
        mixed = jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(batch, length, d)
        x = x + mixed @ w["out"]
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"]

    def forward(parameters: Any, x: Any) -> Any:
        if options.scan:
            return jax.lax.scan(
                lambda carry, weights: (jax.checkpoint(layer)(carry, weights), None),
                x,
                parameters,
            )[0]
        for weights in parameters:
            x = layer(x, weights)
        return x

    def loss(parameters: Any, x: Any) -> Any:
        return jnp.mean(jnp.square(forward(parameters, x).astype(jnp.float32)))

    def train_step(state: Any) -> Any:
        gradients = jax.grad(loss)(state["parameters"], state["x"])
        updated = jax.tree.map(
            lambda w, g: w - (1e-3 * g).astype(w.dtype), state["parameters"], gradients
        )
        return {"parameters": updated, "x": state["x"]}

    by_batch = ("data", None, None)
    x = array(grid, (options.batch, options.length, d), dtype, *by_batch)
    one = {name: array(grid, sizes[name], dtype, "data", None) for name in sizes}
    by_rows = (None, "data", None)
    stacked = {
        name: array(grid, (options.layers, *size), dtype, *by_rows)
        for name, size in sizes.items()
    }
    parameters = stacked if options.scan else [one] * options.layers
    return Workload(train_step, {"parameters": parameters, "x": x})


def overlap(options: argparse.Namespace, devices: Any) -> Workload:
    """Gather `big` and `small`; meanwhile each device multiplies its own weights."""
    grid = mesh(devices, data=options.devices)
    sharded = PartitionSpec("data")

    def device_step(big: Any, small: Any, weights: Any) -> Any:
        all_big = jax.lax.all_gather(jnp.tanh(big), "data", axis=0, tiled=True)
        all_small = jax.lax.all_gather(jnp.sin(small), "data", axis=0, tiled=True)
        chain = weights
        for _ in range(options.matmuls):
            chain = jnp.tanh(chain @ weights)
        rows, few = big.shape[0], small.shape[0]
        return jnp.exp(all_big)[:rows] * 2, jnp.cos(all_small)[:few] * 3, chain

    mapped = shard_map(
        device_step,
        grid,
        (sharded, sharded, sharded),
        (sharded, sharded, sharded),
    )

    def overlap_step(state: Any) -> Any:
        big, small, weights = mapped(state["big"], state["small"], state["weights"])
        return {"big": big, "small": small, "weights": weights}

    rows = {"big": options.big_rows, "small": options.small_rows}
    state = {
        name: array(
            grid, (count * options.devices, options.width), options.dtype, "data", None
        )
        for name, count in rows.items()
    }
    state["weights"] = array(
        grid,
        (options.dim * options.devices, options.dim),
        options.dtype,
        "data",
        None,
    )
    return Workload(overlap_step, state)


WORKLOADS: dict[
    str,
    tuple[Callable[[argparse.Namespace, Any], Workload], dict[str, int | str | bool]],
] = {
    "fsdp": (
        fsdp,
        {
            "layers": 4,
            "model_dim": 1024,
            "ff_dim": 4096,
            "heads": 16,
            "batch": 16,
            "length": 1024,
            "dtype": "bfloat16",
            "scan": False,
        },
    ),
    "overlap": (
        overlap,
        {
            "big_rows": 8192,
            "small_rows": 6144,
            "width": 1024,
            "dim": 4096,
            "matmuls": 10,
            "dtype": "bfloat16",
        },
    ),
}
"""Each workload's function, and its own options with their defaults."""

if __name__ == "__main__":
    asked = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if asked not in WORKLOADS:
        sys.exit(f"usage: python -m pgle.workloads {{{','.join(WORKLOADS)}}} [options]")
    main(WORKLOADS[asked][0], __doc__, **WORKLOADS[asked][1])
