"""Four layers of eight experts in bf16, which one-hot products hand tokens to; full remat in a scan."""

from functools import partial

import jax
import jax.numpy as jnp

LAYERS, EXPERTS, WIDTH, HIDDEN = 4, 8, 1024, 4096
GROUPS, LENGTH = 16, 1024
ROOM = 2 * LENGTH // EXPERTS  # tokens of a group that an expert takes


@jax.checkpoint
def layer(x, w):
    """Each token through the expert that the router picks, if there is room."""
    shares = jax.nn.softmax((x @ w["gate"]).astype(jnp.float32))
    best = jax.nn.one_hot(shares.argmax(-1), EXPERTS, dtype=jnp.float32)
    place = (jnp.cumsum(best, 1) - 1) * best
    taken = jax.nn.one_hot(place, ROOM, dtype=jnp.float32) * best[..., None]
    given = jnp.einsum("gtec,gtd->gecd", taken.astype(x.dtype), x)
    made = jax.nn.gelu(jnp.einsum("gecd,edh->gech", given, w["up"]))
    made = jnp.einsum("gech,ehd->gecd", made, w["down"])
    back = (taken * shares[..., None]).astype(x.dtype)
    return x + jnp.einsum("gtec,gecd->gtd", back, made), None


def loss_of(weights, x):
    """The mean square of the last layer."""
    return (jax.lax.scan(layer, x, weights)[0].astype(jnp.float32) ** 2).mean()


@partial(jax.jit, donate_argnums=0)
def train_step(weights, x):
    """One step of gradient descent."""
    gradient = jax.grad(loss_of)(weights, x)
    return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradient)


def main():
    """Three steps on zeros."""
    sizes = {
        "gate": (WIDTH, EXPERTS),
        "up": (EXPERTS, WIDTH, HIDDEN),
        "down": (EXPERTS, HIDDEN, WIDTH),
    }
    weights = {
        name: jnp.zeros((LAYERS, *size), jnp.bfloat16) for name, size in sizes.items()
    }
    x = jnp.zeros((GROUPS, LENGTH, WIDTH), jnp.bfloat16)
    for step in range(3):
        weights = train_step(weights, x)
        print("step", step)


if __name__ == "__main__":
    main()
