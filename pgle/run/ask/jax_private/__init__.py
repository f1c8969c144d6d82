"""Every use of a private or moving API of jax and its plugin: programs read, and compiled for GPUs that are not there.

Imported in the rehearsal worker's process only, which may be another Python than ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pgle.errors import UserError
from pgle.run.ask.jax_private.pjrt import Plugin, XlaError, library
from pgle.run.ask.jax_private.programs import Program, first_line, read_program
from pgle.run.ask.jax_private.wire import number_field, submessage
from pgle.xla.targets import without_runtime

__all__ = [
    "Plugin", "Program", "XlaError", "compile_options", "compile_program", "first_line", "fitted_flags", "library",
    "read_program",
]  # fmt: skip

EXECUTABLE_BUILD_OPTIONS, DEVICE_MEMORY_SIZE = 3, 15
"""Fields of CompileOptionsProto and of what is in it (openxla/xla ``xla/pjrt/proto/compile_options.proto``)."""

LEVELS = {"UNKNOWN": 0, "O0": 9, "O1": 19, "O2": 29, "O3": 39}
"""Levels of effort as XLA numbers them (openxla/xla ``xla/xla.proto``)."""

TRIALS = "config-assigner"
"""The pass that, from jaxlib 0.11 on, compiles every matrix product (and fusion, where that is switched on) to take the
first configuration of all, since it can time none: nothing looks at that before the schedule is made."""

OLDEST_JAX = (0, 4, 34)  # first release whose CUDA plugin compiles without a device (0.4.36 alone cannot)


def version() -> tuple[int, ...]:
    """The version of the installed jaxlib.

    Raises:
        UserError: jaxlib is missing or older than the oldest that can rehearse.
    """
    try:
        import jaxlib
    except ImportError as error:
        raise UserError(f"jax cannot be imported ({error})", remedy="pip install jax") from None
    found = tuple(int(part) for part in re.findall(r"\d+", jaxlib.__version__)[:4])
    if found < OLDEST_JAX or found[:3] == (0, 4, 36):
        raise UserError(
            f"jaxlib {jaxlib.__version__} cannot compile for a GPU that is not there",
            remedy="rehearse in an environment with jax 0.4.38 or newer",
        )
    return found


def fitted_flags(release: tuple[int, ...], flags: str) -> str:
    """XLA flags, and those without which that jaxlib cannot compile where there is no GPU, or wastes its time.

    Args:
        release: of jaxlib.
        flags: as in ``XLA_FLAGS``; what they say wins, but that a list of the only passes to run loses `TRIALS`.
    """
    if release < (0, 9):  # its autotuner fails without a device
        return f"--xla_gpu_autotune_level=0 {flags}"
    if release < (0, 11):
        return flags
    fitted = f"--xla_gpu_experimental_enable_fusion_autotuner=false {flags}"
    if "--xla_enable_hlo_passes_only=" in flags:  # XLA takes no two lists; a pipeline in one runs with all its passes
        return re.sub(rf"(?<=[=,])(autotuner|{TRIALS}),", "", fitted)
    return f"--xla_disable_hlo_passes={TRIALS} {fitted}"


def topology_devices(target: str, topology: str) -> Sequence[Any]:
    """Compile-only devices of jax, which lowering a `jax.export` artifact needs.

    Raises:
        UserError: jax gives none.
    """
    from jax.experimental import topologies

    try:
        found = topologies.get_topology_desc("", platform="cuda", target_config=target, topology=topology)
    except Exception as error:
        raise refused_topology(str(error), topology) from None
    devices: Sequence[Any] = found.devices
    return devices


def compile_program(
    plugin: Plugin, program: Program, target: str, portable: str, topology: str, options: bytes
) -> None:
    """Compile `program`; XLA_FLAGS of this process count, so call it once.

    Args:
        plugin: the loaded compiler.
        program: what to compile.
        target: text of a GpuTargetConfigProto.
        portable: the same with fewer fields, taken where this XLA does not know one of `target`.
        topology: ``SxHxD``.
        options: of `compile_options`.

    Raises:
        UserError: the target or topology is refused.
        XlaError: XLA fails; for lack of ptxas too, long after scheduling is done and dumped.
    """
    target = _accepted(plugin, target, portable, topology)
    plugin.compile_only(target, topology, program.code, program.form, options)


def _accepted(plugin: Plugin, target: str, portable: str, topology: str) -> str:
    """The description of the GPU that this XLA understands."""
    for text in (target, portable, without_runtime(portable)):
        try:
            plugin.check_topology(text, topology)
            return text
        except XlaError as error:
            message = str(error)
            if "GpuTargetConfigProto" not in message or not portable:
                break
    raise refused_topology(message, topology)


def refused_topology(message: str, topology: str) -> UserError:
    """Why there is no compiler for a topology, from XLA's words."""
    if "GpuTargetConfigProto" in message:
        return UserError(
            "the installed jax does not understand this GPU description (it may come from a newer XLA)",
            remedy="use a built-in target, or the gpu_target_config.pbtxt of an XLA dump of this jax version",
        )
    if "topology must be" in message:
        return UserError(f"topology {topology!r} is not of the form SLICESxHOSTSxDEVICES")
    return UserError(
        f"no GPU compiler: {first_line(message)}", remedy="check that the CUDA plugin matches jax: pgle doctor --fix"
    )


def compile_options(program: Program, allocator_bytes: int, efforts: Mapping[str, str]) -> bytes:
    """The serialized compile options that jax would give; they hold the flags of XLA_FLAGS.

    Args:
        program: what is to be compiled.
        allocator_bytes: what the device's allocator has in a job, where jaxlib puts it in by itself
            (jaxlib/py_client.cc); 0: unknown.
        efforts: jax's settings of effort by name: ``jax_optimization_level``, and what it is.

    Raises:
        UserError: this jax lacks what the program needs.
    """
    import jaxlib
    import numpy as np
    from jaxlib import xla_client

    options = xla_client.CompileOptions()
    options.num_replicas = program.num_replicas
    options.num_partitions = program.num_partitions
    ids = np.arange(program.num_devices).reshape(program.num_replicas, program.num_partitions)
    options.device_assignment = xla_client.DeviceAssignment.create(ids)
    build = options.executable_build_options
    build.use_spmd_partitioning = not program.is_partitioned
    if hasattr(build, "use_shardy_partitioner"):
        build.use_shardy_partitioner = program.shardy
    elif program.shardy:
        raise UserError("this jax has no Shardy partitioner and the module needs it", remedy="install a newer jax")
    # JAX sets both lists for every compile; without them the fingerprint is another one (nothing else changes).
    build.allow_spmd_sharding_propagation_to_parameters = list(program.propagate_to_parameters)
    build.allow_spmd_sharding_propagation_to_output = list(program.propagate_to_output)
    for name, value in efforts.items():
        if not hasattr(build, name.removeprefix("jax_")):
            raise UserError(f"jaxlib {jaxlib.__version__} has no {name}", remedy="leave it out")
        setattr(build, name.removeprefix("jax_"), LEVELS[value] if value in LEVELS else float(value))
    data: bytes = options.SerializeAsString()
    # No binding for this one; a message that is appended to another is merged with it.
    return data + submessage(EXECUTABLE_BUILD_OPTIONS, number_field(DEVICE_MEMORY_SIZE, allocator_bytes))
