"""What a traced step makes of its losses and gradients: if a program makes the same of them with an
alternative as without, nothing but losses and gradients needs to be compared.
"""

import functools
import importlib
import itertools
import re
from types import SimpleNamespace

from pgle_hook.exact import CALLS, called
from pgle_hook.stepwise import described, holds_constants

ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of a Python object, in its text


def needed(closed, outs, known=frozenset()):
    """The part of a traced function that makes some of its values.

    Args:
        closed: the function, with its constants.
        outs: variables and numbers of it.
        known: variables that need not be made.

    Returns:
        A traced function of the same arguments.
    """
    jaxpr = closed.jaxpr
    wanted = _variables(outs) - known
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if wanted.isdisjoint(eqn.outvars):
            continue
        kept.append(eqn)
        wanted |= _variables(eqn.invars) - known
    part = SimpleNamespace(
        eqns=kept[::-1],
        invars=jaxpr.invars,
        constvars=jaxpr.constvars,
        outvars=list(outs),
    )
    return SimpleNamespace(jaxpr=part, consts=closed.consts, wanted=wanted)


def has_references(jaxpr):
    """Whether operations of a function write into values, so that none can be left out."""
    made = itertools.chain.from_iterable(eqn.outvars for eqn in jaxpr.eqns)
    return any(not hasattr(var.aval, "astype") for var in made)


def tail(closed, count):
    """The text of what makes all results of a function but the first ones of these and of its
    arguments; None: they cannot be told by a text.
    """
    jaxpr = closed.jaxpr
    outs = jaxpr.outvars
    known = {
        var: "seen %d" % place
        for place, var in enumerate(outs[:count])
        if _is_made(var)
    }
    names = {var: "argument %d" % place for place, var in enumerate(jaxpr.invars)}
    for var, value in zip(jaxpr.constvars, closed.consts):
        names[var] = "constant %s" % _numbers(value)
    names.update(known)
    part = needed(closed, outs[count:], frozenset(known)).jaxpr
    name = functools.partial(_named, names)
    lines = []
    for eqn in part.eqns:
        if holds_constants(eqn):
            return None
        does = (
            str(called(eqn)) if eqn.primitive.name in CALLS else described(eqn.params)
        )
        taken = list(map(name, eqn.invars))
        lines.append("%s %s %s" % (eqn.primitive.name, ADDRESS.sub("", does), taken))
        for place, var in enumerate(eqn.outvars):
            if var not in known:
                names[var] = "%d of %d" % (place, len(lines))
    lines += map(name, outs[count:])
    return "\n".join(lines)


def _named(names, atom):
    return names[atom] if _is_made(atom) else _numbers(atom.val)


def _numbers(value):
    array = importlib.import_module("numpy").asarray(value)
    return "%s %s %s" % (array.dtype, array.shape, array.tobytes())


def _variables(atoms):
    return {atom for atom in atoms if _is_made(atom)}


def _is_made(atom):
    return not hasattr(atom, "val")
