"""A jitted function of this process, lowered for GPUs that are not there: what a program's capture would dump of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

from pgle.errors import UserError, one_line

PLATFORM = "cuda"

_LOCK = RLock()
_MESH = re.compile(r"sdy\.mesh @\w+ = <\[(.*?)\]>")
_PARTITIONS = re.compile(r"mhlo\.num_partitions = (\d+)")


def lowered_step(step: Callable[..., Any], args: Sequence[Any], folder: Path) -> Path:
    """The file of a step's module, StableHLO as jax dumps it.

    Arrays stand for their shapes. The mesh may be an `AbstractMesh`, which needs no devices.

    Args:
        step: jitted by jax, flax or equinox; any other function is jitted.
        args: what it takes: arrays, or `jax.ShapeDtypeStruct` with or without shardings.
        folder: for the file; it exists.

    Raises:
        UserError: jax cannot lower it, or it has a mesh and no argument lies on one.
    """
    import jax

    if not callable(step):
        raise UserError(f"a function is needed, not {type(step).__name__}", remedy="give a jitted step, or a path")
    name = getattr(step, "__name__", type(step).__name__)
    given: Any = jax.tree.map(_shape, tuple(args))
    if not hasattr(step, "lower"):
        step = jax.jit(step)
    elif not hasattr(step, "trace"):  # of equinox
        given = jax.tree.map(_placed, given)
    try:
        with _for_gpus() as made:
            step.lower(*given)  # type: ignore[attr-defined]
        text = made[-1].as_text(debug_info=True)
    except Exception as error:  # of the user's function, and whatever jax says of it
        what = f"cannot be lowered for GPUs: {type(error).__name__}: {one_line(str(error))[:400]}"
        raise UserError(what, where=name) from error
    _check_mesh(name, text)
    path = folder / f"jax_ir0000_{_module_name(text)}_compile.mlir"
    path.write_text(text, encoding="utf-8")
    return path


def _shape(leaf: Any) -> Any:
    """An array as its shape, with its sharding if it lies on several devices; anything else as it is."""
    import jax

    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return leaf
    sharding = leaf.sharding if len(leaf.sharding.device_set) > 1 else None
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=getattr(leaf, "weak_type", False))


def _placed(leaf: Any) -> Any:
    """A shape as an array that takes no memory and says how it is sharded: equinox asks for arrays."""
    import jax
    import numpy as np

    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    array = np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
    if leaf.sharding is None:
        return array
    return array.view(type("Placed", (np.ndarray,), {"sharding": leaf.sharding}))


@contextmanager
def _for_gpus() -> Iterator[list[Any]]:
    """Have everything lowered for GPUs, whoever asks jax for it; the list gets what was lowered."""
    import jax

    made: list[Any] = []
    with _LOCK:
        usual = jax.stages.Traced.lower

        def lower(self: Any, **options: Any) -> Any:
            made.append(usual(self, **{**options, "lowering_platforms": (PLATFORM,)}))
            return made[-1]

        jax.stages.Traced.lower = lower
        try:
            yield made
        finally:
            jax.stages.Traced.lower = usual


def _check_mesh(name: str, text: str) -> None:
    """Refuse a module with a mesh of several devices that jax takes for one of a single device."""
    found = _PARTITIONS.search(text)
    sizes = [_size(mesh[1]) for mesh in _MESH.finditer(text)]
    if found and int(found[1]) == 1 and max(sizes, default=1) > 1:
        what = f"its mesh has {max(sizes)} devices, and no argument has a sharding on it: jax takes it for one device"
        remedy = "give an argument as jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))"
        raise UserError(what, where=name, remedy=remedy)


def _size(axes: str) -> int:
    size = 1
    for axis in re.findall(r"=(\d+)", axes):
        size *= int(axis)
    return size


def _module_name(text: str) -> str:
    found = re.search(r"module @([\w.<>-]+)", text)
    return re.sub(r"[^\w.-]", "", found[1]) if found else "step"
