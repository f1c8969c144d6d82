"""Programs as jax lowers them for GPUs, though they run on CPUs.

Code for CPUs differs: random bits are loops there, moves to host memory are dropped, cuDNN's attention and kernels of
Pallas have no rule at all. So every program is lowered for CUDA, and that is dumped. The same program is lowered for
CPUs where it is executed. A large one is not: a module that returns zeros is compiled instead.

Operations may say by callbacks how they are partitioned (``custom_partitioning``: attention by cuDNN, Transformer
Engine). XLA partitions such programs here, in the program's own process, where the callbacks are: a forked child
compiles the module for GPUs that are not there, and is ended as soon as XLA has dumped the partitioned module.
"""

import functools
import glob
import os
import shutil
import signal
import sys
import time
import warnings

from pgle_hook import guarded, jax_private, warn

PLATFORM = "cuda"

BYTES = 1e8
"""Bytes of arguments and results, of all devices together, from which a program is not executed."""


class Lowering:
    """Lowers for GPUs, and decides what to compile.

    Args:
        executed: the record, which gets the names of modules that cannot be lowered for GPUs.
        folder: of the dumps.
        leaves_out: whether large programs are replaced by zeros; programs that only GPUs can execute always are.
        targets: texts of a GpuTargetConfigProto, the one with most fields first.
    """

    def __init__(self, executed, folder, leaves_out, targets):
        self._executed, self._folder = executed, folder
        self._targets = targets
        self._dumps = {}  # by the id of jax's module: the name of its dump
        self._least = BYTES if leaves_out else None
        self._known = {}  # by the id of jax's module: it, which keeps its id, the dumped module, the compiled one
        self._zeros = {}

    def watch(self):
        """Have every module lowered for GPUs, dumped so, and compiled as decided here."""
        mlir = jax_private.lowering()
        lower, dump = mlir.lower_jaxpr_to_module, mlir.dump_module_to_file

        @functools.wraps(lower)
        def new_lower(name, jaxpr, *args, **kwargs):
            if tuple(kwargs.get("platforms", ())) not in (("cpu",), ("gpu",)):  # the device of a mesh is a gpu
                return lower(name, jaxpr, *args, **kwargs)
            return self._lowered(lower, name, jaxpr, args, kwargs)

        @functools.wraps(dump)
        def new_dump(module, stage_name):
            _, dumped, _ = self._known.get(id(module), (None, None, None))
            written = dump(dumped or module, stage_name)
            if written and stage_name == "compile":
                name = os.path.basename(str(written))
                self._dumps[id(module)] = (name, module)  # which is kept, so that its id stays its own
                if id(module) in self._known and not dumped:
                    self._executed.note("not_lowered", name)
                guarded(lambda: self._executed.compiling(name))
            return written

        mlir.lower_jaxpr_to_module, mlir.dump_module_to_file = new_lower, new_dump
        self._zeros = jax_private.compiled_instead(self._instead, self._partition, self._compiled)

    def is_zeros(self, call):
        """Whether an execution of this program returns zeros, whatever it is given."""
        return id(call.xla_executable) in self._zeros

    def _lowered(self, lower, name, jaxpr, args, kwargs):
        """jax's result: for GPUs where the program is not executed, else for CPUs."""
        for_gpus, why = None, None
        try:
            for_gpus = lower(name, jaxpr, *args, **dict(kwargs, platforms=(PLATFORM,)))
        except Exception as error:
            why = error
        if for_gpus is not None and self._least is not None:
            zeros = _signature(for_gpus.module, self._least)
            if zeros is not None:
                return self._note(for_gpus, for_gpus.module, zeros)
        try:
            result = lower(name, jaxpr, *args, **dict(kwargs, platforms=("cpu",)))
        except Exception:
            if why is not None:  # the program is for GPUs
                raise why from None
            zeros = for_gpus and _signature(for_gpus.module, 0)
            if not zeros:
                if for_gpus:
                    warn("%s runs on GPUs alone, and this jax does not say how its results are sharded; "
                         "set JAX_USE_SHARDY_PARTITIONER=true" % name)  # fmt: skip
                raise
            return self._note(for_gpus, for_gpus.module, zeros)
        if why is not None:
            text = " ".join(str(why).split())[:200]
            warn("%s cannot be lowered for GPUs here (%s: %s); its code for CPUs is captured, without moves to host "
                 "memory" % (name, type(why).__name__, text))  # fmt: skip
        return self._note(result, for_gpus and for_gpus.module, None)

    def _note(self, result, dumped, compiled):
        self._known[id(result.module)] = (result.module, dumped, compiled)
        return result

    def _partition(self, module, compile_, given):
        name, for_gpus = self._name(module), self._known.get(id(module), (None, None))[1]
        if name and for_gpus:
            dumped = os.path.join(self._folder, name)
            guarded(lambda: partition(dumped, for_gpus, compile_, given, self._targets))

    def _compiled(self, module, executable, given):
        guarded(lambda: self._executed.compiled(executable, self._name(module), given))

    def _name(self, module):
        return self._dumps.get(id(module), ("", None))[0]

    def _instead(self, module):
        """The module to compile instead of a module; None: itself."""
        return self._known.get(id(module), (None, None, None))[2]


def _signature(module, least):
    """A module with the same arguments and results that returns zeros; None if absent."""
    try:
        return jax_private.signature(module, least)
    except Exception:  # results that are no numbers, a jax without these parts
        return None


CALL = "CustomSPMDPartitioning"
"""The custom call by which a module asks for a callback; the callback's address is in it."""

DUMPS = "*.after_spmd[_-]partition*.hlo.pb"  # of all passes of the partitioner, in jaxlib before 0.6 of one
PARTITIONED = ".after_spmd_partitioner.hlo.pb"
"""What the name of the partitioned module has in place of ``_compile.mlir``."""

IDLE_S = 20.0  # a child that used no processor for so long hangs, on a lock that a thread held at the fork
POLL_S = 0.02


def partition(dumped, module, compile_, given, targets):
    """Partition a module lowered for GPUs, if it holds custom partitioning, and put the result next to its dump by
    jax."""
    options = jax_private.options_in(given)
    if options.num_partitions < 2 or not dumped.endswith("_compile.mlir") or not _asks(dumped):
        return
    wanted = dumped[: -len("_compile.mlir")] + PARTITIONED
    folder = wanted + ".tmp"
    os.makedirs(folder, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jax warns of forks; this child starts its own threads
        sys.stderr.flush()
        child = os.fork()
    if child == 0:
        _compile(folder, module, compile_, given, targets)
    try:
        found = _dumped(child, folder)
        if found:
            os.replace(found, wanted)
        else:
            with open(os.path.join(folder, "log"), errors="replace") as log:
                answer = " ".join(log.read().split())[-300:]
            warn("%s cannot be partitioned in the program (%s)" % (os.path.basename(dumped), answer or "no answer"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _asks(dumped):
    with open(dumped, "rb") as file:
        return CALL.encode() in file.read()


def _compile(folder, module, compile_, given, targets):
    """In the child: compile, and end."""
    try:
        log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        jax_private.compile_deviceless(compile_, module, given, targets, folder)
    except BaseException as error:
        os.write(2, ("%s: %s" % (type(error).__name__, error)).encode())
    os._exit(0)


def _dumped(child, folder):
    """The partitioned module, once it is written whole; None if the child ended without."""
    used, since, ended = None, time.monotonic(), False
    try:
        while True:
            found = glob.glob(os.path.join(glob.escape(folder), DUMPS))
            if found and (ended or (os.path.getsize(found[0]) and not _holds(child, found[0]))):
                return found[0]
            if ended or time.monotonic() - since > IDLE_S:
                return None
            ended = os.waitpid(child, os.WNOHANG)[0] == child
            if not ended:
                time.sleep(POLL_S)
                with open("/proc/%d/stat" % child) as file:
                    now = file.read().rpartition(")")[2].split()[11:13]
                if now != used:
                    used, since = now, time.monotonic()
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _holds(child, path):
    """Whether a process holds a file open."""
    for entry in glob.glob("/proc/%d/fd/*" % child):
        try:
            if os.path.samefile(entry, path):
                return True
        except OSError:  # closed meanwhile
            continue
    return False
