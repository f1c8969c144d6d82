"""The program of a published pair of measurements, in plain JAX; `benchmarks/advise_pairs.py` lists
which. It is compiled, and nothing runs:

    python benchmarks/programs/advise_pair.py attention batch=2 queries=4096 kernel=cudnn
    pgle advise --devices 1 -- python benchmarks/programs/advise_pair.py model layers=12

Each kind is a function below, and its words are the arguments.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

WORDS = dict(word.split("=") for word in sys.argv[2:])
DEVICES = int(WORDS.pop("devices", "1"))
os.environ["JAX_PLATFORMS"] = "cpu"
COUNT = f"--xla_force_host_platform_device_count={DEVICES}"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {COUNT}"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

Array = jax.Array
Weights = dict[str, Any]
MESH = Mesh(np.array(jax.devices()[:DEVICES]), ("x",))
RATE, DECAYS, LEAST = 1e-4, (0.9, 0.95), 1e-8  # of Adam


def of(shape: Sequence[int], dtype: Any, *spec: str | None) -> jax.ShapeDtypeStruct:
    """An array that is not made, split over the devices along `spec`."""
    sharding = NamedSharding(MESH, P(*spec)) if DEVICES > 1 else None
    return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=sharding)


def placed(x: Array, *spec: str | None) -> Array:
    """An array with its sharding."""
    if DEVICES == 1:
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P(*spec)))


def attend(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None = None,
    *,
    kernel: str,
    is_causal: bool,
    window: tuple[int, int] | None = None,
) -> Array:
    """Attention by a kernel of jax; ``half``: unfused, scores and weights in the operands' type."""
    if kernel != "half":
        return jax.nn.dot_product_attention(
            q,
            k,
            v,
            bias=bias,
            is_causal=is_causal,
            local_window_size=window,
            implementation=kernel,
        )
    scores = jnp.einsum("btnh,bsnh->bnts", q * q.shape[-1] ** -0.5, k)
    if is_causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
    if bias is not None:
        scores += bias
    weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(scores.dtype)
    return jnp.einsum("bnts,bsnh->btnh", weights, v)


def attention(
    batch: int = 2,
    queries: int = 4096,
    keys: int = 0,
    heads: int = 32,
    groups: int = 0,
    head: int = 128,
    causal: int = 1,
    bias: int = 0,
    window: int = 0,
    gradient: int = 1,
    dtype: str = "float16",
    kernel: str = "xla",
) -> tuple[Callable[..., Any], Sequence[Any]]:
    """Attention alone, or its gradient. Zero keys: as queries; zero groups: as heads."""
    keys = keys or queries
    groups = groups or heads

    def forward(q: Array, k: Array, v: Array, *more: Array) -> Array:
        return attend(
            q,
            k,
            v,
            more[0] if more else None,
            kernel=kernel,
            is_causal=bool(causal),
            window=(window, 0) if window else None,
        )

    def attend_gradient(*arrays: Array) -> Any:
        def loss(q: Array, k: Array, v: Array) -> Array:
            return forward(q, k, v, *arrays[3:]).mean()

        return jax.grad(loss, argnums=(0, 1, 2))(*arrays[:3])

    q = of((batch, queries, heads, head), dtype)
    k = of((batch, keys, groups, head), dtype)
    more = [of((1, 1, queries, keys), dtype)] if bias else []
    return (attend_gradient if gradient else forward), (q, k, k, *more)


def product(
    size: int = 8192, precision: str = "highest"
) -> tuple[Callable[..., Any], Sequence[Any]]:
    """A product of two square matrices in f32."""

    def multiply(a: Array, b: Array) -> Array:
        return jnp.matmul(a, b, precision=precision)

    a = of((size, size), "float32")
    return multiply, (a, a)


def projections(
    layers: int = 3,
    width: int = 4096,
    heads: int = 32,
    batch: int = 2,
    length: int = 2048,
    dtype: str = "float32",
    loop: str = "scan",
) -> tuple[Callable[..., Any], Sequence[Any]]:
    """The value and the gradients of layers that are attention with its two projections."""

    def layer(x: Array, w: Weights) -> tuple[Array, None]:
        shape = (batch, length, heads, width // heads)
        q, k, v = jnp.split(x @ w["qkv"] + w["bias"], 3, axis=-1)
        scores = jnp.einsum("btnh,bsnh->bnts", q.reshape(shape), k.reshape(shape))
        weights = jax.nn.softmax(scores / (width // heads) ** 0.5)
        mixed = jnp.einsum("bnts,bsnh->btnh", weights, v.reshape(shape))
        return mixed.reshape(x.shape) @ w["out"] + w["out_bias"], None

    def all_layers(weights: Weights, x: Array) -> Array:
        if loop == "scan":
            return jax.lax.scan(layer, x, weights)[0]
        for number in range(layers):
            one = jax.tree.map(lambda leaf, at=number: leaf[at], weights)
            x, _ = layer(x, one)
        return x

    def step(weights: Weights, x: Array, cotangent: Array) -> Any:
        _, pull = jax.vjp(all_layers, weights, x)
        return pull(cotangent)

    shapes = {
        "qkv": (width, 3 * width),
        "bias": (3 * width,),
        "out": (width, width),
        "out_bias": (width,),
    }
    weights = {name: of((layers, *shape), dtype) for name, shape in shapes.items()}
    x = of((batch, length, width), dtype)
    return step, (weights, x, x)


def norm(x: Array, scale: Array) -> Array:
    """A layer norm without a bias, in f32."""
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + 1e-5) * scale).astype(x.dtype)


def transformer(
    heads: int, head: int, kernel: str, remat: str, causal: int, spec: Any
) -> Callable[[Array, Weights], Array]:
    """A layer of a transformer: attention, then two products around a GELU."""

    def core(q: Array, k: Array, v: Array) -> Array:
        return attend(q, k, v, kernel=kernel, is_causal=bool(causal))

    if remat == "core":
        core = jax.checkpoint(core)

    def layer(x: Array, w: Weights) -> Array:
        kind = x.dtype
        shape = (*x.shape[:2], heads, head)
        read = norm(x, w["first"])
        q, k, v = (
            (read @ w[name].astype(kind)).reshape(shape) for name in ("q", "k", "v")
        )
        mixed = core(q, k, v).reshape(*x.shape[:2], heads * head)
        x = placed(x + mixed @ w["out"].astype(kind), *spec)
        read = norm(x, w["second"])
        hidden = jax.nn.gelu(read @ w["up"].astype(kind))
        return placed(x + hidden @ w["down"].astype(kind), *spec)

    return jax.checkpoint(layer) if remat == "layer" else layer


@dataclass(frozen=True)
class Weight:
    """An array of a layer, and the axis that tensor parallelism divides; -1: none."""

    shape: tuple[int, ...]
    axis: int = -1

    @property
    def spec(self) -> list[str | None]:
        """How tensor parallelism divides it."""
        found: list[str | None] = [None] * len(self.shape)
        if self.axis >= 0:
            found[self.axis] = "x"
        return found


def weights_of(width: int, inner: int, hidden: int) -> dict[str, Weight]:
    """The weights of a layer."""
    scale = Weight((width,))
    to_heads = Weight((width, inner), 1)
    return {
        "first": scale,
        "q": to_heads,
        "k": to_heads,
        "v": to_heads,
        "out": Weight((inner, width), 0),
        "second": scale,
        "up": Weight((width, hidden), 1),
        "down": Weight((hidden, width), 0),
    }


def layer(
    width: int = 6144,
    heads: int = 64,
    head: int = 96,
    batch: int = 4,
    length: int = 2048,
    dtype: str = "bfloat16",
    kernel: str = "xla",
    remat: str = "none",
) -> tuple[Callable[..., Any], Sequence[Any]]:
    """One layer forward and backward, tensor parallel over all devices."""
    compute = transformer(heads, head, kernel, remat, causal=1, spec=())

    def step(x: Array, weights: Weights, cotangent: Array) -> Any:
        value, pull = jax.vjp(compute, x, weights)
        return value, pull(cotangent)

    described = weights_of(width, heads * head, 4 * width)
    weights = {name: of(one.shape, dtype, *one.spec) for name, one in described.items()}
    x = of((batch, length, width), dtype)
    return step, (x, weights, x)


def model(
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    head: int = 64,
    hidden: int = 0,
    vocabulary: int = 51200,
    batch: int = 8,
    length: int = 1024,
    kernel: str = "xla",
    remat: str = "none",
    loop: str = "scan",
    sharded: int = 0,
    causal: int = 1,
    train: int = 1,
) -> tuple[Callable[..., Any], Sequence[Any]]:
    """A GPT: weights and Adam in f32, the rest in bf16; `batch` is of one device. Weights are on
    all devices, or divided over them if `sharded`. Without `train`: forward, in f16, no head.
    """
    dtype = jnp.bfloat16 if train else jnp.float16
    spec = ("x", None, None)
    compute = transformer(
        heads=heads, head=head, kernel=kernel, remat=remat, causal=causal, spec=spec
    )
    described = weights_of(width, heads * head, hidden or 4 * width)
    split = "x" if sharded else None

    def stored(*shape: int) -> jax.ShapeDtypeStruct:
        kind = jnp.float32 if train else dtype
        spec: list[str | None] = [None] * len(shape)
        spec[max(len(shape) - 2, 0)] = split
        return of(shape, kind, *spec)

    weights = {
        "embedding": stored(vocabulary, width),
        "positions": stored(length, width),
        "last": stored(width),
        "layers": {name: stored(layers, *one.shape) for name, one in described.items()},
    }

    def hidden_of(weights: Weights, tokens: Array) -> Array:
        x = (weights["embedding"][tokens] + weights["positions"]).astype(dtype)
        x = placed(x, *spec)

        def body(x: Array, w: Weights) -> tuple[Array, None]:
            return compute(x, w), None

        if loop == "scan":
            x, _ = jax.lax.scan(body, x, weights["layers"])
        else:
            for number in range(layers):
                one = jax.tree.map(lambda leaf, at=number: leaf[at], weights["layers"])
                x = compute(x, one)
        return norm(x, weights["last"])

    def forward(weights: Weights, tokens: Array) -> Array:
        return hidden_of(weights, tokens)

    def loss(weights: Weights, tokens: Array) -> Array:
        x = hidden_of(weights, tokens)
        table = weights["embedding"].astype(dtype)
        logits = jnp.einsum("btd,vd->btv", x, table).astype(jnp.float32)
        targets = jnp.roll(tokens, -1, axis=1)
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return (jax.nn.logsumexp(logits, axis=-1) - chosen).mean()

    def train_step(state: Sequence[Any], tokens: Array) -> Sequence[Any]:
        weights, means, squares = state
        gradient = jax.grad(loss)(weights, tokens)
        one, two = DECAYS
        means = jax.tree.map(lambda m, g: one * m + (1 - one) * g, means, gradient)
        squares = jax.tree.map(
            lambda s, g: two * s + (1 - two) * g * g, squares, gradient
        )
        weights = jax.tree.map(
            lambda w, m, s: w - RATE * m / (jnp.sqrt(s) + LEAST),
            weights,
            means,
            squares,
        )
        return weights, means, squares

    tokens = of((batch * DEVICES, length), "int32", "x", None)
    if not train:
        return forward, (weights, tokens)
    step = jax.jit(train_step, donate_argnums=0)
    return step, ((weights, weights, weights), tokens)


KINDS: dict[str, Callable[..., tuple[Callable[..., Any], Sequence[Any]]]] = {
    "attention": attention,
    "product": product,
    "projections": projections,
    "layer": layer,
    "model": model,
}


def typed(word: str) -> int | str:
    """A word as a number, if it is one."""
    return int(word) if word.isdigit() else word


def main() -> None:
    """Compile the step that the words describe."""
    given = {name: typed(value) for name, value in WORDS.items()}
    step, args = KINDS[sys.argv[1]](**given)
    if not hasattr(step, "lower"):
        step = jax.jit(step)
    step.lower(*args).compile()
    print(f"compiled {step.__name__}")


if __name__ == "__main__":
    main()
