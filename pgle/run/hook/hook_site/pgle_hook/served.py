"""A program that waits at its step, and traces it with one alternative after the other.

A program may take longer to reach its step than jax takes to trace it. So it is run once for all
alternatives. It stops where it calls its step with arguments of the module that pgle compiles.
There it takes requests: files that pgle writes next to the record. Each names a folder for the
module, or for the result of comparing values. When the folder is complete, it contains `DONE`. The
program never continues.
"""

import functools
import json
import os
import time

from pgle_hook import SetAside, jax_private
from pgle_hook.alternatives import why_not
from pgle_hook.records import write_whole

WAITS = ".waits"  # in the record's folder: exists if the program waits at its step
REQUEST = ".request%d.json"  # also there; numbered from 0
DONE = ".done"  # in a request's folder; contains the reason of a failure, or nothing
POLL_S = 0.02


class Served:
    """The step of a program, traced on request.

    Args:
        jax: the module, freshly imported.
        function: name of the step's function; empty: serve nothing.
        passes: modules of that function that the program executes before the one to wait at.
        alternatives: makes them, as of `Alternatives`.
        record: of the capture, as of `CaptureRecord`.
        lowering: lowers for GPUs, as of `Lowering`.
    """

    def __init__(self, jax, function, passes, alternatives, record, lowering):
        self._jax = jax
        self._function = function
        self._passes = passes
        # by id: jax's records of executables, kept so that ids are not reused
        self._passed = {}
        self._alternatives = alternatives
        self._record = record
        self._lowering = lowering
        self._folder = lowering.folder
        self._has_begun = False
        self._values = None

    def watch(self):
        """Wait for requests when the program calls its step."""
        self._values = self._alternatives.comparison(self._compared)
        jax_private.before_traces(self._called)

    def executed(self, call):
        """Handle a coming execution. If it is the step, the step could not be served, so stop
        waiting.
        """
        name = jax_private.without_jit(call.name)
        if not self._function or name != self._function:
            return
        self._passed[id(call)] = call
        if len(self._passed) > self._passes:
            os._exit(0)

    def _called(self, function, args, options):
        """Serve requests, for ever, if the program calls its step with arrays."""
        step = self._alternatives.jitted(function)
        if step is None or self._has_begun or SetAside.is_on():
            return
        if len(self._passed) < self._passes:
            return
        given = self._jax.tree_util.tree_leaves((args, options))
        if any(isinstance(leaf, self._jax.core.Tracer) for leaf in given):
            return
        self._has_begun = True
        _write(os.path.join(self._folder, WAITS), "")
        number = 0
        while True:
            path = os.path.join(self._folder, REQUEST % number)
            while not os.path.exists(path):
                time.sleep(POLL_S)
            with open(path) as file:
                request = json.load(file)
            self._answer(request, step, args, options)
            number += 1

    def _answer(self, request, step, args, options):
        """Dump the step, or compare its values, as one request asks."""
        folder = request["folder"]
        os.makedirs(folder, exist_ok=True)
        self._jax.config.update("jax_dump_ir_to", folder)
        self._lowering.folder = folder
        self._record.begin(folder)
        why = ""
        try:
            with self._alternatives.others(request["alternatives"]):
                make = self._compare if request["compares"] else self._lower
                make(step, args, options)
        except Exception as error:
            why = why_not(self._jax, error, request["alternatives"])
        _write(os.path.join(folder, DONE), why)

    def _lower(self, step, args, options):
        """Dump the step's module as it would be compiled if the program called it."""
        step.made.lower(*args, **options).compile()

    def _compare(self, step, args, options):
        """Compare the step's values while jax traces it, as jax does for the program's own
        calls.
        """
        self._values.precision = self._alternatives.precision()

        @functools.wraps(step.function)
        def comparing(*given, **named):
            self._values.compare_in_time(step.function, given, named)
            raise _ComparedError

        try:
            step.instead(comparing).lower(*args, **options)
        except _ComparedError:
            pass

    def _compared(self, found):
        self._record.compared(found)
        _write(os.path.join(self._lowering.folder, DONE), "")


class _ComparedError(Exception):
    """Values were compared, so the rest of the step is not traced."""


def _write(path, text):
    write_whole(path, lambda file: file.write(text))
