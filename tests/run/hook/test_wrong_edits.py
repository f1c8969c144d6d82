"""Edits of a bf16 program whose values are compared: wrong ones are refused, right ones are not."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pgle.run.capture.captured import ComparedValues

pytestmark = pytest.mark.usefixtures("hook_here", "own_gradients")

BATCH, TOKENS, WIDTH, WORDS = 32, 512, 64, 1024
HEADS, KEY_HEADS, WINDOW = 4, 2, 20
Edit = Callable[..., Any]


def compared(before: Edit, after: Edit, *shapes: tuple[Any, Any]) -> ComparedValues:
    """What an edit of a loss does to the values of its step."""
    now = [after]

    def step(*args: Any) -> Any:
        return jax.value_and_grad(lambda w: now[0](w, *args[1:]))(args[0])

    values = importlib.import_module("pgle_hook.values")
    found: list[dict[str, Any]] = []
    use = lambda is_on: now.__setitem__(0, after if is_on else before)
    made = values.Values(jax, use, found.append)
    made.see_gradients()
    made.compare(step, [jax.ShapeDtypeStruct(*shape) for shape in shapes], {})
    return ComparedValues(**found[0])


def shown(length: int, ahead: int = 0, window: int = WINDOW) -> Any:
    """Which keys each query sees: a window that ends at its own place, or some places ahead."""
    places = jnp.arange(length)
    apart = places[:, None] - places
    return (apart >= -ahead) & (apart < window)


def repeated(array: Any) -> Any:
    """Key heads, each repeated for the query heads that share it."""
    return jnp.repeat(array, HEADS // KEY_HEADS, axis=2)


def by_hand(
    w: Any,
    x: Any,
    valid: Any,
    scale: float = 0.25,
    ahead: int = 0,
    window: int = WINDOW,
    repeat: Edit = repeated,
    is_masked: bool = True,
) -> Any:
    """The loss of attention, of which each argument may be wrong."""
    parts = (x @ w).reshape(*x.shape[:2], HEADS + 2 * KEY_HEADS, -1)
    q, k, v = jnp.split(parts, (HEADS, HEADS + KEY_HEADS), 2)
    scores = jnp.einsum("bqnh,bknh->bnqk", q, repeat(k)).astype(jnp.float32)
    mask = shown(x.shape[1], ahead, window)
    if is_masked:
        mask = mask & valid[:, None, None, :]
    chances = jax.nn.softmax(jnp.where(mask, scale * scores, -1e9)).astype(x.dtype)
    made = jnp.einsum("bnqk,bknh->bqnh", chances, repeat(v))
    return jnp.square(made.astype(jnp.float32)).mean()


def fused(w: Any, x: Any, valid: Any) -> Any:
    """The same by jax's own function."""
    parts = (x @ w).reshape(*x.shape[:2], HEADS + 2 * KEY_HEADS, -1)
    q, k, v = jnp.split(parts, (HEADS, HEADS + KEY_HEADS), 2)
    mask = valid[:, None, None, :] & shown(x.shape[1])
    made = jax.nn.dot_product_attention(q, k, v, mask=mask, scale=0.25)
    return jnp.square(made.astype(jnp.float32)).mean()


OF_ATTENTION = (
    ((WIDTH, (HEADS + 2 * KEY_HEADS) * 16), jnp.bfloat16),
    ((BATCH, TOKENS, WIDTH), jnp.bfloat16),
    ((BATCH, TOKENS), jnp.bool_),
)


def test_the_fused_call_is_accepted() -> None:
    found = compared(by_hand, fused, *OF_ATTENTION)
    assert (found.why, found.differs, found.seen) == ("", False, 2)
    assert "512 → 32" in found.sizes  # more places than the window has


def tiled(array: Any) -> Any:
    return jnp.tile(array, (1, 1, HEADS // KEY_HEADS, 1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"is_masked": False},
        {"scale": 1.0},
        {"ahead": 1},
        {"window": WINDOW - 1},
        {"window": WINDOW + 1},
        {"repeat": tiled},
    ],
    ids=["mask", "scale", "causal", "shorter", "longer", "heads"],
)
def test_another_attention_is_refused(wrong: dict[str, Any]) -> None:
    found = compared(by_hand, partial(by_hand, **wrong), *OF_ATTENTION)
    assert (found.why, found.differs) == ("", True)


def in_blocks(w: Any, x: Any, size: int = WINDOW) -> Any:
    """The loss of attention within blocks of tokens."""
    h = x @ w
    blocks = jnp.arange(x.shape[1]) // size
    scores = jnp.einsum("bqh,bkh->bqk", h, h)
    chances = jax.nn.softmax(jnp.where(blocks[:, None] == blocks, scores, -1e9))
    return jnp.square(jnp.einsum("bqk,bkh->bqh", chances, h)).mean()


def test_attention_in_larger_blocks_is_refused() -> None:
    args = [((WIDTH, WIDTH), jnp.float32), ((2, TOKENS, WIDTH), jnp.float32)]
    found = compared(in_blocks, partial(in_blocks, size=TOKENS), *args)
    assert (found.why, found.differs) == ("", True)


def losses(x: Any, table: Any, labels: Any) -> Any:
    """Of all tokens."""
    logits = (x @ table).astype(jnp.float32)
    chances = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(chances, labels[..., None], -1)[..., 0]


def at_once(table: Any, x: Any, labels: Any) -> Any:
    return losses(x, table, labels).mean()


def in_chunks(
    table: Any, x: Any, labels: Any, first: int = 0, added: int = 0, count: int = 4
) -> Any:
    """The same in chunks of tokens. It may skip the first chunks, or add the last token again."""
    split = lambda array: jnp.moveaxis(
        array.reshape(len(x), count, -1, *array.shape[2:]), 1, 0
    )
    parts = (split(x)[first:], split(labels)[first:])
    found = jax.lax.map(lambda part: losses(part[0], table, part[1]), parts)
    more = found[-1, :, -1:].sum() * added
    return (found.sum() + more) / (found.size + added * len(x))


OF_LOSS = (
    ((WIDTH, WORDS), jnp.bfloat16),
    ((BATCH, TOKENS, WIDTH), jnp.bfloat16),
    ((BATCH, TOKENS), jnp.int32),
)


def test_a_loss_in_chunks_is_accepted() -> None:
    found = compared(at_once, in_chunks, *OF_LOSS)
    assert (found.why, found.differs, found.seen) == ("", False, 2)


@pytest.mark.parametrize("wrong", [{"first": 1}, {"added": 1}])
def test_a_loss_of_other_tokens_is_refused(wrong: dict[str, int]) -> None:
    found = compared(at_once, partial(in_chunks, **wrong), *OF_LOSS)
    assert (found.why, found.differs) == ("", True)
