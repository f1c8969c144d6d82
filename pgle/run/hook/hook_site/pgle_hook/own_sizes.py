"""Sizes that the program's own code has as constants, changed for a while.

A script may set ``LENGTH = 2048`` and use that name in its step. Then the step can only be traced
with a shorter length if the constant becomes shorter, too. Constants are found in the program's
modules and classes, in objects of its classes, in dictionaries, and in variables that its functions
enclose.
"""

import argparse
import contextlib
import enum
import functools
import sys
import types

from pgle_hook.records import is_own

MOST_LOOKED = 20_000  # values of a program that are looked at
MOST_ELEMENTS = 10_000  # of a container; a larger one holds data, no settings
NAMESPACES = (argparse.Namespace, types.SimpleNamespace)
CONTENT = "cell_contents"  # of a cell
OUR_PACKAGES = ("pgle", "pgle_hook")


class OwnSizes:
    """Whole numbers of the program's own code.

    Args:
        function: one of the program's functions; what it encloses is looked at.
    """

    def __init__(self, function):
        self._function = function

    @functools.cached_property
    def _constants(self):
        """Holders and names of constants, by number. Most steps need none, so it is made late."""
        found = {}
        for holder in _holders(self._function):
            for name, value in _items(holder):
                if type(value) is int:
                    found.setdefault(value, []).append((holder, name))
        return found

    def has(self, size):
        """Whether a constant has this size."""
        return size in self._constants

    @contextlib.contextmanager
    def replaced(self, sizes):
        """Within the block, constants have other sizes.

        Args:
            sizes: the size to have, by the size that the program has.
        """
        changed = []
        try:
            for size, other in sizes.items():
                for holder, name in self._constants.get(size, ()):
                    _write(holder, name, other)
                    changed.append((holder, name, size))
            yield
        finally:
            for holder, name, size in changed:
                _write(holder, name, size)


def _holders(function):
    """Each holder of the program's values, once: the dictionary of a module or an object, a class,
    or the cell of an enclosed variable.
    """
    waiting = [function, *filter(_is_of_program, list(sys.modules))]
    seen = set()
    while waiting and len(seen) < MOST_LOOKED:
        value = waiting.pop()
        if isinstance(value, str):
            value = sys.modules[value]
        if id(value) in seen:
            continue
        seen.add(id(value))
        for holder in _holders_of(value):
            yield holder
            waiting += (inner for _, inner in _items(holder) if _may_hold(inner))
        waiting += filter(_may_hold, _elements(value))


def _may_hold(value):
    """Whether a value may have constants in it. Numbers, texts and arrays of libraries do not."""
    if isinstance(value, (list, tuple, dict, types.FunctionType, type, *NAMESPACES)):
        return True
    return _is_of_program(type(value).__module__)


def _elements(value):
    """The values in a container, and the function that a decorator replaced."""
    if isinstance(value, (list, tuple)):
        return value if len(value) <= MOST_ELEMENTS else ()
    wrapped = getattr(value, "__wrapped__", None)
    return () if wrapped is None else (wrapped,)


def _holders_of(value):
    """The holders that a value is or has. Values of libraries and members of an enumeration have
    none.
    """
    if isinstance(value, types.FunctionType):
        return value.__closure__ or ()
    if isinstance(value, dict):
        return (value,) if len(value) <= MOST_ELEMENTS else ()
    if isinstance(value, type):
        is_plain = _is_of_program(value.__module__) and not issubclass(value, enum.Enum)
        return (value,) if is_plain else ()
    is_object = isinstance(value, (types.ModuleType, *NAMESPACES))
    if is_object or _is_of_program(type(value).__module__):
        is_plain = hasattr(value, "__dict__") and not isinstance(value, enum.Enum)
        return (vars(value),) if is_plain else ()
    return ()


@functools.cache
def _is_of_program(name):
    """Whether a module, by its name, is the program's own code."""
    path = getattr(sys.modules.get(name), "__file__", None)
    is_ours = name.partition(".")[0] in OUR_PACKAGES
    return isinstance(path, str) and is_own(path) and not is_ours


def _items(holder):
    """Names and values in a holder."""
    if isinstance(holder, types.CellType):
        try:
            return [(CONTENT, holder.cell_contents)]
        except ValueError:  # the variable has no value yet
            return []
    known = holder if isinstance(holder, dict) else vars(holder)
    return list(known.items())


def _write(holder, name, value):
    """Set a value in a holder. A frozen object is changed in its dictionary."""
    if isinstance(holder, dict):
        holder[name] = value
    else:
        setattr(holder, name, value)
