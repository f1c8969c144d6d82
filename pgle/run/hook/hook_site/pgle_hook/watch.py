"""Watches in jax: step annotations, compilations, the program's own profiler sessions, AutoPGLE, executions."""

import os
import re
import sys
import threading
from contextlib import suppress

from pgle_hook import guarded, jax_private
from pgle_hook.around import after, before


def annotations(jax, on_enter, on_exit):
    """Call `on_enter(name, number or None)` and `on_exit()` around every StepTraceAnnotation."""
    annotation = jax.profiler.StepTraceAnnotation

    def made(this, name, **kwargs):
        with suppress(AttributeError):
            this._pgle_step = (name, kwargs.get("step_num"))

    def begun(this):
        name, number = getattr(this, "_pgle_step", ("", None))
        on_enter(name, None if number is None else int(number))

    after(annotation, "__init__", made)
    before(annotation, "__enter__", begun)
    after(annotation, "__exit__", lambda *_: on_exit())


def compilations(jax, on_compile):
    """Call `on_compile(seconds)` after every compilation by XLA."""

    def listener(event, seconds, **_):
        if event.endswith("backend_compile_duration"):
            guarded(lambda: on_compile(seconds))

    jax.monitoring.register_event_duration_secs_listener(listener)


def own_traces(jax, on_start, on_stop):
    """Call `on_start(folder or None)` before and `on_stop()` after every session of `jax.profiler`."""

    def started(folder):
        on_start(None if folder is None else os.path.abspath(str(folder)))

    module = jax.profiler
    session = getattr(module, "ProfileSession", None)  # since 0.12 all ways lead through it
    if session is not None:
        before(session, "start", lambda this, *_, **__: started(getattr(this, "log_dir", None)))
        after(session, "stop", lambda *_, **__: on_stop())
        return
    private = sys.modules[module.start_trace.__globals__["__name__"]]  # where `jax.profiler.trace` finds the two
    before(private, "start_trace", lambda *args, **kwargs: started(args[0] if args else kwargs["log_dir"]))
    after(private, "stop_trace", lambda *_, **__: on_stop())
    module.start_trace, module.stop_trace = private.start_trace, private.stop_trace


class AutoPgle:
    """Listens to jax's compiler without changing what it prints.

    Args:
        facts: where what was seen is noted, under ``auto_pgle``.
        jax: the module.
        wordings: regular expressions of its messages: ``recompiled`` (module, bytes of costs); ``loaded``, ``missed``
            and ``hits`` (module).
    """

    def __init__(self, facts, jax, wordings):
        self._facts = facts
        self._wordings = wordings
        self.seen = {"recompiled": {}, "loaded": [], "missed": [], "hits": [], "found_optimised": 0, "ahead_of_time": 0}
        facts.set("auto_pgle", self.seen)
        jax_private.compiler_messages(lambda text: guarded(lambda: self.note(text)))
        jax_private.optimised_found(self._found)
        before(getattr(getattr(jax, "stages", None), "Lowered", None), "compile", self._count_ahead_of_time)

    def note(self, message):
        """Take what a message of the compiler says."""
        for name, pattern in self._wordings.items():
            found = re.search(pattern, message)
            if found and name == "recompiled":
                self.seen[name][found.group(1)] = int(found.group(2))
            elif found and found.group(1) not in self.seen[name]:
                self.seen[name].append(found.group(1))
        self._facts.stale = True

    def _found(self):
        self.seen["found_optimised"] += 1

    def _count_ahead_of_time(self, *_, **__):
        """Functions compiled by ``lower().compile()`` are never traced by AutoPGLE."""
        self.seen["ahead_of_time"] += 1


HEAVY = 0.1
"""A module is counted if its compilation took at least this share of the longest one. The very first compilation is not
taken for the longest: it includes what XLA sets up once."""

HEAVIEST = 0.5  # a compilation is one of the longest if it took at least this share of the longest so far

MOST = 5000
"""Calls that are kept off jax's fast path at most: a program of small operations is slowed down for a while only."""


class Executions:
    """Counts executions of heavy modules while `counting` is true: how a program that marks no steps shows that it has
    settled.

    Once jax has seen a jitted function it calls it from C++, and Python hears of it no more. As long as executions are
    to be counted, heavy modules are kept off that path, by the means that jax has for AutoPGLE (until it has its
    costs): the C++ cache forgets them after every call, so each call comes through Python. Afterwards that costs
    nothing.

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
