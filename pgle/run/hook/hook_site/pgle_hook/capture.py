"""Inside a program captured on CPUs: record which modules it executes and how often, and replace
large results.

If one command starts several processes as one job, they share the requested devices, and only the
first captures. Otherwise each of eight processes would have eight devices, and all would write the
same files.
"""

import atexit
import functools
import importlib.util
import math
import mmap
import os
import re
import socket
import sys
import threading
import time

from pgle_hook import SetAside, guarded, jax_private
from pgle_hook.alternatives import Alternatives
from pgle_hook.for_gpus import OPERATIONS, GpuAnswers, Lowering
from pgle_hook.records import Sources, describe, is_own, restore_flags, write_json
from pgle_hook.served import Served

DEVICES = "--xla_force_host_platform_device_count="


def capture(
    jax,
    *,
    captured,
    computes,
    ones,
    devices,
    given,
    gpu,
    ranks,
    flags,
    alternatives,
    serves,
    passes,
):
    """Capture the modules of this process.

    Args:
        jax: the module, freshly imported. captured: path of the hook's record. computes: execute
        large modules too, instead of taking their results as zeros. ones: small results of large
        modules, such as a loss, are ones instead of zeros. devices: virtual CPU devices of the job.
        given: XLA_FLAGS with which pgle started the command. gpu: the GPU that the program sees
        (see `GpuAnswers`). ranks: variables by which launchers number processes, with their values
        in pgle's environment; None: not set.
        flags: the flags that pgle added to XLA_FLAGS.
        alternatives: changes to make in the program (see `Alternatives`).
        serves: the function whose alternatives are chosen later (see `Served`); empty: none.
        passes: number of that function's modules that are executed before the step.
    """
    guarded(jax_private.silence_plugins)
    jax_private.before_backends(lambda: restore_flags(flags))
    guarded(GpuAnswers(jax, gpu).show)
    guarded(jax_private.slice_on_host)
    record = CaptureRecord(captured, given, ones, gpu["plugins"])
    made = Alternatives(jax, record, alternatives, serves)
    record.describe = made.why_not
    guarded(made.watch)
    guarded(lambda: jax_private.before_traces(made.called))
    lowering = Lowering(record, os.path.dirname(captured), not computes, gpu)
    guarded(lowering.watch)
    served = Served(jax, serves, passes, made, record=record, lowering=lowering)
    if serves:
        guarded(served.watch)
    uncomputed = Uncomputed(record, lowering.is_zeros, ones)

    def results(call, execute):
        if SetAside.is_on():
            return execute()
        served.executed(call)
        guarded(lambda: record.executed(call.xla_executable))
        return execute() if computes else uncomputed.results(call, execute)

    guarded(lambda: jax_private.executed(results))
    guarded(lambda: _watch_processes(jax, devices, ranks, record))


def _watch_processes(jax, devices, ranks, record):
    """Divide the devices when the program tells jax its number of processes. Only the first process
    records its modules.

    If the command has not started several processes, this one is alone. Environment or arguments
    may name a launcher or cluster, but the job's other processes are not here.
    """
    initialize = jax.distributed.initialize

    @functools.wraps(initialize)
    def new_initialize(coordinator_address=None, num_processes=None, *args, **kwargs):
        now = {name: os.environ.get(name) for name in ranks}
        is_launched = now != ranks
        is_told = num_processes is not None and num_processes > 1
        if not is_launched and not (is_told and others_here()):
            with socket.socket() as free:
                free.bind(("localhost", 0))
                _, port = free.getsockname()
            address = "localhost:%d" % port
            # Of all that is given here nothing is looked for in the environment; there is no GPU 0
            # to be seen.
            given = {"local_device_ids": [0], "coordinator_bind_address": address}
            return initialize(address, 1, 0, **given)
        number = args[0] if args else kwargs.get("process_id")
        if num_processes is None:
            record.waits_for("its other processes")
        elif num_processes > 1:
            record.waits_for("process %s of %s" % (number, num_processes))
        result = initialize(coordinator_address, num_processes, *args, **kwargs)
        record.waits_for("")
        guarded(lambda: _share(jax, devices, record))
        return result

    jax.distributed.initialize = new_initialize


OTHERS_S, LOOK_S = 3.0, 0.1
"""How long and how often to look for other processes of the command, because a script may start
them one after the other.
"""


def others_here():
    """Wait a while, and return whether the command has started Pythons besides this one and its
    parents.
    """
    until = time.monotonic() + OTHERS_S
    while True:
        found = guarded(_others)
        if found is None or found:  # without /proc this is unknown
            return True
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_S)


def _others():
    """The Python processes of this session, except this one and its parents."""
    names = {}
    parents = {}
    session = os.getsid(0)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid) as file:
                name, _, rest = file.read().partition("(")[2].rpartition(")")
        except OSError:  # the process has ended
            continue
        state, parent, _, its_session = rest.split()[:4]
        if int(its_session) == session and state != "Z":
            names[int(pid)] = name
            parents[int(pid)] = int(parent)
    pid = os.getpid()
    while pid in names:
        del names[pid]
        pid = parents[pid]
    return [pid for pid, name in names.items() if "python" in name]


def _share(jax, devices, record):
    """Give this process its part of the devices. Only the first process keeps a record."""
    global SECONDS
    number, count = jax_private.process_of()
    if count < 2:
        return
    SECONDS = math.inf  # other processes wait for a collective that one leaves out
    own = DEVICES + str(max(devices // count, 1))
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = flags.replace(DEVICES + str(devices), own)
    if number > 0:
        record.silence()
        jax.config.update("jax_dump_ir_to", "")


LOOKED_S = 1.0  # seconds between two looks at the program's position
WRITTEN_S = 0.2
"""Seconds between two writings of the counts, because the program may be stopped at any time. Each
module's first two executions are written at once, because they distinguish a step from a module
that runs once.
"""

#: levels of effort, as XLA numbers them
LEVELS = {9: "O0", 19: "O1", 29: "O2", 39: "O3"}

EFFORT = {
    "jax_optimization_level": 0,
    "jax_memory_fitting_level": 29,
    "jax_exec_time_optimization_effort": 0.0,
    "jax_memory_fitting_effort": 0.0,
}
"""jax's settings that are options of every compilation, with their defaults."""


class CaptureRecord:
    """Counts executions of every module, in a file next to facts about the program; `given`:
    XLA_FLAGS as pgle set them; `plugins`: modules that bring the compiler for the GPU.
    """

    def __init__(self, path, given, ones, plugins):
        self._path = path
        self._given = given
        # returns an exception that ended the program as a line
        self.describe = describe
        self._sources = Sources()
        self._is_silent = False
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._names = {}
        self._counts = {}
        self._turns = {}  # by module: positions of its first and last execution
        self._turn = 0
        self._written = 0.0
        version = list(sys.version_info[:3])
        has_plugin = any(map(_is_installed, plugins))
        self._about = {
            "python": sys.executable,
            "version": version,
            "jaxlib": jax_private.jaxlib_version(),
            "compiling": "",
            "of_jax": [],
            "in_jax": [],
            "uncomputed": [],
            "not_lowered": [],
            "options": {},
            "compiled_again": {},
            "ones": ones,
            "place": "",
            "sources": {},
            "sites": [],
            "plugin": has_plugin,
        }
        self._write()
        atexit.register(lambda: guarded(self._end))
        threading.Thread(target=self._look, name="pgle-hook", daemon=True).start()

    def _look(self):
        """Daemon thread: record where the program is while that changes, and what it has
        imported.
        """
        while os.getpid() == self._pid:
            time.sleep(LOOKED_S)
            place = guarded(place_of_main) or ""
            if place != self._about["place"] or self._sources.is_behind():
                self._about["place"] = place
                self._write()

    def begin(self, folder):
        """From now on write into another folder, and only about later events."""
        self._path = os.path.join(folder, os.path.basename(self._path))
        self._counts = {}
        self._turns = {}
        self._about.update(compiling="", options={}, sites=[], compared=None)
        self._write()

    def again(self, name, again):
        """Record that a function is compiled again.

        Args:
            name: the name of its new module.
            again: what `Compilations` found to differ.
        """
        self._about["compiled_again"][name] = again

    def waits_for(self, what):
        """Record that the program waits for other processes; empty: it does not wait any more."""
        self._about["waits_for"] = what
        self._write()

    def _end(self):
        """At the end of the program: record the exception that ended it."""
        # Python sets it if an exception ends a program.
        error = getattr(sys, "last_value", None)
        if error is not None:
            self._about["error"] = self.describe(error)
            self._about["traced"] = bool(guarded(lambda: jax_private.is_traced(error)))
        self._write()

    def note(self, kind, name):
        """Record a dump as ``of_jax`` or ``not_lowered`` (for GPUs), or a function as
        ``uncomputed``: its results were zeros.
        """
        if name not in self._about[kind]:
            self._about[kind].append(name)
            self._write()

    def site(self, found):
        """Record a call with alternatives: kind, place, setting, length."""
        if found not in self._about["sites"]:
            self._about["sites"].append(found)
            self._write()

    def compared(self, found):
        """Record the comparison of the step's values, as from `Values`."""
        self._about["compared"] = found
        self._write()

    def silence(self):
        """Stop writing, because another process of the job records the same executions."""
        self._is_silent = True

    def compiling(self, name):
        """Record that a module, with this dump name, is about to be compiled."""
        self._about["compiling"] = name
        self._write()

    def compiled(self, executable, name, arguments, source):
        """Record that a module was compiled to an executable with these arguments. The name is
        empty without a dump. `source` comes from `jax_private.function_of`.
        """
        self._about["compiling"] = ""
        if name:
            function = re.search(r"_jit_(.+)_compile\.mlir$", name)
            if function and jax_private.is_of_jax(function.group(1), source):
                self.note("of_jax", name)
                if jax_private.is_written_in_jax(source):
                    self.note("in_jax", name)
            options = guarded(lambda: _given_options(arguments))
            if options:
                self._about["options"][name] = options
            # kept, so that its id is not reused
            self._names[id(executable)] = name, executable
        self._write()

    def executed(self, executable):
        """Record an execution before it starts."""
        if os.getpid() != self._pid or id(executable) not in self._names:
            return
        with self._lock:
            name = self._names[id(executable)][0]
            self._counts[name] = self._counts.get(name, 0) + 1
            self._turn += 1
            self._turns.setdefault(name, [self._turn, 0])[1] = self._turn
            if self._counts[name] <= 2 or time.monotonic() - self._written > WRITTEN_S:
                self._write()

    def _write(self):
        """Write the record, unless another process writes it."""
        if self._is_silent or os.getpid() != self._pid:
            return
        self._written = time.monotonic()
        flags = os.environ.get("XLA_FLAGS", "")
        own = flags if flags != self._given else ""
        with self._writing:
            self._about["sources"] = guarded(self._sources.found) or {}
            about = dict(
                self._about,
                executed=dict(self._counts),
                turns=dict(self._turns),
                xla_flags=own,
            )
            write_json(self._path, about)


def place_of_main():
    """Where the program's main thread is in its own code: ``train.py, line 41, in load``; empty if
    it is elsewhere.
    """
    frame = sys._current_frames().get(threading.main_thread().ident)
    while frame is not None:
        path = frame.f_code.co_filename
        if is_own(path) and "pgle_hook" not in path:
            name = os.path.basename(path)
            return "%s, line %d, in %s" % (name, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return ""


def _is_installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:  # no plugin, or a broken one
        return False


def _given_options(arguments):
    """Return the options that a program gives XLA besides XLA_FLAGS: ``compiler_options`` of
    `jax.jit` and jax's settings of effort. Keys are names of flags or of jax's settings, values are
    texts.
    """
    options = jax_private.options_in(arguments)
    build = options.executable_build_options
    found = []
    for name, default in EFFORT.items():
        value = _option(build, name[len("jax_") :], default)
        if value and value != default:
            found.append((name, LEVELS.get(value, value)))
    # jax_compiler_enable_remat_pass, if it is off
    left_out = build.debug_options.xla_disable_hlo_passes
    if left_out:
        found.append(("xla_disable_hlo_passes", left_out))
    found += options.env_option_overrides
    return [(name, _as_text(value)) for name, value in found]


def _as_text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def _option(build, name, default):
    try:
        return getattr(build, name, default)
    except TypeError:  # jaxlib 0.7 cannot convert it
        return default


# Large modules are not executed on the CPU. They return zeros that take no memory, because only the
# modules are wanted, and CPUs would train a large model for hours. If a module says how all its
# results are sharded, or Shardy decides it, its code for CPUs is not even generated (`lowering`).
# All virtual devices are on this one machine, so a module is judged by what all of them do
# together.

BYTES = 2e8  # bytes that it reads and writes, above which a module is large

INSTRUCTIONS = 2e6
"""Executed instructions, counted per iteration, above which a module is large. A CPU takes 2 to 50
µs for each of a simulated robot's, and an episode of 1000 steps has five million.
"""

LOOKED_AT = 64 << 20
"""Largest result on one device, in bytes, that may be ones. All of one type share memory."""

SECONDS = 2.0  # a module that took longer is not executed again

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")
_LOOP = re.compile(r" while\(.*\bbody=%?([\w.\-]+)")
_CALL = re.compile(r" call\(.*\bto_apply=%?([\w.\-]+)")
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')

MAPPING = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)


class Uncomputed:
    """Which modules are large, and what they return; `is_zeros` knows whether an execution returns
    zeros by itself.

    With `ones`, results that a program may look at, as a loss, are ones; larger ones stay zeros,
    which take no memory.
    """

    def __init__(self, record, is_zeros, ones):
        self._record = record
        self._is_zeros = is_zeros
        self._ones = ones
        self._of_ones = {}  # by type: the longest array of ones so far
        # by the id of jax's record, which is kept, so that its id is not reused
        self._large = {}
        self._pages = mmap.mmap(-1, mmap.PAGESIZE, flags=MAPPING)

    def results(self, call, execute):
        """Return the results of one execution, from jax's record of the executable and the function
        that executes it.
        """
        if id(call) not in self._large:
            can_be = lambda: jax_private.may_be_left_out(call) and _is_large(call)
            self._judge(call, bool(guarded(can_be)) or self._is_zeros(call))
        _, is_large = self._large[id(call)]
        if is_large:
            found = guarded(lambda: jax_private.results_of(call, self._zeros))
            if found is not None:
                return found
        began = time.monotonic()
        found = execute()
        guarded(lambda: sys.modules["jax"].block_until_ready(found))
        if time.monotonic() - began > SECONDS and jax_private.may_be_left_out(call):
            self._judge(call, True)
        return found

    def _judge(self, call, is_large):
        self._large[id(call)] = call, is_large
        if is_large:
            guarded(lambda: self._record.note("uncomputed", call.name))

    def _zeros(self, shape, dtype):
        """Return an array of zeros on untouched pages. All pages together take one page of
        memory.
        """
        np = sys.modules["numpy"]
        count = int(np.prod(shape, dtype=np.int64))
        size = max(count * np.dtype(dtype).itemsize, 1)
        if self._ones and size <= LOOKED_AT:
            if dtype not in self._of_ones or self._of_ones[dtype].size < count:
                self._of_ones[dtype] = np.ones(count, dtype)
            return self._of_ones[dtype][:count].reshape(shape)
        if size > len(self._pages):
            self._pages = mmap.mmap(-1, size, flags=MAPPING)
        return np.frombuffer(self._pages, dtype=dtype, count=count).reshape(shape)


def _is_large(call):
    """Whether one execution takes long, by what all devices on this machine do."""
    operations, moved = jax_private.work_of(call)
    devices = jax_private.devices_of(call)
    if devices * operations > OPERATIONS or devices * moved > BYTES:
        return True
    return devices * executed_in(jax_private.hlo_of(call)) > INSTRUCTIONS


def executed_in(text):
    """How many instructions an execution of a module executes, given its HLO as text; of a loop, as
    often as it is known to go round, else once; those inside a fusion or a reduction are part of
    theirs.
    """
    totals = {}
    name = entry = None
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        if head:
            name = head.group(2)
            totals[name] = 0
            if head.group(1):
                entry = name
        elif name is not None and line[:1].isspace():
            totals[name] += 1 + _executed_within(line, totals)
    return totals.get(entry, 0)


def _executed_within(line, totals):
    """How many instructions an instruction of HLO executes besides itself.

    Args:
        totals: of the computations before it; callees come before their callers in the text.
    """
    call = _CALL.search(line)
    if call:
        return totals.get(call.group(1), 0)
    loop = _LOOP.search(line)
    if not loop:
        return 0
    trips = _TRIPS.search(line)
    times = int(trips.group(1)) if trips else 1
    return times * totals.get(loop.group(1), 0)
