"""Compute a traced function with 64-bit numbers, so that its types round nothing.

Then two programs differ only if they compute different things. Three things still round:

- Casts to types with fewer digits than bf16, such as eight bits: they are part of a program.
- Operations that cannot take 64 bits, such as those of custom kernels. They take and return the
  types that they were traced with.
- Operations that depend on no argument, such as a scale that is computed in bf16. An edit takes
  such a constant from the program as it is.
"""

import contextlib
import functools
import importlib

from pgle_hook import jax_private
from pgle_hook.rewrite import OF_DEVICES, VARIED, Node, closed_of, is_literal

np = importlib.import_module("numpy")

# rounding to a type with at least so many stored bits of mantissa is left out; bf16 has 7
LEAST_DIGITS = 7
CALLS = frozenset(
    (
        "checkpoint",
        "closed_call",
        "core_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "eval_jaxpr",
        "jit",
        "pjit",
        "remat",
        "remat2",
    )
)
"""Operations that only call a function."""

OPAQUE = frozenset(
    (
        "bitcast_convert_type",
        "call_hi_primitive",
        "ffi_call",
        "io_callback",
        "nextafter",
        "pallas_call",
        "pure_callback",
        "random_gamma",
    )
)
"""Operations whose results depend on the types of their operands."""

UPDATES = "update_jaxpr"  # a scatter's function of a pair

CAST = "bfloat16"  # of products of arrays in bf16, as a cast makes them
EMULATED = {"tensorfloat32": (8, 10), "BF16_BF16_F32": (8, 7), CAST: (8, 7)}
"""Bits of exponent and mantissa that a precision of products keeps of f32."""


@contextlib.contextmanager
def wide(jax):
    """Within the block, numbers may have 64 bits."""
    enable = getattr(jax, "enable_x64", None)
    if enable is None:  # before jax 0.8
        enable = importlib.import_module("jax.experimental").enable_x64
    with enable(True):
        yield


class Exact:
    """Evaluates traced functions with 64-bit numbers. Use it inside `wide`.

    Args:
        jax: the module.
        precision: of products whose operands are rounded as a GPU does; empty: of none.
    """

    def __init__(self, jax, precision=""):
        self._jax = jax
        self._precision = precision
        self._special = {
            "cond": self._cond,
            "convert_element_type": self._cast,
            "dot_general": self._product,
            "psum_invariant": self._sum_of_devices,
            "reduce_precision": self._rounded,
            "scan": self._scan,
            "shard_map": self._on_devices,
            "while": self._while,
        }

    def __call__(self, closed, args, is_fixed=False, kept=lambda value: value):
        """The results of a traced function.

        Args:
            closed: it, with its constants.
            args: arrays; numbers have 64 bits.
            is_fixed: whether they depend on no argument of the program.
            kept: makes of a result what is kept of it, as soon as no operation takes it.
        """
        jaxpr = closed.jaxpr
        ends = last_uses(jaxpr)
        results = variables(jaxpr.outvars)
        done = {}  # results that no operation takes any more
        fixed = {*jaxpr.constvars}
        if is_fixed:
            fixed.update(jaxpr.invars)
        known = dict(zip(jaxpr.constvars, map(self.widened, closed.consts)))
        known.update(zip(jaxpr.invars, args))

        def read(atom):
            if is_literal(atom):
                return np.asarray(atom.val, self._wide(atom.aval.dtype))
            return self._read(known[atom])

        for number, eqn in enumerate(jaxpr.eqns):
            taken = list(map(read, eqn.invars))
            is_constant = fixed.issuperset(variables(eqn.invars))
            if is_constant:
                fixed.update(eqn.outvars)
            known.update(zip(eqn.outvars, self._made(eqn, taken, is_constant)))
            del taken  # so that it is freed
            for var in ends.get(number, ()):
                if var in results:
                    done[var] = kept(read(var))
                del known[var]
        for var in results.difference(done):
            done[var] = kept(read(var))
        found = []
        for atom in jaxpr.outvars:
            found.append(kept(read(atom)) if is_literal(atom) else done[atom])
        return found

    def _read(self, value):
        """A value as an operation takes it."""
        return value

    def widened(self, array):
        """Return a value of the program as 64-bit numbers."""
        dtype = getattr(array, "dtype", None)
        if dtype is None or not self._is_inexact(dtype):
            return array
        is_traced = isinstance(array, self._jax.core.Tracer)
        if is_traced and not hasattr(array.aval, "astype"):
            return array  # a reference, which already refers to 64-bit numbers
        if not is_traced:  # perhaps of another mesh
            array = np.asarray(array)
        return array.astype(self._wide(dtype))

    def _is_inexact(self, dtype):
        return self._jax.numpy.issubdtype(dtype, self._jax.numpy.inexact)

    def _wide(self, dtype):
        """Replace a type by the floating-point or complex type with 64 bits per number."""
        jnp = self._jax.numpy
        if jnp.issubdtype(dtype, jnp.complexfloating):
            return jnp.complex128
        return jnp.float64 if jnp.issubdtype(dtype, jnp.floating) else dtype

    def _is_narrow(self, dtype):
        """Whether rounding to a type is part of the program."""
        jnp = self._jax.numpy
        is_real = jnp.issubdtype(dtype, jnp.floating)
        return is_real and jnp.finfo(dtype).nmant < LEAST_DIGITS

    def _made(self, eqn, taken, is_constant):
        """The results of an operation, in 64 bits wherever it takes them."""
        name = eqn.primitive.name
        if name in CALLS:
            return self(called(eqn), taken, is_constant)
        if name in VARIED:  # a device's own values are the same numbers
            return taken
        has_function = holds_function(eqn)
        is_plain = name not in OF_DEVICES and not has_function
        if is_constant and is_plain:
            return self._as_traced(eqn, taken)
        if name in self._special:
            return self._special[name](eqn, taken)
        if name in OPAQUE or has_function:
            return self._as_traced(eqn, taken)
        try:
            settings = self._settings(eqn)
            made = Node(eqn, ()).bound(taken, **settings)
        except Exception:  # the operation does not take 64 bits
            return self._as_traced(eqn, taken)
        return list(map(self.widened, made))

    def _settings(self, eqn):
        """Return an operation's settings, with types replaced by their 64-bit types."""
        found = {}
        for name, value in eqn.params.items():
            is_type = isinstance(value, (np.dtype, type))
            if is_type and self._is_inexact(value):
                found[name] = np.dtype(self._wide(value))
        if eqn.params.get(UPDATES) is not None:
            found[UPDATES] = self._body(eqn.params[UPDATES])
        return found

    def _body(self, jaxpr):
        """A function of numbers, such as what a scatter does of a pair, traced for 64 bits."""
        closed = closed_of(jaxpr)
        shape = self._jax.ShapeDtypeStruct
        given = []
        for var in jaxpr.invars:
            given.append(shape(var.aval.shape, self._wide(var.aval.dtype)))
        return self._jax.make_jaxpr(lambda *args: self(closed, args))(*given).jaxpr

    def _as_traced(self, eqn, taken):
        """Run an operation with the types of its trace."""
        given = []
        for value, atom in zip(taken, eqn.invars):
            given.append(self._narrowed(value, atom.aval))
        return list(map(self.widened, Node(eqn, ()).bound(given)))

    def _narrowed(self, value, aval):
        """Convert a value to the type of its trace."""
        is_reference = not hasattr(aval, "astype")
        if is_reference or not self._is_inexact(aval.dtype):
            return value
        return self._jax.numpy.asarray(value).astype(aval.dtype)

    def _cast(self, eqn, taken):
        """Round only to types that are part of the program."""
        dtype = eqn.params["new_dtype"]
        (value,) = taken
        if self._is_narrow(dtype):
            value = value.astype(dtype)
        return [value.astype(self._wide(dtype))]

    def _rounded(self, eqn, taken):
        is_part = eqn.params["mantissa_bits"] < LEAST_DIGITS
        return self._as_traced(eqn, taken) if is_part else taken

    def _product(self, eqn, taken):
        """Run a product; round its operands if the GPU does."""
        if self._precision and self._is_emulated(eqn):
            bits = EMULATED[self._precision]
            taken = [self._kept(value, bits) for value in taken]
        settings = dict(self._settings(eqn), precision=None)
        return Node(eqn, ()).bound(taken, **settings)

    def _is_emulated(self, eqn):
        """Whether a product rounds its operands by the default precision of products, or takes
        arrays that a cast rounds.
        """
        taken = str(eqn.invars[0].aval.dtype)
        if self._precision == CAST:
            return taken == CAST
        if taken != "float32":
            return False
        words = str(eqn.params.get("precision"))
        if self._precision == "tensorfloat32":
            return "HIGHEST" not in words
        return words.endswith(self._precision)

    def _kept(self, value, bits):
        """Keep as many exponent and mantissa bits of f32 as the GPU does."""
        single = value.astype(self._jax.numpy.float32)
        return self._jax.lax.reduce_precision(single, *bits).astype(value.dtype)

    def _scan(self, eqn, taken):
        """Trace the body of a scan again, in 64 bits."""
        params = eqn.params
        first, count = jax_private.held_and_carried(params)
        held, others = taken[:first], taken[first:]
        start, given = others[:count], others[count:]
        closed = called(eqn)

        def body(carry, given):
            made = self(closed, [*held, *carry, *given])
            return made[:count], made[count:]

        settings = {"length": params["length"], "reverse": params["reverse"]}
        end, found = self._jax.lax.scan(body, start, given, **settings)
        return [*end, *found]

    def _while(self, eqn, taken):
        """Trace condition and body of a loop again, in 64 bits."""
        params = eqn.params
        first = params["cond_nconsts"]
        second = first + params["body_nconsts"]
        condition = closed_of(params["cond_jaxpr"])
        closed = closed_of(params["body_jaxpr"])
        asks = lambda state: self(condition, [*taken[:first], *state])[0]
        body = lambda state: self(closed, [*taken[first:second], *state])
        return self._jax.lax.while_loop(asks, body, taken[second:])

    def _cond(self, eqn, taken):
        """Trace all branches again, in 64 bits."""
        run = lambda closed, *args: self(closed, args)
        branches = []
        for branch in eqn.params["branches"]:
            branches.append(functools.partial(run, closed_of(branch)))
        return self._jax.lax.switch(taken[0], branches, *taken[1:])

    def _on_devices(self, eqn, taken):
        """A function for each device of a mesh."""
        params = eqn.params
        closed = called(eqn)
        made = self._jax.shard_map(
            lambda *args: tuple(self(closed, args)),
            mesh=params["mesh"],
            in_specs=params["in_specs"],
            out_specs=params["out_specs"],
            check_vma=False,  # jax has checked it, and `VARIED` is left out
            axis_names=params["newly_manual_axes"],
        )
        return list(made(*taken))

    def _sum_of_devices(self, eqn, taken):
        """A sum over a mesh, whose type says that it is the same on each device."""
        sums = functools.partial(self._jax.lax.psum, axis_name=eqn.params["axes"])
        return list(map(sums, taken))


def last_uses(jaxpr):
    """Return, by the number of an operation, the variables that no later operation takes."""
    last = {}
    for number, eqn in enumerate(jaxpr.eqns):
        named = [*variables(eqn.invars), *eqn.outvars]
        last.update(dict.fromkeys(named, number))
    found = {}
    for var, number in last.items():
        found.setdefault(number, []).append(var)
    return found


def variables(atoms):
    """The variables among the operands or results of traced operations."""
    return {atom for atom in atoms if not is_literal(atom)}


def called(eqn):
    """The function that an operation calls."""
    names = ("jaxpr", "call_jaxpr", "fun_jaxpr")
    return closed_of(next(eqn.params[name] for name in names if name in eqn.params))


def holds_function(eqn):
    """Whether an operation calls a function with the types that it was traced with."""
    others = (value for name, value in eqn.params.items() if name != UPDATES)
    return any(map(is_function, each_in(others)))


def is_function(value):
    """Whether a setting of an operation is a traced function."""
    return hasattr(value, "eqns")


def each_in(values):
    """Values; of tuples and lists their items, of a closed function the function in it."""
    for value in values:
        within = value if isinstance(value, (tuple, list)) else (value,)
        for each in within:
            yield getattr(each, "jaxpr", each)
