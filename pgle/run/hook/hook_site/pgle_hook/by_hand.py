"""Attention written by hand, found before it is differentiated: a product, a scale, a mask, a
softmax, a product.

Axes are named by what they count: ``q`` queries, ``k`` keys, ``d`` and ``e`` features of both
products, and numbers for what both products have in common (batch, heads). A value with the names
of its axes is a side. Whatever is not known to be part of attention ends the search: nothing is
replaced then.
"""

import importlib

from pgle_hook.rewrite import Replacement, Value, constant_of

HALF = ("bfloat16", "float16")  # types that cuDNN's attention takes
USUAL = {*HALF, "float32", "float64"}  # types of scores and weights
CASTS = ("convert_element_type",)
MASKED = -1e4
"""Scores at or below it have no weight: exp(−10⁴) is 0 in f32, for scores of any usual size."""


class Attention:
    """Attention that a graph holds."""

    def __init__(self, node, place):
        self.node = node  # the second product
        self.place = place  # of the weights among its operands
        self.sides = ()  # queries, keys, values
        self.scale = 1.0
        self.masks = []  # sides of truth values, and whether true hides


def find(jax, node):
    """The attention whose second product is this node; None if it is none."""
    if node.name != "dot_general":
        return None
    found = (_found(jax, Attention(node, place)) for place in (0, 1))
    return next(filter(None, found), None)


def _found(jax, found):
    """The same if the weights are the operand at its place."""
    node = found.node
    count = len(node.params["dimension_numbers"][1][0])
    weights = _side(node, found.place, range(count), "k", "q")
    values = _side(node, 1 - found.place, range(count), "k", "e")
    if weights is None or values is None or count > 2:
        return None
    scores = _softmax(*_through(*weights))
    product = None if scores is None else _scores(jax, found, scores)
    if product is None:
        return None
    node, names = product
    sides = [_side(node, at, names, "d", names[count + at]) for at in (0, 1)]
    if None in sides or {names[count], names[count + 1]} != {"q", "k"}:
        return None
    queries, keys = sorted(sides, key=lambda side: "q" not in side[1])
    found.sides = [_narrow(*side) for side in (queries, keys, values)]
    types = {str(value.dtype) for value, _ in found.sides}
    return found if len(types) == 1 and types <= set(HALF) else None


def _side(node, place, batch_names, contracted_name, free_name):
    """An operand of a product; None if it has not one contracted and one free axis."""
    contracted, batch = (each[place] for each in node.params["dimension_numbers"])
    operand = node.ins[place]
    if len(contracted) != 1 or len(operand.shape) != len(batch) + 2:
        return None
    names = [free_name] * len(operand.shape)
    for axis, name in zip(batch, batch_names):
        names[axis] = name
    names[contracted[0]] = contracted_name
    return operand, tuple(names)


def _through(value, names):
    """Follow a value back through casts and transposes."""
    while True:
        node = value.made_by("convert_element_type", "transpose")
        if (
            node is None
            or not {str(one.dtype) for one in (value, node.ins[0])} <= USUAL
        ):
            return value.seen(), names
        if node.name == "transpose":
            before = list(names)
            for axis, source in enumerate(node.params["permutation"]):
                before[source] = names[axis]
            names = tuple(before)
        value = node.ins[0]


def _softmax(value, names):
    """What a softmax over ``k`` is taken of; None if it is none."""
    axis = names.index("k")
    node = value.made_by("div")
    summed = _inserted(node.ins[1], axis) if node is not None else None
    total = summed.made_by("reduce_sum") if summed is not None else None
    if total is None or tuple(map(int, total.params["axes"])) != (axis,):
        return None
    powers = _through(node.ins[0], names)
    power = powers[0].made_by("exp")
    if power is None or powers[1] != names or _through(total.ins[0], names) != powers:
        return None
    value, names = _through(power.ins[0], names)
    node = value.made_by("sub")
    if node is None:
        return value, names
    # What is equal for all keys, such as their maximum, changes no softmax.
    subtracted = node.ins[1]
    is_one = len(subtracted.shape) > axis and subtracted.shape[axis] == 1
    kept = _inserted(subtracted, axis, through=(*CASTS, "stop_gradient"))
    if names.index("k") == axis and (is_one or kept is not None):
        return node.ins[0], names
    return value, names


def _inserted(value, axis, through=CASTS):
    """The value that is repeated along a new axis, before casts; None if there is none."""
    count = len(value.shape)
    others = [each for each in range(count) if each != axis]
    is_inserted = False
    while True:
        node = value.made_by("broadcast_in_dim", "reshape", *through)
        if node is None:
            return value.seen() if is_inserted else None
        operand = node.ins[0]
        if node.name in ("broadcast_in_dim", "reshape") and not is_inserted:
            kept = [value.shape[each] for each in others]
            dimensions = node.params.get("broadcast_dimensions", others)
            is_inserted = len(operand.shape) == count - 1
            expected = others if is_inserted else list(range(count))
            if list(map(int, dimensions)) != expected:
                return None
            if is_inserted and list(operand.shape) != kept:
                return None
        elif node.name in ("broadcast_in_dim", "reshape"):
            return None
        value = operand


def _scores(jax, found, side):
    """The first product, which scores are made of with a scale and masks, and the names of its
    axes; None if they are made of anything else.
    """
    while side is not None:
        value, names = _through(*side)
        node = value.made_by("mul", "div", "select_n", "add", "dot_general")
        if node is None:
            return None
        if node.name == "dot_general":
            count = len(node.params["dimension_numbers"][1][0])
            is_alike = all(isinstance(name, int) for name in names[:count])
            return (node, names) if is_alike and len(names) == count + 2 else None
        if node.name == "select_n":
            following = _selected(jax, found, node, names)
        elif node.name == "add":
            following = _added(jax, found, node, names)
        else:
            following = _scaled(jax, found, node)
        side = None if following is None else (following, names)
    return None


def _scaled(jax, found, node):
    places = (0, 1) if node.name == "mul" else (1,)
    for place in places:
        factor = _number(jax, node.ins[place])
        if factor is not None and factor > 0:
            found.scale *= factor if node.name == "mul" else 1 / factor
            return node.ins[1 - place]
    return None


def _selected(jax, found, node, names):
    """Scores where a mask holds, and a large negative number elsewhere."""
    if len(node.ins) != 3 or str(node.ins[0].dtype) != "bool":
        return None
    for place in (1, 2):
        number = _number(jax, node.ins[place])
        if number is not None and number * found.scale <= MASKED:
            found.masks.append((*_unspread(node.ins[0], names), place == 2))
            return node.ins[3 - place]
    return None


def _added(jax, found, node, names):
    """Scores plus a constant: zero where a mask holds, and a large negative number elsewhere."""
    np = importlib.import_module("numpy")
    for place in (0, 1):
        value, names_there = _unspread(node.ins[place], names)
        constant = constant_of(jax, value)
        if constant is None:
            continue
        hidden = np.asarray(constant, np.float64) * found.scale
        if not ((hidden == 0) | (hidden <= MASKED)).all():
            return None
        mask = Value(value.aval, constant=hidden == 0)
        found.masks.append((mask, names_there, False))
        return node.ins[1 - place]
    return None


def _unspread(value, names):
    """A mask before it is repeated."""
    while True:
        node = value.made_by("broadcast_in_dim")
        if node is None or not node.ins[0].shape:
            return value, names if value.shape else ()
        names = tuple(names[int(axis)] for axis in node.params["broadcast_dimensions"])
        value = node.ins[0]


def _number(jax, value):
    """The number that all elements of a constant are; None if it is none."""
    while value.made_by("broadcast_in_dim") is not None:
        value = value.made_by("broadcast_in_dim").ins[0]
    constant = constant_of(jax, value)
    is_one = constant is not None and getattr(constant, "size", 1) == 1
    return float(constant) if is_one else None


def _narrow(value, names):
    """An operand before it was widened to f32."""
    node = value.made_by("convert_element_type")
    if node is not None and str(node.ins[0].dtype) in HALF:
        return node.ins[0], names
    return value, names


def replacement(jax, found, attend):
    """The fused call that computes attention in place of its second product.

    Args:
        attend: `jax.nn.dot_product_attention` with an implementation.
    """
    common = [name for name in found.sides[0][1] if isinstance(name, int)]
    batch, heads = (*common, None, None)[:2]

    def make(read):
        orders = (("q", "d"), ("k", "d"), ("k", "e"))
        taken = []
        for (value, names), (length, features) in zip(found.sides, orders):
            order = (batch, length, heads, features)
            taken.append(_arranged(jax, read(value), names, order))
        taken, width = _alike(jax, taken)
        order = (batch, heads, "q", "k")
        lengths = (taken[0].shape[1], taken[1].shape[1])
        options = _masking(jax, found.masks, read, order, lengths)
        made = attend(*taken, scale=found.scale, **options)[..., :width]
        left = [name for name in (batch, "q", heads, "e") if name is not None]
        made = made.reshape([made.shape[at] for at in _there(batch, heads)])
        free = ("e", "q") if found.place else ("q", "e")
        order = [left.index(name) for name in (*sorted(common), *free)]
        result = jax.numpy.transpose(made, order)
        return [result.astype(found.node.outs[0].dtype)]

    values = [one[0] for one in (*found.sides, *found.masks)]
    return Replacement(values, make)


def described(jax, found):
    """What the fused call takes besides its operands, as it is written."""
    masks = [_masked(jax, mask) for mask in found.masks]
    words = [*dict.fromkeys(masks), "scale=%g" % found.scale]
    keys, values = (_features(side) for side in found.sides[1:])
    if keys != values:
        wide = max(keys, values)
        words.append(
            "heads padded with zeros to %d, the result cut to %d" % (wide, values)
        )
    return ", ".join(words)


def _features(side):
    """How many features a side of a product has."""
    value, names = side
    return value.shape[next(at for at, name in enumerate(names) if name in ("d", "e"))]


def _alike(jax, taken):
    """Queries, keys and values with as many features, as jax's function wants them: zeros change
    no product. And how many the values have of their own.
    """
    width = taken[2].shape[-1]
    most = max(each.shape[-1] for each in taken)
    padded = [
        jax.numpy.pad(each, [(0, 0)] * 3 + [(0, most - each.shape[-1])])
        for each in taken
    ]
    return padded, width


def _masked(jax, mask):
    return "is_causal=True" if is_causal(jax, *mask) else "mask=…"


def _there(batch, heads):
    """Axes of the fused call's result that are those of the program."""
    names = (batch, "q", heads, "e")
    return [at for at, name in enumerate(names) if name is not None]


def _arranged(jax, array, names, order):
    """An array with its axes in an order; a name that it lacks gets an axis of one."""
    there = [name for name in order if name in names and name is not None]
    array = jax.numpy.transpose(array, [names.index(name) for name in there])
    missing = [at for at, name in enumerate(order) if name not in there]
    return jax.numpy.expand_dims(array, missing)


def _masking(jax, masks, read, order, lengths):
    """Masks, as arguments of jax's function. cuDNN wants them for each query and each key."""
    if len(masks) == 1 and is_causal(jax, *masks[0]):
        return {"is_causal": True}
    options = {}
    for value, names, hides in masks:
        shown = _arranged(jax, read(value) != hides, names, order)
        shown = jax.numpy.broadcast_to(shown, (*shown.shape[:2], *lengths))
        options["mask"] = shown & options.get("mask", True)
    return options


def is_causal(jax, value, names, hides):
    """Whether a mask shows each query the keys up to its own place, and no other."""
    np = importlib.import_module("numpy")
    constant = constant_of(jax, value)
    if constant is None or not {"q", "k"} <= set(names):
        return False
    array = np.asarray(constant) != hides
    sizes = [size for size, name in zip(array.shape, names) if name in ("q", "k")]
    if array.size != sizes[0] * sizes[1]:
        return False
    array = array.reshape(sizes)
    if names.index("k") < names.index("q"):
        array = array.T
    return bool(np.array_equal(array, np.tri(len(array), dtype=bool)))
