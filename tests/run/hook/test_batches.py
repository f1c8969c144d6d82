"""How a scan's carry is divided, from how the arguments of its step are divided."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import pytest

pytestmark = pytest.mark.usefixtures("hook_here")


def on_mesh(*spec: str | None, sizes: tuple[int, ...], dtype: Any = jnp.float32) -> Any:
    kinds = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.sharding.AbstractMesh((2, 2), ("data", "model"), axis_types=kinds)
    placed = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=placed)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.int32])
def test_a_carry_is_divided_as_the_batch_on_the_second_axis(dtype: Any) -> None:
    batches = importlib.import_module("pgle_hook.batches").Batches(jax)
    weight = on_mesh("model", sizes=(16, 16))
    # time first
    batches.called((weight, on_mesh(None, "data", sizes=(6, 8), dtype=dtype)), {})
    found = batches.division(jnp.zeros((8, 16)))
    assert found.sharding.spec == jax.sharding.PartitionSpec("data")
