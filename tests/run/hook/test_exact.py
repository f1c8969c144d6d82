"""Operations that a step may have, computed with 64 bits a number."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

pytestmark = pytest.mark.usefixtures("hook_here")

MESH = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
EACH = PartitionSpec("d")
SAME = PartitionSpec()
NUMBERS = jax.ShapeDtypeStruct((4,), jnp.float32)


def why_not(step: Callable[..., Any], *args: jax.ShapeDtypeStruct) -> str:
    """Why the values of a step are not compared, or how they differ; empty if they are equal."""
    values = importlib.import_module("pgle_hook.values")
    found: list[dict[str, Any]] = []
    values.Values(jax, lambda is_on: None, found.append).compare(step, args, {})
    return str(found[0].get("why") or found[0]["difference"] or "")


def test_gradients_on_each_device_of_a_mesh_are_compared() -> None:
    def on_device(w: Any, x: Any) -> Any:
        found = jax.value_and_grad(lambda w: jnp.tanh(x * w).sum())(w)
        one = jax.lax.psum(jax.lax.pcast(jnp.ones(()), "d", to="varying"), "d")
        return jax.lax.psum(found[0], "d") / one, found[1]

    step = jax.shard_map(
        on_device, mesh=MESH, in_specs=(SAME, EACH), out_specs=(SAME, SAME)
    )
    assert why_not(step, NUMBERS, NUMBERS) == ""


def test_the_number_of_a_device_is_known_within_its_function() -> None:
    on_device = lambda x: x * (2 + jax.lax.axis_index("d"))
    step = jax.shard_map(on_device, mesh=MESH, in_specs=EACH, out_specs=EACH)
    assert why_not(step, NUMBERS) == ""


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_keys_are_drawn_of_their_own_kind(shape: Any, kind: str) -> None:
    values = importlib.import_module("pgle_hook.values")
    dtype = jax.random.key(0, impl=kind).dtype
    drawn = values._keys(jax, jax.ShapeDtypeStruct(shape, dtype))
    assert (drawn.shape, drawn.dtype) == (shape, dtype)


def test_a_step_with_one_key_is_compared() -> None:
    key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype)
    step = lambda key, x: x * jax.random.bernoulli(key, 0.5, x.shape)
    assert why_not(step, key, NUMBERS) == ""


def test_a_reference_holds_what_the_operations_of_it_compute() -> None:
    def step(x: Any) -> Any:
        moved = jax.new_ref(x)
        moved[...] = jnp.tanh(moved[...])
        total = jax.new_ref(jnp.zeros_like(x))
        total[...] += moved[...]
        return 2 * total[...]

    assert why_not(step, NUMBERS) == ""


def test_a_root_is_found_as_traced() -> None:
    def step(x: Any) -> Any:
        cube = lambda y: y**3 - x[0]
        newton = lambda f, y: jax.lax.fori_loop(
            0, 9, lambda i, y: y - f(y) / (3 * y**2), y
        )
        tangent = lambda g, y: y / g(jnp.ones_like(y))
        return jax.lax.custom_root(cube, jnp.float32(2.0), newton, tangent)

    assert why_not(step, NUMBERS) == ""


def uniform(x: Any) -> Any:
    """Bits of a random integer as a number from 0 to 1."""
    return x + jax.random.uniform(jax.random.key(1), x.shape)


def stochastic(x: Any) -> Any:
    """Rounded to bf16, up or down by random bits."""
    random = jax.random.bits(jax.random.key(1), x.shape) & 0xFFFF
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) + random
    kept = jax.lax.bitcast_convert_type(bits & jnp.uint32(0xFFFF0000), jnp.float32)
    return kept.astype(jnp.bfloat16).astype(jnp.float32)


def in_integers(x: Any) -> Any:
    """Rounded to 8 bits and back."""
    return jnp.round(10 * x).astype(jnp.int8).astype(jnp.float32) / 10


@pytest.mark.parametrize("program", [uniform, stochastic, in_integers])
def test_bits_of_a_program_stay_those_of_its_types(program: Any) -> None:
    exact = importlib.import_module("pgle_hook.exact")
    x = np.linspace(-2, 2, 7, dtype=np.float32)
    closed = jax.make_jaxpr(program)(x)
    with exact.wide(jax):
        (made,) = exact.Exact(jax)(closed, [x.astype(np.float64)])
    assert made.dtype == jnp.float64
    np.testing.assert_allclose(made, program(x), rtol=1e-6)
