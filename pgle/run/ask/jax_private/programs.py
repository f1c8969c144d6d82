"""Programs as jax and XLA write them, in every form, and what the compiler needs of each besides its code.

Runs in the rehearsal worker's process, in whatever Python the user's program has. Tried with jax 0.4.38 to 0.12.0.1;
what a version lacks becomes a `UserError` that says which version has it.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from pgle.errors import UserError
from pgle.run.ask.jax_private import hlo_text
from pgle.run.ask.jax_private.wire import hlo_module_bytes, without_fields

Form = Literal["mlir", "hlo", "hlo-text", "export"]

MLIR_BYTECODE = b"ML\xefR"

_MLIR_TEXT = re.compile(rb"(?:\s*(?:#|//)[^\n]*\n)*+\s*(?:builtin\.)?module\b")
"""How MLIR begins as text: with thousands of lines of locations, then the module."""


@dataclass(frozen=True)
class Program(hlo_text.Traits):
    """A module ready to compile."""

    code: bytes  # StableHLO bytecode or a serialized HloModuleProto
    form: Literal["mlir", "hlo"]  # as the PJRT C API calls them

    @property
    def num_devices(self) -> int:
        """Devices that it is compiled for."""
        return self.num_partitions * self.num_replicas


def read_program(path: Path, data: bytes, default_devices: int, devices_for: Callable[[int], Sequence[Any]]) -> Program:
    """The program in a file, whatever its form.

    Args:
        path: the file, for its suffix and for messages.
        data: its content, decompressed.
        default_devices: partitions of an HLO module that does not say how many it is for.
        devices_for: gives compile-only devices for a number of devices; used for `jax.export` artifacts alone.

    Raises:
        UserError: this jax cannot read it.
    """
    form = module_form(path.name, data)
    if form == "mlir":
        return program_from_mlir(data)
    if form == "hlo-text":
        return program_from_hlo(_parsed_hlo(data.decode()), data.decode(), default_devices)
    if form == "hlo":
        module = hlo_module_bytes(data)
        if module is None:
            raise UserError(
                "not an HLO dump", where=path, remedy="give a *.before_optimizations.hlo.pb of --xla_dump_to"
            )
        return program_from_hlo(module, _printed_hlo(module), default_devices)
    module = lowered_export(data, devices_for)
    with module.context:
        return _program(module)


def module_form(name: str, data: bytes) -> Form:
    """``mlir`` (text or bytecode), ``hlo`` (proto), ``hlo-text`` or ``export`` (a `jax.export` artifact).

    Args:
        name: the file's name, whose suffixes decide between the two binary forms.
        data: its content, decompressed.
    """
    if data.startswith(MLIR_BYTECODE):
        return "mlir"
    if data[:4096].lstrip().startswith(b"HloModule"):
        return "hlo-text"
    if _MLIR_TEXT.match(data):
        return "mlir"
    stem = re.sub(r"\.(?:xz|gz)$", "", name)
    if stem.endswith((".pb", ".hlo")):
        return "hlo"
    return "export"


def program_from_hlo(module: bytes, text: str, default_devices: int) -> Program:
    """A program from a serialized HloModuleProto.

    Args:
        module: the proto.
        text: the same as HLO text, which says what the proto leaves to the compile options.
        default_devices: partitions where the text does not say how many there are.

    Raises:
        UserError: it is scheduled already.
    """
    facts = hlo_text.read_facts(text, default_devices)
    if facts.is_scheduled:
        raise UserError(
            "the module is scheduled already, nothing is left to compile",
            remedy="give the *.before_optimizations dump of the same folder; what its step takes, says: pgle predict",
        )
    if facts.in_both_notations:  # with a GSPMD sharding XLA ignores Shardy's, then fails on its calls
        module = without_fields(module, hlo_text.SHARDING_FIELDS)
    traits = {field.name: getattr(facts, field.name) for field in fields(hlo_text.Traits)}
    return Program(**traits, code=module, form="hlo")


def _parsed_hlo(text: str) -> bytes:
    try:
        module: bytes = _hlo_bindings().hlo_module_from_text(text).as_serialized_hlo_module_proto()
    except Exception as error:
        raise UserError(f"HLO text that this jax cannot parse ({first_line(str(error))})") from None
    return module


def _printed_hlo(module: bytes) -> str:
    from jaxlib import xla_client

    try:
        text: str = xla_client.XlaComputation(module).as_hlo_text()
    except Exception as error:
        raise UserError(f"HLO that this jax cannot read ({first_line(str(error))})") from None
    return text


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


def first_line(text: str) -> str:
    """The first line of an error text, without the stack that XLA may append."""
    return text.strip().partition("\n")[0]


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


def _program(module: Any) -> Program:
    """Read off a StableHLO module what JAX would put into the compile options."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    attributes = module.operation.attributes
    main = next(
        (op for op in module.body.operations if "sym_name" in op.attributes and _string(op, "sym_name") == "main"),
        None,
    )
    if main is None:
        raise UserError("the module has no function main, nothing to compile")
    function_type = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    shardy = any(op.operation.name == "sdy.mesh" for op in module.body.operations)
    if not shardy and "mhlo.sharding" not in str(main.attributes):
        shardy = _shardy_by_default()
    return Program(
        code=mlir.module_to_bytecode(module),
        form="mlir",
        name=_string(module.operation, "sym_name") if "sym_name" in attributes else "module",
        num_partitions=_number(attributes, "mhlo.num_partitions") or 1,
        num_replicas=_number(attributes, "mhlo.num_replicas") or 1,
        is_partitioned=False,
        shardy=shardy,
        propagate_to_parameters=_free(main, "arg_attrs", function_type.inputs),
        propagate_to_output=_free(main, "res_attrs", function_type.results),
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


def _number(attributes: Any, name: str) -> int | None:
    from jax._src.lib.mlir import ir

    return ir.IntegerAttr(attributes[name]).value if name in attributes else None


def _string(operation: Any, name: str) -> str:
    from jax._src.lib.mlir import ir

    value: str = ir.StringAttr(operation.attributes[name]).value
    return value


NO_PROGRAM = "neither StableHLO nor HLO nor a jax.export artifact"


def lowered_export(blob: bytes, devices: Callable[[int], Sequence[Any]]) -> Any:
    """The StableHLO module of a serialized `jax.export.Exported`, lowered for compile-only devices.

    Args:
        blob: what `Exported.serialize` returned.
        devices: gives the compile-only devices for a number of devices.

    Raises:
        UserError: not an export, or not for the CUDA platform.
    """
    import jax
    import numpy as np
    from jax import export

    if importlib.util.find_spec("flatbuffers") is None:
        what = "neither StableHLO nor HLO, and a jax.export artifact needs flatbuffers to be read"
        raise UserError(what, remedy="pip install flatbuffers")
    try:
        exported = export.deserialize(bytearray(blob))
    except Exception:  # of foreign bytes flatbuffers says whatever it trips over
        raise UserError(NO_PROGRAM, remedy="dump modules with JAX_DUMP_IR_TO=DIR") from None
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
    return lowered.compiler_ir("stablehlo")


def _mesh_of_export(exported: Any, devices: Any) -> Any:
    """A mesh of `devices` with the axes that the export was made with; releases before 0.9 take any mesh."""
    import jax

    named = getattr(exported, "_in_named_shardings", None) or ()
    old = next((sharding.mesh for sharding in named if sharding is not None), None)
    if old is None:
        return jax.sharding.Mesh(devices, ("devices",))
    return jax.sharding.Mesh(devices.reshape(old.axis_sizes), old.axis_names, axis_types=old.axis_types)
