"""The profilers that a window opens: JAX's own, or the CUDA profiler range that nsys captures."""

import ctypes
import os

from pgle_hook import warn


def make_profiler(config, jax):
    """The profiler that the configuration asks for."""
    capture = config.get("capture")
    if capture == "jax":
        return JaxProfiler(config["trace"], jax)
    return CudaRange() if capture == "nsys" else NoProfiler()


class NoProfiler:
    """Nothing is traced."""

    is_open = False
    opening = False
    changed = False

    def open(self):
        """Do nothing."""

    def close(self):
        """Do nothing."""


class JaxProfiler:
    """A session of `jax.profiler` that writes into the rank's trace folder."""

    def __init__(self, folder, jax):
        self._folder = folder
        self._start, self._stop = jax.profiler.start_trace, jax.profiler.stop_trace
        self.is_open = False
        self.opening = False
        self.changed = False

    def open(self):
        """Start the session; one that cannot be started (another one runs) is a warning."""
        os.makedirs(self._folder, exist_ok=True)
        self.opening = True
        try:
            self._start(self._folder)
            self.is_open = self.changed = True
        except Exception as error:
            warn("no trace: the JAX profiler did not start (%s)" % error)
        finally:
            self.opening = False

    def close(self):
        """Stop the session and write the trace."""
        if not self.is_open:
            return
        self.is_open = False
        self.opening = self.changed = True
        try:
            self._stop()
        finally:
            self.opening = False


class CudaRange:
    """cudaProfilerStart and cudaProfilerStop of the CUDA runtime that the program has loaded."""

    def __init__(self):
        self._library = None
        self.is_open = False
        self.opening = False
        self.changed = False

    def open(self):
        """Begin the range that ``nsys --capture-range=cudaProfilerApi`` waits for."""
        self._library = self._library or _cuda_runtime()
        if self._library is None:
            warn("no trace: libcudart is not loaded, nsys cannot be told where to start")
            return
        self._library.cudaProfilerStart()
        self.is_open = self.changed = True

    def close(self):
        """End the range."""
        if self.is_open:
            self.is_open = False
            self.changed = True
            self._library.cudaProfilerStop()


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
