"""Whole training steps on one GPU, and edits of them whose effect is predicted and measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from benchmarks.gpu.cases import Array, Case

Attention = Literal["naive", "xla", "cudnn"]
RATE = 1e-3  # of plain SGD


@dataclass(frozen=True)
class Transformer:
    """Sizes of a decoder, and how its step is written."""

    layers: int = 12
    batch: int = 4
    length: int = 2048
    heads: int = 12
    head_dim: int = 64
    attention: Attention = "naive"
    remat: bool = False
    unroll: bool = False  # whether the loop over layers is unrolled

    @property
    def width(self) -> int:
        """Size of a token's vector."""
        return self.heads * self.head_dim


SMALL = Transformer(layers=2, batch=1, length=128, heads=2)


def steps(*, small: bool) -> tuple[Case, ...]:
    """All cases, of those that need most memory the last: peaks of memory only grow."""
    sizes = SMALL if small else Transformer()
    cudnn = replace(sizes, attention="cudnn")
    first = _attention("attention_cudnn", cudnn)
    naive = _attention("attention_naive", sizes)
    return (
        _vocabulary("vocabulary_scatter", small=small, one_hot=False),
        _vocabulary(
            "vocabulary_one_hot", small=small, one_hot=True, base="vocabulary_scatter"
        ),
        _convolutions(small=small),
        _experts(small=small),
        replace(first, base=naive.name),
        _attention("attention_cudnn_remat", replace(cudnn, remat=True), first.name),
        _attention("attention_cudnn_unrolled", replace(cudnn, unroll=True), first.name),
        _attention("attention_naive_remat", replace(sizes, remat=True), naive.name),
        _offload("offload_none", small=small, offloads=False),
        _offload(
            "offload_activations", small=small, offloads=True, base="offload_none"
        ),
        naive,
        _attention("attention_naive_unrolled", replace(sizes, unroll=True), naive.name),
        _attention("attention_xla", replace(sizes, attention="xla"), naive.name),
    )


def _step(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A step of plain SGD: the last argument is the batch, the others are weights. Returns the new
    weights.
    """
    import jax

    def step(*arguments: Any) -> Any:
        weights, batch = arguments[:-1], arguments[-1]
        gradients = jax.grad(loss)(weights, batch)
        return tuple(
            old - (RATE * new).astype(old.dtype)
            for old, new in zip(weights, gradients, strict=True)
        )

    return step


def _mean_square(x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.mean(jnp.square(x.astype(jnp.float32)))


def attend(queries: Any, keys: Any, values: Any, attention: Attention) -> Any:
    """Causal attention; all arguments and the result are [batch, length, heads, head_dim]."""
    import jax
    import jax.numpy as jnp

    if attention != "naive":
        return jax.nn.dot_product_attention(
            queries, keys, values, is_causal=True, implementation=attention
        )
    length, head_dim = queries.shape[1], queries.shape[3]
    scores = jnp.einsum("bqnh,bknh->bnqk", queries, keys).astype(jnp.float32)
    seen = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores * head_dim**-0.5, -1e9))
    return jnp.einsum("bnqk,bknh->bqnh", weights.astype(values.dtype), values)


def _attention(name: str, sizes: Transformer, base: str = "") -> Case:
    """A decoder without embedding; its weights are stacked, a layer in each row."""
    import jax
    import jax.numpy as jnp

    def layer(x: Any, weights: Any) -> Any:
        projected = (x @ weights[0]).reshape(
            *x.shape[:2], 3 * sizes.heads, sizes.head_dim
        )
        queries, keys, values = jnp.split(projected, 3, axis=2)
        found = attend(queries, keys, values, sizes.attention)
        x = x + found.reshape(x.shape) @ weights[1]
        return x + jax.nn.gelu(x @ weights[2]) @ weights[3], None

    def loss(weights: Any, x: Any) -> Any:
        body = jax.checkpoint(layer) if sizes.remat else layer
        unroll = sizes.layers if sizes.unroll else 1
        return _mean_square(jax.lax.scan(body, x, weights, unroll=unroll)[0])

    d, count = sizes.width, sizes.layers
    matrices = ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d))
    stacked = tuple(Array((count, *shape)) for shape in matrices)
    tokens = Array((sizes.batch, sizes.length, d))
    return Case(
        name,
        "attention",
        _step(loss),
        (*stacked, tokens),
        base,
        needs_cudnn=sizes.attention == "cudnn",
        is_step=True,
    )


def _experts(*, small: bool) -> Case:
    """Eight experts, one for each token, of a fixed capacity (Switch Transformer, arXiv 2101.03961,
    section 2.2).
    """
    import jax
    import jax.numpy as jnp

    experts, layers = 8, 2 if small else 4
    tokens, width = (256, 64) if small else (8192, 2048)
    capacity = tokens // experts

    def layer(x: Any, weights: Any) -> Any:
        router, up, down = weights
        gates = jax.nn.softmax((x @ router).astype(jnp.float32))
        chosen = jax.nn.one_hot(jnp.argmax(gates, axis=-1), experts)
        place = (jnp.cumsum(chosen, axis=0) - 1) * chosen
        queue = jax.nn.one_hot(jnp.sum(place, axis=-1).astype(jnp.int32), capacity)
        dispatch = (chosen[:, :, None] * queue[:, None, :]).astype(x.dtype)
        sent = jnp.einsum("nec,nd->ecd", dispatch, x)
        hidden = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", sent, up))
        done = jnp.einsum("ecf,efd->ecd", hidden, down)
        weight = jnp.max(gates, axis=-1, keepdims=True).astype(x.dtype)
        return x + weight * jnp.einsum("nec,ecd->nd", dispatch, done), None

    def loss(weights: Any, x: Any) -> Any:
        return _mean_square(jax.lax.scan(layer, x, weights)[0])

    matrices = (
        Array((layers, width, experts)),
        Array((layers, experts, width, 2 * width)),
        Array((layers, experts, 2 * width, width)),
    )
    arrays = (*matrices, Array((tokens, width)))
    return Case("mixture_of_experts", "experts", _step(loss), arrays, is_step=True)


def _convolutions(*, small: bool) -> Case:
    """Residual blocks of 3 × 3 convolutions with a halving of the image between stages, as in
    ResNet.
    """
    import jax

    batch, size, width = (2, 16, 16) if small else (64, 56, 128)
    numbers = ("NHWC", "HWIO", "NHWC")

    def convolved(x: Any, weights: Any, stride: int = 1) -> Any:
        return jax.lax.conv_general_dilated(
            x, weights, (stride, stride), "SAME", dimension_numbers=numbers
        )

    def loss(weights: Any, x: Any) -> Any:
        for first, second, wider in zip(
            weights[::3], weights[1::3], weights[2::3], strict=True
        ):
            x = x + convolved(jax.nn.relu(convolved(x, first)), second)
            x = jax.nn.relu(convolved(x, wider, stride=2))
        return _mean_square(x)

    arrays = []
    for stage in range(3):
        inner = width * 2**stage
        block = (Array((3, 3, inner, inner)), Array((3, 3, inner, inner)))
        arrays += [*block, Array((3, 3, inner, 2 * inner))]
    images = Array((batch, size, size, width))
    return Case(
        "convolution_net", "convolutions", _step(loss), (*arrays, images), is_step=True
    )


def _offload(name: str, *, small: bool, offloads: bool, base: str = "") -> Case:
    """A deep MLP; if it offloads, the input of each layer waits in pinned host memory for the
    backward pass.
    """
    import jax
    import jax.numpy as jnp
    from jax.ad_checkpoint import checkpoint_name

    layers = 2 if small else 8
    batch, width = (128, 128) if small else (8192, 4096)
    saved = jax.checkpoint_policies.save_only_these_names("layer_input")
    moved = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["layer_input"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def layer(x: Any, weights: Any) -> Any:
        x = checkpoint_name(x, "layer_input")
        return x + jnp.tanh(x @ weights)

    def loss(weights: Any, x: Any) -> Any:
        body = jax.checkpoint(layer, policy=moved if offloads else saved)
        for number in range(layers):
            x = body(x, weights[0][number])
        return _mean_square(x)

    arrays = (Array((layers, width, width)), Array((batch, width)))
    return Case(name, "offload", _step(loss), arrays, base, is_step=True)


def _vocabulary(name: str, *, small: bool, one_hot: bool, base: str = "") -> Case:
    """Embedding, one layer and a softmax over a large vocabulary.

    The gradient of the embedding is a scatter, or with `one_hot` a product.
    """
    import jax
    import jax.numpy as jnp

    words, width, tokens = (512, 64, 128) if small else (131072, 1024, 8192)

    def loss(weights: Any, tokens: Any) -> Any:
        table, matrix = weights
        seen, wanted = tokens[:-1], tokens[1:]
        embedded = (
            jax.nn.one_hot(seen, words, dtype=table.dtype) @ table
            if one_hot
            else table[seen]
        )
        hidden = embedded + jax.nn.gelu(embedded @ matrix)
        scores = (hidden @ table.T).astype(jnp.float32)
        of_wanted = jnp.take_along_axis(scores, wanted[:, None], axis=1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(scores, axis=1) - of_wanted)

    arrays = (
        Array((words, width)),
        Array((width, width)),
        Array((tokens,), "int32", "random", words),
    )
    return Case(name, "vocabulary", _step(loss), arrays, base, is_step=True)
