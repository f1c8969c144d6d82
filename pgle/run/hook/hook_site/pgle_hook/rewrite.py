"""Replace some operations of a traced function, by a graph of it and an evaluator.

Jitted functions are part of the graph. Searches also look into jax's own functions with a custom
derivative, but evaluation leaves these unchanged. A program's functions with a custom derivative
stay closed, because their derivative may differ from that of their operations. Bodies of
`jax.checkpoint`, `jax.lax.scan` and `jax.shard_map` are rewritten, too. An operation without
replacements is bound as it was traced.
"""

import functools
import importlib
import math

from pgle_hook import SetAside, jax_private

MOST_ELEMENTS = 1 << 24  # most elements of a constant that is evaluated
INLINED = ("pjit", "jit")
OF_DEVICES = frozenset(
    (
        "all_gather",
        "all_gather_invariant",
        "all_to_all",
        "axis_index",
        "pbroadcast",
        "pmax",
        "pmin",
        "ppermute",
        "psum",
        "psum2",
        "psum_invariant",
        "reduce_scatter",
    )
)
"""Operations whose results depend on the device, so they are not constants."""

VARIED = ("pcast", "pvary")  # the same on each device of a mesh

REBUILT = ("scan", "checkpoint", "remat2", "remat", "shard_map")


class Value:
    """A value of a traced function."""

    __slots__ = (
        "aval",
        "constant",
        "inner",
        "is_carried",
        "is_fixed",
        "moves",
        "node",
        "outside",
    )

    def __init__(self, aval, node=None, constant=None):
        self.aval = aval
        self.node = node  # the node that makes it; None: an argument or a constant
        self.constant = constant  # None: not known
        self.inner = None  # the same value inside a function with a custom derivative
        # for an argument of an operation's body: the value from outside
        self.outside = None
        self.is_carried = False  # changed from one iteration to the next
        # whether it depends on no argument, as far as is known
        self.is_fixed = constant is not None if node is None else node.is_fixed
        # whether it depends on what is differentiated
        self.moves = node is not None and node.moves and _is_number(aval)

    @property
    def shape(self):
        """Its sizes."""
        return tuple(self.aval.shape)

    @property
    def dtype(self):
        """The type of its elements."""
        return self.aval.dtype

    def seen(self):
        """The value that searches of the graph follow."""
        value = self
        while value.inner is not None:
            value = value.inner
        return value

    def made_by(self, *names):
        """Return the node that makes it, if that is one of these operations; else None."""
        node = self.seen().node
        return node if node is not None and node.name in names else None

    def before(self, *names):
        """The value from which these operations make it, each from its first operand."""
        value = self
        node = value.made_by(*names)
        while node is not None:
            value = node.ins[0]
            node = value.made_by(*names)
        return value


class Node:
    """An operation."""

    __slots__ = ("eqn", "eqns", "ins", "is_fixed", "moves", "name", "outs", "params")

    def __init__(self, eqn, ins, within=()):
        self.eqn = eqn
        self.eqns = (eqn, *within)  # and the enclosing calls, the innermost first
        self.name = eqn.primitive.name
        self.params = eqn.params
        self.ins = ins
        self.moves = self.name != "stop_gradient" and any(one.moves for one in ins)
        is_known = not self.name.startswith("random") and self.name not in OF_DEVICES
        self.is_fixed = is_known and all(one.is_fixed for one in ins)
        self.outs = [Value(var.aval, self) for var in eqn.outvars]

    def bound(self, taken, **settings):
        """Bind the operation with other operands and settings."""
        primitive = self.eqn.primitive
        given = primitive.get_bind_params({**self.params, **settings})
        functions = ()
        if isinstance(given, tuple):  # before jax 0.8
            functions, given = given
        with jax_private.as_traced(self.eqn):
            made = primitive.bind(*functions, *taken, **given)
        return list(made) if primitive.multiple_results else [made]


def _is_number(aval):
    """Whether a value has floating-point numbers, the only ones that can be differentiated."""
    return "float" in str(getattr(aval, "dtype", ""))


class Graph:
    """The operations of a traced function, in order. `within` has the enclosing calls."""

    def __init__(self, jaxpr, ins, within=()):
        self.nodes = []
        self.outs = _build(jaxpr, ins, self.nodes, within)

    @functools.cached_property
    def _takers(self):
        """The operations that take each value, in order."""
        found = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.ins):
                found.setdefault(value, []).append(node)
        return found

    def takers_of(self, value):
        """The operations that take a value, in order."""
        return self._takers.get(value, [])


def _build(jaxpr, ins, nodes, within=()):
    """Append the operations of a function; return its results."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], ins))

    def read(atom):
        if is_literal(atom):
            return Value(atom.aval, constant=atom.val)
        return known[atom]

    for eqn in jaxpr.eqns:
        taken = [read(atom) for atom in eqn.invars]
        inner = _inlined(eqn)
        if inner is not None:
            given = [*_constants(inner), *taken]
            made = _build(inner.jaxpr, given, nodes, (eqn, *within))
        else:
            node = Node(eqn, taken, within)
            nodes.append(node)
            made = node.outs
            _look_inside(node)
        known.update(zip(eqn.outvars, made))
    return [read(atom) for atom in jaxpr.outvars]


def is_literal(atom):
    """Whether a traced function has a number in the place of a variable."""
    return hasattr(atom, "val")


def _constants(closed):
    pairs = zip(closed.jaxpr.constvars, closed.consts)
    return [Value(var.aval, constant=const) for var, const in pairs]


def _inlined(eqn):
    """The function that an operation only calls; None if it does more."""
    if eqn.primitive.name not in INLINED:
        return None
    shardings = (*eqn.params["in_shardings"], *eqn.params["out_shardings"])
    is_plain = all(type(one).__name__ == "UnspecifiedValue" for one in shardings)
    return eqn.params["jaxpr"] if is_plain else None


def _look_inside(node):
    """Connect the results of jax's functions with a custom derivative to the operations inside."""
    inner = node.params.get("call_jaxpr")
    if node.name != "custom_jvp_call" or not hasattr(inner, "consts"):
        return
    if not jax_private.is_derivative_of_jax(node.params):
        return
    made = _build(inner.jaxpr, [*_constants(inner), *node.ins], [])
    for value, same in zip(node.outs, made):
        value.inner = same


def constant_of(jax, value):
    """Return a value that depends on no argument as an array; None if it does, or if it is
    large.
    """
    value = value.seen()
    if value.constant is not None:
        is_traced = isinstance(value.constant, jax.core.Tracer)
        return None if is_traced else value.constant
    node = value.node
    if node is None or not value.is_fixed:
        return None
    if math.prod(value.shape) > MOST_ELEMENTS or len(node.outs) > 1:
        return None
    if node.name in VARIED:
        return constant_of(jax, node.ins[0])
    taken = [constant_of(jax, one) for one in node.ins]
    if any(one is None for one in taken):
        value.is_fixed = False  # so that nobody looks at its operands again
        return None
    with SetAside(), jax.ensure_compile_time_eval():
        value.constant = node.bound(taken)[0]
    return value.constant


class _Arrays:
    """The leaves of arguments or results that jax traces. Others stay unchanged, such as text, and
    NumPy arrays: sizes, masks, constants.
    """

    def __init__(self, jax, leaves):
        self._leaves = leaves
        self._places = []
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, jax.Array):
                self._places.append(place)

    @property
    def arrays(self):
        """Return only the arrays."""
        return [self._leaves[at] for at in self._places]

    def of(self, marks):
        """Select the marks of the arrays, from one mark per leaf."""
        return [marks[at] for at in self._places]

    def filled(self, arrays):
        """Return all leaves, with other arrays in place of these."""
        leaves = list(self._leaves)
        for place, array in zip(self._places, arrays):
            leaves[place] = array
        return leaves


def _moving(jax, args, options, argnums):
    """Whether each leaf of some arguments belongs to a differentiated argument."""
    leaves = jax.tree_util.tree_leaves
    places = range(len(args))
    if argnums is not None and args:
        places = [places[place] for place in argnums]  # -1 is the last one
    found = []
    for place, arg in enumerate(args):
        found += [place in places] * len(leaves(arg))
    found += [False] * len(leaves(options))
    return found


def _inner_of(node):
    """The function within an operation that is rewritten; None if there is none."""
    return node.params.get("jaxpr") if node.name in REBUILT else None


class Replacement:
    """Computes the results of an operation from other values than its operands."""

    def __init__(self, needs, make):
        self.needs = needs  # the values that it needs
        self.make = make  # maps a reader of values to the results

    def is_possible(self, there):
        """Whether all needed values are available or constant."""
        return all(one in there or one.constant is not None for one in self.needs)


class _Planned:
    """An operation to make, or its replacement."""

    def __init__(self, node, replacement):
        self.node = node
        self.replacement = replacement  # None: the operation itself
        self.needs = node.ins if replacement is None else replacement.needs


class Rewriter:
    """Evaluates traced functions with some operations replaced.

    Args:
        jax: the module.
        find: returns a `Replacement` by node, for a graph.
    """

    def __init__(self, jax, find):
        self._jax = jax
        self._find = find
        self.replaced = 0  # number of replaced operations

    def __call__(self, function, argnums=None):
        """Return the function with operations replaced.

        Args:
            argnums: places of the arguments that are differentiated; None: all.
        """
        jax = self._jax

        def rewritten(*args, **options):
            leaves, structure = jax.tree_util.tree_flatten((args, options))
            taken = _Arrays(jax, leaves)
            moving = _moving(jax, args, options, argnums)
            results = []

            def flat(*arrays):
                args, options = structure.unflatten(taken.filled(arrays))
                found, tree = jax.tree_util.tree_flatten(function(*args, **options))
                results[:] = [tree, _Arrays(jax, found)]
                return results[1].arrays

            given = [_with_axes(jax, array) for array in taken.arrays]
            closed = jax.make_jaxpr(flat)(*given)
            made = self.evaluate(closed, taken.arrays, moving=taken.of(moving))
            tree, found = results
            return tree.unflatten(found.filled(made))

        return rewritten

    def evaluate(self, closed, args, moving=(), node=None):
        """The results of a traced function.

        Args:
            moving: whether each argument depends on what is differentiated.
            node: the node whose body it is, if any.
        """
        taken = [Value(var.aval) for var in closed.jaxpr.invars]
        for value, moves in zip(taken, moving):
            value.moves = moves and _is_number(value.aval)
        if node is not None:
            self._connect(node, closed.jaxpr, taken)
        held = _constants(closed)
        within = () if node is None else node.eqns
        graph = Graph(closed.jaxpr, [*held, *taken], within)
        known = dict(zip([*held, *taken], [*closed.consts, *args]))

        def read(value):
            return known.get(value, value.constant)

        for step in self._planned(graph, set(known)):
            if step.replacement is None:
                made = self._made(step.node, list(map(read, step.needs)))
            else:
                made = step.replacement.make(read)
                self.replaced += 1
            known.update(zip(step.node.outs, made))
        return list(map(read, graph.outs))

    def _planned(self, graph, given):
        """Return the operations to make, in order. Operations needed only by replaced ones are
        dropped, because gradients would keep them.
        """
        found = self._find(graph)
        there = given.union(*(node.outs for node in graph.nodes))
        wanted = set(graph.outs)
        planned = []
        for node in reversed(graph.nodes):
            if not node.eqn.effects and wanted.isdisjoint(node.outs):
                continue
            replacement = found.get(node)
            if replacement is not None and not replacement.is_possible(there):
                replacement = None
            step = _Planned(node, replacement)
            wanted.update(step.needs)
            planned.append(step)
        return _in_order(planned[::-1], given)

    def _connect(self, node, body, taken):
        """Connect an operation's operands to the arguments of its body."""
        held, carried = jax_private.held_and_carried(node.params)
        for place, (value, given) in enumerate(zip(taken, node.ins)):
            if place < held:
                value.constant = constant_of(self._jax, given)
            if held <= place < held + carried:
                same = body.outvars[place - held]
                value.is_carried = same is not body.invars[place]
            if not value.is_carried:
                value.outside = given

    def _made(self, node, taken):
        """Make an operation's results, with operations in its body replaced."""
        inner = _inner_of(node)
        if inner is None:
            return node.bound(taken)
        if node.name == "shard_map":
            return self._on_devices(node, inner, taken)
        closed = closed_of(inner)
        shapes = [shape_of(self._jax, var.aval) for var in closed.jaxpr.invars]
        before = self.replaced
        rewritten = self._jax.make_jaxpr(self._body(node, closed))(*shapes)
        if self.replaced == before:
            return node.bound(taken)
        if closed is inner:
            return node.bound(taken, jaxpr=rewritten)
        # A checkpoint's function has no constants of its own, so it gets them as arguments.
        new = jax_private.without_constants(rewritten.jaxpr)
        return node.bound([*rewritten.consts, *taken], jaxpr=new)

    def _body(self, node, closed):
        """The function within an operation, with operations replaced."""
        moving = [one.moves for one in node.ins]
        return lambda *args: tuple(self.evaluate(closed, args, moving, node))

    def _on_devices(self, node, inner, taken):
        """Map a function over the devices of a mesh, with jax's public function."""
        shard_map = getattr(self._jax, "shard_map", None)
        params = node.params
        if shard_map is None or "newly_manual_axes" not in params:  # before jax 0.10
            return node.bound(taken)
        mapped = shard_map(
            self._body(node, closed_of(inner)),
            mesh=params["mesh"],
            in_specs=params["in_specs"],
            out_specs=params["out_specs"],
            check_vma=params["check_vma"],
            axis_names=params["newly_manual_axes"],
        )
        before = self.replaced
        self._jax.eval_shape(mapped, *taken)
        if self.replaced == before:
            return node.bound(taken)
        with jax_private.as_traced(node.eqn):
            return list(mapped(*taken))


def _in_order(steps, given):
    """Sort steps so that each comes after all that it needs. Some replacements need more than the
    replaced operation.
    """
    there = set(given)
    made = set()
    for step in steps:
        made.update(step.node.outs)
    found = []
    while steps:
        later = []
        for step in steps:
            if made.intersection(step.needs) <= there:
                there.update(step.node.outs)
                found.append(step)
            else:
                later.append(step)
        if len(later) == len(steps):
            raise ValueError("replacements need one another")
        steps = later
    return found


def _with_axes(jax, array):
    """Turn an array into something to trace with: a shape if it differs along mesh axes."""
    aval = getattr(array, "aval", None)
    return shape_of(jax, aval) if _axes_of(aval) else array


def _axes_of(aval):
    """Mesh axes along which a value differs, as arguments of its shape; empty if none."""
    for name in ("manual_axis_type", "vma"):  # of jax 0.10, and from 0.7 on
        axes = getattr(aval, name, None)
        if axes:
            return {name: axes, "sharding": aval.sharding}
    return {}


def closed_of(jaxpr):
    """Close a function over its constants; a function without any has none."""
    if hasattr(jaxpr, "consts"):
        return jaxpr
    core = importlib.import_module("jax.extend.core")
    return core.ClosedJaxpr(jaxpr, ())


def shape_of(jax, aval):
    """Turn a value into a shape to trace with, on its mesh axes."""
    weak = getattr(aval, "weak_type", False)
    axes = _axes_of(aval) or explicit_sharding(aval)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak, **axes)


def explicit_sharding(aval):
    """The sharding in a value's type, as an argument of its shape; empty if none."""
    sharding = getattr(aval, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    is_explicit = bool(getattr(mesh, "explicit_axes", ()))
    return {"sharding": sharding} if is_explicit else {}


def divided_sharding(aval):
    """The sharding in a value's type if it divides an axis of the value, else None. If jax is too
    old for `jax.reshard`, it is None, too.
    """
    sharding = explicit_sharding(aval).get("sharding")
    is_divided = any(getattr(sharding, "spec", ()))
    can_reshard = hasattr(importlib.import_module("jax"), "reshard")
    return sharding if is_divided and can_reshard else None


def divided_as(jax, array, sharding):
    """Return an array with a sharding in its type, which a fused call drops; unchanged if it is
    None.
    """
    return array if sharding is None else jax.reshard(array, sharding)
