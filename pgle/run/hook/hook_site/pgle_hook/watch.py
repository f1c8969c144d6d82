"""What is watched in jax: step annotations, compilations, the program's own profiler sessions, and AutoPGLE."""

import os
import re

from pgle_hook import guarded, jax_private


def annotations(jax, on_enter, on_exit):
    """Call `on_enter(name, number or None)` and `on_exit()` around every StepTraceAnnotation."""
    annotation = jax.profiler.StepTraceAnnotation
    init, enter, leave = annotation.__init__, annotation.__enter__, annotation.__exit__

    def new_init(this, name, *args, **kwargs):
        init(this, name, *args, **kwargs)
        try:
            this._pgle_step = (name, kwargs.get("step_num"))
        except AttributeError:
            pass

    def new_enter(this):
        name, number = getattr(this, "_pgle_step", ("", None))
        guarded(lambda: on_enter(name, None if number is None else int(number)))
        return enter(this)

    def new_exit(this, *details):
        result = leave(this, *details)
        guarded(on_exit)
        return result

    annotation.__init__, annotation.__enter__, annotation.__exit__ = new_init, new_enter, new_exit


def compilations(jax, on_compile):
    """Call `on_compile(seconds)` after every compilation by XLA."""

    def listener(event, seconds, **_):
        if event.endswith("backend_compile_duration"):
            guarded(lambda: on_compile(seconds))

    jax.monitoring.register_event_duration_secs_listener(listener)


def own_traces(jax, on_start, on_stop):
    """Call `on_start(folder or None)` before and `on_stop()` after every session of `jax.profiler`."""
    module = jax.profiler
    session = getattr(module, "ProfileSession", None)  # since 0.12 all ways lead through it
    if session is not None:
        session.start = _announced(session.start, lambda this: getattr(this, "log_dir", None), on_start)
        session.stop = _followed(session.stop, on_stop)
        return
    start = _announced(module.start_trace, lambda log_dir: log_dir, on_start)
    stop = _followed(module.stop_trace, on_stop)
    inner = getattr(module.trace, "__wrapped__", None)  # `jax.profiler.trace` finds the two where it was defined
    for scope in [vars(module)] if inner is None else [vars(module), inner.__globals__]:
        scope["start_trace"], scope["stop_trace"] = start, stop


def _announced(start, folder_of, on_start):
    """`start`, with a call before it; `folder_of` is asked with its first argument, whatever its name."""

    def new_start(*args, **kwargs):
        folder = guarded(lambda: folder_of(args[0] if args else kwargs["log_dir"]))
        guarded(lambda: on_start(None if folder is None else os.path.abspath(str(folder))))
        return start(*args, **kwargs)

    return new_start


def _followed(stop, on_stop):
    """`stop`, with a call after it."""

    def new_stop(*args, **kwargs):
        try:
            return stop(*args, **kwargs)
        finally:
            guarded(on_stop)

    return new_stop


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
        self._count_ahead_of_time(jax)

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

    def _count_ahead_of_time(self, jax):
        """Functions compiled by ``lower().compile()`` are never traced by AutoPGLE."""
        lowered = getattr(getattr(jax, "stages", None), "Lowered", None)
        if lowered is None:
            return
        compile = lowered.compile

        def new_compile(this, *args, **kwargs):
            self.seen["ahead_of_time"] += 1
            return compile(this, *args, **kwargs)

        lowered.compile = new_compile
