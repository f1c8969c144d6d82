"""Wide layers in bf16 with a donated state: there is nothing to gain."""

from functools import partial

import jax
import jax.numpy as jnp

WIDTH, LAYERS, BATCH = 8192, 4, 8192


def loss_of(params, x, y):
    """Squared error."""
    for weights in params:
        x = jax.nn.relu(x @ weights)
    return jnp.mean((x - y).astype(jnp.float32) ** 2)


@partial(jax.jit, donate_argnums=0)
def train_step(params, x, y):
    """One step of gradient descent."""
    gradient = jax.grad(loss_of)(params, x, y)
    return jax.tree.map(lambda w, g: w - 1e-3 * g, params, gradient)


def main():
    """Three steps on zeros."""
    params = [jnp.zeros((WIDTH, WIDTH), jnp.bfloat16) for _ in range(LAYERS)]
    x = jnp.zeros((BATCH, WIDTH), jnp.bfloat16)
    for step in range(3):
        params = train_step(params, x, x)
        print("step", step)


if __name__ == "__main__":
    main()
