"""A stand-in for the program of a public sweep of flags: a mixture of experts with FSDP over 64
GPUs, in plain JAX.

The sweep is marin-community/marin#8054 (64 × GB200, one NVL72 rack). Its published shape: 360
billion parameters, model dimension 6144, 48 layers in a scan, 128 experts of which 4 are active,
batch 1024 × 4096, every parameter sharded over 64 devices, experts gathered in chunks, optimizer
state in host memory. This program was written from that description; it holds none of their code.
What it does not have: their attention kernel (here an opaque call whose latency is a guess: 1.5 ms
forward, 3.7 ms backward per layer) and their grouped products (here batched ones of equal
segments).

Lowered on 64 virtual CPU devices, in seconds and little memory; nothing is run:

    python benchmarks/moe_fsdp.py -o step.mlir
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DEVICES = 64
os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count={DEVICES}"  # before jax is imported
)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import Array, lax  # noqa: E402
from jax.experimental.xla_metadata import set_xla_metadata  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

MODEL, EXPERT_WIDTH, EXPERTS, ACTIVE = 6144, 3072, 128, 4
HEADS, KV_HEADS, HEAD = 48, 12, 128
BATCH, LENGTH, VOCABULARY, VOCABULARY_BLOCK = 1024, 4096, 128256, 4096
GATE = 128  # rank of the gates that norms carry
ATTENTION_NS = {"fwd": "1500000", "bwd": "3700000"}  # a guess, per layer
NEWTON_SCHULZ = [
    (3.4445, -4.7750, 2.0315)
] * 5  # coefficients of Muon (K. Jordan, "Muon", 2024)
BF16 = jnp.bfloat16

Params = Mapping[str, Any]


class Program:
    """The step for one setting of what the sweep changed in the program itself.

    Args:
        layers: in the scan.
        chunks: in which the experts of a layer are gathered.
        small: whether gates and routers are sharded, too; else they are replicated.
    """

    def __init__(self, layers: int, chunks: int, small: bool) -> None:
        self.layers, self.chunks = layers, chunks
        self.mesh = Mesh(np.array(jax.devices()).reshape(DEVICES), ("data",))
        self.block, self.others = _shapes("data" if small else None)
        self.shapes = {
            name: (layers, *shape) for name, (shape, _) in self.block.items()
        }
        self.specs = {name: P(None, *spec) for name, (_, spec) in self.block.items()}
        self.shapes |= {name: shape for name, (shape, _) in self.others.items()}
        self.specs |= {name: P(*spec) for name, (_, spec) in self.others.items()}
        self.per_device = functools.partial(
            jax.shard_map, mesh=self.mesh, check_vma=False
        )

    def sharding(self, *spec: Any, kind: str | None = None) -> NamedSharding:
        """A sharding on the mesh, in device memory unless another kind is named."""
        return (
            NamedSharding(self.mesh, P(*spec), memory_kind=kind)
            if kind
            else NamedSharding(self.mesh, P(*spec))
        )

    def placed(self, x: Array, *spec: Any) -> Array:
        """An array with a sharding."""
        return lax.with_sharding_constraint(x, self.sharding(*spec))

    def gathered(self, x: Array) -> Array:
        """An array that every device has whole."""
        return self.placed(x, *[None] * x.ndim)

    # ---- the forward pass

    def loss(self, params: Params, tokens: Array) -> tuple[Array, Any]:
        """Cross entropy with z-loss, and what routers report."""
        params = jax.tree.map(lambda leaf: leaf.astype(BF16), params)
        looked_up = self.per_device(
            lambda table, at: table[at], in_specs=(P(), P("data")), out_specs=P("data")
        )
        x = self.gated(
            _rms(looked_up(params["embed"], tokens), params["rms_e"]),
            params["gne_d"],
            params["gne_u"],
        )
        body = jax.checkpoint(lambda carry, layer: self.layer(carry, layer))
        x, reports = lax.scan(body, x, {name: params[name] for name in self.block})
        x = self.gated(_rms(x, params["rms_f"]), params["gnf_d"], params["gnf_u"])
        labels = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)))
        entropy = self.per_device(
            _cross_entropy, in_specs=(P("data"), P(), P("data")), out_specs=P("data")
        )
        return entropy(x, self.gathered(params["head"]), labels).sum() / (
            BATCH * LENGTH
        ), reports

    def layer(self, x: Array, p: Params) -> tuple[Array, Any]:
        """Attention, then a mixture of experts with two shared ones."""
        h = self.gated(_rms(x, p["rms_attn"]), p["gn1_d"], p["gn1_u"])
        q, k, v = (
            jnp.einsum("bsh,hd->bsd", h, self.gathered(p[name]))
            for name in ("wq", "wk", "wv")
        )
        k, v = self.convolved(k, p["sc_k"]), self.convolved(v, p["sc_v"])
        q = _rms_plain(q.reshape(*q.shape[:2], HEADS, HEAD))
        k = _rms_plain(k.reshape(*k.shape[:2], KV_HEADS, HEAD))
        v = v.reshape(*v.shape[:2], KV_HEADS, HEAD)
        q, k = _rotary(q) * 1.3, _rotary(k)
        out = self.attention()(q.astype(BF16), k, v)
        own = jnp.repeat(v, HEADS // KV_HEADS, 2)
        out = (
            out
            - (
                jnp.sum(out * own, -1, keepdims=True)
                / (jnp.sum(own * own, -1, keepdims=True) + 1e-6)
            )
            * own
        )
        gate = (
            2
            * jax.nn.sigmoid(jnp.einsum("bsd,dn->bsn", h, self.gathered(p["agate"])))[
                ..., None
            ]
        )
        out = (gate * out).reshape(*out.shape[:2], HEADS * HEAD)
        x = x + self.convolved(
            jnp.einsum("bsh,hd->bsd", out, self.gathered(p["wo"])), p["sc_a"]
        )
        x = self.placed(x, "data", None, None)
        m = self.gated(_rms(x, p["rms_mlp"]), p["gn2_d"], p["gn2_u"])
        y, report = self.experts(m, p)
        y = (
            y
            + self.shared(m, p["s0_g"], p["s0_u"], p["s0_d"])
            + self.shared(m, p["s1_g"], p["s1_u"], p["s1_d"])
        )
        x = x + self.convolved(y, p["sc_m"])
        return self.placed(x, "data", None, None), report

    def gated(self, x: Array, down: Array, up: Array) -> Array:
        """A norm's output times a gate of low rank."""
        h = jax.nn.silu(jnp.einsum("...d,dr->...r", x, self.gathered(down)))
        return x * jax.nn.sigmoid(
            jnp.einsum("...r,rd->...d", h, self.gathered(up))
        ).astype(x.dtype)

    def convolved(self, x: Array, weights: Array) -> Array:
        """A causal convolution over four positions."""
        weights = self.gathered(weights)
        out = weights[0] * x
        for lag in range(1, 4):
            out = (
                out + weights[lag] * jnp.pad(x, ((0, 0), (lag, 0), (0, 0)))[:, :LENGTH]
            )
        return out

    def attention(self) -> Callable[[Array, Array, Array], Array]:
        """An opaque kernel of stated latency, on each device's part of the batch."""
        forward = self.per_device(
            _attention_forward, in_specs=P("data"), out_specs=(P("data"), P("data"))
        )
        backward = self.per_device(
            _attention_backward, in_specs=P("data"), out_specs=(P("data"),) * 3
        )

        def kept(q: Array, k: Array, v: Array) -> tuple[Array, tuple[Array, ...]]:
            out, sums = forward(q, k, v)
            return out, (q, k, v, out, sums)

        @jax.custom_vjp
        def attention(q: Array, k: Array, v: Array) -> Array:
            return kept(q, k, v)[0]

        attention.defvjp(
            kept, lambda residuals, gradient: backward(*residuals, gradient)
        )
        return attention

    def experts(self, x: Array, p: Params) -> tuple[Array, Any]:
        """Routing, and the experts on each device's own tokens with gathered weights."""
        flat = x.reshape(-1, MODEL)
        logits = jnp.einsum("td,de->te", flat, self.gathered(p["router"])).astype(
            jnp.float32
        )
        top, chosen = lax.top_k(logits, ACTIVE + 1)
        chosen = chosen[:, :-1]
        weights = jax.nn.sigmoid(jnp.take_along_axis(logits, chosen, -1))
        weights = (weights * (2.5 / (weights.sum(-1, keepdims=True) + 1e-9))).astype(
            BF16
        )
        load = jnp.mean(jax.nn.one_hot(chosen, EXPERTS, dtype=jnp.float32), (0, 1))

        def balance(scores: Array) -> Array:
            best, _ = lax.top_k(scores.T, scores.shape[0] * ACTIVE // EXPERTS)
            return lax.pmean(best[:, -1], "data")

        balanced = self.per_device(balance, in_specs=P("data", None), out_specs=P())
        bias = balanced(lax.stop_gradient(logits - top[:, -1:]))
        specs = (
            P("data"),
            P("data"),
            P("data"),
            P(None, "data"),
            P(None, "data"),
            P(None, None, "data"),
        )
        mixed = self.per_device(
            functools.partial(_experts, self.chunks),
            in_specs=specs,
            out_specs=P("data"),
        )
        y = mixed(flat, chosen, weights, p["e_gate"], p["e_up"], p["e_down"])
        return y.reshape(x.shape[0], LENGTH, MODEL), (load, bias)

    def shared(self, x: Array, gate: Array, up: Array, down: Array) -> Array:
        """An expert that every token passes."""
        flat = x.reshape(-1, MODEL)
        h = jax.nn.silu(jnp.einsum("td,dm->tm", flat, self.gathered(gate)))
        h = h * jnp.einsum("td,dm->tm", flat, self.gathered(up))
        return jnp.einsum("tm,md->td", h, self.gathered(down)).reshape(x.shape)

    # ---- the optimizer

    def orthogonal(self, name: str, gradient: Array) -> Array:
        """Muon's update: each matrix orthogonalised on one device."""
        spec = self.specs[name]
        if gradient.ndim == 4:
            inner = list(spec)[1:]
            flat = gradient.astype(BF16).reshape(
                self.layers * EXPERTS, gradient.shape[2], gradient.shape[3]
            )
            flat = _newton_schulz(
                self.placed(self.placed(flat, *inner), "data", None, None)
            )
            return self.placed(
                self.placed(flat, *inner).reshape(gradient.shape), *spec
            ).astype(jnp.float32)
        if gradient.ndim == 3:
            flat = jnp.pad(
                gradient.astype(BF16), ((0, (-self.layers) % DEVICES), (0, 0), (0, 0))
            )
            flat = _newton_schulz(self.placed(flat, "data", None, None))
            return self.placed(
                self.placed(flat, None, None, None)[: self.layers], *spec
            ).astype(jnp.float32)
        return self.placed(
            _newton_schulz(self.gathered(gradient.astype(BF16))[None])[0], *spec
        ).astype(jnp.float32)

    def is_orthogonal(self, name: str) -> bool:
        """Whether Muon updates a parameter; Adam updates the others."""
        apart = ("embed", "head", "router", "agate", "rms_attn", "rms_mlp")
        return (
            len(self.shapes[name]) >= 2
            and not name.startswith("sc_")
            and name not in apart
        )

    def step(
        self, params: Params, state: Params, tokens: Array
    ) -> tuple[Params, Params, Array]:
        """One training step; the optimizer's state comes from host memory and goes back there."""
        (loss, _), gradients = jax.value_and_grad(self.loss, has_aux=True)(
            params, tokens
        )
        updated, moments = {}, {}
        for name in params:
            spec = self.specs[name]
            gradient = self.placed(gradients[name].astype(jnp.float32), *spec)
            here = self.sharding(*spec, kind="device")
            old = jax.tree.map(
                lambda leaf, here=here: jax.device_put(leaf, here), state[name]
            )
            out: tuple[Array, ...]
            if self.is_orthogonal(name):
                momentum = 0.95 * old[0] + gradient
                new = _on_sphere(
                    params[name], self.orthogonal(name, 0.95 * momentum + gradient)
                )
                out = (momentum,)
            else:
                momentum, second = (
                    0.9 * old[0] + 0.1 * gradient,
                    0.99 * old[1] + 0.01 * gradient * gradient,
                )
                new, out = (
                    params[name] - 1e-3 * momentum / (jnp.sqrt(second) + 1e-8),
                    (momentum, second),
                )
            updated[name] = self.placed(new, *spec)
            there = self.sharding(*spec, kind="pinned_host")
            moments[name] = jax.tree.map(
                lambda leaf, there=there: jax.device_put(leaf, there), out
            )
        return updated, moments, loss

    def lowered(self) -> str:
        """StableHLO of the step for CUDA devices."""
        here = {name: self.sharding(*self.specs[name]) for name in self.shapes}
        there = {
            name: tuple(
                self.sharding(*self.specs[name], kind="pinned_host")
                for _ in range(2 - self.is_orthogonal(name))
            )
            for name in self.shapes
        }

        def array(name: str, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(
                self.shapes[name], jnp.float32, sharding=sharding
            )

        params = {name: array(name, here[name]) for name in self.shapes}
        state = {
            name: tuple(array(name, item) for item in there[name])
            for name in self.shapes
        }
        tokens = jax.ShapeDtypeStruct(
            (BATCH, LENGTH), jnp.int32, sharding=self.sharding("data", None)
        )
        step = jax.jit(
            self.step,
            donate_argnums=(0, 1),
            out_shardings=(here, there, self.sharding()),
        )
        return (
            step.trace(params, state, tokens)
            .lower(lowering_platforms=("cuda",))
            .as_text()
        )


def _shapes(
    small: str | None,
) -> tuple[dict[str, tuple[Any, Any]], dict[str, tuple[Any, Any]]]:
    """Shapes and shardings by parameter: of a layer, and of the rest."""
    wide, narrow = HEADS * HEAD, KV_HEADS * HEAD
    down, up = ((MODEL, GATE), (small, None)), ((GATE, MODEL), (None, small))
    layer: dict[str, tuple[Any, Any]] = {
        "rms_attn": ((MODEL,), (None,)), "gn1_d": down, "gn1_u": up,
        "wq": ((MODEL, wide), ("data", None)), "wk": ((MODEL, narrow), ("data", None)),
        "wv": ((MODEL, narrow), ("data", None)), "wo": ((wide, MODEL), (None, "data")),
        "agate": ((MODEL, HEADS), (small, None)), "sc_k": ((4, narrow), (None, "data")),
        "sc_v": ((4, narrow), (None, "data")), "sc_a": ((4, MODEL), (None, "data")),
        "sc_m": ((4, MODEL), (None, "data")),
        "rms_mlp": ((MODEL,), (None,)), "gn2_d": down, "gn2_u": up, "router": ((MODEL, EXPERTS), (small, None)),
        "e_gate": ((EXPERTS, MODEL, EXPERT_WIDTH), (None, "data", None)),
        "e_up": ((EXPERTS, MODEL, EXPERT_WIDTH), (None, "data", None)),
        "e_down": ((EXPERTS, EXPERT_WIDTH, MODEL), (None, None, "data")),
    }  # fmt: skip
    for number in (0, 1):
        layer |= {
            f"s{number}_{part}": ((MODEL, EXPERT_WIDTH), ("data", None))
            for part in "gu"
        }
        layer[f"s{number}_d"] = ((EXPERT_WIDTH, MODEL), (None, "data"))
    others: dict[str, tuple[Any, Any]] = {
        "embed": ((VOCABULARY, MODEL), (None, None)), "head": ((MODEL, VOCABULARY), ("data", None)),
        "rms_e": ((MODEL,), (None,)), "rms_f": ((MODEL,), (None,)),
        "gne_d": down, "gne_u": up, "gnf_d": down, "gnf_u": up,
    }  # fmt: skip
    return layer, others


def _rms(x: Array, weight: Array) -> Array:
    y = x.astype(jnp.float32)
    variance = jnp.mean(y * y, -1, keepdims=True)
    return (y * lax.rsqrt(variance + 1e-5) * weight.astype(jnp.float32)).astype(x.dtype)


def _rms_plain(x: Array) -> Array:
    variance = jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True)
    return (x * lax.rsqrt(variance + 1e-6)).astype(x.dtype)


def _rotary(x: Array) -> Array:
    """Rotary positions on half of each head."""
    half = HEAD // 4
    rates = 1.0 / (10000.0 ** (jnp.arange(0, half, dtype=jnp.float32) / half))
    angles = jnp.arange(LENGTH, dtype=jnp.float32)[:, None] * rates[None]
    cosines, sines = jnp.cos(angles), jnp.sin(angles)
    keep = jnp.concatenate(
        [jnp.repeat(cosines, 2, -1), jnp.ones((LENGTH, HEAD // 2))], -1
    )[None, :, None, :]
    paired = jnp.reshape(jnp.stack([-sines, sines], -1), (LENGTH, HEAD // 2))
    turn = jnp.concatenate([paired, jnp.zeros((LENGTH, HEAD // 2))], -1)[
        None, :, None, :
    ]
    swapped = jnp.flip(x.reshape(*x.shape[:-1], HEAD // 2, 2), -1).reshape(x.shape)
    return (keep * x + turn * swapped).astype(x.dtype)


def _attention_forward(q: Array, k: Array, v: Array) -> Any:
    out = (
        jax.ShapeDtypeStruct(q.shape, BF16),
        jax.ShapeDtypeStruct((q.shape[0], HEADS, LENGTH), jnp.float32),
    )
    with set_xla_metadata(latency_metadata=ATTENTION_NS["fwd"]):
        return jax.ffi.ffi_call("attention_forward", out)(q, k, v)


def _attention_backward(
    q: Array, k: Array, v: Array, out: Array, sums: Array, gradient: Array
) -> Any:
    like = [jax.ShapeDtypeStruct(item.shape, BF16) for item in (q, k, v)]
    with set_xla_metadata(latency_metadata=ATTENTION_NS["bwd"]):
        return tuple(
            jax.ffi.ffi_call("attention_backward", tuple(like))(
                q, k, v, out, sums, gradient
            )
        )


def _experts(
    chunks: int,
    x: Array,
    chosen: Array,
    weights: Array,
    gate: Array,
    up: Array,
    down: Array,
) -> Array:
    """The experts of one device's tokens, sorted by expert and cut into equal segments; weights
    gathered in chunks.
    """
    order = jnp.argsort(chosen.reshape(-1))
    token = order // ACTIVE
    sorted_x, sorted_weights = x[token], weights.reshape(-1)[order]
    first = jnp.stack([gate, up], -1).reshape(
        EXPERTS, gate.shape[1], 2 * EXPERT_WIDTH
    )  # one gather for both
    per, rows = EXPERTS // chunks, x.shape[0] * ACTIVE // chunks
    out = jnp.zeros_like(x)
    second = lax.all_gather(down, "data", axis=2, tiled=True)
    for chunk in range(chunks):
        experts, segment = (
            slice(chunk * per, (chunk + 1) * per),
            slice(chunk * rows, (chunk + 1) * rows),
        )
        both = lax.all_gather(first[experts], "data", axis=1, tiled=True)
        h = jnp.einsum(
            "ecd,edi->eci", sorted_x[segment].reshape(per, rows // per, MODEL), both
        )
        h = h.reshape(per, rows // per, EXPERT_WIDTH, 2)
        h = (
            jax.nn.silu(h[..., 0].astype(jnp.float32)) * h[..., 1].astype(jnp.float32)
        ).astype(BF16)
        y = jnp.einsum("eci,eid->ecd", h, second[experts]).reshape(rows, MODEL)
        out = out.at[token[segment]].add(y * sorted_weights[segment, None], mode="drop")
    return out


def _cross_entropy(hidden: Array, head: Array, labels: Array) -> Array:
    """Summed over one device's tokens, in blocks of the vocabulary; logits are never whole."""
    hidden, labels = hidden.reshape(-1, MODEL), labels.reshape(-1)
    blocks = -(-VOCABULARY // VOCABULARY_BLOCK)
    padded = jnp.pad(head, ((0, 0), (0, blocks * VOCABULARY_BLOCK - VOCABULARY)))

    @jax.checkpoint
    def tokens(rows: Array, wanted: Array) -> Array:
        def block(carry: Any, number: Array) -> tuple[Any, None]:
            most, total, right = carry
            part = lax.dynamic_slice(
                padded, (0, number * VOCABULARY_BLOCK), (MODEL, VOCABULARY_BLOCK)
            )
            logits = jnp.einsum("td,dv->tv", rows, part).astype(jnp.float32)
            new = jnp.maximum(most, lax.stop_gradient(logits.max(-1)))
            total = total * jnp.exp(most - new) + jnp.exp(logits - new[:, None]).sum(-1)
            at = (
                jnp.arange(VOCABULARY_BLOCK)[None] + number * VOCABULARY_BLOCK
                == wanted[:, None]
            )
            return (new, total, right + jnp.where(at, logits, 0.0).sum(-1)), None

        count = rows.shape[0]
        start = (jnp.full((count,), -1e30), jnp.zeros((count,)), jnp.zeros((count,)))
        (most, total, right), _ = lax.scan(block, start, jnp.arange(blocks))
        entropy = most + jnp.log(total)
        return jnp.sum(entropy - right + 1e-4 * entropy * entropy)

    def add(total: Array, rows: tuple[Array, Array]) -> tuple[Array, None]:
        return total + tokens(*rows), None

    count = hidden.shape[0] // 1024
    rows = (hidden.reshape(count, 1024, MODEL), labels.reshape(count, 1024))
    return lax.scan(add, jnp.zeros(()), rows)[0][None]


def _newton_schulz(x: Array) -> Array:
    x = x / (
        jnp.linalg.norm(x.astype(jnp.float32), axis=(-2, -1), keepdims=True) + 1e-8
    ).astype(BF16)
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = jnp.swapaxes(x, -1, -2)
    for a, b, c in NEWTON_SCHULZ:
        square = jnp.einsum("bik,bjk->bij", x, x)
        x = a * x + jnp.einsum(
            "bik,bkj->bij",
            b * square + c * jnp.einsum("bik,bkj->bij", square, square),
            x,
        )
    return jnp.swapaxes(x, -1, -2) if is_tall else x


def _on_sphere(param: Array, update: Array, rate: float = 0.01) -> Array:
    """A step along the update that keeps each matrix's norm."""
    axes = tuple(range(1, param.ndim)) if param.ndim > 2 else None

    def norm(z: Array) -> Array:
        return jnp.sqrt(jnp.sum(z * z, axis=axes, keepdims=True))

    moved = param - rate * update * norm(param) / jnp.maximum(norm(update), 1e-10)
    return moved / jnp.maximum(norm(moved), 1e-10) * norm(param)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--small", choices=("sharded", "replicated"), default="sharded")
    options = parser.parse_args()
    options.out.write_text(
        Program(options.layers, options.chunks, options.small == "sharded").lowered()
    )


if __name__ == "__main__":
    main()
