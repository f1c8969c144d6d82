"""Programs whose operations say by callbacks how they are partitioned (``custom_partitioning``: attention by cuDNN,
Transformer Engine): XLA partitions them here, in the program's own process, where the callbacks are.

A forked child compiles the module for GPUs that are not there. It is ended as soon as XLA has dumped the partitioned
module.
"""

import glob
import os
import shutil
import signal
import sys
import time
import warnings

from pgle_hook import jax_private, warn

CALL = "CustomSPMDPartitioning"
"""The custom call by which a module asks for a callback; the callback's address is in it."""

DUMPS = "*.after_spmd[_-]partition*.hlo.pb"  # of all passes of the partitioner, in jaxlib before 0.6 of one
PARTITIONED = ".after_spmd_partitioner.hlo.pb"
"""What the name of the partitioned module has in place of ``_compile.mlir``."""

IDLE_S = 20.0  # a child that used no processor for so long hangs, on a lock that a thread held at the fork
POLL_S = 0.02


def partition(dumped, module, compile_, given, targets):
    """Partition a module, if it holds custom partitioning, and put the result next to its dump.

    Args:
        dumped: the file of its dump by jax, StableHLO.
        module: jax's module, lowered for GPUs.
        compile_: jax's function that compiles a module on a backend.
        given: what `compile_` gets after backend and module.
        targets: texts of a GpuTargetConfigProto, the one with most fields first.
    """
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
                said = " ".join(log.read().split())[-300:]
            warn("%s cannot be partitioned in the program (%s)" % (os.path.basename(dumped), said or "no answer"))
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
