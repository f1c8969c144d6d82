"""Training steps in f32, and the same with a cast or with rounded operands of products.

    python benchmarks/programs/casts.py NAME SIDE

SIDE is ``f32``, ``cast`` (weights and data in bf16 where the loss begins, as `pgle advise` casts
them) or ``rounded`` (`jax_default_matmul_precision` BF16_BF16_F32).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parent))
from undivided import DATA4, DATA8, FSDP4, FSDP8, Layout, Tree, adam, cross_entropy

f32, i32 = jnp.float32, jnp.int32


def mean_square(x: Any) -> Any:
    return (x.astype(f32) ** 2).mean()


def applied(layout: Layout, model: Any, batch: Any) -> Any:
    """The shapes of a flax module's weights, whole on every device."""
    shapes = jax.eval_shape(
        model.init, jax.random.key(0), jax.ShapeDtypeStruct(batch.shape, batch.dtype)
    )
    return jax.tree.map(lambda leaf: layout.weight(*leaf.shape, axis=None), shapes)


def cells(layout: Layout, cell: str, width=1024, length=128, batch=512, layers=1):
    """Recurrent layers of flax."""
    from flax import linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(layers):
                x = nn.RNN(getattr(nn, cell)(width))(x)
            return nn.Dense(width)(x)

    model = Model()
    data = layout.data(batch, length, width, dtype=f32)
    return (
        applied(layout, model, data),
        data,
        lambda w, x: mean_square(model.apply(w, x)),
    )


def gru(layout: Layout, width=1024, length=128, batch=512, zeros=None):
    """A GRU by hand. Its state has the type of the data, or `zeros`."""
    weights = {
        "in": layout.weight(width, 3 * width, axis=None),
        "own": layout.weight(width, 3 * width, axis=None),
        "out": layout.weight(width, width, axis=None),
    }

    def loss(weights: Tree, x: Any) -> Any:
        def body(h: Any, given: Any) -> tuple[Any, Any]:
            r, z, n = jnp.split(given @ weights["in"], 3, -1)
            own_r, own_z, own_n = jnp.split(h @ weights["own"], 3, -1)
            r, z = jax.nn.sigmoid(r + own_r), jax.nn.sigmoid(z + own_z)
            h = ((1 - z) * jnp.tanh(n + r * own_n) + z * h).astype(h.dtype)
            return h, h

        start = jnp.zeros((x.shape[0], width), zeros or x.dtype)
        _, found = jax.lax.scan(body, start, x.swapaxes(0, 1))
        return mean_square(found @ weights["out"])

    return weights, layout.data(batch, length, width, dtype=f32), loss


def time_major(layout: Layout, width=2048, length=96, batch=1024, zeros=None):
    """An Elman network on time-major data, whose input product is outside of the loop. Its state
    has the type of the data, or `zeros`.
    """
    weights = {
        "in": layout.weight(width, width, axis=None),
        "own": layout.weight(width, width, axis=None),
        "bias": layout.weight(width, axis=None),
    }

    def loss(weights: Tree, x: Any) -> Any:
        given = x @ weights["in"] + weights["bias"]

        def body(h: Any, one: Any) -> tuple[Any, Any]:
            h = jnp.tanh(one + h @ weights["own"])
            return h, h

        start = jnp.zeros(x.shape[1:], zeros or x.dtype)
        _, found = jax.lax.scan(body, start, given)
        return mean_square(found)

    return weights, layout.data(length, batch, width, dtype=f32), loss


def mlp(layout: Layout, layers=6, width=4096, batch=8192):
    """Products with ReLU in a Python loop."""
    weights = [layout.weight(width, width) for _ in range(layers)]

    def loss(weights: Tree, x: Any) -> Any:
        for weight in weights:
            x = jax.nn.relu(layout.divide(x) @ weight)
        return mean_square(x)

    return weights, layout.data(batch, width, dtype=f32), loss


def convolutions(layout: Layout, depth=6, width=128, size=32, batch=256):
    """A residual net of convolutions."""
    weights = {
        "stem": layout.weight(7, 7, 3, width, axis=None),
        "layers": [
            [layout.weight(3, 3, width, width, axis=None) for _ in range(2)]
            for _ in range(depth)
        ],
        "head": layout.weight(width, 1000, axis=None),
    }

    def convolve(x: Any, weight: Any, stride: int = 1) -> Any:
        form = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, weight, (stride, stride), "SAME", dimension_numbers=form
        )

    def loss(weights: Tree, images: Any) -> Any:
        x = convolve(images, weights["stem"], 2)
        for first, second in weights["layers"]:
            x = x + convolve(jax.nn.relu(convolve(x, first)), second)
        return cross_entropy(x.mean((1, 2)) @ weights["head"], jnp.zeros(len(x), i32))

    return weights, layout.data(batch, 2 * size, 2 * size, 3, dtype=f32), loss


def transformer(
    layout: Layout, layers=4, width=1024, heads=8, length=512, batch=16, scan=True
):
    """A GPT with layer norms, in a scan or in a Python loop."""
    words = 8192
    stack = (layers,) if scan else ()
    at = len(stack)
    one = {
        "qkv": layout.weight(*stack, width, 3 * width, axis=at),
        "out": layout.weight(*stack, width, width, axis=at),
        "up": layout.weight(*stack, width, 4 * width, axis=at),
        "down": layout.weight(*stack, 4 * width, width, axis=at),
        "norm": layout.weight(*stack, width, axis=None),
    }
    weights = {"table": layout.weight(words, width)}
    weights["layers"] = one if scan else [one] * layers

    def norm(x: Any, scale: Any) -> Any:
        wide = x.astype(f32)
        found = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
        return found.astype(x.dtype) * scale

    def body(x: Any, layer: Tree) -> tuple[Any, None]:
        x = layout.divide(x)
        size = x.shape[0], length, heads, -1
        q, k, v = jnp.split(norm(x, layer["norm"]) @ layer["qkv"], 3, -1)
        q, k, v = q.reshape(size), k.reshape(size), v.reshape(size)
        scores = jnp.einsum("bqnh,bknh->bnqk", q, k).astype(f32) / 11.3
        seen = jnp.tril(jnp.ones((length, length), bool))
        shares = jax.nn.softmax(jnp.where(seen, scores, -1e9)).astype(x.dtype)
        mixed = jnp.einsum("bnqk,bknh->bqnh", shares, v).reshape(x.shape)
        x = x + mixed @ layer["out"]
        made = jax.nn.gelu(norm(x, layer["norm"]) @ layer["up"])
        return x + made @ layer["down"], None

    def loss(weights: Tree, tokens: Any) -> Any:
        x = layout.divide(weights["table"][tokens[:, :-1]])
        if scan:
            x, _ = jax.lax.scan(body, x, weights["layers"])
        else:
            for layer in weights["layers"]:
                x, _ = body(x, layer)
        return cross_entropy(x @ weights["table"].T, tokens[:, 1:])

    return weights, layout.data(batch, length + 1, dtype=i32), loss


def selective(
    layout: Layout, width=1024, state=16, length=256, batch=16, layers=2, zeros=None
):
    """Mamba-like layers: a selective scan over time between two products. Its state has the type of
    the data, or `zeros`.
    """
    inner = 2 * width
    one = {
        "in": layout.weight(width, 2 * inner, axis=None),
        "select": layout.weight(inner, 2 * state, axis=None),
        "step": layout.weight(inner, inner, axis=None),
        "decay": layout.weight(inner, state, axis=None),
        "out": layout.weight(inner, width, axis=None),
    }

    def layer_of(x: Any, layer: Tree) -> Any:
        u, gate = jnp.split(x @ layer["in"], 2, -1)
        b, c = jnp.split(u @ layer["select"], 2, -1)
        step = jax.nn.softplus(u @ layer["step"])

        def body(h: Any, given: Any) -> tuple[Any, Any]:
            u, step, b, c = given
            kept = jnp.exp(-step[..., None] * jnp.exp(layer["decay"]))
            h = kept * h + (step * u)[..., None] * b[:, None]
            return h, (h * c[:, None]).sum(-1)

        start = jnp.zeros((x.shape[0], inner, state), zeros or x.dtype)
        each = [a.swapaxes(0, 1) for a in (u, step, b, c)]
        _, y = jax.lax.scan(body, start, tuple(each))
        return x + (y.swapaxes(0, 1) * jax.nn.silu(gate)) @ layer["out"]

    def loss(weights: Tree, x: Any) -> Any:
        for layer in weights:
            x = layer_of(x, layer)
        return mean_square(x)

    return [one] * layers, layout.data(batch, length, width, dtype=f32), loss


def layers_of_lstm(layout: Layout, layers=2, width=1024, length=128, batch=512):
    """LSTM layers by hand, whose states are f32 zeros."""
    one = {
        "in": layout.weight(width, 4 * width, axis=0),
        "own": layout.weight(width, 4 * width, axis=0),
        "bias": layout.weight(4 * width, axis=None),
    }

    def layer_of(x: Any, layer: Tree) -> Any:
        def body(state: Any, given: Any) -> tuple[Any, Any]:
            h, c = state
            gates = given @ layer["in"] + h @ layer["own"] + layer["bias"]
            i, f, o, g = jnp.split(gates, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros(x.shape[1:])
        return jax.lax.scan(body, (zeros, zeros), x)[1]

    def loss(weights: Tree, x: Any) -> Any:
        x = x.swapaxes(0, 1)
        for layer in weights:
            x = layer_of(x, layer)
        return mean_square(x)

    return [one] * layers, layout.data(batch, length, width, dtype=f32), loss


def translation(layout: Layout, width=1024, length=64, batch=512, words=8192):
    """An encoder and a decoder with attention, both GRU-like with f32 zeros."""
    weights = {
        "table": layout.weight(words, width, axis=None),
        "encoder": layout.weight(2 * width, width, axis=None),
        "decoder": layout.weight(3 * width, width, axis=None),
        "out": layout.weight(width, words, axis=None),
    }

    def loss(weights: Tree, tokens: Any) -> Any:
        x = weights["table"][tokens].swapaxes(0, 1)
        zeros = jnp.zeros(x.shape[1:])

        def encode(h: Any, given: Any) -> tuple[Any, Any]:
            made = jnp.concatenate((given, h), -1) @ weights["encoder"]
            h = h + jnp.tanh(made)
            return h, h

        last, kept = jax.lax.scan(encode, zeros, x)

        def decode(h: Any, given: Any) -> tuple[Any, Any]:
            shares = jax.nn.softmax(jnp.einsum("bd,tbd->bt", h, kept))
            seen = jnp.einsum("bt,tbd->bd", shares, kept)
            both = jnp.concatenate((given, h, seen), -1)
            h = h + jnp.tanh(both @ weights["decoder"])
            return h, h

        _, found = jax.lax.scan(decode, last, x[:-1])
        return cross_entropy(found @ weights["out"], tokens.T[1:])

    return weights, layout.data(batch, length, dtype=i32), loss


def pictures(layout: Layout, width=128, frames=16, size=32, batch=128):
    """Convolutions of frames, and an Elman network over time with f32 zeros."""
    weights = {
        "stem": layout.weight(3, 3, 3, width, axis=None),
        "layers": [layout.weight(3, 3, width, width, axis=None) for _ in range(3)],
        "in": layout.weight(width, 8 * width, axis=None),
        "own": layout.weight(8 * width, 8 * width, axis=None),
        "head": layout.weight(8 * width, 1000, axis=None),
    }

    def loss(weights: Tree, x: Any) -> Any:
        count = len(x)
        x = x.reshape(count * frames, size, size, 3)
        for weight in (weights["stem"], *weights["layers"]):
            form = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(
                x, weight, (1, 1), "SAME", dimension_numbers=form
            )
            x = jax.nn.relu(x)
        given = x.mean((1, 2)).reshape(count, frames, -1) @ weights["in"]

        def body(h: Any, one: Any) -> tuple[Any, None]:
            return jnp.tanh(one + h @ weights["own"]), None

        zeros = jnp.zeros((count, 8 * width))
        h, _ = jax.lax.scan(body, zeros, given.swapaxes(0, 1))
        return cross_entropy(h @ weights["head"], jnp.zeros(count, i32))

    data = layout.data(batch, frames, size, size, 3, dtype=f32)
    return weights, data, loss


def cast(tree: Tree) -> Tree:
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.bfloat16) if leaf.dtype == f32 else leaf, tree
    )


ONE = {"axes": {"data": 1}, "batch": "data", "weights": ""}

PROGRAMS: Mapping[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {
    "gru-flax": (partial(cells, cell="GRUCell"), DATA8),
    "gru": (gru, DATA8),
    "gru-wide-state": (partial(gru, zeros=f32), DATA8),
    "lstm-flax": (partial(cells, cell="OptimizedLSTMCell"), DATA8),
    "rnn-time-major": (partial(time_major, zeros=f32), DATA4),
    "rnn-type-of-data": (time_major, DATA4),
    "mlp": (mlp, ONE),
    "mlp-fsdp8": (mlp, FSDP8),
    "convolutions": (convolutions, DATA8),
    "transformer": (partial(transformer, scan=False), ONE),
    "transformer-fsdp8": (transformer, FSDP8),
    "mamba": (partial(selective, zeros=f32), DATA8),
    "mamba-type-of-data": (selective, DATA8),
    # the rules of the levers were done before these were compiled
    "lstm-layers": (layers_of_lstm, FSDP8),
    "translation": (translation, DATA8),
    "pictures": (pictures, DATA4),
    "mlp-fsdp4": (partial(mlp, layers=4, width=2048, batch=16384), FSDP4),
    "transformer-data4": (
        partial(transformer, layers=2, width=2048, heads=16, scan=False),
        DATA4,
    ),
}


def main() -> None:
    """Compile one side of one program."""
    name, side = sys.argv[1:]
    make, how = PROGRAMS[name]
    if side == "rounded":
        jax.config.update("jax_default_matmul_precision", "BF16_BF16_F32")
    layout = Layout(how["axes"], "divided", how["batch"], how["weights"])
    weights, batch, whole = make(layout)

    def loss(weights: Tree, batch: Any) -> Any:
        if side == "cast":
            return whole(cast(weights), cast(batch)).astype(f32)
        return whole(weights, batch)

    state = (weights, weights, weights)
    results = jax.tree.map(lambda leaf: leaf.sharding, state), None
    step = jax.jit(adam(loss), donate_argnums=0, out_shardings=results)
    step.lower(state, batch).compile()


if __name__ == "__main__":
    main()
