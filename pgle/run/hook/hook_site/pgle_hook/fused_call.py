"""Write the fused call that replaces attention by hand. Operands, masks and result have the
program's order of axes. Axes have the names of `by_hand`.

Within `jax.vmap` the program's arrays lack an axis. If it maps over heads, the call replaces that
`jax.vmap`: a call for one head would have all heads copied to the front, as batch rows.
"""

import functools
import itertools
import re

from pgle_hook import jax_private
from pgle_hook.jax_private import MAPPED
from pgle_hook.masks import KEYS, QUERIES, parts_of
from pgle_hook.records import is_own
from pgle_hook.rewrite import divided_sharding

OVER_HEADS = "write it in place of jax.vmap over heads"
APART = "write the product of weights and values apart from the einsum, then this in its place"

_FORMULA = re.compile(r"[\w.\s]+,[\w.\s]+(->[\w.\s]*)?\)*$")
"""What `jnp.einsum` was given, in the same name: ``bhqk,bkhd->bqhd``, ``...qk, ...kd``."""


def described(jax, found, graph):
    """Return the call as a user writes it, its masking, and the meaning of its names, as fields of
    a call site.

    Args:
        graph: holds the attention.
    """
    masking = found.masking(jax)
    written = _Written(found, masking)
    given = [*written.operands(), *written.masks(), *written.numbers()]
    call = 'jax.nn.dot_product_attention(%s, implementation="cudnn")' % ", ".join(given)
    has_own_mask = bool(masking.others or masking.lengths)
    return {
        "call": written.within(call) or written.alone(call, graph),
        "options": written.window(),
        "mask": "own" if has_own_mask else "",
        "causal": masking.is_causal,
        "note": written.note(),
    }


class _Written:
    """Attention written at its place in the program."""

    def __init__(self, found, masking):
        self._found = found
        self._masking = masking
        self._batch, self._heads = found.batch_and_heads()
        self._query_heads = (*self._heads, "g")
        depth = jax_private.name_of(found.product.eqn).count(MAPPED)
        mapped = set(range(depth))  # `jax.vmap` puts its axis before those in common
        self._is_over_heads = not mapped.isdisjoint(self._heads)
        self._mapped = set() if self._is_over_heads else mapped
        has_rows = not self._mapped.issuperset(self._batch)
        self._rows = [self._batch] if has_rows else []  # names of axes, as of `by_hand`
        self._features = max(found.count(("d",)), found.count(("e",)))  # of the call
        self._terms, self._made = _formula_of(found.product)
        # the einsum that takes the call's result; empty: none, or its letters are unclear
        self._formula = "" if depth else self._formula_with_others()

    @property
    def _is_within(self):
        """Whether the second product is only a part of an einsum."""
        return len(self._terms) > 2

    def _formula_with_others(self):
        """The formula of an einsum of the call's result and of the further operands that the
        program's einsum takes; empty if there are none.
        """
        has_groups = bool(self._found.sizes.get("g"))
        if not self._is_within or has_groups or not (self._batch and self._heads):
            return ""
        weights, values = (self._unturned(*side) for side in self._found.second)
        order = (self._batch, QUERIES, self._heads, ("e",))
        found = []
        for one, other in itertools.permutations(self._terms, 2):
            letters = {**_lettered(one, weights), **_lettered(other, values)}
            is_known = len({*letters.values()}) == len(letters) == len({*one, *other})
            if is_known and letters.keys() == {KEYS, *order}:
                rest = [term for term in self._terms if term not in (one, other)]
                first = "".join(letters[name] for name in order)
                found.append("%s->%s" % (",".join([first, *rest]), self._made))
        return found[0] if len(found) == 1 else ""

    def _unturned(self, value, names):
        """The names of the axes of an einsum's operand, before the einsum transposes it."""
        own = jax_private.name_of(self._found.product.eqn)
        node = value.made_by("transpose")
        while node is not None and jax_private.name_of(node.eqn) == own:
            names = self._found.back(node, names)
            node = node.ins[0].made_by("transpose")
        return names

    def within(self, call):
        """The einsum of a call and the program's further operands; empty if there are none."""
        if not self._formula:
            return ""
        rest = "rest" if self._formula.count(",") == 1 else "*rest"
        taken = self._in_type(call + self._cut())
        names = (self._batch, QUERIES, self._heads, ("e",))
        taken = self._divided(taken, names)
        return 'jnp.einsum("%s", %s, %s)' % (self._formula, taken, rest)

    def _divided(self, call, names):
        """The call with the sharding of the program's type, which jax's function drops.

        Args:
            names: of the axes of what the call makes.
        """
        sharding = self._found.sharding
        if sharding is None:
            return call
        axes = dict(zip(self._found.names, sharding.spec))
        spec = [axes.get(name) for name in names]
        written = "jax.typeof(q).sharding"
        if not self._are_as_queries(names, spec):
            text = "jax.sharding.PartitionSpec(%s)" % ", ".join(map(_written, spec))
            written = "jax.sharding.NamedSharding(%s.mesh, %s)" % (written, text)
        return "jax.reshard(%s, %s)" % (call, written)

    def _are_as_queries(self, names, spec):
        """Whether axes are those of the program's queries, in their order and divided alike."""
        queries, of_queries = self._found.sides[0]
        if [*names[:-1]] != [*of_queries[:-1]]:
            return False
        sharding = divided_sharding(queries.aval)
        return sharding is not None and [*sharding.spec] == spec

    def note(self):
        """The meaning of the call's names, and the place for the call."""
        queries, names = self._found.sides[0]
        said = [
            "q, k and v are what the products take: q %s" % self._shape(queries, names)
        ]
        for name, mask in self._named_masks():
            shape = self._shape(mask.value, mask.names)
            seen = "zero" if mask.is_added else str(not mask.hides).lower()
            said.append("%s %s: %s where a key is seen" % (name, shape, seen))
        for name, (value, names, added) in self._named_lengths():
            shape = self._shape(value, names)
            limit = _plus(name, added)
            said.append("%s %s: keys k < %s are seen" % (name, shape, limit))
        if self._is_over_heads:
            said.append(OVER_HEADS)
        if self._formula:
            said.append("rest: what else the einsum takes")
        elif self._is_within:
            said.append(APART)
        return ", ".join(said)

    def operands(self):
        """Queries, keys and values with the axes that jax's function takes."""
        queries, _, values = self._found.sides
        of_queries = (*self._rows, QUERIES, self._query_heads, ("d",))
        of_keys = (*self._rows, KEYS, self._heads, ("d",))
        of_values = (*self._rows, KEYS, self._heads, ("e",))
        return [
            self._operand("q", queries, of_queries),
            self._operand("k", self._keys(), of_keys),
            self._operand("v", values, of_values),
        ]

    def _operand(self, letter, side, order):
        """An operand as code, with its axes in the order that the call takes."""
        value, names = side
        text = self._moved(letter, self._there(names), order)
        if self._found.rounded:
            text = _cast(text, self._found.rounded)
        elif value.seen() not in self._found.multiplied:
            text = _cast(text, value.dtype)
        lacking = self._features - self._found.count(order[-1])
        if not lacking:
            return text
        # Products do not change by zero features.
        others = len(order) - 1
        return "jnp.pad(%s, [(0, 0)] * %d + [(0, %d)])" % (text, others, lacking)

    def _keys(self):
        """The keys as a side. If the first product's line transposes them, as a product of two
        matrices wants it, these are the keys before the transpose.
        """
        (_, of_queries), keys, _ = self._found.sides
        value, names = keys
        node = value.made_by("transpose")
        if node is None or _line_of(node) != _line_of(self._found.first):
            return keys
        before = self._found.back(node, names)
        alike = [{QUERIES: KEYS}.get(name, name) for name in of_queries]
        wanted = self._there(alike)
        are_transposed = self._there(names) != wanted == self._there(before)
        return (value, before) if are_transposed else keys

    def masks(self):
        """Arguments of the call in place of masks."""
        given = ["is_causal=True"] if self._masking.is_causal else []
        shown = [self._shown(name, mask) for name, mask in self._named_masks()]
        if shown:
            given.append("mask=" + " & ".join(shown))
        return given

    def _named_masks(self):
        """Masks with their names in the note: mask, or mask1 and bias2 if there are several."""
        masks = self._masking.others
        for number, mask in enumerate(masks, 1):
            name = "bias" if mask.is_added else "mask"
            if len(masks) > 1:
                name += str(number)
            yield name, mask

    def _shown(self, name, mask):
        """A mask for each query and key. cuDNN only repeats batch rows and heads."""
        order = (*self._rows, self._query_heads, QUERIES, KEYS)
        text = self._moved(name, self._there(mask.names), order)
        if mask.is_added:
            text = "(%s == 0)" % text
        elif mask.is_of_numbers:  # `jnp.where` takes them, jax's call does not
            text += ".astype(bool)"
        if mask.hides and not mask.is_added:
            text = "~" + text
        sizes = tuple(map(self._found.count, order))
        counted = parts_of(mask.names)
        if not self._mapped.isdisjoint(counted):  # jax wants all heads of a mapped mask
            return "jnp.broadcast_to(%s, %s)" % (text, sizes)
        if {"q", "k"}.issubset(counted):
            return text
        return "%s & jnp.ones(%s, bool)" % (text, sizes[-2:])

    def numbers(self):
        """Further arguments of the call."""
        given = ["scale=%g" % self._found.scale]
        if self._masking.window is not None:
            given.insert(0, self.window())
        lengths = [self._length(*each) for each in self._named_lengths()]
        if not lengths:
            return given
        if not self._rows and self._batch:  # jax wants both of mapped rows
            first, _ = next(self._named_lengths())
            queries = "0 * %s[None] + %d" % (first, self._found.count(QUERIES))
            given.insert(0, "query_seq_lengths=%s" % queries)
        least = functools.reduce("jnp.minimum({}, {})".format, lengths)
        return ["key_value_seq_lengths=%s" % least, *given]

    def _named_lengths(self):
        """Lengths with their names in the note: lengths, or lengths1 and lengths2."""
        every = self._masking.lengths
        for number, length in enumerate(every, 1):
            yield "lengths%d" % number if len(every) > 1 else "lengths", length

    def window(self):
        """The argument for how far back a query sees; empty: all keys."""
        window = self._masking.window
        return "" if window is None else "local_window_size=(%d, 0)" % window

    def _length(self, name, length):
        """The number of keys of each batch row."""
        value, names, added = length
        text = name
        axes = self._there(names)
        if len(axes) > 1:  # a row of them, as jax wants it
            text = "%s.ravel()" % name
        elif not (self._rows or axes):
            text = "%s[None]" % name
        if self._rows and not parts_of(names):
            text = "jnp.full(%d, %s)" % (self._found.count(self._batch), text)
        if str(value.dtype) != "int32":
            text = _cast(text, "int32")
        return _plus(text, added)

    def alone(self, call, graph):
        """The code that makes the program's result from a call."""
        order = (*self._rows, QUERIES, self._query_heads, ("e",))
        names = self._result_names(graph)
        text = self._moved(call + self._cut(), order, names)
        return self._divided(self._in_type(text), names)

    def _cut(self):
        """The text after the call that leaves out zero features."""
        width = self._found.count(("e",))
        return "[..., :%d]" % width if width < self._features else ""

    def _in_type(self, text):
        """Code that makes a result in the program's type."""
        found = self._found
        dtype = found.node.outs[0].dtype
        taken = found.rounded or found.sides[0][0].dtype
        return text if str(dtype) == str(taken) else _cast(text, dtype)

    def _result_names(self, graph):
        """The axis names of the result of the program's line."""
        found = self._found
        names = found.names
        if self._is_over_heads:
            return _followed(graph, found.node, names, lambda name: MAPPED in name)
        own = jax_private.name_of(found.product.eqn)
        if found.node is found.product and _FORMULA.search(own):
            names = _followed(graph, found.node, names, lambda name: name == own)
        return self._there(names)

    def _there(self, names):
        """The names of the axes that the program sees."""
        return [name for name in names if not self._is_mapped(name)]

    def _is_mapped(self, name):
        return bool(name) and self._mapped.issuperset(name)

    def _shape(self, value, names):
        named = zip(value.shape, names)
        sizes = [str(size) for size, name in named if not self._is_mapped(name)]
        return "(%s)" % ", ".join(sizes)

    def _moved(self, text, before, after):
        """Return the code that rearranges an array's axes; unchanged if the array lacks one of the
        parts.

        Args:
            before: names of its axes.
            after: names of the axes that are wanted; an axis that it lacks has one element.
        """
        before = [tuple(filter(self._found.sizes.get, name)) for name in before]
        there = parts_of(before)
        after = [tuple(part for part in name if part in there) for name in after]
        wanted = parts_of(after)
        if set(wanted) != set(there):
            return text
        places = [there.index(part) for part in wanted]
        is_moved = places != sorted(places)
        if not _have_joined(before):
            text += _indexed(before, "0")
        elif is_moved:
            text = self._reshaped(text, [(part,) for part in there])
        else:
            return self._reshaped(text, after)
        if is_moved:
            text += _permuted(places, self._is_over_heads)
        if _have_joined(after):
            return self._reshaped(text, after)
        return text + _indexed(after, "None")

    def _reshaped(self, text, names):
        sizes = [str(self._found.count(name)) for name in names]
        return "%s.reshape(%s)" % (text, ", ".join(sizes))


def _have_joined(names):
    """Whether an axis counts several things."""
    return any(len(name) > 1 for name in names)


def _written(axes):
    """What divides an axis of an array, as code: a name of a mesh axis, several, or none."""
    if isinstance(axes, tuple):
        return "(%s,)" % ", ".join(map(_written, axes))
    return "None" if axes is None else '"%s"' % axes


def _cast(text, dtype):
    return '%s.astype("%s")' % (text, dtype)


def _lettered(term, names):
    """The letter of each axis of an einsum's operand, by the name of the axis; empty if it has
    another number of axes.
    """
    return dict(zip(names, term)) if len(term) == len(names) else {}


def _formula_of(node):
    """Return the terms of the einsum that makes a node, and the term of its result; none if it is
    no einsum with letters alone.
    """
    given, arrow, made = jax_private.name_of(node.eqn).replace(" ", "").partition("->")
    terms = given.split(",")
    is_plain = bool(arrow) and "".join((*terms, made)).isalpha()
    return (terms, made) if is_plain else ([], "")


def _line_of(node):
    """File and line of the program that make an operation; None if only libraries make it."""
    for frame in jax_private.frames_of(node.eqn):
        file, _, _ = frame
        if is_own(file):
            return frame
    return None


def _plus(text, number):
    """A sum as text; the text alone if nothing is added."""
    return "%s + %d" % (text, number) if number else text


def _followed(graph, node, names, is_part):
    """The names of the axes of a result after `jax.vmap` or `jnp.einsum` has moved them.

    Args:
        is_part: whether an operation of a name belongs to what moves it.
    """
    while node is not None:
        takers = graph.takers_of(node.outs[0])
        node = next((one for one in takers if _moves(one, is_part)), None)
        if node is not None:
            names = [names[place] for place in node.params["permutation"]]
    return names


def _moves(node, is_part):
    return node.name == "transpose" and is_part(jax_private.name_of(node.eqn))


def _indexed(names, item):
    """An index as text: an item for each axis that counts nothing, all of every other axis."""
    items = []
    for name in names:
        items.append(":" if name else item)
    while items and items[-1] == ":":
        items.pop()
    return "[%s]" % ", ".join(items) if items else ""


def _permuted(places, from_the_end):
    """A transpose, as text. Axes may be counted from the end: others may come before them."""
    moved = [place for place, source in enumerate(places) if place != source]
    if len(moved) != 2:
        return ".transpose(%s)" % ", ".join(map(str, places))
    first, second = moved
    start = len(places) if from_the_end else 0
    return ".swapaxes(%d, %d)" % (first - start, second - start)
