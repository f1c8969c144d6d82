"""The PJRT C API of jax's CUDA plugin: compile a program for GPUs that are not there, in any format the plugin reads.

jax's own client takes StableHLO only, and its conversion of HLO to StableHLO fails on real modules; the plugin takes
``mlir`` and ``hlo``. The positions and structures come from openxla/xla ``xla/pjrt/c/pjrt_c_api.h``, which within
major version 0 only ever appends. Nothing here starts a thread or reads a flag before `compile_only`, so that a process
which has loaded the plugin can fork.
"""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from typing import Any, ClassVar

from pgle.errors import UserError
from pgle.run.ask.plugins import PACKAGES, install_command, versions

PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
LIBRARY = "xla_cuda_plugin.so"

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


class _Program(_Struct):
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
            raise UserError(
                f"the CUDA plugin cannot be loaded ({error})", where=path, remedy=install_command()
            ) from None
        self._library.GetPjrtApi.restype = _Pointer
        self._api: int = self._library.GetPjrtApi()

    def compile_only(self, target: str, topology: str, code: bytes, form: str, options: bytes) -> None:
        """Compile a program for a topology; the executable is left to the end of the process.

        Args:
            target: text of a GpuTargetConfigProto.
            topology: ``SxHxD``: slices, hosts per slice, devices per host.
            code: StableHLO text or bytecode, or a serialized HloModuleProto.
            form: ``mlir`` or ``hlo``.
            options: a serialized CompileOptionsProto.

        Raises:
            XlaError: XLA refuses the target or the topology, or fails to compile.
        """
        self._call(_PLUGIN_INITIALIZE, _Struct())
        program = _Program(code=code, code_size=len(code), format=form.encode(), format_size=len(form))
        self._call(
            _COMPILE,
            _Compile(
                topology=self._topology(target.encode(), topology.encode()),
                program=ctypes.addressof(program),
                options=options,
                options_size=len(options),
            ),
        )

    def check_topology(self, target: str, topology: str) -> None:
        """Whether XLA takes this target and topology.

        Raises:
            XlaError: it does not.
        """
        self._call(_PLUGIN_INITIALIZE, _Struct())
        self._topology(target.encode(), topology.encode())

    def _topology(self, target: bytes, topology: bytes) -> int:
        values = [
            _NamedValue(name=name, name_size=len(name), type=0, value=value, value_size=len(value))
            for name, value in ((b"target_config", target), (b"topology", topology))
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
        remedy = install_command()
        raise UserError("the CUDA plugin of jax is not installed, no GPU compiler to rehearse with", remedy=remedy)
    found_versions, _ = versions(PACKAGES)
    wheels = {name: f"jax-{name.rsplit('_', 1)[1]}-pjrt" for name in found}
    fitting = (name for name in found if found_versions.get(wheels[name]) == found_versions.get("jaxlib"))
    return found[next(fitting, next(iter(found)))]


def _folders(name: str) -> list[Path]:
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return []
    return [] if found is None else [Path(folder) for folder in found.submodule_search_locations or ()]
