"""MaxText's training step for eight GPUs of AMD, lowered on a machine without one.

    python benchmarks/programs/maxtext_step.py OUT NAME=VALUE...

Writes StableHLO to OUT. NAME=VALUE: settings of MaxText's `base.yml`. Needs MaxText with its
dependencies (`decoupled-requirements.txt` of its package) and no GPU. Parameters are shapes only.

`attention=cudnn_flash_te` calls Transformer Engine, which cannot be installed without a GPU's
compiler. Here a class with the same arguments makes the same two calls, which nothing executes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["DECOUPLE_GCLOUD"] = "TRUE"  # of MaxText: without Google's services

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

BATCH = P(("fsdp", "expert"))  # axes of the mesh that split sequences
CAUSAL = 3  # NVTE_PADDING_CAUSAL_MASK of Transformer Engine's `NVTE_Mask_Type`
SAVED = "context"  # the name by which MaxText's policies save the results

Array = jax.Array


def _sizes(query: Array, key: Array, value: Array) -> dict[str, np.int64]:
    """The attributes of Transformer Engine's calls that say what is computed."""
    batch, length, heads, depth = query.shape
    sizes = {
        "input_batch": batch,
        "q_max_seqlen": length,
        "kv_max_seqlen": key.shape[1],
        "attn_heads": heads,
        "num_gqa_groups": key.shape[2],
        "qk_head_dim": depth,
        "v_head_dim": value.shape[3],
        "mask_type": CAUSAL,
    }
    return {name: np.int64(size) for name, size in sizes.items()}


def _forward(query: Array, key: Array, value: Array) -> Any:
    """The result, and a number for each row of the softmax, which the gradient takes."""
    batch, length, heads, _ = query.shape
    result = jax.ShapeDtypeStruct((batch, length, heads, value.shape[3]), query.dtype)
    rows = jax.ShapeDtypeStruct((batch, heads, length, 1), jnp.float32)
    call = jax.ffi.ffi_call("te_fused_attn_forward_ffi", (result, rows))
    return call(query, key, value, **_sizes(query, key, value))


def _backward(*given: Array) -> Any:
    """The gradients of queries, keys and values."""
    inputs = given[:3]
    gradients = [jax.ShapeDtypeStruct(item.shape, item.dtype) for item in inputs]
    call = jax.ffi.ffi_call("te_fused_attn_backward_ffi", tuple(gradients))
    return call(*given, **_sizes(*inputs))


def _sharded(function: Any, *given: Array) -> Any:
    """A call for the sequences of each GPU."""
    split = jax.shard_map(function, in_specs=BATCH, out_specs=BATCH, check_vma=False)
    return split(*given)


@jax.custom_vjp
def attention(query: Array, key: Array, value: Array) -> Array:
    result, _ = _sharded(_forward, query, key, value)
    return result


def _attention_forward(query: Array, key: Array, value: Array) -> Any:
    found = _sharded(_forward, query, key, value)
    result, rows = (checkpoint_name(item, SAVED) for item in found)
    return result, (query, key, value, result, rows)


def _attention_backward(saved: tuple[Array, ...], gradient: Array) -> Any:
    return _sharded(_backward, *saved, gradient)


attention.defvjp(_attention_forward, _attention_backward)


class DotProductAttention(nn.Module):
    """Transformer Engine's layer of this name, for what MaxText passes to it."""

    head_dim: int
    num_attention_heads: int
    num_gqa_groups: int
    attn_mask_type: str
    attn_bias_type: str
    attention_dropout: float
    dropout_rng_name: str
    dtype: Any
    float32_logits: bool
    qkv_layout: str
    scale_factor: float
    transpose_batch_sequence: bool
    window_size: Any
    context_parallel_causal_load_balanced: bool
    context_parallel_axis: str
    context_parallel_strategy: str
    max_segments_per_seq: int
    softmax_type: str

    @nn.compact
    def __call__(
        self, query: Array, key: Array, value: Array, sequence_descriptor: Any = None
    ) -> Array:
        return attention(query, key, value)


def _put_in_place() -> None:
    """Let MaxText import the layer as Transformer Engine's."""
    package = "transformer_engine"
    names = (package, f"{package}.jax", f"{package}.jax.flax")
    for name in (*names, f"{package}.jax.attention", f"{names[-1]}.transformer"):
        sys.modules[name] = ModuleType(name)
    layers: Any = sys.modules[f"{names[-1]}.transformer"]
    layers.DotProductAttention = DotProductAttention
    described: Any = sys.modules[f"{package}.jax.attention"]
    described.SequenceDescriptor = None


def lowered(settings: list[str]) -> str:
    """The training step as StableHLO."""
    import maxtext
    from flax.core.spmd import logical_axis_rules
    from maxtext.configs import pyconfig
    from maxtext.trainers.pre_train import train, train_compile
    from maxtext.utils import maxtext_utils, sharding

    base = Path(maxtext.__path__[0]) / "configs/base.yml"
    here = ("hardware=gpu", "compile_topology=a3", "compile_topology_num_slices=1")
    config = pyconfig.initialize([__file__, str(base), *settings, *here])
    mesh = train_compile.get_topology_mesh(config)
    inputs, named, state, _, model = train_compile.get_shaped_inputs(mesh, config)
    parameters, state = sharding.maybe_update_params_sharding_with_opt(config, state)
    given = sharding.build_zero1_input_state_mesh_shardings(config, state, parameters)
    data = sharding.get_input_data_sharding(config, mesh)
    step, before, after, static, donated = (
        maxtext_utils.get_functional_train_with_signature(
            train.train_step,
            data_sharding=data,
            state_mesh_shardings=given,
            model=model,
            config=config,
            params_shardings=parameters,
        )
    )
    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        jitted = jax.jit(
            step,
            in_shardings=before,
            out_shardings=after,
            static_argnums=static,
            donate_argnums=donated,
        )
        traced = jitted.trace(*inputs, **named)
        return traced.lower(lowering_platforms=("rocm",)).as_text()


if __name__ == "__main__":
    _put_in_place()
    jax.config.update("jax_default_prng_impl", "unsafe_rbg")  # as MaxText's trainer
    Path(sys.argv[1]).write_text(lowered(sys.argv[2:]))
