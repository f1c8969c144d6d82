"""A circular pipeline over a ring of devices: every iteration computes one stage and shifts
activations to the next.

The forward edge (device i to i+1) and the back edge (last to first) are separate
collective-permutes: every stage needs the forward edge at once, the back edge only in the next
iteration; microbatches circulate `--repeats` times. The pattern follows the JAX GPU performance
guide (docs.jax.dev, "Pipeline Parallelism on GPU").
"""

from __future__ import annotations

import argparse
from typing import Any

from pgle.workloads import Workload, array, main, mesh, shard_map


def build(options: argparse.Namespace, devices: Any) -> Workload:
    """One pass of all microbatches through the ring."""
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import PartitionSpec

    count, microbatches = options.devices, options.microbatches
    ring = mesh(devices, stage=count)
    spec = PartitionSpec("stage")
    iterations = options.repeats * microbatches + count - 1

    def stage(weights: Any, x: Any) -> Any:
        for _ in range(options.matmuls):
            x = weights @ x
        return x

    def device_pass(weights: Any, inputs: Any) -> Any:
        weights, inputs = weights[0], inputs[0]
        rank = lax.axis_index("stage")
        forward = [(i, i + 1) for i in range(count - 1)]
        backward = [(count - 1, 0)]

        def iteration(carry: Any, number: Any) -> Any:
            outputs, result, from_last = carry
            from_previous = lax.ppermute(result, "stage", forward)
            fresh = lax.dynamic_index_in_dim(
                inputs, number % microbatches, keepdims=False
            )
            first = jnp.where(number < microbatches, fresh, from_last)
            result = stage(weights, jnp.where(rank == 0, first, from_previous))
            # Of use in the next iteration only: a whole stage can hide this transfer.
            waiting = lax.dynamic_index_in_dim(
                outputs, (number + 1) % microbatches, keepdims=False
            )
            from_last = lax.ppermute(waiting, "stage", backward)
            outputs = lax.dynamic_update_index_in_dim(
                outputs, result, (number + 2) % microbatches, 0
            )
            return (outputs, result, from_last), None

        start = (
            jnp.zeros_like(inputs),
            jnp.zeros_like(inputs[0]),
            jnp.zeros_like(inputs[0]),
        )
        (outputs, _, _), _ = lax.scan(iteration, start, jnp.arange(iterations))
        return outputs[None]

    mapped = shard_map(device_pass, ring, (spec, spec), spec)

    def pipeline_step(state: Any) -> Any:
        return {
            "weights": state["weights"],
            "inputs": mapped(state["weights"], state["inputs"]),
        }

    d, n = options.contracting, options.width
    return Workload(
        pipeline_step,
        {
            "weights": array(ring, (count, d, d), options.dtype, "stage", None, None),
            "inputs": array(
                ring,
                (count, microbatches, d, n),
                options.dtype,
                "stage",
                None,
                None,
                None,
            ),
        },
    )


if __name__ == "__main__":
    main(
        build,
        __doc__,
        microbatches=5,
        repeats=2,
        contracting=4096,
        width=8192,
        matmuls=32,
        dtype="float32",
    )
