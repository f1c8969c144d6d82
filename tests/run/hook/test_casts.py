"""A loss whose arrays are cast to bf16 while it computes."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import pytest

pytestmark = pytest.mark.usefixtures("hook_here")


@dataclasses.dataclass
class Report:
    """A result that jax does not know."""

    words: str = "mean"


class Loss:
    """A loss that keeps the types of what it was given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def of(self, w: Any, x: Any) -> Any:
        self.seen = [w.dtype, x.dtype]
        return jnp.tanh(x @ w).mean()


W = jnp.ones((4, 4), jnp.float32)


def cast(function: Any) -> Any:
    return importlib.import_module("pgle_hook.casts").casting(jax, function)


def test_a_loss_computes_in_half_precision_and_its_gradient_stays_wide() -> None:
    loss = Loss()
    value, gradient = jax.value_and_grad(cast(loss.of))(W, W)
    assert loss.seen == [jnp.bfloat16, jnp.bfloat16]
    assert (value.dtype, gradient.dtype) == (jnp.float32, jnp.float32)


def test_arrays_that_a_partial_function_holds_are_cast() -> None:
    loss = Loss()
    cast(functools.partial(loss.of, x=W))(W)
    assert loss.seen == [jnp.bfloat16, jnp.bfloat16]


@pytest.mark.parametrize("also", ["mean", 0.5, None, Report()])
def test_what_is_no_array_among_the_results_stays(also: Any) -> None:
    made = jax.value_and_grad(cast(lambda w: (w.mean(), also)), has_aux=True)
    (value, found), _ = made(W)
    assert found is also
    assert value.dtype == jnp.float32


def test_an_array_that_was_half_before_is_not_widened() -> None:
    (value, half) = cast(lambda w: (w.sum(), w.astype(jnp.bfloat16)))(W)
    assert (value.dtype, half.dtype) == (jnp.float32, jnp.bfloat16)


def test_whole_numbers_text_and_keys_are_passed_on() -> None:
    given = [jnp.arange(3), "mean", None, 0.5, jax.random.key(0)]
    seen: list[Any] = []

    def loss(w: Any, others: Any) -> Any:
        seen[:] = others
        return w.sum()

    cast(loss)(W, given)
    assert seen[1:4] == given[1:4]
    assert seen[0].dtype == given[0].dtype
    assert seen[4].dtype == given[4].dtype


def test_a_held_value_that_jax_cannot_flatten_stays() -> None:
    names = {1: "one", "two": 2}  # jax sorts keys, and these have no order
    seen: list[Any] = []

    def loss(w: Any) -> Any:
        seen.append(names)
        return w.sum()

    cast(loss)(W)
    assert seen[-1] is names


def test_a_function_that_calls_itself_is_cast() -> None:
    def power(w: Any, count: int) -> Any:
        return w if count == 0 else x * power(w, count - 1)

    x = W
    seen = cast(lambda w: power(w, 2).astype(jnp.float32).sum())(W)
    assert seen == 16.0
