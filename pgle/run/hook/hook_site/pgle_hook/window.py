"""The part of the program to trace (``auto``, ``steps:A-B``, ``seconds:N`` or ``all``), and the
profiler.
"""

import ctypes
import os
import threading
from contextlib import suppress

from pgle_hook import warn

# auto: steps, or executions of a heavy module, without compilation before the window opens
WARM_STEPS = 3

TRACED_STEPS = 5
"""auto: number of steps, or least number of executions, in the window. The trace later shows which
are warm-up or cut off.
"""

# seconds without a compilation after which a program has settled, if there are no steps or
# executions to count
QUIET_S = 3.0

QUIET_PART = 0.1
"""If executions are counted, a shorter time is enough: this share of the time from the first
compilation to the last. Executions between compilations of the setup are not steps.
"""

TRACED_S = 5.0  # without step marks: length of the window

LONGEST_S = 600.0
"""If executions are counted, an execution closes the window. Without one, the window closes after
these seconds. A window that opened too soon must last until the step has been compiled and traced.
"""

LONGER = "let it run longer, or trace all of it: --window all"
MARK = "mark them (jax.profiler.StepTraceAnnotation, pgle.step), or leave --window out"


class TraceWindow:
    """Decides when the profiler opens and closes. It opens once. The launcher has checked the text
    of the window.

    Each method that takes an event returns ``open``, ``close`` or None.
    """

    def __init__(self, text):
        self.kind, _, rest = text.partition(":")
        first, _, last = rest.partition("-")
        self._range = (int(first), int(last or first)) if self.kind == "steps" else None
        self._seconds = float(rest) if self.kind == "seconds" else TRACED_S
        # waiting, then open, then done
        self._state = "done" if self.kind == "none" else "waiting"
        self._quiet_steps = 0
        self._seen = None  # numbers of the first and the last marked step
        self._traced = []  # marked steps in the window
        self._first_compile = self._last_compile = None
        self._counts = {}
        self._are_counted = False
        # times of a window that no mark opened
        self._opened_at = self._closed_at = None
        self._since = None  # time from which its length counts
        self._why_not = "not asked for" if self.kind == "none" else ""

    @property
    def wants_executions(self):
        """Whether executions decide anything. They do not if the program marks its steps."""
        if self.kind == "seconds":
            return self._state == "waiting"
        return self.kind == "auto" and self._state != "done" and self._seen is None

    def on_step(self, number, compiled):
        """A marked step begins. `compiled`: something was compiled during the step before."""
        self._seen = (self._seen[0] if self._seen else number, number)
        if self.kind not in ("auto", "steps"):
            return None
        if self._state == "open":
            if self._is_after(number):
                return self._close()
            self._traced.append(number)
        elif self._state == "waiting":
            self._quiet_steps = 0 if compiled else self._quiet_steps + 1
            if self._begins_with(number):
                self._traced.append(number)
                return self._open()
        return None

    def _begins_with(self, number):
        """Whether the window opens with a marked step."""
        if self._range is None:
            return self._quiet_steps >= WARM_STEPS
        first, last = self._range
        return first <= number <= last

    def _is_after(self, number):
        """Whether the window ends before a marked step."""
        if self._range is None:
            return len(self._traced) >= TRACED_STEPS
        _, last = self._range
        return number > last

    def on_compile(self, seconds, now, heavy):
        """A compilation took so many seconds. `heavy`: that is long compared with those before."""
        if self._last_compile is None:
            self._first_compile = now - seconds
        self._last_compile = now
        if self._state == "waiting":
            self._counts = {}
        if heavy:
            self._are_counted = False
        if heavy and self._is_timed():  # it opened too soon: the step is compiled now
            self._counts = {}
            self._since = now
        if self._state == "waiting" and self.kind == "all":
            return self._open()
        return None

    def on_execution(self, now, module="step"):
        """One of the heavy modules is executed."""
        self._are_counted = True
        self._counts[module] = self._counts.get(module, 0) + 1
        if self._state == "waiting" and self._last_compile is not None:
            setup = self._last_compile - self._first_compile
            is_quiet = now - self._last_compile >= min(QUIET_S, QUIET_PART * setup)
            if is_quiet and self._executions >= WARM_STEPS:
                return self._open()
        elif self._is_timed():
            is_long = now - self._since >= self._seconds
            if is_long and self._executions >= TRACED_STEPS:
                return self._close()
        return None

    def on_time(self, now):
        """Time passes."""
        if self._state == "waiting":
            return self._opened_by_time(now)
        is_of_seconds = self.kind == "seconds" and self._state == "open"
        if self._opened_at is None or not (is_of_seconds or self._is_timed()):
            return None
        waits = self.kind == "auto" and self._are_counted
        longest = LONGEST_S if waits else self._seconds
        return self._close() if now - self._since > longest else None

    def _opened_by_time(self, now):
        """Open a window that no step and no execution opens."""
        by_time = self.kind == "seconds" or (self.kind == "auto" and self._seen is None)
        if not by_time or self._last_compile is None:
            return None
        return self._open() if now - self._last_compile > QUIET_S else None

    def opened(self, now):
        """The profiler records from now on, and `on_time` counts from here."""
        if not self._traced:
            self._opened_at = self._since = now

    def closed(self, now):
        """The profiler has been asked to stop."""
        self._closed_at = now

    def give_up(self, why, undo=False):
        """Do not open any more. With `undo`, a window that was just opened does not count."""
        if undo:
            self._traced = []
            self._opened_at = None
        if undo or self._state != "done":
            if not self._traced and self._opened_at is None:
                self._why_not = why
            self._state = "done"

    def describe(self):
        """Describe the traced part for the facts file, or why nothing was traced and what to do."""
        if self._traced:
            return {"steps": [self._traced[0], self._traced[-1]]}
        if self._opened_at is not None:
            return self._described_by_time()
        if self._why_not:
            return {"none": self._why_not}
        why, remedy = self._never()
        return {"none": why, "remedy": remedy}

    def _described_by_time(self):
        """Describe a window that no mark opened."""
        seconds = self._seconds
        if self._closed_at is not None:
            seconds = round(self._closed_at - self._opened_at, 3)
        found = {"seconds": seconds}
        if self.kind == "auto" and self._are_counted:
            found["executions"] = self._executions
        return found

    def _open(self):
        self._state = "open"
        self._counts = {}
        return "open"

    def _close(self):
        self._state = "done"
        return "close"

    @property
    def _executions(self):
        """Number of executions of the module that ran most often; 0 if none ran."""
        return max(self._counts.values(), default=0)

    def _is_timed(self):
        """Whether time and executions, not marks, close an open window."""
        return (
            self.kind == "auto"
            and self._state == "open"
            and self._opened_at is not None
            and not self._traced
        )

    def _never(self):
        """Say why a window never opened, and what to do."""
        if self._range and self._seen:
            why = "steps %d-%d never began; the program went from %d to %d"
            remedy = "choose among these, or --window all"
            return why % (*self._range, *self._seen), remedy
        if self._range:
            why = "the program marked no steps, so steps %d-%d never began"
            return why % self._range, MARK
        if self._seen and self.kind == "auto":
            why = "the program ended after steps %d to %d, before %d steps without compilation"
            return why % (*self._seen, WARM_STEPS + 1), LONGER
        if self._are_counted:
            why = (
                "the program ended when no module had been executed more than %d times "
                "since the last compilation, too soon to call it settled"
            )
            return why % self._executions, LONGER
        why = (
            "the program marked no steps, and ended less than %g s after its last "
            "compilation"
        )
        return why % QUIET_S, LONGER


# The profilers that a window opens: JAX's own, or the CUDA profiler range that nsys captures.

SAID_S = 20.0  # seconds after which a line says what the program waits for
STILL = (
    "jax's profiler is still writing its trace; with several GPUs and many "
    "kernels it takes minutes, "
    "less for fewer steps (--window steps:10-11)"
)


class Profiler:
    """A session of `jax.profiler` that writes into the rank's trace folder, the CUDA profiler
    range, or none.

    Attributes:
        is_open: whether it records.
        busy: whether it is being opened or closed; then calls of jax.profiler are ours.
    """

    def __init__(self, capture, files, jax):
        self.is_open = self.busy = False
        self._capture = capture
        self._files = files
        self._jax = jax
        # jax's own functions, since the program's calls are watched
        self._start = jax.profiler.start_trace
        self._stop = jax.profiler.stop_trace

    def open(self):
        """Begin to record. A failure is a warning."""
        self.busy = True
        try:
            self.is_open = self.is_open or self._begin()
        finally:
            self.busy = False

    def close(self):
        """Wait for the devices to finish the program's work so far, then stop recording."""
        if self.is_open:
            self.is_open = False
            self.busy = True
            try:
                _settle(self._jax)
                self._end()
            finally:
                self.busy = False

    def _begin(self):
        if self._capture == "jax":
            return self._begin_session()
        return self._capture == "nsys" and self._begin_range()

    def _end(self):
        if self._capture == "jax":
            self._end_session()
        else:
            self._cuda.cudaProfilerStop()

    def _begin_session(self):
        """Start a session of jax's profiler. Return whether it records."""
        if not _is_first(self._files.claim):
            return False
        _settle(self._jax)
        os.makedirs(self._files.trace, exist_ok=True)
        options = {}
        make = getattr(self._jax.profiler, "ProfileOptions", None)
        if make is not None:  # older releases lack it
            made = make()
            # tracing Python calls takes time, and costs do not need it
            made.python_tracer_level = 0
            options["profiler_options"] = made
        try:
            self._start(self._files.trace, **options)
        except Exception as error:
            warn("no trace: the JAX profiler did not start (%s)" % error)
            return False
        return True

    def _end_session(self):
        """Stop the session. A line says so if jax takes long to write its trace."""
        warning = threading.Timer(SAID_S, warn, [STILL])
        warning.daemon = True
        with suppress(RuntimeError):  # Python 3.12 starts no thread at a program's end
            warning.start()
        try:
            self._stop()
        finally:
            warning.cancel()

    def _begin_range(self):
        """Open the range that nsys captures. Return whether it could."""
        self._cuda = _cuda_runtime()
        if self._cuda is None:
            warn(
                "no trace: libcudart is not loaded, so the window of nsys cannot be opened"
            )
            return False
        _settle(self._jax)
        self._cuda.cudaProfilerStart()
        return True


def _is_first(claim):
    """Whether no other process has made this file: one process of a rank traces, without its helper
    processes.
    """
    try:
        os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return False
    return True


def _settle(jax):
    """Wait for the devices, because jax returns long before they finish, and a window is about
    finished work.
    """
    for array in jax.live_arrays():
        try:
            array.block_until_ready()
        except Exception:  # arrays deleted or donated meanwhile
            continue


def _cuda_runtime():
    """Find the CUDA runtime of this process, by its path in the memory map, else by its usual
    names.
    """
    mapped = set()
    with suppress(OSError), open("/proc/self/maps") as maps:
        for line in maps:
            if "libcudart.so" in line:
                mapped.add(line.split()[-1])
    usual = ("libcudart.so", "libcudart.so.13", "libcudart.so.12")
    for name in (*sorted(mapped), *usual):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
