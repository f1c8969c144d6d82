"""Artifacts of `jax.export`, lowered again for GPUs that are not there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from pgle.errors import UserError

NO_PROGRAM = "neither StableHLO nor HLO nor a jax.export artifact"


def lowered_export(blob: bytes, devices: Callable[[int], Sequence[Any]]) -> Any:
    """The StableHLO module of a serialized `jax.export.Exported`, lowered for compile-only devices.

    Args:
        blob: what `Exported.serialize` returned.
        devices: gives the compile-only devices for a number of devices.

    Raises:
        UserError: not an export, or not for the CUDA platform.
    """
    import jax
    import numpy as np
    from jax import export

    if importlib.util.find_spec("flatbuffers") is None:
        what = "neither StableHLO nor HLO, and a jax.export artifact needs flatbuffers to be read"
        raise UserError(what, remedy="pip install flatbuffers")
    try:
        exported = export.deserialize(bytearray(blob))
    except Exception:  # of foreign bytes flatbuffers says whatever it trips over
        raise UserError(NO_PROGRAM, remedy="dump modules with JAX_DUMP_IR_TO=DIR") from None
    if "cuda" not in exported.platforms:
        raise UserError(
            f"exported for {', '.join(exported.platforms)} and not for GPU",
            remedy="export again with platforms=['cuda']",
        )
    mesh = _mesh_of_export(exported, np.array(devices(exported.nr_devices)))
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shardings = [sharding or replicated for sharding in exported.in_shardings_jax(mesh)]
    arguments = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
        for aval, sharding in zip(exported.in_avals, shardings, strict=True)
    ]
    args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, arguments)
    call = exported.call

    def step(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    step.__name__ = exported.fun_name.removeprefix("jit_")
    lowered = jax.jit(step).lower(*args, **kwargs)
    return lowered.compiler_ir("stablehlo")


def _mesh_of_export(exported: Any, devices: Any) -> Any:
    """A mesh of `devices` with the axes that the export was made with; releases before 0.9 take any mesh."""
    import jax

    named = getattr(exported, "_in_named_shardings", None) or ()
    old = next((sharding.mesh for sharding in named if sharding is not None), None)
    if old is None:
        return jax.sharding.Mesh(devices, ("devices",))
    return jax.sharding.Mesh(devices.reshape(old.axis_sizes), old.axis_names, axis_types=old.axis_types)
