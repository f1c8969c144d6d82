"""What a step computes with its alternatives and without, at a small size on the CPU.

The step's function is traced again with small arguments, both times with the same random values. A
size is made small if the function still traces with it, alone or with others. The loss, the
gradients and all other results that are floating-point numbers are compared. Both sides are
computed with 64 bits a number (`exact.py`), so that a difference is one of what they compute.
"""

import functools
import importlib
import itertools
import math
import os
import threading
import time

from pgle_hook import SetAside, guarded, jax_private
from pgle_hook.exact import EMULATED, Exact, each_in, wide
from pgle_hook.rewrite import explicit_sharding

MOST_OPERATIONS = 1e11  # of one execution: about 3 CPU seconds
MOST_BYTES = 4 * 2**30  # of intermediate values; another program runs at the same time
# CPU seconds for comparing one change of a program; an answer has several
MOST_S = 40.0
MOST_ELAPSED_S = 600.0  # for the same, however busy the machine is
LOOKED_S = 0.5  # time between two looks at how long it takes
MOST_TRIED = 8  # sizes that are made small, the largest first
FEW_ELEMENTS = 1e8  # of all values of a function: 0.8 GB with 64 bits each
QUICKLY = {"xla_backend_optimization_level": 0, "xla_disable_hlo_passes": "fusion"}
"""Options of XLA for a function of few elements: compiling it takes longer than running it."""
LEAST_SIZE = 8  # a smaller one stays
SMALL = 16  # what becomes of a size
PAIR = 2
"""What becomes of a size that only counts arrays of two and more axes, among all values that the
step computes: layers, a batch of activations. One row does not show whether rows are mixed up.
"""
WORDS = 8
"""What becomes of another size of first axes only: a vocabulary, a length. Of one word or place
neither a mask nor a scale has an effect. Random integers are smaller: tokens, classes.
"""
OWN = 23  # a size that no array of a program has
UNIT = 2.0**-20
"""What an alternative may round. It takes constants from a program in f32. Some operations make
their roundings (2⁻²⁴) up to 16 times as large.
"""
MOST_PLACES = 1024  # up to which a number that places are compared with is kept
COMPARING = frozenset(("add", "ge", "gt", "le", "lt", "sub"))
"""Operations that compare places with a number, as a window does."""

TOLERANCE = 4.0
"""Roundings of one program that may add up. Both programs round as many values, at other places,
so each is that far from the exact result, and both distances add up (triangle inequality).
"""

SHOWN = 0.75  # part of the truth values of an argument

LOOSEST = 0.25  # tolerance with which a comparison still says something
TOO_LONG = "comparing takes more than %g CPU seconds" % MOST_S
SAYS_NOTHING = "rounding changes its results too much, or they are zero"


class _TooLongError(Exception):
    """Comparing takes too long."""


class Values:
    """Compares the values of one function with and without alternatives.

    Args:
        jax: the module.
        use: called with whether the alternatives are made from now on.
        note: gets the result: ``difference``, ``tolerance``, ``sizes``, ``compared``; or ``why``
            there is none.
        precision: what products are rounded to by an alternative; empty: nothing.
        is_made: whether the alternatives were made in what was traced aside.
        in_words: says in a line why an exception ended it; empty: by its own words.
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
        self._names = []  # of them, and of other results, each as of `_names`
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
        is_done = []

        @functools.wraps(function)
        def comparing(*args, **options):
            if not is_done:
                is_done.append(True)
                self.compare_in_time(function, args, options)
            return function(*args, **options)

        return comparing

    def compare_in_time(self, function, args, options):
        """Compare as `compare` does. If that takes too long, note it. End the process if the
        comparison does not end by itself then.
        """
        self._until_s = time.process_time() + MOST_S
        is_done = threading.Event()
        watching = threading.Thread(target=self._end, args=(is_done,), daemon=True)
        watching.start()
        guarded(lambda: self.compare(function, args, options))
        is_done.set()
        watching.join()

    def _end(self, is_done):
        last = time.monotonic() + MOST_ELAPSED_S
        while not is_done.wait(LOOKED_S):
            is_late = time.process_time() > self._until_s + MOST_S
            if is_late or time.monotonic() > last:
                self._note({"why": TOO_LONG})
                os._exit(0)

    def _check_time(self):
        if time.process_time() > self._until_s:
            raise _TooLongError(TOO_LONG)

    def see_gradients(self, replace=setattr):
        """Note what functions of jax that differentiate return, for as long as somebody asks.

        Args:
            replace: sets an attribute of a module.
        """
        for name in ("grad", "value_and_grad"):
            replace(self._jax, name, self._seeing(name, getattr(self._jax, name)))

    def _seeing(self, name, usual):
        @functools.wraps(usual)
        def differentiate(*args, **options):
            call = usual(*args, **options)

            @functools.wraps(call)
            def seeing(*given, **named):
                found = call(*given, **named)
                if self._seen is not None:
                    both = name == "value_and_grad"
                    parts = found if both else (found,)
                    names = ("loss", "gradient") if both else ("gradient",)
                    self._seen.append(dict(zip(names, parts)))
                return found

            return seeing

        return differentiate

    def compare(self, function, args, options):
        """Compare a function with arguments that stand for their shapes; jax may be tracing it."""
        with self._jax.ensure_compile_time_eval():
            found = guarded(lambda: self._compared(function, args, options))
        self._note(found or {"why": "the comparison failed"})

    def _compared(self, function, args, options):
        leaves, structure = self._jax.tree_util.tree_flatten((args, options))
        with SetAside(), _Unsharded(self._jax):
            try:
                original = self._original_of(function, leaves, structure)
                self._use(True)
                after = self._measured(original.step, original.values, self.precision)
            except _TooLongError as error:
                return {"why": str(error)}
            except Exception as error:
                if any(map(explicit_sharding, leaves)):
                    return {"why": "explicit shardings have no meaning on one device"}
                text = " ".join(str(error).split())[:160]
                own = "%s: %s" % (type(error).__name__, text)
                return {"why": self._in_words(error) or own}
            finally:
                self._use(True)
        if not self._is_made():
            return {"why": "the change is not found in it at a small size"}
        return self._judged(original, after)

    def _original_of(self, function, leaves, structure):
        """The function as it is, computed once for all its alternatives with one rounding."""
        key = (function, structure, list(map(_described, leaves)), self._unit())
        if self._original is None or self._original.key != key:
            self._original = None  # before another one takes as much memory
            self._use(False)
            step = _Step(self._jax, function, leaves, structure)
            with jax_private.traced_only():
                step.look()
                step.shrink()
            values = step.values()
            results = self._measured(step, values)
            if not _are_finite(results):  # it takes roots, as of second moments
                values = _changed(values, abs)
                results = self._measured(step, values)
            self._original = _Original(key, step, values, results)
        return self._original

    def _measured(self, step, values, precision=""):
        """Losses and gradients of a program, then results of the step, each as of `_Result`."""
        unit = self._unit()
        run = self._runs(step, precision, values)
        found = [list(map(_Result, arrays)) for arrays in self._run(run, values)]
        random = importlib.import_module("numpy").random.default_rng(1)
        signs = lambda value: random.choice((-1.0, 1.0), size=value.shape)
        nudge = lambda value: value * (1 + unit * signs(value))
        with wide(self._jax):
            exact = map(Exact(self._jax).widened, values)
            nudged = _changed(exact, nudge)
        for results, arrays in zip(found, self._run(run, nudged)):
            for result, moved in zip(results, arrays):
                result.see_noise(moved, unit)
        return found

    def _unit(self):
        """What rounds once: products on Tensor Cores, else constants of an alternative."""
        if not self.precision:
            return UNIT
        _, digits = EMULATED[self.precision]
        return 2.0 ** -(digits + 1)

    def _runs(self, step, precision, values):
        """What computes losses and gradients, and results of the step, as arrays."""
        try:
            return self._compiled(step, precision, values, sees=True)
        except (self._jax.errors.UnexpectedTracerError, TypeError):
            # Gradients within a loop are no values of the step.
            return self._compiled(step, precision, values, sees=False)

    def _run(self, run, values):
        self._check_time()
        return run(values)

    def _compiled(self, step, precision, values, sees):
        jax = self._jax

        def run(arrays):
            self._seen = [] if sees else None
            results = step.call(arrays)
            seen = self._seen or []
            self._seen = None
            if not seen:
                results = _changes(jax, _floats(jax, results), arrays)
            named = [{"result": results}]
            self._names = [_names(jax, seen), _names(jax, named)]
            return _floats(jax, seen), _floats(jax, results)

        with jax_private.traced_only():
            closed = jax.make_jaxpr(run)(values)
        if any(isinstance(one, jax.core.Tracer) for one in closed.consts):
            raise jax.errors.UnexpectedTracerError("a value of another trace")
        exact = Exact(jax, precision)
        with wide(jax), jax_private.traced_only():
            given = list(map(exact.widened, values))
            compute = jax.jit(lambda arrays: exact(closed, arrays))
            lowered = compute.lower(given)
            self._check_time()
            made = _arrays_in(_eqns_in(closed.jaxpr))
            is_quick = sum(math.prod(each.shape) for each in made) < FEW_ELEMENTS
            compiled = _quickly(lowered) if is_quick else lowered.compile()
        _check_operations(jax_private.operations_of(compiled))
        _check_memory(compiled)
        count = len(self._names[0])

        def parts(arrays):
            with wide(jax):
                found = jax.device_get(compiled(list(map(exact.widened, arrays))))
            return found[:count], found[count:]

        return parts

    def _judged(self, original, after):
        """The largest difference of loss, gradients and results, each relative to its size. Left
        out are those that rounding the arguments changes too much.
        """
        unit = self._unit()
        before = original.results
        worst = {"difference": 0.0, "tolerance": 2 * TOLERANCE * unit}
        compared = {"seen": 0, "results": 0}
        np = importlib.import_module("numpy")
        for kind, names, *sides in zip(compared, self._names, before, after):
            for name, one, other in zip(names, *sides):
                known = (one.size, other.size, one.noise, other.noise)
                if not np.isfinite(known).all():
                    return {"why": "its results are not finite at a small size"}
                if not (one.size or other.size):  # zeros are equal whatever made them
                    continue
                noises = max(unit, one.noise) + max(unit, other.noise)
                tolerance = TOLERANCE * noises
                if tolerance > LOOSEST:
                    continue
                difference = _apart(one.array, other.array, one.size)
                compared[kind] += 1
                rank = (difference > tolerance, difference)
                if rank > (
                    worst["difference"] > worst["tolerance"],
                    worst["difference"],
                ):
                    worst = {"difference": difference, "tolerance": tolerance}
                    worst["worst"] = name
        is_flat = before[0] and not any(result.size for result in before[0])
        if is_flat or not any(compared.values()):
            return {"why": SAYS_NOTHING}
        left = sum(map(len, before)) - sum(compared.values())
        sizes = original.step.shown()
        return dict(worst, unit=unit, noisy=left, sizes=sizes, **compared)


class _Original:
    """A function as it is: at which sizes, with which values, and what it computes of them."""

    def __init__(self, key, step, values, results):
        self.key = key  # what tells it from others
        self.step = step
        self.values = values
        self.results = results


class _Result:
    """An array that a program computes.

    Args:
        array: its numbers.
    """

    def __init__(self, array):
        self.array = _wide(array)  # None: rounding changes it too much to be compared
        self.size = float(importlib.import_module("numpy").linalg.norm(self.array))
        self.noise = (
            0.0  # how far rounding the arguments moves it, relative to its size
        )

    def see_noise(self, moved, unit):
        """Take what the program computes of arguments that are rounded by a unit."""
        self.noise = _apart(self.array, _wide(moved), self.size)
        if TOLERANCE * (max(unit, self.noise) + unit) > LOOSEST:
            self.array = None


class _Step:
    """A function with small arguments, of which some leaves are arrays."""

    def __init__(self, jax, function, leaves, structure):
        self._jax = jax
        self._function = function
        self._structure = structure
        self._leaves = leaves
        self._places = [
            place for place, leaf in enumerate(leaves) if hasattr(leaf, "dtype")
        ]
        # what becomes of a size, or of one axis of the arrays of one shape: (shape, axis)
        self._sizes = {}
        self.made = []  # kinds of values that it computes, arguments and results among them
        self._numbers = {}  # by size: the largest number that places on it are compared with

    def arrays(self):
        """The arguments that are arrays, as shapes of the small size."""
        found = []
        for place in self._places:
            leaf = self._leaves[place]
            shape = [
                self._sizes.get((leaf.shape, axis), self._sizes.get(size, size))
                for axis, size in enumerate(leaf.shape)
            ]
            found.append(self._jax.ShapeDtypeStruct(shape, leaf.dtype))
        return found

    def call(self, arrays):
        """The function's results."""
        leaves = list(self._leaves)
        for place, array in zip(self._places, arrays):
            leaves[place] = array
        args, options = self._jax.tree_util.tree_unflatten(self._structure, leaves)
        return self._function(*args, **options)

    def look(self):
        """Trace the function as it is, and keep the shapes and types of what it computes."""
        closed = self._jax.make_jaxpr(lambda arrays: self.call(arrays))(self.arrays())
        eqns = list(_eqns_in(closed.jaxpr))
        self.made = [*self.arrays(), *_arrays_in(eqns)]
        self._numbers = _numbers_in(eqns)

    def shrink(self):
        """Make each size small with which the function still traces, alone or with others."""
        places = _places(self.arrays())
        inner = {
            size
            for size, found in _places(self.made).items()
            if any(axis > 0 for axis, _ in found)
        }
        wanted = sorted((size for size in places if size >= LEAST_SIZE), reverse=True)
        least = {}
        for size in wanted[:MOST_TRIED]:
            small = _small(places[size], size in inner)
            number = self._numbers.get(size, 0)
            if number >= small:
                small = number // SMALL * SMALL + SMALL
            if small < size:
                least[size] = small
                self._traces_with({size: small})
        left = [size for size in least if size not in self._sizes]
        for group in (left, *itertools.combinations(left, 2)):
            self._shrink_together([size for size in group if size in left], least)
            left = [size for size in left if size not in self._sizes]
        for size in left:
            self._shrink_some_axes(size, least[size])
        self._shrink_first_axes()

    def _shrink_first_axes(self):
        """Make small what only counts arrays, though something else has the same size, as a batch
        and heads. With a size of its own the axis shows whether it only counts.
        """
        by_size = {}
        for place in self._places:
            shape = self._leaves[place].shape
            if len(shape) < 3 or shape[0] < LEAST_SIZE:
                continue
            if self._sizes.get(shape[0], shape[0]) > PAIR:
                by_size.setdefault(shape[0], set()).add((shape, 0))
        for axes in itertools.islice(by_size.values(), MOST_TRIED):
            self._shrink_by_itself(axes)

    def _shrink_by_itself(self, axes):
        """Give axes a size that nothing else has, look at what is computed, and make them small."""
        before = self._sizes
        if not self._traces_with(dict.fromkeys(axes, OWN)):
            return
        self.look()
        is_inner = any(axis for axis, _ in _places(self.made)[OWN])
        small = _small(_places(self.arrays())[OWN], is_inner)
        self._sizes = before
        self._traces_with(dict.fromkeys(axes, small))

    def _shrink_some_axes(self, size, small):
        """Make a size small on some of its axes only: a length that happens to equal a width which
        the function has as a constant. Axes of arrays with the rarest shape come first, since data
        have one and parameters share theirs.
        """
        shapes = [self._leaves[place].shape for place in self._places]
        rarest = sorted(set(shapes), key=lambda shape: (shapes.count(shape), shape))
        axes = []
        for shape in rarest:
            axes += [(shape, axis) for axis, found in enumerate(shape) if found == size]
        alone = [one for one in axes[:MOST_TRIED] if self._traces_with({one: small})]
        if alone:
            return
        for pair in itertools.islice(itertools.combinations(axes, 2), MOST_TRIED):
            if self._traces_with(dict.fromkeys(pair, small)):
                return

    def _shrink_together(self, sizes, least):
        """Divide several sizes by the same number, as large as possible. One may be a multiple of
        another one in the function, as with queries, keys and values of one product.
        """
        if len(sizes) < 2:
            return
        part = math.gcd(*sizes)
        halvings = (part & -part).bit_length() - 1
        for factor in (2**number for number in range(halvings, 0, -1)):
            smaller = {size: size // factor for size in sizes}
            if any(smaller[size] < least[size] for size in sizes):
                continue
            if self._traces_with(smaller):
                return

    def _traces_with(self, sizes):
        """Whether the function traces with other sizes. If so, keep them."""
        before = self._sizes
        self._sizes = {**before, **sizes}
        try:
            self._jax.eval_shape(lambda arrays: self.call(arrays), self.arrays())
        except Exception:  # of the function, which does not take these sizes
            self._sizes = before
            return False
        return True

    def shown(self):
        """The sizes that were made small: ``2048 → 16``."""
        found = []
        for key, small in self._sizes.items():
            size = key[0][key[1]] if isinstance(key, tuple) else key
            if size != small:
                found.append("%d → %d" % (size, small))
        return ", ".join(dict.fromkeys(found))

    def values(self):
        """Random arguments: numbers of normal size, so that products of them are so, too."""
        np = importlib.import_module("numpy")
        random = np.random.default_rng(0)
        trace = self._jax.make_jaxpr(self.call, return_shape=True)
        with jax_private.traced_only():
            closed, results = trace(self.arrays())
        # before gigabytes are drawn for a step that is not compared
        _check_operations(sum(map(_operations_of, _eqns_in(closed.jaxpr))))
        kept = {
            (tuple(leaf.shape), str(leaf.dtype))
            for leaf in self._jax.tree_util.tree_leaves(results)
        }
        return [self._value(random, array, kept) for array in self.arrays()]

    def _value(self, random, array, kept):
        jax = self._jax
        dtype = array.dtype
        shape = tuple(array.shape)
        if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
            return _keys(jax, array)
        if jax.numpy.issubdtype(dtype, jax.numpy.floating):
            is_state = (shape, str(dtype)) in kept and len(shape) > 1
            deviation = 1 / math.sqrt(shape[-2]) if is_state else 1.0
            return jax.numpy.asarray(random.normal(size=shape) * deviation, dtype)
        if jax.numpy.issubdtype(dtype, jax.numpy.integer):
            drawn = random.integers(0, WORDS, size=shape) if shape else 1
            return jax.numpy.asarray(drawn, dtype)
        if shape and str(dtype) == "bool":
            return jax.numpy.asarray(_shown(random, shape))
        return jax.numpy.ones(shape, dtype)


def _keys(jax, array):
    """Random keys of a shape, of the implementation that their type names."""
    found = []
    jax.eval_shape(lambda keys: found.append(jax.random.key_impl(keys)), array)
    key = jax.random.key(0, impl=found[0])
    return jax.random.split(key, array.shape) if array.shape else key


def _check_operations(count):
    """Refuse a function that takes too many operations."""
    if count > MOST_OPERATIONS:
        raise ValueError("its small size takes %.0e operations" % count)


def _check_memory(compiled):
    """Refuse a function that takes too much memory; the CPU's compiler says how much."""
    analysis = compiled.memory_analysis()
    size = getattr(analysis, "temp_size_in_bytes", 0)
    if size > MOST_BYTES:
        raise ValueError("its small size takes %.0f GiB" % (size / 2**30))


def _operations_of(eqn):
    """Operations of a matrix product, in a loop those of one iteration; 0 of anything else."""
    if eqn.primitive.name != "dot_general":
        return 0
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval.shape
    depth = math.prod(left[axis] for axis in contracted)
    return 2 * depth * math.prod(eqn.outvars[0].aval.shape)


def _shown(random, shape):
    """Truth values of a mask; most are true. The first on the last axis always is, so that each
    query sees a key.
    """
    shown = random.random(size=shape) < SHOWN
    shown[..., 0] = True
    return shown


def _eqns_in(jaxpr):
    """All operations of a traced function and of those in it."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in each_in(eqn.params.values()):
            if hasattr(inner, "eqns"):
                yield from _eqns_in(inner)


def _arrays_in(eqns):
    """All arrays that operations make, as shapes with types."""
    for eqn in eqns:
        for var in eqn.outvars:
            if hasattr(var.aval, "dtype"):
                yield var.aval


def _numbers_in(eqns):
    """The largest constant that integers are compared with, by the size of their last axis. It may
    be a window, which no shorter length shows.
    """
    found = {}
    for eqn in eqns:
        if eqn.primitive.name not in COMPARING:
            continue
        given = [atom.val for atom in eqn.invars if hasattr(atom, "val")]
        wholes = [int(each) for each in given if "int" in str(each.dtype)]
        shape = eqn.outvars[0].aval.shape
        size = next((size for size in reversed(shape) if size > 1), 0)
        fitting = [each for each in wholes if each < min(size, MOST_PLACES)]
        found[size] = max([found.get(size, 0), *fitting])
    return found


def _places(arrays):
    """Where each size is: pairs of an axis and how many there are."""
    places = {}
    for array in arrays:
        for axis, size in enumerate(array.shape):
            places.setdefault(size, set()).add((axis, len(array.shape)))
    return places


def _changed(values, change):
    """Arguments with the floating-point ones changed."""
    found = []
    for value in values:
        if "float" in str(value.dtype):
            value = change(value).astype(value.dtype)
        found.append(value)
    return found


def _small(places, is_inner):
    """What becomes of a size, by the axes of arguments that have it and the number of axes there;
    `is_inner`: whether the step computes a value of which it is not the first, as scores.
    """
    if any(axis > 0 for axis, _ in places):
        return SMALL
    is_count = all(count > 2 for _, count in places) and not is_inner
    return PAIR if is_count else WORDS


class _Unsharded:
    """Has a function traced for one device: its constraints on sharding mean nothing there."""

    def __init__(self, jax):
        self._lax = jax.lax

    def __enter__(self):
        self._usual = self._lax.with_sharding_constraint
        self._lax.with_sharding_constraint = lambda x, *args, **options: x

    def __exit__(self, *_):
        self._lax.with_sharding_constraint = self._usual


def _names(jax, found):
    """Where the floating-point arrays of `_floats` are: ``gradient['layer']['w']``."""
    tree = jax.tree_util
    names = []
    for path, leaf in tree.tree_flatten_with_path(found)[0]:
        if _floats(jax, leaf):
            names.append(path[1].key + tree.keystr(path[2:]))
    return names


def _floats(jax, values):
    """The leaves that are floating-point arrays."""
    leaves = jax.tree_util.tree_leaves(values)
    return [
        leaf
        for leaf in map(jax.numpy.asarray, leaves)
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)
    ]


def _changes(jax, results, arguments):
    """Results, less the argument with the same shape and type, of several the one at the same
    place: next to a parameter its change by a gradient is too small to see.
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


def _quickly(lowered):
    """A function compiled with the options of `QUICKLY`, if jaxlib takes them."""
    try:
        return lowered.compile(QUICKLY)
    except RuntimeError:  # jaxlib 0.4.38 takes no list of passes
        return lowered.compile()


def _described(leaf):
    """What identifies an argument at a small size: its shape and type, or all of it."""
    is_array = hasattr(leaf, "dtype")
    return (tuple(leaf.shape), leaf.dtype) if is_array else leaf


def _are_finite(parts):
    results = itertools.chain(*parts)
    return all(math.isfinite(result.size) for result in results)


def _wide(array):
    """An array of numbers whose squares do not overflow."""
    np = importlib.import_module("numpy")
    return np.asarray(array, np.float64)


def _apart(one, other, size):
    """How far apart two arrays are, relative to the size of the first; not finite if one is not."""
    apart = importlib.import_module("numpy").linalg.norm(one - other)
    return float(apart / size) if size else float(apart)
