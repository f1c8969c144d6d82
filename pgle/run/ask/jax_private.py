"""Every private or moving API of jax and its GPU plugins: reading programs, and compiling them
without a GPU.

Only the compiler's process imports this file. It may be another Python than ours, without protobuf.
jax's own client takes StableHLO only, and its conversion of HLO to StableHLO fails on real modules;
the plugin's PJRT C API takes ``mlir`` and ``hlo``. Nothing here starts a thread or reads a flag
before `compile_program`, so that the plugin's process can fork. Tried with jax 0.4.38 to 0.12.0.1.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pgle.errors import UserError
from pgle.run.ask.jaxlib import PACKAGES, install_command, versions
from pgle.run.ask.stand_ins import load_with_stand_ins
from pgle.xla.collective_kinds import KINDS
from pgle.xla.vendors import VENDORS, Vendor

OLDEST_JAX = (0, 4, 38)

EXECUTABLE_BUILD_OPTIONS, DEVICE_MEMORY_SIZE = 3, 15
"""Fields of CompileOptionsProto and of its messages (openxla/xla
``xla/pjrt/proto/compile_options.proto``).
"""

LEVELS = {"UNKNOWN": 0, "O0": 9, "O1": 19, "O2": 29, "O3": 39}
"""Levels of effort as XLA numbers them (openxla/xla ``xla/xla.proto``)."""

PLUGIN_LOG = "jax._src.xla_bridge"
"""The logger that jax uses if a plugin cannot be used."""


def version() -> tuple[int, ...]:
    """The version of the installed jaxlib."""
    try:
        import jaxlib
    except ImportError as error:
        raise UserError(
            f"jax cannot be imported ({error})", remedy="pip install jax"
        ) from None
    found = tuple(int(part) for part in re.findall(r"\d+", jaxlib.__version__)[:4])
    if found < OLDEST_JAX:
        raise UserError(
            f"jaxlib {jaxlib.__version__} cannot compile for a GPU that is not there",
            remedy="rehearse in an environment with jax 0.4.38 or newer",
        )
    return found


def compile_options(
    program: SourceProgram, allocator_bytes: int, efforts: Mapping[str, str]
) -> bytes:
    """Return the serialized compile options that jax would use, with the flags of XLA_FLAGS.

    Args:
        program: the module to compile.
        allocator_bytes: memory of the device's allocator in a job, which jaxlib adds by itself
            there (jaxlib/py_client.cc); 0: unknown.
        efforts: value of each setting of effort, by name, such as ``jax_optimization_level``.
    """
    import jaxlib
    import numpy as np
    from jaxlib import xla_client

    options = xla_client.CompileOptions()
    options.num_replicas = program.num_replicas
    options.num_partitions = program.num_partitions
    ids = np.arange(program.num_devices).reshape(
        program.num_replicas, program.num_partitions
    )
    options.device_assignment = xla_client.DeviceAssignment.create(ids)
    build = options.executable_build_options
    build.use_spmd_partitioning = not program.is_partitioned
    build.use_shardy_partitioner = program.shardy
    # JAX sets both lists for every compilation. Without them only the fingerprint changes.
    build.allow_spmd_sharding_propagation_to_parameters = list(
        program.propagate_to_parameters
    )
    build.allow_spmd_sharding_propagation_to_output = list(program.propagate_to_output)
    for name, value in efforts.items():
        if not hasattr(build, name.removeprefix("jax_")):
            raise UserError(
                f"jaxlib {jaxlib.__version__} has no {name}", remedy="leave it out"
            )
        setattr(
            build,
            name.removeprefix("jax_"),
            LEVELS[value] if value in LEVELS else float(value),
        )
    data: bytes = options.SerializeAsString()
    # No binding for this field. Appended bytes are merged into the message.
    memory = varint(DEVICE_MEMORY_SIZE << 3) + varint(allocator_bytes)
    return data + submessage(EXECUTABLE_BUILD_OPTIONS, memory)


def compile_program(
    plugin: Plugin,
    program: SourceProgram,
    targets: Sequence[str],
    topology: str,
    options: bytes,
) -> None:
    """Compile `program`; XLA_FLAGS of this process count, so call it once.

    Args:
        plugin: the loaded compiler.
        program: what to compile.
        targets: texts of GpuTargetConfigProtos. The first one whose fields this XLA all knows is
            used.
        topology: ``SxHxD``: slices, hosts per slice, devices per host.
        options: from `compile_options`.

    Raises:
        UserError: the target or topology is refused.
        XlaError: XLA fails. Without ptxas it also fails, but long after the schedule was dumped.
    """
    for text in targets:
        try:
            place = plugin.topology(text, topology)
            break
        except XlaError as error:
            if "GpuTargetConfigProto" not in str(error):
                toolkit = plugin.vendor.toolkit
                remedy = f"check that the {toolkit} plugin matches jax: pgle doctor"
                raise UserError(
                    f"no GPU compiler: {first_line(str(error))}", remedy=remedy
                ) from None
    else:
        what = (
            "the installed jax does not understand this GPU description (it may come "
            "from a newer XLA)"
        )
        remedy = (
            "use a built-in target, or the gpu_target_config.pbtxt of an XLA dump of "
            "this jax version"
        )
        raise UserError(what, remedy=remedy)
    plugin.compile_only(place, program.code, program.form, options)


# The PJRT C API. Positions and structures are those of openxla/xla ``xla/pjrt/c/pjrt_c_api.h``,
# which within major version 0 only ever appends. A structure is its size, its extensions (none
# here), and fields of eight bytes each.

# bytes before the first function: struct_size, extensions, and a version of four fields
_FUNCTIONS = 40
_ERROR_MESSAGE, _PLUGIN_INITIALIZE, _TOPOLOGY_CREATE, _COMPILE = 1, 3, 82, 89

_Pointer = ctypes.c_void_p
_Words: TypeAlias = "ctypes.Array[ctypes.c_uint64]"


class XlaError(Exception):
    """XLA's message about a failed compilation."""


def _structure(*fields: int | bytes) -> _Words:
    """Make an argument structure. A text takes two fields, its address and its length, and must
    outlive the structure.
    """
    words = [2 * 8, 0]
    for field in fields:
        words += [_address(field), len(field)] if isinstance(field, bytes) else [field]
    words[0] = 8 * len(words)
    return (ctypes.c_uint64 * len(words))(*words)


def _address(text: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(text), _Pointer).value or 0


class Plugin:
    """The loaded plugin library.

    Attributes:
        vendor: the vendor whose GPUs it compiles for.
        absent: names of missing libraries, for which stand-ins are loaded.
    """

    def __init__(self, vendor: Vendor) -> None:
        self.vendor = vendor
        path = library(vendor)
        try:
            self._library, self.absent = load_with_stand_ins(
                path, vendor.plugin, vendor.toolkit
            )
        except OSError as error:
            raise UserError(
                f"the {vendor.toolkit} plugin cannot be loaded ({error})",
                where=path,
                remedy=install_command(vendor),
            ) from None
        self._library.GetPjrtApi.restype = _Pointer
        self._api: int = self._library.GetPjrtApi()

    def compile_only(
        self, topology: int, code: bytes, form: str, options: bytes
    ) -> None:
        """Compile a program (``mlir`` or ``hlo``) for a topology. The executable is never freed.

        Raises:
            XlaError: XLA fails to compile.
        """
        form_name = form.encode()
        client = 0
        executable = 0
        program = _structure(code, form_name)
        self._call(
            _COMPILE,
            _structure(
                topology, ctypes.addressof(program), options, client, executable
            ),
        )

    def topology(self, target: str, topology: str) -> int:
        """XLA's own description of a target (text of a GpuTargetConfigProto) and topology
        (``SxHxD``).

        Raises:
            XlaError: it rejects one of them.
        """
        self._call(_PLUGIN_INITIALIZE, _structure())
        given = {b"target_config": target.encode(), b"topology": topology.encode()}
        is_text = 0
        values: list[int] = []
        for name, value in given.items():
            values += _structure(name, is_text, value)
        options = (ctypes.c_uint64 * len(values))(*values)
        made = _structure(b"", ctypes.addressof(options), len(given), 0)
        self._call(_TOPOLOGY_CREATE, made)
        return made[-1]

    def _call(self, position: int, arguments: _Words) -> None:
        error = self._function(position, _Pointer)(ctypes.addressof(arguments))
        if error:
            asked = _structure(error, 0, 0)
            self._function(_ERROR_MESSAGE, None)(ctypes.addressof(asked))
            raise XlaError(
                ctypes.string_at(asked[-2], asked[-1]).decode(errors="replace")
            )

    def _function(self, position: int, result: type | None) -> ctypes._CFunctionType:
        address = ctypes.c_void_p.from_address(
            self._api + _FUNCTIONS + 8 * position
        ).value
        if address is None:
            raise UserError(
                f"the {self.vendor.toolkit} plugin lacks function {position} of PJRT",
                remedy=install_command(self.vendor),
            )
        return ctypes.CFUNCTYPE(result, _Pointer)(address)


def library(vendor: Vendor) -> Path:
    """Return the path of the plugin's library. If there are several, take the one that fits
    jaxlib.
    """
    plugin = vendor.plugin
    found: dict[int, Path] = {}
    for major, name in zip(plugin.majors, plugin.modules, strict=True):
        files = [folder / plugin.library for folder in _folders(name)]
        found.update((major, file) for file in files if file.is_file())
    if not found:
        what = (
            f"the {vendor.toolkit} plugin of jax is not installed, no GPU compiler to "
            "rehearse with"
        )
        raise UserError(what, remedy=_remedy(vendor))
    installed, _ = versions(PACKAGES)
    jaxlib = installed.get("jaxlib", "")
    wheels = {major: plugin.packages(major)[1] for major in found}
    fitting = (
        major
        for major, wheel in wheels.items()
        if plugin.fits(installed.get(wheel, ""), jaxlib)
    )
    return found[next(fitting, next(iter(found)))]


def _remedy(vendor: Vendor) -> str:
    """Say how to get a vendor's plugin. If only another vendor's is installed, name a GPU of that
    vendor.
    """
    line = install_command(vendor)
    for other in VENDORS.values():
        if any(_folders(name) for name in other.plugin.modules):
            _, gpu = other.generations[-1]
            return f"{line}; or name a GPU of {other.name}, whose plugin is here: --target {gpu}"
    return line


def _folders(name: str) -> list[Path]:
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return []
    return (
        []
        if found is None
        else [Path(folder) for folder in found.submodule_search_locations or ()]
    )


# Programs in every form that jax and XLA write, and what else the compiler needs to know about
# each.

MLIR_BYTECODE = b"ML\xefR"
_MLIR_TEXT = re.compile(rb"(?:\s*(?:#|//)[^\n]*\n)*+\s*(?:builtin\.)?module\b")
"""How MLIR text begins: thousands of lines of locations, then the module."""


@dataclass(frozen=True)
class SourceProgram:
    """A module ready to compile."""

    code: bytes  # StableHLO bytecode or a serialized HloModuleProto
    form: Literal["mlir", "hlo"]  # as the PJRT C API calls them
    name: str  # of the module, ``jit_train_step``
    num_partitions: int  # SPMD partitions
    num_replicas: int
    # the SPMD partitioner has already run, and must not run again
    is_partitioned: bool
    shardy: bool  # True if shardings are Shardy's, False for GSPMD annotations
    # per parameter, whether the compiler may choose its sharding
    propagate_to_parameters: tuple[bool, ...]
    propagate_to_output: tuple[bool, ...]  # the same per output

    @property
    def num_devices(self) -> int:
        """Devices that it is compiled for."""
        return self.num_partitions * self.num_replicas


def read_program(path: Path, data: bytes, default_devices: int) -> SourceProgram:
    """Read the program in a file of any form.

    Args:
        path: the file, for its suffix and for messages.
        data: its content, decompressed.
        default_devices: partitions of an HLO module that does not name a number.
    """
    form = module_form(path.name, data)
    if form == "mlir":
        return program_from_mlir(data)
    if form == "hlo-text":
        return program_from_hlo(
            _parsed_hlo(data.decode()), data.decode(), default_devices
        )
    if not form:
        raise UserError(
            "neither StableHLO nor HLO",
            where=path,
            remedy="dump modules with JAX_DUMP_IR_TO=DIR",
        )
    module = hlo_module_bytes(data)
    if module is None:
        raise UserError(
            "not an HLO dump",
            where=path,
            remedy="give a *.before_optimizations.hlo.pb of --xla_dump_to",
        )
    with suppress(ValueError):  # damaged; XLA will report it
        # field 7, `HloModuleProto.schedule`; drop it before printing: XLA took 22 GB for that of an
        # A100 job
        if any(number == 7 for number, *_ in _fields(module)):
            raise _scheduled()
    return program_from_hlo(module, _printed_hlo(module), default_devices)


def import_reader(path: Path) -> None:
    """Import what reads StableHLO, if a file seems to hold it. Processes that were forked before
    must import it again. It starts no thread (observed with jax 0.4.38, 0.10.2 and 0.12.0.1).
    """
    if ".mlir" in path.suffixes:
        with suppress(ImportError):  # the reader will report it
            importlib.import_module("jax._src.interpreters.mlir")


def _scheduled() -> UserError:
    return UserError(
        "the module is scheduled already, nothing is left to compile",
        remedy=(
            "give the *.before_optimizations dump of the same folder; what its step "
            "takes, says: pgle predict"
        ),
    )


def module_form(name: str, data: bytes) -> Literal["mlir", "hlo", "hlo-text", ""]:
    """Return the form of a module: ``mlir`` (text or bytecode), ``hlo`` (proto, by the file's
    name), ``hlo-text``; empty if unknown.
    """
    if data.startswith(MLIR_BYTECODE) or _MLIR_TEXT.match(data):
        return "mlir"
    if data[:4096].lstrip().startswith(b"HloModule"):
        return "hlo-text"
    return "hlo" if re.search(r"\.(?:pb|hlo)(?:\.xz|\.gz)?$", name) else ""


# HLO. A few regular expressions read its text, because modules have a hundred thousand lines.

# Number of devices in a sharding, in its notations: devices=[4,1]<=[4], mesh['d'=4],
# sdy.mesh<["d"=4]>
_TILING = re.compile(r"\bdevices=\[([0-9,]+)\]")
_MESH = re.compile(
    r"""\bmesh(?:\[|<\[)((?:(?:'|"|\\\\?22|\\\\?")[^'"\\]*(?:'|"|\\\\?22|\\\\?")=\d+(?:, ?)?)+)\]"""
)

_OPCODES = (
    *(kind.name for kind in KINDS.values() if kind.primitives),
    "partition-id",
    "replica-id",
)
"""Found only in partitioned programs. Sends and receives may also be the host's, since no primitive
of JAX makes them.
"""
_COLLECTIVE = re.compile(rf"^.* (?:{'|'.join(_OPCODES)})(?:-start)?\(.*$", re.MULTILINE)
_IOTA_GROUPS = re.compile(r"replica_groups=\[([0-9,]+)\]<=")
_LISTED_GROUPS = re.compile(
    r"(?:replica_groups|source_target_pairs)=\{(\{[0-9,{}]*\})\}"
)
_MANUAL = re.compile(
    r"SPMDFullToShardShape|SPMDShardToFullShape"
    r"|xla\.sdy\.(?:GlobalToLocalShape|LocalToGlobalShape|manual)"
    r"|sharding=\{[^}]*\bmanual\b"
)
"""Parts of a program that its author partitioned by hand (shard_map). The partitioner handles the
rest.
"""


def program_from_hlo(module: bytes, text: str, default_devices: int) -> SourceProgram:
    """Make a program from a serialized HloModuleProto.

    Args:
        module: the proto.
        text: the module as HLO text, which has facts that the proto leaves to the compile options.
        default_devices: partitions if the text does not name a number.
    """
    header = text[: text.find("\n")]
    if "is_scheduled=true" in header:
        raise _scheduled()
    in_sdy = "xla.sdy" in text
    partitions, replicas = partitions_of(text)
    name = re.match(r"HloModule ([^\s,]+)", header)
    if in_sdy:
        # If an instruction has a GSPMD sharding, XLA ignores Shardy's next to it, and then fails on
        # its calls.
        module = without_fields(module, _SHARDING_FIELDS)
    if not partitions:
        partitions = default_devices if replicas == 1 else 1
    has_collective = _COLLECTIVE.search(text) is not None
    is_manual = _MANUAL.search(text) is not None
    has_mesh = re.search(r"sharding=\{+mesh\[", text) is not None  # as jax 0.12 writes
    return SourceProgram(
        code=module,
        form="hlo",
        name=name[1] if name else "module",
        num_partitions=partitions,
        num_replicas=replicas,
        is_partitioned=has_collective and not in_sdy and not is_manual,
        shardy=in_sdy or has_mesh,
        propagate_to_parameters=_flags(header, "parameters") or _free_parameters(text),
        propagate_to_output=_flags(header, "output") or _free_outputs(text),
    )


def _number_in(header: str, name: str) -> int | None:
    found = re.search(rf"\b{name}=(\d+)", header)
    return int(found[1]) if found else None


def partitions_of(text: str) -> tuple[int | None, int]:
    """Return the SPMD partitions (None if unknown) and the replicas of a module given as HLO
    text.
    """
    header = text[: text.find("\n")]
    collectives = _COLLECTIVE.findall(text)
    replicas = _number_in(header, "replica_count")
    partitions = _number_in(header, "num_partitions")
    if replicas is None:  # a collective without a channel runs over replicas (pmap)
        replicas = (
            _group_devices([line for line in collectives if "channel_id=" not in line])
            or 1
        )
    if partitions is None:
        partitions = _sharded_devices(text) or _group_devices(
            [line for line in collectives if "channel_id=" in line]
        )
    return partitions, replicas


def _flags(header: str, of: str) -> tuple[bool, ...]:
    found = re.search(
        rf"allow_spmd_sharding_propagation_to_{of}=\{{([a-z,]*)\}}", header
    )
    return tuple(word == "true" for word in found[1].split(",")) if found else ()


def _free_parameters(text: str) -> tuple[bool, ...]:
    """Per parameter of the entry computation, whether it has no sharding of its own."""
    lines = re.findall(r"^.* parameter\((\d+)\)(.*)$", _entry(text), re.MULTILINE)
    return tuple(
        "sharding=" not in rest
        for _, rest in sorted(lines, key=lambda line: int(line[0]))
    )


def _free_outputs(text: str) -> tuple[bool, ...]:
    """Whether the outputs have no sharding; the answer holds for all of them."""
    root = re.search(r"^\s*ROOT .*$", _entry(text), re.MULTILINE)
    return (root is not None and "sharding=" not in root[0],)


def _entry(text: str) -> str:
    start = text.find("\nENTRY ")
    return text[start : text.find("\n}", start) + 1] if start >= 0 else ""


def _sharded_devices(text: str) -> int | None:
    """Devices of the largest tiling or mesh, or None where nothing is sharded."""
    tilings = [prod(map(int, found.split(","))) for found in set(_TILING.findall(text))]
    meshes = [
        prod(int(size) for size in re.findall(r"=(\d+)", found))
        for found in set(_MESH.findall(text))
    ]
    return max([*tilings, *meshes], default=None)


def _group_devices(lines: list[str]) -> int | None:
    """Devices that the replica groups of collectives span."""
    iota: set[str] = set()  # ``2,4``: a grid of devices
    listed: set[str] = set()  # ``{0,1},{2,3}``
    for line in lines:
        iota.update(_IOTA_GROUPS.findall(line))
        listed.update(_LISTED_GROUPS.findall(line))
    sizes = {prod(map(int, grid.split(","))) for grid in iota}
    for groups in listed:
        if devices := re.findall(r"\d+", groups):
            sizes.add(max(map(int, devices)) + 1)
    return max(sizes, default=None)


def _parsed_hlo(text: str) -> bytes:
    try:
        bindings = importlib.import_module("jaxlib._hlo")
    except ImportError:  # before jax 0.10
        bindings = importlib.import_module("jaxlib.xla_client")._xla
    try:
        module: bytes = bindings.hlo_module_from_text(
            text
        ).as_serialized_hlo_module_proto()
    except Exception as error:
        raise UserError(
            f"HLO text that this jax cannot parse ({first_line(str(error))})"
        ) from None
    return module


def _printed_hlo(module: bytes) -> str:
    from jaxlib import xla_client

    try:
        text: str = xla_client.XlaComputation(module).as_hlo_text()
    except Exception as error:
        raise UserError(
            f"HLO that this jax cannot read ({first_line(str(error))})"
        ) from None
    return text


def first_line(text: str) -> str:
    """The first line of an error text, without XLA's stack trace."""
    return text.strip().partition("\n")[0]


# StableHLO.


def program_from_mlir(data: bytes) -> SourceProgram:
    """Read StableHLO text or bytecode, as ``JAX_DUMP_IR_TO`` writes it: what JAX would put into the
    compile options.
    """
    import jax
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        try:
            module = ir.Module.parse(
                data if data.startswith(MLIR_BYTECODE) else data.decode()
            )
        except Exception as error:
            raise UserError(
                f"StableHLO that this jax cannot parse ({first_line(str(error))})",
                remedy="give StableHLO or an HLO dump, and use the jax version that wrote it",
            ) from None
        attributes = module.operation.attributes
        operations = [item.operation for item in module.body.operations]
        main = next(
            (item for item in operations if _string(item, "sym_name") == "main"), None
        )
        if main is None:
            raise UserError("the module has no function main, nothing to compile")
        kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        shardy = any(item.name == "sdy.mesh" for item in operations)
        counts = {"mhlo.num_partitions": 1, "mhlo.num_replicas": 1}
        for name in counts:
            if name in attributes:
                counts[name] = ir.IntegerAttr(attributes[name]).value
        has_mhlo = "mhlo.sharding" in str(main.attributes)
        # the options that JAX itself would set, which are part of every job's compile options
        if not shardy and not has_mhlo:
            shardy = bool(jax.config.jax_use_shardy_partitioner)
        return SourceProgram(
            code=mlir.module_to_bytecode(module),
            form="mlir",
            name=_string(module.operation, "sym_name") or "module",
            num_partitions=counts["mhlo.num_partitions"] or 1,
            num_replicas=counts["mhlo.num_replicas"] or 1,
            is_partitioned=False,
            shardy=shardy,
            propagate_to_parameters=_free(main, "arg_attrs", kind.inputs),
            propagate_to_output=_free(main, "res_attrs", kind.results),
        )


def _free(function: Any, key: str, types: Sequence[Any]) -> tuple[bool, ...]:
    """Per parameter or result, whether it has no sharding of its own; tokens never count as free
    (as in JAX).
    """
    given = (
        [str(item) for item in function.attributes[key]]
        if key in function.attributes
        else [""] * len(types)
    )
    return tuple(
        "sharding = " not in text and "token" not in str(kind)
        for text, kind in zip(given, types, strict=True)
    )


def _string(operation: Any, name: str) -> str:
    from jax._src.lib.mlir import ir

    return (
        ir.StringAttr(operation.attributes[name]).value
        if name in operation.attributes
        else ""
    )


# Serialized messages, edited as bytes, so that unknown fields stay.

Tree: TypeAlias = "Mapping[int, Tree | None]"
"""What to cut, by field number. None removes the field; a mapping edits the message inside."""

_SHARDING_FIELDS: Tree = {3: {2: {40: None}}, 12: None, 14: None}
"""GSPMD shardings in an HloModuleProto: of instructions (HloComputationProto.instructions,
HloInstructionProto.sharding), of the output, of the parameters."""


def hlo_module_bytes(data: bytes) -> bytes | None:
    """Return the HloModuleProto (field 1) of a serialized HloProto; `data` itself if it is the
    module; else None.
    """
    inner = _leading(data)
    if inner is None:
        return None
    # In an HloModuleProto field 1 is the module's name, which is short text; in an HloProto it is
    # the module.
    return inner if _leading(inner) is not None else data


def _leading(data: bytes) -> bytes | None:
    """Return the length-delimited field 1 at the start of `data`; None if there is none."""
    try:
        number, start, value, end = next(_fields(data), (0, 0, 0, 0))
    except ValueError:
        return None
    return data[value:end] if number == 1 and data[start] & 7 == 2 else None


def without_fields(message: bytes, cut: Tree) -> bytes:
    """A serialized message without some of its fields.

    Raises:
        ValueError: `message` is not a serialized message.
    """
    parts = []
    for number, start, value, end in _fields(message):
        inside = cut.get(number, {})
        if number not in cut:
            parts.append(message[start:end])
        elif inside is not None:
            parts.append(submessage(number, without_fields(message[value:end], inside)))
    return b"".join(parts)


def submessage(number: int, content: bytes) -> bytes:
    """Make a field that contains a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    """Encode a whole number as protocol buffers do."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def _fields(message: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number, start, content start and content end of each field."""
    at = 0
    while at < len(message):
        start = at
        tag, value = _read(message, at)
        kind = tag & 7
        if kind == 0:
            _, at = _read(message, value)
        elif kind == 2:
            length, value = _read(message, value)
            at = value + length
        else:
            at = value + {1: 8, 5: 4}.get(kind, len(message))
        if at > len(message):
            raise ValueError("not a serialized message")
        yield tag >> 3, start, value, at


def _read(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint; return it and its end."""
    number = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    raise ValueError("not a serialized message")
