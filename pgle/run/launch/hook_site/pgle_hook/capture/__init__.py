"""A program that is captured on CPUs: which modules it executes, what jax drops there, what is too large to execute.

Several processes that one command starts as one job have the devices asked for together, and the first captures:
without this each of eight would have eight devices, all together 64, and all would write the same files.
"""

import functools
import math
import os

from pgle_hook import guarded, jax_private

DEVICES = "--xla_force_host_platform_device_count="
PLATFORMS = ("jax_platforms", "jax_platform_name")  # settings of jax
GPUS = ("gpu", "cuda")
ASK_FOR_DEVICES = ("devices", "local_devices", "device_count", "local_device_count")


def capture(jax, files, devices, given):
    """Capture the modules of this process.

    Args:
        jax: the module, freshly imported.
        files: the path of what the hook writes, by name.
        devices: virtual CPU devices of the job; None where the user's XLA_FLAGS say those of a process.
        given: XLA_FLAGS as pgle started the command.
    """
    from pgle_hook.capture import offload
    from pgle_hook.capture.executed import Executed
    from pgle_hook.capture.uncomputed import Uncomputed

    guarded(lambda: _stay_on_cpus(jax))
    results = Uncomputed(files["uncomputed"]).results if "uncomputed" in files else lambda call, execute: execute()
    executed = Executed(files["program"], given)
    guarded(lambda: executed.watch(results))
    guarded(lambda: _watch_processes(jax, devices, executed))
    offload.watch(files["lowered"])


def _stay_on_cpus(jax):
    """Give the program CPU devices where it, or the script that starts it, says that it wants GPUs."""
    update = jax.config.update
    update(PLATFORMS[0], "cpu")
    type(jax.config).update = lambda this, name, value: None if name in PLATFORMS else update(name, value)
    for name in ASK_FOR_DEVICES:
        setattr(jax, name, _without_gpus(getattr(jax, name)))


def _without_gpus(ask):
    """jax's function with no platform in place of GPUs."""

    @functools.wraps(ask)
    def new_ask(*args, **kwargs):
        args = [None if value in GPUS else value for value in args]
        return ask(*args, **{name: None if value in GPUS else value for name, value in kwargs.items()})

    return new_ask


def _watch_processes(jax, devices, executed):
    """Divide the devices when the program says of how many processes it is one; only the first tells of its modules."""
    initialize = jax.distributed.initialize

    def new_initialize(*args, **kwargs):
        result = initialize(*args, **kwargs)
        guarded(lambda: _share(jax, devices, executed))
        return result

    jax.distributed.initialize = new_initialize


def _share(jax, devices, executed):
    from pgle_hook.capture import uncomputed

    number, count = jax_private.process_of()
    if count < 2:
        return
    uncomputed.SECONDS = math.inf  # a collective that one process leaves out is one that the others wait for
    if devices is not None:
        own = DEVICES + str(max(devices // count, 1))
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "").replace(DEVICES + str(devices), own)
    if number > 0:
        executed.silence()
        jax.config.update("jax_dump_ir_to", "")
