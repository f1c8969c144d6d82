"""Training steps whose batch is whole on every device, and the same with a divided batch.

    python benchmarks/programs/undivided.py NAME SIDE

SIDE is ``whole`` (the batch has no sharding), ``entry`` (only the batch is divided) or ``divided``
(the batch, and the activations before each layer). Weights are divided as a trainer divides them:
over the axis of the batch (FSDP), over an axis of their own (tensor parallel), or not at all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

bf16, f32, i32 = jnp.bfloat16, jnp.float32, jnp.int32
Tree = Any
RATE = 1e-3  # of Adam
KEEP = 0.9  # of Adam's moments


class Layout:
    """The mesh of a program, and which of its axes divide what.

    Args:
        axes: sizes by name.
        side: ``whole``, ``entry`` or ``divided``.
        batch: the axes that divide the batch if it is divided.
        weights: the axis that divides weights; empty: none.
    """

    def __init__(
        self,
        axes: Mapping[str, int],
        side: str,
        batch: str | tuple[str, ...],
        weights: str,
    ) -> None:
        kinds = (jax.sharding.AxisType.Auto,) * len(axes)
        self.mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds)
        self.side = side
        self.batch = batch
        self.weights = weights

    def weight(self, *size: int, axis: int | None = 0, dtype: Any = f32) -> Any:
        """A weight, divided along one of its axes."""
        spec = [None] * len(size)
        if axis is not None and self.weights:
            spec[axis] = self.weights
        return self._shape(size, dtype, P(*spec))

    def data(self, *size: int, axis: int = 0, dtype: Any = bf16) -> Any:
        """A part of the batch, whose rows are on an axis."""
        divided = P(*[None] * axis, self.batch)
        return self._shape(size, dtype, P() if self.side == "whole" else divided)

    def divide(self, x: Any) -> Any:
        """Activations before a layer."""
        if self.side != "divided":
            return x
        return jax.lax.with_sharding_constraint(
            x, NamedSharding(self.mesh, P(self.batch))
        )

    def _shape(self, size: tuple[int, ...], dtype: Any, spec: P) -> Any:
        return jax.ShapeDtypeStruct(
            size, dtype, sharding=NamedSharding(self.mesh, spec)
        )


def cast(tree: Tree) -> Tree:
    """Weights as products take them."""
    return jax.tree.map(lambda leaf: leaf.astype(bf16), tree)


def cross_entropy(logits: Any, labels: Any) -> Any:
    picked = jax.nn.log_softmax(logits.astype(f32))
    return -jnp.take_along_axis(picked, labels[..., None], -1).mean()


def norm(x: Any, scale: Any) -> Any:
    wide = x.astype(f32)
    found = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    return found.astype(x.dtype) * scale


def attend(x: Any, layer: Tree, heads: int) -> Any:
    batch, length, width = x.shape
    q, k, v = jnp.split(
        (x @ layer["qkv"]).reshape(batch, length, -1, width // heads), 3, 2
    )
    scores = jnp.einsum("bqnh,bknh->bnqk", q, k).astype(f32) / (width // heads) ** 0.5
    seen = jnp.tril(jnp.ones((length, length), bool))
    shares = jax.nn.softmax(jnp.where(seen, scores, -1e9)).astype(x.dtype)
    mixed = jnp.einsum("bnqk,bknh->bqnh", shares, v).reshape(batch, length, width)
    return x + mixed @ layer["out"]


def feed(x: Any, layer: Tree) -> Any:
    return x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]


def gpt(
    layout: Layout, layers=4, width=1024, heads=8, length=1024, batch=16, scan=True
):
    """A GPT by hand, of layers in a scan or in a Python loop."""
    words = 16384
    stack = (layers,) if scan else ()
    at = len(stack)
    # as Megatron divides: columns of the first product of two, rows of the second
    is_tensor = layout.weights == "model"
    columns, rows = (at + 1, at) if is_tensor else (at, at)
    one = {
        "qkv": layout.weight(*stack, width, 3 * width, axis=columns),
        "out": layout.weight(*stack, width, width, axis=rows),
        "up": layout.weight(*stack, width, 4 * width, axis=columns),
        "down": layout.weight(*stack, 4 * width, width, axis=rows),
        "norm": layout.weight(*stack, width, axis=None),
    }
    table = layout.weight(words, width)
    weights = {"table": table, "layers": one if scan else [one] * layers}

    def body(x: Any, layer: Tree) -> tuple[Any, None]:
        x = layout.divide(x)
        layer = cast(layer)
        x = attend(norm(x, layer["norm"]), layer, heads)
        return feed(norm(x, layer["norm"]), layer), None

    def loss(weights: Tree, tokens: Any) -> Any:
        x = layout.divide(weights["table"].astype(bf16)[tokens[:, :-1]])
        if scan:
            x, _ = jax.lax.scan(body, x, weights["layers"])
        else:
            for layer in weights["layers"]:
                x, _ = body(x, layer)
        logits = layout.divide(x) @ weights["table"].astype(bf16).T
        return cross_entropy(logits, tokens[:, 1:])

    return weights, layout.data(batch, length + 1, dtype=i32), loss


def mlp(layout: Layout, layers=6, width=4096, batch=4096):
    """Products of a whole batch, in a Python loop."""
    is_tensor = layout.weights == "model"
    weights = [
        layout.weight(width, width, axis=at % 2 ^ 1 if is_tensor else 0)
        for at in range(layers)
    ]

    def loss(weights: Tree, x: Any) -> Any:
        for weight in weights:
            x = jax.nn.relu(layout.divide(x) @ weight.astype(bf16))
        return (x.astype(f32) ** 2).mean()

    return weights, layout.data(batch, width), loss


def convolutions(layout: Layout, depth=8, width=256, size=32, batch=256):
    """A residual net of convolutions."""
    weights = {
        "stem": layout.weight(7, 7, 3, width, axis=3),
        "layers": [
            [layout.weight(3, 3, width, width, axis=3) for _ in range(2)]
            for _ in range(depth)
        ],
        "head": layout.weight(width, 1000, axis=0),
    }

    def convolve(x: Any, weight: Any, stride: int = 1) -> Any:
        form = ("NHWC", "HWIO", "NHWC")
        weight = weight.astype(bf16)
        return jax.lax.conv_general_dilated(
            x, weight, (stride, stride), "SAME", dimension_numbers=form
        )

    def loss(weights: Tree, images: Any) -> Any:
        x = convolve(layout.divide(images), weights["stem"], 2)
        for first, second in weights["layers"]:
            x = layout.divide(x)
            x = x + convolve(jax.nn.relu(convolve(x, first)), second)
        logits = x.mean((1, 2)) @ weights["head"].astype(bf16)
        return cross_entropy(logits, jnp.zeros(batch, i32))

    return weights, layout.data(batch, 2 * size, 2 * size, 3), loss


def mixture(layout: Layout, layers=2, width=1024, experts=8, batch=8192):
    """Layers of experts, each with a fixed number of tokens, which a product hands out."""
    hidden = 4 * width
    one = {
        "gate": layout.weight(width, experts, axis=None),
        "up": layout.weight(experts, width, hidden),
        "down": layout.weight(experts, hidden, width),
    }
    groups = 32
    length = batch // groups
    room = 2 * length // experts

    def layer_of(x: Any, layer: Tree) -> Any:
        layer = cast(layer)
        shares = jax.nn.softmax((x @ layer["gate"]).astype(f32))
        best = jax.nn.one_hot(shares.argmax(-1), experts, dtype=f32)
        at = (jnp.cumsum(best, 1) - 1) * best
        taken = jax.nn.one_hot(at, room, dtype=f32) * best[..., None]
        sent = taken.astype(bf16)
        given = jnp.einsum("gtec,gtd->gecd", sent, x)
        made = jax.nn.gelu(jnp.einsum("gecd,edh->gech", given, layer["up"]))
        made = jnp.einsum("gech,ehd->gecd", made, layer["down"])
        back = (taken * shares[..., None]).astype(bf16)
        return x + jnp.einsum("gtec,gecd->gtd", back, made)

    def loss(weights: Tree, x: Any) -> Any:
        for layer in weights:
            x = layer_of(layout.divide(x), layer)
        return (x.astype(f32) ** 2).mean()

    return [one] * layers, layout.data(groups, length, width), loss


def linen(layout: Layout, layers=4, width=1024, heads=8, length=512, batch=32):
    """A transformer of flax.linen, whose weights are divided along their largest axis."""
    from flax import linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = layout.divide(x)
            mixed = nn.MultiHeadDotProductAttention(heads, dtype=bf16)(
                nn.LayerNorm(dtype=bf16)(x)
            )
            x = x + mixed
            made = nn.Dense(4 * width, dtype=bf16)(nn.LayerNorm(dtype=bf16)(x))
            return x + nn.Dense(width, dtype=bf16)(nn.gelu(made))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            x = nn.Embed(8192, width, dtype=bf16)(tokens)
            for _ in range(layers):
                x = Block()(x)
            return nn.Dense(8192, dtype=bf16)(x)

    model = Model()
    tokens = layout.data(batch, length + 1, dtype=i32)
    inputs = jax.ShapeDtypeStruct((batch, length), i32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), inputs)

    def placed(leaf: Any) -> Any:
        axis = max(range(len(leaf.shape)), key=lambda at: leaf.shape[at])
        is_large = prod(leaf.shape) >= 1 << 16
        return layout.weight(*leaf.shape, axis=axis if is_large else None)

    def loss(weights: Tree, tokens: Any) -> Any:
        logits = model.apply(weights, tokens[:, :-1])
        return cross_entropy(logits, tokens[:, 1:])

    return jax.tree.map(placed, shapes), tokens, loss


def recurrent(layout: Layout, layers=2, width=1024, length=64, batch=512):
    """Recurrent layers over a sequence with time first."""
    one = {
        "in": layout.weight(width, 3 * width),
        "state": layout.weight(width, 3 * width),
    }

    def layer_of(x: Any, layer: Tree) -> Any:
        layer = cast(layer)

        def cell(state: Any, given: Any) -> tuple[Any, Any]:
            state = layout.divide(state)
            reset, keep, new = jnp.split(given, 3, -1)
            old_reset, old_keep, old_new = jnp.split(state @ layer["state"], 3, -1)
            keep = jax.nn.sigmoid(keep + old_keep)
            made = jnp.tanh(new + jax.nn.sigmoid(reset + old_reset) * old_new)
            state = keep * state + (1 - keep) * made
            return state, state

        return jax.lax.scan(cell, jnp.zeros((batch, width), bf16), x @ layer["in"])[1]

    def loss(weights: Tree, x: Any) -> Any:
        for layer in weights:
            x = layer_of(x, layer)
        return (x.astype(f32) ** 2).mean()

    return [one] * layers, layout.data(length, batch, width, axis=1), loss


def accumulated(layout: Layout, parts=4, layers=3, width=2048, batch=8192):
    """Products whose gradients are added up over parts of the batch."""
    weights = [layout.weight(width, width) for _ in range(layers)]

    def loss_of(weights: Tree, x: Any) -> Any:
        for weight in weights:
            x = jax.nn.relu(layout.divide(x) @ weight.astype(bf16))
        return (x.astype(f32) ** 2).mean()

    def loss(weights: Tree, batch: Any) -> Any:
        part = jax.checkpoint(lambda total, x: (total + loss_of(weights, x), None))
        return jax.lax.scan(part, 0.0, batch)[0] / parts

    return weights, layout.data(parts, batch, width, axis=1), loss


def adam(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The step of a loss: its gradient, and an update of weights and two moments."""

    def moved(weight: Any, slope: Any, first: Any, second: Any) -> tuple[Any, ...]:
        first = KEEP * first + (1 - KEEP) * slope
        second = KEEP * second + (1 - KEEP) * slope * slope
        return weight - RATE * first / (jnp.sqrt(second) + 1e-8), first, second

    def step(state: Tree, batch: Any) -> tuple[Tree, Any]:
        weights, first, second = state
        found, slopes = jax.value_and_grad(loss)(weights, batch)
        each = jax.tree.map(moved, weights, slopes, first, second)
        outer, inner = jax.tree.structure(weights), jax.tree.structure((0, 0, 0))
        return jax.tree.transpose(outer, inner, each), found

    return step


FSDP8 = {"axes": {"data": 8}, "batch": "data", "weights": "data"}
FSDP4 = {"axes": {"data": 4}, "batch": "data", "weights": "data"}
DATA8 = {"axes": {"data": 8}, "batch": "data", "weights": ""}
DATA4 = {"axes": {"data": 4}, "batch": "data", "weights": ""}
TENSOR8 = {"axes": {"data": 2, "model": 4}, "batch": "data", "weights": "model"}
TENSOR4 = {"axes": {"data": 2, "model": 2}, "batch": "data", "weights": "model"}
EXPERT8 = {"axes": {"expert": 8}, "batch": "expert", "weights": "expert"}
TENSOR_OF_8 = {"axes": {"model": 8}, "batch": "model", "weights": "model"}
BOTH8 = {"axes": {"data": 2, "fsdp": 4}, "batch": "data", "weights": "fsdp"}
ALONE4 = {"axes": {"model": 4}, "batch": "model", "weights": "model"}

PROGRAMS: Mapping[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {
    "gpt-fsdp8": (gpt, FSDP8),
    "gpt-loop-fsdp4": (partial(gpt, scan=False), FSDP4),
    "gpt-data-tensor8": (gpt, TENSOR8),
    "gpt-tensor4": (partial(gpt, scan=False), ALONE4),
    "linen-fsdp8": (linen, FSDP8),
    "linen-data4": (linen, DATA4),
    "conv-fsdp8": (convolutions, FSDP8),
    "mlp-fsdp8": (mlp, FSDP8),
    "mlp-data-tensor4": (mlp, TENSOR4),
    "moe-expert8": (mixture, EXPERT8),
    "moe-data8": (mixture, DATA8),
    # the rule of the lever was done before these were written
    "gpt-6-heads-fsdp8": (partial(gpt, width=768, heads=6), FSDP8),
    "gpt-tensor8": (partial(gpt, layers=8, batch=8), TENSOR_OF_8),
    "gpt-loop-data-fsdp8": (
        partial(gpt, layers=3, width=2048, batch=8, scan=False),
        BOTH8,
    ),
    "linen-fsdp4": (partial(linen, layers=3, width=1536, heads=12, batch=16), FSDP4),
    "linen-tensor4": (partial(linen, layers=6, width=768, heads=6), ALONE4),
    "conv-data4": (partial(convolutions, depth=4, width=128, batch=512), DATA4),
    "mlp-fsdp4": (partial(mlp, layers=8, width=2048, batch=32768), FSDP4),
    # their batch is on the second axis, since a loop takes the first one apart
    "recurrent-data4": (recurrent, DATA4),
    "recurrent-fsdp8": (partial(recurrent, layers=3, batch=1024), FSDP8),
    "accumulated-fsdp8": (accumulated, FSDP8),
    "accumulated-data4": (partial(accumulated, parts=8, width=1024), DATA4),
}


def main() -> None:
    """Compile one side of one program."""
    name, side = sys.argv[1:]
    make, how = PROGRAMS[name]
    layout = Layout(how["axes"], side, how["batch"], how["weights"])
    weights, batch, loss = make(layout)
    state = (weights, weights, weights)
    results = jax.tree.map(lambda leaf: leaf.sharding, state), None
    step = jax.jit(adam(loss), donate_argnums=0, out_shardings=results)
    step.lower(state, batch).compile()


if __name__ == "__main__":
    main()
