"""Two gathers next to one chain of matmuls: the smallest program whose schedule true costs improve.

The chain could hide both. To the scheduler's constants a gather takes longer than all of it: one gather gets the whole
chain, and the other, the small one or the big one as the version of XLA has it, gets next to nothing.
"""

from __future__ import annotations

import argparse
from typing import Any

from pgle.workloads import Workload, array, main, mesh, shard_map


def build(options: argparse.Namespace, devices: Any) -> Workload:
    """Gather `big` and `small`, and meanwhile multiply."""
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import PartitionSpec

    grid = mesh(devices, data=options.devices)
    sharded, replicated = PartitionSpec("data"), PartitionSpec()

    def device_step(big: Any, small: Any, weights: Any) -> Any:
        all_big = lax.all_gather(jnp.tanh(big), "data", axis=0, tiled=True)
        all_small = lax.all_gather(jnp.sin(small), "data", axis=0, tiled=True)
        chain = weights
        for _ in range(options.matmuls):
            chain = jnp.tanh(chain @ weights)
        rows, few = big.shape[0], small.shape[0]
        return jnp.exp(all_big)[:rows] * 2, jnp.cos(all_small)[:few] * 3, chain

    mapped = shard_map(device_step, grid, (sharded, sharded, replicated), (sharded, sharded, replicated))

    def overlap_step(state: Any) -> Any:
        big, small, weights = mapped(state["big"], state["small"], state["weights"])
        return {"big": big, "small": small, "weights": weights}

    n = options.devices
    return Workload(
        overlap_step,
        {
            "big": array(grid, (options.big_rows * n, options.width), options.dtype, "data", None),
            "small": array(grid, (options.small_rows * n, options.width), options.dtype, "data", None),
            "weights": array(grid, (options.dim, options.dim), options.dtype, None, None),
        },
    )


if __name__ == "__main__":
    main(build, __doc__, big_rows=8192, small_rows=6144, width=1024, dim=4096, matmuls=10, dtype="bfloat16")
