"""A small GPT in flax's nnx, trained as its guides show: `nnx.jit`, `nnx.Optimizer`."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

LAYERS, WIDTH, HEADS, LENGTH, BATCH, WORDS = 4, 1024, 16, 2048, 8, 32000


class Block(nnx.Module):
    """Attention and a feed-forward layer, each behind a layer norm."""

    def __init__(self, rngs):
        kinds = {"dtype": jnp.bfloat16, "rngs": rngs}
        self.first = nnx.LayerNorm(WIDTH, **kinds)
        self.attention = nnx.MultiHeadAttention(
            num_heads=HEADS, in_features=WIDTH, decode=False, **kinds
        )
        self.second = nnx.LayerNorm(WIDTH, **kinds)
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, **kinds)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, **kinds)

    def __call__(self, x, mask):
        x = x + self.attention(self.first(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.second(x))))


class Model(nnx.Module):
    """Words to logits."""

    def __init__(self, rngs):
        self.embedding = nnx.Embed(WORDS, WIDTH, dtype=jnp.bfloat16, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, dtype=jnp.bfloat16, rngs=rngs)

    def __call__(self, tokens):
        x = self.embedding(tokens)
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.embedding.attend(self.norm(x))


@nnx.jit
def train_step(model, optimizer, tokens):
    """One step of Adam."""

    def loss_of(model):
        logits = model(tokens[:, :-1]).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean()

    loss, gradient = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradient)
    return loss


def main():
    """Three steps on random words."""
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-4), wrt=nnx.Param)
    for step in range(3):
        tokens = jax.random.randint(jax.random.key(step), (BATCH, LENGTH + 1), 0, WORDS)
        print("step", step, train_step(model, optimizer, tokens))


if __name__ == "__main__":
    main()
