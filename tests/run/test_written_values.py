"""Edits of lookups and losses as they are printed, run against what they replace: values and
gradients.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pgle.run.alternatives import BY_HAND, Alternative, Kind
from pgle.run.edits import IN_CHUNKS, LOOKUPS
from pgle.run.variants import _alternatives, _Record

ROWS = 1030  # more than a byte holds
MANY = 50_257  # more than 15 bits hold
Look = Callable[[Any, Any], Any]

MODES: Mapping[str, Look] = {
    "table[ids]": lambda table, ids: table[ids],
    "take": lambda table, ids: jnp.take(table, ids, axis=0),
    "take clip": lambda table, ids: jnp.take(table, ids, axis=0, mode="clip"),
    "take wrap": lambda table, ids: jnp.take(table, ids, axis=0, mode="wrap"),
    "take 0": lambda table, ids: jnp.take(table, ids, axis=0, fill_value=0),
    "get clip": lambda table, ids: table.at[ids].get(mode="clip"),
    "get infinity": lambda table, ids: table.at[ids].get(
        mode="fill", fill_value=-jnp.inf
    ),
    "get 0, negative are absent": lambda table, ids: table.at[ids].get(
        mode="fill", fill_value=0, wrap_negative_indices=False
    ),
    "one by one": lambda table, ids: jax.vmap(lambda place: table[place])(ids),
}
ANY = jnp.array([0, -1, 1029, 1030, 5000, -1031, 5, 5], jnp.int32)
CASES = [
    *((mode, ROWS, ANY) for mode in MODES),
    ("table[ids]", ROWS, jnp.array([1, 200, 3], jnp.uint8)),
    ("take", 70_000, jnp.array([1, 200, 65_535], jnp.uint16)),
    ("take clip", MANY, jnp.array([1, 200, -200], jnp.int16)),
]


def printed(how: str, look: Look, table: Any, ids: Any) -> Look:
    """The function `lookup` that is printed for a program's lookup."""
    change = Alternative(Kind.LOOKUP, BY_HAND, how, "")
    record = _Record()
    with _alternatives(record, [change.switch]) as hook:
        hook.use(True)
        gradient = jax.grad(lambda table, ids: look(table, ids).sum())
        jax.eval_shape(gradient, table, ids)
    found: dict[str, Any] = {"jax": jax, "jnp": jnp}
    exec(change.at(record.sites).edit, found)
    lookup: Look = found["lookup"]
    return lookup


def table_of(rows: int) -> Any:
    numbers = np.random.default_rng(0).normal(size=(rows, 2))
    return jnp.asarray(numbers, jnp.float32)


def value_and_gradient(look: Look, table: Any, ids: Any) -> Any:
    """The rows, and a gradient that differs for each of them."""
    rows, back = jax.vjp(lambda table: look(table, ids), table)
    weights = jnp.arange(1.0, rows.size + 1).reshape(rows.shape)
    return rows, back(weights)[0]


@pytest.mark.parametrize("how", LOOKUPS)
def test_a_printed_lookup_has_the_mode_of_the_programs(how: str) -> None:
    tables = [table_of(rows) for _, rows, _ in CASES]
    edits = [
        printed(how, MODES[mode], table, ids)
        for (mode, _, ids), table in zip(CASES, tables, strict=True)
    ]

    @jax.jit
    def both(tables: Any) -> Any:
        found = []
        for (mode, _, ids), edit, table in zip(CASES, edits, tables, strict=True):
            before = value_and_gradient(MODES[mode], table, ids)
            found.append((before, value_and_gradient(edit, table, ids)))
        return found

    for case, (before, after) in zip(CASES, both(tables), strict=True):
        for one, other in zip(before, after, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-6, err_msg=str(case))


@pytest.mark.parametrize("mode", ["fill", "promise_in_bounds"])
def test_before_jax_can_keep_negative_indices_a_printed_lookup_has_the_same_rows(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = importlib.import_module("pgle_hook.jax_private")
    monkeypatch.setattr(private, "may_keep_negatives", lambda: False)
    numbers = jax.lax.GatherDimensionNumbers((1,), (0,), (0,))
    look = lambda table, ids: jax.lax.gather(
        table, ids[:, None], numbers, (1, 2), mode=mode
    )
    table = table_of(ROWS)
    edit = printed("sorted", look, table, ANY)
    np.testing.assert_array_equal(edit(table, ANY), look(table, ANY))


def losses_of(w: Any, x: Any, labels: Any) -> Any:
    chances = jax.nn.log_softmax(x @ w)
    return -jnp.take_along_axis(chances, labels[..., None], -1)[..., 0]


def of_joined_tokens(w: Any, x: Any, labels: Any) -> Any:
    """The same losses on one axis."""
    return losses_of(w, x.reshape(-1, x.shape[-1]), labels.reshape(-1))


def of_chances(w: Any, x: Any, labels: Any) -> Any:
    """The losses of labels that have a chance for each word."""
    return -(jax.nn.log_softmax(x @ w) * labels).sum(-1)


def in_chunks(
    w: Any, x: Any, labels: Any, losses: Callable[..., Any] = losses_of
) -> Any:
    """The losses as they are printed."""
    of_table = lambda x, labels: losses(w, x, labels)
    found: dict[str, Any] = {"jax": jax, "jnp": jnp}
    exec(IN_CHUNKS, found)
    return found["losses_in_chunks"](of_table, x, labels)


@pytest.mark.parametrize("tokens", [(26,), (2, 13), (2, 3, 5)], ids=str)
def test_a_printed_loss_is_equal_for_any_number_of_axes(
    tokens: tuple[int, ...],
) -> None:
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(*tokens, 4)), jnp.float32)
    w = jnp.asarray(random.normal(size=(4, 11)), jnp.float32)
    labels = jnp.asarray(random.integers(0, 11, tokens))

    def made_by(losses: Callable[..., Any], w: Any, x: Any) -> Any:
        made, back = jax.vjp(lambda w, x: losses(w, x, labels), w, x)
        return (made, *back(made))

    both = jax.jit(
        lambda *args: [made_by(one, *args) for one in (losses_of, in_chunks)]
    )
    for one, other in zip(*both(w, x), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


def test_a_printed_loss_keeps_tokens_in_order_though_the_loss_joins_their_axes() -> (
    None
):
    x = jnp.arange(2 * 13 * 4.0).reshape(2, 13, 4) % 7
    w = jnp.arange(4 * 11.0).reshape(4, 11) % 3
    labels = jnp.arange(26).reshape(2, 13) % 11
    made = in_chunks(w, x, labels, of_joined_tokens)
    np.testing.assert_allclose(made, losses_of(w, x, labels), rtol=1e-6)


def test_a_printed_loss_takes_a_chance_for_each_word() -> None:
    x = jnp.arange(2 * 13 * 4.0).reshape(2, 13, 4) % 7
    w = jnp.arange(4 * 11.0).reshape(4, 11) % 3
    chances = jax.nn.softmax(jnp.arange(2 * 13 * 11.0).reshape(2, 13, 11) % 5)
    made = in_chunks(w, x, chances, of_chances)
    np.testing.assert_allclose(made, of_chances(w, x, chances), rtol=1e-6)
