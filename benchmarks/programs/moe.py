"""A mixture of experts with expert parallelism: tokens travel to their experts and back by
all-to-all.

Every device holds its share of the experts and of the tokens. A router picks one expert per token;
each expert takes a fixed number of tokens from each device, the rest pass it by (Switch
Transformer, arXiv 2101.03961, section 2.2).
"""

from __future__ import annotations

import argparse
from typing import Any

from pgle.workloads import Workload, array, main, mesh, shard_map


def build(options: argparse.Namespace, devices: Any) -> Workload:
    """One optimizer step over layers of routed feed-forward experts, squared-error loss, plain
    SGD.
    """
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import PartitionSpec

    grid = mesh(devices, expert=options.devices)
    count = options.experts_per_device * options.devices
    capacity = options.tokens // (
        options.devices * count
    )  # of an expert, from each device
    sharded, whole = PartitionSpec("expert"), PartitionSpec()

    def layer(x: Any, router: Any, up: Any, down: Any) -> Any:
        """Tokens ``[n, d]`` of this device through the experts of all devices."""
        gates = jax.nn.softmax((x @ router).astype(jnp.float32))
        chosen = jax.nn.one_hot(jnp.argmax(gates, axis=-1), count)
        place = (
            jnp.cumsum(chosen, axis=0) - 1
        ) * chosen  # of each token in the queue of its expert
        queue = jax.nn.one_hot(
            jnp.sum(place, axis=-1).astype(jnp.int32), capacity
        )  # nothing beyond the capacity
        dispatch = (chosen[:, :, None] * queue[:, None, :]).astype(x.dtype)
        sent = jnp.einsum("nec,nd->ecd", dispatch, x)
        received = lax.all_to_all(
            sent, "expert", split_axis=0, concat_axis=1, tiled=True
        )
        done = jnp.einsum(
            "ecf,efd->ecd", jax.nn.gelu(jnp.einsum("ecd,edf->ecf", received, up)), down
        )
        back = lax.all_to_all(done, "expert", split_axis=1, concat_axis=0, tiled=True)
        weight = jnp.max(gates, axis=-1, keepdims=True).astype(x.dtype)
        return x + weight * jnp.einsum("nec,ecd->nd", dispatch, back)

    routed = shard_map(layer, grid, (sharded, whole, sharded, sharded), sharded)

    def loss(parameters: Any, x: Any) -> Any:
        for weights in parameters:
            x = routed(x, weights["router"], weights["up"], weights["down"])
        return jnp.mean(jnp.square(x.astype(jnp.float32)))

    def moe_step(state: Any) -> Any:
        gradients = jax.grad(loss)(state["parameters"], state["x"])
        updated = jax.tree.map(
            lambda w, g: w - (1e-3 * g).astype(w.dtype), state["parameters"], gradients
        )
        return {**state, "parameters": updated}

    d, f, dtype = options.model_dim, options.ff_dim, options.dtype
    parameters = [
        {
            "router": array(grid, (d, count), dtype, None, None),
            "up": array(grid, (count, d, f), dtype, "expert", None, None),
            "down": array(grid, (count, f, d), dtype, "expert", None, None),
        }
        for _ in range(options.layers)
    ]
    return Workload(
        moe_step,
        {
            "parameters": parameters,
            "x": array(grid, (options.tokens, d), dtype, "expert", None),
        },
    )


if __name__ == "__main__":
    main(
        build,
        __doc__,
        layers=4,
        model_dim=1024,
        ff_dim=4096,
        experts_per_device=2,
        tokens=32768,
        dtype="bfloat16",
    )
