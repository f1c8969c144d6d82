"""What happens in the program: steps are counted, compilations noticed, the window opened and closed."""

import atexit
import os
import threading
import time

from pgle_hook import guarded, jax_private, warn, watch
from pgle_hook.place import XLA_FLAGS, restore_flags
from pgle_hook.profilers import make_profiler
from pgle_hook.records import Facts, StepWriter
from pgle_hook.window import Window

POLL_S = 0.05  # how often the control file and the quiet time are looked at; costs nothing measurable

FACTS_S = 5.0  # time between two writings of the facts file where no fact has changed but the memory peaks

CHANGED_FACTS_S = 1.0
"""The same where a fact has changed. The first writing does not wait: a program may be killed soon."""


class Hook:
    """The hook of one process.

    Args:
        config: ``capture``, ``window``, ``flags`` (added to XLA_FLAGS by pgle).
        place: the files of this rank.
        jax: the module, freshly imported.
    """

    def __init__(self, config, place, jax):
        self.pid = os.getpid()
        self.config = config
        self.place = place
        self.flags = [place.own_dump(flag) for flag in config.get("flags", [])]
        self.jax = jax
        self.facts = Facts(place, jax)
        self.writer = StepWriter(place)
        self.profiler = make_profiler(config.get("capture"), place, jax)
        self.window = Window(config.get("window", "auto"))
        self.executions = watch.Executions(self._on_execution)
        self.compiles = 0
        self._compiles_at_step = 0
        self._current = None
        self._left = None
        self._program_traces = False
        self._source = None
        self._names = {}
        self._name = None
        self._lock = threading.RLock()
        self._writing = threading.Lock()

    def attach(self):
        """Watch steps, compilations and the program's own traces."""
        jax_private.before_backends(self._restore_flags)
        watch.annotations(self.jax, self._on_annotation, self.leave_step)
        watch.compilations(self.jax, self._on_compile)
        guarded(lambda: self.executions.attach(self.window.wants_executions(None)))
        watch.own_traces(self.jax, self._on_own_start, self._on_own_stop)
        if self.config.get("auto_pgle"):
            guarded(lambda: watch.AutoPgle(self.facts, self.jax, self.config["auto_pgle"]))
        atexit.register(lambda: guarded(self.finish))
        threading.Thread(target=self._run, name="pgle-hook", daemon=True).start()

    # Steps.

    def begin_step(self, number, source):
        """A step begins: the one before ends.

        Args:
            number: of the step; None: counted.
            source: ``annotation``, ``api`` or ``console``; the first that is seen counts, the console only alone.
        """
        if os.getpid() != self.pid:
            return
        now = time.perf_counter()
        with self._lock:
            if self._source is None or (self._source == "console" and source != "console"):
                self._source = source
                self.facts.set("step_source", source)
                self._keep_counting()
            if source != self._source:
                return
            self._end_current(now)
            number = self.facts.values["steps"] if number is None else number
            self.facts.values["steps"] += 1
            compiled = self.compiles != self._compiles_at_step
            self._compiles_at_step = self.compiles
            changes = self.profiler.changes
            self._steer(self.window.on_step(number, compiled, source))
            # What starting or stopping a profiler takes belongs to no step.
            self._current = (number, now if self.profiler.changes == changes else time.perf_counter())

    def leave_step(self):
        """The body of a step was left; the last one is timed up to here."""
        self._left = time.perf_counter()

    def _on_annotation(self, name, number):
        """Of several kinds of steps (train, eval) those count whose name comes most often."""
        with self._lock:
            self._names[name] = self._names.get(name, 0) + 1
            if self._name is None or self._names[name] > self._names[self._name]:
                self._name = name
            if name != self._name:
                return
        self.begin_step(number, "annotation")

    def _end_current(self, now):
        if self._current is None:
            return
        number, begin = self._current
        self._current = None
        if self._source == "console":  # the launcher has the exact times, those here wait for the poll
            return
        profiled = self.profiler.is_open or self._program_traces
        self.writer.note(number, now - begin, profiled, self.compiles != self._compiles_at_step)

    # Window.

    def _steer(self, wish):
        if wish == "open" and not self._program_traces:
            guarded(self.profiler.open)
            self.facts.set("window_opened", time.time())
            self.window.opened(time.monotonic())
            if not self.profiler.is_open:
                self.window.give_up("the profiler did not start", undo=True)
        elif wish == "close":
            self._close()
        if wish:
            self._keep_counting()

    def _close(self):
        self.facts.set("window_closed", time.time())
        guarded(self.facts.write)  # for many kernels what follows takes minutes, or ends the program
        self.window.closed(time.monotonic())
        guarded(self.profiler.close)
        self.facts.set("window", self.window.describe())

    def _keep_counting(self):
        """Count executions as long as they decide anything."""
        self.executions.counting = self.executions.counting and self.window.wants_executions(self._source)

    def _run(self):
        """Daemon thread: windows by time, steps that the launcher saw, facts."""
        written = time.monotonic()
        position = 0
        while True:
            time.sleep(POLL_S)
            if os.getpid() != self.pid:
                return
            position = guarded(lambda p=position: self._read_control(p)) or position
            now = time.monotonic()
            with self._lock:
                self._steer(self.window.on_time(now, self._source))
            guarded(self._write_steps)
            if now - written > (CHANGED_FACTS_S if self.facts.stale else FACTS_S) or self.facts.is_first:
                written = now
                guarded(self.facts.write)

    def _write_steps(self):
        """Write what was noted, outside the lock of the steps: a slow disk holds up none."""
        with self._writing:
            with self._lock:
                noted = self.writer.take()
            self.writer.write(noted)

    def _read_control(self, position):
        """Step numbers that the launcher found in the output."""
        try:
            if os.stat(self.place.control).st_size <= position:
                return position
            with open(self.place.control) as file:
                file.seek(position)
                text = file.read()
        except OSError:
            return position
        complete = text[: text.rfind("\n") + 1]
        for line in complete.splitlines():
            if self._current is None or self._current[0] != int(line):  # ranks may share one output
                self.begin_step(int(line), "console")
        return position + len(complete)

    # Events.

    def _on_compile(self, seconds):
        if os.getpid() != self.pid:
            return
        # Without the lock: its holder may be waiting for devices, and they for a callback that compiles.
        self.compiles += 1
        self.facts.compiled(seconds, time.time())
        wish = self.window.on_compile(seconds, time.monotonic(), self.executions.compiled(seconds))
        if wish:
            with self._lock:
                self._steer(wish)

    def _on_execution(self, module):
        if not self._lock.acquire(blocking=False):
            return  # as above
        try:
            self._steer(self.window.on_execution(time.monotonic(), module))
        finally:
            self._lock.release()

    def _restore_flags(self):
        """XLA is about to read its flags, which the program may have replaced; what it sets later has no effect."""
        if guarded(lambda: self.place.join(jax_private.process_of)):
            self.place.separate(os.environ)
            self.flags = [self.place.own_dump(flag) for flag in self.flags]
            if getattr(self.jax.config, "jax_dump_ir_to", "") == self.place.ir:  # rank 0 alone dumps it
                self.jax.config.update("jax_dump_ir_to", "")
        added = restore_flags(self.flags)
        if added:
            self.facts.set("xla_flags_restored", added)
        if "xla_flags" not in self.facts.values:
            self.facts.set("xla_flags", os.environ.get(XLA_FLAGS, ""))

    def _on_own_start(self, folder):
        """The program's own profiler session wins: ours closes, and stays closed while theirs runs."""
        with self._lock:
            if self.profiler.busy:
                return
            if self.profiler.is_open:
                warn("the program starts a trace of its own; pgle's is closed")
                self.profiler.close()
            self._program_traces = True
            if folder is not None:
                self.facts.set("own_traces", [*self.facts.values.get("own_traces", []), folder])
            self.window.give_up("the program traces itself")

    def _on_own_stop(self):
        with self._lock:
            if not self.profiler.busy:
                self._program_traces = False

    def finish(self):
        """The program ends: close open records, write all facts."""
        if os.getpid() != self.pid:
            return
        with self._lock:
            begun = self._current[1] if self._current else 0.0
            self._end_current(self._left if self._left and self._left > begun else time.perf_counter())
            if self.profiler.is_open:
                self._close()
            self.facts.set("window", self.window.describe())
        guarded(self._write_steps)
        if self.writer.path:
            self.facts.set("steps_file", os.path.basename(self.writer.path))
        self.facts.write(final=True)
