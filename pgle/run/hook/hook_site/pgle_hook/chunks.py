"""Compute a loss over a large vocabulary in chunks of tokens.

This file finds the product of activations with a table of words, and the operations after it that
treat each token alone. They end in values without words: a maximum, a sum of exponentials, the
logit of a label. Chunks are computed one after the other, and again for gradients, so that all
logits never exist at once.
"""

import functools
import importlib
import math

from pgle_hook.rewrite import (
    Replacement,
    constant_of,
    explicit_sharding,
    shape_of,
)

np = importlib.import_module("numpy")

LEAST_WORDS = 4096  # number of columns above which a product makes logits
LEAST_WORDS_SMALL = 2  # the same at a small size
#: chunks at a small size; it does not divide the tokens, so one chunk is padded
COUNT_SMALL = 5
ELEMENTWISE = frozenset(
    (
        "abs",
        "add",
        "add_any",
        "and",
        "ceil",
        "clamp",
        "convert_element_type",
        "copy",
        "div",
        "eq",
        "erf",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "ge",
        "gt",
        "integer_pow",
        "is_finite",
        "le",
        "log",
        "log1p",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "ne",
        "neg",
        "not",
        "or",
        "pow",
        "reduce_precision",
        "rem",
        "round",
        "rsqrt",
        "select_n",
        "sharding_constraint",
        "sign",
        "sqrt",
        "square",
        "stop_gradient",
        "sub",
        "tanh",
        "xor",
    )
)
REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "argmax", "argmin")


class _UnfitError(Exception):
    """A loss whose values do not treat each token alone."""


def find(jax, graph, count, checkpoint, least_words=LEAST_WORDS):
    """Find the losses of a graph that can be computed in chunks.

    Args:
        count: number of chunks.
        checkpoint: `jax.checkpoint`.

    Returns:
        An iterator. For each loss: the node of the product that makes its logits, a dict of
        replacements by the node that is replaced, and a text. The text says why there
        are no replacements, or else which tokens count.
    """
    losing = _make_softmax(graph)
    for number, product in enumerate(graph.nodes):
        why = None
        for logits in _logits_of(graph, product, least_words):
            try:
                loss = _Loss(jax, graph, logits, number)
                loss.check(count, checkpoint)
            except _UnfitError as error:
                if (product.outs[0], logits.words) in losing:
                    why = str(error) or "not all of it is of each token alone"
                continue
            yield product, loss.replacements(count, checkpoint), loss.note()
            break
        else:
            if why is not None:
                yield product, {}, why


class _Logits:
    """A number for each word of each token.

    Args:
        product: the node that multiplies features of tokens with a table of words.
        place: of the features among its operands, 0 or 1.
        turned: values that have the words on their first axis.
    """

    def __init__(self, product, place, turned=frozenset()):
        self.product = product
        self.features = product.ins[place]
        self.table = product.ins[1 - place]
        self.turned = turned
        shape = product.outs[0].shape
        self.words = shape[0] if place else shape[-1]
        self.sizes = shape[1:] if place else shape[:-1]


def _logits_of(graph, node, least_words):
    """Return what may be the logits that a node makes. The table is its right operand, or the left
    one, as by `jax.vmap` of `table @ x`.
    """
    if node.name != "dot_general":
        return
    (contracted, batch) = node.params["dimension_numbers"]
    if any(batch) or len(contracted[0]) != 1:
        return
    left, right = node.ins
    is_last = int(contracted[0][0]) == len(left.shape) - 1
    found = []
    if len(right.shape) == 2 and is_last:
        found.append(_Logits(node, 0))
    if len(left.shape) == 2:
        found.append(_Logits(node, 1, _turned(graph, node.outs[0])))
    for one in found:
        is_of_tokens = bool(one.sizes) and one.sizes[-1] > 1
        if one.words >= least_words and is_of_tokens:
            yield one


def _turned(graph, value):
    """The values that are computed of a value, element by element."""
    found = {value}
    left = [value]
    while left:
        for node in graph.takers_of(left.pop()):
            if node.name not in ELEMENTWISE or node.outs[0] in found:
                continue
            if found.issuperset(one for one in node.ins if one.shape):
                found.update(node.outs)
                left += node.outs
    return found


def _make_softmax(graph):
    """Return pairs (value, words): a softmax over so many words is computed from the value.

    The search goes back from each `exp` whose result is summed. It follows operands with `words`
    elements on their first or last axis. A hidden layer is not found, because no such sum follows.
    """
    found = set()
    summed = set()
    for node in reversed(graph.nodes):
        if node.name == "reduce_sum":
            summed.add(node.ins[0])
        for made in node.outs:
            is_power = node.name == "exp" and made in summed
            for words in _ends(made):
                if is_power or (made, words) in found:
                    found.update(
                        (one, words) for one in node.ins if words in _ends(one)
                    )
    return found


def _ends(value):
    """The sizes of its first and its last axis."""
    return {*value.shape[:1], *value.shape[-1:]}


class _Tokens:
    """How values hold the tokens of a loss: on their leading axes. The last of these is split into
    chunks. A value with all of them is *led* by them.
    """

    def __init__(self, sizes, are_joined=False, kept=None):
        self.sizes = sizes  # sizes of the axes
        self.are_joined = are_joined  # whether the axes are joined to one
        self.kept = kept or (0, sizes[-1])  # start and end of the computed tokens
        self.axis = 0 if are_joined else len(sizes) - 1
        self.apart = None  # the same tokens before they were joined
        self.uncut = None  # the same tokens before they were cut

    @property
    def shape(self):
        """The leading axes of a value with all tokens."""
        return (math.prod(self.sizes),) if self.are_joined else self.sizes

    def is_led(self, shape):
        """Whether a shape has a number for each token."""
        upto = self.axis
        return len(shape) > upto and shape[upto] == self.shape[upto]

    def of_chunk(self, length):
        """Tokens on the axis of those in a chunk of a length."""
        return math.prod(self.sizes[:-1]) * length if self.are_joined else length

    def with_length(self, shape, length):
        """A shape with the tokens of a chunk in place of all."""
        upto = self.axis
        return (*shape[:upto], self.of_chunk(length), *shape[upto + 1 :])

    def _apart(self, array, at=0):
        """An array with joined axes apart; they begin at an axis."""
        if not self.are_joined:
            return array
        last = -1 if at else self.sizes[-1]
        sizes = (*self.sizes[:-1], last)
        return array.reshape((*array.shape[:at], *sizes, *array.shape[at + 1 :]))

    def split(self, jax, array, count, length):
        """Chunks of tokens on a new first axis. If tokens are on the first axis, every `count`-th
        one is in a chunk: each device keeps its own. The last chunk is filled with copies of the
        last token, because gradients through zeros may be NaN.
        """
        jnp = jax.numpy
        axis = len(self.sizes) - 1
        array = self._apart(array)
        array = jax.lax.slice_in_dim(array, *self.kept, axis=axis)
        missing = count * length - array.shape[axis]
        if missing:
            # by a concatenation: `jnp.pad` cuts all axes, also those that are sharded
            last = jax.lax.slice_in_dim(array, -1, None, axis=axis)
            array = jnp.concatenate([array, *[last] * missing], axis)
        sizes = (count, length) if axis else (length, count)
        shape = (*array.shape[:axis], *sizes, *array.shape[axis + 1 :])
        array = jnp.moveaxis(array.reshape(shape), axis if axis else 1, 0)
        if self.are_joined:
            array = array.reshape((count, -1, *array.shape[len(self.sizes) + 1 :]))
        return array

    def joined(self, jax, array):
        """The chunks of a result as one again."""
        axis = len(self.sizes) - 1
        array = self._apart(array, at=1)
        array = jax.numpy.moveaxis(array, 0, axis if axis else 1)
        array = array.reshape((*array.shape[:axis], -1, *array.shape[axis + 2 :]))
        array = jax.lax.slice_in_dim(array, 0, self.sizes[-1], axis=axis)
        return array.reshape((*self.shape, *array.shape[axis + 1 :]))


class _Loss:
    """The operations after logits that treat each token alone.

    Args:
        number: of the node that makes the logits, in the graph.
    """

    def __init__(self, jax, graph, logits, number):
        self._jax = jax
        self._logits = logits
        self._product = logits.product
        self._first = _Tokens(logits.sizes)
        self._left = None  # the tokens that are left, if some are cut
        self._joins = {}  # by tokens: the same, joined
        self._tokens = {logits.product.outs[0]: self._first}  # by value
        self._nodes = self._region(graph, number)
        self._made = _results_of(self._nodes)
        self._count = self._counted()
        self._led = {}  # values from outside that are split: their tokens
        self._whole = []  # other values from outside
        self._bind = {}  # by node: what computes it for a chunk
        self._operands = {}  # the same: its operands, if they are others than it has
        self._sums = {}  # by node: further axes of tokens over which it sums
        for node in self._nodes:
            self._now = self._tokens_of(node)
            self._bind[node] = self._planned(node)
        self._outs = list(self._used_outside(graph))

    def note(self):
        """Say which tokens of its features the loss computes; empty: all."""
        if self._left is None:
            return ""
        start, stop = self._first.kept
        lacking = stop - self._first.sizes[-1]
        return "pass x[..., %s:%s, :]: the logits of other tokens are not used" % (
            start or "",
            lacking or "",
        )

    def _tokens_of(self, node):
        """Return how the results of an operation hold the tokens."""
        found = self._tokens.get(node.outs[0])
        self._must(found is not None)
        return found

    def _counted(self):
        """The number of computed tokens on the split axis, equal for all values."""
        kept = {self._tokens_of(node).kept for node in self._nodes}
        counts = {stop - start for start, stop in kept}
        if len(counts) > 1:
            raise _UnfitError("its logits are cut in several ways")
        return counts.pop()

    def _is_wide(self, value, tokens):
        """Whether a value has a number for each word of each token."""
        if self._is_turned(value):
            return True
        is_of_tokens = value.shape[: len(tokens.shape)] == tokens.shape
        least = math.prod(tokens.shape) * self._logits.words
        return is_of_tokens and math.prod(value.shape) >= least

    def _is_turned(self, value):
        """Whether a value has its words first, and its tokens after them."""
        return value in self._logits.turned

    def _follow(self, node):
        """Record how an operation's results hold the tokens, if it takes values made from
        logits.
        """
        found = [self._tokens[one] for one in node.ins if one in self._tokens]
        if not found:
            return False
        if any(map(self._is_wide_now, node.ins)):
            self._plan_of(node)  # it raises in a hidden layer, which ends the search
        tokens = found[0]
        if node.name in ("slice", "dynamic_slice"):
            tokens = self._cut(node, tokens)
        elif node.name == "reshape" and _joins(node, tokens):
            tokens = self._joined(tokens)
        elif any(one is not tokens for one in found):
            tokens = None
        if tokens is None:
            self._must(not any(map(self._is_wide_now, node.ins)))
        else:
            self._tokens.update(dict.fromkeys(node.outs, tokens))
        return True

    def _cut(self, node, tokens):
        """Return how logits cut along the tokens hold the remaining ones."""
        value = node.ins[0]
        if tokens.are_joined or not self._is_wide(value, tokens):
            return None
        starts, sizes = _taken_by(self._jax, node)
        left = (*value.shape[: tokens.axis], sizes[tokens.axis])
        expected = (*left, *value.shape[tokens.axis + 1 :])
        self._must(starts is not None and sizes == expected and tokens is self._first)
        start = starts[tokens.axis]
        kept = (start, start + sizes[tokens.axis])
        if tokens.kept != (0, tokens.sizes[-1]):  # cut before: the same again
            self._must(tokens.kept == kept)
            return self._left
        tokens.kept = kept
        self._left = _Tokens(left)
        self._left.uncut = tokens
        return self._left

    def _joined(self, tokens):
        """The same tokens on one axis."""
        if tokens not in self._joins:
            made = _Tokens(tokens.sizes, True)
            made.apart = tokens
            self._joins[tokens] = made
        return self._joins[tokens]

    def _region(self, graph, number):
        """The operations that take logits, in order, and what they need of that size."""
        after = {self._product.outs[0]}
        for place in range(number, len(graph.nodes)):
            node = graph.nodes[place]
            if self._follow(node):
                after.update(node.outs)
        wanted = set()
        found = {self._product}
        for node in reversed(graph.nodes):
            taken = after.intersection(node.ins)
            is_wanted = not wanted.isdisjoint(node.outs)
            takes_logits = is_wanted or any(map(self._is_wide_now, taken))
            if takes_logits and node is not self._product:
                tokens = self._tokens_of(node)
                wide = [value for value in node.ins if self._is_wide(value, tokens)]
                for value in wide:
                    self._tokens.setdefault(value, tokens)
                wanted.update(taken, wide)
                found.add(node)
        return [node for node in graph.nodes if node in found]

    def _is_wide_now(self, value):
        """Same as `_is_wide`, for a value made from logits."""
        tokens = self._tokens.get(value)
        return tokens is not None and self._is_wide(value, tokens)

    def _used_outside(self, graph):
        """The operations whose results are used outside."""
        inside = set(self._nodes)
        used = set(graph.outs)
        for node in graph.nodes:
            if node not in inside:
                used.update(node.ins)
        for node in self._nodes:
            if used.isdisjoint(node.outs):
                continue
            tokens = self._tokens_of(node)
            is_cut_later = tokens.kept != (0, tokens.sizes[-1])
            if is_cut_later or self._is_wide(node.outs[0], tokens):
                raise _UnfitError("its logits are used elsewhere, too")
            yield node

    def _planned(self, node):
        """Return what computes an operation for a chunk, from its operands and the chunk's
        length.
        """
        if node is self._product:
            self._take(self._logits.features, is_led=True)
            self._take(self._logits.table, is_led=False)
            return _unchanged(node)
        return self._plan_of(node)(node)

    def _plan_of(self, node):
        """The method that plans an operation which takes logits."""
        if node.name in ELEMENTWISE:
            return self._elementwise
        if node.name in REDUCTIONS:
            return self._reduction
        is_turned = any(map(self._is_turned, node.ins))
        if is_turned and node.name != "transpose":
            raise _UnfitError("%s takes its logits with their words first" % node.name)
        plan = getattr(self, "_of_" + node.name, None)
        if plan is None:
            raise _UnfitError("%s takes its logits" % node.name)
        return plan

    def _take(self, value, is_led):
        """Record that an operation takes a value, split or whole."""
        if value in self._made:
            self._must(is_led)
        elif is_led:
            self._must(value not in self._whole)
            self._must(self._led.setdefault(value, self._now) is self._now)
        else:
            self._must(value not in self._led)
            if value not in self._whole:
                self._whole.append(value)

    def _is_led(self, shape):
        return self._now.is_led(shape)

    def _must(self, is_so):
        if not is_so:
            raise _UnfitError

    def _elementwise(self, node):
        """Plan an operation on elements: each operand has all tokens, or the same for all."""
        tokens = self._now
        is_turned = self._is_turned(node.outs[0])
        self._must(len(node.outs) == 1)
        self._must(is_turned or self._is_led(node.outs[0].shape))
        for value in node.ins:
            is_led = self._is_turned(value) or self._is_led(value.shape)
            is_one = not value.shape or value.shape[tokens.axis] == 1
            self._must(is_led or is_one)
            self._take(value, is_led)
        return _unchanged(node)

    def _reduction(self, node):
        """Plan a sum or a maximum over words. `_chunked` completes a sum over tokens, too."""
        tokens = self._now
        axes = tuple(map(int, node.params["axes"]))
        if self._is_turned(node.ins[0]):
            self._must(axes == (0,))
            return _unchanged(node)
        self._must(self._is_led(node.ins[0].shape))
        self._take(node.ins[0], is_led=True)
        outer = tuple(axis for axis in axes if axis <= tokens.axis)
        if not outer:
            return _unchanged(node)
        # A sum over words and tokens; the sum over tokens comes later.
        self._must(node.name == "reduce_sum" and len(outer) < len(axes))
        self._sums[node] = outer
        inner = tuple(axis for axis in axes if axis > tokens.axis)
        add = self._jax.numpy.sum
        return lambda taken, length: [add(taken[0], axis=inner, dtype=taken[0].dtype)]

    def _of_broadcast_in_dim(self, node):
        """Plan a broadcast of a number for each token, or of one that is the same for all."""
        tokens = self._now
        value = node.ins[0]
        shape = tuple(node.params["shape"])
        places = list(map(int, node.params["broadcast_dimensions"]))
        self._must(self._is_led(shape) and len(node.ins) == 1)
        is_led = False
        if tokens.axis in places:
            place = places.index(tokens.axis)
            is_led = value.shape[place] == tokens.shape[-1]
            self._must(place == tokens.axis or not is_led)
        self._take(value, is_led)
        return _resized(node, "shape", tokens)

    def _of_transpose(self, node):
        """The words of logits, which become their last axis."""
        self._must(self._is_turned(node.ins[0]))
        order = list(map(int, node.params["permutation"]))
        self._must(order == [*range(1, len(order)), 0])
        return _unchanged(node)

    def _of_reshape(self, node):
        """Plan a reshape that keeps the axes of tokens, or joins them to one."""
        tokens = self._now
        sizes = tuple(node.params["new_sizes"])
        upto = tokens.axis + 1
        value = node.ins[0]
        if self._tokens.get(value) is tokens.apart:
            self._must(value in self._made)
        else:
            self._must(value.shape[:upto] == sizes[:upto])
        self._must(self._is_led(sizes))
        self._take(value, is_led=True)
        return _resized(node, "new_sizes", tokens)

    def _of_slice(self, node):
        """The tokens that are computed: there are no others in a chunk."""
        value = node.ins[0]
        is_cut = self._tokens.get(value) is self._now.uncut
        self._must(is_cut and value in self._made)
        self._operands[node] = [value]
        return lambda taken, length: taken

    _of_dynamic_slice = _of_slice

    def _of_squeeze(self, node):
        tokens = self._now
        self._must(min(map(int, node.params["dimensions"])) > tokens.axis)
        self._take(node.ins[0], is_led=True)
        return _unchanged(node)

    def _of_concatenate(self, node):
        """Plan a concatenation along the axes after the tokens."""
        tokens = self._now
        self._must(int(node.params["dimension"]) > tokens.axis)
        for value in node.ins:
            self._take(value, is_led=True)
        return _unchanged(node)

    def _of_iota(self, node):
        tokens = self._now
        shape = tuple(node.params["shape"])
        self._must(self._is_led(shape) and int(node.params["dimension"]) != tokens.axis)
        return _resized(node, "shape", tokens)

    def _of_gather(self, node):
        """The logit of a label: indices of the same tokens."""
        numbers = node.params["dimension_numbers"]
        # Older releases lack these axes.
        of_logits = getattr(numbers, "operand_batching_dims", ())
        of_labels = getattr(numbers, "start_indices_batching_dims", ())
        axes = tuple(range(self._now.axis + 1))
        if not axes == of_logits[: len(axes)] == of_labels[: len(axes)]:
            return self._picked(node)
        self._must(self._is_led(node.outs[0].shape))
        for value in node.ins:
            self._take(value, is_led=True)
        return _unchanged(node)

    def _picked(self, node):
        """Handle ``logits[arange(n), labels]``. The first column of its indices counts the
        tokens.
        """
        tokens = self._now
        numbers = node.params["dimension_numbers"]
        logits, places = node.ins
        both = places.made_by("concatenate")
        is_pair = tuple(numbers.start_index_map) == (0, 1) and both is not None
        self._must(is_pair and tokens.axis == 0 and len(both.ins) == 2)
        (every,) = tokens.shape
        self._must(places.shape == (every, 2) == (logits.shape[0], 2))
        self._must(node.outs[0].shape == (every,))
        counted, labels = both.ins
        count = constant_of(self._jax, counted)
        expected = np.arange(every)[:, None]
        self._must(count is not None and np.array_equal(count, expected))
        self._take(logits, is_led=True)
        self._take(labels, is_led=True)
        self._operands[node] = [logits, labels]
        jnp = self._jax.numpy

        def pick(taken, length):
            logits, labels = taken
            every = tokens.of_chunk(length)
            counted = jnp.arange(every, dtype=labels.dtype)[:, None]
            return node.bound([logits, jnp.concatenate([counted, labels], axis=1)])

        return pick

    def replacements(self, count, checkpoint):
        """Return replacements for the operations whose results are used outside, by node."""
        made = {}

        def make(read, node):
            if not made:
                made.update(self._chunked(read, count, checkpoint))
            return [made[node]]

        found = {}
        for node in self._outs:
            make_this = functools.partial(make, node=node)
            found[node] = Replacement(self._needs(), make_this)
        return found

    def _needs(self):
        """The values from outside that the loss takes."""
        return [*self._led, *self._whole]

    def check(self, count, checkpoint):
        """Raise if jax cannot compute the loss in chunks, for example if tokens are sharded
        explicitly.
        """
        jax = self._jax
        values = self._needs()
        shapes = [shape_of(jax, value.aval) for value in values]

        def compute(*arrays):
            known = dict(zip(values, arrays))
            made = self._chunked(known.get, count, checkpoint)
            return [made[node] for node in self._outs]

        try:
            found = jax.eval_shape(compute, *shapes)
        except Exception as error:
            why = "jax cannot compute it in chunks"
            if "Sharding" in type(error).__name__:
                why = "explicit shardings do not let its tokens be cut in chunks"
            raise _UnfitError(why) from error
        for one, node in zip(found, self._outs):
            aval = node.outs[0].aval
            self._must((one.shape, one.dtype) == (aval.shape, aval.dtype))
            placed = explicit_sharding(aval)
            if placed and one.sharding != placed["sharding"]:
                raise _UnfitError("in chunks its results have other shardings")

    def _chunked(self, read, count, checkpoint):
        """The results that others use, by node."""
        jax = self._jax
        whole = {value: read(value) for value in self._whole}
        length = -(-self._count // count)

        def of_chunk(parts):
            known = {**whole, **dict(zip(self._led, parts))}
            for node in self._nodes:
                operands = self._operands.get(node, node.ins)
                taken = [known[value] for value in operands]
                made = self._bind[node](taken, length)
                known.update(zip(node.outs, made))
            return [known[node.outs[0]] for node in self._outs]

        parts = []
        for value, tokens in self._led.items():
            parts.append(tokens.split(jax, read(value), count, length))
        found = jax.lax.map(checkpoint(of_chunk), parts)
        joined = {}
        for node, array in zip(self._outs, found):
            array = self._tokens_of(node).joined(jax, array)
            if node in self._sums:
                array = array.sum(axis=self._sums[node], dtype=array.dtype)
            joined[node] = array
        return joined


def _unchanged(node):
    """What computes an operation for a chunk as for all tokens."""
    return lambda taken, length: node.bound(taken)


def _resized(node, setting, tokens):
    """What computes an operation for a chunk, with the shape in a setting that it has for all
    tokens.
    """
    shape = tuple(node.params[setting])

    def bound(taken, length):
        return node.bound(taken, **{setting: tokens.with_length(shape, length)})

    return bound


def _joins(node, tokens):
    """Whether a reshape joins the axes of the tokens into one axis."""
    value = node.ins[0]
    count = len(tokens.sizes)
    if tokens.are_joined or count < 2 or value.shape[:count] != tokens.sizes:
        return False
    joined = (math.prod(tokens.sizes), *value.shape[count:])
    return tuple(node.params["new_sizes"]) == joined


def _taken_by(jax, node):
    """Return where a slice begins on each axis, and its sizes; None if unknown."""
    params = node.params
    if node.name == "slice":
        starts = params["start_indices"]
        steps = params["strides"] or (1,)
        pairs = zip(starts, params["limit_indices"])
        sizes = tuple(limit - start for start, limit in pairs)
        return (starts, sizes) if set(steps) == {1} else (None, sizes)
    sizes = tuple(params["slice_sizes"])
    given = [constant_of(jax, value) for value in node.ins[1:]]
    if any(one is None for one in given):
        return None, sizes
    most = [whole - size for whole, size in zip(node.ins[0].shape, sizes)]
    return [min(max(int(one), 0), top) for one, top in zip(given, most)], sizes


def _results_of(nodes):
    found = set()
    for node in nodes:
        found.update(node.outs)
    return found
