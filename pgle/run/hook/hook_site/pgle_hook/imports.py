"""Act after a module has been imported, without importing it."""

import importlib.abc
import importlib.util
import sys


class _Loader(importlib.abc.Loader):
    """A module's own loader, and then a call."""

    def __init__(self, loader, finder, then):
        self._loader = loader
        self._finder = finder
        self._then = then

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finder.leave()
        self._then(module)


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
            spec.loader = _Loader(spec.loader, self, self._then)
        return spec

    def leave(self):
        """Stop looking: the module has been imported."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def after(name, then):
    """Call `then(module)` once the module called `name` has been imported and run."""
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, then))
