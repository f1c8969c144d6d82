"""Host memory in a program that is captured on CPUs: jax drops it when it lowers for them, so we lower for GPUs too."""

import functools

from pgle_hook import jax_private, warn

PLATFORM = "cuda"
HOST_KIND = "pinned_host"
HOST_SPACE = "Host"  # the member of `jax.memory.Space` (an enum called MemorySpace)

REMEDY = "the module without it is captured; rehearse that of a GPU run instead (JAX_DUMP_IR_TO=DIR)"


def watch(path):
    """Have every module that moves data to host memory dumped as jax lowers it for GPUs.

    Args:
        path: file for the names of their dumps; ``!`` before a name: it could not be lowered.
    """
    mlir = jax_private.lowering()

    lower, dump = mlir.lower_jaxpr_to_module, mlir.dump_module_to_file
    waiting = {}

    @functools.wraps(lower)
    def new_lower(name, jaxpr, *args, **kwargs):
        result = lower(name, jaxpr, *args, **kwargs)
        try:
            if "cpu" in kwargs.get("platforms", ()) and uses_host_memory(jaxpr):
                waiting[id(result.module)] = (result.module, _for_gpus(lower, name, jaxpr, args, kwargs))
        except Exception as error:
            warn("cannot tell whether %s moves data to host memory (%s: %s)" % (name, type(error).__name__, error))
        return result

    @functools.wraps(dump)
    def new_dump(module, stage_name):
        if id(module) not in waiting:
            return dump(module, stage_name)
        _, other = waiting.pop(id(module))
        dumped = dump(other or module, stage_name)
        with open(path, "a") as file:
            file.write(("" if other else "!") + str(dumped) + "\n")
        return dumped

    mlir.lower_jaxpr_to_module, mlir.dump_module_to_file = new_lower, new_dump


def _for_gpus(lower, name, jaxpr, args, kwargs):
    """The module as jax lowers it for GPUs; None where it cannot."""
    try:
        return lower(name, jaxpr, *args, **dict(kwargs, platforms=(PLATFORM,))).module
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        warn("%s moves data to host memory, which jax drops on CPUs, and cannot be lowered for GPUs here (%s: %s); %s"
             % (name, type(error).__name__, text, REMEDY))  # fmt: skip
        return None


def uses_host_memory(jaxpr):
    """Whether an equation of a jaxpr, or of one inside it, names host memory."""
    seen = set()
    left = [jaxpr]
    while left:
        jaxpr = left.pop()
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        if id(jaxpr) in seen:
            continue
        seen.add(id(jaxpr))
        for equation in jaxpr.eqns:
            for value in _flat(equation.params.values()):
                if hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns"):
                    left.append(value)
                elif getattr(value, "memory_kind", None) == HOST_KIND or _is_host_space(value):
                    return True
    return False


def _is_host_space(value):
    return type(value).__name__ in ("Space", "MemorySpace") and getattr(value, "name", "") == HOST_SPACE


def _flat(values):
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from _flat(value)
        else:
            yield value
