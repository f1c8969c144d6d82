"""Programs as jax lowers them for GPUs, though they run on CPUs.

Code for CPUs differs: random bits are loops there, moves to host memory are dropped, cuDNN's attention and kernels of
Pallas have no rule at all. So every program is lowered for CUDA, and that is dumped. The same program is lowered for
CPUs where it is executed. A large one is not: a module that returns zeros is compiled instead.
"""

import functools
import os

from pgle_hook import guarded, jax_private, warn
from pgle_hook.capture.partition import partition

PLATFORM = "cuda"

BYTES = 1e8
"""Bytes of arguments and results, of all devices together, from which a program is not executed."""


class Lowering:
    """Lowers for GPUs, and decides what is compiled.

    Args:
        path: file for the names of the dumps; ``!`` before a name: it could not be lowered for GPUs.
        leaves_out: whether large programs are replaced by zeros; those that only GPUs can execute always are.
        targets: texts of a GpuTargetConfigProto, the one with most fields first.
    """

    def __init__(self, path, leaves_out, targets):
        self._path = path
        self._targets = targets
        self._dumps = {}  # by the id of jax's module: the file of its dump
        self._least = BYTES if leaves_out else None
        self._known = {}  # by the id of jax's module: it, which keeps its id, what is dumped, what is compiled
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
            if id(module) in self._known and written:
                self._dumps[id(module)] = os.path.join(os.path.dirname(self._path), os.path.basename(str(written)))
                with open(self._path, "a") as file:
                    file.write(("" if dumped else "!") + str(written) + "\n")
            return written

        mlir.lower_jaxpr_to_module, mlir.dump_module_to_file = new_lower, new_dump
        self._zeros = jax_private.compiled_instead(self._instead, self._partition)

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
        dumped = self._dumps.get(id(module))
        for_gpus = self._known.get(id(module), (None, None))[1]
        if dumped and for_gpus:
            guarded(lambda: partition(dumped, for_gpus, compile_, given, self._targets))

    def _instead(self, module):
        """What is compiled instead of a module; None: itself."""
        return self._known.get(id(module), (None, None, None))[2]


def _signature(module, least):
    """A module with the same arguments and results that returns zeros; None where there is none."""
    try:
        return jax_private.signature(module, least)
    except Exception:  # results that are no numbers, a jax without these parts
        return None
