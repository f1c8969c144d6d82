"""What a compilation leaves in its dump folder: modules, schedule, memory, log; and why one left nothing."""

from __future__ import annotations

import hashlib
import re
import resource
import shutil
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pgle.errors import UserError
from pgle.files import read_bytes
from pgle.masking import mask_file
from pgle.run.ask.jax_private.wire import fields, hlo_module_bytes, without_fields
from pgle.xla.hlo.module import BITS, HOST_MEMORY_SPACE
from pgle.xla.log.events import FATAL, flag_refusal

LOG = "xla.log"
SCHEDULED = "gpu_after_optimizations.hlo.pb"
Stage: TypeAlias = Literal["combining", "scheduling"]
"""Of XLA's passes: the earlier ones decide what is computed in which fusions; then collectives are combined and made
asynchronous, and copies put in; then all is scheduled."""
BEFORE: dict[Stage, str] = {"combining": "before_combining.hlo.pb", "scheduling": "before_scheduling.hlo.pb"}
"""Files with the module as it was before a stage."""
_FIRST: dict[Stage, tuple[str, str]] = {
    "combining": ("rename_fusions", "post-fusion*optimization"),
    "scheduling": ("fusion-wrapper", "pre-scheduling-passes"),
}
"""The pass that a stage begins with, and its pipeline as the names of dumps have it."""
SCHEDULING = "scheduling"
"""The phase that begins when the module is written as it was before that stage, where that was asked for."""
CODE_GENERATION = (".ll", ".ptx", ".ttir")  # dumps of code generation (jax before 0.12)

FULL_BYTES = 1 << 20  # of free space, below which a disk is full: dumps of the smallest step need more

TAIL = 200_000  # characters at the end of the log that are searched

_DYNAMIC = re.compile(r"stablehlo\.(?:dynamic_|real_dynamic_|[gs]et_dimension_size)\w*|Unbounded dynamism")


def find_dump(folder: Path, name: str, ending: str) -> Path | None:
    """The dump of module `name`, not of its fusion sub-modules; XLA may trim a trailing ``_`` in file names."""
    wanted = tuple(f"{known}." for known in {name, name.rstrip("_")})
    return _newest(
        path
        for path in folder.glob(f"module_*{ending}")
        if (parts := path.name.split(".", 1)) and parts[1].startswith(wanted)
    )


def scheduled_module(folder: Path, name: str) -> Path | None:
    """The module as it was scheduled."""
    return find_dump(folder, name, SCHEDULED)


def find_schedule(folder: Path, name: str) -> Path | None:
    """The schedule dump of module `name`; releases through 0.5.0 name it after the entry computation, ``main.N``."""
    dumps = list(folder.glob("*.schedule.*"))
    stems = {path: path.name.rpartition(".schedule.")[0] for path in dumps}
    exact = [path for path in dumps if stems[path] in (name, name.rstrip("_"))]
    return _newest(exact or [path for path in dumps if re.match(r"main\.\d+", stems[path])])


def is_generating_code(folder: Path) -> bool:
    """Whether code generation has left its first file."""
    return any(path.suffix in CODE_GENERATION for path in folder.iterdir())


def remove_generated_code(folder: Path) -> None:
    """Remove what code generation dumped: of no use here, and hundreds of files for a large step."""
    for path in folder.iterdir():
        if path.suffix in CODE_GENERATION:
            path.unlink()


def mask_configs(folder: Path) -> None:
    """Leave no credential in what XLA dumps of its flags."""
    for path in folder.glob("*.config.pbtxt"):
        mask_file(path)


def dump_before(stages: Iterable[Stage]) -> str:
    """The flag by which XLA dumps the module as it was before these stages, and around each pass of the same names."""
    return f"--xla_dump_hlo_pass_re=^({'|'.join(_FIRST[stage][0] for stage in stages)})$"


def find_before(folder: Path, stage: Stage) -> Path | None:
    """XLA's dump of the module as it was before a stage (`dump_before`)."""
    return next(iter(sorted(folder.glob(f"*.{_FIRST[stage][1]}.after_pipeline-start.*.hlo.pb"))), None)


def keep_before_stages(folder: Path) -> None:
    """Keep the module as it was before each stage, where it was dumped, as `BEFORE` names it."""
    for stage, name in BEFORE.items():
        dump, kept = find_before(folder, stage), folder / name
        data = None if dump is None or kept.exists() else hlo_module_bytes(dump.read_bytes())
        if data is not None:
            kept.write_bytes(without_fields(data, {7: None}))  # HloModuleProto.schedule


def remove_passes(folder: Path) -> None:
    """Remove the modules as they were before and after single passes."""
    for path in folder.glob("module_*.[0-9][0-9][0-9][0-9].*.hlo.pb"):
        path.unlink()


def dataflow_of(dump: Path) -> str:
    """What a module that is not scheduled computes, whatever its names, ids and chains of bitcasts: a digest.

    Args:
        dump: an HloModuleProto, as `BEFORE` names files of.
    """
    from pgle.xla.protos import hlo_pb2

    module = hlo_pb2.HloModuleProto.FromString(read_bytes(dump))
    computations: dict[int, bytes] = {}
    for computation in module.computations:  # those that are called come first, and so do operands
        made: dict[int, bytes] = {}
        sources: dict[int, bytes] = {}  # of bitcasts, what they are bitcasts of
        held = []
        for item in computation.instructions:
            number, is_bitcast = item.id, item.opcode == "bitcast"
            parts = [sources.get(given, made[given]) if is_bitcast else made[given] for given in item.operand_ids]
            sources |= {number: parts[0]} if is_bitcast else {}
            parts += [computations[called] for called in item.called_computation_ids]
            parts += sorted(made.get(before, b"") for before in item.control_predecessor_ids)
            for name in ("name", "id", "operand_ids", "called_computation_ids", "control_predecessor_ids", "metadata"):
                item.ClearField(name)
            item.DiscardUnknownFields()
            made[number] = hashlib.sha256(b"".join([item.SerializeToString(), *parts])).digest()
            held += [] if is_bitcast else [made[number]]
        computations[computation.id] = hashlib.sha256(b"".join([*sorted(held), made[computation.root_id]])).digest()
    return computations[module.entry_computation_id].hex()


def is_full(folder: Path) -> bool:
    """Whether XLA's dumps have no room in a folder any more, which it does not say; False where there is no folder."""
    return folder.exists() and shutil.disk_usage(folder).free < FULL_BYTES


def check_room(folder: Path) -> None:
    """Refuse dumps that XLA may have cut short, of which it says nothing.

    Raises:
        UserError: the disk is full, or a file is as large as this process may write one.
    """
    if is_full(folder):
        raise UserError("no space is left for what XLA dumps", where=folder, remedy="free some, or write elsewhere")
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if most == resource.RLIM_INFINITY:
        return
    cut = next((path for path in folder.rglob("*") if path.is_file() and path.stat().st_size >= most), None)
    if cut is not None:
        what = f"cut short at {most:,} bytes, the largest file that may be written here (ulimit -f)"
        raise UserError(what, where=cut, remedy="raise that limit: ulimit -f unlimited")


def crash(code: int, log: Path, flags: Sequence[str]) -> UserError:
    """The error for a compilation that ended without an answer: XLA's own line where it left one.

    Args:
        code: what the process returned; negative for a signal.
        log: its output.
        flags: XLA flags that the user gave.
    """
    text = log.read_text(errors="replace")[-TAIL:]
    if (refused := flag_refusal(text)) is not None:
        said = refused[1] if "Flag parsing failed" not in refused[1] else f"a value of one of {' '.join(flags)}"
        return UserError(f"this XLA refuses a flag: {said}", remedy="leave it out, or see: pgle flags lint")
    fatal = FATAL.search(text)
    line = next((group for group in fatal.groups() if group), "") if fatal else ""
    if code == -9:
        return UserError("the compiler was killed, most likely for memory", where=log)
    last = line or next((row for row in reversed(text.splitlines()) if row.strip()), "no output")
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return UserError(f"the compiler crashed ({how}): {last.strip()[:300]}", remedy=f"the whole log: {log}")


def refused(said: str, module: Path, log: Path) -> UserError:
    """The error for a module that XLA does not compile, by the first line of what XLA said."""
    line = said.strip().partition("\n")[0]
    if (dynamic := _DYNAMIC.search(line)) is not None:
        what = f"the sizes of its arrays are known only as it runs ({dynamic[0]})"
        return UserError(what, where=module, remedy="export or lower it with numbers in place of symbols")
    return UserError(f"XLA could not compile it: {line}", where=module, remedy=f"the whole log: {log}")


def memory_of(dump: Path) -> dict[str, int]:
    """Device memory of a scheduled module by XLA's buffer assignment, in bytes.

    Args:
        dump: the HloProto of the module; XLA's memory report is looked for in the same folder.

    Returns:
        argument and output (of both memories; some may be the same buffer); temp and total, of the GPU alone. Empty if
        XLA left no report.
    """
    report = _newest(dump.parent.glob(f"{dump.name.removesuffix('.hlo.pb')}-memory-usage-report.pb"))
    if report is None:
        return {}
    from pgle.xla.protos import hlo_pb2

    # One entry for each memory space: 1 its bytes, 2 its colour, 3 its allocations. Host memory is not the GPU's.
    spaces = [list(fields(space)) for _, space in fields(report.read_bytes()) if isinstance(space, bytes)]
    usage = [found for space in spaces if (2, HOST_MEMORY_SPACE) not in space for found in space]
    total = sum(value for number, value in usage if number == 1 and isinstance(value, int))
    # The temporary buffers are combined into one allocation, which is numbered last (xla/service/buffer_assignment.cc).
    allocations = [
        {key: content for key, content in fields(value) if isinstance(content, int)}
        for number, value in usage
        if number == 3 and isinstance(value, bytes)
    ]
    temp = max(allocations, key=lambda item: item.get(1, 0), default={}).get(2, 0)
    module = hlo_module_bytes(read_bytes(dump)) or b""
    head = hlo_pb2.HloModuleProto.FromString(without_fields(module, {3: None})).host_program_shape
    return {
        "argument": sum(_size(shape, hlo_pb2) for shape in head.parameters),
        "output": _size(head.result, hlo_pb2),
        "temp": temp,
        "total": total,
    }


def _size(shape: Any, hlo_pb2: Any) -> int:
    if shape.tuple_shapes:
        return sum(_size(element, hlo_pb2) for element in shape.tuple_shapes)
    bits = BITS.get(hlo_pb2.PrimitiveType.Name(shape.element_type).lower(), 0)
    return int(prod(shape.dimensions) * bits + 7) // 8


def _newest(paths: Iterable[Path]) -> Path | None:
    return max(paths, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)
