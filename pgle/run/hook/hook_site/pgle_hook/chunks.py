"""A loss over a large vocabulary, in chunks of tokens.

Found is a product of activations with a table of words, and all that is computed of its result for
each token alone, up to values without words: a maximum, a sum of exponentials, the logit of a
label. That is computed for one chunk of the tokens after another, and again for gradients, so that
the logits of all tokens never exist at once.
"""

import importlib
import math

from pgle_hook.rewrite import Replacement, constant_of

LEAST_WORDS = 4096  # from which on a product makes logits
LEAST_WORDS_SMALL = 2  # the same at a small size
COUNT_SMALL = 5  # chunks at a small size; it does not divide that: one is filled up
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
    """The values of a loss are not of each token alone."""


def find(jax, graph, count, checkpoint, least_words=LEAST_WORDS):
    """The losses of a graph that can be computed in chunks.

    Args:
        count: of chunks.
        checkpoint: `jax.checkpoint`.

    Returns:
        An iterator. For each loss: the node of the product that makes its logits, and a dict of
        replacements by the id of the node that is replaced.
    """
    for product in graph.nodes:
        if not _makes_logits(product, least_words):
            continue
        try:
            loss = _Loss(jax, graph, product)
        except _UnfitError:
            continue
        yield product, loss.replacements(count, checkpoint)


def _makes_logits(node, least_words):
    """Whether it multiplies the features of tokens with a table of words."""
    if node.name != "dot_general":
        return False
    (contracted, batch) = node.params["dimension_numbers"]
    tokens, table = node.ins
    if any(batch) or len(table.shape) != 2 or len(tokens.shape) < 2:
        return False
    is_last = list(map(int, contracted[0])) == [len(tokens.shape) - 1]
    shape = node.outs[0].shape
    return is_last and shape[-1] >= least_words and shape[-2] > 1


class _Loss:
    """What is computed of logits for each token alone. Tokens are on the axis before the words; a
    value with that axis at its place is *led* by it.
    """

    def __init__(self, jax, graph, product):
        self._jax = jax
        self._product = product
        logits = product.outs[0]
        self._axis = len(logits.shape) - 2
        self._length = logits.shape[self._axis]
        self._size = math.prod(logits.shape)
        self._nodes = self._region(graph)
        self._made = _ids_of_results(self._nodes)
        self._led = []  # values from outside that are split
        self._whole = []  # others
        self._bind = {}  # by the id of a node: what computes it for a chunk
        self._operands = {}  # the same: its operands, if they are others than it has
        self._sums = {}  # by the id of a node: axes of tokens over which it sums, too
        for node in self._nodes:
            self._bind[id(node)] = self._planned(node)
        self._outs = list(self._used_outside(graph))

    def _is_wide(self, value):
        """Whether it has a number for each word of each token."""
        tokens = self._product.outs[0].shape[:-1]
        is_of_tokens = value.shape[: len(tokens)] == tokens
        return is_of_tokens and math.prod(value.shape) >= self._size

    def _region(self, graph):
        """The operations that take logits, in order, and what they need of that size."""
        after = {id(self._product.outs[0])}
        for node in graph.nodes:
            if any(id(value) in after for value in node.ins):
                after.update(map(id, node.outs))
        wanted = set()
        found = {id(self._product)}
        for node in reversed(graph.nodes):
            taken = [value for value in node.ins if id(value) in after]
            takes_logits = any(map(self._is_wide, taken))
            is_wanted = not wanted.isdisjoint(map(id, node.outs))
            if node is not self._product and (takes_logits or is_wanted):
                wide = (value for value in node.ins if self._is_wide(value))
                wanted.update(map(id, [*taken, *wide]))
                found.add(id(node))
        return [node for node in graph.nodes if id(node) in found]

    def _used_outside(self, graph):
        """The operations whose results others use."""
        inside = set(map(id, self._nodes))
        used = set()
        for node in graph.nodes:
            if id(node) not in inside:
                used.update(map(id, node.ins))
        used.update(map(id, graph.outs))
        for node in self._nodes:
            if used.isdisjoint(map(id, node.outs)):
                continue
            if self._is_wide(node.outs[0]):
                raise _UnfitError
            yield node

    def _planned(self, node):
        """What computes an operation for a chunk, from its operands and the chunk's length."""
        if node is self._product:
            self._take(node.ins[0], is_led=True)
            self._take(node.ins[1], is_led=False)
            return lambda taken, length: node.bound(taken)
        if node.name in ELEMENTWISE:
            return self._elementwise(node)
        if node.name in REDUCTIONS:
            return self._reduction(node)
        plan = getattr(self, "_of_" + node.name, None)
        if plan is None:
            raise _UnfitError
        return plan(node)

    def _take(self, value, is_led):
        """Note that an operation takes a value, split or whole."""
        if id(value) in self._made:
            if not is_led:
                raise _UnfitError
            return
        mine, other = (self._led, self._whole) if is_led else (self._whole, self._led)
        if any(value is one for one in other):
            raise _UnfitError
        if not any(value is one for one in mine):
            mine.append(value)

    def _is_led(self, shape):
        return len(shape) > self._axis and shape[self._axis] == self._length

    def _must(self, is_so):
        if not is_so:
            raise _UnfitError

    def _with_length(self, shape, length):
        return (*shape[: self._axis], length, *shape[self._axis + 1 :])

    def _elementwise(self, node):
        self._must(self._is_led(node.outs[0].shape) and len(node.outs) == 1)
        for value in node.ins:
            is_led = self._is_led(value.shape)
            is_one = not value.shape or value.shape[self._axis] == 1
            self._must(is_led or is_one)
            self._take(value, is_led)
        return lambda taken, length: node.bound(taken)

    def _reduction(self, node):
        axes = tuple(map(int, node.params["axes"]))
        self._must(self._is_led(node.ins[0].shape))
        self._take(node.ins[0], is_led=True)
        outer = tuple(axis for axis in axes if axis <= self._axis)
        if not outer:
            return lambda taken, length: node.bound(taken)
        # A sum over words and tokens: that over tokens is left for later.
        self._must(node.name == "reduce_sum" and len(outer) < len(axes))
        self._sums[id(node)] = outer
        inner = tuple(axis for axis in axes if axis > self._axis)
        add = self._jax.numpy.sum
        return lambda taken, length: [add(taken[0], axis=inner, dtype=taken[0].dtype)]

    def _of_broadcast_in_dim(self, node):
        value = node.ins[0]
        shape = tuple(node.params["shape"])
        places = list(map(int, node.params["broadcast_dimensions"]))
        self._must(self._is_led(shape) and len(node.ins) == 1)
        is_led = False
        if self._axis in places:
            place = places.index(self._axis)
            is_led = value.shape[place] == self._length
            self._must(place == self._axis or not is_led)
        self._take(value, is_led)
        return lambda taken, length: node.bound(
            taken, shape=self._with_length(shape, length)
        )

    def _of_reshape(self, node):
        sizes = tuple(node.params["new_sizes"])
        upto = self._axis + 1
        self._must(self._is_led(sizes) and node.ins[0].shape[:upto] == sizes[:upto])
        self._take(node.ins[0], is_led=True)
        return lambda taken, length: node.bound(
            taken, new_sizes=self._with_length(sizes, length)
        )

    def _of_squeeze(self, node):
        self._must(min(map(int, node.params["dimensions"])) > self._axis)
        self._take(node.ins[0], is_led=True)
        return lambda taken, length: node.bound(taken)

    def _of_concatenate(self, node):
        self._must(int(node.params["dimension"]) > self._axis)
        for value in node.ins:
            self._take(value, is_led=True)
        return lambda taken, length: node.bound(taken)

    def _of_iota(self, node):
        shape = tuple(node.params["shape"])
        self._must(self._is_led(shape) and int(node.params["dimension"]) != self._axis)
        return lambda taken, length: node.bound(
            taken, shape=self._with_length(shape, length)
        )

    def _of_gather(self, node):
        """The logit of a label: indices of the same tokens."""
        numbers = node.params["dimension_numbers"]
        tokens = list(range(self._axis + 1))
        mine, others = (
            list(map(int, getattr(numbers, name, ())))[: len(tokens)]
            for name in ("operand_batching_dims", "start_indices_batching_dims")
        )
        if mine == others == tokens:
            self._must(self._is_led(node.outs[0].shape))
            for value in node.ins:
                self._take(value, is_led=True)
            return lambda taken, length: node.bound(taken)
        return self._picked(node)

    def _picked(self, node):
        """``logits[arange(n), labels]``: the first column of its indices counts the tokens."""
        np = importlib.import_module("numpy")
        numbers = node.params["dimension_numbers"]
        logits, places = node.ins
        both = places.made_by("concatenate")
        is_pair = tuple(numbers.start_index_map) == (0, 1) and both is not None
        self._must(is_pair and self._axis == 0 and len(both.ins) == 2)
        self._must(places.shape == (self._length, 2) == (logits.shape[0], 2))
        self._must(node.outs[0].shape == (self._length,))
        counted, labels = both.ins
        count = constant_of(self._jax, counted)
        expected = np.arange(self._length)[:, None]
        self._must(count is not None and np.array_equal(count, expected))
        self._take(logits, is_led=True)
        self._take(labels, is_led=True)
        self._operands[id(node)] = [logits, labels]
        jnp = self._jax.numpy

        def pick(taken, length):
            logits, labels = taken
            counted = jnp.arange(length, dtype=labels.dtype)[:, None]
            return node.bound([logits, jnp.concatenate([counted, labels], axis=1)])

        return pick

    def replacements(self, count, checkpoint):
        """What replaces the operations whose results others use, by the id of their node."""
        made = {}

        def make(node):
            def made_for(read):
                if not made:
                    made.update(self._chunked(read, count, checkpoint))
                return [made[id(node)]]

            return made_for

        needs = [*self._led, *self._whole]
        return {id(node): Replacement(needs, make(node)) for node in self._outs}

    def _chunked(self, read, count, checkpoint):
        """The results that others use, by the id of their node."""
        jax = self._jax
        whole = {id(value): read(value) for value in self._whole}
        length = -(-self._length // count)

        def of_chunk(parts):
            known = {**whole, **dict(zip(map(id, self._led), parts))}
            for node in self._nodes:
                operands = self._operands.get(id(node), node.ins)
                taken = [known[id(value)] for value in operands]
                made = self._bind[id(node)](taken, length)
                known.update(zip(map(id, node.outs), made))
            return [known[id(node.outs[0])] for node in self._outs]

        parts = [self._split(read(value), count, length) for value in self._led]
        found = jax.lax.map(checkpoint(of_chunk), parts)
        joined = {}
        for node, array in zip(self._outs, found):
            array = self._joined(array)
            if id(node) in self._sums:
                array = array.sum(axis=self._sums[id(node)], dtype=array.dtype)
            joined[id(node)] = array
        return joined

    def _split(self, array, count, length):
        """Chunks of tokens on a new first axis. If tokens are on the first axis, every `count`-th
        one is in a chunk: each device keeps its own. What is missing are copies of the last token,
        whose values are usual ones: gradients through zeros may be no numbers.
        """
        jnp = self._jax.numpy
        axis = self._axis
        missing = count * length - array.shape[axis]
        if missing:
            widths = [(0, 0)] * array.ndim
            widths[axis] = (0, missing)
            array = jnp.pad(array, widths, mode="edge")
        sizes = (count, length) if axis else (length, count)
        shape = (*array.shape[:axis], *sizes, *array.shape[axis + 1 :])
        return jnp.moveaxis(array.reshape(shape), axis if axis else 1, 0)

    def _joined(self, array):
        """The chunks of a result as one again."""
        axis = self._axis
        array = self._jax.numpy.moveaxis(array, 0, axis if axis else 1)
        array = array.reshape((*array.shape[:axis], -1, *array.shape[axis + 2 :]))
        return self._jax.lax.slice_in_dim(array, 0, self._length, axis=axis)


def _ids_of_results(nodes):
    found = set()
    for node in nodes:
        found.update(map(id, node.outs))
    return found
