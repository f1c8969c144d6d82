"""What is watched in jax: step annotations, compilations, and the program's own profiler sessions."""

import os

from pgle_hook import guarded


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
        _sessions(session, on_start, on_stop)
        return
    scopes = [vars(module)]
    inner = getattr(module.trace, "__wrapped__", None)  # `jax.profiler.trace` finds the two where it was defined
    if inner is not None:
        scopes.append(inner.__globals__)
    start, stop = module.start_trace, module.stop_trace

    def new_start(log_dir, *args, **kwargs):
        guarded(lambda: on_start(os.path.abspath(str(log_dir))))
        return start(log_dir, *args, **kwargs)

    def new_stop(*args, **kwargs):
        try:
            return stop(*args, **kwargs)
        finally:
            guarded(on_stop)

    for scope in scopes:
        scope["start_trace"], scope["stop_trace"] = new_start, new_stop


def _sessions(session, on_start, on_stop):
    start, stop = session.start, session.stop

    def new_start(this, *args, **kwargs):
        folder = getattr(this, "log_dir", None)
        guarded(lambda: on_start(None if folder is None else os.path.abspath(str(folder))))
        return start(this, *args, **kwargs)

    def new_stop(this, *args, **kwargs):
        try:
            return stop(this, *args, **kwargs)
        finally:
            guarded(on_stop)

    session.start, session.stop = new_start, new_stop
