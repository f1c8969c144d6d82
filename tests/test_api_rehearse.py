"""Steps of this process, rehearsed and tuned: as the commands have them, though jax has run here on
one CPU device.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import framework_steps
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from schemas import violations

import pgle
from pgle.cli.main import run
from pgle.run.capture.capture import lowered_step
from pgle.xla.targets import load_target

pytestmark = pytest.mark.usefixtures("plugin_loaded_once")


def abstract(count: int) -> AbstractMesh:
    return AbstractMesh((count,), ("data",), axis_types=(AxisType.Auto,))


MESH = abstract(8)


def shape(
    *size: int, spec: PartitionSpec | None = None, mesh: Any = MESH
) -> jax.ShapeDtypeStruct:
    sharding = None if spec is None else NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(size, "float32", sharding=sharding)


@pytest.mark.rehearse
@pytest.mark.parametrize(
    "kind",
    [
        "plain",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("linen", "nnx", "equinox")
        ),
    ],
)
def test_a_step_is_rehearsed_as_its_program_is(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(
        {"linen": "flax", "nnx": "flax", "equinox": "equinox"}.get(kind, "jax")
    )
    jax.jit(lambda x: x + 1)(1.0)
    step, args = framework_steps.KINDS[kind](MESH)
    found = pgle.rehearse(step, *args, output=tmp_path / "library")
    program = (sys.executable, framework_steps.__file__, kind)
    run(
        [
            "rehearse",
            "--devices",
            "8",
            "--json",
            "-o",
            str(tmp_path / "command"),
            "--",
            *program,
        ]
    )
    command = json.loads(capfd.readouterr().out)
    assert found["baseline"]["step_us"] == command["baseline"]["step_us"] > 100
    assert found["profiled"]["step_us"] == command["profiled"]["step_us"]
    assert found["devices"] == command["devices"] == 8
    assert violations(dict(found.document)) == []
    assert (tmp_path / "library" / "timeline.html").is_file()


@pytest.mark.parametrize(
    ("spec", "asked", "said"),
    [
        (None, 8, "is for 1 device, and not for 8.*shardings"),
        (PartitionSpec("data"), 16, "8 devices, and not for 16"),
    ],
)
def test_a_step_that_is_for_other_devices_than_asked_is_refused(
    spec: PartitionSpec | None, asked: int, said: str
) -> None:
    step = jax.jit(lambda w, x: x @ w)
    with pytest.raises(pgle.UserError, match=said):
        pgle.rehearse(
            step, shape(64, 64, spec=spec), shape(64, 64, spec=spec), devices=asked
        )


@pytest.mark.rehearse
def test_a_step_is_tuned_again_with_the_same_answer(tmp_path: Path) -> None:
    step, args = framework_steps.plain(MESH)
    first, second = (
        pgle.tune(step, *args, output=tmp_path / "tuned", budget=3) for _ in range(2)
    )
    assert (tmp_path / "tuned" / "flags.txt").is_file() == (
        first.result.proof is not None
    )
    assert second["step_us"] == first["step_us"]
    assert violations(dict(second.document)) == []


@pytest.mark.rehearse
def test_a_step_is_priced_at_several_sizes(tmp_path: Path) -> None:
    def build(count: int) -> tuple[Any, ...]:
        mesh = abstract(count)
        weights = shape(1024, 4096, spec=PartitionSpec("data"), mesh=mesh)
        return (
            jax.jit(lambda w, x: x @ w),
            weights,
            shape(64 * count, 1024, spec=PartitionSpec("data"), mesh=mesh),
        )

    found = pgle.scale(build, (4, 16, 48), network_gb_s=50, output=tmp_path / "scale")
    first, second, third = found["rows"]
    assert (first["devices"], second["devices"]) == (4, 16)
    assert second["step_us"] > first["step_us"] > 0
    assert re.search("48.* 1024", third["failure"])
    assert "No step at 48 GPUs: cannot be lowered for GPUs:" in str(found)
    assert violations(dict(found.document)) == []
    assert (tmp_path / "scale" / "scale.html").is_file()
    again = pgle.scale(build, (16, 4, 8), network_gb_s=50, output=tmp_path / "scale")
    assert again["resumed"] == 2
    assert [row["devices"] for row in again["rows"]] == [4, 8, 16]


def test_sizes_without_a_step_are_rows() -> None:
    def build(count: int) -> tuple[Any, ...]:
        if count > 8:
            raise ValueError(f"no {count} of these")
        return jax.jit(jnp.sin), shape(8, spec=PartitionSpec("data"))

    found = pgle.scale(build, (16, 4))
    assert [row["failure"] for row in found["rows"]] == [
        "the step is for 8 GPUs",
        "ValueError: no 16 of these",
    ]
    assert not found.ok


def test_arrays_stand_for_their_shapes(tmp_path: Path) -> None:
    path = lowered_step(
        lambda w, x: x @ w,
        (shape(64, 32, spec=PartitionSpec("data")), jnp.ones((8, 64))),
        tmp_path,
        load_target("h100"),
    )
    text = path.read_text()
    assert "mhlo.num_partitions = 8" in text
    shardy, before_jax_0_7 = (
        r'sdy\.sharding = #sdy\.sharding<@mesh, \[{"data"}, {}\]>',
        r'mhlo\.sharding = "{devices=\[8,1\]',
    )
    assert re.search(rf"tensor<64x32xf32> {{({shardy}|{before_jax_0_7})", text)
    assert "tensor<8x64xf32> loc" in text


def test_code_is_that_for_gpus_and_afterwards_for_this_machine_again(
    tmp_path: Path,
) -> None:
    bits = jax.jit(lambda key: jax.random.bits(key, (4096,)))  # a loop on CPUs
    args = (jax.random.key(0),)
    lowered = lowered_step(bits, args, tmp_path, load_target("h100"))
    assert "stablehlo.while" not in lowered.read_text()
    assert "stablehlo.while" in bits.lower(jax.random.key(0)).as_text()


def _attends(query: Any) -> Any:
    return jax.nn.dot_product_attention(
        query, query, query, is_causal=True, implementation="cudnn"
    )


def test_attention_by_cudnn_is_lowered_where_there_is_no_cudnn(tmp_path: Path) -> None:
    query = jax.ShapeDtypeStruct((2, 64, 4, 64), jnp.bfloat16)
    lowered = lowered_step(_attends, (query,), tmp_path, load_target("a100"))
    assert "__cudnn$fmha" in lowered.read_text()


def test_attention_by_cudnn_takes_what_the_target_can(tmp_path: Path) -> None:
    wide = jax.ShapeDtypeStruct((2, 64, 4, 256), jnp.bfloat16)
    with pytest.raises(pgle.UserError, match="head dim"):
        lowered_step(_attends, (wide,), tmp_path, load_target("a100"))
    lowered = lowered_step(_attends, (wide,), tmp_path, load_target("h100"))
    assert "__cudnn$fmha" in lowered.read_text()


def test_a_call_that_needs_devices_leads_to_the_program() -> None:
    query = jax.ShapeDtypeStruct(
        (8, 64, 4, 64),
        jnp.bfloat16,
        sharding=NamedSharding(MESH, PartitionSpec("data")),
    )
    with pytest.raises(pgle.UserError, match="give the words of the program"):
        pgle.rehearse(jax.jit(_attends), query, target="h100")


def _constrained(x: Any) -> Any:
    return jax.lax.with_sharding_constraint(
        x, NamedSharding(MESH, PartitionSpec("data"))
    )


@pytest.mark.parametrize(
    ("step", "args", "message"),
    [
        (3, (), "a function is needed, not int"),
        (lambda x: x @ x, (shape(3, 4),), "cannot be lowered for GPUs: TypeError"),
        (
            _constrained,
            (shape(8),),
            "its mesh has 8 devices, and no argument has a sharding on it",
        ),
    ],
)
def test_a_step_that_jax_cannot_lower(step: Any, args: Any, message: str) -> None:
    with pytest.raises(pgle.UserError) as error:
        pgle.rehearse(step, *args)
    assert message in str(error.value)


def test_a_path_takes_no_arguments() -> None:
    with pytest.raises(pgle.UserError, match=r"step\.mlir: takes no arguments"):
        pgle.rehearse("step.mlir", 1.0)


@pytest.mark.parametrize("word", ["python", "nowhere.mlir"])
def test_a_path_starts_no_program(word: str) -> None:
    with pytest.raises(
        pgle.UserError,
        match=f"{word}: is no module, no folder of dumps and no run directory",
    ):
        pgle.rehearse(word)
