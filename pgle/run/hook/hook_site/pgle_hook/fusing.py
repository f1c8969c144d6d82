"""Make the fused call that replaces attention by hand, and bring arrays into its order of axes and
back. Axes have the names of `by_hand`.
"""

import math

from pgle_hook.masks import KEYS, parts_of
from pgle_hook.rewrite import Replacement, divided_as


def replacement(jax, found, attend):
    """Return the fused call that replaces the node of the attention's results.

    Args:
        attend: `jax.nn.dot_product_attention` with an implementation.
    """
    batch, heads = found.batch_and_heads()
    masking = found.masking(jax)

    def make(read):
        orders = (
            (batch, ("q",), (*heads, "g"), ("d",)),
            (batch, KEYS, heads, ("d",)),
            (batch, KEYS, heads, ("e",)),
        )
        taken = [
            _arranged(jax, found, read(value), names, order)
            for (value, names), order in zip(found.sides, orders)
        ]
        if found.rounded:
            taken = [each.astype(found.rounded) for each in taken]
        order = (batch, (*heads, "g"), ("q",), KEYS)
        options = _masking(jax, found, masking, read, order)
        alike, width = _alike(jax, taken)
        made = attend(*alike, scale=found.scale, **options)[..., :width]
        result = _result(jax, found, made, (*batch, "q", *heads, "g", "e"))
        result = result.astype(found.node.outs[0].dtype)
        return [divided_as(jax, result, found.sharding)]

    values = [value for value, _ in found.sides]
    return Replacement([*values, *masking.values], make)


def _alike(jax, taken):
    """Pad queries, keys and values with zeros to equal numbers of features, which jax's function
    requires. Return them, and the values' own number.
    """
    width = taken[2].shape[-1]
    most = max(each.shape[-1] for each in taken)
    padded = [
        jax.numpy.pad(each, [(0, 0)] * 3 + [(0, most - each.shape[-1])])
        for each in taken
    ]
    return padded, width


def _result(jax, found, made, order):
    """Return the fused call's result with the axes of the program."""
    there = [each for each in order if each in found.sizes]
    made = made.reshape([found.sizes[each] for each in there])
    order = [there.index(each) for each in parts_of(found.names)]
    made = jax.numpy.transpose(made, order)
    return made.reshape(found.node.outs[0].shape)


def _arranged(jax, found, array, names, order):
    """Return an array with named axes in a given order. An axis that the array lacks has one
    element. An axis that it has in part is repeated.

    Args:
        names: of the axes of the array; each is a tuple of what the axis counts.
        order: names of the axes that are wanted.
    """
    there = parts_of(names)
    # apart: an axis for each count, in the order that is wanted, of one element if it is lacking
    wanted = [each for each in parts_of(order) if each in found.sizes]
    kept = [there.index(each) for each in wanted if each in there]
    lacking = [at for at, each in enumerate(wanted) if each not in there]
    apart = array.reshape([found.sizes[each] for each in there])
    apart = jax.numpy.expand_dims(jax.numpy.transpose(apart, kept), lacking)
    # repeated: what is lacking of an axis that is there; then joined to the axes that are wanted
    repeated = []
    joined = []
    for name in order:
        sizes = [found.sizes[each] for each in name if each in found.sizes]
        if set(name).isdisjoint(there):
            sizes = [1] * len(sizes)
        repeated += sizes
        joined.append(math.prod(sizes))
    return jax.numpy.broadcast_to(apart, repeated).reshape(joined)


def _masking(jax, found, masking, read, order):
    """Return masks as arguments of jax's function. cuDNN wants them for each query and key."""
    lengths = [found.count(name) for name in order[2:]]
    options = {"is_causal": True} if masking.is_causal else {}
    if masking.window is not None:
        options["local_window_size"] = (masking.window, 0)
    for mask in masking.others:
        shown = mask.shown(read(mask.value))
        shown = _arranged(jax, found, shown, mask.names, order)
        shown = jax.numpy.broadcast_to(shown, (*shown.shape[:2], *lengths))
        options["mask"] = shown & options.get("mask", True)
    rows = (found.count(order[0]),)
    for value, names, added in masking.lengths:
        keys = jax.numpy.clip(read(value) + added, 0, lengths[1])
        keys = _arranged(jax, found, keys, names, order[:1])
        keys = jax.numpy.broadcast_to(keys, rows).astype("int32")
        least = jax.numpy.minimum(keys, options.get("key_value_seq_lengths", keys))
        options["key_value_seq_lengths"] = least
    return options
