"""A training step that `pgle advise` can improve: every product is computed again for gradients.

It is compiled and never executed. With ``plain`` nothing is computed again, and nothing is to gain.
"""

import functools
import sys

import jax
import jax.numpy as jnp

LAYERS, WIDTH, TOKENS = 4, 4096, 4096


def layer(x, w):
    return x + jax.nn.gelu(x @ w), None


def loss(ws, x):
    body = layer if "plain" in sys.argv else jax.checkpoint(layer)
    return jnp.square(jax.lax.scan(body, x, ws)[0].astype(jnp.float32)).mean()


@functools.partial(jax.jit, donate_argnums=0)
def train_step(ws, x):
    return ws - jax.grad(loss)(ws, x)


def main():
    weights = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((TOKENS, WIDTH), jnp.bfloat16)
    train_step.lower(weights, x).compile()


if __name__ == "__main__":
    main()
