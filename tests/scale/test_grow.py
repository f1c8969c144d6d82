"""Modules grown from smaller captures, against what jax lowers at that size."""

from __future__ import annotations

import re

import pytest

from pgle.scale.plan import UnfitError, bases, grown


def lowered(devices: int, *, batch: int = 2) -> str:
    """A step over two axes of a mesh, as jax lowers it for so many devices, of which none
    exists.
    """
    import jax
    import jax.numpy as jnp
    from jax.sharding import AbstractMesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = AbstractMesh((devices // 8, 8), ("data", "model"))

    def step(weights: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(weights: jax.Array) -> jax.Array:
            return jnp.mean(jnp.tanh(x @ weights) ** 2) + weights.sum() / devices

        value, gradient = jax.value_and_grad(loss)(weights)
        return weights - gradient, value

    def shape(spec: P, *sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            sizes, jnp.bfloat16, sharding=NamedSharding(mesh, spec)
        )

    weights, x = (
        shape(P("model", None), 64, 32),
        shape(P("data", "model"), batch * devices, 64),
    )
    text: str = (
        jax.jit(step).trace(weights, x).lower(lowering_platforms=("cuda",)).as_text()
    )
    return text


def test_a_grown_module_is_what_jax_lowers_at_that_size() -> None:
    modules = {size: lowered(size) for size in (512, 1024, 2048)}
    expected, found = lowered(8192), grown(modules, 8192)
    constants = re.compile(r"dense<[^>]*>")
    assert "tensor<16384x64xbf16>" in found
    assert constants.sub("", found) == constants.sub("", expected)
    assert [
        float(item) for item in re.findall(r"dense<([\d.eE+-]+)>", found)
    ] == pytest.approx(
        [float(item) for item in re.findall(r"dense<([\d.eE+-]+)>", expected)], rel=0.01
    )


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (
            ["a\nsum 8", "a\nsum 16", "a\nproduct 32"],
            "line 2 of its module is another program at 8, 16, 32 GPUs",
        ),
        (["x 8", "x 8", "x 32"], "8, 8, 32 at 8, 16, 32 GPUs follow no rule"),
        (["x 96", "x 48", "x 24"], "24 at 32 GPUs cannot be divided at 320"),
    ],
)
def test_what_follows_no_rule_is_refused(texts: list[str], why: str) -> None:
    with pytest.raises(UnfitError, match=f"^{why}$"):
        grown(dict(zip((8, 16, 32), texts, strict=True)), 320)


def test_numbers_that_grow_shrink_and_stay() -> None:
    texts = {
        n: f"tensor<{4 * n}x7x{1024 // n}xf32> last {n - 1} scale {1 / n:E} %arg07"
        for n in (8, 16, 32)
    }
    assert (
        grown(texts, 64) == "tensor<256x7x16xf32> last 63 scale 1.562500000E-02 %arg07"
    )


def test_constants_that_are_printed_by_their_bits() -> None:
    printed = {512: "1.310720e+05", 1024: "2.621440e+05", 2048: "0x49000000"}
    texts = {
        n: f"dense<{text}> : tensor<f32> dense<0xFF80> : tensor<bf16>"
        for n, text in printed.items()
    }
    assert (
        grown(texts, 8192)
        == "dense<2.097152000E+06> : tensor<f32> dense<0xFF80> : tensor<bf16>"
    )


def test_sizes_to_capture_are_halves_with_full_hosts() -> None:
    assert bases(16384, 2048, 8) == (512, 1024, 2048)
    assert bases(6144, 2048, 8) == (384, 768, 1536)
    assert bases(4608, 2048, 72) == (288, 576, 1152)
    with pytest.raises(
        UnfitError,
        match=r"^4104 GPUs are more than the 2048 of a capture, and halves of them",
    ):
        bases(4104, 2048, 8)
