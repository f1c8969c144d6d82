"""A differentiated function that computes in bf16: its arguments and the arrays that it holds are
cast, and its results are cast back.

A function holds arrays in the cells of its closure, and a partial function in its arguments. Arrays
of modules and of objects stay as they are.
"""

import functools
import types

WIDE = "float32"
NARROW = "bfloat16"


def casting(jax, function):
    """The function with its values in bf16, and with results of the types that it returns now."""

    @functools.wraps(function)
    def cast(*args, **options):
        types = _types(jax, functools.partial(function, *args, **options))
        narrow = functools.partial(_narrowed, jax)
        made = _holding(function, narrow, {})(*narrow(args), **narrow(options))
        leaves, structure = jax.tree_util.tree_flatten(made)
        return structure.unflatten(map(_as_before, leaves, types))

    return cast


def _types(jax, function):
    """The types of a function's results, without computing them. None for a result that is no
    array, such as text in an auxiliary result.
    """
    found = []

    def look():
        leaves = jax.tree_util.tree_leaves(function())
        found[:] = [getattr(leaf, "dtype", None) for leaf in leaves]

    jax.eval_shape(look)
    return found


def _narrowed(jax, tree):
    """A tree whose arrays of f32 are cast. A tree that jax cannot flatten stays as it is, such as a
    dictionary whose keys have no order.
    """
    try:
        return jax.tree_util.tree_map(_narrow, tree)
    except (TypeError, ValueError):
        return tree


def _narrow(leaf):
    is_wide = hasattr(leaf, "astype") and str(getattr(leaf, "dtype", "")) == WIDE
    return leaf.astype(NARROW) if is_wide else leaf


def _as_before(value, dtype):
    """A result with the type that the function itself returns; as it is if that is None."""
    if dtype is None or not hasattr(value, "astype") or value.dtype == dtype:
        return value
    return value.astype(dtype)


def _holding(function, narrow, known):
    """The function with other arrays in its closure and in those of functions that it holds.

    Args:
        narrow: makes the other arrays.
        known: what became of a function, by its id; one may hold itself.
    """
    if isinstance(function, functools.partial):
        inner = _holding(function.func, narrow, known)
        return functools.partial(
            inner, *narrow(function.args), **narrow(function.keywords)
        )
    if not isinstance(function, types.FunctionType) or not function.__closure__:
        return function
    if id(function) in known:
        return known[id(function)]
    cells = tuple(types.CellType() for _ in function.__closure__)
    made = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        cells,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    known[id(function)] = made
    for cell, usual in zip(cells, function.__closure__):
        try:
            held = usual.cell_contents
        except ValueError:  # nothing is in it yet
            continue
        is_function = isinstance(held, (types.FunctionType, functools.partial))
        cell.cell_contents = (
            _holding(held, narrow, known) if is_function else narrow(held)
        )
    return made
