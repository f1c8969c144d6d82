"""The capture hook: runs inside the user's program, counts its steps and opens the profiler's window.

Standard library only, Python 3.9 or newer: the program's interpreter need not have pgle. Nothing of jax is imported
before the program imports it. Every failure is one warning; the program continues as without the hook.
"""

import json
import os
import sys

_hook = None
_printed = set()


def install(text):
    """Read the configuration (JSON), leave a sign that the hook runs, and wait for jax to be imported."""
    from pgle_hook.around import after_import
    from pgle_hook.place import Place

    config = json.loads(text)
    if "captured" in config:
        after_import("jax", lambda module: guarded(lambda: _capture(module, config)))
        return
    place = Place(config, os.environ)
    with open(place.seen, "a"):
        pass
    place.separate(os.environ)
    after_import("jax", lambda module: guarded(lambda: _attach(config, place, module)))


def _attach(config, place, jax):
    global _hook
    from pgle_hook.hook import Hook

    _hook = Hook(config, place, jax)
    _hook.attach()


def _capture(jax, config):
    from pgle_hook.capture import capture

    capture(jax, **config)


def active():
    """The hook of this process; None where jax has not been imported, or in a forked child."""
    return _hook if _hook is not None and _hook.pid == os.getpid() else None


def warn(text):
    """One line on stderr; the same line is printed once."""
    if text in _printed:
        return
    _printed.add(text)
    try:
        sys.stderr.write("pgle: warning: %s\n" % " ".join(str(text).split()))
    except Exception:  # a closed stderr is no reason to disturb the program
        pass


def guarded(function):
    """Call a function of ours inside the user's program; an exception becomes a warning."""
    try:
        return function()
    except Exception as error:
        warn("the capture hook failed (%s: %s); the program continues" % (type(error).__name__, error))
        return None
