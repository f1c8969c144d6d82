"""Code that a user pastes for larger edits, and the sentence that says where it goes.

A piece of code stands on lines of its own, without words in between, so that it can be pasted as it
is. `HOW` has the words.
"""

from __future__ import annotations

CHUNKS = 8
"""Number of chunks of tokens. Only one chunk's logits exist at a time: 1,024 of 8,192 tokens."""

IN_BF16 = """\
def cast(tree):
    is_wide = lambda a: getattr(a, "dtype", None) == jnp.float32
    return jax.tree.map(lambda a: a.astype(jnp.bfloat16) if is_wide(a) else a, tree)"""
"""Casts what a loss takes. Gradients and the optimizer stay in f32."""

CAST_HOW = (
    "Write this above the loss. First in the loss write params = cast(params), and the same for "
    "every other array that it uses. Return loss.astype(jnp.float32)"
)

LOOKUPS = {
    "one_hot": """\
    is_row = (ids == jnp.clip(ids, 0, len(table) - 1))[..., None]
    one_hot = jax.nn.one_hot(ids, len(table), dtype=g.dtype)
    return jnp.einsum("...v,...d->vd", one_hot, jnp.where(is_row, g, 0)), None""",
    "sorted": """\
    ids = ids.ravel()
    rows = g.reshape(-1, g.shape[-1])[jnp.argsort(ids)]
    options = {"num_segments": len(table), "indices_are_sorted": True}
    return jax.ops.segment_sum(rows, jnp.sort(ids), **options), None""",
}
"""Code for a lookup's gradient, with the table, the rows' indices and `g`."""

LOOKED_UP = "table[ids]"
"""The usual lookup. Negative indices count from the end."""

_LOOKUP = """\
@jax.custom_vjp
def lookup(table, ids):
    return {call}
def lookup_forward(table, ids):
    found = {call}
    ids = jnp.int32(ids)
    return found, (table, {places})
def lookup_backward(kept, g):
    table, ids = kept
{gradient}
lookup.defvjp(lookup_forward, lookup_backward)"""


def lookup_edit(
    how: str,
    call: str = LOOKED_UP,
    places: str = "jnp.where(ids < 0, ids + len(table), ids)",
) -> str:
    """Return the code that replaces a lookup: a function `lookup(table, ids)`.

    Args:
        how: a key of `LOOKUPS`.
        call: the lookup as the program has it, with its mode.
        places: code for the rows that it takes, from int32 ids. Rows out of bounds get no gradient.
    """
    return _LOOKUP.format(call=call, places=places, gradient=LOOKUPS[how])


def lookup_how(call: str = LOOKED_UP) -> str:
    """Return the sentence that goes with `lookup_edit`."""
    return (
        "Write this above the function that looks up, and there lookup(table, ids) in place of "
        f"{call}"
    )


IN_CHUNKS = f"""\
def losses_in_chunks(losses_of, x, labels):
    axis = x.ndim - 2
    at = max(axis, 1)
    sizes = ({CHUNKS}, -1) if axis else (-1, {CHUNKS})
    def split(a):
        last = jax.lax.slice_in_dim(a, -1, None, axis=axis)
        whole = jnp.concatenate([a, *[last] * (-a.shape[axis] % {CHUNKS})], axis)
        cut = whole.reshape(*a.shape[:axis], *sizes, *a.shape[axis + 1 :])
        return jnp.moveaxis(cut, at, 0)
    of_part = lambda part: losses_of(*part).reshape(part[0].shape[:-1])
    losses = jax.lax.map(jax.checkpoint(of_part), (split(x), split(labels)))
    losses = jnp.moveaxis(losses, 0, at).reshape(*x.shape[:axis], -1)
    return losses[..., : x.shape[axis]]"""
"""Code that replaces `losses_of(x, labels)`, the losses of all tokens, with the axes of x without
its features. It cuts the last axis of tokens; labels may have a number for each word. If there is
one axis of tokens, each chunk takes every eighth, so that devices keep their own. A loss may join
the axes of tokens: its losses are put back in their order.
"""

CHUNKS_HOW = (
    "Write this above the loss. In the loss write a function losses_of(x, labels), with the "
    "product of x with the table of words and the loss of each token, and take the mean of "
    "losses_in_chunks(losses_of, x, labels)"
)

ATTENTION_HOW = (
    "Write this in place of the product with the values, "
    "and delete the scores and the softmax"
)

OF_MESH = "mesh is the mesh of the step's arguments"


def in_several_places(edits: dict[str, list[str]]) -> str:
    """Return the code of several edits, each below a comment with its places; one alone as it is.

    Args:
        edits: places by the edit that each needs.
    """
    if len(edits) == 1:
        return next(iter(edits))
    return "\n".join(f"# {', '.join(at)}\n{edit}" for edit, at in edits.items())
