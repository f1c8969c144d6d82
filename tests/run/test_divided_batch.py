"""A batch that is whole on every device: what is found of it in a step's module, and its edit."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pgle.run.alternatives import JIT, Kind, Written, alternatives
from pgle.run.capture.capture import lowered_step
from pgle.run.capture.captured import CallSite
from pgle.run.step_arguments import WholeBatch, whole_batch, with_divided_batch
from pgle.xla.targets import load_target

MESH = """import jax
import jax.numpy as jnp

axes = {"data": 2, "model": 2}
kinds = (jax.sharding.AxisType.Auto,) * 2
mesh = jax.sharding.AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=kinds)
"""
STEP = f"""{MESH}
def step(w, batch):
    PLACE
    def loss(w):
        made = jnp.tanh(batch["x"].astype(jnp.float32) @ w)
        return (made ** 2).mean() * batch["scale"]
    return w - jax.grad(loss)(w)
"""
ARRAYS = {"x": (8, 16), "scale": ()}


def args_of(
    weights: Sequence[str | None] = ("model",), batch: Sequence[str | None] = ()
) -> Sequence[Any]:
    kinds = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.sharding.AbstractMesh((2, 2), ("data", "model"), axis_types=kinds)
    on = lambda *axes: jax.sharding.NamedSharding(mesh, jax.P(*axes))
    placed = {
        name: jax.ShapeDtypeStruct(size, jnp.int32, sharding=on(*batch[: len(size)]))
        for name, size in ARRAYS.items()
    }
    return jax.ShapeDtypeStruct((16, 16), jnp.float32, sharding=on(*weights)), placed


def placed(lines: str) -> str:
    """Lines as they are pasted first in the step."""
    return (lines or "pass").replace("\n", "\n    ")


def lowered(line: str, args: Sequence[Any], folder: Path) -> str:
    program = folder / "train.py"
    program.write_text(STEP.replace("PLACE", placed(line)))
    step = runpy.run_path(str(program))["step"]
    return lowered_step(step, args, folder, load_target("h100")).read_text()


def found_in(args: Sequence[Any], folder: Path) -> WholeBatch | None:
    return whole_batch(lowered("", args, folder))


def without_names(text: str) -> list[str]:
    """The lines of a module without the names of values and the places they come from."""
    text = re.sub(r"(@[a-z_]+)_\d+", r"\1", text)
    text = re.sub(r"^#loc.*\n| loc\(.*?\)(?=[,){]|$)", "", text, flags=re.MULTILINE)
    return re.sub(r"%\w+", "%", text).splitlines()


def test_an_axis_without_weights_divides_the_batch(tmp_path: Path) -> None:
    found = found_in(args_of(), tmp_path)
    assert found is not None
    assert (found.names, found.size, found.axes) == (("batch",), 8, ("data",))


def test_axes_that_all_divide_weights_divide_the_batch_together(tmp_path: Path) -> None:
    found = found_in(args_of(weights=("model", "data")), tmp_path)
    assert found is not None
    assert found.spec == 'P(("data", "model"))'


def test_a_batch_that_an_axis_divides_is_left_alone(tmp_path: Path) -> None:
    assert found_in(args_of(batch=("data",)), tmp_path) is None


def test_an_edited_batch_is_the_program_that_was_tried(tmp_path: Path) -> None:
    before = lowered("", args_of(), tmp_path)
    found = whole_batch(before)
    assert found is not None
    edited = lowered(found.edit, args_of(), tmp_path)
    tried = with_divided_batch(before, found)
    assert without_names(tried) == without_names(edited) != without_names(before)


def test_the_edit_names_the_line_that_compiles_the_step(tmp_path: Path) -> None:
    text = lowered("", args_of(), tmp_path)
    module = Path("jax_ir0000_jit_step_compile.mlir")
    site = CallSite(JIT, "train.py:31", "step")
    program = Written([site], module, text, is_undivided=True)
    found = next(one for one in alternatives(program) if one.kind is Kind.SHARDING)
    assert found.where == "train.py:31"
    assert "first in step" in found.how


SCANNED = f"""{MESH}
def step(w, batch):
    PLACE
    def loss(w):
        cell = lambda h, x: (jnp.tanh(x + h @ w), None)
        last, _ = jax.lax.scan(cell, jnp.zeros((8, 16)), batch["x"])
        return (last.sum(1) * batch["labels"]).mean()
    return w - jax.grad(loss)(w)
"""


def scanned(line: str, folder: Path) -> str:
    """A step over a sequence with time first, of 6 steps and 8 rows."""
    folder.mkdir(exist_ok=True)
    program = folder / "train.py"
    program.write_text(SCANNED.replace("PLACE", placed(line)))
    weight = args_of()[0]
    batch = {"x": array(6, 8, 16), "labels": array(8, dtype=jnp.int32)}
    step = runpy.run_path(str(program))["step"]
    target = load_target("h100")
    return lowered_step(step, (weight, batch), folder, target).read_text()


def test_a_sequence_with_time_first_is_divided_along_its_second_axis(
    tmp_path: Path,
) -> None:
    found = whole_batch(scanned("", tmp_path))
    assert found is not None
    assert (found.spec, found.size) == ('P(None, "data")', 8)


def test_each_array_of_a_scanned_batch_is_divided_along_its_own_axis(
    tmp_path: Path,
) -> None:
    before = scanned("", tmp_path)
    found = whole_batch(before)
    assert found is not None
    edited = scanned(found.edit, tmp_path / "edited")
    tried = with_divided_batch(before, found)
    assert without_names(tried) == without_names(edited) != without_names(before)


RUN = """
import sys
import numpy as np
mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds)
random = np.random.default_rng(0)
w = random.normal(size=(16, 16)).astype(np.float32)
w = jax.device_put(w, jax.sharding.NamedSharding(mesh, jax.P("model")))
batch = {"x": random.integers(0, 9, size=(8, 16)), "scale": 3}
np.save(sys.argv[1], jax.jit(step)(w, batch))
"""


@pytest.mark.slow
def test_a_divided_batch_computes_the_same_numbers(tmp_path: Path) -> None:
    import numpy as np

    found = found_in(args_of(), tmp_path)
    assert found is not None
    flags = "--xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    results = []
    for name, line in (("whole", "pass"), ("divided", found.edit)):
        program = tmp_path / f"{name}.py"
        program.write_text(STEP.replace("PLACE", placed(line)) + RUN)
        place = tmp_path / f"{name}.npy"
        words = [sys.executable, str(program), str(place)]
        subprocess.run(words, env=environment, check=True)
        results.append(np.load(place))
    # the gradient's sum over devices has another order
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


def taken_by(text: str, folder: Path, **arrays: Any) -> WholeBatch | None:
    """The batch of a step that takes a weight and some arrays, and returns the weight."""
    folder.mkdir(exist_ok=True)
    arguments = ", ".join(arrays)
    scope: dict[str, Any] = {"jax": jax, "jnp": jnp}
    exec(f"def step(w, {arguments}): return w - {text}", scope)
    weight = args_of(weights=())[0]
    args = (weight, *arrays.values())
    return whole_batch(
        lowered_step(scope["step"], args, folder, load_target("h100")).read_text()
    )


def array(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def test_a_random_key_is_not_divided_in_place_of_the_batch(tmp_path: Path) -> None:
    masked = "x.T @ jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)"
    key = array(4, dtype=jnp.uint32)
    with jax.default_prng_impl("rbg"):
        found = taken_by(masked, tmp_path, x=array(8, 16), key=key)
    assert found is not None
    assert (found.names, found.size) == (("x",), 8)


def test_a_frozen_weight_is_not_divided_in_place_of_the_batch(tmp_path: Path) -> None:
    given = {"x": array(8, 16), "frozen": array(16, 16)}
    assert taken_by("frozen.T @ frozen * x.mean()", tmp_path, **given) is None


def placed_on(*axes: str) -> jax.sharding.NamedSharding:
    kinds = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.sharding.AbstractMesh((2, 2), ("data", "model"), axis_types=kinds)
    return jax.sharding.NamedSharding(mesh, jax.P(*axes))


def test_positions_are_not_divided_although_the_batch_is(tmp_path: Path) -> None:
    x = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=placed_on("data"))
    given = {"x": x, "at": array(4, dtype=jnp.int32)}
    assert taken_by("x.T @ x * at.sum()", tmp_path, **given) is None
