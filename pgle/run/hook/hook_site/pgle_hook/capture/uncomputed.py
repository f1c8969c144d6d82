"""Large modules of a captured program are not executed on the CPU: what they return is zeros that take no memory.

A model of billions of parameters is initialised and trained for hours there, and only its modules are wanted. Where a
module says how all its results are sharded, or Shardy decides it, its code for CPUs is not even generated (`lowering`).

All virtual devices are on this one machine, so a module is judged by what all of them do together.
"""

import mmap
import re
import sys
import time

from pgle_hook import guarded, jax_private

OPERATIONS = 1e10  # arithmetic operations of one execution, loops counted once, from which a module is large

BYTES = 2e8  # the same for the bytes that it reads and writes

INSTRUCTIONS = 2e6
"""Executions of instructions, in loops once per iteration, from which a module is large: a CPU takes 2 to
50 µs for each of a simulated robot's, of which an episode of 1000 steps has five million."""

SECONDS = 2.0  # a module that was executed and took longer is not executed again

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")
_LOOP = re.compile(r" while\(.*\bbody=%?([\w.\-]+)")
_CALL = re.compile(r" call\(.*\bto_apply=%?([\w.\-]+)")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')

MAPPING = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)


class Uncomputed:
    """Which modules are large, and what they return.

    Args:
        executed: the record, which gets the names of the modules that were not executed.
        is_zeros: whether an execution returns zeros by itself, given jax's record of it.
    """

    def __init__(self, executed, is_zeros):
        self._executed = executed
        self._is_zeros = is_zeros
        self._large = {}  # by the id of jax's record, which is kept, so that its id stays its own
        self._pages = mmap.mmap(-1, mmap.PAGESIZE, flags=MAPPING)

    def results(self, call, execute):
        """The results of one execution.

        Args:
            call: jax's record of the executable.
            execute: executes it.
        """
        if id(call) not in self._large:
            is_large = guarded(lambda: jax_private.may_be_left_out(call) and _is_large(call))
            self._judge(call, bool(is_large) or self._is_zeros(call))
        if self._large[id(call)][1]:
            found = guarded(lambda: jax_private.results_of(call, self._zeros))
            if found is not None:
                return found
        began = time.monotonic()
        found = execute()
        guarded(lambda: jax_private.wait_for(found))
        if time.monotonic() - began > SECONDS and jax_private.may_be_left_out(call):
            self._judge(call, True)
        return found

    def _judge(self, call, is_large):
        self._large[id(call)] = (call, is_large)
        if is_large:
            guarded(lambda: self._executed.note("uncomputed", call.name))

    def _zeros(self, shape, dtype):
        """An array of zeros on pages that nobody has written to: all of them together take one page of memory."""
        np = sys.modules["numpy"]
        count = int(np.prod(shape, dtype=np.int64))
        size = max(count * np.dtype(dtype).itemsize, 1)
        if size > len(self._pages):
            self._pages = mmap.mmap(-1, size, flags=MAPPING)
        return np.frombuffer(self._pages, dtype=dtype, count=count).reshape(shape)


def _is_large(call):
    operations, moved = jax_private.work_of(call)
    devices = jax_private.devices_of(call)
    if devices * operations > OPERATIONS or devices * moved > BYTES:
        return True
    return devices * executed_in(jax_private.hlo_of(call)) > INSTRUCTIONS


def executed_in(text):
    """How many instructions an execution of a module executes, given its HLO as text; of a loop, as often as it is
    known to go round, else once; those inside a fusion or a reduction are part of theirs."""
    sizes, inner, name, entry = {}, {}, None, None
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        if head:
            name = head.group(2)
            entry = name if head.group(1) else entry
            sizes[name], inner[name] = 0, []
        elif name is not None and line[:1].isspace():
            sizes[name] += 1
            called = _LOOP.search(line) or _CALL.search(line)
            trips = called and called.re is _LOOP and _TRIPS.search(line)
            if called:
                inner[name].append((called.group(1), int(trips.group(1)) if trips else 1))
    totals = {}
    for name in sizes:  # a computation comes after its callees
        totals[name] = sizes[name] + sum(trips * totals.get(body, 0) for body, trips in inner[name])
    return totals.get(entry, 0)
