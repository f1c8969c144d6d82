"""Every use of a private or moving jax API: compiling a module for GPUs that are not there.

Imported in the rehearsal worker's process only. Tried with jax 0.4.38 to 0.12.0.1; what a version lacks becomes a
`UserError` that says which version has it.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from pgle.errors import UserError

OLDEST_JAX = (0, 4, 34)
"""First release whose CUDA plugin compiles without a device (0.4.36 alone cannot)."""
AUTOTUNES_WITHOUT_DEVICE = (0, 9)
"""First release that needs no ``--xla_gpu_autotune_level=0`` without a GPU: through 0.8.3 its autotuner fails there."""
PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
INSTALL = "pip install 'pgle[rehearse]'"

# How many devices a sharding spans, in its three notations: devices=[4,1]<=[4], mesh['d'=4], sdy.mesh<["d"=4]>
_TILING = re.compile(r"\bdevices=\[([0-9,]+)\]")
_MESH = re.compile(r"""\bmesh(?:\[|<\[)((?:(?:'|"|\\22)[^'"\\]*(?:'|"|\\22)=\d+(?:, ?)?)+)\]""")
_GSPMD = re.compile(r',? ?mhlo\.sharding = "[^"]*"')


@dataclass(frozen=True)
class Program:
    """A module ready to compile.

    Attributes:
        ir: the MLIR module (StableHLO).
        name: of the module, ``jit_train_step``.
        num_partitions: SPMD partitions.
        num_replicas: replicas.
        propagate_to_parameters: per parameter, whether the compiler may choose its sharding.
        propagate_to_output: the same per output.
        shardy: True where shardings are Shardy's, False for GSPMD annotations.
    """

    ir: Any
    name: str
    num_partitions: int
    num_replicas: int
    propagate_to_parameters: tuple[bool, ...]
    propagate_to_output: tuple[bool, ...]
    shardy: bool


def version() -> tuple[int, ...]:
    """The version of the installed jaxlib.

    Raises:
        UserError: jax is missing or older than the oldest that can rehearse.
    """
    try:
        import jax
        import jaxlib
    except ImportError as error:
        raise UserError(f"jax cannot be imported ({error})", remedy=INSTALL) from None
    found = tuple(int(part) for part in re.findall(r"\d+", jaxlib.__version__)[:4])
    if found < OLDEST_JAX or found[:3] == (0, 4, 36):
        raise UserError(
            f"jaxlib {jaxlib.__version__} cannot compile for a GPU that is not there",
            remedy="install jax 0.4.38 or newer: pip install -U 'pgle[rehearse]'",
        )
    del jax
    return found


def topology_devices(target: str, topology: str, *, portable: str = "") -> Sequence[Any]:
    """Compile-only devices of a topology.

    Args:
        target: text of a GpuTargetConfigProto.
        topology: ``SxHxD``: slices, hosts per slice, devices per host.
        portable: the same with fewer fields, taken where this XLA does not know one of `target`.

    Raises:
        UserError: the plugin is missing, or it refuses the target or the topology.
    """
    if not any(_installed(name) for name in PLUGINS):
        raise UserError("the CUDA plugin of jax is not installed, no GPU compiler to rehearse with", remedy=INSTALL)
    from jax.experimental import topologies

    try:
        found = topologies.get_topology_desc("", platform="cuda", target_config=target, topology=topology)
    except Exception as error:
        text = str(error)
        if "GpuTargetConfigProto" in text and portable:
            return topology_devices(portable, topology)
        if "GpuTargetConfigProto" in text:
            raise UserError(
                "the installed jax does not understand this GPU description (it may come from a newer XLA)",
                remedy="use a built-in target, or the gpu_target_config.pbtxt of an XLA dump of this jax version",
            ) from None
        if "topology must be" in text:
            raise UserError(f"topology {topology!r} is not of the form SLICESxHOSTSxDEVICES") from None
        raise UserError(
            f"no GPU compiler: {first_line(text)}", remedy=f"check that the CUDA plugin matches jax: {INSTALL}"
        ) from None
    devices: Sequence[Any] = found.devices
    return devices


def compile_for(devices: Sequence[Any], program: Program, *, fdo_profile: bytes | None) -> Any:
    """Compile `program` for compile-only `devices`; returns the executable.

    Args:
        devices: of `topology_devices`; the first replicas x partitions of them are used.
        program: what to compile.
        fdo_profile: a cost profile given as a compile option, or None.

    Raises:
        Exception: whatever XLA raises; a missing ptxas too, long after scheduling is done and dumped.
    """
    import numpy as np
    from jax._src.lib import xla_client

    used = list(devices[: program.num_replicas * program.num_partitions])
    options = xla_client.CompileOptions()
    options.num_replicas = program.num_replicas
    options.num_partitions = program.num_partitions
    ids = np.array([device.id for device in used]).reshape(program.num_replicas, program.num_partitions)
    options.device_assignment = xla_client.DeviceAssignment.create(ids)
    build = options.executable_build_options
    build.use_spmd_partitioning = True
    if hasattr(build, "use_shardy_partitioner"):
        build.use_shardy_partitioner = program.shardy
    elif program.shardy:
        raise UserError("this jax has no Shardy partitioner and the module needs it", remedy="install a newer jax")
    # JAX sets both lists for every compile; without them the fingerprint is another one (nothing else changes).
    build.allow_spmd_sharding_propagation_to_parameters = list(program.propagate_to_parameters)
    build.allow_spmd_sharding_propagation_to_output = list(program.propagate_to_output)
    if fdo_profile:
        if not hasattr(build, "fdo_profile"):
            raise UserError("this jax takes no profile as a compile option", remedy="pass the profile as a flag")
        build.fdo_profile = fdo_profile
    client = used[0].client
    listed = xla_client.DeviceList(tuple(used)) if hasattr(xla_client, "DeviceList") else None
    try:
        return client.compile(program.ir, listed, options)
    except TypeError:  # jax before 0.8 takes no module, only its bytes
        data = _bytecode(program.ir)
    try:
        return client.compile(data, listed, options)
    except TypeError:  # jax before 0.6 takes no devices
        return client.compile(data, compile_options=options)


def program_from_mlir(data: bytes) -> Program:
    """Read StableHLO text or bytecode, as ``JAX_DUMP_IR_TO`` writes it.

    Raises:
        UserError: this jax cannot parse it.
    """
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        try:
            module = ir.Module.parse(data if data.startswith(b"ML\xefR") else data.decode())
            if any(operation.operation.name.startswith("vhlo.") for operation in module.body.operations):
                found = _mlir_bindings().deserialize_portable_artifact(data)
                module = ir.Module.parse(found) if isinstance(found, str | bytes) else found
        except Exception as error:
            raise UserError(
                f"StableHLO that this jax cannot parse ({first_line(str(error))})",
                remedy="give StableHLO, an export artifact or an HLO dump, and use the jax version that wrote it",
            ) from None
        return _program(module)


def program_from_hlo(hlo_module: bytes, *, default_partitions: int) -> Program:
    """Turn a serialized HloModuleProto (a ``before_optimizations`` dump) into a program.

    Args:
        hlo_module: the proto.
        default_partitions: partitions where no sharding of the module says how many there are.

    Raises:
        UserError: XLA cannot read it.
    """
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    computation = xla_client.XlaComputation(hlo_module)
    try:
        converted = _mlir_bindings().xla_computation_to_mlir_module(computation)
        with mlir.make_ir_context():
            if b"xla.sdy" in hlo_module:
                # Both notations stand in the dump; beside a GSPMD one XLA ignores Shardy's, then trips over its calls.
                converted = _GSPMD.sub("", str(ir.Module.parse(converted)))
            module = ir.Module.parse(converted)
            return _program(module, default_partitions=default_partitions, from_hlo=True)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"HLO that this jax cannot read ({first_line(str(error))})") from None


def program_from_hlo_text(text: str, *, default_partitions: int) -> Program:
    """The same for HLO text (``HloModule …``)."""
    try:
        module = _hlo_bindings().hlo_module_from_text(text)
    except Exception as error:
        raise UserError(f"HLO text that this jax cannot parse ({first_line(str(error))})") from None
    return program_from_hlo(module.as_serialized_hlo_module_proto(), default_partitions=default_partitions)


def program_from_export(blob: bytes, devices: Callable[[int], Sequence[Any]]) -> Program:
    """Lower a serialized `jax.export.Exported` for compile-only devices.

    Args:
        blob: what `Exported.serialize` returned.
        devices: gives the compile-only devices for a number of devices.

    Raises:
        UserError: not an export, or not for the CUDA platform.
    """
    import jax
    import numpy as np
    from jax import export

    if not _installed("flatbuffers"):
        raise UserError("a jax.export artifact needs flatbuffers to be read", remedy="pip install flatbuffers")
    try:
        exported = export.deserialize(bytearray(blob))
    except Exception:  # of foreign bytes flatbuffers says whatever it trips over
        raise UserError(
            "neither StableHLO nor HLO nor a jax.export artifact", remedy="dump modules with JAX_DUMP_IR_TO=DIR"
        ) from None
    if "cuda" not in exported.platforms:
        raise UserError(
            f"exported for {', '.join(exported.platforms)} and not for GPU",
            remedy="export again with platforms=['cuda']",
        )
    mesh = _mesh_of_export(exported, np.array(devices(exported.nr_devices)))
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shardings = [sharding or replicated for sharding in exported.in_shardings_jax(mesh)]
    arguments = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
        for aval, sharding in zip(exported.in_avals, shardings, strict=True)
    ]
    args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, arguments)
    call = exported.call

    def step(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    step.__name__ = exported.fun_name.removeprefix("jit_")
    lowered = jax.jit(step).lower(*args, **kwargs)
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        return _program(module)


def _mesh_of_export(exported: Any, devices: Any) -> Any:
    """A mesh of `devices` with the axes that the export was made with; releases before 0.9 take any mesh."""
    import jax

    named = getattr(exported, "_in_named_shardings", None) or ()
    old = next((sharding.mesh for sharding in named if sharding is not None), None)
    if old is None:
        return jax.sharding.Mesh(devices, ("devices",))
    return jax.sharding.Mesh(devices.reshape(old.axis_sizes), old.axis_names, axis_types=old.axis_types)


def memory_stats(executable: Any) -> dict[str, int]:
    """XLA's memory analysis of an executable in bytes, empty where it gives none."""
    try:
        stats = executable.get_compiled_memory_stats()
    except Exception:  # compile-only executables of old releases have none
        return {}
    names = ("argument", "output", "alias", "temp", "generated_code")
    found = {name: getattr(stats, f"{name}_size_in_bytes", None) for name in names}
    return {name: int(value) for name, value in found.items() if value is not None}


def first_line(text: str) -> str:
    """The first line of an error text, without the stack that XLA may append."""
    return text.strip().partition("\n")[0]


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _mlir_bindings() -> Any:
    try:
        return importlib.import_module("jax._src.lib")._jax.mlir
    except AttributeError:  # before jax 0.6
        return importlib.import_module("jaxlib.xla_client")._xla.mlir


def _hlo_bindings() -> Any:
    try:
        return importlib.import_module("jaxlib._hlo")
    except ImportError:  # before jax 0.10
        return importlib.import_module("jaxlib.xla_client")._xla


def _bytecode(module: Any) -> bytes:
    from jax._src.interpreters import mlir

    data: bytes = mlir.module_to_bytecode(module)
    return data


def _program(module: Any, *, default_partitions: int = 1, from_hlo: bool = False) -> Program:
    """Read off a module what JAX would put into the compile options."""
    from jax._src.lib.mlir import ir

    attributes = module.operation.attributes
    text = "" if not from_hlo else str(module)
    main = next(
        (op for op in module.body.operations if "sym_name" in op.attributes and _string(op, "sym_name") == "main"),
        None,
    )
    if main is None:
        raise UserError("the module has no function main, nothing to compile")
    function_type = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    partitions = _number(attributes, "mhlo.num_partitions")
    if from_hlo and partitions in (None, 1):
        partitions = _partitions_of_shardings(text) or partitions or default_partitions
    shardy = any(op.operation.name == "sdy.mesh" for op in module.body.operations)
    if from_hlo:
        shardy = "xla.sdy" in text  # HLO lowered for Shardy carries its shardings in attributes of that name
    elif not shardy and "mhlo.sharding" not in str(main.attributes):
        shardy = _shardy_by_default()
    return Program(
        ir=module,
        name=_string(module.operation, "sym_name") if "sym_name" in attributes else "module",
        num_partitions=partitions or 1,
        num_replicas=_number(attributes, "mhlo.num_replicas") or 1,
        propagate_to_parameters=_free(main, "arg_attrs", function_type.inputs),
        propagate_to_output=_free(main, "res_attrs", function_type.results),
        shardy=shardy,
    )


def _free(function: Any, key: str, types: Sequence[Any]) -> tuple[bool, ...]:
    """Per parameter or result, whether it has no sharding of its own; tokens never count as free (as in JAX)."""
    given = list(function.attributes[key]) if key in function.attributes else []
    free = []
    for index, kind in enumerate(types):
        text = str(given[index]) if index < len(given) else ""
        free.append("sharding = " not in text and "token" not in str(kind))
    return tuple(free)


def _shardy_by_default() -> bool:
    """Whether JAX itself would ask for Shardy (part of the compile options of every job)."""
    import jax

    return bool(getattr(jax.config, "jax_use_shardy_partitioner", False))


def _partitions_of_shardings(text: str) -> int | None:
    """Devices of the largest tiling or mesh in a module's text, or None where nothing is sharded."""
    tilings = [prod(map(int, found.split(","))) for found in set(_TILING.findall(text))]
    meshes = [prod(int(size) for size in re.findall(r"=(\d+)", found)) for found in set(_MESH.findall(text))]
    return max([*tilings, *meshes], default=None)


def _number(attributes: Any, name: str) -> int | None:
    from jax._src.lib.mlir import ir

    return ir.IntegerAttr(attributes[name]).value if name in attributes else None


def _string(operation: Any, name: str) -> str:
    from jax._src.lib.mlir import ir

    value: str = ir.StringAttr(operation.attributes[name]).value
    return value
