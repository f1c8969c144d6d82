"""A training step of 16 layers of attention, written by hand, and a loss over words.

    python sixteen_layers.py scan|unrolled [TARGET]

Without TARGET it is compiled for the CPU, as `pgle advise` captures it. With the file of a
GpuTargetConfigProto it is compiled for one GPU that is not there, by jax alone: the least that
somebody pays who tries an alternative by hand.
"""

import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

LAYERS, WIDTH, HEADS, LENGTH, WORDS, BATCH = 16, 256, 4, 512, 8192, 8
HALF = jnp.bfloat16


def attend(x, weights):
    heads = (BATCH, LENGTH, HEADS, WIDTH // HEADS)
    q, k, v = (
        part.reshape(heads) for part in jnp.split(x @ weights["projection"], 3, -1)
    )
    scores = jnp.einsum("bqnh,bknh->bnqk", q, k).astype(jnp.float32) / 8
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
    mixed = jnp.einsum("bnqk,bknh->bqnh", jax.nn.softmax(scores).astype(HALF), v)
    return mixed.reshape(x.shape) @ weights["out"]


def layer(x, weights):
    x = x + attend(x, weights)
    return x + jax.nn.gelu(x @ weights["up"]) @ weights["down"]


def loss(weights, tokens):
    x = weights["words"][tokens]
    layers = weights["layers"]
    if sys.argv[1] == "scan":
        x, _ = jax.lax.scan(
            lambda x, one: (jax.checkpoint(layer)(x, one), None), x, layers
        )
    else:
        for number in range(LAYERS):
            x = layer(x, {name: given[number] for name, given in layers.items()})
    chances = jax.nn.log_softmax((x @ weights["words"].T).astype(jnp.float32))
    return -jnp.take_along_axis(chances, tokens[..., None], -1).mean()


def train_step(weights, tokens):
    gradients = jax.grad(loss)(weights, tokens)
    return jax.tree.map(lambda w, g: w - HALF(1e-3) * g, weights, gradients)


SHAPES = {
    "words": (WORDS, WIDTH),
    "layers": {
        "projection": (LAYERS, WIDTH, 3 * WIDTH),
        "out": (LAYERS, WIDTH, WIDTH),
        "up": (LAYERS, WIDTH, 4 * WIDTH),
        "down": (LAYERS, 4 * WIDTH, WIDTH),
    },
}


def main():
    sharding = None
    if len(sys.argv) > 2:
        from jax.experimental import topologies

        text = Path(sys.argv[2]).read_text()
        gpus = topologies.get_topology_desc(
            "", platform="cuda", target_config=text, topology="1x1x1"
        )
        sharding = jax.sharding.SingleDeviceSharding(gpus.devices[0])
    weights = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, HALF, sharding=sharding),
        SHAPES,
        is_leaf=lambda found: isinstance(found, tuple),
    )
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32, sharding=sharding)
    try:
        jax.jit(train_step).lower(weights, tokens).compile()
    except Exception as error:  # machine code takes tools of CUDA, which may be absent
        if "ptxas" not in str(error) and "libdevice" not in str(error):
            raise
    sys.stdout.flush()
    os._exit(0)  # threads of the plugin need not be joined


if __name__ == "__main__":
    main()
