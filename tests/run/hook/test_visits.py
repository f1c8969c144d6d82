"""Searches of a program look at each of its operations a few times, however many layers it has."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import pytest

pytestmark = pytest.mark.usefixtures("hook_here")

ROWS, LENGTH, HEADS, DEPTH, WIDTH, WORDS = 3, 12, 2, 8, 16, 64
MOST_GROWTH = (
    2.2  # of what twice the layers add; a search of all layers for each adds 4 times
)
STEPS = 16  # with two paths each
MOST_LINES = 50_000  # of a program with that many steps; there are 2**16 paths
Search = Callable[[Any, Any], object]


def module(name: str) -> Any:
    return importlib.import_module(f"pgle_hook.{name}")


def normal(x: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def layer(x: Any, weights: dict[str, Any], mask: Any) -> Any:
    """Attention with a bias, and a gated layer, each added to what it takes."""
    taken = normal(x).astype(jnp.bfloat16)
    q, k, v = (jnp.einsum("bsd,dnh->bsnh", taken, weights[name]) for name in "qkv")
    scores = jnp.einsum("bqnh,bknh->bnqk", q, k).astype(jnp.float32) / 8
    bias = jnp.where(mask, 0, -1e9)
    shares = jax.nn.softmax(scores + bias).astype(v.dtype)
    x = x + jnp.einsum("bnqk,bknh,nhd->bqd", shares, v, weights["o"]).astype(x.dtype)
    taken = normal(x)
    gated = jax.nn.silu(taken @ weights["gate"]) * (taken @ weights["up"])
    return x + gated @ weights["down"]


def loss(parameters: dict[str, Any], tokens: Any) -> Any:
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    x = parameters["words"][tokens]
    for weights in parameters["layers"]:
        x = layer(x, weights, mask)
    shares = jax.nn.log_softmax(normal(x) @ parameters["words"].T)
    return -jnp.mean(jnp.take_along_axis(shares, tokens[..., None], -1))


def traced(layers: int) -> Any:
    half = partial(jnp.ones, dtype=jnp.bfloat16)
    attention = {name: half((WIDTH, HEADS, DEPTH)) for name in "qkv"}
    attention["o"] = half((HEADS, DEPTH, WIDTH))
    gated = {name: jnp.ones((WIDTH, WIDTH)) for name in ("gate", "up", "down")}
    weights = {**attention, **gated}
    parameters = {"words": jnp.ones((WORDS, WIDTH)), "layers": [weights] * layers}
    tokens = jnp.zeros((ROWS, LENGTH), int)
    return jax.make_jaxpr(loss)(parameters, tokens)


def graph_of(closed: Any) -> Any:
    rewrite = module("rewrite")
    taken = [rewrite.Value(var.aval) for var in closed.jaxpr.invars]
    for value in taken:
        value.moves = "float" in str(value.dtype)
    held = [
        rewrite.Value(var.aval, constant=const)
        for var, const in zip(closed.jaxpr.constvars, closed.consts, strict=True)
    ]
    return rewrite.Graph(closed.jaxpr, [*held, *taken])


def attentions(graph: Any) -> list[Any]:
    by_hand = module("by_hand")
    found = [by_hand.find(jax, node) for node in graph.nodes]
    return [one for one in found if one is not None]


def lines_run(act: Callable[[], object]) -> int:
    """How many lines of the hook an act runs, each time that it runs them."""
    count = 0

    def in_frame(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return in_frame

    def on_call(frame: FrameType, event: str, _: object) -> Any:
        return in_frame if "pgle_hook" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def growth(search: Search) -> float:
    """How many times more lines 4 to 8 further layers take than 2 to 4."""
    counts = []
    for layers in (2, 2, 4, 8):  # what the first one imports does not count
        closed = traced(layers)
        graph = graph_of(closed)
        counts.append(lines_run(partial(search, closed, graph)))
    _, few, more, most = counts
    assert more > few
    return (most - more) / (more - few)


def test_attention_is_found_in_each_layer() -> None:
    assert len(attentions(graph_of(traced(3)))) == 3


def find_attentions(closed: Any, graph: Any) -> None:
    attentions(graph)


def find_lookups(closed: Any, graph: Any) -> None:
    for node in graph.nodes:
        module("lookups").find(jax, node, "one_hot", 2)


def find_losses(closed: Any, graph: Any) -> None:
    found = module("chunks").find(jax, graph, 3, jax.checkpoint, 2)
    assert [bool(replacements) for _, replacements, _ in found] == [True]


def describe_attentions(closed: Any, graph: Any) -> None:
    for attention in attentions(graph):
        module("fused_call").described(jax, attention, graph)


def fuse(closed: Any, graph: Any) -> None:
    """Trace the program with its attention replaced."""
    fusing, rewrite = module("fusing"), module("rewrite")
    attend = partial(jax.nn.dot_product_attention, implementation="xla")

    def find(graph: Any) -> dict[Any, Any]:
        made = partial(fusing.replacement, jax, attend=attend)
        return {one.node: made(one) for one in attentions(graph)}

    rewriter = rewrite.Rewriter(jax, find)
    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in closed.in_avals]
    jax.eval_shape(lambda *args: rewriter.evaluate(closed, args), *shapes)
    assert rewriter.replaced


def build(closed: Any, graph: Any) -> None:
    graph_of(closed)


def look_at_values(closed: Any, graph: Any) -> None:
    values, stepwise = module("values"), module("stepwise")
    eqns = list(values._eqns_in(closed.jaxpr))
    values._numbers_in(eqns)
    stepwise.operations(closed.jaxpr)
    stepwise.most_bytes(closed.jaxpr)


def follow_gradients(closed: Any, graph: Any) -> None:
    module("tails").tail(closed, 0)


@pytest.mark.parametrize(
    "search",
    [
        build,
        find_attentions,
        describe_attentions,
        find_lookups,
        find_losses,
        fuse,
        look_at_values,
        follow_gradients,
    ],
)
def test_twice_the_layers_take_twice_the_lines(search: Search) -> None:
    assert growth(search) < MOST_GROWTH


def masked(make_mask: Callable[[Any], Any], mask: Any) -> int:
    """How many lines it takes to find attention with a mask, which is made of another one."""

    def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = jnp.einsum("bqnh,bknh->bnqk", q, k)
        scores = jnp.where(make_mask(mask)[:, None], scores, -1e9)
        return jnp.einsum("bnqk,bknh->bqnh", jax.nn.softmax(scores), v)

    operands = [jnp.ones((ROWS, LENGTH, HEADS, DEPTH), jnp.bfloat16)] * 3
    graph = graph_of(jax.make_jaxpr(attend)(*operands, mask))
    assert len(attentions(graph)) == 1
    return lines_run(partial(attentions, graph))


def test_a_mask_with_many_paths_to_another_is_looked_at_once() -> None:
    further = jnp.eye(LENGTH, dtype=bool)[::-1]

    def joined(mask: Any) -> Any:
        for _ in range(STEPS):
            mask = (mask & further) & (further & mask)
        return mask

    assert masked(joined, jnp.ones((ROWS, LENGTH, LENGTH), bool)) < MOST_LINES


def test_bits_that_are_multiplied_with_themselves_are_looked_at_once() -> None:
    def squared(bits: Any) -> Any:
        bits = (bits > 0).astype(float)
        for _ in range(STEPS):
            bits = bits * bits
        return bits > 0

    assert masked(squared, jnp.ones((ROWS, LENGTH, LENGTH))) < MOST_LINES
