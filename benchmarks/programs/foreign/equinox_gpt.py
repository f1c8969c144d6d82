"""A small GPT in Equinox: `eqx.filter_jit`, layers in a scan, one sequence at a time by `vmap`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

LAYERS, WIDTH, HEADS, LENGTH, BATCH, WORDS = 4, 1024, 16, 2048, 8, 32000


class Block(eqx.Module):
    """Attention and a feed-forward layer, each behind a layer norm."""

    first: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    second: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        one, two, three = jax.random.split(key, 3)
        kind = jnp.bfloat16
        self.first = eqx.nn.LayerNorm(WIDTH, dtype=kind)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, dtype=kind, key=one)
        self.second = eqx.nn.LayerNorm(WIDTH, dtype=kind)
        self.up = eqx.nn.Linear(WIDTH, 4 * WIDTH, dtype=kind, key=two)
        self.down = eqx.nn.Linear(4 * WIDTH, WIDTH, dtype=kind, key=three)

    def __call__(self, x):
        read = jax.vmap(self.first)(x)
        mask = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))
        x = x + self.attention(read, read, read, mask=mask)
        hidden = jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.second)(x)))
        return x + jax.vmap(self.down)(hidden)


class Model(eqx.Module):
    """Words to logits."""

    embedding: eqx.nn.Embedding
    blocks: Block
    head: eqx.nn.Linear

    def __init__(self, key):
        one, two, three = jax.random.split(key, 3)
        kind = jnp.bfloat16
        self.embedding = eqx.nn.Embedding(WORDS, WIDTH, dtype=kind, key=one)
        self.blocks = eqx.filter_vmap(Block)(jax.random.split(two, LAYERS))
        self.head = eqx.nn.Linear(WIDTH, WORDS, use_bias=False, dtype=kind, key=three)

    def __call__(self, tokens):
        arrays, rest = eqx.partition(self.blocks, eqx.is_array)

        def body(x, one):
            return eqx.combine(one, rest)(x), None

        x, _ = jax.lax.scan(body, jax.vmap(self.embedding)(tokens), arrays)
        return jax.vmap(self.head)(x)


@eqx.filter_jit
def make_step(model, state, tokens, optimizer):
    """One step of Adam; the new model, its state and the loss."""

    @eqx.filter_value_and_grad
    def loss_of(model):
        logits = jax.vmap(model)(tokens[:, :-1]).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean()

    loss, gradient = loss_of(model)
    updates, state = optimizer.update(gradient, state)
    return eqx.apply_updates(model, updates), state, loss


def main():
    """Three steps on random words."""
    model = Model(jax.random.key(0))
    optimizer = optax.adam(1e-4)
    state = optimizer.init(eqx.filter(model, eqx.is_array))
    for step in range(3):
        tokens = jax.random.randint(jax.random.key(step), (BATCH, LENGTH + 1), 0, WORDS)
        model, state, loss = make_step(model, state, tokens, optimizer)
        print("step", step, loss)


if __name__ == "__main__":
    main()
