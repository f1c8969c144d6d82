"""The hook in the program: count steps, notice compilations, open and close the window."""

import atexit
import os
import re
import sys
import threading
import time
from contextlib import suppress

from pgle_hook import guarded, jax_private, warn, watch
from pgle_hook.agreement import attach
from pgle_hook.records import XLA_FLAGS, Facts, StepWriter, restore_flags
from pgle_hook.window import Profiler, TraceWindow

# seconds between two writings of steps and looks at the quiet time; its cost is not measurable
POLL_S = 0.05

# seconds between two writings of the facts; the first does not wait, because a program may soon be
# killed
FACTS_S = 1.0


class Hook:
    """The hook of one process, with the files of its rank (`HookFiles`)."""

    def __init__(self, config, files, jax):
        self.pid = os.getpid()
        self.config = config
        self.files = files
        self.flags = [files.own_dump(flag) for flag in config.get("flags", [])]
        self.jax = jax
        self.facts = Facts(files, jax)
        self.writer = StepWriter(files)
        self.profiler = Profiler(config["capture"], files, jax)
        self.window = TraceWindow(config["window"])
        self.executions = ExecutionCounter(self._on_execution)
        self.compiles = 0
        self._compiles_at_step = 0
        self._current = None
        self._left = None
        self._program_traces = False
        self._source = None
        self._names = {}
        self._name = None
        self._lock = threading.RLock()

    def attach(self):
        """Watch steps, compilations, and the program's own traces."""
        jax_private.before_backends(self._restore_flags)
        annotation = self.jax.profiler.StepTraceAnnotation
        watch(annotation, "__init__", after=_keep_step)
        watch(annotation, "__enter__", before=self._on_annotation)
        watch(annotation, "__exit__", after=lambda *_: self.leave_step())
        self.jax.monitoring.register_event_duration_secs_listener(self._on_event)
        guarded(lambda: self.executions.attach(self.window.wants_executions))
        own_traces(self.jax, self._on_own_start, self._on_own_stop)
        if self.config.get("auto_pgle"):
            guarded(lambda: AutoPgle(self.facts, self.jax, self.config["auto_pgle"]))
        atexit.register(lambda: guarded(self.finish))
        threading.Thread(target=self._run, name="pgle-hook", daemon=True).start()

    # Steps.

    def begin_step(self, number, source):
        """Begin a step, and end the one before. Only the first source (``annotation`` or ``api``)
        counts.
        """
        if os.getpid() != self.pid:
            return
        now = time.perf_counter()
        with self._lock:
            if self._source is None:
                self._source = source
                self.facts.set("step_source", source)
            if source != self._source:
                return
            self._end_current(now)
            number = self.facts.values["steps"] if number is None else number
            self.facts.values["steps"] += 1
            compiled = self.compiles != self._compiles_at_step
            self._compiles_at_step = self.compiles
            self._steer(self.window.on_step(number, compiled))
            # Exclude the time of starting or stopping a profiler from steps.
            self._current = (number, time.perf_counter())

    def leave_step(self):
        """Record that the body of a step ended. The last step is timed up to here."""
        self._left = time.perf_counter()

    def _on_annotation(self, annotation):
        """Of several kinds of steps (train, eval), count the kind whose name comes most often."""
        name, number = getattr(annotation, "_pgle_step", ("", None))
        with self._lock:
            self._names[name] = self._names.get(name, 0) + 1
            if self._name is None or self._names[name] > self._names[self._name]:
                self._name = name
            if name != self._name:
                return
        self.begin_step(None if number is None else int(number), "annotation")

    def _end_current(self, now):
        """Record how long the current step took, in seconds."""
        if self._current is not None:
            number, begin = self._current
            self._current = None
            profiled = self.profiler.is_open or self._program_traces
            compiled = self.compiles != self._compiles_at_step
            self.writer.note(number, now - begin, profiled, compiled)

    # Window.

    def _steer(self, wish):
        """Do what the window wishes: ``open``, ``close`` or None."""
        if wish == "open" and not self._program_traces:
            guarded(self.profiler.open)
            self.facts.set("window_opened", time.time())
            self.window.opened(time.monotonic())
            if not self.profiler.is_open:
                self.window.give_up("the profiler did not start", undo=True)
        elif wish == "close":
            self._close()
        if not self.window.wants_executions:
            self.executions.counting = False

    def _close(self):
        """Close the window, and record what it traced."""
        self.facts.set("window_closed", time.time())
        # With many kernels the next part takes minutes, or ends the program.
        guarded(self.facts.write)
        self.window.closed(time.monotonic())
        guarded(self.profiler.close)
        self.facts.set("window", self.window.describe())

    def _run(self):
        """Daemon thread: time windows, and write steps and facts."""
        written = -FACTS_S
        while True:
            time.sleep(POLL_S)
            if os.getpid() != self.pid:
                return
            now = time.monotonic()
            with self._lock:
                self._steer(self.window.on_time(now))
            guarded(self.writer.write)
            if self.facts.is_due() and now - written > FACTS_S and self.compiles:
                written = now
                guarded(self.facts.write)

    # Events.

    def _on_event(self, event, seconds, **_):
        if event.endswith("backend_compile_duration"):
            guarded(lambda: self._on_compile(seconds))

    def _on_compile(self, seconds):
        """Count a compilation; it may open the window, or show that it opened too soon."""
        if os.getpid() != self.pid:
            return
        # Do not lock here: the lock's holder may wait for devices, and these for a callback that
        # compiles.
        self.compiles += 1
        self.facts.compiled(seconds, time.time())
        heavy = self.executions.compiled(seconds)
        wish = self.window.on_compile(seconds, time.monotonic(), heavy)
        if wish:
            with self._lock:
                self._steer(wish)

    def _on_execution(self, module):
        """Tell the window of an execution, which may open or close it."""
        if not self._lock.acquire(blocking=False):
            return  # see above
        try:
            self._steer(self.window.on_execution(time.monotonic(), module))
        finally:
            self._lock.release()

    def _restore_flags(self):
        """Restore pgle's flags before XLA reads XLA_FLAGS, which the program may have replaced.
        Later changes have no effect.
        """
        if guarded(lambda: self.files.join(jax_private.process_of)):
            self.files.separate(os.environ)
            self.flags = [self.files.own_dump(flag) for flag in self.flags]
            # Only rank 0 dumps it.
            if getattr(self.jax.config, "jax_dump_ir_to", "") == self.files.ir:
                self.jax.config.update("jax_dump_ir_to", "")
        restore_flags(self.flags)
        if "xla_flags" not in self.facts.values:
            self.facts.set("xla_flags", os.environ.get(XLA_FLAGS, ""))
            guarded(self._compare_ranks)

    def _compare_ranks(self):
        folder = self.config["folder"]
        attach(self.jax, self.facts.values["versions"], folder, self._on_difference)

    def _on_difference(self, line):
        self.facts.set("ranks_differ", line)
        self.facts.write()
        self.finish()

    def _on_own_start(self, folder):
        """The program's own profiler session has priority: ours closes, and stays closed during
        theirs.
        """
        with self._lock:
            if self.profiler.busy:
                return
            if self.profiler.is_open:
                warn("the program starts a trace of its own; pgle's is closed")
                self.profiler.close()
            self._program_traces = True
            if folder is not None:
                before = self.facts.values.get("own_traces", [])
                self.facts.set("own_traces", [*before, folder])
            self.window.give_up("the program traces itself")

    def _on_own_stop(self):
        with self._lock:
            if not self.profiler.busy:
                self._program_traces = False

    def finish(self):
        """At the program's end, close open records and write all facts."""
        if os.getpid() != self.pid:
            return
        with self._lock:
            self._end_current(self._last_moment())
            if self.profiler.is_open:
                self._close()
            self.facts.set("window", self.window.describe())
        guarded(self.writer.write)
        if self.writer.path:
            self.facts.set("steps_file", os.path.basename(self.writer.path))
        self.facts.write(final=True)

    def _last_moment(self):
        """When the last step ended: with its body, if that has ended."""
        if self._current and self._left:
            _, begun = self._current
            if self._left > begun:
                return self._left
        return time.perf_counter()


def _keep_step(annotation, name, **kwargs):
    with suppress(AttributeError):
        annotation._pgle_step = (name, kwargs.get("step_num"))


def own_traces(jax, on_start, on_stop):
    """Call `on_start(folder or None)` before, and `on_stop()` after, every session of
    `jax.profiler`.
    """

    def started(folder):
        on_start(None if folder is None else os.path.abspath(str(folder)))

    module = jax.profiler
    session = getattr(module, "ProfileSession", None)  # since 0.12 all functions use it
    stopped = lambda *_, **__: on_stop()
    if session is not None:
        folder_of = lambda this: getattr(this, "log_dir", None)
        watch(session, "start", before=lambda this, *_, **__: started(folder_of(this)))
        watch(session, "stop", after=stopped)
        return
    # where `jax.profiler.trace` looks both up
    private = sys.modules[module.start_trace.__globals__["__name__"]]
    watch(private, "start_trace", before=lambda log_dir, *_, **__: started(log_dir))
    watch(private, "stop_trace", after=stopped)
    module.start_trace = private.start_trace
    module.stop_trace = private.stop_trace


class AutoPgle:
    """Listens to jax's compiler without changing its output. The result is the fact ``auto_pgle``.

    Wordings are regular expressions of messages: ``recompiled`` (module, bytes of costs);
    ``loaded``, ``missed``, ``hits`` (module).
    """

    def __init__(self, facts, jax, wordings):
        self._facts = facts
        self._wordings = wordings
        self.seen = {
            "recompiled": {},
            "loaded": [],
            "missed": [],
            "hits": [],
            "found_optimised": 0,
            "ahead_of_time": 0,
        }
        facts.set("auto_pgle", self.seen)
        jax_private.compiler_messages(lambda text: guarded(lambda: self.note(text)))
        jax_private.optimised_found(self._found)
        watch(jax.stages.Lowered, "compile", before=self._count_ahead_of_time)

    def note(self, message):
        """Interpret a message of the compiler."""
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
        """Count functions compiled by ``lower().compile()``, which AutoPGLE never traces."""
        self.seen["ahead_of_time"] += 1


HEAVY = 0.1
"""A module is counted if its compilation took at least this share of the longest one. The very
first compilation is ignored, because it includes XLA's setup.
"""

# share of the longest compilation so far above which a compilation is one of the longest
HEAVIEST = 0.5

MOST = 5000
"""Most calls that are kept off jax's fast path, so that a program of small operations is slow only
for a while.
"""


class ExecutionCounter:
    """Counts executions of heavy modules while `counting` is true. They show when a program without
    step marks has settled.

    After the first call jax calls a jitted function from C++, without Python. While executions are
    counted, heavy modules are kept off that path by jax's own means for AutoPGLE: the C++ cache
    forgets them after every call. Afterwards this costs nothing.

    Args:
        on_execution: called with a module's key after each execution of a heavy one has been handed
            to the devices.
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
        """Begin to count, if this jax has the necessary functions."""
        if counting and jax_private.python_calls(self._new_data, self._new_rebuild):
            self.counting = True
            # Programs that check whether a function was compiled once must not notice that C++ has
            # forgotten it.
            is_hidden = lambda: self.counting and self._kept > 0
            guarded(lambda: jax_private.show_cache_size(is_hidden))

    def compiled(self, seconds):
        """Record a compilation by this thread. Return whether it is one of the longest so far."""
        self._local.fresh = seconds
        if self._heaviest is None:
            self._heaviest = 0.0
            return True
        self._heaviest = max(self._heaviest, seconds)
        return seconds >= HEAVIEST * self._heaviest

    def _new_data(self, data, executable, *args, **kwargs):
        """Return what C++ needs for the next call; None: Python makes that call."""
        keep = False
        if self.counting and executable is not None:
            keep = bool(guarded(lambda: self._count(executable)))
        self._local.keep = keep
        return None if keep else data(executable, *args, **kwargs)

    def _new_rebuild(self, rebuild, profiler):
        """Whether C++ must forget the function, so that the next call asks again."""
        keep = getattr(self._local, "keep", False)
        self._local.keep = False
        return True if keep else rebuild(profiler)

    def _count(self, executable):
        """Count an execution. Return whether to count the next one too."""
        # Older releases of jax make a new object around it.
        key = id(getattr(executable, "xla_executable", executable))
        fresh = getattr(self._local, "fresh", 0.0)
        self._local.fresh = 0.0
        # A new object may have a deleted one's id.
        seconds = max(fresh, self._seconds.get(key, 0.0))
        self._seconds[key] = seconds
        is_light = seconds < HEAVY * (self._heaviest or 0.0)
        if is_light or self._kept >= MOST or os.getpid() != self._pid:
            return False
        self._kept += 1
        self._on_execution(key)
        return self.counting
