"""Which values of a traced function depend on no argument."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("hook_here")

MOST_LOOKS = 1_000  # at values


def results(function: Any) -> tuple[Any, list[Any]]:
    """The graph's module, and the results of a function of one small array."""
    rewrite = importlib.import_module("pgle_hook.rewrite")
    closed = jax.make_jaxpr(function)(jnp.ones(4))
    taken = [rewrite.Value(var.aval) for var in closed.jaxpr.invars]
    constants = [
        rewrite.Value(var.aval, constant=const)
        for var, const in zip(closed.jaxpr.constvars, closed.consts, strict=True)
    ]
    return rewrite, rewrite.Graph(closed.jaxpr, [*constants, *taken]).outs


def count_looks(rewrite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail once the sizes of values were asked for too often."""
    looks = []
    usual = rewrite.Value.shape.fget

    def counted(value: Any) -> Any:
        looks.append(value)
        assert len(looks) < MOST_LOOKS
        return usual(value)

    monkeypatch.setattr(rewrite.Value, "shape", property(counted))


def test_a_value_of_constants_is_known() -> None:
    rewrite, (scale, moved) = results(lambda x: (jnp.sqrt(jnp.arange(4.0)), x + 1))
    assert np.allclose(rewrite.constant_of(jax, scale), np.sqrt(np.arange(4.0)))
    assert rewrite.constant_of(jax, moved) is None


def test_residual_layers_are_not_followed_along_every_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def layers(x: Any) -> Any:
        for _ in range(40):
            x = x + x * jax.lax.rsqrt(jnp.mean(x * x))
        return x, jnp.int32(2) * x.astype(jnp.int32)

    rewrite, outs = results(layers)
    count_looks(rewrite, monkeypatch)
    assert [rewrite.constant_of(jax, out) for out in outs] == [None, None]


def test_a_value_of_a_large_constant_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def doubled(x: Any) -> Any:
        total = jax.lax.iota(float, 4).sum()
        for _ in range(40):
            total = total * total + total
        return total

    rewrite, (out,) = results(doubled)
    count_looks(rewrite, monkeypatch)
    monkeypatch.setattr(rewrite, "MOST_ELEMENTS", 2)
    assert rewrite.constant_of(jax, out) is None
    assert not out.is_fixed
