"""Twelve layers of attention in bf16, FSDP, in a scan; its state is not donated.

    python attention.py [xla|cudnn|hand]

The word says who computes attention: `jax.nn.dot_product_attention` by XLA or by cuDNN, or the
products and the softmax that are written here.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LAYERS, HEADS, HEAD, LENGTH, BATCH = 12, 12, 64, 2048, 4
WIDTH = HEADS * HEAD
KERNEL = sys.argv[1] if len(sys.argv) > 1 else "xla"


def attend(q, k, v):
    """Causal attention."""
    if KERNEL != "hand":
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation=KERNEL
        )
    scores = jnp.einsum("bqnh,bknh->bnqk", q, k).astype(jnp.float32) / HEAD**0.5
    seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9)).astype(q.dtype)
    return jnp.einsum("bnqk,bknh->bqnh", weights, v)


def layer(x, w):
    """Attention and a feed-forward layer."""
    read = (x @ w["qkv"]).reshape(*x.shape[:2], 3 * HEADS, HEAD)
    mixed = attend(*jnp.split(read, 3, axis=2)).reshape(x.shape)
    x = x + mixed @ w["out"]
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None


def loss_of(weights, x):
    """The mean square of the last layer."""
    return (jax.lax.scan(layer, x, weights)[0].astype(jnp.float32) ** 2).mean()


@jax.jit
def train_step(weights, x):
    """One step of gradient descent."""
    gradient = jax.grad(loss_of)(weights, x)
    return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradient)


def main():
    """Three steps on zeros."""
    mesh = Mesh(np.array(jax.devices()), ("x",))

    def zeros(*shape, spec):
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.device_put(jnp.zeros(shape, jnp.bfloat16), sharding)

    sizes = {
        "qkv": (WIDTH, 3 * WIDTH),
        "out": (WIDTH, WIDTH),
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }
    rows = (None, "x", None)
    weights = {name: zeros(LAYERS, *size, spec=rows) for name, size in sizes.items()}
    x = zeros(BATCH * jax.device_count(), LENGTH, WIDTH, spec=("x", None, None))
    for step in range(3):
        weights = train_step(weights, x)
        print("step", step)


if __name__ == "__main__":
    main()
