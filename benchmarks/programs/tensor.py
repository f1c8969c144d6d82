"""Tensor parallelism with gathered activations: the pattern that collective matmul (windowed
einsum) splits.
"""

from __future__ import annotations

import argparse
from typing import Any

from pgle.workloads import Workload, array, main, mesh


def build(options: argparse.Namespace, devices: Any) -> Workload:
    """Layers of up and down projections; activations are sharded along the sequence between
    them.
    """
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    grid = mesh(devices, model=options.devices)
    d, f = options.model_dim, options.ff_dim

    def sharded(x: Any, *axes: str | None) -> Any:
        return jax.lax.with_sharding_constraint(
            x, NamedSharding(grid, PartitionSpec(*axes))
        )

    def tensor_step(state: Any) -> Any:
        x = state["x"]
        for up, down in zip(state["up"], state["down"], strict=True):
            hidden = sharded(jax.nn.gelu(x @ up), None, None, "model")
            x = sharded(x + hidden @ down, None, "model", None)
        return {**state, "x": x}

    return Workload(
        tensor_step,
        {
            "x": array(
                grid,
                (options.batch, options.length, d),
                options.dtype,
                None,
                "model",
                None,
            ),
            "up": [
                array(grid, (d, f), options.dtype, None, "model")
                for _ in range(options.layers)
            ],
            "down": [
                array(grid, (f, d), options.dtype, "model", None)
                for _ in range(options.layers)
            ],
        },
    )


if __name__ == "__main__":
    main(
        build,
        __doc__,
        layers=4,
        model_dim=4096,
        ff_dim=16384,
        batch=2,
        length=2048,
        dtype="bfloat16",
    )
