"""A jitted function of this process, lowered for GPUs that are not there: what a program's capture would dump of it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from threading import RLock
from typing import Any

from pgle.errors import UserError, one_line
from pgle.run.ask.jax_private import PLUGIN_LOG
from pgle.run.capture.captured import devices_of

PLATFORM = "cuda"

_CHECK = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
_GPUS = ("nvidia[0-9]*", "dxg")  # in /dev, of Linux and of WSL
_DRIVER = Path("/dev/nvidiactl")  # where it exists jax looks for a GPU, also if there is none

_LOCK = RLock()
_MESH = re.compile(r"(?:sdy\.mesh @\w+ = <|sharding = \"\{devices=)\[(.*?)\]")  # the latter before jax 0.7
_PARTITIONS = re.compile(r"mhlo\.num_partitions = (\d+)")
_OF_KERNEL = re.compile(r'(?<=")[^"\n]*/ipykernel_\d+/')
"""Where a notebook's cells are files: another folder in every kernel, for the same step."""


def lowered_step(step: Callable[..., Any], args: Sequence[Any], folder: Path) -> Path:
    """The file of a step's module, StableHLO as jax dumps it.

    Arrays stand for their shapes. The mesh may be an `AbstractMesh`, which needs no devices.

    Args:
        step: jitted by jax, flax or equinox; any other function is jitted.
        args: what it takes: arrays, or `jax.ShapeDtypeStruct` with or without shardings.
        folder: for the file; it exists.
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
        text = _OF_KERNEL.sub("", made[-1].as_text(debug_info=True))
    except Exception as error:  # of the user's function, and whatever jax says of it
        what = f"cannot be lowered for GPUs: {type(error).__name__}: {one_line(str(error))[:400]}"
        raise UserError(what, where=name) from error
    _check_mesh(name, text)
    path = folder / f"jax_ir0000_{_module_name(text)}_compile.mlir"
    path.write_text(text, encoding="utf-8")
    return path


def lowered_steps(
    build: Callable[[int], Sequence[Any]], devices: Sequence[int], folder: Path
) -> tuple[list[Path], dict[int, str]]:
    """The modules of a step at several sizes, and of each other size why not; `build` may raise ValueError."""
    found, unfit = [], {}
    for count in devices:
        place = folder / str(count)
        place.mkdir()
        try:
            step, *args = build(count)
            path = lowered_step(step, args, place)
        except (UserError, ValueError) as error:
            unfit[count] = getattr(error, "what", f"{type(error).__name__}: {one_line(str(error))}")
            continue
        if (own := devices_of(path)) not in (None, count):
            unfit[count] = f"the step is for {own} GPUs"
        else:
            found.append(path)
    return found, unfit


def _shape(leaf: Any) -> Any:
    """An array as its shape, with its sharding if it is on several devices; anything else as it is."""
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
    with _LOCK, _without_cuda():
        usual = jax.stages.Traced.lower

        def lower(self: Any, **options: Any) -> Any:
            made.append(usual(self, **{**options, "lowering_platforms": (PLATFORM,)}))
            return made[-1]

        jax.stages.Traced.lower = lower
        try:
            yield made
        finally:
            jax.stages.Traced.lower = usual


@contextmanager
def _without_cuda() -> Iterator[None]:
    """On a machine without a GPU, keep jax from logging a traceback about CUDA libraries when it first looks at it."""
    if _CHECK in os.environ or any(any(Path("/dev").glob(name)) for name in _GPUS):
        yield
        return
    log = logging.getLogger(PLUGIN_LOG)
    was, log.disabled = log.disabled, True
    if not _DRIVER.exists():
        os.environ[_CHECK] = "1"
    try:
        yield
    finally:
        log.disabled = was
        os.environ.pop(_CHECK, None)


def _check_mesh(name: str, text: str) -> None:
    """Refuse a module with a mesh of several devices that jax takes for one of a single device."""
    found = _PARTITIONS.search(text)
    sizes = [_size(mesh[1]) for mesh in _MESH.finditer(text)]
    if found and int(found[1]) == 1 and max(sizes, default=1) > 1:
        what = f"its mesh has {max(sizes)} devices, and no argument has a sharding on it: jax takes it for one device"
        remedy = "give an argument as jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))"
        raise UserError(what, where=name, remedy=remedy)


def _size(axes: str) -> int:
    return prod(map(int, re.findall(r"(?<![\w.])\d+", axes)))


def _module_name(text: str) -> str:
    found = re.search(r"module @([\w.<>-]+)", text)
    return re.sub(r"[^\w.-]", "", found[1]) if found else "step"
