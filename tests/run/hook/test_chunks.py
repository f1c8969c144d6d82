"""Losses over a large vocabulary: which are computed in chunks of tokens, and which must not be."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("hook_here")

B, T, D, V = 2, 48, 8, 40
COUNT = 4  # chunks
Loss = Callable[..., Any]


def chunked(loss: Loss) -> Loss:
    """The loss with what can be computed in chunks."""
    chunks = importlib.import_module("pgle_hook.chunks")
    rewrite = importlib.import_module("pgle_hook.rewrite")

    def find(graph: Any) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for _, made, _ in chunks.find(jax, graph, COUNT, jax.checkpoint, V):
            found.update(made)
        return found

    rewritten: Loss = rewrite.Rewriter(jax, find)(loss)
    return rewritten


def operands(tokens: int = T) -> list[Any]:
    """Activations, a table and labels."""
    random = np.random.default_rng(0)
    x = random.normal(size=(B, tokens, D))
    table = random.normal(size=(D, V))
    labels = random.integers(0, V, size=(B, tokens))
    return [jnp.asarray(x, jnp.float32), jnp.asarray(table, jnp.float32), labels]


def largest(traced: Any) -> int:
    """Elements of the largest array that a traced function makes."""
    values = importlib.import_module("pgle_hook.values")
    return max(
        int(np.prod(one.shape))
        for one in values._arrays_in(values._eqns_in(traced.jaxpr))
    )


def taken(logits: Any, labels: Any) -> Any:
    return jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def log_softmax(x: Any, table: Any, labels: Any) -> Any:
    return -taken(jax.nn.log_softmax(x @ table), labels).mean()


def one_hot(x: Any, table: Any, labels: Any) -> Any:
    return one_hot_of(x @ table, labels)


def summed_at_once(x: Any, table: Any, labels: Any) -> Any:
    hot = jax.nn.one_hot(labels, V)
    return -jnp.sum(hot * jax.nn.log_softmax(x @ table)) / labels.size


def as_optax(x: Any, table: Any, labels: Any) -> Any:
    logits = x @ table
    logits -= jax.lax.stop_gradient(logits.max(-1, keepdims=True))
    return (jnp.log(jnp.exp(logits).sum(-1)) - taken(logits, labels)).mean()


def capped_and_smoothed(x: Any, table: Any, labels: Any) -> Any:
    chances = jax.nn.log_softmax(30 * jnp.tanh(x @ table / 30))
    return -(0.9 * taken(chances, labels) + 0.1 * chances.mean(-1)).mean()


def weighted(x: Any, table: Any, labels: Any) -> Any:
    logits = x @ table
    total = jax.nn.logsumexp(logits, -1)
    losses = total - taken(logits, labels) + 1e-4 * total**2
    return (losses * (labels > 3)).sum() / (labels > 3).sum()


def by_counting(x: Any, table: Any, labels: Any) -> Any:
    chances = jax.nn.log_softmax(x.reshape(-1, D) @ table)
    return -chances[jnp.arange(labels.size), labels.reshape(-1)].mean()


def shifted(x: Any, table: Any, labels: Any) -> Any:
    return -taken(jax.nn.log_softmax((x @ table)[:, :-1]), labels[:, 1:]).mean()


def shifted_with_bias_and_mask(x: Any, table: Any, labels: Any) -> Any:
    logits = (x @ table + table[0])[:, :-1]
    losses = jax.nn.logsumexp(logits, -1) - taken(logits, labels[:, 1:])
    shows = labels[:, 1:] > 3
    return (losses * shows).sum() / shows.sum()


def shifted_on_one_axis(x: Any, table: Any, labels: Any) -> Any:
    logits = (x @ table)[:, :-1].reshape(-1, V)
    return one_hot_of(logits, labels[:, 1:].reshape(-1))


def at_a_known_place(x: Any, table: Any, labels: Any) -> Any:
    logits = jax.lax.dynamic_slice_in_dim(x @ table, 1, T - 1, axis=1)
    return one_hot_of(logits, labels[:, 1:])


def shifted_row_by_row(x: Any, table: Any, labels: Any) -> Any:
    row = lambda x, labels: one_hot_of((x @ table)[:-1], labels[1:])
    return jax.vmap(row)(x, labels).mean()


def one_hot_of(logits: Any, labels: Any) -> Any:
    hot = jax.nn.one_hot(labels, V)
    return -(hot * jax.nn.log_softmax(logits)).sum(-1).mean()


def picked_on_one_axis(x: Any, table: Any, labels: Any) -> Any:
    chances = jax.nn.log_softmax((x @ table).reshape(-1, V))
    return -chances[jnp.arange(labels.size), labels.reshape(-1)].mean()


# `eqx.nn.Linear` multiplies its weight by one token, and the program maps it over tokens.


def mapped(x: Any, table: Any, labels: Any) -> Any:
    of_token = lambda token: table.T @ token + table[0]
    logits = jax.vmap(jax.vmap(of_token))(x)
    return -taken(jax.nn.log_softmax(logits), labels).mean()


def mapped_row_by_row(x: Any, table: Any, labels: Any) -> Any:
    def row(x: Any, labels: Any) -> Any:
        logits = jax.vmap(lambda token: table.T @ token)(x)
        return one_hot_of(logits[:-1], labels[1:])

    return jax.vmap(row)(x, labels).mean()


def mapped_token_by_token(x: Any, table: Any, labels: Any) -> Any:
    token = lambda x, label: -jax.nn.log_softmax(table.T @ x)[label]
    return jax.vmap(jax.vmap(token))(x, labels).mean()


def mapped_token_by_token_with_a_cap(x: Any, table: Any, labels: Any) -> Any:
    def token(x: Any, label: Any) -> Any:
        capped = 9 * jnp.tanh((table.T @ x) / 9)
        return jax.nn.logsumexp(capped) - capped[label]

    return jax.vmap(jax.vmap(token))(x, labels).mean()


def mapped_over_one_axis(x: Any, table: Any, labels: Any) -> Any:
    logits = jax.vmap(lambda token: table.T @ token)(x.reshape(-1, D))
    losses = jax.nn.logsumexp(logits, -1) - taken(logits, labels.reshape(-1))
    return losses.mean()


def turned_by_einsum(x: Any, table: Any, labels: Any) -> Any:
    return one_hot_of(jnp.einsum("dv,btd->vbt", table, x).transpose(1, 2, 0), labels)


CASES = [
    (mapped, T),
    (mapped_row_by_row, T),
    (mapped_token_by_token, T - 1),
    (mapped_token_by_token_with_a_cap, T),
    (mapped_over_one_axis, T - 1),
    (turned_by_einsum, T),
    (shifted, T),
    (shifted_with_bias_and_mask, T),
    (shifted_on_one_axis, T),
    (shifted_row_by_row, T),
    (at_a_known_place, T),
    (picked_on_one_axis, T - 1),
    (log_softmax, T - 1),
    (one_hot, T),
    (summed_at_once, T),
    (as_optax, T),
    (capped_and_smoothed, T),
    (weighted, T),
    (by_counting, T - 1),
]


@pytest.mark.parametrize(("loss", "tokens"), CASES)
def test_a_loss_in_chunks_is_equal_and_never_makes_all_logits(
    loss: Loss, tokens: int
) -> None:
    args = operands(tokens)
    differentiate = partial(jax.value_and_grad, argnums=(0, 1))
    traced = jax.make_jaxpr(differentiate(chunked(loss)))(*args)
    assert largest(traced) <= B * T // COUNT * V
    after = jax.jit(jax.extend.core.jaxpr_as_fun(traced))(*args)
    before = jax.tree.leaves(jax.jit(differentiate(loss))(*args))
    for one, two in zip(before, after, strict=True):
        # sums of f32 in another order
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def test_a_loss_within_a_checkpoint_is_computed_in_chunks() -> None:
    args = operands()
    other = chunked(jax.checkpoint(log_softmax))
    assert largest(jax.make_jaxpr(jax.grad(other))(*args)) < B * T * V
    before, after = jax.jit(lambda *args: (log_softmax(*args), other(*args)))(*args)
    np.testing.assert_allclose(after, before, rtol=1e-6)


# What needs the logits of all tokens.


def returned(x: Any, table: Any, labels: Any) -> Any:
    logits = x @ table
    return taken(jax.nn.log_softmax(logits), labels).mean(), logits


def used_twice(x: Any, table: Any, labels: Any) -> Any:
    logits = x @ table
    loss = (jax.nn.logsumexp(logits, -1) - taken(logits, labels)).mean()
    return loss + 1e-3 * jnp.square(logits.mean((0, 1))).sum()


def over_tokens(x: Any, table: Any, labels: Any) -> Any:
    return -taken(jax.nn.log_softmax(x @ table, axis=1), labels).mean()


def normalised_over_tokens(x: Any, table: Any, labels: Any) -> Any:
    logits = x @ table
    return taken(logits / logits.sum(), labels).mean()


def second_product(x: Any, table: Any, labels: Any) -> Any:
    return jnp.square(jax.nn.softmax(x @ table) @ table.T).mean() + labels.sum()


def no_table(x: Any, table: Any, labels: Any) -> Any:
    keys = jnp.broadcast_to(table, (B, D, V))
    return -taken(jax.nn.log_softmax(x @ keys), labels).mean()


def few_words(x: Any, table: Any, labels: Any) -> Any:
    return log_softmax(x, table[:, :-1], jnp.minimum(labels, V - 2))


def of_other_tokens(x: Any, table: Any, labels: Any) -> Any:
    chances = jax.nn.log_softmax(x.reshape(-1, D) @ table)
    others = jnp.arange(labels.size)[::-1]
    return -chances[others, labels.reshape(-1)].mean()


def split(x: Any, table: Any, labels: Any) -> Any:
    first, second = jnp.split(x @ table, 2, axis=-1)
    return jnp.square(first * second).mean() + labels.sum()


def shifted_both_ways(x: Any, table: Any, labels: Any) -> Any:
    logits = x @ table
    first = one_hot_of(logits[:, :-1], labels[:, 1:])
    return first + one_hot_of(logits[:, 1:], labels[:, :-1])


def whole_and_shifted(x: Any, table: Any, labels: Any) -> Any:
    logits = x @ table
    total = jax.nn.logsumexp(logits, -1).mean()
    return one_hot_of(logits[:, :-1], labels[:, 1:]) + total


def whole_on_one_axis_and_shifted(x: Any, table: Any, labels: Any) -> Any:
    logits = x @ table
    total = jax.nn.logsumexp(logits.reshape(-1, V), -1).mean()
    return one_hot_of(logits[:, :-1], labels[:, 1:]) + total


def at_a_place_of_the_data(x: Any, table: Any, labels: Any) -> Any:
    logits = jax.lax.dynamic_slice_in_dim(x @ table, labels[0, 0], T - 1, axis=1)
    return one_hot_of(logits, labels[:, 1:])


def every_other_token(x: Any, table: Any, labels: Any) -> Any:
    return one_hot_of((x @ table)[:, ::2], labels[:, ::2])


def mapped_and_used_twice(x: Any, table: Any, labels: Any) -> Any:
    logits = jax.lax.dot_general(table.T, x, (((1,), (2,)), ((), ())))
    loss = one_hot_of(logits.transpose(1, 2, 0), labels)
    return loss + jnp.square(logits.sum((1, 2))).mean()


def mapped_and_returned(x: Any, table: Any, labels: Any) -> Any:
    logits = jax.vmap(jax.vmap(lambda token: table.T @ token))(x)
    return one_hot_of(logits, labels), logits


NEAR_MISSES = [
    mapped_and_used_twice,
    mapped_and_returned,
    shifted_both_ways,
    whole_and_shifted,
    whole_on_one_axis_and_shifted,
    at_a_place_of_the_data,
    every_other_token,
    split,
    returned,
    used_twice,
    over_tokens,
    normalised_over_tokens,
    second_product,
    no_table,
    few_words,
    of_other_tokens,
]


@pytest.mark.parametrize("loss", NEAR_MISSES, ids=lambda loss: loss.__name__)
def test_a_near_miss_is_left_alone(loss: Loss) -> None:
    args = operands()
    trace = lambda function: str(jax.make_jaxpr(function)(*args))
    assert "scan" not in trace(chunked(loss))


@pytest.mark.parametrize("mode", ["fill", "clip", "promise_in_bounds"])
def test_a_label_out_of_bounds_is_what_its_mode_says(mode: str) -> None:
    x, table, labels = operands(5)
    labels = jnp.asarray(labels.reshape(-1)).at[:2].set(V + 3).at[2].set(-1)

    def loss(x: Any, table: Any) -> Any:
        chances = jax.nn.log_softmax(x.reshape(-1, D) @ table)
        places = chances.at[jnp.arange(labels.size), labels]
        options = {"fill_value": 0.0} if mode == "fill" else {}
        return places.get(mode=mode, wrap_negative_indices=False, **options).sum()

    before = jax.value_and_grad(loss)(x, table)
    after = jax.value_and_grad(chunked(loss))(x, table)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, after, before)


def test_tokens_that_fill_a_chunk_make_no_gradient_nan() -> None:
    x, table, labels = operands(T - 1)
    heat = jnp.ones(labels.shape)

    def tempered(table: Any, heat: Any) -> Any:
        logits = (x @ table) / heat[..., None]
        return -taken(jax.nn.log_softmax(logits), labels).mean()

    gradients = jax.grad(chunked(tempered), argnums=(0, 1))(table, heat)
    assert all(jnp.isfinite(each).all() for each in gradients)


def largest_on_four_devices(spec: Any, tokens: int) -> int:
    """Elements of the largest array of a loss whose activations are sharded explicitly."""
    sharding = jax.sharding
    mesh = sharding.AbstractMesh((4,), ("x",), axis_types=(sharding.AxisType.Explicit,))

    def given(shape: Any, dtype: Any, spec: Any) -> Any:
        placed = sharding.NamedSharding(mesh, sharding.PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=placed)

    def loss(x: Any, table: Any, labels: Any) -> Any:
        return one_hot_of(jnp.einsum("btd,dv->btv", x, table), labels)

    shapes = [
        given((4, tokens, D), jnp.float32, spec),
        given((D, V), jnp.float32, ()),
        given((4, tokens), jnp.int32, spec),
    ]
    with sharding.use_abstract_mesh(mesh):
        return largest(jax.make_jaxpr(chunked(loss))(*shapes))


def test_rows_that_are_sharded_explicitly_stay_so_in_chunks() -> None:
    assert largest_on_four_devices(("x",), 13) < 4 * 13 * V


def test_tokens_that_are_sharded_explicitly_are_not_cut() -> None:
    assert largest_on_four_devices((None, "x"), 12) >= 4 * 12 * V
