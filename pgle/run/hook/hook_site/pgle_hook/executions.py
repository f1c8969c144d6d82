"""Executions of heavy modules: how a program that marks no steps shows that it has settled.

Once jax has seen a jitted function it calls it from C++, and Python hears of it no more. As long as executions are to
be counted, heavy modules are kept off that path, by the means that jax has for AutoPGLE (until it has its costs): the
C++ cache forgets them after every call, so each call comes through Python. Afterwards that costs nothing.
"""

import os
import threading

from pgle_hook import guarded, jax_private

HEAVY = 0.1
"""A module is counted if its compilation took at least this share of the longest one. The very first compilation is not
taken for the longest: it includes what XLA sets up once."""

HEAVIEST = 0.5  # a compilation is one of the longest if it took at least this share of the longest so far

MOST = 5000
"""Calls that are kept off jax's fast path at most: a program of small operations is slowed down for a while only."""


class Executions:
    """Counts while `counting` is true.

    Args:
        on_execution: called with a module's key after each execution of a heavy one has been handed to the devices.
    """

    def __init__(self, on_execution):
        self.counting = False
        self._on_execution = on_execution
        self._pid = os.getpid()
        self._kept = 0
        self._heaviest = None
        self._seconds = {}
        self._local = threading.local()

    def attach(self, counting):
        """Begin to count, where this jax has what it takes."""
        if counting and jax_private.python_calls(self._new_data, self._new_rebuild):
            self.counting = True
            # Programs that look whether a function was compiled once must not find that C++ has forgotten it.
            guarded(lambda: jax_private.show_cache_size(lambda: self.counting and self._kept > 0))

    def compiled(self, seconds):
        """This thread has compiled something; returns whether it is one of the longest so far."""
        self._local.fresh = seconds
        if self._heaviest is None:
            self._heaviest = 0.0
            return True
        self._heaviest = max(self._heaviest, seconds)
        return seconds >= HEAVIEST * self._heaviest

    def _new_data(self, data, executable, *args, **kwargs):
        """What jax asks after a call from Python: what C++ makes the next call with. None: Python makes it."""
        self._local.keep = bool(self.counting and executable is not None and guarded(lambda: self._count(executable)))
        return None if self._local.keep else data(executable, *args, **kwargs)

    def _new_rebuild(self, rebuild, profiler):
        """Whether C++ has to forget the function, so that the next call asks again."""
        keep, self._local.keep = getattr(self._local, "keep", False), False
        return True if keep else rebuild(profiler)

    def _count(self, executable):
        """Count an execution; whether the next is to be counted too."""
        key = id(getattr(executable, "xla_executable", executable))  # older jax makes the object around it anew
        fresh, self._local.fresh = getattr(self._local, "fresh", 0.0), 0.0
        self._seconds[key] = max(fresh, self._seconds.get(key, 0.0))  # a new object may have a deleted one's id
        if self._seconds[key] < HEAVY * (self._heaviest or 0.0) or self._kept >= MOST or os.getpid() != self._pid:
            return False
        self._kept += 1
        self._on_execution(key)
        return self.counting
