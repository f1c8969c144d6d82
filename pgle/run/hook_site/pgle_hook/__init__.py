"""The capture hook: runs inside the user's program, counts its steps and opens the profiler's window.

Standard library only, Python 3.9 or newer: the program's interpreter need not have pgle. Nothing of jax is imported
before the program imports it. Every failure is one warning; the program goes on as without the hook.
"""

import json
import os
import sys

_hook = None


def install(config_path):
    """Read the configuration and wait for jax to be imported."""
    from pgle_hook import imports

    with open(config_path) as file:
        config = json.load(file)
    imports.after("jax", lambda module: guarded(lambda: _attach(config, module)))


def _attach(config, jax):
    global _hook
    from pgle_hook.hook import Hook

    _hook = Hook(config, jax)
    _hook.attach()


def active():
    """The hook of this process; None where jax has not been imported, or in a forked child."""
    return _hook if _hook is not None and _hook.pid == os.getpid() else None


def warn(text):
    """One line on stderr."""
    sys.stderr.write("pgle: warning: %s\n" % " ".join(str(text).split()))


def guarded(function):
    """Call a function of ours inside the user's program; an exception becomes a warning."""
    try:
        return function()
    except Exception as error:
        warn("the capture hook failed (%s: %s); the program goes on" % (type(error).__name__, error))
        return None
