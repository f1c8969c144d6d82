"""Find attention written by hand, before it is differentiated: product, scale, mask, softmax,
product. The softmax's sum may also divide the second product's result.

Axes are named by what they count: ``q`` queries, ``g`` query heads of a key head, ``k`` keys, ``d``
and ``e`` features of both products, and numbers for what both products have in common (batch,
heads). The name of an axis is a tuple of these, because reshapes join and split axes: ``(1, "g")``
are all heads. An axis of one element counts nothing, and its name is empty. A value with the names
of its axes is a side. Any operation that is not known to be part of attention ends the search, and
nothing is replaced.
"""

import importlib
import math

from pgle_hook.jax_private import MAPPED, name_of
from pgle_hook.masks import (
    KEYS,
    QUERIES,
    Distances,
    Mask,
    Masking,
    names_of,
    parts_of,
)
from pgle_hook.rewrite import VARIED, constant_of, divided_sharding

np = importlib.import_module("numpy")

HALF = ("bfloat16", "float16")  # types that cuDNN's attention takes
USUAL = {*HALF, "float32", "float64"}  # types of scores and weights
RESHAPED = ("convert_element_type", "reshape", "transpose")
MOST_COMMON = 2  # most axes that both products share: batch and heads
OF_SCORES = ("add", "div", "mul", "select_n")  # a scale, a mask or a bias
#: most operations searched before a softmax for the product that makes its scores
MOST_SEARCHED = 32
WORDS = {
    "add": "a bias is added to its scores",
    "convert_element_type": "its scores are rounded to few digits",
    "concatenate": "something is joined to its scores, such as a sink",
    "div": "its scores are divided by more than a number",
    "mul": "its scores are multiplied by more than a positive number",
    "select_n": "what its mask writes is not below -10000",
    "sub": "a bias is subtracted from its scores",
    "tanh": "its scores have a soft cap",
}
"""Why attention is left alone if it has an operation between a product and a softmax."""

MASKED = -1e4
"""Scores at or below it have no weight: exp(−10⁴) is 0 in f32, for scores of any usual size."""


class Attention:
    """Attention found in a graph."""

    def __init__(self, node):
        self.node = node  # makes its results
        self.first = None  # the product that makes scores
        self.product = None  # the second one
        self.second = ()  # weights and values as the second one takes them, as sides
        self.multiplied = []  # values that the products take
        self.names = ()  # names of its results' axes
        self.sizes = {}  # size by what an axis counts
        self.sides = []  # queries, keys, values
        self.scale = 1.0
        # the type in which the fused call takes them; empty: their own
        self.rounded = ""
        self.masks = []  # see `Mask`
        self._distances = None

    def common(self):
        """What the axes shared by both products count."""
        return _in_common(self.sizes)

    def count(self, name):
        """The number of elements of a named axis."""
        return math.prod(self.sizes.get(each, 1) for each in name)

    def distances(self, jax):
        """What is known about values from the positions of queries and keys."""
        if self._distances is None:
            sizes = (self.count(QUERIES), self.count(KEYS))
            self._distances = Distances(jax, sizes, self.back)
        return self._distances

    def batch_and_heads(self):
        """What the axes of batch rows and heads count, in the order of the queries' axes."""
        _, names = self.sides[0]
        common = tuple(_in_common(parts_of(names)))
        return common[:1], common[1:]

    def masking(self, jax):
        """The masks in the form that a fused call takes."""
        rows, _ = self.batch_and_heads()
        return Masking(self.distances(jax), self.masks, self.back, rows)

    @property
    def sharding(self):
        """The sharding that the program's type has and the fused call's lacks; None if there is
        none. Within `jax.vmap`, nobody can write it.
        """
        is_mapped = MAPPED in name_of(self.product.eqn)
        return None if is_mapped else divided_sharding(self.node.outs[0].aval)

    def back(self, node, names):
        """The names of the axes of a node's operand, from those of its result; None if split."""
        return _back(self, node, names)


def _in_common(counted):
    """What both products have in common, of what axes count."""
    return [each for each in counted if isinstance(each, int)]


class LeftError(Exception):
    """Attention that cannot be replaced, with the reason."""


def find(jax, node, rounded=""):
    """Return the attention whose results this node makes; None if there is none.

    Args:
        rounded: the type to which f32 attention is rounded; empty: attention in f32 is not rounded.

    Raises:
        LeftError: the fused call cannot compute this attention.
    """
    product, path = node, []
    if node.name == "div":
        product, path = _unreshaped(node.ins[0])
    if product is None or product.name != "dot_general":
        return None
    left = None
    for place in (0, 1):
        try:
            found = _found(jax, node, product, path, place)
            if found is None:
                continue
            _choose_type(found, rounded)
            _check_rows(jax, found)
        except LeftError as error:
            left = error
        else:
            return found
    if left is not None:
        raise left
    return None


def _unreshaped(value):
    """Return the product behind casts and reshapes of a value, and the nodes from it to the
    value.
    """
    path = []
    while True:
        node = value.made_by(*RESHAPED)
        if node is None or not _keeps_digits(node):
            return value.made_by("dot_general"), path[::-1]
        path.append(node)
        value = node.ins[0]


def _found(jax, node, product, path, place):
    """Return the attention whose weights are an operand of its second product; None if there is
    none.

    Args:
        node: that makes the results: the second product, or what divides them by the sum.
        product: the second product.
        path: nodes from the second product to what is divided.
        place: of the weights among the operands, 0 or 1; the other operand are the values.
    """
    # Each step below adds the sizes, scale and masks that it sees.
    found = Attention(node)
    sides = _second(found, product, place)
    if sides is None:
        return None
    weights, values = found.second = sides
    found.names = _names_after(found, product, path, place, sides)
    if found.names is None:
        return None
    found.product = product
    total = None
    if node is not product:
        total = (node.ins[1], names_of(node.ins[1], found.names))
    scores = _softmax(jax, found, *_through(found, *weights), total)
    if scores is None:
        _check_weights(found, *_through(found, *weights))
        return None
    first = _scores(jax, found, scores)
    operands = None if first is None else _first(found, *first)
    if operands is None:
        return None
    found.first, _ = first
    for value, names in (*operands, values):
        found.multiplied.append(value.seen())
        found.sides.append(_narrow(found, value, names))
    return found


def _choose_type(found, rounded):
    """Set the type that the fused call takes.

    Raises:
        LeftError: cuDNN has no call for these types.
    """
    types = {str(value.dtype) for value, _ in found.sides}
    if len(types) == 1 and types <= set(HALF):
        return
    if not rounded or not types <= {*HALF, "float32"}:
        given = " and ".join(sorted(types))
        raise LeftError("cuDNN takes bf16 or f16, not %s" % given)
    found.rounded = rounded


def _check_rows(jax, found):
    """Raise if a query sees no key by its place, as the first one of ``j < i``: a softmax of equal
    scores is a mean of all values, and a kernel need not make that.
    """
    if found.masking(jax).hides_a_row():
        raise LeftError("its mask hides all keys from a query")


def _check_weights(found, value, names):
    """Raise `LeftError` if weights are a softmax's that something else has changed."""
    changed = {
        "convert_element_type": "rounded to few digits",
        "div": "scaled",
        "mul": "dropped or scaled",
        "select_n": "dropped",
        "slice": "cut",
    }
    first = value.made_by(*changed)
    left = [(value, names)]
    for _ in range(MOST_SEARCHED):
        if first is None or not left:
            return
        value, names = _through(found, *left.pop(0))
        node = value.made_by(*changed)
        if node is None:
            continue
        powers, _ = _through(found, node.ins[0], names_of(node.ins[0], names))
        if node.name == "div" and powers.made_by("exp"):
            why = "its weights are %s after the softmax" % changed[first.name]
            alone = "its weights are divided by more than their sum"
            raise LeftError(alone if node is first else why)
        left += [(one, names_of(one, names)) for one in node.ins]


def _names_after(found, product, path, place, sides):
    """Return the axis names after some nodes follow the second product; None if a node splits what
    an axis counts.

    Args:
        path: the nodes, in order.
        place: of the weights among the operands of the product.
        sides: weights and values.
    """
    (_, of_weights), (_, of_values) = sides
    names = _free_of(product, place, of_weights, of_values)
    for step in path:
        names = _forward(found, step, names)
        if names is None:
            return None
    return names


def _second(found, product, place):
    """Return weights and values, the operands of the second product, as sides; None if they are
    not.
    """
    weights, values = product.ins[place], product.ins[1 - place]
    batch = product.params["dimension_numbers"][1]
    common = [(number,) for number in range(len(batch[0]))]
    free = _free(product, place)
    long = [axis for axis in free if weights.shape[axis] > 1]
    features = [axis for axis in _free(product, 1 - place) if values.shape[axis] > 1]
    if len(long) > 2 or len(features) > 1:
        return None
    # With one mask for all heads, both axes could be queries; there are more of them than of heads.
    queries = max(long, key=lambda axis: (weights.shape[axis], axis), default=None)
    named = [("g",)] * len(free)
    if queries is not None:
        named[free.index(queries)] = ("q",)
    of_values = [("e",)] * len(_free(product, 1 - place))
    sides = (
        _side(found, product, place, [common, KEYS, named]),
        _side(found, product, 1 - place, [common, KEYS, of_values]),
    )
    if None in sides or len(found.common()) > MOST_COMMON:
        return None
    return sides


def _free(product, place):
    """Axes of a product's operand that its result has and the other operand lacks."""
    contracted, batch = (each[place] for each in product.params["dimension_numbers"])
    count = len(product.ins[place].shape)
    return [axis for axis in range(count) if axis not in (*contracted, *batch)]


def _side(found, product, place, given):
    """Return an operand of a product; None unless it has exactly one contracted axis.

    Args:
        given: names of its axes: of those that are in common, contracted and free.
    """
    common, contracted_name, free_names = given
    contracted, batch = (each[place] for each in product.params["dimension_numbers"])
    operand = product.ins[place]
    if len(contracted) != 1:
        return None
    names = dict(zip(_free(product, place), free_names))
    names.update(zip(batch, common))
    names[contracted[0]] = contracted_name
    ordered = [names[axis] for axis in range(len(operand.shape))]
    named = names_of(operand, ordered)
    for name, size in zip(named, operand.shape):
        if len(name) == 1:
            found.sizes[name[0]] = size
    return operand, named


def _free_of(product, place, weights, values):
    """The names of the axes of the second product's result."""
    sides = {place: weights, 1 - place: values}
    batch = product.params["dimension_numbers"][1][0]
    names = [sides[0][axis] for axis in batch]
    for at in (0, 1):
        names += [sides[at][axis] for axis in _free(product, at)]
    return tuple(names)


def _reshaped(found, names, shape):
    """The names of axes after a reshape; None if what an axis counts is split."""
    left = parts_of(names)
    made = []
    for size in shape:
        name = ()
        while left and found.count(name) < size:
            name += (left.pop(0),)
        if found.count(name) != size:
            return None
        made.append(name)
    return None if left else tuple(made)


def _forward(found, node, names):
    """The names of axes after a cast, transpose or reshape."""
    if node.name == "transpose":
        return tuple(names[source] for source in node.params["permutation"])
    if node.name == "reshape":
        return _reshaped(found, names, node.outs[0].shape)
    return names


def _back(found, node, names):
    """The names of the operand's axes, for a cast, transpose, reshape or broadcast."""
    operand = node.ins[0]
    if node.name == "transpose":
        before = dict(zip(node.params["permutation"], names))
        return tuple(before[axis] for axis in range(len(names)))
    if node.name == "reshape":
        return _reshaped(found, names, operand.shape)
    if node.name == "squeeze":
        before = list(names)
        for axis in sorted(map(int, node.params["dimensions"])):
            before.insert(axis, ())
        return tuple(before)
    if node.name == "broadcast_in_dim":
        kept = [names[int(axis)] for axis in node.params["broadcast_dimensions"]]
        return names_of(operand, kept)
    return names


def _through(found, value, names, *others):
    """Follow a value back through casts, transposes, reshapes, and operations with some other
    names.
    """
    while True:
        node = value.made_by(*RESHAPED, *VARIED, *others)
        before = None
        if node is not None and _keeps_digits(node):
            before = _back(found, node, names)
        if before is None:
            return value.seen(), names
        value, names = node.ins[0], before


def _keeps_digits(node):
    """Whether a cast, transpose or reshape rounds no more than a fused call may. If the program
    rounds to eight bits or integers, that must stay.
    """
    return {str(node.outs[0].dtype), str(node.ins[0].dtype)} <= USUAL


def _softmax(jax, found, value, names, total):
    """Return the operand of a softmax over the keys; None if the value is not such a softmax.

    Args:
        total: what the second product's result is divided by, as a side; None: the weights are
            divided.
    """
    shown = None
    if total is None:
        value, names, shown = _unzeroed(jax, found, value, names)
        parts = _quotient(jax, found, value, names)
        if parts is None:
            return _exponential_of_logarithm(jax, found, value, names)
        (value, names), total = parts
    power = value.made_by("exp")
    side = value, names
    if power is None or not _is_sum(jax, found, total, side, shown):
        return None
    _note_mask(found, shown)
    return _unshifted(found, power.ins[0], names)


def _quotient(jax, found, value, names):
    """Return the numerator and the denominator of weights, as sides; None if nothing divides
    them.
    """
    node = value.made_by("div", "mul")
    if node is None:
        return None
    for place in (0, 1):
        other = (node.ins[1 - place], names_of(node.ins[1 - place], names))
        if node.name == "mul":
            inverse, there = _through(found, *other, "broadcast_in_dim")
            below = inverse.made_by("div")
            if below is None or _number(jax, below.ins[0]) != 1:
                continue
            other = (below.ins[1], names_of(below.ins[1], there))
        return _through(found, node.ins[place], names), other
    return None


def _unshifted(found, value, names):
    """Return scores before a value that all keys share is subtracted, such as their maximum. It
    does not change a softmax.
    """
    value, names = _through(found, value, names)
    node = value.made_by("sub")
    if node is not None and _is_alike(found, node.ins[1], names):
        return node.ins[0], names
    return value, names


def _exponential_of_logarithm(jax, found, value, names):
    """Return the operand of a softmax written as ``exp(s - logsumexp(s))``; None if it is none."""
    power = value.made_by("exp")
    if power is None or KEYS not in names:
        return None
    value, names = _through(found, power.ins[0], names)
    value, names, shown = _unzeroed(jax, found, value, names, -math.inf)
    node = value.made_by("sub")
    if node is None:
        return None
    scores = _through(found, node.ins[0], names)
    total = (node.ins[1], names_of(node.ins[1], names))
    if not _is_logarithm_of_sum(jax, found, total, scores, shown):
        return None
    _note_mask(found, shown)
    return _unshifted(found, *scores)


def _is_logarithm_of_sum(jax, found, total, scores, shown):
    """Whether a side is ``log(sum(exp(s - m))) + m`` for scores s, with any m or without one."""
    value, names = _through(found, *total, "broadcast_in_dim")
    shift = None
    node = value.made_by("add")
    if node is not None:
        sides = [(one, names_of(one, names)) for one in node.ins]
        sides = [_through(found, *side, "broadcast_in_dim") for side in sides]
        sides.sort(key=lambda side: side[0].made_by("log") is None)
        (value, names), shift = sides
    node = value.made_by("log")
    if node is None:
        return False
    powers = _summed(jax, found, (node.ins[0], names), shown)
    power = None if powers is None else powers[0].made_by("exp")
    if power is None:
        return False
    value, names = _through(found, power.ins[0], powers[1])
    if shift is not None:
        node = value.made_by("sub")
        if node is None:
            return False
        less = _through(
            found, node.ins[1], names_of(node.ins[1], names), "broadcast_in_dim"
        )
        if less != shift:
            return False
        value, names = _through(found, node.ins[0], names)
    return (value, names) == scores


def _is_sum(jax, found, total, powers, shown):
    """Whether a side is another side's sum over the keys, perhaps repeated."""
    return KEYS in powers[1] and _summed(jax, found, total, shown) == powers


def _summed(jax, found, total, shown):
    """Return the side whose sum over the keys a side is, perhaps repeated; None if it is no sum.

    Args:
        shown: the mask of the keys that are summed; None: all are.
    """
    value, names = _through(found, *total, "broadcast_in_dim", "abs")
    node = value.made_by("reduce_sum")
    axes = () if node is None else tuple(map(int, node.params["axes"]))
    if len(axes) != 1:
        return None
    names = (*names[: axes[0]], KEYS, *names[axes[0] :])
    value, names = _through(found, node.ins[0], names)
    if shown is not None:
        value, names, same = _unzeroed(jax, found, value, names)
        if same is None or not same.is_like(shown):
            return None
    return value, names


def _unzeroed(jax, found, value, names, hidden=0.0):
    """Return a side without a mask that writes a number, and the mask; None without one.

    Args:
        hidden: the number.
    """
    node = value.made_by("select_n")
    if node is None or len(node.ins) != 3 or str(node.ins[0].dtype) != "bool":
        return value, names, None
    for place in (1, 2):
        if _number(jax, node.ins[place]) == hidden:
            shown = Mask(*_unspread(found, node.ins[0], names), place == 2)
            value, names = _through(found, node.ins[3 - place], names)
            return value, names, shown
    return value, names, None


def _note_mask(found, mask):
    """Record a mask once; None is no mask."""
    if mask is not None and not any(mask.is_like(one) for one in found.masks):
        found.masks.append(mask)


def _is_alike(found, value, names):
    """Whether a value is the same for all keys."""
    names = names_of(value, names)
    _, names = _through(found, value, names, "broadcast_in_dim", "stop_gradient")
    return all("k" not in name for name in names)


def _scores(jax, found, side):
    """Return the first product, from which scores are made by a scale and masks, and the names of
    its axes; None if other operations are involved.
    """
    start = side[0]
    while side is not None:
        value, names = _through(found, *side)
        node = value.made_by("dot_general", *OF_SCORES)
        if node is None:
            node = value.seen().node
            break
        if node.name == "dot_general":
            return node, names
        if node.name == "select_n":
            following = _selected(jax, found, node, names)
        elif node.name == "add":
            following = _added(jax, found, node, names)
        else:
            following = _scaled(jax, found, node)
        side = None if following is None else (following, names)
    _check_scores(start, node)
    return None


def _check_scores(start, stop):
    """Raise `LeftError` if scores come from a product over batches or heads, but through other
    operations too.

    Args:
        stop: the first operation that is neither a scale nor a mask; None without one.
    """
    left = [start]
    for _ in range(MOST_SEARCHED):
        node = left.pop(0).seen().node if left else None
        if node is None:
            continue
        if node.name == "dot_general":
            if stop is not None and any(node.params["dimension_numbers"][1]):
                known = WORDS.get(stop.name, "%s changes its scores" % stop.name)
                raise LeftError(known)
            continue
        left += node.ins


def _first(found, product, names):
    """Return queries and keys, the operands of the first product, as sides; None if they are not.

    Args:
        names: of the axes of its result.
    """
    count = len(product.params["dimension_numbers"][1][0])
    middle = count + len(_free(product, 0))
    free = (names[count:middle], names[middle:])
    common = names[:count]
    sides = [_side(found, product, at, [common, ("d",), free[at]]) for at in (0, 1)]
    if None in sides:
        return None
    queries, keys = sorted(sides, key=lambda side: KEYS in side[1])
    of_queries, of_keys = (set(parts_of(names)) for _, names in (queries, keys))
    common = {*found.common(), "d"}
    is_whole = of_keys == {*common, "k"} and common <= of_queries
    return (queries, keys) if is_whole else None


def _scaled(jax, found, node):
    """Scores before a positive number multiplies or divides them; None if it is another value."""
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
            value, names_there = _unspread(found, node.ins[0], names)
            _note_mask(found, Mask(value, names_there, place == 2))
            return node.ins[3 - place]
    return None


def _added(jax, found, node, names):
    """Scores plus a bias: zero where a mask holds, and a large negative number elsewhere."""
    for place in (0, 1):
        mask = _of_bias(jax, found, *_unspread(found, node.ins[place], names))
        if mask is not None:
            found.masks.append(mask)
            return node.ins[1 - place]
    return None


def _of_bias(jax, found, value, names):
    """Return the mask that a bias implements; None if it is not a mask."""
    known = found.distances(jax).of(value, names)
    if known is None:
        known = constant_of(jax, value)
    if known is not None:
        hidden = np.asarray(known, np.float64) * found.scale
        is_mask = bool(((hidden == 0) | (hidden <= MASKED)).all())
        return Mask(value, names, is_added=True) if is_mask else None
    value, names = _through(found, value, names, "broadcast_in_dim")
    node = value.made_by("select_n")
    if node is None or len(node.ins) != 3:
        return None
    numbers = [_number(jax, one) for one in node.ins[1:]]
    if None in numbers or 0 not in numbers:
        return None
    if min(numbers) * found.scale > MASKED or max(numbers) > 0:
        return None
    return Mask(node.ins[0], names, hides=numbers[1] != 0)


def _unspread(found, value, names):
    """Return a mask before it was repeated."""
    names = names_of(value, names)
    while True:
        node = value.made_by("broadcast_in_dim")
        if node is None or not node.ins[0].shape:
            return value, names
        names = _back(found, node, names)
        value = node.ins[0]


def _number(jax, value):
    """Return the number that all elements of a constant equal; None if there is none."""
    constant = constant_of(jax, value.before("broadcast_in_dim", *VARIED))
    is_one = constant is not None and getattr(constant, "size", 1) == 1
    return float(constant) if is_one else None


def _narrow(found, value, names):
    """Return an operand before it was widened to f32.

    Raises:
        LeftError: it was in a type with fewer digits before.
    """
    side = (value, names)
    while str(value.dtype) not in HALF:
        node = value.made_by(*RESHAPED)
        if node is not None and not _keeps_digits(node):
            few = {str(value.dtype), str(node.ins[0].dtype)} - USUAL
            raise LeftError("its products take values of %s" % few.pop())
        names = None if node is None else _back(found, node, names)
        if names is None:
            return side
        value = node.ins[0]
    return value, names
