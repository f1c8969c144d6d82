"""Lookups of rows that are differentiated: which get another gradient, and which must not."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgle.run.edits import lookup_edit

pytestmark = pytest.mark.usefixtures("hook_here")

ROWS, WIDTH, TOKENS = 20, 6, (3, 7)
Loss = Callable[..., Any]


def changed(loss: Loss, how: str, argnums: Any = None) -> tuple[Loss, list[Any]]:
    """The loss with other gradients of its lookups, and the lookups once it is traced."""
    lookups = importlib.import_module("pgle_hook.lookups")
    rewrite = importlib.import_module("pgle_hook.rewrite")
    seen: list[Any] = []

    def find(graph: Any) -> dict[Any, Any]:
        found = {}
        for node in graph.nodes:
            made = lookups.find(jax, node, how, ROWS)
            if made is not None:
                found[node] = made
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


def clipped(table: Any, ids: Any) -> Any:
    return loss_of(jnp.take(table, ids + 5, axis=0, mode="clip"))


def one_by_one(table: Any, ids: Any) -> Any:
    """As a module for one word is called, such as Equinox's."""
    return loss_of(jax.vmap(jax.vmap(lambda place: table[place]))(ids))


LOOKUPS = [
    indexed,
    taken,
    narrowed,
    within_a_checkpoint,
    out_of_bounds,
    clipped,
    one_by_one,
]


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


@pytest.mark.parametrize("how", ["one_hot", "sorted"])
def test_the_written_edit_has_the_gradient_of_negative_and_absent_rows(
    how: str,
) -> None:
    written: dict[str, Any] = {"jax": jax, "jnp": jnp}
    exec(lookup_edit(how), written)
    table, _ = operands()
    ids = jnp.asarray([3, -1, -1, ROWS - 1, ROWS + 2, -ROWS - 3])
    weights = jnp.arange(ids.size * WIDTH, dtype=jnp.float32).reshape(-1, WIDTH)
    gradient = lambda rows: jax.grad(lambda table: (rows(table) * weights).sum())(table)
    before = gradient(lambda table: jnp.take(table, ids, axis=0))
    after = gradient(lambda table: written["lookup"](table, ids))
    np.testing.assert_allclose(after, before, rtol=1e-6)


@pytest.mark.parametrize("how", ["one_hot", "sorted"])
def test_rows_that_are_absent_get_no_gradient(how: str) -> None:
    def loss(table: Any, ids: Any) -> Any:
        read = table.at[ids - ROWS // 2]
        rows = read.get(mode="fill", fill_value=0, wrap_negative_indices=False)
        return loss_of(rows)

    args = operands()
    other, seen = changed(loss, how)
    np.testing.assert_allclose(jax.grad(other)(*args), jax.grad(loss)(*args), rtol=1e-6)
    assert len(seen) == 1


@pytest.mark.parametrize("is_written", [False, True])
def test_padding_out_of_bounds_without_a_finite_gradient_reaches_no_row(
    is_written: bool,
) -> None:
    written: dict[str, Any] = {"jax": jax, "jnp": jnp}
    exec(lookup_edit("one_hot"), written)

    def loss(rows: Any, ids: Any) -> Any:
        shown = (ids < ROWS)[..., None]
        return jnp.where(shown, rows / shown, 0).sum()  # elsewhere a slope is 0 / 0

    table, ids = operands()
    ids = abs(ids).at[0, 0].set(ROWS)
    looked_up = lambda table, ids: loss(
        table.at[ids].get(mode="fill", fill_value=0), ids
    )
    other, _ = changed(looked_up, "one_hot")
    if is_written:
        other = lambda table, ids: loss(written["lookup"](table, ids), ids)
    before, after = (jax.grad(one)(table, ids) for one in (looked_up, other))
    assert jnp.isfinite(before).all()
    np.testing.assert_allclose(after, before, rtol=1e-6)


def carried(table: Any, ids: Any) -> Any:
    step = lambda x, _: (x + jnp.tanh(x[ids[0]].sum()), None)
    return jax.lax.scan(step, table, length=2)[0].sum()


def of_activations_in_a_checkpoint(table: Any, ids: Any) -> Any:
    return jax.checkpoint(indexed)(jnp.tanh(table), ids)


def within_a_scan(table: Any, ids: Any) -> Any:
    step = lambda total, _: (total + indexed(table, ids), None)
    return jax.lax.scan(step, 0.0, length=2)[0]


@pytest.mark.parametrize(
    ("loss", "count"),
    [(carried, 0), (of_activations_in_a_checkpoint, 0), (within_a_scan, 1)],
)
def test_a_body_looks_up_in_an_argument_only_if_it_is_given_one(
    loss: Loss, count: int
) -> None:
    other, seen = changed(loss, "one_hot")
    jax.eval_shape(other, *operands())
    assert len({id(node.eqn) for node in seen}) == count


@pytest.mark.parametrize("how", ["one_hot", "sorted"])
def test_the_gradient_can_be_differentiated_forward(how: str) -> None:
    table, ids = operands()
    loss = lambda table, ids: (table[ids] ** 3).sum()
    other, seen = changed(loss, how)
    along = lambda one: jax.jit(
        lambda table, ids: jax.jvp(
            lambda table: jax.grad(one)(table, ids), (table,), (table,)
        )
    )
    before, after = (along(one)(table, ids) for one in (loss, other))
    assert seen
    jax.tree.map(
        lambda *two: np.testing.assert_allclose(*two, rtol=1e-5), before, after
    )


def test_arrays_of_numpy_stay_what_they_are() -> None:
    table, ids = operands()
    shown = np.arange(TOKENS[0]) > 0
    loss = lambda table, shown: loss_of(table[ids][shown])
    other, _ = changed(loss, "one_hot", (0,))
    assert jax.value_and_grad(other)(table, shown)[0] == loss(table, shown)


def in_a_loop(table: Any, ids: Any) -> Any:
    """The sum of several lookups, which differs on each device."""
    step = lambda x, _: (x + indexed(table, ids), None)
    first = jax.lax.pcast(0.0, "d", to="varying")
    return jax.lax.scan(step, first, length=2)[0]


@pytest.mark.parametrize("is_within", [True, False])
@pytest.mark.parametrize("how", ["one_hot", "sorted"])
def test_a_function_for_each_device_of_a_mesh_is_changed(
    how: str, is_within: bool
) -> None:
    if not hasattr(jax.lax, "pcast"):
        pytest.skip("this jax has no shard_map that follows where values differ")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    whole = jax.sharding.PartitionSpec()
    split = jax.sharding.PartitionSpec("d")
    on_mesh = partial(jax.shard_map, mesh=mesh, in_specs=(whole, split))

    def gradient(change: Callable[[Loss], Loss]) -> Loss:
        if is_within:
            return on_mesh(jax.grad(change(in_a_loop)), out_specs=whole)
        summed = lambda *args: jax.lax.psum(in_a_loop(*args), "d")
        return jax.grad(change(on_mesh(summed, out_specs=whole)))

    table, ids = operands()
    seen: list[Any] = []

    def change(loss: Loss) -> Loss:
        other, found = changed(loss, how)
        seen.append(found)
        return other

    after = jax.jit(gradient(change))(table, ids)
    before = jax.jit(gradient(lambda loss: loss))(table, ids)
    np.testing.assert_allclose(after, before, rtol=1e-6)
    assert seen != [[]]


def test_a_function_for_each_device_without_a_lookup_is_bound_as_it_was() -> None:
    if not hasattr(jax.lax, "pcast"):
        pytest.skip("this jax has no shard_map that follows where values differ")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = jax.sharding.PartitionSpec("d")
    function = jax.shard_map(jnp.tanh, mesh=mesh, in_specs=spec, out_specs=spec)
    other, _ = changed(function, "sorted")
    x = jnp.ones(3)
    assert str(jax.make_jaxpr(other)(x)) == str(jax.make_jaxpr(function)(x))


def test_numpy_counts_the_arguments_that_are_differentiated() -> None:
    alternatives = importlib.import_module("pgle_hook.alternatives")
    assert alternatives._argnums_of((np.int64(1),), {}) == (1,)


def test_a_lookup_within_a_function_of_jax_belongs_to_the_line_that_calls_that() -> (
    None
):
    private = importlib.import_module("pgle_hook.jax_private")
    loss, seen = changed(taken, "one_hot")
    jax.make_jaxpr(jax.grad(loss))(*operands())
    files: list[str] = []
    for eqn in seen[0].eqns:
        files += [frame[0] for frame in private.frames_of(eqn)]
    assert __file__ in files


def test_what_a_library_calls_while_it_is_imported_has_no_place_in_the_program() -> (
    None
):
    place = importlib.import_module("pgle_hook.alternatives")._place
    own = (__file__, 3, "loss")
    assert place([own], "/jax")[0].endswith("test_lookups.py:3")
    assert place([("<frozen importlib._bootstrap>", 1, ""), own], "/jax")[0] == ""
