"""The profilers that a window opens: JAX's own, or the CUDA profiler range that nsys captures."""

import ctypes
import os
import threading
from contextlib import contextmanager

from pgle_hook import warn

SAID_S = 20.0  # after so long a line says what the program waits for
STILL = (
    "jax's profiler is still writing its trace; with several GPUs and many kernels it takes minutes, "
    "less for fewer steps (--window steps:10-11)"
)


def make_profiler(capture, place, jax):
    """The profiler that the configuration asks for."""
    if capture == "jax":
        return JaxProfiler(place, jax)
    return CudaRange(jax) if capture == "nsys" else Profiler()


class Profiler:
    """Nothing is traced; what the two real ones share.

    Attributes:
        is_open: whether it records.
        changes: how often it was opened or closed.
        busy: whether it is being opened or closed: what jax.profiler does then is our doing.
    """

    def __init__(self):
        self.is_open = False
        self.changes = 0
        self.busy = False

    def open(self):
        """Begin to record; a failure is a warning."""
        if not self.is_open:
            with self._changing():
                self.is_open = self._begin()

    def close(self):
        """End recording, once the devices have done what the program has asked of them so far."""
        if self.is_open:
            self.is_open = False
            with self._changing():
                self._end()

    @contextmanager
    def _changing(self):
        self.changes += 1
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    def _begin(self):
        return False

    def _end(self):
        pass


class JaxProfiler(Profiler):
    """A session of `jax.profiler` that writes into the rank's trace folder."""

    def __init__(self, place, jax):
        super().__init__()
        self._place = place
        self._jax = jax
        self._start, self._stop = jax.profiler.start_trace, jax.profiler.stop_trace

    def _begin(self):
        if not _claimed(self._place.claim):
            return False
        _settle(self._jax)
        os.makedirs(self._place.trace, exist_ok=True)
        options = _options(self._jax)
        try:
            self._start(self._place.trace, **options)
        except Exception as error:
            warn("no trace: the JAX profiler did not start (%s)" % error)
            return False
        return True

    def _end(self):
        _settle(self._jax)
        warning = threading.Timer(SAID_S, warn, [STILL])
        warning.daemon = True
        warning.start()
        try:
            self._stop()
        finally:
            warning.cancel()


class CudaRange(Profiler):
    """cudaProfilerStart and cudaProfilerStop of the CUDA runtime that the program has loaded."""

    def __init__(self, jax):
        super().__init__()
        self._jax = jax
        self._library = None

    def _begin(self):
        self._library = self._library or _cuda_runtime()
        if self._library is None:
            warn("no trace: libcudart is not loaded, so the window of nsys cannot be opened")
            return False
        _settle(self._jax)
        self._library.cudaProfilerStart()
        return True

    def _end(self):
        _settle(self._jax)
        self._library.cudaProfilerStop()


def _claimed(path):
    """Whether this process is the one of its rank that traces: helpers do not add to the trace of the program."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return False
    return True


def _settle(jax):
    """Wait for the devices: jax hands work over long before it is done, and a window is about work done."""
    for array in jax.live_arrays():
        try:
            array.block_until_ready()
        except Exception:  # deleted or donated meanwhile
            continue


def _options(jax):
    """No Python calls in the trace: they cost time and are no use for costs. Older releases have no such option."""
    make = getattr(jax.profiler, "ProfileOptions", None)
    if make is None:
        return {}
    options = make()
    options.python_tracer_level = 0
    return {"profiler_options": options}


def _cuda_runtime():
    """The CUDA runtime of this process, by its path in the memory map, else by its usual names."""
    names = []
    try:
        with open("/proc/self/maps") as maps:
            names = sorted({line.split()[-1] for line in maps if "libcudart.so" in line})
    except OSError:
        pass
    for name in [*names, "libcudart.so", "libcudart.so.13", "libcudart.so.12"]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None
