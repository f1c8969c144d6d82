"""A transformer step with fully sharded parameters (FSDP): gathers before use, reduce-scatters of gradients.

Layers are unrolled, or scanned with `--scan` (one loop body, costs per iteration). `--batch` counts sequences over all
devices.
"""

from __future__ import annotations

import argparse
from typing import Any

from pgle.workloads import Workload, array, main, mesh

WEIGHTS = ("query", "key", "value", "out", "up", "down")


def build(options: argparse.Namespace, devices: Any) -> Workload:
    """One optimizer step of a decoder without embeddings, squared-error loss, plain SGD."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    grid = mesh(devices, data=options.devices)
    dtype, d, f = options.dtype, options.model_dim, options.ff_dim
    heads, size = options.heads, options.model_dim // options.heads
    sizes = {"query": (d, d), "key": (d, d), "value": (d, d), "out": (d, d), "up": (d, f), "down": (f, d)}

    def gathered(weight: Any) -> Any:
        return jax.lax.with_sharding_constraint(weight, NamedSharding(grid, PartitionSpec(None, None)))

    def layer(x: Any, weights: dict[str, Any]) -> Any:
        w = {name: gathered(weight) for name, weight in weights.items()}
        batch, length, _ = x.shape
        normed = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6).astype(x.dtype)
        q, k, v = ((normed @ w[name]).reshape(batch, length, heads, size) for name in ("query", "key", "value"))
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * size**-0.5, axis=-1)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(batch, length, d)
        x = x + mixed @ w["out"]
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"]

    def forward(parameters: Any, x: Any) -> Any:
        if options.scan:
            return jax.lax.scan(lambda carry, weights: (jax.checkpoint(layer)(carry, weights), None), x, parameters)[0]
        for weights in parameters:
            x = layer(x, weights)
        return x

    def loss(parameters: Any, x: Any) -> Any:
        return jnp.mean(jnp.square(forward(parameters, x).astype(jnp.float32)))

    def train_step(state: Any) -> Any:
        gradients = jax.grad(loss)(state["parameters"], state["x"])
        updated = jax.tree.map(lambda w, g: w - (1e-3 * g).astype(w.dtype), state["parameters"], gradients)
        return {"parameters": updated, "x": state["x"]}

    x = array(grid, (options.batch, options.length, d), dtype, "data", None, None)
    if options.scan:
        parameters: Any = {
            name: array(grid, (options.layers, *sizes[name]), dtype, None, "data", None) for name in WEIGHTS
        }
    else:
        parameters = [
            {name: array(grid, sizes[name], dtype, "data", None) for name in WEIGHTS} for _ in range(options.layers)
        ]
    return Workload(train_step, {"parameters": parameters, "x": x})


if __name__ == "__main__":
    sizes = {"layers": 4, "model_dim": 1024, "ff_dim": 4096, "heads": 16, "batch": 16, "length": 1024}
    main(build, __doc__, **sizes, dtype="bfloat16", scan=False)
