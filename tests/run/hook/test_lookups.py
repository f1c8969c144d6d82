"""Lookups of rows that are differentiated: which get another gradient, and which must not."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("hook_here")

ROWS, WIDTH, TOKENS = 20, 6, (3, 7)
Loss = Callable[..., Any]


def changed(loss: Loss, how: str, argnums: Any = None) -> tuple[Loss, list[Any]]:
    """The loss with other gradients of its lookups, and the lookups once it is traced."""
    lookups = importlib.import_module("pgle_hook.lookups")
    rewrite = importlib.import_module("pgle_hook.rewrite")
    seen: list[Any] = []

    def find(graph: Any) -> dict[int, Any]:
        found = {}
        for node in graph.nodes:
            made = lookups.find(jax, node, how, ROWS)
            if made is not None:
                found[id(node)] = made
                seen.append(node)
        return found

    return rewrite.Rewriter(jax, find)(loss, argnums), seen


def operands() -> list[Any]:
    """A table and ids: some come twice, one is negative."""
    random = np.random.default_rng(0)
    table = jnp.asarray(random.normal(size=(ROWS, WIDTH)), jnp.float32)
    ids = random.integers(-2, ROWS, size=TOKENS)
    return [table, jnp.asarray(ids)]


def loss_of(rows: Any) -> Any:
    return (rows.astype(jnp.float32) * jnp.arange(rows.size).reshape(rows.shape)).sum()


def indexed(table: Any, ids: Any) -> Any:
    return loss_of(table[ids])


def taken(table: Any, ids: Any) -> Any:
    return loss_of(jnp.take(table, ids, axis=0))


def narrowed(table: Any, ids: Any) -> Any:
    return loss_of(table.astype(jnp.bfloat16)[ids])


def within_a_checkpoint(table: Any, ids: Any) -> Any:
    return jax.checkpoint(indexed)(table, ids)


def out_of_bounds(table: Any, ids: Any) -> Any:
    rows = jnp.take(table, ids + 5, axis=0, mode="fill", fill_value=0)
    return loss_of(rows)


LOOKUPS = [indexed, taken, narrowed, within_a_checkpoint, out_of_bounds]


@pytest.mark.parametrize("loss", LOOKUPS, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("how", ["one_hot", "sorted"])
def test_the_gradient_is_equal_and_no_scatter_in_any_order(
    loss: Loss, how: str
) -> None:
    args = operands()
    other, _ = changed(loss, how)
    before = jax.value_and_grad(loss)
    after = jax.value_and_grad(other)
    text = str(jax.make_jaxpr(after)(*args))
    assert ("scatter-add" in text) == (how == "sorted")
    assert ("indices_are_sorted=True" in text) == (how == "sorted")
    results = jax.jit(lambda *args: (before(*args), after(*args)))(*args)
    (value, gradient), (same, other_gradient) = results
    assert value == same
    # bf16 rounds each of the sums of a row to 8 bits
    tolerance = 4 * 2**-8 if loss is narrowed else 1e-6
    np.testing.assert_allclose(other_gradient, gradient, rtol=tolerance)


# What is no lookup of an embedding that is learned.


def elements(table: Any, ids: Any) -> Any:
    return loss_of(table[ids, ids % WIDTH])


def columns(table: Any, ids: Any) -> Any:
    return loss_of(table.T[ids % WIDTH])


def of_activations(table: Any, ids: Any) -> Any:
    return loss_of(jnp.tanh(table)[ids])


def stopped(table: Any, ids: Any) -> Any:
    return loss_of(jax.lax.stop_gradient(table)[ids]) + table.sum()


def of_positions(table: Any, ids: Any) -> Any:
    return loss_of(table[jnp.arange(5)]) + ids.sum()


def of_integers(table: Any, ids: Any) -> Any:
    counts = jnp.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)
    return loss_of(counts[ids]) + table.sum()


def clipped(table: Any, ids: Any) -> Any:
    return loss_of(jnp.take(table, ids, axis=0, mode="clip"))


def windows(table: Any, ids: Any) -> Any:
    start = lambda place: jax.lax.dynamic_slice_in_dim(table, place, 2)
    return loss_of(jax.vmap(start)(ids[0]))


def few_rows(table: Any, ids: Any) -> Any:
    return loss_of(table[: ROWS - 1][ids])


NEAR_MISSES = [
    elements,
    columns,
    of_activations,
    stopped,
    of_positions,
    of_integers,
    clipped,
    windows,
    few_rows,
]


@pytest.mark.parametrize("loss", NEAR_MISSES, ids=lambda loss: loss.__name__)
def test_a_near_miss_is_left_alone(loss: Loss) -> None:
    other, seen = changed(loss, "one_hot")
    jax.eval_shape(other, *operands())
    assert seen == []


def test_a_table_that_is_not_differentiated_is_left_alone() -> None:
    table, ids = operands()
    loss = lambda ids, w, table: loss_of(table[ids] * w)
    for argnums, count in (((1,), 0), ((1, 2), 1), ((-1,), 1)):
        other, seen = changed(loss, "one_hot", argnums)
        jax.eval_shape(other, ids, 1.0, table)
        assert len(seen) == count


def test_a_table_of_integers_is_left_alone() -> None:
    table, ids = operands()
    other, seen = changed(indexed, "sorted")
    jax.eval_shape(other, table.astype(jnp.int32), ids)
    assert seen == []
