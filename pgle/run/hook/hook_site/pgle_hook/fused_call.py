"""Write the fused call that replaces attention by hand. Operands, masks and result have the
program's order of axes. Axes have the names of `by_hand`.

Within `jax.vmap` the program's arrays lack an axis. If it maps over heads, the call replaces that
`jax.vmap`: a call for one head would have all heads copied to the front, as batch rows.
"""

import re

from pgle_hook import jax_private
from pgle_hook.masks import KEYS, QUERIES, parts_of
from pgle_hook.records import is_own

MAPPED = "vmap("  # part of an operation's name, once for each `jax.vmap` around it
OVER_HEADS = "write it in place of jax.vmap over heads"

_FORMULA = re.compile(r"[\w.\s]+,[\w.\s]+(->[\w.\s]*)?\)*$")
"""What `jnp.einsum` was given, in the same name: ``bhqk,bkhd->bqhd``, ``...qk, ...kd``."""


def described(jax, found, nodes):
    """Return the call as a user writes it, its masking, and the meaning of its names, as fields of
    a call site.

    Args:
        nodes: of the graph that holds the attention.
    """
    written = _Written(found, found.masking(jax))
    masking = written.masking
    operands = written.operands()
    given = [*operands, *written.masks(), *written.numbers()]
    call = 'jax.nn.dot_product_attention(%s, implementation="cudnn")' % ", ".join(given)
    return {
        "call": call + written.result(nodes),
        "options": written.window(),
        "mask": "own" if masking.others or masking.lengths else "",
        "causal": masking.is_causal,
        "note": written.note(),
    }


class _Written:
    """Attention written at its place in the program."""

    def __init__(self, found, masking):
        self._found = found
        self.masking = masking
        self._batch, self._heads = found.batch_and_heads()
        depth = jax_private.name_of(found.product.eqn).count(MAPPED)
        mapped = set(range(depth))  # `jax.vmap` puts its axis before those in common
        self._is_over_heads = not mapped.isdisjoint(self._heads)
        self._mapped = set() if self._is_over_heads else mapped
        has_rows = not self._mapped.issuperset(self._batch)
        self._rows = [self._batch] if has_rows else []  # names of axes, as of `by_hand`
        self._most = max(found.count(("d",)), found.count(("e",)))

    def note(self):
        """The meaning of the call's names, and the place for the call."""
        queries, names = self._found.sides[0]
        said = ["q, k, v: what the products take, q %s" % self._shape(queries, names)]
        for name, mask in self._named_masks():
            shape = self._shape(mask.value, mask.names)
            seen = "zero" if mask.is_added else str(not mask.hides).lower()
            said.append("%s %s: %s where a key is seen" % (name, shape, seen))
        if self._is_over_heads:
            said.append(OVER_HEADS)
        return ", ".join(said)

    def operands(self):
        """Queries, keys and values with the axes that jax's function takes."""
        orders = (
            (*self._rows, QUERIES, (*self._heads, "g"), ("d",)),
            (*self._rows, KEYS, self._heads, ("d",)),
            (*self._rows, KEYS, self._heads, ("e",)),
        )
        queries = self._there(self._found.sides[0][1])
        alike = tuple({QUERIES: KEYS}.get(name, name) for name in queries)
        texts = []
        for letter, side, order in zip("qkv", self._found.sides, orders):
            value = side[0]
            names = self._there(side[1])
            before = self._there(self._before_transpose(*side))
            if letter == "k" and names != alike == before:
                names = before  # a product of two matrices wants keys transposed
            text = self._moved(letter, names, order)
            if self._found.rounded:
                text += '.astype("%s")' % self._found.rounded
            elif value.seen() not in self._found.multiplied:
                text += '.astype("%s")' % value.dtype
            texts.append(self._widened(text, order))
        return texts

    def _before_transpose(self, value, names):
        """The names of a value's axes. If the first product's line transposes it, these are the
        names before the transpose.
        """
        node = value.made_by("transpose")
        if node is None or _line_of(node) != _line_of(self._found.first):
            return names
        return self._found.back(node, names)

    def _widened(self, text, order):
        """Pad an operand with zero features up to those of the others. Products do not change."""
        lacking = self._most - self._found.count(order[-1])
        if not lacking:
            return text
        return "jnp.pad(%s, [(0, 0)] * %d + [(0, %d)])" % (
            text,
            len(order) - 1,
            lacking,
        )

    def masks(self):
        """Arguments of the call in place of masks."""
        given = ["is_causal=True"] if self.masking.is_causal else []
        shown = [self._shown(*each) for each in self._named_masks()]
        return [*given, "mask=" + " & ".join(shown)] if shown else given

    def _named_masks(self):
        masks = self.masking.others
        numbers = range(1, len(masks) + 1) if len(masks) > 1 else [""]
        for number, mask in zip(numbers, masks):
            yield "%s%s" % ("bias" if mask.is_added else "mask", number), mask

    def _shown(self, name, mask):
        """A mask for each query and key. cuDNN only repeats batch rows and heads."""
        order = (*self._rows, (*self._heads, "g"), QUERIES, KEYS)
        counted = parts_of(mask.names)
        text = self._moved(name, self._there(mask.names), order)
        if mask.is_added:
            text = "(%s == 0)" % text
        elif mask.is_of_numbers:  # `jnp.where` takes them, jax's call does not
            text += ".astype(bool)"
        if mask.hides and not mask.is_added:
            text = "~" + text
        sizes = [self._found.count(each) for each in order]
        if not self._mapped.isdisjoint(counted):  # jax wants all heads of a mapped mask
            return "jnp.broadcast_to(%s, %s)" % (text, tuple(sizes))
        if {"q", "k"}.issubset(counted):
            return text
        return "%s & jnp.ones(%s, bool)" % (text, tuple(sizes[-2:]))

    def numbers(self):
        """Further arguments of the call."""
        given = ["scale=%g" % self._found.scale]
        if self.masking.window is not None:
            given.insert(0, self.window())
        if not self.masking.lengths:
            return given
        lengths = [self._length(*each) for each in self.masking.lengths]
        least = (
            lengths[0] if len(lengths) == 1 else "jnp.minimum(%s)" % ", ".join(lengths)
        )
        if not self._rows and self._batch:  # jax wants both of mapped rows
            queries = "0 * lengths[None] + %d" % self._found.count(QUERIES)
            given.insert(0, "query_seq_lengths=%s" % queries)
        return ["key_value_seq_lengths=%s" % least, *given]

    def window(self):
        """The argument for how far back a query sees; empty: all keys."""
        window = self.masking.window
        return "" if window is None else "local_window_size=(%d, 0)" % window

    def _length(self, value, names, added):
        """The number of keys of each batch row."""
        text = "lengths"
        if not self._rows:
            text = "lengths[None]"
        elif not parts_of(names):
            text = "jnp.full(%d, lengths)" % self._found.count(self._batch)
        if str(value.dtype) != "int32":
            text += '.astype("int32")'
        return "%s + %d" % (text, added) if added else text

    def result(self, nodes):
        """The text after the call that makes the program's result from the call's."""
        width = self._found.count(("e",))
        text = "[..., :%d]" % width if width < self._most else ""
        order = (*self._rows, QUERIES, (*self._heads, "g"), ("e",))
        text = self._moved(text, order, self._result_names(nodes))
        dtype = self._found.node.outs[0].dtype
        taken = self._found.rounded or self._found.sides[0][0].dtype
        is_same = str(dtype) == str(taken)
        return text if is_same else '%s.astype("%s")' % (text, dtype)

    def _result_names(self, nodes):
        """The axis names of the result of the program's line."""
        found = self._found
        node, names = found.node, found.names
        if self._is_over_heads:
            return _followed(node, names, nodes, lambda name: MAPPED in name)
        own = jax_private.name_of(found.product.eqn)
        if node is found.product and _FORMULA.search(own):
            names = _followed(node, names, nodes, lambda name: name == own)
        return self._there(names)

    def _there(self, names):
        """The names of the axes that the program sees."""
        return tuple(name for name in names if not self._is_mapped(name))

    def _is_mapped(self, name):
        return bool(name) and self._mapped.issuperset(name)

    def _shape(self, value, names):
        sizes = [
            size for size, name in zip(value.shape, names) if not self._is_mapped(name)
        ]
        return "(%s)" % ", ".join(map(str, sizes))

    def _moved(self, text, before, after):
        """Return the code that rearranges an array's axes; unchanged if the array lacks one of the
        parts.

        Args:
            before: names of its axes.
            after: names of the axes that are wanted; an axis that it lacks has one element.
        """
        before = [tuple(filter(self._found.sizes.get, name)) for name in before]
        there = parts_of(before)
        after = [tuple(each for each in name if each in there) for name in after]
        wanted = parts_of(after)
        if {*wanted} != {*there}:
            return text
        places = [there.index(each) for each in wanted]
        is_moved = places != sorted(places)
        is_joined = any(len(name) > 1 for name in after)
        if any(len(name) > 1 for name in before):
            sizes = map(self._found.count, after)
            if is_moved:
                sizes = (self._found.count((each,)) for each in there)
            text += ".reshape(%s)" % ", ".join(map(str, sizes))
            if not is_moved:
                return text
        else:
            text += _indexed(before, "0")
        text += _permuted(places, self._is_over_heads) if is_moved else ""
        if is_joined:
            sizes = map(self._found.count, after)
            return text + ".reshape(%s)" % ", ".join(map(str, sizes))
        return text + _indexed(after, "None")


def _line_of(node):
    """File and line of the program that make an operation; None if only libraries make it."""
    frames = jax_private.frames_of(node.eqn)
    return next((frame for frame in frames if is_own(frame[0])), None)


def _followed(node, names, nodes, is_part):
    """The names of the axes of a result after `jax.vmap` or `jnp.einsum` has moved them.

    Args:
        is_part: whether an operation of a name belongs to what moves it.
    """
    value = node.outs[0]
    for each in nodes:
        is_next = each.name == "transpose" and each.ins[0] is value
        if is_next and is_part(jax_private.name_of(each.eqn)):
            names = tuple(names[place] for place in each.params["permutation"])
            value = each.outs[0]
    return names


def _indexed(names, item):
    """An index as text: an item for each axis that counts nothing, all of every other axis."""
    if all(names):
        return ""
    items = []
    for name in names:
        items.append(":" if name else item)
    while items[-1] == ":":
        items.pop()
    return "[%s]" % ", ".join(items)


def _permuted(places, from_the_end):
    """A transpose, as text. Axes may be counted from the end: others may come before them."""
    moved = [place for place, source in enumerate(places) if place != source]
    if len(moved) != 2:
        return ".transpose(%s)" % ", ".join(map(str, places))
    first, second = moved
    start = len(places) if from_the_end else 0
    return ".swapaxes(%d, %d)" % (first - start, second - start)
