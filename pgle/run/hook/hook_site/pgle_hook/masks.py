"""Split masks of attention into three kinds.

Causal masks and windows depend only on the distance between query and key. Lengths give the number
of keys of a batch row. All others stay masks. NumPy computes values once per distance, so no mask
over all queries and keys is made. Axes have the names of `by_hand`.
"""

import importlib
import itertools

from pgle_hook.rewrite import VARIED

np = importlib.import_module("numpy")

QUERIES = ("q",)
KEYS = ("k",)
#: types in which sums of positions are exact
EXACT = ("int32", "int64", "float32", "float64")
MOVED = ("broadcast_in_dim", "reshape", "squeeze", "transpose")
KEPT = (*VARIED, "copy", "sharding_constraint", "stop_gradient")
COMPARED = {
    "eq": "equal",
    "ge": "greater_equal",
    "gt": "greater",
    "le": "less_equal",
    "lt": "less",
    "ne": "not_equal",
}
COMPUTED = {
    **COMPARED,
    "abs": "absolute",
    "add": "add",
    "and": "bitwise_and",
    "max": "maximum",
    "min": "minimum",
    "mul": "multiply",
    "neg": "negative",
    "not": "invert",
    "or": "bitwise_or",
    "sub": "subtract",
    "xor": "bitwise_xor",
}
"""Elementwise operations, and the NumPy functions that compute them."""

EVALUATED = {*COMPUTED, "convert_element_type", "select_n"}

MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


class Mask:
    """A value that hides keys from queries."""

    def __init__(self, value, names, hides=False, is_added=False):
        self.value = value
        self.names = names  # names of its axes
        self.hides = hides  # whether true hides
        self.is_added = is_added  # whether it is a bias: zero where it shows
        self.is_of_numbers = False  # whether the program has it as zeros and ones

    def key(self):
        """What it is of, as a key: equal for masks that hide the same."""
        return self.value.seen(), self.names, self.hides, self.is_added

    def shown(self, array):
        """Return which keys it shows, from an array of its values."""
        return array == 0 if self.is_added else array != self.hides

    def is_like(self, other):
        """Whether another mask is made of the same value in the same way."""
        return self.key() == other.key()

    def of(self, value, names, hides=None):
        """Make another mask of truth values; names as from `names_of`."""
        hides = self.hides if hides is None else hides
        other = Mask(value, names_of(value, names), hides)
        other.is_of_numbers = self.is_of_numbers
        return other


def names_of(value, names):
    """Return the names of an operand's axes, from those of the result. The operand may have axes of
    one element, or lack some.
    """
    kept = []
    for name, size in zip(names, value.shape):
        kept.append(name if size > 1 else ())
    return tuple(kept)


def names_before(back, node, names):
    """The names of the axes of an operand that an operation only keeps or moves; None if it does
    something else, or if they are not known.

    Args:
        back: as of `Distances`.
        names: of the axes of the result.
    """
    if node.name in KEPT:
        return names
    return back(node, names) if node.name in MOVED else None


def parts_of(names):
    """All that the named axes count, in order."""
    return list(itertools.chain.from_iterable(names))


class _Places:
    """Numbers that are ``query * q + key * k + offset`` at query q and key k."""

    def __init__(self, query, key, offset):
        self.query = query
        self.key = key
        self.offset = offset

    @property
    def is_number(self):
        """Whether it is the same number at all positions."""
        return not (self.query or self.key)

    def plus(self, other, factor=1):
        """Return this sum plus `factor` times another one."""
        return _Places(
            self.query + factor * other.query,
            self.key + factor * other.key,
            self.offset + factor * other.offset,
        )


class Distances:
    """Evaluates values that depend only on the positions of queries and keys.

    Args:
        sizes: numbers of queries and keys.
        back: from a node and the names of its result's axes to those of its operand; None: none.
    """

    def __init__(self, jax, sizes, back):
        self._jax = jax
        self._back = back
        queries, keys = sizes
        self.sizes = sizes
        self.each = np.arange(1 - keys, queries)  # distance of each query from each key
        self.are_alike = queries == keys
        self._seen = {}

    def of(self, value, names):
        """Return a value for each distance, as an array; None if it depends on anything else."""
        found = self._found(value, names)
        if isinstance(found, _Places):
            return self._spread(found)
        return found

    def number(self, value, names):
        """Return the number that a value has at all positions; None if it varies."""
        found = self._found(value, names)
        is_number = isinstance(found, _Places) and found.is_number
        return found.offset if is_number else None

    def places(self, value, names):
        """Return factors for the positions of queries and keys, and an offset; None if the value is
        not such a sum.
        """
        found = self._found(value, names)
        if not isinstance(found, _Places):
            return None
        return found.query, found.key, found.offset

    def _found(self, value, names):
        side = value.seen(), names
        if side not in self._seen:
            self._seen[side] = self._looked_up(*side)
        return self._seen[side]

    def _looked_up(self, value, names):
        """What is known about a value: `_Places`, an array by distance, or None."""
        if value.constant is not None:
            return self._of_constant(value.constant, names)
        node = value.node
        if node is None:
            outside = value.outside
            is_same = outside is not None and outside.shape == value.shape
            return self._found(outside, names) if is_same else None
        before = names_before(self._back, node, names)
        if before is not None:
            return self._found(node.ins[0], before)
        if node.name == "iota":
            return self._counted(value, names[int(node.params["dimension"])])
        return self._computed(node, names) if node.name in EVALUATED else None

    def _counted(self, value, name):
        """Positions along an axis."""
        zero = np.zeros((), value.dtype)
        if str(value.dtype) not in EXACT or name not in ((), QUERIES, KEYS):
            return None
        return _Places(int(name == QUERIES), int(name == KEYS), zero)

    def _of_constant(self, constant, names):
        """The same for a constant. It may only vary along queries and keys."""
        if isinstance(constant, self._jax.core.Tracer):
            return None
        array = np.asarray(constant)
        for axis, name in enumerate(names if array.ndim else ()):
            if name in (QUERIES, KEYS):
                continue
            first = array.take([0], axis)
            if not (array == first).all():
                return None
            array = first
        if array.size == 1:
            return _Places(0, 0, array.reshape(()))
        both = [name for name in names if name in (QUERIES, KEYS)]
        array = array.reshape([size for size in array.shape if size > 1])
        if array.ndim == 1:
            return self._of_line(array, both[0])
        array = array if both == [QUERIES, KEYS] else array.T
        if not (array[1:, 1:] == array[:-1, :-1]).all():
            return None
        return np.concatenate([array[0, :0:-1], array[:, 0]])

    def _of_line(self, array, name):
        """Numbers along one axis, if they grow evenly."""
        if str(array.dtype) not in EXACT:
            return None
        step = array[1] - array[0]
        if not (array == array[0] + step * np.arange(len(array))).all():
            return None
        return _Places(step * (name == QUERIES), step * (name == KEYS), array[0])

    def _computed(self, node, names):
        """The same for the result of an elementwise operation."""
        taken = []
        for value in node.ins:
            found = self._found(value, names_of(value, names))
            if found is None:
                return None
            taken.append(found)
        if all(isinstance(one, _Places) for one in taken):
            found = self._of_places(node, taken)
            if found is not None:
                return found
        arrays = list(map(self._spread, taken))
        if any(one is None for one in arrays):
            return None
        return self._by_numpy(node, arrays)

    def _of_places(self, node, taken):
        """Apply an operation to sums of positions; None if the result is not such a sum."""
        first = taken[0]
        if node.name == "convert_element_type":
            dtype = node.outs[0].dtype
            is_exact = first.is_number or str(dtype) in EXACT
            if is_exact:
                return _Places(first.query, first.key, first.offset.astype(dtype))
        if all(one.is_number for one in taken):
            made = self._by_numpy(node, [one.offset for one in taken])
            return None if made is None else _Places(0, 0, made)
        if node.name in ("add", "sub"):
            return first.plus(taken[1], 1 if node.name == "add" else -1)
        if node.name == "neg":
            return first.plus(first, -2)
        if node.name in COMPARED:
            apart = self._spread(first.plus(taken[1], -1))
            return None if apart is None else self._by_numpy(node, [apart, 0 * apart])
        return None

    def _spread(self, found):
        """Spread a value over distances; None if it depends on more than the distance."""
        if not isinstance(found, _Places):
            return found
        if found.query != -found.key:
            return None
        array = found.offset + found.query * self.each
        return array.astype(np.asarray(found.offset).dtype)

    def _by_numpy(self, node, arrays):
        """The results of an elementwise operation; None if NumPy has none like it."""
        if node.name == "convert_element_type":
            return arrays[0].astype(node.outs[0].dtype)
        if node.name == "select_n" and len(arrays) == 3:
            is_true = arrays[0].astype(bool)
            return np.where(is_true, arrays[2], arrays[1])
        if node.name not in COMPUTED:
            return None
        return np.asarray(getattr(np, COMPUTED[node.name])(*arrays))


class Masking:
    """The arguments of a fused call that replace the masks.

    Args:
        distances: `Distances` of the attention. masks: of the attention. back: as of `Distances`.
        rows: the name of the axis of batch rows.
    """

    def __init__(self, distances, masks, back, rows):
        self._known = distances
        self._back = back
        self._rows = rows
        self._shown = distances.each > distances.each[0] - 1  # all distances
        self._of_distances = []  # masks
        self._with_lengths = []  # masks
        self.lengths = []  # numbers of keys: (value, names of its axes, number to add)
        self.others = []  # masks that are passed on
        self._seen = set()  # keys of masks
        for mask in masks:
            self._take(mask)
        self._settle()

    def _settle(self):
        """Decide what is passed as a window. cuDNN takes a window only without lengths or a bias,
        which jax makes of masks (NVIDIA/cudnn-frontend, ``scaled_dot_product_flash_attention.h``).
        """
        before = self._known.each < 0
        hides_later = before.any() and not self._shown[before].any()
        self.is_causal = bool(self._known.are_alike and hides_later)
        left = self._shown | before if self.is_causal else self._shown
        self.window = None  # number of earlier keys that a query sees, if causal
        count = int(self._shown.sum())
        is_window = self.is_causal and count and self._shown[~before][:count].all()
        if not left.all():
            if is_window and not (self.lengths or self.others):
                self.window = count - 1
            else:
                self.others += self._of_distances
        if self.others:
            self.others += self._with_lengths
            self.lengths = []

    def hides_a_row(self):
        """Whether a query sees no key, whatever the data are."""
        queries, keys = self._known.sizes
        counts = np.concatenate([[0], np.cumsum(self._shown)])
        # distances of a query from all keys lie next to each other
        return bool((counts[keys : keys + queries] == counts[:queries]).any())

    @property
    def values(self):
        """The values that it is computed from."""
        return [one.value for one in self.others] + [one[0] for one in self.lengths]

    def _take(self, mask):
        """Sort a mask, or the masks that it consists of, into the three kinds."""
        if mask.key() in self._seen:
            return
        self._seen.add(mask.key())
        array = self._known.of(mask.value, mask.names)
        if array is not None:
            self._shown = self._shown & mask.shown(array)
            self._of_distances.append(mask)
            return
        parts = self._parts(mask)
        length = None if parts else self._length(mask)
        for part in parts:
            self._take(part)
        if length is not None:
            self.lengths.append(length)
            self._with_lengths.append(mask)
        elif not parts:
            self.others.append(mask)
            self._note_outside(mask)

    def _note_outside(self, mask):
        """Also record by distance what a mask from outside of a loop or checkpoint hides."""
        outside = mask.value.seen().outside
        if outside is None or outside.shape != mask.value.shape:
            return
        seen = set()
        left = [mask.of(outside, mask.names)]
        while left:
            one = left.pop()
            if one.key() in seen:
                continue
            seen.add(one.key())
            array = self._known.of(one.value, one.names)
            if array is None:
                left += self._parts(one)
            else:
                self._shown = self._shown & one.shown(array)

    def _parts(self, mask):
        """Split a mask into masks that together hide the same keys; none if it cannot be split."""
        value = mask.value.seen()
        node = value.node
        if node is None or mask.is_added or str(value.dtype) != "bool":
            return []
        before = names_before(self._back, node, mask.names)
        if before is not None:
            return [mask.of(node.ins[0], before)]
        if node.name == "not":
            return [mask.of(node.ins[0], mask.names, not mask.hides)]
        if node.name == ("or" if mask.hides else "and"):
            return [mask.of(value, mask.names) for value in node.ins]
        return self._parts_of_numbers(node, mask)

    def _parts_of_numbers(self, node, mask):
        """The same for products of zeros and ones that are compared with a number."""
        is_one_shown = self._shows_ones(node, mask.names)
        if is_one_shown is None:
            return []
        mask.is_of_numbers = True
        bits = self._bits(node.ins[0], mask.names)
        hides = mask.hides == is_one_shown
        if bits is None or (hides and len(bits) > 1):
            return []
        return [mask.of(*bit, hides) for bit in bits]

    def _shows_ones(self, node, names):
        """Whether an operation makes true of ones and false of zeros; None if it makes the same of
        both, or something else.
        """
        if node.name == "convert_element_type":
            return True
        if node.name not in COMPARED:
            return None
        number = self._known.number(node.ins[1], names_of(node.ins[1], names))
        if number is None:
            return None
        compare = getattr(np, COMPARED[node.name])
        is_one_true = bool(compare(1, number))
        return None if bool(compare(0, number)) == is_one_true else is_one_true

    def _bits(self, value, names):
        """Return the truth values whose product a value is, as sides; None if it may be another
        number.
        """
        found = []
        seen = set()
        left = [(value, names_of(value, names))]
        while left:
            side = left.pop()
            if side in seen:
                continue
            seen.add(side)
            value, names = side
            node = value.seen().node
            if str(value.dtype) == "bool":
                found.append(side)
            elif node is None:
                return None
            elif node.name == "mul":
                left += [(one, names_of(one, names)) for one in reversed(node.ins)]
            else:
                before = names
                if node.name != "convert_element_type":
                    before = names_before(self._back, node, names)
                if before is None:
                    return None
                left.append((node.ins[0], names_of(node.ins[0], before)))
        return found

    def _length(self, mask):
        """Return the number of keys that a mask shows for each batch row; None if it is not such a
        mask.
        """
        node = mask.value.seen().node
        if node is None or node.name not in MIRRORED or mask.is_added:
            return None
        name = OPPOSITE[node.name] if mask.hides else node.name
        for place in (0, 1):
            counted, given = (node.ins[at] for at in (place, 1 - place))
            keys = self._known.places(counted, names_of(counted, mask.names))
            side = self._of_rows(given, names_of(given, mask.names))
            if place:
                name = MIRRORED[name]
            is_counted = keys is not None and keys[:2] == (0, 1)
            if is_counted and side is not None and name in ("lt", "le"):
                return (*side, int(name == "le") - int(keys[2]))
        return None

    def _of_rows(self, value, names):
        """Return a value that depends only on batch rows, as a side; None if there is none."""
        if not str(value.dtype).startswith("int"):
            return None
        while True:
            node = value.seen().node
            if node is None or node.name not in MOVED:
                break
            before = self._back(node, names)
            if before is None:
                break
            value, names = node.ins[0], before
        is_of_rows = {*names} <= {(), self._rows}
        return (value, names) if is_of_rows else None
