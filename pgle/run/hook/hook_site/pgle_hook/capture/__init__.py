"""A program that is captured on CPUs: which modules it executes, what jax drops there, which are too large to execute.

Several processes that one command starts as one job have the devices asked for together, and the first captures:
without this each of eight would have eight devices, all together 64, and all would write the same files.
"""

import functools
import math
import os
import socket

from pgle_hook import guarded, jax_private
from pgle_hook.records import restore_flags

DEVICES = "--xla_force_host_platform_device_count="


def capture(jax, *, captured, computes, devices, given, gpu, ranks, flags):
    """Capture the modules of this process.

    Args:
        jax: the module, freshly imported.
        captured: the path of the record that the hook writes.
        computes: execute large modules too, instead of taking their results as zeros.
        devices: virtual CPU devices of the job.
        given: XLA_FLAGS as pgle started the command.
        gpu: the GPU that the program is to see, as of `Gpu`.
        ranks: variables by which launchers number processes, with the values that they had for pgle, None: not set.
        flags: the ones that pgle added to XLA_FLAGS.
    """
    from pgle_hook.capture.executed import Executed, Uncomputed
    from pgle_hook.capture.gpu import Gpu
    from pgle_hook.capture.lowering import Lowering

    jax_private.before_backends(lambda: restore_flags(flags))
    guarded(Gpu(jax, gpu).show)
    guarded(jax_private.slice_on_host)
    executed = Executed(captured, given)
    lowering = Lowering(executed, os.path.dirname(captured), not computes, gpu["targets"])
    guarded(lowering.watch)
    results = (lambda call, execute: execute()) if computes else Uncomputed(executed, lowering.is_zeros).results
    guarded(lambda: executed.watch(results))
    guarded(lambda: _watch_processes(jax, devices, ranks, executed))


def _watch_processes(jax, devices, ranks, executed):
    """Divide the devices when the program says of how many processes it is one; only the first tells of its modules.

    A program that leaves it to jax to find the others, and that nothing has started several times, is alone.
    """
    initialize = jax.distributed.initialize

    @functools.wraps(initialize)
    def new_initialize(coordinator_address=None, num_processes=None, *args, **kwargs):
        if num_processes is None and all(os.environ.get(name) == value for name, value in ranks.items()):
            return initialize("localhost:%d" % _free_port(), 1, 0)
        number = args[0] if args else kwargs.get("process_id")
        if num_processes is None or num_processes > 1:
            executed.waits_for("process %s of %s" % (number, num_processes) if num_processes else "its other processes")
        result = initialize(coordinator_address, num_processes, *args, **kwargs)
        executed.waits_for("")
        guarded(lambda: _share(jax, devices, executed))
        return result

    jax.distributed.initialize = new_initialize


def _free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def _share(jax, devices, executed):
    from pgle_hook.capture import executed as limits

    number, count = jax_private.process_of()
    if count < 2:
        return
    limits.SECONDS = math.inf  # a collective that one process leaves out is one that the others wait for
    own = DEVICES + str(max(devices // count, 1))
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "").replace(DEVICES + str(devices), own)
    if number > 0:
        executed.silence()
        jax.config.update("jax_dump_ir_to", "")
