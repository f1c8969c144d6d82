"""Attention written by hand, found before it is differentiated: a product, a scale, a mask, a
softmax, a product.

Axes are named by what they count: ``q`` queries, ``k`` keys, ``d`` and ``e`` features of both
products, and numbers for what both products have in common (batch, heads). Whatever is not known to
be part of attention ends the search: nothing is replaced then.
"""

import importlib

from pgle_hook.rewrite import Replacement, constant_of

HALF = ("bfloat16", "float16")  # types that cuDNN's attention takes
USUAL = {*HALF, "float32", "float64"}  # types of scores and weights
MASKED = -1e4
"""Scores at or below it have no weight: exp(−10⁴) is 0 in f32, for scores of any usual size."""


class Attention:
    """Attention that a graph holds: its operands, each with the names of its axes."""

    def __init__(self, node, place, value):
        self.node = node  # the second product
        self.place = place  # of the weights among its operands
        self.query = None
        self.key = None
        self.value = value
        self.scale = 1.0
        self.masks = []  # arrays of truth, each with the names of its axes, and if true hides


def find(jax, node):
    """The attention whose second product is this node; None if it is none."""
    if node.name != "dot_general":
        return None
    for place in (0, 1):
        found = _found(jax, node, place)
        if found is not None:
            return found
    return None


def _found(jax, node, place):
    """The same if the weights are the operand at this place."""
    contracted, batch = _dimensions(node, place)
    weights, value = node.ins[place], node.ins[1 - place]
    if len(contracted[0]) != 1 or len(batch[0]) > 2:
        return None
    names = _named(weights, batch[0], contracted[0], "k", "q")
    value_names = _named(value, batch[1], contracted[1], "k", "e")
    if names is None or value_names is None:
        return None
    scores = _softmax(*_through(weights, names))
    if scores is None:
        return None
    found = Attention(node, place, (value, value_names))
    return found if _scores(jax, found, *scores) else None


def _dimensions(node, place):
    """Contracted axes and those of the batch, of the operand at a place and of the other one."""
    contracted, batch = node.params["dimension_numbers"]
    if place == 0:
        return contracted, batch
    return contracted[::-1], batch[::-1]


def _named(value, batch, contracted, name, free):
    """Names of the axes of an operand; None if there is not exactly one free axis."""
    if len(value.shape) != len(batch) + 2:
        return None
    names = [free] * len(value.shape)
    for number, axis in enumerate(batch):
        names[axis] = number
    names[contracted[0]] = name
    return tuple(names)


def _through(value, names):
    """Follow a value back through casts and transposes."""
    while True:
        node = value.made_by("convert_element_type", "transpose", "copy")
        if node is None or not _is_cast(node):
            return value.seen(), names
        if node.name == "transpose":
            before = list(names)
            for axis, source in enumerate(node.params["permutation"]):
                before[source] = names[axis]
            names = tuple(before)
        value = node.ins[0]


def _is_cast(node):
    """Whether a node only changes the precision of a usual type."""
    types = {str(one.dtype) for one in (node.ins[0], node.outs[0])}
    return types <= USUAL


def _softmax(value, names):
    """What a softmax over ``k`` is taken of, with the names of its axes; None if it is none."""
    axis = names.index("k")
    node = value.made_by("div")
    if node is not None:
        powers, names_of_powers = _through(node.ins[0], names)
        power = powers.made_by("exp")
        summed = _summed(node.ins[1], axis)
        if power is None or summed is None or names_of_powers != names:
            return None
        if _through(summed, names) != (powers, names):
            return None
        return _unshifted(power.ins[0], names)
    node = value.made_by("exp")
    if node is None:
        return None
    difference = node.ins[0].made_by("sub")
    if difference is None:
        return None
    shifted = difference.ins[0]
    logarithm = _inserted(difference.ins[1], axis)
    logged = None if logarithm is None else logarithm.made_by("log")
    if logged is None:
        return None
    powers = _reduced(logged.ins[0], axis)
    power = None if powers is None else powers.made_by("exp")
    if power is None or power.ins[0].seen() is not shifted.seen():
        return None
    return _unshifted(shifted, names)


def _unshifted(value, names):
    """Scores before something that is equal for all keys, such as their maximum, is subtracted."""
    value, names = _through(value, names)
    node = value.made_by("sub")
    if node is not None:
        axis = names.index("k")
        subtracted = node.ins[1].seen()
        is_one = len(subtracted.shape) > axis and subtracted.shape[axis] == 1
        if is_one or _inserted(subtracted, axis) is not None:
            return _through(node.ins[0], names)
    return value, names


def _summed(value, axis):
    """What is summed over an axis that is then put back; None if it is no sum."""
    reduced = _inserted(value, axis)
    return None if reduced is None else _reduced(reduced, axis)


def _reduced(value, axis):
    while True:
        node = value.made_by("convert_element_type", "reshape", "broadcast_in_dim")
        if node is None:
            break
        if node.name != "convert_element_type":
            value = _inserted(value, axis)
            if value is None:
                return None
            continue
        value = node.ins[0]
    node = value.made_by("reduce_sum")
    if node is None or tuple(map(int, node.params["axes"])) != (axis,):
        return None
    return node.ins[0]


def _inserted(value, axis):
    """The value of one dimension less that is repeated along an axis; None if it is none."""
    count = len(value.shape)
    others = tuple(each for each in range(count) if each != axis)
    while True:
        node = value.made_by(
            "broadcast_in_dim",
            "reshape",
            "convert_element_type",
            "stop_gradient",
            "log",
        )
        if node is None:
            return None
        operand = node.ins[0]
        if node.name == "broadcast_in_dim":
            dimensions = tuple(map(int, node.params["broadcast_dimensions"]))
            if dimensions == others:
                return operand.seen()
            if dimensions != tuple(range(count)):
                return None
        elif node.name == "reshape":
            kept = tuple(value.shape[each] for each in others)
            is_inserted = value.shape[axis] == 1 and operand.shape == kept
            return operand.seen() if is_inserted else None
        elif node.name == "log":
            return value if _inserted(operand, axis) is not None else None
        value = operand


def _scores(jax, found, value, names):
    """Fill in what scores are made of: the first product, a scale and masks; whether they are."""
    while True:
        value, names = _through(value, names)
        node = value.made_by("mul", "div", "select_n", "add", "dot_general")
        if node is None:
            return False
        if node.name == "dot_general":
            return _operands(found, node, names)
        if node.name in ("mul", "div"):
            following = _scaled(jax, found, node)
        elif node.name == "select_n":
            following = _selected(jax, found, node, names)
        else:
            following = _added(jax, found, node, names)
        if following is None:
            return False
        value = following


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
            found.masks.append((node.ins[0], names, place == 2))
            return node.ins[3 - place]
    return None


def _added(jax, found, node, names):
    """Scores plus zero where a mask holds, and plus a large negative number elsewhere."""
    for place in (0, 1):
        chosen = _plain(node.ins[place]).made_by("select_n")
        if chosen is None or len(chosen.ins) != 3:
            continue
        numbers = [_number(jax, one) for one in chosen.ins[1:]]
        if None in numbers or 0.0 not in numbers:
            continue
        if min(numbers) * found.scale > MASKED:
            continue
        spread = _spread(node.ins[place], chosen, names)
        if spread is not None:
            found.masks.append((chosen.ins[0], spread, numbers[1] < 0))
            return node.ins[1 - place]
    return None


def _plain(value):
    """A value before casts and repetition."""
    while True:
        node = value.made_by("convert_element_type", "broadcast_in_dim")
        if node is None or not node.ins[0].shape:
            return value.seen()
        value = node.ins[0]


def _spread(value, chosen, names):
    """Names of the axes of a choice that is repeated to a value with these names."""
    while True:
        node = value.made_by("convert_element_type", "broadcast_in_dim")
        if node is None or value.seen().node is chosen:
            return names
        if node.name == "broadcast_in_dim":
            dimensions = node.params["broadcast_dimensions"]
            names = tuple(names[int(axis)] for axis in dimensions)
        value = node.ins[0]


def _number(jax, value):
    """The number that all elements of a constant are; None if it is none."""
    while value.made_by("broadcast_in_dim") is not None:
        value = value.made_by("broadcast_in_dim").ins[0]
    constant = constant_of(jax, value)
    if constant is None or getattr(constant, "size", 1) != 1:
        return None
    try:
        return float(constant)
    except (TypeError, ValueError):
        return None


def _operands(found, node, names):
    """Take the operands of the first product; whether it multiplies queries and keys."""
    (left, right), (left_batch, right_batch) = node.params["dimension_numbers"]
    count = len(left_batch)
    if len(left) != 1 or sorted(map(str, names[:count])) != sorted(
        map(str, range(count))
    ):
        return False
    sides = []
    for place, contracted, batch in ((0, left, left_batch), (1, right, right_batch)):
        operand = node.ins[place]
        free = names[count + place]
        if len(operand.shape) != count + 2 or free not in ("q", "k"):
            return False
        axes = [free] * len(operand.shape)
        axes[contracted[0]] = "d"
        for number, axis in enumerate(batch):
            axes[axis] = names[number]
        sides.append(_narrow(operand, tuple(axes)))
    found.query, found.key = sorted(sides, key=lambda side: "q" not in side[1])
    found.value = _narrow(*found.value)
    types = {str(one[0].dtype) for one in (found.query, found.key, found.value)}
    common = [name for name in found.value[1] if isinstance(name, int)]
    is_alike = "q" not in found.key[1] and len(common) == count
    return len(types) == 1 and types <= set(HALF) and is_alike


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
    found.masks = [_unspread(*mask) for mask in found.masks]
    sides = (found.query, found.key, found.value)
    values = [one[0] for one in (*sides, *found.masks)]

    def make(read):
        common = [name for name in found.query[1] if isinstance(name, int)]
        batch, heads = (*common, None, None)[:2]
        lengths = ("q", "k", "k")
        features = ("d", "d", "e")
        taken = [
            _arranged(jax, read(side[0]), side[1], (batch, length, heads, feature))
            for side, length, feature in zip(sides, lengths, features)
        ]
        options = _masking(jax, found.masks, read, (batch, heads, "q", "k"))
        made = attend(*taken, scale=found.scale, **options)
        free = ("e", "q") if found.place else ("q", "e")
        names = (*range(len(common)), *free)
        result = _restored(jax, made, (batch, "q", heads, "e"), names)
        return [result.astype(found.node.outs[0].dtype)]

    return Replacement(values, make)


def _arranged(jax, array, names, order):
    """An array with its axes in an order; a name that it lacks gets an axis of one."""
    there = [name for name in order if name in names and name is not None]
    array = jax.numpy.transpose(array, [names.index(name) for name in there])
    missing = [at for at, name in enumerate(order) if name not in there]
    return jax.numpy.expand_dims(array, missing)


def _restored(jax, array, names, order):
    """The reverse: without the axes that have no name there."""
    extra = tuple(at for at, name in enumerate(names) if name is None)
    array = jax.numpy.squeeze(array, extra)
    left = [name for name in names if name is not None]
    return jax.numpy.transpose(array, [left.index(name) for name in order])


def _masking(jax, masks, read, order):
    """Masks, as arguments of jax's function."""
    if len(masks) == 1 and is_causal(jax, *masks[0]):
        return {"is_causal": True}
    shown = [_shown(jax, *mask, read, order) for mask in masks]
    if not shown:
        return {}
    mask = shown[0]
    for other in shown[1:]:
        mask = mask & other
    return {"mask": mask}


def _unspread(value, names, hides):
    """A mask before it is repeated."""
    while True:
        node = value.made_by("broadcast_in_dim")
        if node is None or not node.ins[0].shape:
            return value, names, hides
        names = tuple(names[int(axis)] for axis in node.params["broadcast_dimensions"])
        value = node.ins[0]


def _shown(jax, value, names, hides, read, order):
    """Where a mask shows keys, with its axes in an order."""
    array = read(value)
    if not value.shape:
        names = ()
    array = _arranged(jax, array, names, order)
    return ~array if hides else array


def is_causal(jax, value, names, hides):
    """Whether a mask shows each query the keys up to its own place, and no other."""
    np = importlib.import_module("numpy")
    constant = constant_of(jax, value)
    if constant is None or not {"q", "k"} <= set(names):
        return False
    array = np.asarray(constant) != hides
    others = tuple(at for at, name in enumerate(names) if name not in ("q", "k"))
    if any(array.shape[at] != 1 for at in others):
        return False
    array = array.squeeze(others)
    if names.index("k") < names.index("q"):
        array = array.T
    return bool(np.array_equal(array, np.tri(len(array), dtype=bool)))
