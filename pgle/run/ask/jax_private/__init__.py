"""Every private or moving API of jax and its CUDA plugin: programs read, and compiled for GPUs that are not there.

Imported in the compiler's process only, which may be another Python than ours. jax's own client takes StableHLO only,
and its conversion of HLO to StableHLO fails on real modules; the plugin's PJRT C API takes ``mlir`` and ``hlo``.
Positions and structures come from openxla/xla ``xla/pjrt/c/pjrt_c_api.h``, which within major version 0 only ever
appends. Nothing here starts a thread or reads a flag before `compile_program`, so that the plugin's process can fork.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pgle.errors import UserError
from pgle.run.ask.jax_private.programs import SourceProgram, first_line, submessage, varint
from pgle.run.ask.jax_private.programs import read_program as read_program
from pgle.run.ask.plugins import PACKAGES, install_command, versions
from pgle.xla.targets import without_runtime

OLDEST_JAX = (0, 4, 38)

PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
LIBRARY = "xla_cuda_plugin.so"

EXECUTABLE_BUILD_OPTIONS, DEVICE_MEMORY_SIZE = 3, 15
"""Fields of CompileOptionsProto and of its messages (openxla/xla ``xla/pjrt/proto/compile_options.proto``)."""

LEVELS = {"UNKNOWN": 0, "O0": 9, "O1": 19, "O2": 29, "O3": 39}
"""Levels of effort as XLA numbers them (openxla/xla ``xla/xla.proto``)."""

TRIALS = "config-assigner"
"""The pass that, from jaxlib 0.11 on, compiles every matrix product (and fusion, where that is switched on) to take the
first configuration of all, since it can time none: nothing looks at that before the schedule is made."""

PLUGIN_LOG = "jax._src.xla_bridge"
"""The logger on which jax says that a plugin cannot be used."""


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
    if found < OLDEST_JAX:
        what = f"jaxlib {jaxlib.__version__} cannot compile for a GPU that is not there"
        raise UserError(what, remedy="rehearse in an environment with jax 0.4.38 or newer")
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


def compile_options(program: SourceProgram, allocator_bytes: int, efforts: Mapping[str, str]) -> bytes:
    """The serialized compile options that jax would give; they hold the flags of XLA_FLAGS.

    Args:
        program: the module to compile.
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
    build.use_shardy_partitioner = program.shardy
    # JAX sets both lists for every compile; without them the fingerprint is another one (nothing else changes).
    build.allow_spmd_sharding_propagation_to_parameters = list(program.propagate_to_parameters)
    build.allow_spmd_sharding_propagation_to_output = list(program.propagate_to_output)
    for name, value in efforts.items():
        if not hasattr(build, name.removeprefix("jax_")):
            raise UserError(f"jaxlib {jaxlib.__version__} has no {name}", remedy="leave it out")
        setattr(build, name.removeprefix("jax_"), LEVELS[value] if value in LEVELS else float(value))
    data: bytes = options.SerializeAsString()
    # No binding for this one; a message that is appended to another is merged with it.
    memory = varint(DEVICE_MEMORY_SIZE << 3) + varint(allocator_bytes)
    return data + submessage(EXECUTABLE_BUILD_OPTIONS, memory)


def compile_program(
    plugin: Plugin, program: SourceProgram, target: str, portable: str, topology: str, options: bytes
) -> None:
    """Compile `program`; XLA_FLAGS of this process count, so call it once.

    Args:
        plugin: the loaded compiler.
        program: what to compile.
        target: text of a GpuTargetConfigProto.
        portable: the same with fewer fields, taken where this XLA does not know one of `target`.
        topology: ``SxHxD``: slices, hosts per slice, devices per host.
        options: of `compile_options`.

    Raises:
        UserError: the target or topology is refused.
        XlaError: XLA fails; for lack of ptxas too, long after scheduling is done and dumped.
    """
    for text in (target, portable, without_runtime(portable)):
        try:
            place = plugin.topology(text, topology)
            break
        except XlaError as error:
            message = str(error)
            if "GpuTargetConfigProto" not in message or not portable:
                raise _refused_topology(message, topology) from None
    else:
        raise _refused_topology(message, topology)
    plugin.compile_only(place, program.code, program.form, options)


def _refused_topology(message: str, topology: str) -> UserError:
    """Why there is no compiler for a topology, from XLA's words."""
    if "GpuTargetConfigProto" in message:
        what = "the installed jax does not understand this GPU description (it may come from a newer XLA)"
        remedy = "use a built-in target, or the gpu_target_config.pbtxt of an XLA dump of this jax version"
        return UserError(what, remedy=remedy)
    if "topology must be" in message:
        return UserError(f"topology {topology!r} is not of the form SLICESxHOSTSxDEVICES")
    remedy = "check that the CUDA plugin matches jax: pgle doctor"
    return UserError(f"no GPU compiler: {first_line(message)}", remedy=remedy)


# The PJRT C API.

_FUNCTIONS = 40  # bytes before the first function: struct_size, extensions, and a version of four fields
_ERROR_MESSAGE, _PLUGIN_INITIALIZE, _TOPOLOGY_CREATE, _COMPILE = 1, 3, 82, 89

_Pointer = ctypes.c_void_p
_Size = ctypes.c_size_t


class XlaError(Exception):
    """What XLA says of a compilation that failed."""


class _Struct(ctypes.Structure):
    """An argument structure: its size and extensions, before the fields of the call, of which some have none."""

    _fields_: ClassVar = [("struct_size", _Size), ("extension_start", _Pointer)]

    def __init__(self, **values: object) -> None:
        super().__init__(**values)
        self.struct_size = ctypes.sizeof(self)


def _text(name: str) -> list[tuple[str, Any]]:
    """The two fields of a text: where it begins, and its bytes."""
    return [(name, ctypes.c_char_p), (f"{name}_size", _Size)]


class _Error(_Struct):
    _fields_: ClassVar = [("error", _Pointer), ("message", _Pointer), ("message_size", _Size)]


class _NamedValue(_Struct):
    _fields_: ClassVar = [*_text("name"), ("type", ctypes.c_int), *_text("value")]


class _Topology(_Struct):
    _fields_: ClassVar = [*_text("name"), ("options", _Pointer), ("num_options", _Size), ("topology", _Pointer)]


class _Code(_Struct):
    _fields_: ClassVar = [*_text("code"), *_text("format")]


class _Compile(_Struct):
    _fields_: ClassVar = [
        *((name, _Pointer) for name in ("topology", "program")),
        *_text("options"),
        *((name, _Pointer) for name in ("client", "executable")),
    ]


class Plugin:
    """The loaded plugin library.

    Raises:
        UserError: no CUDA plugin of jax is installed, or it cannot be loaded.
    """

    def __init__(self) -> None:
        path = library()
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            what = f"the CUDA plugin cannot be loaded ({error})"
            raise UserError(what, where=path, remedy=install_command()) from None
        self._library.GetPjrtApi.restype = _Pointer
        self._api: int = self._library.GetPjrtApi()

    def compile_only(self, topology: int, code: bytes, form: str, options: bytes) -> None:
        """Compile a program (``mlir`` or ``hlo``) for a topology; the executable is left to the end of the process.

        Raises:
            XlaError: XLA fails to compile.
        """
        program = _Code(code=code, code_size=len(code), format=form.encode(), format_size=len(form))
        at = ctypes.addressof(program)
        self._call(_COMPILE, _Compile(topology=topology, program=at, options=options, options_size=len(options)))

    def topology(self, target: str, topology: str) -> int:
        """XLA's own description of a target (text of a GpuTargetConfigProto) and topology (``SxHxD``).

        Raises:
            XlaError: it takes one of them not.
        """
        self._call(_PLUGIN_INITIALIZE, _Struct())
        values = [
            _NamedValue(name=name, name_size=len(name), type=0, value=value, value_size=len(value))
            for name, value in ((b"target_config", target.encode()), (b"topology", topology.encode()))
        ]
        options = (_NamedValue * 2)(*values)
        made = _Topology(name=b"", name_size=0, options=ctypes.addressof(options), num_options=2)
        self._call(_TOPOLOGY_CREATE, made)
        found: int = made.topology
        return found

    def _call(self, position: int, arguments: _Struct) -> None:
        error = self._function(position, _Pointer)(ctypes.addressof(arguments))
        if error:
            asked = _Error(error=error)
            self._function(_ERROR_MESSAGE, None)(ctypes.addressof(asked))
            raise XlaError(ctypes.string_at(asked.message, asked.message_size).decode(errors="replace"))

    def _function(self, position: int, result: type | None) -> ctypes._CFunctionType:
        at = ctypes.cast(self._api + _FUNCTIONS + 8 * position, ctypes.POINTER(_Pointer))
        address = at[0]
        assert address is not None
        return ctypes.CFUNCTYPE(result, _Pointer)(address)


def library() -> Path:
    """The plugin's library file; of several the one of jaxlib's version.

    Raises:
        UserError: none is installed.
    """
    found = {name: folder / LIBRARY for name in PLUGINS for folder in _folders(name) if (folder / LIBRARY).is_file()}
    if not found:
        what = "the CUDA plugin of jax is not installed, no GPU compiler to rehearse with"
        raise UserError(what, remedy=install_command())
    installed, _ = versions(PACKAGES)
    wheels = {name: f"jax-{name.rsplit('_', 1)[1]}-pjrt" for name in found}
    fitting = (name for name in found if installed.get(wheels[name]) == installed.get("jaxlib"))
    return found[next(fitting, next(iter(found)))]


def _folders(name: str) -> list[Path]:
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return []
    return [] if found is None else [Path(folder) for folder in found.submodule_search_locations or ()]
