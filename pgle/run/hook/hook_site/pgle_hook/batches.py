"""Find how a program's batch is divided over devices, and divide a scan's carry in the same way.
XLA may lose the division inside a loop; then each device computes the whole batch.
"""

import functools
import math
from collections import namedtuple

from pgle_hook import is_array

EXPLICIT = "explicit"
"""Replaces a setting: the mesh has explicit axes, so that shardings are part of types."""

_EXPLICIT, _MANUAL = "Explicit", "Manual"

Division = namedtuple("Division", ("sharding", "spec", "written", "size"))
"""How to divide a carry: (sharding, its short spec or `EXPLICIT`, the user's code for it, size of
the leading axis that it divides).
"""


class Batches:
    """Knows how the arguments of the step are divided.

    Args:
        jax: the module.
    """

    def __init__(self, jax):
        self._jax = jax
        self._leaves = []
        self.constrained = 0  # number of the program's calls that constrain a sharding

    def called(self, args, options):
        """Record the arguments of a function if some are on a mesh. Functions that jax is tracing
        are inside the step, so nothing is recorded.
        """
        leaves = self._jax.tree_util.tree_leaves((args, options))
        if any(isinstance(leaf, self._jax.core.Tracer) for leaf in leaves):
            return
        if any(_mesh_of(self._jax, leaf) for leaf in leaves):
            self._leaves = [leaf for leaf in leaves if is_array(leaf)]

    @property
    def are_explicit(self):
        """Whether some arguments are on a mesh with explicit axes."""
        meshes = [_mesh_of(self._jax, leaf) for leaf in self._leaves]
        return any(_are(_EXPLICIT, one, one.axis_names) for one in meshes if one)

    def counting(self, usual):
        """Wrap jax's ``with_sharding_constraint``; `constrained` counts the program's calls."""

        @functools.wraps(usual)
        def with_sharding_constraint(*args, **options):
            self.constrained += 1
            return usual(*args, **options)

        return with_sharding_constraint

    def division(self, init):
        """Return how to divide the carry of a scan; None if there is nothing to divide, or if the
        way is unknown.

        Args:
            init: the initial carry.
        """
        carried = self._activations(init)
        if not carried:
            return None
        size = max(carried, key=lambda leaf: math.prod(leaf.shape)).shape[0]
        found = self._found(size)
        if found is None:
            return None
        mesh, axes = found
        jax = self._jax
        context = getattr(jax.sharding, "get_abstract_mesh", lambda: mesh)()
        if _are(_MANUAL, context, axes):  # in the body of `jax.shard_map`
            return None
        if size % math.prod(mesh.shape[name] for name in axes):
            return None
        spec = jax.sharding.PartitionSpec(axes[0] if len(axes) == 1 else axes)
        sharding = jax.sharding.NamedSharding(mesh, spec)
        short = _as_code(axes)
        if _are(_EXPLICIT, mesh, axes):
            return Division(sharding, EXPLICIT, short, size)
        one = next(leaf for leaf in carried if leaf.shape[0] == size)
        whole = "jax.sharding.PartitionSpec" + short[1:]
        if self._holds(one, spec):
            return Division(sharding, short, whole, size)
        if self._holds(one, sharding):
            written = "jax.sharding.NamedSharding(mesh, %s)" % whole
            return Division(sharding, short, written, size)
        return None

    def dividing(self, body, division):
        """Return the body of a scan that divides its carry first."""
        constrain = self._jax.lax.with_sharding_constraint

        def divide(leaf):
            shape = getattr(leaf, "shape", ())
            if len(shape) < 2 or shape[0] != division.size:
                return leaf
            return constrain(leaf, division.sharding)

        def divided(carry, x):
            return body(self._jax.tree_util.tree_map(divide, carry), x)

        return divided

    def _activations(self, init):
        """The arrays of a carry, without gradients that a scan adds up. A gradient has the shape of
        a parameter that is divided along another axis. Or it is one of several arrays that have
        shapes of undivided arguments.
        """
        leaves = self._jax.tree_util.tree_leaves(init)
        carried = [leaf for leaf in leaves if len(getattr(leaf, "shape", ())) > 1]
        elsewhere = set()
        whole = set()
        for leaf in self._leaves:
            axes = _axes_of(self._jax, leaf)
            if not axes:
                whole.add(tuple(leaf.shape))
            elif not axes[0]:
                elsewhere.add(tuple(leaf.shape))
        carried = [leaf for leaf in carried if tuple(leaf.shape) not in elsewhere]
        alike = [leaf for leaf in carried if tuple(leaf.shape) in whole]
        if len(alike) > 1:
            return [leaf for leaf in carried if tuple(leaf.shape) not in whole]
        return carried

    def _found(self, size):
        """The mesh, and its axes that divide the leading axis of integers, such as tokens, or else
        an axis of this size of any argument. A scan takes the leading axis of some arguments, so
        their batch is on a later one. If there are none, the axes that divide no argument; if there
        are none either, all axes of the mesh. None: no mesh.
        """
        jnp = self._jax.numpy
        is_number = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.integer)
        for leaf in sorted(self._leaves, key=is_number, reverse=True):
            axes = _axes_of(self._jax, leaf)
            if any(axes[:1]) and is_number(leaf):
                return leaf.sharding.mesh, axes[0]
            for length, names in zip(leaf.shape, axes):
                if names and length == size:
                    return leaf.sharding.mesh, names
        meshes = (_mesh_of(self._jax, leaf) for leaf in self._leaves)
        mesh = next(filter(None, meshes), None)
        return None if mesh is None else (mesh, self._free_axes(mesh))

    def _free_axes(self, mesh):
        """The axes of a mesh that divide no argument; all of them if each divides one."""
        used = set()
        for leaf in self._leaves:
            used.update(*_axes_of(self._jax, leaf))
        names = [name for name in mesh.axis_names if mesh.shape[name] > 1]
        free = [name for name in names if name not in used]
        return tuple(free or names)

    def _holds(self, leaf, given):
        """Whether jax accepts a sharding constraint at the present place."""
        constrain = lambda value: self._jax.lax.with_sharding_constraint(value, given)
        counted = self.constrained
        shape = self._jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        try:
            self._jax.eval_shape(constrain, shape)
        except Exception:  # no mesh in context, or axes that the program itself divides
            return False
        finally:
            self.constrained = counted
        return True


def _as_code(axes):
    """The spec that divides the first axis of an array, as code."""
    names = ", ".join('"%s"' % name for name in axes)
    return "P(%s)" % names if len(axes) == 1 else "P((%s))" % names


def _mesh_of(jax, leaf):
    """The mesh of several devices that an array is on; None without one."""
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return None
    return sharding.mesh if sharding.mesh.size > 1 else None


def _axes_of(jax, leaf):
    """The mesh axes that divide an array, by dimension; empty if none does."""
    mesh = _mesh_of(jax, leaf)
    if mesh is None:
        return ()
    found = []
    several = {name for name in mesh.axis_names if mesh.shape[name] > 1}
    for given in leaf.sharding.spec:
        names = given if isinstance(given, tuple) else (given,)
        found.append(tuple(name for name in names if name in several))
    return tuple(found) if any(found) else ()


def _are(kind, mesh, axes):
    """Whether some of these mesh axes have a kind of `jax.sharding.AxisType`."""
    kinds = getattr(mesh, "axis_types", None) or ()
    named = zip(mesh.axis_names, kinds)
    return any(kind in str(found) for name, found in named if name in axes)
