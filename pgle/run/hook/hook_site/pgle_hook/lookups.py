"""Lookups of rows in a differentiated table, such as embeddings. Their gradient is a scatter, which
adds rows by index. The alternatives are a product with one-hot rows, and adding rows in the order
of their indices.
"""

import importlib
import re

from pgle_hook import jax_private
from pgle_hook.rewrite import VARIED, Replacement, constant_of

np = importlib.import_module("numpy")

ONE_HOT = "one_hot"
SORTED = "sorted"
#: fewest rows of a table; smaller tables hold positions, types or experts
LEAST_ROWS = 1024
LEAST_ROWS_SMALL = 2  # the same at a small size
MOST_ONE_HOT = 1 << 18
"""Most rows of a table. One-hot rows for 4,096 tokens and that many words take 2 GiB in bf16."""

_KEPT = (*VARIED, "convert_element_type", "copy", "sharding_constraint")
_CLIPPED = "CLIP"  # how an index is clipped under `jax.vmap`
_FILLED = "FILL_OR_DROP"
_MODES = ("PROMISE_IN_BOUNDS", _FILLED, _CLIPPED)

_MOVED = ("broadcast_in_dim", "concatenate", "reshape", "squeeze", "transpose")
"""Operations that keep indices unchanged. If they join several, the first are those of rows."""

_WRAPPED = "jnp.where(ids < 0, ids + len(table), ids)"
_ABSENT = "jnp.where(ids < 0, len(table), ids)"
_CLIPPED_TO = "jnp.clip(%s, 0, len(table) - 1)"
_AS_GIVEN = ", wrap_negative_indices=False"


def find(jax, node, how, least_rows=LEAST_ROWS):
    """Return the replacement of a lookup, with another gradient. None if the node is not a lookup
    of rows in a differentiated argument.

    Args:
        how: `ONE_HOT` or `SORTED`.
    """
    if node.name != "gather" or not _takes_rows(node):
        return None
    table, ids = node.ins
    rows = table.shape[0]
    if rows < least_rows or (how == ONE_HOT and rows > MOST_ONE_HOT):
        return None
    if not table.moves or not _is_argument(table):
        return None
    if constant_of(jax, ids) is not None:
        return None
    gradient = _of_one_hot if how == ONE_HOT else _of_sorted
    lookup = _lookup(jax, node, gradient)
    return Replacement(node.ins, lambda read: [lookup(read(table), read(ids))])


def _takes_rows(node):
    """Whether a node takes whole rows of a table of numbers by index."""
    table, ids = node.ins
    numbers = node.params["dimension_numbers"]
    if len(table.shape) != 2 or "float" not in str(table.dtype):
        return False
    starts = tuple(numbers.start_index_map)
    is_clipped = _CLIPPED in str(node.params["mode"])
    # With whole rows, a second index that is clipped is zero.
    is_plain = starts == (0,) or (is_clipped and starts == (0, 1))
    if not is_plain or ids.shape[-1:] != (len(starts),):
        return False
    collapsed = tuple(numbers.collapsed_slice_dims)
    row = {(0,): table.shape[1:], (): (1, *table.shape[1:])}.get(collapsed)
    takes_row = tuple(node.params["slice_sizes"]) == (1, table.shape[1])
    is_of_ids = row is not None and node.outs[0].shape == (*ids.shape[:-1], *row)
    has_mode = any(mode in str(node.params["mode"]) for mode in _MODES)
    return is_of_ids and takes_row and has_mode


def described(jax, node):
    """Return how the program writes a lookup (`call`), and which rows it takes (`options` of its
    call site).
    """
    mode = str(node.params["mode"])
    way = _way_of_negatives(jax, node)
    if way == "wrap":
        call = 'jnp.take(table, ids, axis=0, mode="wrap")'
        return {"call": call, "options": "ids % len(table)"}
    is_wrapped = way == "negative"
    if _CLIPPED in mode:
        call = 'jnp.take(table, ids, axis=0, mode="clip")'
        if is_wrapped:
            call = 'table.at[ids].get(mode="clip")'
        places = _WRAPPED if is_wrapped else "ids"
        return {"call": call, "options": _CLIPPED_TO % places}
    is_filled = _FILLED in mode
    ids = "ids"
    options = 'mode="promise_in_bounds"'
    if is_filled:
        options = 'mode="fill", fill_value=%s' % _fill_of(node)
    if not is_wrapped and jax_private.may_keep_negatives():
        options += _AS_GIVEN
    elif not is_wrapped:
        ids = _ABSENT if is_filled else "jnp.maximum(ids, 0)"
    call = "table.at[%s].get(%s)" % (ids, options)
    if is_wrapped and not is_filled:
        call = "table[ids]"
    return {"call": call, "options": _WRAPPED if is_wrapped else _ABSENT}


def _fill_of(node):
    """What a lookup returns for rows that do not exist, as code."""
    fill = node.params["fill_value"]
    number = repr(float("nan" if fill is None else fill))
    return re.sub("(inf|nan)", r"jnp.\1", number)


def _way_of_negatives(jax, node):
    """How a lookup treats negative indices: ``negative`` if they count from the end, ``wrap`` if
    all count modulo the rows, else empty. Unsigned indices give ``negative``, because none is below
    0.
    """
    table, ids = node.ins
    while True:
        ids = ids.seen()
        if str(ids.dtype).startswith("uint"):
            return "negative"
        if ids.node is None and ids.outside is not None:
            ids = ids.outside
            continue
        made = ids.made_by(*_KEPT, *_MOVED, "select_n")
        if made is None:
            return ""
        if made.name == "select_n":
            break
        ids = made.ins[0]
    added = made.ins[-1].made_by("add") or made.ins[1].made_by("add")
    if added is None:
        return ""
    numbers = [constant_of(jax, one) for one in added.ins]
    known = [np.asarray(one) for one in numbers if one is not None]
    if not any((one == table.shape[0]).all() for one in known):
        return ""
    return "wrap" if added.ins[0].made_by("rem") else "negative"


def _is_argument(value):
    """Whether a value is an argument of the differentiated function, perhaps converted to another
    type.
    """
    value = value.before(*_KEPT).seen()
    if value.outside is not None:
        return _is_argument(value.outside)
    is_given = value.node is None and value.constant is None
    return is_given and not value.is_carried


def _lookup(jax, node, gradient):
    """Look up the same rows, with another function for their gradient."""

    @jax.custom_vjp
    def lookup(table, ids):
        return node.bound([table, ids])[0]

    def forward(table, ids):
        # not the function `lookup` itself: functions with their own derivative have no forward one
        return node.bound([table, ids])[0], (table, ids)

    def backward(kept, given):
        table, ids = kept
        nothing = np.zeros(ids.shape, jax.dtypes.float0)
        places = ids[..., 0]
        # narrow integer types may not hold the number of rows
        places = places.astype(jax.numpy.result_type(places, np.int32))
        if _CLIPPED in str(node.params["mode"]):
            places = jax.numpy.clip(places, 0, table.shape[0] - 1)
        rows = given.reshape((*places.shape, table.shape[1]))
        return gradient(jax, places, rows, table), nothing

    lookup.defvjp(forward, backward)
    return lookup


def _of_one_hot(jax, ids, given, table):
    """Multiply one-hot rows with the given gradient. Gradients of rows out of bounds are dropped,
    because zero times NaN would reach every row.
    """
    is_there = ids == jax.numpy.clip(ids, 0, table.shape[0] - 1)
    given = jax.numpy.where(is_there[..., None], given, 0)
    hot = jax.nn.one_hot(ids, table.shape[0], dtype=given.dtype)
    return jax.numpy.einsum("...v,...d->vd", hot, given).astype(table.dtype)


def _of_sorted(jax, ids, given, table):
    """Add rows in the order of their indices; drop rows out of bounds."""
    ids = ids.reshape(-1)
    order = jax.numpy.argsort(ids)
    rows = given.reshape(-1, table.shape[1])[order].astype(table.dtype)
    add = jax.ops.segment_sum
    return add(rows, ids[order], table.shape[0], indices_are_sorted=True)
