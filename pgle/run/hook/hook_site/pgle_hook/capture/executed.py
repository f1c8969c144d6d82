"""The record of a captured program: which modules it executes, and how often. Its step is executed again and again."""

import atexit
import importlib.util
import json
import os
import re
import sys
import threading
import time
import traceback

from pgle_hook import guarded, jax_private

PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
WRITTEN_S = 0.2
"""Time between two writings of the counts, since the program may be stopped at any time. The first two executions of
each module, which tell a step from a module that runs once, are written at once."""

LEVELS = {9: "O0", 19: "O1", 29: "O2", 39: "O3"}  # of effort, as XLA numbers them

EFFORT = {
    "jax_optimization_level": 0,
    "jax_memory_fitting_level": 29,
    "jax_exec_time_optimization_effort": 0.0,
    "jax_memory_fitting_effort": 0.0,
}
"""Settings of jax that are options of every compilation, and what they are where nobody says anything."""


class Executed:
    """Counts the executions of every module.

    Args:
        path: file for the program's Python, and its modules by the names of their dumps.
        given: XLA_FLAGS as pgle started the command; others are set by a script or the program itself, and written.
    """

    def __init__(self, path, given):
        self._path = path
        self._given = given
        self._is_silent = False
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._names = {}
        self._counts = {}
        self._written = 0.0
        self._about = {
            "python": sys.executable,
            "version": list(sys.version_info[:3]),
            "jaxlib": jax_private.jaxlib_version(),
            "compiling": "",
            "of_jax": [],
            "uncomputed": [],
            "not_lowered": [],
            "options": {},
            "plugin": any(guarded(lambda name=name: _is_installed(name)) for name in PLUGINS),
        }
        self._write()
        atexit.register(lambda: guarded(self._end))

    def watch(self, results):
        """Have jax tell of every compilation and every execution, and take results from `results`."""
        jax_private.compiled_and_executed(
            lambda dump: guarded(lambda: self._compiling(dump)),
            lambda executable, dump, given: guarded(lambda: self._compiled(executable, dump, given)),
            lambda executable: guarded(lambda: self._executed(executable)),
            results,
        )

    def waits_for(self, what):
        """The program waits for other processes; empty: no longer."""
        self._about["waits_for"] = what
        self._write()

    def _end(self):
        error = getattr(sys, "last_value", None)  # which Python sets for an exception that ends a program
        if error is not None:
            self._about["error"], self._about["by_zeros"] = describe(error), may_come_of_zeros(error)
        self._write()

    def note(self, kind, name):
        """Note a module.

        Args:
            kind: ``of_jax``; ``uncomputed``: its results were zeros; ``not_lowered``: not for GPUs.
            name: of its dump; of one that was not computed, of its function.
        """
        if name not in self._about[kind]:
            self._about[kind].append(name)
            self._write()

    def silence(self):
        """Write nothing any more: another process of the job tells what all execute."""
        self._is_silent = True

    def _compiling(self, dump):
        self._about["compiling"] = os.path.basename(str(dump))
        self._write()

    def _compiled(self, executable, dump, arguments):
        self._about["compiling"] = ""
        if dump:
            name = os.path.basename(str(dump))
            function = re.search(r"_jit_(.+)_compile\.mlir$", name)
            if function and jax_private.is_of_jax(function.group(1)):
                self.note("of_jax", name)
            options = guarded(lambda: _given_options(arguments))
            if options:
                self._about["options"][name] = options
            self._names[id(executable)] = (name, executable)  # which is kept, so that its id stays its own
        self._write()

    def _executed(self, executable):
        if os.getpid() != self._pid or id(executable) not in self._names:
            return
        with self._lock:
            name = self._names[id(executable)][0]
            self._counts[name] = self._counts.get(name, 0) + 1
            if self._counts[name] <= 2 or time.monotonic() - self._written > WRITTEN_S:
                self._write()

    def _write(self):
        if self._is_silent or os.getpid() != self._pid:
            return
        self._written = time.monotonic()
        temporary = "%s.%d.tmp" % (self._path, os.getpid())
        flags = os.environ.get("XLA_FLAGS", "")
        own = flags if flags != self._given else ""
        with open(temporary, "w") as file:
            json.dump(dict(self._about, executed=self._counts, xla_flags=own), file)
        os.replace(temporary, self._path)


NEVER_OF_ZEROS = (
    ImportError, KeyError, AttributeError, NameError, TypeError, SyntaxError, OSError, MemoryError, NotImplementedError,
    UnicodeError,
)  # fmt: skip
"""Exceptions that other numbers do not prevent."""


def may_come_of_zeros(error):
    """Whether an exception may come of results that are zeros: none that jax passed on, as while it traces, may."""
    while error is not None:
        of_jax = type(error).__module__.split(".")[0] in ("jax", "jaxlib")
        if isinstance(error, NEVER_OF_ZEROS) or of_jax or jax_private.passed_through(error):
            return False
        error = error.__cause__ or error.__context__
    return True


def describe(error):
    """An exception in a line: ``KeyError: 'flops' (train.py, line 41)``; the line is the last outside of packages."""
    text = " ".join(("%s: %s" % (type(error).__name__, error)).split())[:300]
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in ("-packages", "pgle_hook"))]
    frame = (own or frames or [None])[-1]
    return "%s (%s, line %d)" % (text, os.path.basename(frame.filename), frame.lineno) if frame else text


def _is_installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _given_options(arguments):
    """What a program asks of XLA besides XLA_FLAGS: ``compiler_options`` of `jax.jit`, and jax's settings of effort.

    Args:
        arguments: of a compilation; one of them is xla_client's CompileOptions.

    Returns:
        Names of flags, or of settings of jax (``jax_optimization_level``), with their values as text.
    """
    options = jax_private.options_in(arguments)
    build = options.executable_build_options
    found = [
        (name, LEVELS.get(value, value))
        for name, value in ((name, _option(build, name[4:], default)) for name, default in EFFORT.items())
        if value and value != EFFORT[name]
    ]
    left_out = build.debug_options.xla_disable_hlo_passes  # jax_compiler_enable_remat_pass, when it is off
    found += [("xla_disable_hlo_passes", left_out)] if left_out else []
    found += options.env_option_overrides
    return [(name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in found]


def _option(build, name, default):
    try:
        return getattr(build, name, default)
    except TypeError:  # jaxlib 0.7 cannot convert it
        return default
