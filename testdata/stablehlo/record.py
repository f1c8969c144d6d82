"""Writes the StableHLO of a small FSDP training step: `python record.py OUT.mlir`, on any machine with jax."""

import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LAYERS, WIDTH, HIDDEN, BATCH = 2, 1024, 4096, 512
DTYPE = jnp.bfloat16


def train_step(params, x):
    """One step of plain gradient descent; returns new parameters and the loss."""

    def loss(params):
        h = x
        for up, down in params:
            h = h + jnp.tanh(h @ up) @ down
        return jnp.mean(jnp.square(h.astype(jnp.float32)))

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(
        lambda p, g: (p - 0.01 * g).astype(p.dtype), params, gradients
    ), value


def main(out: str) -> None:
    """Lower the step for four devices and write it."""
    mesh = Mesh(np.array(jax.devices()), ("fsdp",))
    sharded = NamedSharding(mesh, PartitionSpec("fsdp", None))
    array = jax.ShapeDtypeStruct
    params = [
        (array((WIDTH, HIDDEN), DTYPE), array((HIDDEN, WIDTH), DTYPE))
        for _ in range(LAYERS)
    ]
    shardings = jax.tree.map(lambda _: sharded, params)
    step = jax.jit(
        train_step, in_shardings=(shardings, sharded), out_shardings=(shardings, None)
    )
    Path(out).write_text(step.lower(params, array((BATCH, WIDTH), DTYPE)).as_text())


if __name__ == "__main__":
    main(sys.argv[1])
