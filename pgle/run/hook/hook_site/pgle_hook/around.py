"""Act around what the program does: after an import, before and after a call. What we do wrong is a warning."""

import functools
import importlib.abc
import importlib.util
import sys

from pgle_hook import guarded


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name, then):
        self._name = name
        self._then = then
        self._asking = False

    def find_spec(self, name, path=None, target=None):
        """The spec that the other finders give; programs also ask for it without importing the module."""
        if name != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def new_execute(module):
                execute(module)
                if module.__name__ == name and self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self._then(module)

            spec.loader.exec_module = new_execute
        return spec


def after_import(name, then):
    """Call `then(module)` once the module called `name` has been imported and run."""
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, then))


def before(owner, name, act):
    """Call `act` with the arguments of every call of a function, before it. Returns whether there is the function."""
    call = getattr(owner, name, None)
    if call is None:
        return False

    @functools.wraps(call)
    def new_call(*args, **kwargs):
        guarded(lambda: act(*args, **kwargs))
        return call(*args, **kwargs)

    setattr(owner, name, new_call)
    return True


def after(owner, name, act):
    """Call `act` with the arguments of every call of a function, after it has returned or raised."""
    call = getattr(owner, name)

    @functools.wraps(call)
    def new_call(*args, **kwargs):
        try:
            return call(*args, **kwargs)
        finally:
            guarded(lambda: act(*args, **kwargs))

    setattr(owner, name, new_call)
