"""Ten training steps as people write them, lowered for GPUs that are not there: ``python
wild_programs.py NAME OUT``.

Each is a small model in jax, flax or equinox, for eight devices. Nothing is allocated or compiled:
jax lowers each step for CUDA from abstract arrays, and its StableHLO goes to OUT. Not a part of
pgle; run in a process of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
}

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

DIM, WIDE, HEADS, BATCH, LENGTH, LAYERS = 1024, 4096, 8, 16, 512, 4
Step = tuple[Callable[..., Any], tuple[Any, ...]]


def grid(**axes: int) -> Any:
    """A mesh of eight devices."""
    return jax.sharding.Mesh(
        np.array(jax.devices()).reshape(*axes.values()), tuple(axes)
    )


def array(
    mesh: Any, shape: tuple[int, ...], *spec: Any, dtype: Any = jnp.bfloat16
) -> Any:
    """An abstract sharded array."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def descend(loss: Callable[..., Any]) -> Callable[..., Any]:
    """One step of gradient descent on a loss of (weights, x)."""

    def train_step(weights: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(
            lambda w, g: (w - 1e-3 * g).astype(w.dtype), weights, gradients
        ), value

    return train_step


def block(w: Any, x: Any, attend: Callable[[Any, Any, Any], Any] | None = None) -> Any:
    """A transformer layer."""
    normed = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6)
    q, k, v = (jnp.einsum("bld,dhk->blhk", normed, w[name]) for name in ("q", "k", "v"))
    mixed = (attend or jax.nn.dot_product_attention)(q, k, v)
    x = x + jnp.einsum("blhk,hkd->bld", mixed, w["o"])
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"]


def weights_of(
    mesh: Any, lead: tuple[int, ...] = (), over: Any = "data", model: Any = None
) -> dict[str, Any]:
    """The weights of a layer, or of several that are stacked."""
    none = (None,) * len(lead)
    heads = {
        name: array(mesh, (*lead, DIM, HEADS, DIM // HEADS), *none, over, model)
        for name in ("q", "k", "v")
    }
    return heads | {
        "o": array(mesh, (*lead, HEADS, DIM // HEADS, DIM), *none, model, None, over),
        "up": array(mesh, (*lead, DIM, WIDE), *none, over, model),
        "down": array(mesh, (*lead, WIDE, DIM), *none, model, over),
    }


def mean_square(x: Any) -> Any:
    return jnp.mean(jnp.square(x.astype(jnp.float32)))


def fsdp_unrolled() -> Step:
    """flax: a transformer whose weights are sharded over all devices, layer by layer."""
    import flax.linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(LAYERS):
                x = x + nn.MultiHeadDotProductAttention(HEADS, dtype=jnp.bfloat16)(
                    nn.LayerNorm()(x)
                )
                x = x + nn.Dense(DIM, dtype=jnp.bfloat16)(
                    nn.gelu(nn.Dense(WIDE, dtype=jnp.bfloat16)(nn.LayerNorm()(x)))
                )
            return x

    mesh, model = grid(data=8), Model()
    x = array(mesh, (BATCH, LENGTH, DIM), "data")
    shapes = jax.eval_shape(model.init, jax.random.key(0), x)
    spread = lambda leaf: array(
        mesh, leaf.shape, "data" if leaf.shape[0] % 8 == 0 else None, dtype=leaf.dtype
    )
    return descend(lambda w, x: mean_square(model.apply(w, x))), (
        jax.tree.map(spread, shapes),
        x,
    )


def tensor_parallel() -> Step:
    """equinox: a perceptron whose hidden layer is split over four devices, batches over two."""
    import equinox as eqx

    mesh = grid(data=2, model=4)
    make = lambda: eqx.nn.MLP(
        DIM, DIM, WIDE, LAYERS, key=jax.random.key(0), dtype=jnp.bfloat16
    )
    shapes = eqx.filter_eval_shape(make)
    arrays, static = eqx.partition(
        shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)
    )
    spread = lambda leaf: array(mesh, leaf.shape, "model", dtype=leaf.dtype)
    x = array(mesh, (BATCH * LENGTH, DIM), "data")
    loss = lambda w, x: mean_square(jax.vmap(eqx.combine(w, static))(x))
    return descend(loss), (jax.tree.map(spread, arrays), x)


def fsdp_scan() -> Step:
    """A scan over layers, rematerialised, weights gathered inside."""
    mesh = grid(data=8)

    def loss(weights: Any, x: Any) -> Any:
        body = jax.checkpoint(lambda x, w: (block(w, x), None))
        return mean_square(jax.lax.scan(body, x, weights)[0])

    return descend(loss), (
        weights_of(mesh, (12,)),
        array(mesh, (BATCH, LENGTH, DIM), "data"),
    )


def pipeline() -> Step:
    """Four stages of two devices: shard_map, microbatches handed on by ppermute."""
    mesh, stages, micro = grid(stage=4, data=2), 4, 8

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P("stage"), P(None, "data")),
        out_specs=P("stage", None, "data"),
    )
    def run(weights: Any, x: Any) -> Any:
        w, stage = (
            jax.tree.map(lambda leaf: leaf[0], weights),
            jax.lax.axis_index("stage"),
        )

        def tick(carry: Any, number: Any) -> Any:
            here = jnp.where(stage == 0, x[jnp.minimum(number, micro - 1)], carry)
            there = block(w, here)
            return jax.lax.ppermute(
                there, "stage", [(i, (i + 1) % stages) for i in range(stages)]
            ), there

        first = jax.lax.pcast(jnp.zeros_like(x[0]), ("stage",), to="varying")
        return jax.lax.scan(tick, first, jnp.arange(micro + stages - 1))[1][None]

    weights = {
        name: array(mesh, leaf.shape, "stage")
        for name, leaf in weights_of(mesh, (stages,), None).items()
    }
    x = array(mesh, (micro, 4, LENGTH, DIM), None, "data")
    return descend(lambda w, x: mean_square(run(w, x)[-1])), (weights, x)


def experts() -> Step:
    """A mixture of experts: tokens to the devices of their experts and back by all-to-all."""
    mesh, count = grid(expert=8), 8

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=({"gate": P(), "up": P("expert"), "down": P("expert")}, P("expert")),
        out_specs=P("expert"),
    )
    def layer(w: Any, x: Any) -> Any:
        room = 2 * x.shape[0] // count
        chosen = jax.nn.softmax(x @ w["gate"])
        expert = jnp.argmax(chosen, axis=-1)
        place = jnp.cumsum(
            jax.nn.one_hot(expert, count, dtype=jnp.int32), axis=0
        ) * jax.nn.one_hot(expert, count, dtype=jnp.int32)
        sent = jax.nn.one_hot(place - 1, room, dtype=x.dtype)
        tokens = jax.lax.all_to_all(
            jnp.einsum("tec,td->ecd", sent, x), "expert", 0, 0, tiled=True
        )
        done = jax.nn.gelu(tokens.reshape(-1, DIM) @ w["up"][0]) @ w["down"][0]
        back = jax.lax.all_to_all(
            done.reshape(tokens.shape), "expert", 0, 0, tiled=True
        )
        return x + jnp.einsum("tec,ecd,te->td", sent, back, chosen)

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = layer(w, x)
        return mean_square(x)

    one = lambda: {
        "gate": array(mesh, (DIM, count)), "up": array(mesh, (count, DIM, WIDE), "expert"),
        "down": array(mesh, (count, WIDE, DIM), "expert"),
    }  # fmt: skip
    return descend(loss), (
        [one() for _ in range(2)],
        array(mesh, (BATCH * LENGTH, DIM), "expert"),
    )


def ring_attention() -> Step:
    """Context parallel: keys and values go round a ring by ppermute while each device attends to
    what it has.
    """
    mesh, size = grid(context=8), 8

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=P(None, "context"),
        out_specs=P(None, "context"),
    )
    def attend(q: Any, k: Any, v: Any) -> Any:
        def turn(carry: Any, _: Any) -> Any:
            k, v, top, weight, out = carry
            scores = (
                jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
                * q.shape[-1] ** -0.5
            )
            highest = jnp.maximum(top, scores.max(-1))
            shares, kept = jnp.exp(scores - highest[..., None]), jnp.exp(top - highest)
            out = out * kept[..., None] + jnp.einsum(
                "bhqk,bkhd->bhqd", shares.astype(v.dtype), v
            )
            ring = [(i, (i + 1) % size) for i in range(size)]
            k, v = jax.lax.ppermute((k, v), "context", ring)
            return (k, v, highest, weight * kept + shares.sum(-1), out), None

        b, length, h, d = q.shape
        fresh = lambda shape, value: jax.lax.pcast(
            jnp.full(shape, value, jnp.float32), ("context",), to="varying"
        )
        start = (
            k,
            v,
            fresh((b, h, length), -1e30),
            fresh((b, h, length), 0.0),
            fresh((b, h, length, d), 0.0),
        )
        (_, _, _, weight, out), _ = jax.lax.scan(turn, start, None, length=size)
        return jnp.einsum("bhqd->bqhd", out / weight[..., None]).astype(q.dtype)

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = block(w, x, attend)
        return mean_square(x)

    weights = [weights_of(mesh, over=None) for _ in range(2)]
    return descend(loss), (weights, array(mesh, (2, 8 * LENGTH, DIM), None, "context"))


def host_offload() -> Step:
    """A scan over layers that keeps the layers' inputs in host memory until the backward pass."""
    from jax.ad_checkpoint import checkpoint_name

    mesh = grid(data=8)
    keep = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["x"],
        offload_src="device", offload_dst="pinned_host",
    )  # fmt: skip

    def loss(weights: Any, x: Any) -> Any:
        body = jax.checkpoint(
            lambda x, w: (block(w, checkpoint_name(x, "x")), None), policy=keep
        )
        return mean_square(jax.lax.scan(body, x, weights)[0])

    return descend(loss), (
        weights_of(mesh, (12,)),
        array(mesh, (BATCH, LENGTH, DIM), "data"),
    )


def pallas_kernel() -> Step:
    """A normalisation in Pallas (Triton) in every layer, its gradient left to jax."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    with suppress(ImportError):  # from 0.12 on jax asks which GPU it lowers for
        from jax._src.pallas.triton import gpu_info

        gpu_info.get_gpu_info = lambda: gpu_info._get_gpu_info_impl(
            gpu_info.GpuVersion.H100
        )
    mesh = grid(data=8)

    def kernel(x: Any, out: Any) -> None:
        row = x[...].astype(jnp.float32)
        out[...] = (
            row * jax.lax.rsqrt(jnp.mean(row * row, axis=-1, keepdims=True) + 1e-6)
        ).astype(out.dtype)

    @jax.custom_jvp
    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P("data"),
        check_vma=False,
    )
    def norm(x: Any) -> Any:
        tile = pl.BlockSpec((1, 16, DIM), lambda i, j: (i, j, 0))
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        where = (x.shape[0], x.shape[1] // 16)
        return pl.pallas_call(
            kernel,
            shape,
            grid=where,
            in_specs=[tile],
            out_specs=tile,
            compiler_params=triton.CompilerParams(),
        )(x)

    norm.defjvp(lambda at, along: (norm(*at), along[0]))

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = block(w, norm(x))
        return mean_square(x)

    weights = [weights_of(mesh) for _ in range(LAYERS)]
    return descend(loss), (weights, array(mesh, (BATCH, LENGTH, DIM), "data"))


def cudnn_attention() -> Step:
    """Attention by cuDNN, forwards and backwards, heads over four devices."""
    from jax._src.cudnn import fused_attention_stablehlo as fused

    fused.check_cudnn_version = lambda: (
        91400
    )  # jax asks the GPU's libraries, of which there are none here
    fused.check_compute_capability = lambda *_: True
    mesh = grid(data=2, model=4)
    attend = partial(
        jax.nn.dot_product_attention, implementation="cudnn", is_causal=True
    )

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = block(w, x, attend)
        return mean_square(x)

    weights = [weights_of(mesh, model="model") for _ in range(LAYERS)]
    return descend(loss), (weights, array(mesh, (BATCH, LENGTH, DIM), "data"))


def foreign_call() -> Step:
    """A kernel of the user's own behind the XLA FFI, on every device's share."""
    mesh = grid(data=8)

    @jax.custom_jvp
    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P("data"),
        check_vma=False,
    )
    def mine(x: Any) -> Any:
        return jax.ffi.ffi_call(
            "my_fused_norm", jax.ShapeDtypeStruct(x.shape, x.dtype)
        )(x, epsilon=1e-6)

    mine.defjvp(lambda at, along: (mine(*at), along[0]))

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = block(w, mine(x))
        return mean_square(x)

    weights = [weights_of(mesh) for _ in range(LAYERS)]
    return descend(loss), (weights, array(mesh, (BATCH, LENGTH, DIM), "data"))


PROGRAMS = (fsdp_unrolled, fsdp_scan, tensor_parallel, pipeline, experts, ring_attention, host_offload, pallas_kernel,
            cudnn_attention, foreign_call)  # fmt: skip


def main(name: str, out: str) -> None:
    """Lower one program."""
    step, arguments = next(
        program for program in PROGRAMS if program.__name__ == name
    )()
    lowered = (
        jax.jit(step, donate_argnums=0)
        .trace(*arguments)
        .lower(lowering_platforms=("cuda",))
    )
    Path(out).write_text(lowered.as_text())


if __name__ == "__main__":
    main(*sys.argv[1:])
