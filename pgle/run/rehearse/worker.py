"""The child process of a rehearsal: compiles one module, so that flags, logs and crashes stay apart.

Started by `pgle.run.rehearse.compile`; reads a request as JSON, writes ``result.json`` beside it.
XLA's log goes to stderr.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from pgle.errors import UserError
from pgle.files import read_bytes, write_files
from pgle.xla.log.wordings import NO_TOOLKIT

RESULT = "result.json"
"""Name of the answer, in the folder of the request."""
STARTED = "started.json"
"""What is known before compiling, beside it: all there is when the compiler crashes."""

MLIR_BYTECODE = b"ML\xefR"


def main(arguments: list[str]) -> int:
    """Compile what the request file ``arguments[0]`` asks for; the answer is ``result.json`` beside it."""
    request_path = Path(arguments[0])
    request = json.loads(request_path.read_text())
    try:
        answer = _compile(request, request_path.parent)
    except UserError as error:
        answer = {"user_error": {"what": error.what, "where": error.where, "remedy": error.remedy}}
    write_files({request_path.with_name(RESULT): json.dumps(answer)}, force=True)
    sys.stderr.flush()
    os._exit(0)  # the plugin's threads need not be joined, and some releases crash while they are


def _compile(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    began = time.perf_counter()
    from pgle.run.ask import jax_private

    if jax_private.version() < jax_private.AUTOTUNES_WITHOUT_DEVICE:
        # before the user's own flags, which win; XLA reads the variable at the first use of a backend
        os.environ["XLA_FLAGS"] = f"--xla_gpu_autotune_level=0 {os.environ.get('XLA_FLAGS', '')}"
    program, devices = _load(request)
    profile = None if request["fdo_profile"] is None else read_bytes(Path(request["fdo_profile"]))
    ready = time.perf_counter()
    answer: dict[str, Any] = {
        "module_name": program.name,
        "num_partitions": program.num_partitions,
        "num_replicas": program.num_replicas,
        "start_s": ready - began,
        "stopped_for_toolkit": False,
        "memory": {},
        "jaxlib": ".".join(map(str, jax_private.version())),
    }
    write_files({folder / STARTED: json.dumps(answer)}, force=True)
    try:
        executable = jax_private.compile_for(devices, program, fdo_profile=profile)
    except UserError:
        raise
    except Exception as error:
        answer["compile_s"] = time.perf_counter() - ready
        if not NO_TOOLKIT.search(str(error)):
            answer["xla_error"] = str(error)[:20_000]
            return answer
        answer["stopped_for_toolkit"] = True
        answer["stopped_by"] = jax_private.first_line(str(error))[:500]
        return answer
    answer["compile_s"] = time.perf_counter() - ready
    answer["memory"] = jax_private.memory_stats(executable)
    return answer


def _load(request: dict[str, Any]) -> tuple[Any, Any]:
    """The program of the request's module and the devices to compile it for."""
    from pgle.run.ask import jax_private

    path = Path(request["module"])
    data = read_bytes(path)
    wanted = request["topology"]
    target = request["target"]

    def devices_for(count: int) -> Any:
        return jax_private.topology_devices(target, wanted or f"1x1x{count}", portable=request["portable_target"])

    default = _devices_in(wanted) if wanted else 1
    kind = module_kind(path.name, data)
    if kind == "mlir":
        program = jax_private.program_from_mlir(data)
    elif kind == "hlo-text":
        program = jax_private.program_from_hlo_text(data.decode(), default_partitions=default)
    elif kind == "hlo":
        program = jax_private.program_from_hlo(hlo_module_bytes(data, path), default_partitions=default)
    else:
        program = jax_private.program_from_export(data, devices_for)
    needed = program.num_partitions * program.num_replicas
    devices = devices_for(needed)
    if needed > 1 and len(devices) != needed:
        raise UserError(
            f"{program.name} is partitioned for {needed} devices and topology {wanted} has {len(devices)}",
            where=path,
            remedy=f"choose a topology of {needed} devices, such as 1x1x{needed}",
        )
    return program, devices


def module_kind(name: str, data: bytes) -> str:
    """``mlir`` (text or bytecode), ``hlo`` (proto), ``hlo-text`` or ``export`` (a `jax.export` artifact).

    Args:
        name: the file's name, whose suffixes decide between the two binary forms.
        data: its content, decompressed.
    """
    if data.startswith(MLIR_BYTECODE):
        return "mlir"
    head = data[:65536].lstrip()
    if head.startswith(b"HloModule"):
        return "hlo-text"
    if re.search(rb"^\s*(?:builtin\.)?module\b", head, re.MULTILINE) and b"\x00" not in head:
        return "mlir"
    stem = re.sub(r"\.(?:xz|gz)$", "", name)
    if stem.endswith((".pb", ".hlo")):
        return "hlo"
    return "export"


def hlo_module_bytes(data: bytes, where: Path) -> bytes:
    """The HloModuleProto (field 1) of a serialized HloProto; `data` itself where it already is the module."""
    position, end = _first_field(data)
    if end == 0:
        raise UserError("not an HLO dump", where=where, remedy="give a *.before_optimizations.hlo.pb of --xla_dump_to")
    inner = data[position:end]
    # In an HloModuleProto field 1 is the module's name, which is short text; in an HloProto it is the module.
    return inner if _first_field(inner)[1] else data


def _first_field(data: bytes) -> tuple[int, int]:
    """Start and end of the length-delimited field 1 that `data` begins with; (0, 0) where it does not."""
    if not data.startswith(b"\x0a"):
        return 0, 0
    length = shift = 0
    for index in range(1, min(len(data), 11)):
        length |= (data[index] & 0x7F) << shift
        shift += 7
        if data[index] < 0x80:
            end = index + 1 + length
            return (index + 1, end) if end <= len(data) else (0, 0)
    return 0, 0


def _devices_in(topology: str) -> int:
    count = 1
    for part in topology.split("x"):
        count *= int(part) if part.isdigit() else 1
    return count


if __name__ == "__main__":
    main(sys.argv[1:])
