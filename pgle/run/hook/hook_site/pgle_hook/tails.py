"""What a traced step makes of its losses and gradients: if a program makes the same of them with an
alternative as without, nothing but losses and gradients needs to be compared.
"""

import functools
import importlib
import itertools
import re
from types import SimpleNamespace

from pgle_hook.exact import CALLS, called, variables
from pgle_hook.rewrite import is_literal
from pgle_hook.stepwise import described, holds_constants

np = importlib.import_module("numpy")

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
    wanted = variables(outs) - known
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if wanted.isdisjoint(eqn.outvars):
            continue
        kept.append(eqn)
        wanted |= variables(eqn.invars) - known
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
    seen, others = jaxpr.outvars[:count], jaxpr.outvars[count:]
    known = {}
    for place, atom in enumerate(seen):
        if not is_literal(atom):
            known[atom] = "seen %d" % place
    names = {var: "argument %d" % place for place, var in enumerate(jaxpr.invars)}
    for var, value in zip(jaxpr.constvars, closed.consts):
        names[var] = "constant %s" % _numbers(value)
    names.update(known)
    part = needed(closed, others, frozenset(known)).jaxpr
    name = functools.partial(_named, names)
    lines = []
    for eqn in part.eqns:
        if holds_constants(eqn):
            return None
        taken = list(map(name, eqn.invars))
        lines.append("%s %s %s" % (eqn.primitive.name, _does(eqn), taken))
        for place, var in enumerate(eqn.outvars):
            names.setdefault(var, "%d of %d" % (place, len(lines)))
    lines += map(name, others)
    return "\n".join(lines)


def _does(eqn):
    """What an operation does, as text that is equal if it is traced again."""
    is_call = eqn.primitive.name in CALLS
    text = str(called(eqn)) if is_call else described(eqn.params)
    return ADDRESS.sub("", text)


def _named(names, atom):
    return _numbers(atom.val) if is_literal(atom) else names[atom]


def _numbers(value):
    array = np.asarray(value)
    return "%s %s %s" % (array.dtype, array.shape, array.tobytes())
