"""Compare what a step computes with and without alternatives, at a small size on the CPU.

The step's function is traced again with small arguments, both times with the same random values. A
size is made small if the function still traces with it, alone or with others. The loss, the
gradients and all other results that are floating-point numbers are compared. Both sides use 64-bit
numbers (`exact.py`), so that rounding does not cause differences.
"""

import functools
import importlib
import itertools
import math
import os
import threading
import time

from pgle_hook import SetAside, guarded, is_array, jax_private
from pgle_hook.exact import EMULATED, wide
from pgle_hook.own_sizes import OwnSizes
from pgle_hook.results import Result, kept
from pgle_hook.rewrite import INLINED, explicit_sharding, is_literal
from pgle_hook.stepwise import (
    Given,
    Stepwise,
    functions_of,
    most_bytes,
    operations,
)
from pgle_hook.tails import has_references, needed, tail

np = importlib.import_module("numpy")

MOST_OPERATIONS = 1e11  # of one execution, about 3 CPU seconds
MOST_BYTES = 4 * 2**30  # of intermediate values; another program runs at the same time
# CPU seconds for comparing one change of a program; an answer has several
MOST_S = 40.0
MOST_ELAPSED_S = 600.0  # for the same, however busy the machine is
LOOKED_S = 0.5  # time between two looks at how long it takes
MOST_TRIED = 8  # sizes that are made small, the largest first
DRAWN = 1_000_003  # random numbers; a prime, so that no axis repeats them in step
LEAST_SIZE = 8  # a smaller one stays
SMALL = 16  # what becomes of a size
LARGER = 64  # the same if the change is not found: 16 heads of 16 have one feature each
PAIR = 2
"""Reduced size of a dimension that only counts arrays of at least two axes, such as layers or a
batch of activations. With one row, mixed-up rows would not show.
"""
WORDS = 8
"""Reduced size of other dimensions that are always first: a vocabulary, a length. With one word,
masks and scales have no effect. Random integers (tokens, classes) are smaller.
"""
OWN = 23  # a size that no array of a program is likely to have
UNIT = 2.0**-20
"""What an alternative may round where nothing makes roundings larger. It takes constants from a
program in f32. Some operations make their roundings (2⁻²⁴) up to 16 times as large.
"""
ROUNDED = 2.0**-24
"""A rounding of f32. It changes a result by as much as rounding the arguments by it does."""
FINE = 2.0**-40
"""What arguments are rounded by, to see how much larger a step makes it. Roundings of numbers with
64 bits (2⁻⁵³) stay far below, and it is too small for anything that is not linear.
"""
MOST_PLACES = 1024  # largest number compared with positions that the reduced size keeps
COMPARING = frozenset(("add", "ge", "gt", "le", "lt", "sub"))
"""Operations that compare positions with a number, as a window does."""
DIVIDING = frozenset(("div", "floor_divide", "rem", "remainder"))
"""Operations, and jitted functions of jax, that divide positions by a number, as blocks do."""

TOLERANCE = 4.0
"""Roundings of one program that may add up. Both programs round equally many values, at different
places. So each may be that far from the exact result, and the distances add up (triangle
inequality).
"""

SHOWN = 0.75  # share of true values in a boolean argument

LOOSEST = 0.25  # largest tolerance with which a comparison is meaningful
TOO_LONG = "comparing takes more than %g CPU seconds" % MOST_S
SAYS_NOTHING = "rounding changes its results too much, or they are zero"


class _RefusedError(Exception):
    """Comparing takes too much time, too many operations or too much memory."""


class Values:
    """Compares the values of one function with and without alternatives.

    Args:
        jax: the module.
        use: called with true or false: turns the alternatives on or off.
        note: gets the result: ``difference``, ``tolerance``, ``sizes``, ``compared``; or ``why``
            there is none.
        precision: precision to which an alternative rounds products; empty: no rounding.
        is_made: whether the alternatives were made in what was traced aside.
        in_words: explains an exception in a line; empty: use the exception's own words.
    """

    def __init__(
        self,
        jax,
        use,
        note,
        precision="",
        *,
        is_made=lambda: True,
        in_words=lambda error: "",
    ):
        self._jax = jax
        self._in_words = in_words
        self._use = use
        self._note = note
        self.precision = precision
        self._is_made = is_made
        self._until_s = math.inf  # CPU time of this process, from which it is too long
        self._compiled = {}  # operations, for all alternatives, as of `Stepwise`
        self._seen = None  # losses and gradients of a trace; None: nobody asks for them
        # the function as it is, of the last comparison, as of `_Original`; None: of none
        self._original = None

    def watch(self, function):
        """Compare when jax traces a function with this name for the first time."""
        usual = self._jax.jit

        @functools.wraps(usual)
        def jit(*args, **options):
            if not args and "fun" not in options:  # a decorator with settings
                return lambda given: jit(given, **options)
            given = args[0] if args else options.pop("fun")
            if getattr(given, "__name__", "") == function:
                given = self._comparing(given)
            return usual(given, *args[1:], **options)

        self._jax.jit = jit

    def _comparing(self, function):
        """Return the function, which compares its values at its first call."""
        is_done = []

        @functools.wraps(function)
        def comparing(*args, **options):
            if not is_done:
                is_done.append(True)
                self.compare_in_time(function, args, options)
            return function(*args, **options)

        return comparing

    def compare_in_time(self, function, args, options):
        """Compare as `compare` does. If that takes too long, record it, and end the process if the
        comparison does not stop by itself.
        """
        self._until_s = time.process_time() + MOST_S
        is_done = threading.Event()
        watching = threading.Thread(target=self._end, args=(is_done,), daemon=True)
        watching.start()
        guarded(lambda: self.compare(function, args, options))
        is_done.set()
        watching.join()

    def _end(self, is_done):
        """In a thread: end the process if the comparison takes too long."""
        last = time.monotonic() + MOST_ELAPSED_S
        while not is_done.wait(LOOKED_S):
            is_late = time.process_time() > self._until_s + MOST_S
            if is_late or time.monotonic() > last:
                self._note({"why": TOO_LONG})
                os._exit(0)

    def _check_time(self):
        if time.process_time() > self._until_s:
            raise _RefusedError(TOO_LONG)

    def see_gradients(self, replace=setattr):
        """Replace jax's differentiating functions by ones that also record their results.

        Args:
            replace: sets an attribute of a module.
        """
        for name in ("grad", "value_and_grad"):
            replace(self._jax, name, self._seeing(name, getattr(self._jax, name)))

    def _seeing(self, name, usual):
        """Return a differentiating function of jax that also records its results."""

        @functools.wraps(usual)
        def differentiate(*args, **options):
            call = usual(*args, **options)

            @functools.wraps(call)
            def seeing(*given, **named):
                found = call(*given, **named)
                if self._seen is None:
                    return found
                seen = {"gradient": found}
                if name == "value_and_grad":
                    loss, gradient = found
                    seen = {"loss": loss, "gradient": gradient}
                self._seen.append(seen)
                return found

            return seeing

        return differentiate

    def compare(self, function, args, options):
        """Compare a function, with arguments that only give shapes. jax may be tracing it."""
        with self._jax.ensure_compile_time_eval():
            found = guarded(lambda: self._compared(function, args, options))
        self._note(found or {"why": "the comparison failed"})

    def _compared(self, function, args, options):
        """The fields of a comparison, or ``why`` there is none."""
        leaves, structure = self._jax.tree_util.tree_flatten((args, options))
        with SetAside(), _Unsharded(self._jax):
            try:
                for small in (SMALL, LARGER):
                    original = self._original_of(function, leaves, structure, small)
                    self._use(True)
                    program = self._traced(original.step)
                    if self._is_made():
                        break
                before, after = self._both(original, program)
            except Exception as error:
                return {"why": self._why_not(error, leaves)}
            finally:
                self._use(True)
        if not self._is_made():
            return {"why": "the change is not found in it at a small size"}
        return self._judged(original, program, before, after)

    def _why_not(self, error, leaves):
        """Say in a line why a function with these arguments cannot be compared."""
        if isinstance(error, _RefusedError):
            return str(error)
        if any(map(explicit_sharding, leaves)):
            return "explicit shardings have no meaning on one device"
        text = " ".join(str(error).split())[:160]
        return self._in_words(error) or "%s: %s" % (type(error).__name__, text)

    def _original_of(self, function, leaves, structure, small):
        """Return the unchanged function, computed once for all its alternatives with one
        rounding.
        """
        key = (function, structure, list(map(_described, leaves)), self._unit(), small)
        if self._original is None or self._original.key != key:
            self._original = None  # free it before another one takes as much memory
            self._use(False)
            step = _Step(self._jax, function, leaves, structure)
            with jax_private.traced_only():
                step.look()
                step.shrink(small)
            self._original = _Original(key, step, self._traced(step))
        return self._original

    def _unit(self):
        """The size of one rounding: of products on Tensor Cores, else of an alternative's
        constants.
        """
        if not self.precision:
            return UNIT
        _, digits = EMULATED[self.precision]
        return 2.0 ** -(digits + 1)

    def _nudge(self):
        """The relative rounding of arguments that shows how sensitive a program's results are."""
        return self._unit() if self.precision else FINE

    def _both(self, original, program):
        """Return what a program computes as it is and with alternatives, as lists of `Result`.

        Both begin with losses and gradients. The step's other results follow if they can differ
        even with equal losses and gradients.
        """
        is_same = bool(program.names[0]) and original.program.follows(program)
        if is_same not in original.found:
            original.found[is_same] = self._of_original(original, is_same)
        before = original.found[is_same]
        after = self._results(program, original.values, is_same, self.precision)
        if self.precision or not _are_the_same(before, after):
            self._see_noise(original.program, original.values, is_same, before)
        if self.precision:
            values = original.values
            self._see_noise(program, values, is_same, after, self.precision)
        return before, after

    def _of_original(self, original, is_same):
        """What the program computes as it is."""
        found = self._results(original.program, original.values, is_same)
        if not _are_finite(found):  # it takes roots, as of second moments
            original.values.are_positive = True
            found = self._results(original.program, original.values, is_same)
        return found

    def _see_noise(self, program, values, is_same, results, precision=""):
        """Note how far rounding the arguments moves results, once."""
        if any(result.noise for result in results):
            return
        moved = self._results(program, values, is_same, precision, self._nudge())
        for one, other in zip(results, moved):
            one.noise = one.apart(other)

    def _results(self, program, values, is_same, precision="", nudge=0.0):
        """What a program computes of its arguments.

        Args:
            values: of the arguments, as of `_Values`.
            is_same: whether losses and gradients are enough.
            nudge: what the arguments are rounded by.
        """
        part = program.closed
        wanted = set(part.jaxpr.invars)
        if is_same:
            count = len(program.names[0])
            part = needed(part, part.jaxpr.outvars[:count])
            wanted = part.wanted
        _check_operations(operations(part.jaxpr))
        _check_memory(most_bytes(part.jaxpr))
        given = []
        for place, var in enumerate(part.jaxpr.invars):
            given.append(values.given(place, nudge) if var in wanted else None)
        with wide(self._jax):
            compute = Stepwise(self._jax, precision, self._compiled, self._check_time)
            if program.is_plain:
                made = compute(part, given, kept=kept)
            else:
                made = map(kept, compute.whole(part, given))
            return list(map(Result, made))

    def _traced(self, step):
        """The step traced at its small size, as of `_Program`."""
        try:
            return self._traced_with(step, sees=True)
        except (self._jax.errors.UnexpectedTracerError, TypeError):
            # Gradients within a loop are no values of the step.
            return self._traced_with(step, sees=False)

    def _traced_with(self, step, sees):
        """Trace the step.

        Args:
            sees: whether losses and gradients are its first results.
        """
        jax = self._jax
        names = []

        def run(arrays):
            self._seen = [] if sees else None
            results = step.call(arrays)
            seen = self._seen or []
            self._seen = None
            if not seen:
                results = _changes(jax, _floats(jax, results), arrays)
            named = [{"result": results}]
            names[:] = [_names(jax, seen), _names(jax, named)]
            return _floats(jax, seen), _floats(jax, results)

        self._check_time()
        with jax_private.traced_only():
            closed = jax.make_jaxpr(run)(step.arrays())
        if any(isinstance(one, jax.core.Tracer) for one in closed.consts):
            raise jax.errors.UnexpectedTracerError("a value of another trace")
        return _Program(closed, names)

    def _judged(self, original, program, before, after):
        """The largest difference of loss, gradients and results, each relative to its size. Left
        out are those that rounding the arguments changes too much.
        """
        count = len(program.names[0])
        names = list(itertools.chain(*program.names))
        followed = len(names) - len(before)  # results that are equal if all others are
        compared = {"seen": 0, "results": followed}
        worst = _Difference(0.0, 2 * TOLERANCE * self._unit())
        least = _least_size(before)
        for place, (one, other) in enumerate(zip(before, after)):
            known = (one.size, other.size, one.noise, other.noise)
            if not np.isfinite(known).all():
                return {"why": "its results are not finite at a small size"}
            size = max(one.size, other.size)
            if not size:  # zeros are equal whatever made them
                continue
            tolerance = self._tolerance(one, other)
            if tolerance > LOOSEST or size < least:
                continue
            compared["seen" if place < count else "results"] += 1
            found = _Difference(one.apart(other), tolerance, names[place])
            worst = max(worst, found, key=_Difference.rank)
        is_flat = count and not any(result.size for result in before[:count])
        if is_flat or not compared["seen"] + compared["results"] - followed:
            return {"why": SAYS_NOTHING}
        return {
            **worst.fields(),
            "unit": self._unit(),
            "noisy": len(names) - sum(compared.values()),
            "sizes": original.step.shown(),
            **compared,
        }

    def _tolerance(self, one, other):
        """How far apart two results may be, as `Result`: both may round."""
        if self.precision:
            unit = self._unit()
            return TOLERANCE * (max(unit, one.noise) + max(unit, other.noise))
        growth = one.noise / FINE
        tolerance = 2 * TOLERANCE * max(UNIT, growth * ROUNDED)
        if tolerance > LOOSEST:  # constants must be the same
            tolerance = 2 * TOLERANCE * growth * FINE
        return tolerance


class _Difference:
    """The difference of a result with and without alternatives.

    Args:
        apart: the difference, relative to the size of the result.
        tolerance: the largest difference that rounding may cause.
        name: the result's name; empty if it has none.
    """

    def __init__(self, apart, tolerance, name=""):
        self._apart = apart
        self._tolerance = tolerance
        self._name = name

    def rank(self):
        """Larger for a worse difference."""
        return self._apart > self._tolerance, self._apart

    def fields(self):
        """The fields of a comparison that describe it."""
        found = {"difference": self._apart, "tolerance": self._tolerance}
        return dict(found, worst=self._name) if self._name else found


class _Program:
    """A traced step. Its first results are losses and gradients.

    Args:
        closed: its jaxpr, with constants.
        names: two lists: names of losses and gradients, and names of the other results.
    """

    def __init__(self, closed, names):
        self.closed = closed
        self.names = names
        # whether each operation can be computed alone
        self.is_plain = not has_references(closed.jaxpr)

    def follows(self, other):
        """Whether both compute their other results from losses and gradients in the same way."""
        if not (self.is_plain and other.is_plain) or self.names != other.names:
            return False
        return self._tail is not None and self._tail == other._tail

    @functools.cached_property
    def _tail(self):
        return tail(self.closed, len(self.names[0]))


class _Original:
    """The unchanged function: its sizes, its arguments, and its results."""

    def __init__(self, key, step, program):
        self.key = key  # what tells it from others
        self.step = step
        self.program = program
        self.values = step.values()
        self.found = {}  # results, by whether losses and gradients are enough


class _Step:
    """A function with small arguments. Some of their leaves are arrays."""

    def __init__(self, jax, function, leaves, structure):
        self._jax = jax
        self._function = function
        self._structure = structure
        self._leaves = leaves
        self._places = [place for place, leaf in enumerate(leaves) if is_array(leaf)]
        # reduced size by a size, or by one axis of the arrays of one shape: (shape, axis)
        self._sizes = {}
        # reduced size by a size that the program's own code has as a constant
        self._constants = {}
        self._own = OwnSizes(function)
        self.made = []  # kinds of values that it computes, with arguments and results
        # by size: the largest number that positions along it are compared with
        self._numbers = {}

    def arrays(self):
        """The array arguments, as shapes of the reduced size."""
        found = []
        for place in self._places:
            leaf = self._leaves[place]
            shape = []
            for axis, size in enumerate(leaf.shape):
                usual = self._sizes.get(size, size)
                shape.append(self._sizes.get((leaf.shape, axis), usual))
            found.append(self._jax.ShapeDtypeStruct(shape, leaf.dtype))
        return found

    def call(self, arrays):
        """The function's results."""
        leaves = list(self._leaves)
        for place, array in zip(self._places, arrays):
            leaves[place] = array
        args, options = self._jax.tree_util.tree_unflatten(self._structure, leaves)
        with self._own.replaced(self._constants):
            return self._function(*args, **options)

    def look(self):
        """Trace the unchanged function, and keep the shapes and types of its values."""
        closed = self._jax.make_jaxpr(lambda arrays: self.call(arrays))(self.arrays())
        eqns = list(_eqns_in(closed.jaxpr))
        self.made = [*self.arrays(), *_arrays_in(eqns)]
        self._numbers = _numbers_in(eqns)

    def shrink(self, small_size=SMALL):
        """Reduce each size with which the function can still be traced, alone or together with
        others.
        """
        places = _places(self.arrays())
        inner = _inner_sizes(self.made)
        wanted = sorted((size for size in places if size >= LEAST_SIZE), reverse=True)
        least = {}
        for size in wanted[:MOST_TRIED]:
            small = _small(places[size], size in inner, small_size)
            number = self._numbers.get(size, 0)
            if number >= small:
                small = number // small_size * small_size + small_size
            if small < size:
                least[size] = small
                self._traces_with({size: small})
        left = self._not_reduced(least)
        for group in (left, *itertools.combinations(left, 2)):
            self._shrink_together(self._not_reduced(group), least)
        for size in self._not_reduced(left):
            self._shrink_some_axes(size, least[size])
        self._shrink_first_axes(small_size)

    def _not_reduced(self, sizes):
        return [size for size in sizes if size not in self._sizes]

    def _shrink_first_axes(self, small_size):
        """Reduce axes that only count arrays, even if something else has the same size, such as
        batch and heads. With a unique size, an axis shows whether it only counts.
        """
        by_size = {}
        for place in self._places:
            shape = self._leaves[place].shape
            if len(shape) < 3 or shape[0] < LEAST_SIZE:
                continue
            if self._sizes.get(shape[0], shape[0]) > PAIR:
                by_size.setdefault(shape[0], set()).add((shape, 0))
        for axes in itertools.islice(by_size.values(), MOST_TRIED):
            self._shrink_by_itself(axes, small_size)

    def _shrink_by_itself(self, axes, small_size):
        """Give axes a unique size, look at the values computed, and reduce the axes."""
        before = self._sizes
        if not self._traces_with(dict.fromkeys(axes, OWN)):
            return
        self.look()
        is_inner = OWN in _inner_sizes(self.made)
        small = _small(_places(self.arrays())[OWN], is_inner, small_size)
        self._sizes = before
        self._traces_with(dict.fromkeys(axes, small))

    def _shrink_some_axes(self, size, small):
        """Reduce a size on some of its axes only, such as a length that equals a width which the
        function has as a constant. Axes of the rarest shapes come first, because data have unique
        shapes and parameters share theirs.
        """
        shapes = [self._leaves[place].shape for place in self._places]
        rarest = sorted(set(shapes), key=lambda shape: (shapes.count(shape), shape))
        axes = []
        for shape in rarest:
            axes += [(shape, axis) for axis, found in enumerate(shape) if found == size]
        are_reduced = [self._traces_with({axis: small}) for axis in axes[:MOST_TRIED]]
        if any(are_reduced):
            return
        for pair in itertools.islice(itertools.combinations(axes, 2), MOST_TRIED):
            if self._traces_with(dict.fromkeys(pair, small)):
                return

    def _shrink_together(self, sizes, least):
        """Divide several sizes by the same number, as large as possible. In the function one may be
        a multiple of another, as when one product makes queries, keys and values.
        """
        if len(sizes) < 2:
            return
        common = math.gcd(*sizes)
        factor = common & -common  # the largest power of two that divides all
        while factor > 1:
            smaller = {size: size // factor for size in sizes}
            are_large = all(smaller[size] >= least[size] for size in sizes)
            if are_large and self._traces_with(smaller):
                return
            factor //= 2

    def _traces_with(self, sizes):
        """Whether the function can be traced with other sizes, if need be with other constants of
        its code. If so, keep them.
        """
        if self._traces_with_constants(sizes, {}):
            return True
        own = {size: small for size, small in sizes.items() if self._own.has(size)}
        return bool(own) and self._traces_with_constants(sizes, own)

    def _traces_with_constants(self, sizes, constants):
        """Whether the function can be traced with these sizes and constants. If so, keep them."""
        before = (self._sizes, self._constants)
        self._sizes = {**self._sizes, **sizes}
        self._constants = {**self._constants, **constants}
        try:
            self._jax.eval_shape(lambda arrays: self.call(arrays), self.arrays())
        except Exception:  # the function does not accept these sizes
            self._sizes, self._constants = before
            return False
        return True

    def shown(self):
        """The sizes that were reduced: ``2048 → 16``."""
        found = []
        for size, small in self._sizes.items():
            if isinstance(size, tuple):
                shape, axis = size
                size = shape[axis]
            if size != small:
                found.append("%d → %d" % (size, small))
        return ", ".join(dict.fromkeys(found))

    def values(self):
        """Random arguments, as of `_Values`."""
        trace = self._jax.make_jaxpr(self.call, return_shape=True)
        with jax_private.traced_only():
            _, results = trace(self.arrays())
        kept = set(map(_shape_and_type, self._jax.tree_util.tree_leaves(results)))
        return _Values(self._jax, self.arrays(), kept)


class _Values:
    """Random arguments of a function: numbers of normal size, so that products of them are so, too.

    Args:
        arrays: shapes and types.
        kept: shapes and types of its results.
    """

    def __init__(self, jax, arrays, kept):
        self._jax = jax
        self._arrays = arrays
        self._kept = kept
        self._drawn = {}  # by the place of the argument
        self.are_positive = False

    def given(self, place, nudge):
        """An argument, rounded by a nudge if it is of floating-point numbers."""
        if place not in self._drawn:
            self._drawn[place] = self._value(place, self._arrays[place])
        value = self._drawn[place]
        if not _is_number(value):
            return value
        return Given(abs(value) if self.are_positive else value, nudge, place)

    def _value(self, place, array):
        """Random values for an argument of this shape and type, the same for the same place."""
        jax = self._jax
        random = np.random.default_rng(place)
        shape, dtype = array.shape, array.dtype
        if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
            return _keys(jax, array)
        if jax.numpy.issubdtype(dtype, jax.numpy.floating):
            is_state = _shape_and_type(array) in self._kept and len(shape) > 1
            deviation = 1 / math.sqrt(shape[-2]) if is_state else 1.0
            count = min(math.prod(shape), DRAWN)
            drawn = random.normal(scale=deviation, size=count).astype(dtype)
            return np.resize(drawn, shape)
        if jax.numpy.issubdtype(dtype, jax.numpy.integer):
            drawn = random.integers(0, WORDS, size=shape) if shape else 1
            return np.asarray(drawn, dtype)
        if shape and str(dtype) == "bool":
            return _shown(random, shape)
        return np.ones(shape, dtype)


def _shape_and_type(array):
    return tuple(array.shape), str(array.dtype)


def _keys(jax, array):
    """Random keys of a shape, with the implementation that their type names."""
    found = []
    jax.eval_shape(lambda keys: found.append(jax.random.key_impl(keys)), array)
    key = jax.random.key(0, impl=found[0])
    return jax.random.split(key, array.shape) if array.shape else key


def _check_operations(count):
    """Refuse a function that takes too many operations."""
    if count > MOST_OPERATIONS:
        raise _RefusedError("even at a small size it takes %.0e operations" % count)


def _check_memory(size):
    """Refuse a function that takes too much memory, in bytes."""
    if size > MOST_BYTES:
        raise _RefusedError("even at a small size it takes %.0f GiB" % (size / 2**30))


def _shown(random, shape):
    """Truth values of a mask, mostly true. The first on the last axis is always true, so that each
    query sees a key.
    """
    shown = random.random(size=shape) < SHOWN
    shown[..., 0] = True
    return shown


def _eqns_in(jaxpr):
    """All operations of a traced function and of the functions in it. A function that is called
    several times counts once.
    """
    seen = set()
    left = [jaxpr]
    while left:
        jaxpr = left.pop()
        if id(jaxpr) in seen:
            continue
        seen.add(id(jaxpr))
        for eqn in jaxpr.eqns:
            yield eqn
            left += functions_of(eqn)


def _arrays_in(eqns):
    """All arrays that operations make, as shapes with types."""
    for eqn in eqns:
        for var in eqn.outvars:
            if hasattr(var.aval, "dtype"):
                yield var.aval


def _numbers_in(eqns):
    """Return the largest constant that integers are compared with or divided by, by the size of
    their last axis. It may be the width of a window or block: a smaller axis would hide it.
    """
    found = {}
    for eqn in eqns:
        name = eqn.primitive.name
        if name in INLINED:
            name = eqn.params.get("name")
        if name not in COMPARING and name not in DIVIDING:
            continue
        shape = eqn.outvars[0].aval.shape
        size = next((size for size in reversed(shape) if size > 1), 0)
        numbers = [found.get(size, 0)]
        for number in _whole_numbers(eqn):
            if number < min(size, MOST_PLACES):
                numbers.append(number)
        found[size] = max(numbers)
    return found


def _whole_numbers(eqn):
    """The integers that a program writes as operands of an operation."""
    for atom in eqn.invars:
        if is_literal(atom) and "int" in str(atom.val.dtype):
            yield int(atom.val)


def _inner_sizes(arrays):
    """The sizes of all axes but the first ones."""
    found = set()
    for array in arrays:
        found.update(array.shape[1:])
    return found


def _places(arrays):
    """Where each size is: pairs of an axis and how many there are. Whole numbers stand for arrays
    that have one more: tokens for their embeddings, classes for their chances.
    """
    places = {}
    for array in arrays:
        count = len(array.shape) + (not _is_number(array))
        for axis, size in enumerate(array.shape):
            places.setdefault(size, set()).add((axis, count))
    return places


def _is_number(value):
    """Whether a value is of floating-point numbers."""
    return "float" in str(value.dtype)


def _small(places, is_inner, small_size):
    """The reduced size, from the axes of arguments that have a size and their numbers. `is_inner`:
    whether the step computes a value in which the size is not first, such as scores.
    """
    if any(axis > 0 for axis, _ in places):
        return small_size
    is_count = all(count > 2 for _, count in places) and not is_inner
    return PAIR if is_count else WORDS


class _Unsharded:
    """Makes a function traceable for one device, by ignoring its sharding constraints."""

    def __init__(self, jax):
        self._lax = jax.lax

    def __enter__(self):
        self._usual = self._lax.with_sharding_constraint
        self._lax.with_sharding_constraint = lambda x, *args, **options: x

    def __exit__(self, *_):
        self._lax.with_sharding_constraint = self._usual


def _names(jax, found):
    """Names of the floating-point arrays of `_floats`: ``gradient['layer']['w']``."""
    tree = jax.tree_util
    names = []
    for path, leaf in tree.tree_flatten_with_path(found)[0]:
        if _floats(jax, leaf):
            names.append(path[1].key + tree.keystr(path[2:]))
    return names


def _floats(jax, values):
    """The leaves that are floating-point arrays. A loss may return text and numbers, too."""
    found = []
    for leaf in filter(is_array, jax.tree_util.tree_leaves(values)):
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            found.append(jax.numpy.asarray(leaf))
    return found


def _changes(jax, results, arguments):
    """Results minus the argument of the same shape and type (at the same position, if several).
    Next to a parameter, its change by a gradient is too small to see.
    """
    left = {}
    for argument in arguments:
        left.setdefault((argument.shape, argument.dtype), []).append(argument)
    found = []
    for result in results:
        alike = left.get((result.shape, result.dtype))
        if result.shape and alike:
            before = alike.pop(0).astype(jax.numpy.float32)
            result = result.astype(jax.numpy.float32) - before
        found.append(result)
    return found


def _described(leaf):
    """What identifies an argument at the reduced size: shape and type, or its value."""
    return _shape_and_type(leaf) if is_array(leaf) else leaf


def _are_finite(results):
    return all(math.isfinite(result.size) for result in results)


def _are_the_same(before, after):
    """Whether results differ by no more than numbers with 64 bits round, whatever they are of."""
    least = _least_size(before)
    for one, other in zip(before, after):
        is_close = one.apart(other) <= 2 * TOLERANCE * FINE
        if not is_close and max(one.size, other.size) >= least:
            return False
    return True


def _least_size(results):
    """The size of a result next to the largest one that is not made of rounding alone."""
    return FINE * max((result.size for result in results), default=0.0)
