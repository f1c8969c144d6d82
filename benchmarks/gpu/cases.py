"""A case: a function and the arrays that it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

Fill = str
"""``normal``; ``unique``, ``equal`` or ``random`` indices below a bound; ``positive``: symmetric,
positive definite.
"""


@dataclass(frozen=True)
class Array:
    """An array of a case."""

    shape: tuple[int, ...]
    dtype: str = "bfloat16"
    fill: Fill = "normal"
    below: int = 0  # bound of indices
    host: bool = False  # in pinned memory of the host

    def clipped(self, most: int) -> Array:
        """The array with every dimension and every index at most `most`."""
        shape = tuple(min(size, most) for size in self.shape)
        return replace(self, shape=shape, below=min(self.below, most))


@dataclass(frozen=True)
class Case:
    """What is compiled, run and measured."""

    name: str  # unique; letters, digits and underscores: it is the module's name, too
    kind: str
    function: Callable[..., Any]
    arrays: tuple[Array, ...]
    base: str = ""  # the case of which this is an edit
    needs_cudnn: bool = False
    is_step: bool = (
        False  # whether each execution is timed alone, as steps of training are
    )

    def clipped(self, most: int) -> Case:
        """The case with small arrays."""
        return replace(self, arrays=tuple(array.clipped(most) for array in self.arrays))

    @property
    def jitted(self) -> Any:
        """The function, jitted under the name of the case."""
        import jax

        def named(*arguments: Any) -> Any:
            return self.function(*arguments)

        named.__name__ = self.name
        return jax.jit(named)


def shapes(case: Case) -> tuple[Any, ...]:
    """The arguments of a case as `jax.ShapeDtypeStruct`."""
    import jax

    return tuple(
        jax.ShapeDtypeStruct(array.shape, array.dtype) for array in case.arrays
    )


def filled(case: Case) -> tuple[Any, ...]:
    """The arguments of a case as arrays on the device."""
    import jax

    made = [_filled(array, seed) for seed, array in enumerate(case.arrays)]
    return tuple(jax.block_until_ready(made))


def _filled(array: Array, seed: int) -> Any:
    import jax
    import jax.numpy as jnp

    key = jax.random.key(seed)
    if array.fill == "equal":
        return jnp.full(array.shape, array.below // 2, array.dtype)
    if array.fill == "random":
        return jax.random.randint(key, array.shape, 0, array.below, array.dtype)
    if array.fill == "unique":
        return jax.random.permutation(key, array.below)[: array.shape[0]].astype(
            array.dtype
        )
    if array.dtype.startswith("int"):
        return jax.random.randint(key, array.shape, -64, 64, "int32").astype(
            array.dtype
        )
    if array.dtype == "complex64":
        real = jax.random.normal(key, array.shape, "float32")
        return jax.lax.complex(real, -real)
    normal = jax.random.normal(key, array.shape, "float32") * 0.05
    if array.fill == "positive":
        normal = normal + normal.T + array.shape[0] * jnp.eye(array.shape[0])
    return normal.astype(array.dtype)
