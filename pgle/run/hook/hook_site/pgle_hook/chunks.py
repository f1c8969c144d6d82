"""Compute a loss over a large vocabulary in chunks of tokens.

This file finds the product of activations with a table of words, and the operations after it that
treat each token alone. They end in values without words: a maximum, a sum of exponentials, the
logit of a label. Chunks are computed one after the other, and again for gradients, so that all
logits never exist at once.
"""

import importlib
import math

from pgle_hook.rewrite import (
    Replacement,
    constant_of,
    explicit_sharding,
    shape_of,
)

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
        replacements by the id of the node that is replaced, and a text. The text says why there
        are no replacements, or else which tokens count.
    """
    for product in graph.nodes:
        why = None
        for logits in _logits_of(graph, product, least_words):
            try:
                loss = _Loss(jax, graph, logits)
                loss.check(count, checkpoint)
            except _UnfitError as error:
                if _has_softmax(graph, logits):
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
        turned: ids of values that have the words on their first axis.
    """

    def __init__(self, product, place, turned=frozenset()):
        self.product = product
        self.features = product.ins[place]
        self.table = product.ins[1 - place]
        self.turned = turned
        shape = product.outs[0].shape
        self.sizes, self.words = shape[:-1], shape[-1]
        if place:
            self.words, *self.sizes = shape
        self.sizes = tuple(self.sizes)


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
    """Ids of the values that are computed of a value, element by element."""
    found = {id(value)}
    for node in graph.nodes:
        if node.name not in ELEMENTWISE or found.isdisjoint(map(id, node.ins)):
            continue
        if all(not one.shape or id(one) in found for one in node.ins):
            found.update(map(id, node.outs))
    return found


def _has_softmax(graph, logits):
    """Whether powers of logits are summed, which no hidden layer does."""
    words = (logits.words,)
    after = {id(logits.product.outs[0])}
    powers = set()
    for node in graph.nodes:
        if after.isdisjoint(map(id, node.ins)):
            continue
        if node.name == "reduce_sum" and id(node.ins[0]) in powers:
            return True
        wide = [
            value for value in node.outs if words in (value.shape[-1:], value.shape[:1])
        ]
        after.update(map(id, wide))
        if node.name == "exp":
            powers.update(map(id, wide))
    return False


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
    """The operations after logits that treat each token alone."""

    def __init__(self, jax, graph, logits):
        self._jax = jax
        self._logits = logits
        self._product = logits.product
        self._first = _Tokens(logits.sizes)
        self._left = None  # the tokens that are left, if some are cut
        self._joins = {}  # by the id of tokens: the same, joined
        # by the id of a value
        self._tokens = {id(logits.product.outs[0]): self._first}
        self._nodes = self._region(graph)
        self._made = _ids_of_results(self._nodes)
        self._count = self._counted()
        self._led = []  # values from outside that are split, with their tokens
        self._whole = []  # others
        self._bind = {}  # by the id of a node: what computes it for a chunk
        self._operands = {}  # the same: its operands, if they are others than it has
        # by the id of a node: further axes of tokens over which it sums
        self._sums = {}
        for node in self._nodes:
            self._now = self._tokens_of(node)
            self._bind[id(node)] = self._planned(node)
        self._outs = list(self._used_outside(graph))

    def note(self):
        """Say which tokens of its features the loss computes; empty: all."""
        if self._left is None:
            return ""
        start, stop = self._first.kept
        lacking = stop - self._first.sizes[-1]
        return "pass x[..., %s:%s, :]: the logits of others are not used" % (
            start or "",
            lacking or "",
        )

    def _tokens_of(self, node):
        """Return how the results of an operation hold the tokens."""
        found = self._tokens.get(id(node.outs[0]))
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
        return id(value) in self._logits.turned

    def _follow(self, node):
        """Record how an operation's results hold the tokens, if it takes values made from
        logits.
        """
        found = [self._tokens[id(one)] for one in node.ins if id(one) in self._tokens]
        if not found:
            return False
        tokens = found[0]
        if node.name in ("slice", "dynamic_slice"):
            tokens = self._cut(node, tokens)
        elif node.name == "reshape" and _joins(node, tokens):
            tokens = self._joined(tokens)
        elif any(one is not tokens for one in found):
            tokens = None
        for value in node.ins:
            if tokens is None and id(value) in self._tokens:
                self._must(not self._is_wide(value, self._tokens[id(value)]))
        if tokens is not None:
            self._tokens.update((id(value), tokens) for value in node.outs)
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
        if id(tokens) not in self._joins:
            made = _Tokens(tokens.sizes, True)
            made.apart = tokens
            self._joins[id(tokens)] = made
        return self._joins[id(tokens)]

    def _region(self, graph):
        """The operations that take logits, in order, and what they need of that size."""
        after = {id(self._product.outs[0])}
        for node in graph.nodes:
            if self._follow(node):
                after.update(map(id, node.outs))
        wanted = set()
        found = {id(self._product)}
        for node in reversed(graph.nodes):
            taken = [value for value in node.ins if id(value) in after]
            takes_logits = any(map(self._is_wide_now, taken))
            is_wanted = not wanted.isdisjoint(map(id, node.outs))
            if node is not self._product and (takes_logits or is_wanted):
                tokens = self._tokens_of(node)
                wide = [value for value in node.ins if self._is_wide(value, tokens)]
                for value in wide:
                    self._tokens.setdefault(id(value), tokens)
                wanted.update(map(id, [*taken, *wide]))
                found.add(id(node))
        return [node for node in graph.nodes if id(node) in found]

    def _is_wide_now(self, value):
        """Same as `_is_wide`, for a value made from logits."""
        tokens = self._tokens.get(id(value))
        return tokens is not None and self._is_wide(value, tokens)

    def _used_outside(self, graph):
        """The operations whose results are used outside."""
        inside = set(map(id, self._nodes))
        used = set()
        for node in graph.nodes:
            if id(node) not in inside:
                used.update(map(id, node.ins))
        used.update(map(id, graph.outs))
        for node in self._nodes:
            if used.isdisjoint(map(id, node.outs)):
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
            return lambda taken, length: node.bound(taken)
        if node.name in ELEMENTWISE:
            return self._elementwise(node)
        if node.name in REDUCTIONS:
            return self._reduction(node)
        is_turned = any(map(self._is_turned, node.ins))
        if is_turned and node.name != "transpose":
            raise _UnfitError("%s takes its logits with their words first" % node.name)
        plan = getattr(self, "_of_" + node.name, None)
        if plan is None:
            raise _UnfitError("%s takes its logits" % node.name)
        return plan(node)

    def _take(self, value, is_led):
        """Record that an operation takes a value, split or whole."""
        if id(value) in self._made:
            if not is_led:
                raise _UnfitError
            return
        if not is_led:
            self._must(not any(value is one for one, _ in self._led))
            if not any(value is one for one in self._whole):
                self._whole.append(value)
            return
        self._must(not any(value is one for one in self._whole))
        alike = [tokens for one, tokens in self._led if one is value]
        self._must(all(tokens is self._now for tokens in alike))
        if not alike:
            self._led.append((value, self._now))

    def _is_led(self, shape):
        return self._now.is_led(shape)

    def _must(self, is_so):
        if not is_so:
            raise _UnfitError

    def _elementwise(self, node):
        tokens = self._now
        is_turned = self._is_turned(node.outs[0])
        self._must(len(node.outs) == 1)
        self._must(is_turned or self._is_led(node.outs[0].shape))
        for value in node.ins:
            is_led = self._is_turned(value) or self._is_led(value.shape)
            is_one = not value.shape or value.shape[tokens.axis] == 1
            self._must(is_led or is_one)
            self._take(value, is_led)
        return lambda taken, length: node.bound(taken)

    def _reduction(self, node):
        tokens = self._now
        axes = tuple(map(int, node.params["axes"]))
        if self._is_turned(node.ins[0]):
            self._must(axes == (0,))
            return lambda taken, length: node.bound(taken)
        self._must(self._is_led(node.ins[0].shape))
        self._take(node.ins[0], is_led=True)
        outer = tuple(axis for axis in axes if axis <= tokens.axis)
        if not outer:
            return lambda taken, length: node.bound(taken)
        # A sum over words and tokens; the sum over tokens comes later.
        self._must(node.name == "reduce_sum" and len(outer) < len(axes))
        self._sums[id(node)] = outer
        inner = tuple(axis for axis in axes if axis > tokens.axis)
        add = self._jax.numpy.sum
        return lambda taken, length: [add(taken[0], axis=inner, dtype=taken[0].dtype)]

    def _of_broadcast_in_dim(self, node):
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
        return lambda taken, length: node.bound(
            taken, shape=tokens.with_length(shape, length)
        )

    def _of_transpose(self, node):
        """The words of logits, which become their last axis."""
        self._must(self._is_turned(node.ins[0]))
        order = list(map(int, node.params["permutation"]))
        self._must(order == [*range(1, len(order)), 0])
        return lambda taken, length: node.bound(taken)

    def _of_reshape(self, node):
        tokens = self._now
        sizes = tuple(node.params["new_sizes"])
        upto = tokens.axis + 1
        if self._tokens.get(id(node.ins[0])) is tokens.apart:
            self._must(id(node.ins[0]) in self._made)
        else:
            self._must(node.ins[0].shape[:upto] == sizes[:upto])
        self._must(self._is_led(sizes))
        self._take(node.ins[0], is_led=True)
        return lambda taken, length: node.bound(
            taken, new_sizes=tokens.with_length(sizes, length)
        )

    def _of_slice(self, node):
        """The tokens that are computed: there are no others in a chunk."""
        is_cut = self._tokens.get(id(node.ins[0])) is self._now.uncut
        self._must(is_cut and id(node.ins[0]) in self._made)
        self._operands[id(node)] = node.ins[:1]
        return lambda taken, length: taken

    _of_dynamic_slice = _of_slice

    def _of_squeeze(self, node):
        tokens = self._now
        self._must(min(map(int, node.params["dimensions"])) > tokens.axis)
        self._take(node.ins[0], is_led=True)
        return lambda taken, length: node.bound(taken)

    def _of_concatenate(self, node):
        tokens = self._now
        self._must(int(node.params["dimension"]) > tokens.axis)
        for value in node.ins:
            self._take(value, is_led=True)
        return lambda taken, length: node.bound(taken)

    def _of_iota(self, node):
        tokens = self._now
        shape = tuple(node.params["shape"])
        self._must(self._is_led(shape) and int(node.params["dimension"]) != tokens.axis)
        return lambda taken, length: node.bound(
            taken, shape=tokens.with_length(shape, length)
        )

    def _of_gather(self, node):
        """The logit of a label: indices of the same tokens."""
        numbers = node.params["dimension_numbers"]
        axes = list(range(self._now.axis + 1))
        mine, others = (
            list(map(int, getattr(numbers, name, ())))[: len(axes)]
            for name in ("operand_batching_dims", "start_indices_batching_dims")
        )
        if mine == others == axes:
            self._must(self._is_led(node.outs[0].shape))
            for value in node.ins:
                self._take(value, is_led=True)
            return lambda taken, length: node.bound(taken)
        return self._picked(node)

    def _picked(self, node):
        """Handle ``logits[arange(n), labels]``. The first column of its indices counts the
        tokens.
        """
        tokens = self._now
        np = importlib.import_module("numpy")
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
        self._operands[id(node)] = [logits, labels]
        jnp = self._jax.numpy

        def pick(taken, length):
            logits, labels = taken
            every = tokens.of_chunk(length)
            counted = jnp.arange(every, dtype=labels.dtype)[:, None]
            return node.bound([logits, jnp.concatenate([counted, labels], axis=1)])

        return pick

    def replacements(self, count, checkpoint):
        """Return replacements for the operations whose results are used outside, by the id of their
        node.
        """
        made = {}

        def make(node):
            def made_for(read):
                if not made:
                    made.update(self._chunked(read, count, checkpoint))
                return [made[id(node)]]

            return made_for

        needs = self._needs()
        return {id(node): Replacement(needs, make(node)) for node in self._outs}

    def _needs(self):
        """The values from outside that the loss takes."""
        return [*(value for value, _ in self._led), *self._whole]

    def check(self, count, checkpoint):
        """Raise if jax cannot compute the loss in chunks, for example if tokens are sharded
        explicitly.
        """
        jax = self._jax
        values = self._needs()
        shapes = [shape_of(jax, value.aval) for value in values]

        def compute(*arrays):
            known = dict(zip(map(id, values), arrays))
            made = self._chunked(lambda value: known[id(value)], count, checkpoint)
            return [made[id(node)] for node in self._outs]

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
        """The results that others use, by the id of their node."""
        jax = self._jax
        whole = {id(value): read(value) for value in self._whole}
        length = -(-self._count // count)

        def of_chunk(parts):
            known = dict(whole)
            for (value, _), part in zip(self._led, parts):
                known[id(value)] = part
            for node in self._nodes:
                operands = self._operands.get(id(node), node.ins)
                taken = [known[id(value)] for value in operands]
                made = self._bind[id(node)](taken, length)
                known.update(zip(map(id, node.outs), made))
            return [known[id(node.outs[0])] for node in self._outs]

        parts = [
            tokens.split(jax, read(value), count, length) for value, tokens in self._led
        ]
        found = jax.lax.map(checkpoint(of_chunk), parts)
        joined = {}
        for node, array in zip(self._outs, found):
            array = self._tokens_of(node).joined(jax, array)
            if id(node) in self._sums:
                array = array.sum(axis=self._sums[id(node)], dtype=array.dtype)
            joined[id(node)] = array
        return joined


def _joins(node, tokens):
    """Whether a reshape makes one axis of those of the tokens."""
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


def _ids_of_results(nodes):
    found = set()
    for node in nodes:
        found.update(map(id, node.outs))
    return found
