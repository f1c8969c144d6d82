"""Arguments that loops take apart along their leading axes, found in a step's module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pgle.run.scanned_arguments import scanned_axes

STEPS, ROWS, LENGTH, WIDTH = 5, 4, 7, 8


def axes_of(function: Callable[..., Any], *sizes: int, dtype: Any = jnp.float32) -> int:
    """How many leading axes of its one argument a function takes apart."""
    text = jax.jit(function).lower(jax.ShapeDtypeStruct(sizes, dtype)).as_text()
    return scanned_axes(text, {0: sizes})[0]


def total(x: Any) -> Any:
    """A sum that a loop makes over the first axis."""
    return jax.lax.scan(lambda carry, one: (carry + one.sum(), None), 0.0, x)[0]


PROJECTION = jnp.ones((WIDTH, 3))
TABLE = jnp.ones((11, WIDTH))


@pytest.mark.parametrize(
    ("function", "sizes", "axes"),
    [
        (total, (STEPS, ROWS, WIDTH), 1),
        (lambda x: total(jnp.tanh(x @ PROJECTION)), (STEPS, ROWS, WIDTH), 1),
        (jax.vmap(lambda x: x.sum()), (STEPS, ROWS, WIDTH), 0),
        # a sequence with the batch first is turned before its loop
        (lambda x: total(x.swapaxes(0, 1)), (ROWS, STEPS, WIDTH), 0),
        (lambda x: total(x.swapaxes(0, 1)), (ROWS, ROWS, WIDTH), 0),
        (lambda x: jax.lax.map(total, x), (STEPS, LENGTH, ROWS, WIDTH), 2),
        (lambda x: total(x.reshape(-1, WIDTH)), (ROWS, STEPS, WIDTH), 0),
        (
            lambda x: total((x.reshape(-1, WIDTH) @ PROJECTION).reshape(5, 4, 3)),
            (5, 4, WIDTH),
            1,
        ),
    ],
)
def test_axes_that_loops_take_apart(
    function: Callable[..., Any], sizes: tuple[int, ...], axes: int
) -> None:
    assert axes_of(function, *sizes) == axes


def test_tokens_are_followed_through_their_lookup() -> None:
    found = axes_of(lambda ids: total(TABLE[ids]), STEPS, ROWS, dtype=jnp.int32)
    assert found == 1


def test_the_axes_are_those_of_the_forward_pass_with_gradients() -> None:
    def loss(w: Any, x: Any) -> Any:
        cell = lambda h, one: (jnp.tanh(one + h @ w), None)
        return jax.lax.scan(cell, jnp.zeros((ROWS, WIDTH)), x)[0].sum()

    shapes = ((WIDTH, WIDTH), (STEPS, ROWS, WIDTH))
    given = [jax.ShapeDtypeStruct(size, jnp.float32) for size in shapes]
    text = jax.jit(jax.grad(loss)).lower(*given).as_text()
    assert scanned_axes(text, dict(enumerate(shapes))) == {0: 0, 1: 1}
