"""What a fused call is given in place of a mask: causal, a window, lengths, or the mask itself."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("hook_here")

B, S, N, D = 2, 12, 3, 8
LONG = 1 << 15  # a mask of as many queries and keys takes a GiB
HIDDEN = -1e9
Hide = Callable[[Any, Any, Any], Any]
"""Scores with a mask, of scores, lengths of rows and segments of tokens."""

CAUSAL = {"is_causal": True}
LENGTHS = {"key_value_seq_lengths": None}
OWN = {"mask": None}


def places(size: int = S) -> tuple[Any, Any]:
    return jnp.arange(size)[:, None], jnp.arange(size)[None]


def causal() -> Any:
    query, key = places()
    return query >= key


def near() -> Any:
    query, key = places()
    return query - key < 4


def within(lengths: Any) -> Any:
    return (jnp.arange(S) < lengths[:, None])[:, None, None]


def alike(segments: Any) -> Any:
    return (segments[:, :, None] == segments[:, None])[:, None]


def shown(mask: Any, scores: Any) -> Any:
    return jnp.where(mask, scores, HIDDEN)


def biased(scores: Any, shows: Any) -> Any:
    return scores + jnp.where(shows, 0.0, HIDDEN)


CASES: dict[str, tuple[Hide, dict[str, Any]]] = {
    "places": (lambda s, *_: shown(causal(), s), CAUSAL),
    "places, hidden": (lambda s, *_: jnp.where(~causal(), HIDDEN, s), CAUSAL),
    "a constant of every row": (
        lambda s, *_: shown(jnp.asarray(np.tri(S) * np.ones((B, N, 1, 1))) > 0, s),
        CAUSAL,
    ),
    "tril of every row": (
        lambda s, *_: shown(jnp.broadcast_to(jnp.tril(jnp.ones((S, S))), s.shape), s),
        CAUSAL,
    ),
    "one less tril, added": (
        lambda s, *_: s + (1 - jnp.tril(jnp.ones((S, S)))) * HIDDEN,
        CAUSAL,
    ),
    "window": (
        lambda s, *_: shown(causal() & near(), s),
        CAUSAL | {"local_window_size": (3, 0)},
    ),
    "a window of all keys": (
        lambda s, *_: shown(causal() & (abs(places()[0] - places()[1]) < S), s),
        CAUSAL,
    ),
    "window on both sides": (
        lambda s, *_: shown(abs(places()[0] - places()[1]) < 4, s),
        OWN,
    ),
    "the future": (lambda s, *_: shown(causal().T, s), OWN),
    "one key ahead": (lambda s, *_: shown(places()[0] + 1 >= places()[1], s), OWN),
    "a prefix": (lambda s, *_: shown(causal() | (places()[1] < 4), s), OWN),
    "lengths": (
        lambda s, lengths, _: shown(within(lengths), s),
        LENGTHS,
    ),
    "up to lengths": (
        lambda s, lengths, _: jnp.where(
            (jnp.arange(S) > lengths[:, None])[:, None, None], HIDDEN, s
        ),
        LENGTHS,
    ),
    "causal and lengths, as factors": (
        lambda s, lengths, _: shown(jnp.tril(1.0 * within(lengths)) > 0, s),
        OWN,
    ),
    "causal and lengths": (
        lambda s, lengths, _: shown(causal(), shown(within(lengths), s)),
        CAUSAL | LENGTHS,
    ),
    # cuDNN returns zeros for a padded query, a softmax the mean of all values.
    "lengths of queries, too": (
        lambda s, lengths, _: shown(
            within(lengths) & within(lengths).swapaxes(2, 3), s
        ),
        OWN,
    ),
    # cuDNN takes a window with nothing else.
    "window and lengths": (
        lambda s, lengths, _: shown(causal() & near() & within(lengths), s),
        CAUSAL | OWN,
    ),
    "causal and segments": (
        lambda s, _, segments: shown(causal() & alike(segments), s),
        CAUSAL | OWN,
    ),
    "blocks of keys": (
        lambda s, *_: shown(causal() & (places()[0] // 4 == places()[1] // 4), s),
        CAUSAL | OWN,
    ),
    "a bias of the data in fewer bits": (
        lambda s, _, segments: (
            s + jnp.where(alike(segments), 0.0, HIDDEN).astype(jnp.bfloat16)
        ),
        OWN,
    ),
    "a bias of the data": (
        lambda s, _, segments: biased(s, causal() & (segments > 0)[:, None, None]),
        CAUSAL | OWN,
    ),
}


def attention(hide: Hide) -> Callable[..., Any]:
    def attend(q: Any, k: Any, v: Any, lengths: Any, segments: Any) -> Any:
        scores = jnp.einsum("bqnd,bknd->bnqk", q, k).astype(jnp.float32) / 8
        weights = jax.nn.softmax(hide(scores, lengths, segments)).astype(v.dtype)
        return jnp.einsum("bnqk,bknd->bqnd", weights, v)

    return attend


def fused(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[Any]]:
    """The function with fused attention, and what that is given once it is traced."""
    by_hand = importlib.import_module("pgle_hook.by_hand")
    fusing = importlib.import_module("pgle_hook.fusing")
    rewrite = importlib.import_module("pgle_hook.rewrite")
    given: list[dict[str, Any]] = []

    def attend(*operands: Any, scale: float, **options: Any) -> Any:
        arrays = dict.fromkeys({"mask", "key_value_seq_lengths"} & {*options})
        given.append(options | arrays)
        usual = jax.nn.dot_product_attention
        return usual(*operands, scale=scale, implementation="xla", **options)

    def find(graph: Any) -> dict[Any, Any]:
        found = ((node, by_hand.find(jax, node)) for node in graph.nodes)
        return {
            node: fusing.replacement(jax, one, attend)
            for node, one in found
            if one is not None
        }

    return rewrite.Rewriter(jax, find)(function), given


def operands() -> list[Any]:
    random = np.random.default_rng(0)
    shape = (B, S, N, D)
    taken = [jnp.asarray(random.normal(size=shape), jnp.bfloat16) for _ in range(3)]
    segments = jnp.asarray(np.arange(S) // np.array([[5], [7]]), jnp.int32)
    return [*taken, jnp.array([5, 9], jnp.int32), segments]


@pytest.mark.parametrize("name", CASES)
def test_a_call_is_given_what_a_mask_hides(name: str) -> None:
    hide, expected = CASES[name]
    other, given = fused(attention(hide))
    jax.eval_shape(other, *operands())
    assert given == [expected]


def test_what_is_given_hides_the_same() -> None:
    functions = [attention(hide) for hide, _ in CASES.values()]
    others = [fused(function)[0] for function in functions]

    def both(*args: Any) -> Any:
        return [
            (one(*args), other(*args))
            for one, other in zip(functions, others, strict=True)
        ]

    for name, (one, other) in zip(CASES, jax.jit(both)(*operands()), strict=True):
        apart = jnp.linalg.norm((one - other).astype(jnp.float32))
        size = jnp.linalg.norm(one.astype(jnp.float32))
        # each value is rounded to 8 bits in either program, at other places
        assert apart < 4 * 2**-8 * size, name


def test_a_mask_of_a_long_sequence_is_not_made_to_look_at_it() -> None:
    query, key = places(LONG)
    other, given = fused(attention(lambda s, *_: shown(query >= key, s)))
    half = jax.ShapeDtypeStruct((1, LONG, 1, D), jnp.bfloat16)
    numbers = jax.ShapeDtypeStruct((1,), jnp.int32)
    args = [half, half, half, numbers, numbers]
    jax.eval_shape(other, *args)
    assert given == [CAUSAL]


def test_a_causal_mask_from_outside_of_a_loop_is_seen() -> None:
    def layers(q: Any, k: Any, v: Any, lengths: Any, segments: Any) -> Any:
        mask = causal() & alike(segments)
        attend = attention(lambda s, *_: shown(mask, s))
        layer = lambda x, _: (attend(x, k, v, lengths, segments), None)
        return jax.lax.scan(layer, q, None, length=2)[0]

    other, given = fused(layers)
    jax.eval_shape(other, *operands())
    assert given == [CAUSAL | OWN]
