"""Attention that a program writes itself: what is replaced, and what must not be."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("hook_here")

B, S, N, D = 2, 12, 3, 8
Attend = Callable[[Any, Any, Any], Any]
ATTEND = partial(jax.nn.dot_product_attention, implementation="xla")
CAUSAL = np.tri(S, dtype=bool)


def replaced(function: Callable[..., Any], *args: Any) -> tuple[int, Any]:
    """How many attentions of a function are fused, and the function that fuses them."""
    by_hand = importlib.import_module("pgle_hook.by_hand")
    fusing = importlib.import_module("pgle_hook.fusing")
    rewrite = importlib.import_module("pgle_hook.rewrite")

    def find(graph: Any) -> dict[Any, Any]:
        made = {}
        for node in graph.nodes:
            with suppress(by_hand.LeftError):
                attention = by_hand.find(jax, node)
                if attention is not None:
                    made[node] = fusing.replacement(jax, attention, ATTEND)
        return made

    rewriter = rewrite.Rewriter(jax, find)
    rewritten = rewriter(function)
    jax.eval_shape(rewritten, *args)
    return rewriter.replaced, rewritten


def both(function: Callable[..., Any], fused: Any, *args: Any) -> tuple[Any, Any]:
    """What a function returns, and what the one that fuses returns."""
    return jax.jit(lambda *args: (function(*args), fused(*args)))(*args)


def operands(order: str = "bsnd", dtype: Any = jnp.bfloat16) -> list[Any]:
    sizes = {"b": B, "s": S, "n": N, "d": D}
    random = np.random.default_rng(0)
    shape = [sizes[axis] for axis in order]
    return [jnp.asarray(random.normal(size=shape), dtype) for _ in range(3)]


def masked(scores: Any, mask: Any = CAUSAL) -> Any:
    return jnp.where(mask, scores, -1e9)


def product(q: Any, k: Any) -> Any:
    return jnp.einsum("bqnd,bknd->bnqk", q, k).astype(jnp.float32)


def weighted(weights: Any, v: Any) -> Any:
    return jnp.einsum("bnqk,bknd->bqnd", weights.astype(v.dtype), v)


def usual(q: Any, k: Any, v: Any) -> Any:
    return weighted(jax.nn.softmax(masked(product(q, k) / 8)), v)


def divided(q: Any, k: Any, v: Any) -> Any:
    scores = masked(product(q * 0.3, k))
    powers = jnp.exp(scores - scores.max(-1, keepdims=True))
    return weighted(powers / powers.sum(-1, keepdims=True), v)


def unshifted(q: Any, k: Any, v: Any) -> Any:
    powers = jnp.exp(product(q, k) * 0.25)
    return weighted(powers / jnp.sum(powers, axis=-1)[..., None], v)


def widened(q: Any, k: Any, v: Any) -> Any:
    q, k, wide = (one.astype(jnp.float32) for one in (q, k, v))
    weights = jax.nn.softmax(masked(product(q, k) * D**-0.5), axis=-1)
    return weighted(weights, wide).astype(v.dtype)


def added(q: Any, k: Any, v: Any) -> Any:
    bias = jnp.where(CAUSAL, 0.0, -1e10)[None, None]
    return weighted(jax.nn.softmax(product(q, k) / 8 + bias), v)


def triangle(q: Any, k: Any, v: Any) -> Any:
    bias = jnp.triu(jnp.ones((S, S)), 1) * -1e9
    return weighted(jax.nn.softmax(product(q, k) / 8 + bias), v)


def hidden(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.where(~CAUSAL, jnp.finfo(jnp.float32).min, product(q, k) / 8)
    return weighted(jax.nn.softmax(scores), v)


def keys_first(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bknd,bqnd->bnkq", k, q).astype(jnp.float32) / 8
    weights = jax.nn.softmax(masked(scores, CAUSAL.T), axis=2)
    return jnp.einsum("bknd,bnkq->bqnd", v, weights.astype(v.dtype))


def divided_last(q: Any, k: Any, v: Any) -> Any:
    scores = masked(product(q, k) / 8)
    powers = jnp.exp(scores - scores.max(-1, keepdims=True))
    total = powers.sum(-1, keepdims=True)
    return weighted(powers, v) / total.transpose(0, 2, 1, 3).astype(v.dtype)


def heads_in_one_axis_with_the_batch(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.transpose(0, 2, 1, 3).reshape(B * N, S, D) for x in (q, k, v))
    scores = jnp.einsum("hqd,hkd->hqk", q, k).astype(jnp.float32)
    weights = jax.nn.softmax(masked(scores / 8)).astype(v.dtype)
    made = jnp.einsum("hqk,hkd->hqd", weights, v)
    return made.reshape(B, N, S, D).transpose(0, 2, 1, 3)


SHOWN = np.random.default_rng(1).random((B, 1, S, S)) > 0.3
SHOWN[..., 0] = True  # each query sees a key


def exponential_of_log_softmax(q: Any, k: Any, v: Any) -> Any:
    return weighted(jnp.exp(jax.nn.log_softmax(masked(product(q, k) / 8))), v)


def exponential_less_logsumexp(q: Any, k: Any, v: Any) -> Any:
    scores = masked(product(q, k) / 8)
    total = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
    return weighted(jnp.exp(scores - total), v)


def exponential_less_own_logarithm(q: Any, k: Any, v: Any) -> Any:
    scores = product(q, k) / 8
    most = scores.max(-1)
    total = most + jnp.log(jnp.exp(scores - most[..., None]).sum(-1))
    return weighted(jnp.exp(scores - total[..., None]), v)


def exponential_less_logarithm_without_maximum(q: Any, k: Any, v: Any) -> Any:
    scores = product(q, k) / 8
    total = jnp.log(jnp.exp(scores).sum(-1, keepdims=True))
    return weighted(jnp.exp(scores - total), v)


def softmax_where(q: Any, k: Any, v: Any) -> Any:
    return weighted(jax.nn.softmax(product(q, k) / 8, where=jnp.asarray(SHOWN)), v)


def log_softmax_where(q: Any, k: Any, v: Any) -> Any:
    chances = jax.nn.log_softmax(product(q, k) / 8, where=jnp.asarray(CAUSAL))
    return weighted(jnp.exp(chances), v)


def masked_and_where(q: Any, k: Any, v: Any) -> Any:
    scores = masked(product(q, k) / 8, SHOWN)
    return weighted(jax.nn.softmax(scores, where=jnp.asarray(CAUSAL)), v)


def times_the_inverse(q: Any, k: Any, v: Any) -> Any:
    powers = jnp.exp(masked(product(q, k) / 8))
    return weighted(powers * (1 / powers.sum(-1, keepdims=True)), v)


def softmax_in_half_precision(q: Any, k: Any, v: Any) -> Any:
    scores = masked(jnp.einsum("bqnd,bknd->bnqk", q, k) / 8)
    return weighted(jax.nn.softmax(scores), v)


def softmax_in_f32_of_half_precision(q: Any, k: Any, v: Any) -> Any:
    scores = masked(jnp.einsum("bqnd,bknd->bnqk", q, k) / 8)
    weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(jnp.bfloat16)
    return weighted(weights, v)


def keys_repeated(q: Any, k: Any, v: Any) -> Any:
    queries = jnp.concatenate([q, 2 * q], axis=2)
    keys, values = (jnp.repeat(one, 2, axis=2) for one in (k, v))
    return weighted(jax.nn.softmax(masked(product(queries, keys) / 8)), values)


def keys_broadcast(q: Any, k: Any, v: Any) -> Any:
    queries = jnp.concatenate([q, 2 * q], axis=2)
    wide = lambda one: jnp.broadcast_to(one[:, :, :, None], (B, S, N, 2, D))
    keys, values = (wide(one).reshape(B, S, 2 * N, D) for one in (k, v))
    return weighted(jax.nn.softmax(masked(product(queries, keys) / 8)), values)


SPELLINGS: list[Attend] = [
    exponential_of_log_softmax,
    exponential_less_logsumexp,
    exponential_less_own_logarithm,
    exponential_less_logarithm_without_maximum,
    softmax_where,
    log_softmax_where,
    masked_and_where,
    times_the_inverse,
    softmax_in_half_precision,
    softmax_in_f32_of_half_precision,
    keys_repeated,
    keys_broadcast,
    divided_last,
    heads_in_one_axis_with_the_batch,
    usual,
    divided,
    unshifted,
    triangle,
    widened,
    added,
    hidden,
    keys_first,
]


def loss_of(attend: Attend, q: Any, k: Any, v: Any) -> Any:
    weight = jnp.arange(D) / D
    return (attend(q, k, v).astype(jnp.float32) * weight).sum()


def apart(one: Any, other: Any) -> float:
    one, other = (np.asarray(item, np.float64) for item in (one, other))
    return float(np.linalg.norm(one - other) / np.linalg.norm(one))


@pytest.mark.parametrize("attend", SPELLINGS, ids=lambda attend: attend.__name__)
def test_a_spelling_is_replaced_and_equal_in_loss_and_gradients(attend: Attend) -> None:
    args = operands()
    differentiate = partial(jax.value_and_grad, argnums=(0, 1, 2))
    loss = partial(loss_of, attend)
    count, fused = replaced(loss, *args)
    assert count == 1
    before, after = both(differentiate(loss), differentiate(fused), *args)
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    # each value is rounded to 8 bits in either program, at other places
    assert max(apart(*pair) for pair in pairs) < 4 * 2**-8


def test_heads_before_positions_with_dot_general_are_replaced() -> None:
    batch = ((0, 1), (0, 1))

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = jax.lax.dot_general(q, k, (((3,), (3,)), batch))
        weights = jax.nn.softmax(scores.astype(jnp.float32) * 0.3, axis=-1)
        return jax.lax.dot_general(weights.astype(v.dtype), v, (((3,), (2,)), batch))

    args = operands("bnsd")
    count, fused = replaced(attend, *args)
    assert count == 1
    assert apart(*both(attend, fused, *args)) < 4 * 2**-8


def grouped(q: Any, k: Any, v: Any) -> Any:
    queries = jnp.concatenate([q, 2 * q], axis=2).reshape(B, S, N, 2, D)
    scores = jnp.einsum("btkgd,bskd->bkgts", queries, k)
    weights = jax.nn.softmax(masked(scores / 8).astype(jnp.float32))
    made = jnp.einsum("bkgts,bskd->btkgd", weights.astype(v.dtype), v)
    return made.reshape(B, S, 2 * N, D)


def grouped_with_the_heads_of_the_softmax_in_one_axis(q: Any, k: Any, v: Any) -> Any:
    queries = jnp.concatenate([q, 2 * q], axis=2).reshape(B, S, N, 2, D)
    scores = masked(jnp.einsum("btkgd,bskd->bkgts", queries, k))
    scores = scores.reshape(B, 2 * N, S, S)
    powers = jnp.exp(scores - scores.max(-1, keepdims=True))
    total = powers.sum(-1, keepdims=True).transpose(0, 2, 1, 3)
    powers = powers.reshape(B, N, 2, S, S)
    made = jnp.einsum("bkgts,bskd->btkgd", powers, v)
    return made.reshape(B, S, 2 * N, D) / total


def grouped_with_a_sum_of_each_head(q: Any, k: Any, v: Any) -> Any:
    queries = jnp.concatenate([q, 2 * q], axis=2).reshape(B, S, N, 2, D)
    scores = masked(jnp.einsum("btkgd,bskd->bkgts", queries, k))
    powers = jnp.exp(scores - scores.max(-1, keepdims=True))
    total = powers.sum(-1, keepdims=True).reshape(B, 2 * N, S, 1)
    made = jnp.einsum("bkgts,bskd->btkgd", powers, v)
    return made.reshape(B, S, 2 * N, D) / jnp.moveaxis(total, 1, 2)


def one_head_of_keys(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("btnd,bsd->bnts", q, k[:, :, 0]).astype(jnp.float32)
    weights = jax.nn.softmax(masked(scores / 8))
    return jnp.einsum("bnts,bsd->btnd", weights.astype(v.dtype), v[:, :, 0])


def grouped_with_a_mask_of_each_head(q: Any, k: Any, v: Any) -> Any:
    reach = jnp.arange(1, 1 + N)[:, None, None, None] * jnp.ones((1, 2, 1, 1))
    places = jnp.arange(S)
    apart = places[:, None] - places[None]
    queries = jnp.concatenate([q, 2 * q], axis=2).reshape(B, S, N, 2, D)
    scores = jnp.einsum("btkgd,bskd->bkgts", queries, k).astype(jnp.float32) / 8
    weights = jax.nn.softmax(masked(scores, (apart >= 0) & (apart < reach)))
    made = jnp.einsum("bkgts,bskd->btkgd", weights.astype(v.dtype), v)
    return made.reshape(B, S, 2 * N, D)


GROUPED: list[Attend] = [
    grouped,
    grouped_with_the_heads_of_the_softmax_in_one_axis,
    grouped_with_a_sum_of_each_head,
    one_head_of_keys,
    grouped_with_a_mask_of_each_head,
]


@pytest.mark.parametrize("attend", GROUPED, ids=lambda attend: attend.__name__)
def test_queries_may_have_more_heads_than_keys(attend: Attend) -> None:
    args = operands()
    loss = lambda *args: attend(*args).astype(jnp.float32).var()
    count, fused = replaced(loss, *args)
    assert count == 1
    before, after = both(jax.grad(loss), jax.grad(fused), *args)
    assert apart(before, after) < 8 * 2**-8


def test_layers_in_a_scan_under_checkpoint_are_replaced() -> None:
    q, k, v = operands()

    def layers(q: Any) -> Any:
        layer = jax.checkpoint(lambda x, _: (usual(x, k, v), None))
        return jax.lax.scan(layer, q, None, length=3)[0]

    count, fused = replaced(layers, q)
    assert count == 1
    assert apart(*both(layers, fused, q)) < 8 * 2**-8


@pytest.mark.parametrize("is_within", [True, False])
def test_attention_for_each_device_of_a_mesh_is_replaced(is_within: bool) -> None:
    if not hasattr(jax.lax, "pcast"):
        pytest.skip("this jax has no shard_map that follows where values differ")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = jax.sharding.PartitionSpec("d")
    on_mesh = partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    layers = jax.checkpoint(lambda q: usual(q, q, q))
    args = operands()[:1]
    if is_within:
        counts = []

        def replace(q: Any) -> Any:
            count, fused = replaced(layers, q)
            counts.append(count)
            return fused(q)

        before, after = both(on_mesh(layers), on_mesh(replace), *args)
        assert counts[0] == 1
    else:
        count, fused = replaced(on_mesh(layers), *args)
        assert count >= 1
        before, after = both(on_mesh(layers), fused, *args)
    assert apart(before, after) < 4 * 2**-8


def test_a_mask_of_the_data_is_passed_on() -> None:
    valid = jnp.arange(S) < jnp.array([[5], [S]])

    def attend(q: Any, k: Any, v: Any, valid: Any) -> Any:
        scores = masked(product(q, k) / 8, valid[:, None, None, :])
        return weighted(jax.nn.softmax(scores), v)

    args = [*operands(), valid]
    count, fused = replaced(attend, *args)
    assert count == 1
    assert apart(*both(attend, fused, *args)) < 4 * 2**-8


@pytest.mark.parametrize("features", [4, 20])
def test_values_may_have_other_features_than_keys(features: int) -> None:
    q, k, v = operands()
    v = jnp.resize(v, (B, S, N, features))
    count, fused = replaced(usual, q, k, v)
    assert count == 1
    before, after = both(usual, fused, q, k, v)
    assert before.shape == after.shape
    assert apart(before, after) < 4 * 2**-8


def with_a_constant(wrap: Callable[[Any], Any]) -> Attend:
    """Attention with a mask that is made within a function, and is not causal."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        seen = jnp.asarray(np.arange(S) % 3 > 0)
        return weighted(jax.nn.softmax(masked(product(q, k) / 8, seen)), v)

    return wrap(attend)


def looped(attend: Attend) -> Attend:
    layer = lambda q, k, v: jax.lax.scan(
        lambda x, _: (attend(x, k, v), None), q, None, length=2
    )
    return lambda q, k, v: layer(q, k, v)[0]


@pytest.mark.parametrize("wrap", [jax.checkpoint, looped])
def test_a_mask_made_of_constants_within_a_function_is_passed_on(
    wrap: Callable[[Any], Any],
) -> None:
    args = operands()
    attend = with_a_constant(wrap)
    count, fused = replaced(attend, *args)
    assert count == 1
    differentiate = partial(jax.grad, argnums=0)
    losses = (partial(loss_of, attend), partial(loss_of, fused))
    before, after = both(*map(differentiate, losses), *args)
    assert apart(before, after) < 8 * 2**-8


def test_text_next_to_the_loss_stays_as_it_is() -> None:
    rewrite = importlib.import_module("pgle_hook.rewrite")
    aside = {"text": "name", "rate": 0.5, "none": None}
    rewriter = rewrite.Rewriter(jax, lambda graph: {})
    rewritten = rewriter(lambda x: (jnp.square(x), aside))
    assert jax.grad(rewritten, has_aux=True)(3.0) == (6, aside)


# What is no attention.


def other_axis(q: Any, k: Any, v: Any) -> Any:
    return weighted(jax.nn.softmax(product(q, k) / 8, axis=-2), v)


def axis_of_the_sum(q: Any, k: Any, v: Any) -> Any:
    powers = jnp.exp(product(q, k) / 8)
    return weighted(powers / powers.sum(-1)[..., None, :], v)


def no_softmax(q: Any, k: Any, v: Any) -> Any:
    return weighted(jax.nn.sigmoid(product(q, k) / 8), v)


def of_other_scores(q: Any, k: Any, v: Any) -> Any:
    powers = jnp.exp(product(q, k) / 8)
    others = jnp.exp(product(k, q) / 8)
    return weighted(powers / others.sum(-1, keepdims=True), v)


def with_dropout(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(product(q, k) / 8)
    kept = jax.random.bernoulli(jax.random.key(0), 0.9, weights.shape)
    return weighted(jnp.where(kept, weights / 0.9, 0.0), v)


def with_dropout_by_a_product(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(product(q, k) / 8)
    kept = jax.random.bernoulli(jax.random.key(0), 0.9, weights.shape)
    return weighted(weights * (kept / 0.9), v)


def scale_of_each_head(q: Any, k: Any, v: Any) -> Any:
    scale = jnp.array([0.1, 0.2, 0.3])[:, None, None]
    return weighted(jax.nn.softmax(product(q, k) * scale), v)


def negative_scale(q: Any, k: Any, v: Any) -> Any:
    return weighted(jax.nn.softmax(product(q, k) / -8), v)


def with_bias(q: Any, k: Any, v: Any) -> Any:
    slopes = jnp.arange(S)[None, :] - jnp.arange(S)[:, None]
    return weighted(jax.nn.softmax(product(q, k) / 8 + 0.1 * slopes), v)


def weak_mask(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.where(CAUSAL, product(q, k) / 8, -2.0)
    return weighted(jax.nn.softmax(scores), v)


def mask_that_a_scale_weakens(q: Any, k: Any, v: Any) -> Any:
    return weighted(jax.nn.softmax(masked(product(q, k)) * 1e-7), v)


def soft_cap(q: Any, k: Any, v: Any) -> Any:
    return weighted(jax.nn.softmax(20 * jnp.tanh(product(q, k) / 20)), v)


def scaled_weights(q: Any, k: Any, v: Any) -> Any:
    return weighted(jax.nn.softmax(product(q, k) / 8) * 2, v)


def divided_in_eight_bits(q: Any, k: Any, v: Any) -> Any:
    powers = jnp.exp(product(q, k) / 8)
    made = weighted(powers, v).astype(jnp.float8_e5m2).astype(v.dtype)
    total = powers.sum(-1, keepdims=True).transpose(0, 2, 1, 3)
    return made / total.astype(v.dtype)


def mask_after_the_softmax(q: Any, k: Any, v: Any) -> Any:
    return weighted(jnp.where(CAUSAL, jax.nn.softmax(product(q, k) / 8), 0), v)


def of_the_queries(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(product(q, k) / 8)
    return jnp.einsum("bnqk,bqnd->bknd", weights.astype(v.dtype), v)


def rounded_to_eight_bits(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(product(q, k) / 8).astype(jnp.float8_e4m3fn)
    return weighted(weights, v)


def power_of_two(q: Any, k: Any, v: Any) -> Any:
    powers = jnp.exp2(product(q, k) / 8)
    return weighted(powers / powers.sum(-1, keepdims=True), v)


def heads_mixed(q: Any, k: Any, v: Any) -> Any:
    weights = jax.nn.softmax(product(q, k) / 8)
    return weighted(weights[:, ::-1], v)


def stopped_sum(q: Any, k: Any, v: Any) -> Any:
    powers = jnp.exp(product(q, k) / 8)
    total = jax.lax.stop_gradient(powers.sum(-1, keepdims=True))
    return weighted(powers / total, v)


def divided_by_another_sum(q: Any, k: Any, v: Any) -> Any:
    powers = jnp.exp(product(q, k) / 8)
    total = powers.sum(-2, keepdims=True).transpose(0, 3, 1, 2)
    return weighted(powers, v) / total


def divided_by_features(q: Any, k: Any, v: Any) -> Any:
    powers = jnp.exp(product(q, k) / 8)
    return weighted(powers, v) / powers.sum(-1)[:, :, :D].sum(1)[:, None, None, :]


def keys_shared_by_heads_that_have_their_own_values(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("btnd,bsd->bnts", q, k[:, :, 0]).astype(jnp.float32)
    return weighted(jax.nn.softmax(masked(scores / 8)), v)


def with_half_the_gradient(function: Any) -> Any:
    derived = jax.custom_jvp(function)

    @derived.defjvp
    def tangent(primals: Any, tangents: Any) -> Any:
        value, change = jax.jvp(function, primals, tangents)
        return value, change / 2

    return derived


def own_softmax(q: Any, k: Any, v: Any) -> Any:
    softmax = with_half_the_gradient(lambda scores: jax.nn.softmax(scores))
    return weighted(softmax(product(q, k) / 8), v)


def own_derivative_of_the_scores(q: Any, k: Any, v: Any) -> Any:
    scores = with_half_the_gradient(lambda scores: scores * 1)(product(q, k) / 8)
    return weighted(jax.nn.softmax(scores), v)


def logarithm_of_another_sum(q: Any, k: Any, v: Any) -> Any:
    scores = product(q, k) / 8
    total = jnp.log(jnp.exp(2 * scores).sum(-1, keepdims=True))
    return weighted(jnp.exp(scores - total), v)


def logarithm_with_another_maximum(q: Any, k: Any, v: Any) -> Any:
    scores = product(q, k) / 8
    most = scores.max(-1, keepdims=True)
    total = jnp.log(jnp.exp(scores - most).sum(-1, keepdims=True)) + 2 * most
    return weighted(jnp.exp(scores - total), v)


def logarithm_of_a_stopped_sum(q: Any, k: Any, v: Any) -> Any:
    scores = product(q, k) / 8
    total = jax.lax.stop_gradient(jax.nn.logsumexp(scores, axis=-1, keepdims=True))
    return weighted(jnp.exp(scores - total), v)


def sum_of_shown_keys_alone(q: Any, k: Any, v: Any) -> Any:
    powers = jnp.exp(product(q, k) / 8)
    total = jnp.where(CAUSAL, powers, 0).sum(-1, keepdims=True)
    return weighted(powers / total, v)


def sum_of_other_keys(q: Any, k: Any, v: Any) -> Any:
    powers = jnp.exp(product(q, k) / 8)
    total = jnp.where(CAUSAL.T, powers, 0).sum(-1, keepdims=True)
    return weighted(jnp.where(CAUSAL, powers / total, 0), v)


def times_another_inverse(q: Any, k: Any, v: Any) -> Any:
    powers = jnp.exp(product(q, k) / 8)
    return weighted(powers * (2 / powers.sum(-1, keepdims=True)), v)


def alibi(q: Any, k: Any, v: Any) -> Any:
    slopes = 2.0 ** -jnp.arange(1, N + 1)[:, None, None]
    apart = jnp.arange(S)[None, :] - jnp.arange(S)[:, None]
    return weighted(jax.nn.softmax(masked(product(q, k) / 8 + slopes * apart)), v)


def relative_positions(q: Any, k: Any, v: Any) -> Any:
    table = k[0, :, :, 0].astype(jnp.float32)
    apart = jnp.arange(S)[None, :] - jnp.arange(S)[:, None]
    bias = table[jnp.clip(apart + S // 2, 0, S - 1)].transpose(2, 0, 1)
    return weighted(jax.nn.softmax(masked(product(q, k) / 8 + bias)), v)


NEAR_MISSES: list[Attend] = [
    logarithm_of_another_sum,
    logarithm_with_another_maximum,
    logarithm_of_a_stopped_sum,
    sum_of_shown_keys_alone,
    sum_of_other_keys,
    times_another_inverse,
    alibi,
    relative_positions,
    divided_by_another_sum,
    divided_by_features,
    keys_shared_by_heads_that_have_their_own_values,
    stopped_sum,
    own_softmax,
    own_derivative_of_the_scores,
    other_axis,
    axis_of_the_sum,
    no_softmax,
    of_other_scores,
    with_dropout,
    with_dropout_by_a_product,
    scale_of_each_head,
    negative_scale,
    with_bias,
    weak_mask,
    mask_that_a_scale_weakens,
    soft_cap,
    scaled_weights,
    mask_after_the_softmax,
    of_the_queries,
    divided_in_eight_bits,
    power_of_two,
    heads_mixed,
]


@pytest.mark.parametrize("attend", NEAR_MISSES, ids=lambda attend: attend.__name__)
def test_a_near_miss_is_left_alone(attend: Attend) -> None:
    assert replaced(attend, *operands())[0] == 0


def with_a_sink(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.pad(product(q, k) / 8, [(0, 0)] * 3 + [(0, 1)])
    return weighted(jax.nn.softmax(scores)[..., :-1], v)


def with_a_joined_sink(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.concatenate([product(q, k) / 8, jnp.ones((B, N, S, 1))], axis=-1)
    values = jnp.concatenate([v, jnp.zeros((B, 1, N, D), v.dtype)], axis=1)
    return weighted(jax.nn.softmax(scores), values)


def with_a_sink_in_the_sum(q: Any, k: Any, v: Any) -> Any:
    powers = jnp.exp(product(q, k) / 8)
    return weighted(powers / (1 + powers.sum(-1, keepdims=True)), v)


def by_way_of(dtype: Any, x: Any) -> Any:
    return x.astype(dtype).astype(jnp.float32)


def with_keys_in_eight_bits(q: Any, k: Any, v: Any) -> Any:
    return widened(q, by_way_of(jnp.float8_e4m3fn, k), v)


def with_integers(q: Any, k: Any, v: Any) -> Any:
    return widened(q, k, by_way_of(jnp.int8, v))


def scores_in_eight_bits(q: Any, k: Any, v: Any) -> Any:
    scores = by_way_of(jnp.float8_e5m2, product(q, k))
    return weighted(jax.nn.softmax(scores / 8), v)


def strictly_before(q: Any, k: Any, v: Any) -> Any:
    shown = jnp.tril(jnp.ones((S, S), bool), -1)
    return weighted(jax.nn.softmax(jnp.where(shown, product(q, k) / 8, -1e9)), v)


LEFT = {
    strictly_before: "its mask hides all keys from a query",
    with_keys_in_eight_bits: "its products take values of float8_e4m3fn",
    with_integers: "its products take values of int8",
    scores_in_eight_bits: "its scores are rounded to few digits",
    rounded_to_eight_bits: "its weights are rounded to few digits after the softmax",
    with_a_sink_in_the_sum: "its weights are divided by more than their sum",
    with_bias: "a bias is added to its scores",
    alibi: "a bias is added to its scores",
    relative_positions: "a bias is added to its scores",
    soft_cap: "its scores have a soft cap",
    weak_mask: "what its mask writes is not below -10000",
    with_dropout: "its weights are dropped after the softmax",
    with_dropout_by_a_product: "its weights are dropped or scaled after the softmax",
    scaled_weights: "its weights are dropped or scaled after the softmax",
    with_a_sink: "its weights are cut after the softmax",
    with_a_joined_sink: "something is joined to its scores, such as a sink",
    scale_of_each_head: "its scores are multiplied by more than a positive number",
}


@pytest.mark.parametrize("attend", LEFT, ids=lambda attend: attend.__name__)
def test_attention_that_stays_says_why(attend: Attend) -> None:
    by_hand = importlib.import_module("pgle_hook.by_hand")
    rewrite = importlib.import_module("pgle_hook.rewrite")
    said = []

    def find(graph: Any) -> dict[Any, Any]:
        for node in graph.nodes:
            try:
                by_hand.find(jax, node)
            except by_hand.LeftError as error:
                said.append(str(error))
        return {}

    jax.eval_shape(rewrite.Rewriter(jax, find)(attend), *operands())
    assert said == [LEFT[attend]]


def test_arrays_in_f32_are_left_alone() -> None:
    assert replaced(usual, *operands(dtype=jnp.float32))[0] == 0


def test_an_object_of_the_program_with_a_dtype_is_no_array() -> None:
    class Settings:
        dtype = "bfloat16"
        scale = 0.5

    def attend(x: Any, settings: Settings) -> Any:
        return usual(x * settings.scale, x, x)

    rewrite = importlib.import_module("pgle_hook.rewrite")
    rewritten = rewrite.Rewriter(jax, lambda graph: {})(attend)
    x = operands()[0]
    assert (rewritten(x, Settings()) == attend(x, Settings())).all()


def test_other_functions_keep_their_own_derivative() -> None:
    def function(x: Any) -> Any:
        return jax.nn.relu(x).sum() + usual(x, x, x).astype(jnp.float32).sum()

    zeros = jnp.zeros((B, S, N, D), jnp.bfloat16)
    _, fused = replaced(function, zeros)
    before, after = both(jax.grad(function), jax.grad(fused), zeros)
    assert (before == after).all()


def test_values_that_a_loss_keeps_outside_are_the_reason_of_an_alternative() -> None:
    rewrite = importlib.import_module("pgle_hook.rewrite")
    alternatives = importlib.import_module("pgle_hook.alternatives")
    kept: list[Any] = []

    def loss(x: Any) -> Any:
        kept.append(x.mean())
        return jnp.square(x).sum()

    rewritten = rewrite.Rewriter(jax, lambda graph: {})(loss)
    with pytest.raises(jax.errors.UnexpectedTracerError) as raised:
        jax.jit(lambda x: (jax.grad(rewritten)(x), kept[0] + 1))(jnp.ones(3))
    of_program, of_call = ([{"where": where}] for where in ("by hand", "train.py:1"))
    assert alternatives.why_not(jax, raised.value, of_program) == alternatives.KEEPS
    assert alternatives.why_not(jax, raised.value, of_call) != alternatives.KEEPS
