"""The capture hook: runs inside the user's program, counts its steps and opens the profiler's
window.

Standard library only, Python 3.9 or newer: the program's interpreter need not have pgle. Files that
are imported after jax also use NumPy, which jax needs. In a job of several processes `agreement`
reads HLO by files of pgle that need the standard library only, too. Nothing of jax is imported
before the program imports it. Every failure is one warning; the program continues as without the
hook.
"""

import atexit
import functools
import importlib.abc
import importlib.util
import json
import os
import sys
import threading

_hook = None
_printed = set()


def install(text):
    """Read the configuration (JSON), record that the hook runs, and wait for jax to be imported."""
    from pgle_hook.records import HookFiles

    config = json.loads(text)
    if "captured" in config:
        _note_start(config["captured"])
        after_import("jax", lambda module: guarded(lambda: _capture(module, config)))
        return
    files = HookFiles(config, os.environ)
    with open(files.seen, "a"):
        pass
    files.separate(os.environ)
    after_import("jax", lambda module: guarded(lambda: _attach(config, files, module)))


def _note_start(record):
    """Record that a Python with the hook has started. If it ends without jax, record the exception
    that ended it.
    """
    started = record + ".started"
    with open(started, "a"):
        pass
    pid = os.getpid()

    def end():
        # Python sets it if an exception ends a program.
        error = getattr(sys, "last_value", None)
        if error is not None and os.getpid() == pid and not os.path.exists(record):
            from pgle_hook.records import describe

            with open(started, "w") as file:
                file.write(describe(error))

    atexit.register(lambda: guarded(end))


def _attach(config, files, jax):
    global _hook
    from pgle_hook.hook import Hook

    _hook = Hook(config, files, jax)
    _hook.attach()


def _capture(jax, config):
    from pgle_hook.capture import capture

    capture(jax, **config)


def active():
    """Return the hook of this process; None before jax is imported, and in a forked child."""
    return _hook if _hook is not None and _hook.pid == os.getpid() else None


def warn(text):
    """Print one line on stderr; print equal lines once."""
    if text in _printed:
        return
    _printed.add(text)
    try:
        sys.stderr.write("pgle: warning: %s\n" % " ".join(str(text).split()))
    except Exception:  # a closed stderr must not disturb the program
        pass


class SetAside:
    """Mark what this thread compiles and executes in the block as pgle's own, so that it is not
    captured.
    """

    _within = threading.local()

    def __enter__(self):
        self._within.depth = getattr(self._within, "depth", 0) + 1

    def __exit__(self, *_):
        self._within.depth -= 1

    @classmethod
    def is_on(cls):
        """Whether this thread is in such a block."""
        return getattr(cls._within, "depth", 0) > 0


def guarded(function):
    """Return the function with exceptions turned into warnings, for calls inside the user's
    program.
    """
    try:
        return function()
    except Exception as error:
        warn(
            "the capture hook failed (%s: %s); the program continues"
            % (type(error).__name__, error)
        )
        return None


def is_array(leaf):
    """Whether a leaf of a program's values has a shape and a type: an array, or what jax traces
    with. Text, numbers of Python and classes such as `jax.numpy.float32` have not.
    """
    return isinstance(getattr(leaf, "shape", None), tuple) and hasattr(leaf, "dtype")


# Actions around what the program does: after an import, before and after a call.


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name, then):
        self._name = name
        self._then = then
        self._asking = False

    def find_spec(self, name, path=None, target=None):
        """Return the spec of the other finders. Programs also ask for it without importing the
        module.
        """
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


def watch(owner, name, before=None, after=None):
    """Call `before` with the arguments of every call of a function, and `after` when it has
    returned or raised. Return whether the function exists.
    """
    call = getattr(owner, name, None)
    if call is None:
        return False

    @functools.wraps(call)
    def new_call(*args, **kwargs):
        if before is not None:
            guarded(lambda: before(*args, **kwargs))
        try:
            return call(*args, **kwargs)
        finally:
            if after is not None:
                guarded(lambda: after(*args, **kwargs))

    setattr(owner, name, new_call)
    return True
