"""What happens in the program: steps are counted, compilations noticed, the window opened and closed."""

import atexit
import os
import threading
import time

from pgle_hook import guarded, warn
from pgle_hook.facts import Facts
from pgle_hook.profilers import make_profiler
from pgle_hook.steps import StepWriter
from pgle_hook.window import Window

POLL_S = 0.05
"""How often the control file and the quiet time are looked at; costs nothing measurable."""

FACTS_S = 5.0
"""How often the facts file is renewed while the program runs: a killed program leaves the last one."""


class Hook:
    """The hook of one process.

    Args:
        config: ``rank``, ``folder``, ``steps``, ``trace``, ``capture``, ``window``, ``control``.
        jax: the module, freshly imported.
    """

    def __init__(self, config, jax):
        self.pid = os.getpid()
        self.config = config
        self.jax = jax
        self.facts = Facts(config, jax)
        self.writer = StepWriter(config)
        self.profiler = make_profiler(config, jax)
        self.window = Window(config.get("window", "auto"))
        self.compiles = 0
        self.last_compile = time.monotonic()
        self._compiles_at_step = 0
        self._current = None
        self._foreign = False
        self._source = None
        self._lock = threading.RLock()

    def attach(self):
        """Watch steps, compilations and the program's own traces."""
        self._watch_annotations()
        self._watch_compilations()
        self._watch_own_traces()
        atexit.register(lambda: guarded(self.finish))
        threading.Thread(target=self._run, name="pgle-hook", daemon=True).start()
        guarded(self.facts.write)

    # Steps.

    def begin_step(self, number, source):
        """A step begins: the one before ends. Sources: annotation, api, console; the first that is seen counts."""
        if os.getpid() != self.pid:
            return
        now = time.perf_counter()
        with self._lock:
            if self._source is None or (self._source == "console" and source != "console"):
                self._source = source
                self.facts.values["step_source"] = source
            if source != self._source:
                return
            self._end_current(now)
            compiled = self.compiles != self._compiles_at_step
            self._compiles_at_step = self.compiles
            self._steer(self.window.on_step(number, compiled))
            self._current = (number, time.perf_counter() if self.profiler.changed else now)
            self.profiler.changed = False

    def end_steps(self):
        """The last step ends now."""
        with self._lock:
            self._end_current(time.perf_counter())

    def _end_current(self, now):
        if self._current is None:
            return
        number, begin = self._current
        self._current = None
        self.writer.write(
            number,
            now - begin,
            profiled=self.profiler.is_open or self._foreign,
            compiled=self.compiles != self._compiles_at_step,
        )

    # Window.

    def _steer(self, wish):
        if wish == "open" and not self._foreign:
            guarded(self.profiler.open)
        elif wish == "close":
            guarded(self.profiler.close)
            self.facts.values["window"] = self.window.describe()
            guarded(self.facts.write)

    def _run(self):
        """Daemon thread: windows by time, steps that the launcher saw, facts."""
        written = time.monotonic()
        position = 0
        control = self.config.get("control")
        while True:
            time.sleep(POLL_S)
            if os.getpid() != self.pid:
                return
            if control:
                position = guarded(lambda p=position: self._read_control(control, p)) or position
            with self._lock:
                self._steer(self.window.on_time(time.monotonic(), self.last_compile, self.compiles, self._source))
            if time.monotonic() - written > FACTS_S:
                written = time.monotonic()
                guarded(self.facts.write)

    def _read_control(self, path, position):
        try:
            if os.stat(path).st_size <= position:
                return position
            with open(path) as file:
                file.seek(position)
                text = file.read()
        except OSError:
            return position
        complete = text[: text.rfind("\n") + 1]
        for line in complete.splitlines():
            self.begin_step(int(line), "console")
        return position + len(complete)

    # What is watched.

    def _watch_annotations(self):
        annotation = self.jax.profiler.StepTraceAnnotation
        enter, leave = annotation.__enter__, annotation.__exit__
        init = annotation.__init__

        def new_init(this, name, *args, **kwargs):
            init(this, name, *args, **kwargs)
            number = kwargs.get("step_num")
            try:
                this._pgle_step = number
            except AttributeError:
                pass

        def new_enter(this):
            number = getattr(this, "_pgle_step", None)
            guarded(lambda: self.begin_step(self.writer.count if number is None else int(number), "annotation"))
            return enter(this)

        def new_exit(this, *details):
            result = leave(this, *details)
            guarded(self.note_exit)
            return result

        annotation.__init__, annotation.__enter__, annotation.__exit__ = new_init, new_enter, new_exit

    def note_exit(self):
        """The body of a step was left; the last one is timed up to here."""
        self._left = time.perf_counter()

    def _watch_compilations(self):
        def listener(event, seconds, **_):
            if event.endswith("backend_compile_duration"):
                with self._lock:
                    self.compiles += 1
                    self.last_compile = time.monotonic()
                    self.facts.compiled(seconds)

        self.jax.monitoring.register_event_duration_secs_listener(listener)

    def _watch_own_traces(self):
        """The program's own profiler session wins: ours closes, and stays closed while theirs runs."""
        module = self.jax.profiler
        scopes = [vars(module)]
        inner = getattr(module.trace, "__wrapped__", None)
        if inner is not None:
            scopes.append(inner.__globals__)
        start, stop = module.start_trace, module.stop_trace

        def new_start(log_dir, *args, **kwargs):
            if not self.profiler.opening:
                with self._lock:
                    if self.profiler.is_open:
                        warn("the program starts a trace of its own; pgle's is closed")
                        guarded(self.profiler.close)
                    self._foreign = True
                    self.facts.values.setdefault("own_traces", []).append(str(log_dir))
                    self.window.give_up("the program traces itself")
            return start(log_dir, *args, **kwargs)

        def new_stop(*args, **kwargs):
            if not self.profiler.opening:
                self._foreign = False
            return stop(*args, **kwargs)

        for scope in scopes:
            scope["start_trace"], scope["stop_trace"] = new_start, new_stop

    def finish(self):
        """The program ends: close what is open, write what is known."""
        if os.getpid() != self.pid:
            return
        with self._lock:
            left = getattr(self, "_left", None)
            self._end_current(
                left if left is not None and self._current and left > self._current[1] else time.perf_counter()
            )
            self.profiler.close()
            self.facts.values["window"] = self.window.describe()
        self.facts.write(final=True)
