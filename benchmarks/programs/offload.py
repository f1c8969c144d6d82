"""Activations offloaded to host memory between forward and backward pass: copies that can hide
behind compute.
"""

from __future__ import annotations

import argparse
from typing import Any

from pgle.workloads import Workload, array, main, mesh


def build(options: argparse.Namespace, devices: Any) -> Workload:
    """A deep MLP, data parallel; the input of every layer waits in pinned host memory for the
    backward pass.
    """
    import jax
    import jax.numpy as jnp
    from jax.ad_checkpoint import checkpoint_name

    grid = mesh(devices, data=options.devices)
    offload = (
        options.platform != "cpu" and devices[0].platform != "cpu"
    ) or options.compile_only
    policy = (
        jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[],
            names_which_can_be_offloaded=["layer_input"],
            offload_src="device",
            offload_dst="pinned_host",
        )
        if offload
        else None
    )

    def layer(x: Any, weights: Any) -> Any:
        x = checkpoint_name(x, "layer_input")
        return x + jnp.tanh(x @ weights)

    def loss(weights: Any, x: Any) -> Any:
        step = jax.checkpoint(layer, policy=policy)
        out = x
        for number in range(
            options.layers
        ):  # XLA starts no copy of a loop in the iteration before
            out = step(out, weights[number])
        return jnp.mean(jnp.square(out.astype(jnp.float32)))

    def offload_step(state: Any) -> Any:
        gradients = jax.grad(loss)(state["weights"], state["x"])
        return {
            **state,
            "weights": state["weights"]
            - (1e-3 * gradients).astype(state["weights"].dtype),
        }

    d = options.model_dim
    return Workload(
        offload_step,
        {
            "weights": array(
                grid, (options.layers, d, d), options.dtype, None, None, None
            ),
            "x": array(grid, (options.batch, d), options.dtype, "data", None),
        },
    )


if __name__ == "__main__":
    main(build, __doc__, layers=8, model_dim=4096, batch=8192, dtype="bfloat16")
