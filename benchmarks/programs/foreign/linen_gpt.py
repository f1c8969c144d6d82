"""A small GPT in flax's linen: `nn.remat` around each layer, `TrainState`, data parallel."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LAYERS, WIDTH, HEADS, LENGTH, BATCH, WORDS = 4, 1024, 16, 2048, 4, 32000


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a layer norm."""

    @nn.compact
    def __call__(self, x, mask):
        read = nn.LayerNorm(dtype=jnp.bfloat16)(x)
        attention = nn.MultiHeadDotProductAttention(
            num_heads=HEADS, dtype=jnp.bfloat16, deterministic=True
        )
        x = x + attention(read, read, mask=mask)
        read = nn.LayerNorm(dtype=jnp.bfloat16)(x)
        hidden = nn.gelu(nn.Dense(4 * WIDTH, dtype=jnp.bfloat16)(read))
        return x + nn.Dense(WIDTH, dtype=jnp.bfloat16)(hidden)


class Model(nn.Module):
    """Words to logits."""

    @nn.compact
    def __call__(self, tokens):
        embedding = nn.Embed(WORDS, WIDTH, dtype=jnp.bfloat16)
        x = embedding(tokens)
        mask = nn.make_causal_mask(tokens)
        for _ in range(LAYERS):
            x = nn.remat(Block)()(x, mask)
        return embedding.attend(nn.LayerNorm(dtype=jnp.bfloat16)(x))


@jax.jit
def train_step(state, tokens):
    """One step of Adam; the new state and the loss."""

    def loss_of(params):
        logits = state.apply_fn(params, tokens[:, :-1]).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean()

    loss, gradient = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradient), loss


def main():
    """Three steps on random words."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    model = Model()
    shape = (BATCH * jax.device_count(), LENGTH + 1)
    params = model.init(jax.random.key(0), jnp.zeros((1, LENGTH), jnp.int32))
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-4))
    state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))
    for step in range(3):
        tokens = jax.random.randint(jax.random.key(step), shape, 0, WORDS)
        state, loss = train_step(state, jax.device_put(tokens, rows))
        print("step", step, loss)


if __name__ == "__main__":
    main()
