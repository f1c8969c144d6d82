"""A traced function, computed with arrays, one operation after another.

Each kind of operation is compiled once, for all layers of a program and for all its alternatives:
compiling a whole step takes longer than computing it. A number is freed as soon as no operation
takes it. Arguments keep the types of the program, and have 64 bits where an operation takes them.
"""

import functools
import importlib
import math

from pgle_hook import jax_private
from pgle_hook.exact import (
    CALLS,
    Exact,
    called,
    each_in,
    holds_function,
    is_function,
    last_uses,
    wide,
)
from pgle_hook.rewrite import VARIED

np = importlib.import_module("numpy")

QUICKLY = {"xla_backend_optimization_level": 0, "xla_disable_hlo_passes": "fusion"}
"""Options of XLA: compiling an operation takes longer than running it."""
KEPT_WHOLE = (*VARIED, "sharding_constraint")  # operations that change no number
BYTES = 8  # of a number
OF_MESH = "shard_map"


class Given:
    """An argument with the type that the program has for it.

    Args:
        array: its numbers, as NumPy has them.
        nudge: what each number is rounded up or down by, relative to it.
        seed: of the directions.
    """

    def __init__(self, array, nudge=0.0, seed=0):
        self.dtype = array.dtype
        self._array = array
        self._nudge = nudge
        self._seed = seed

    def widened(self, dtype):
        """It with more digits."""
        numbers = np.asarray(self._array).astype(dtype)
        if self._nudge:
            random = np.random.default_rng(self._seed)
            up = random.integers(0, 2, size=numbers.shape, dtype=np.int8)
            numbers *= 1 + self._nudge * (2.0 * up - 1)
        return numbers


class Stepwise(Exact):
    """Computes functions with arrays; `wide` is on.

    Args:
        compiled: what was compiled before, by its kind; it grows.
        check: called before each operation, to end what takes too long.
    """

    def __init__(self, jax, precision, compiled, check):
        super().__init__(jax, precision)
        self._compiled = compiled
        self._check = check
        self._is_traced = False  # an operation is, to be compiled

    def whole(self, closed, args):
        """The results of a function that is compiled whole: its operations write into values."""
        given = list(map(self._read, args))
        compiled = self._compile(lambda *args: self(closed, args), given)
        return compiled(*given)

    def _read(self, value):
        if isinstance(value, Given):
            return value.widened(self._wide(value.dtype))
        return value

    def _made(self, eqn, taken, is_constant):
        """The results of an operation, which is compiled unless it changes no number."""
        if self._is_traced:
            return super()._made(eqn, taken, is_constant)
        name = eqn.primitive.name
        if name in CALLS:
            return self(called(eqn), taken, is_constant)
        if name in KEPT_WHOLE or (self._is_plain_cast(eqn, taken) and not is_constant):
            return taken
        self._check()
        if name == OF_MESH:  # its results are on all devices of a mesh
            taken = self._jax.device_get(taken)
            return self._jax.device_get(self._run(eqn, taken, is_constant))
        return self._run(eqn, taken, is_constant)

    def _is_plain_cast(self, eqn, taken):
        """Whether an operation casts numbers that have 64 bits already."""
        if eqn.primitive.name != "convert_element_type":
            return False
        dtype = eqn.params["new_dtype"]
        is_wide = taken[0].dtype == self._wide(dtype)
        return is_wide and self._is_inexact(dtype) and not self._is_narrow(dtype)

    def _run(self, eqn, taken, is_constant):
        """Run an operation, compiled once for each kind, types and shapes."""
        shapes = tuple((one.shape, str(one.dtype)) for one in taken)
        # some operations keep the types that they were traced with
        types = tuple(str(atom.aval.dtype) for atom in (*eqn.invars, *eqn.outvars))
        key = (*_kind(eqn), self._precision, is_constant, shapes, types)
        if key not in self._compiled:
            make = functools.partial(super()._made, eqn, is_constant=is_constant)
            compiled = self._compile(lambda *args: make(list(args)), taken)
            self._compiled[key] = compiled, eqn
        compiled, _ = self._compiled[key]
        return list(compiled(*taken))

    def _compile(self, function, args):
        """A function of arrays, compiled as it is traced here."""
        self._is_traced = True
        try:
            with wide(self._jax), jax_private.traced_only():
                lowered = self._jax.jit(function).lower(*args)
        finally:
            self._is_traced = False
        return _quickly(lowered)


def _quickly(lowered):
    """A function compiled with the options of `QUICKLY`, if jaxlib takes them."""
    try:
        return lowered.compile(QUICKLY)
    except RuntimeError:  # jaxlib 0.4.38 takes no list of passes
        return lowered.compile()


def _kind(eqn):
    """What tells an operation from others. If it holds a function with constants, this is the
    operation itself: such a function is not printed with their numbers.
    """
    if holds_function(eqn) and holds_constants(eqn):
        # `Stepwise` keeps it, so that no other has its id.
        return eqn.primitive, id(eqn)
    return eqn.primitive, described(eqn.params)


def described(params):
    """The settings of an operation as text."""
    found = []
    for name, value in sorted(params.items()):
        text = value.tobytes() if isinstance(value, np.ndarray) else str(value)
        found.append((name, text))
    return str(found)


def holds_constants(eqn):
    """Whether a function that an operation holds has constants of its own."""
    return any(map(_has_constants, functions_of(eqn)))


def _has_constants(jaxpr):
    return bool(jaxpr.constvars) or any(map(holds_constants, jaxpr.eqns))


def most_bytes(jaxpr):
    """The memory that the numbers of a function take at once if they have 64 bits, without its
    arguments.
    """
    ends = last_uses(jaxpr)
    given = {*jaxpr.invars, *jaxpr.constvars}
    held = 0
    most = 0
    for number, eqn in enumerate(jaxpr.eqns):
        made = sum(map(_bytes, eqn.outvars))
        within = max(map(most_bytes, functions_of(eqn)), default=0)
        most = max(most, held + within, held + made)
        held += made
        held -= sum(_bytes(var) for var in ends.get(number, ()) if var not in given)
    return most


def _bytes(var):
    return BYTES * math.prod(getattr(var.aval, "shape", ()))


def operations(jaxpr):
    """Operations of a function's matrix products; of a loop without a known end one iteration."""
    return sum(map(_operations_of, jaxpr.eqns))


def _operations_of(eqn):
    """Operations of the matrix products in one operation of a traced function."""
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        left = eqn.invars[0].aval.shape
        depth = math.prod(left[axis] for axis in contracted)
        return 2 * depth * math.prod(eqn.outvars[0].aval.shape)
    times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
    return times * sum(map(operations, functions_of(eqn)))


def functions_of(eqn):
    """The functions that an operation holds."""
    return filter(is_function, each_in(eqn.params.values()))
