"""What a compilation leaves in its dump folder: modules, schedule, memory, log; and why one left nothing."""

from __future__ import annotations

import re
import resource
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from pgle.errors import UserError
from pgle.files import read_bytes
from pgle.masking import mask_file
from pgle.run.ask.jax_private import hlo_module_bytes, without_fields
from pgle.xla.log.events import FATAL, flag_refusal

LOG = "xla.log"  # of the compiler
SCHEDULED = "gpu_after_optimizations.hlo.pb"
UNSCHEDULED = "before_scheduling.hlo.pb"
"""File with the module as it was before scheduling, where that was asked for."""
SCHEDULING = "scheduling"
"""The phase that begins when XLA has dumped that."""
DUMP_BEFORE_SCHEDULING = "--xla_dump_hlo_pass_re=^fusion-wrapper$"
"""The flag by which XLA dumps the module as it was before scheduling, and around each pass of that name."""
_BEFORE_SCHEDULING = "*.pre-scheduling-passes.after_pipeline-start.*.hlo.pb"
_OF_PASSES = "module_*.[0-9][0-9][0-9][0-9].*.hlo.pb"

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


def find_schedule(folder: Path, name: str) -> Path | None:
    """The schedule dump of module `name`; releases through 0.5.0 name it after the entry computation, ``main.N``."""
    dumps = list(folder.glob("*.schedule.*"))
    stems = {path: path.name.rpartition(".schedule.")[0] for path in dumps}
    exact = [path for path in dumps if stems[path] in (name, name.rstrip("_"))]
    return _newest(exact or [path for path in dumps if re.match(r"main\.\d+", stems[path])])


def find_unscheduled(folder: Path) -> Path | None:
    """XLA's dump of the module as it was before scheduling (`DUMP_BEFORE_SCHEDULING`)."""
    return next(iter(sorted(folder.glob(_BEFORE_SCHEDULING))), None)


def keep_unscheduled(folder: Path) -> bool:
    """Keep the module as it was before scheduling as `UNSCHEDULED`; whether it is there."""
    dump, kept = find_unscheduled(folder), folder / UNSCHEDULED
    data = None if dump is None or kept.exists() else hlo_module_bytes(dump.read_bytes())
    if data is not None:
        kept.write_bytes(without_fields(data, {7: None}))  # HloModuleProto.schedule
    return kept.exists()


def tidy(folder: Path, *, passes: bool) -> None:
    """Remove dumps that nobody reads, hundreds for a large step, of single `passes` too, and leave no credential."""
    for path in folder.iterdir():
        if path.suffix in CODE_GENERATION or (passes and path.match(_OF_PASSES)):
            path.unlink()
    mask_configs(folder)


def mask_configs(folder: Path) -> None:
    """Leave no credential in what XLA dumps of its flags."""
    for path in folder.glob("*.config.pbtxt"):
        mask_file(path)


def is_full(folder: Path) -> bool:
    """Whether XLA's dumps have no room in a folder any more, which XLA does not say."""
    return folder.exists() and shutil.disk_usage(folder).free < FULL_BYTES


def check_disk(folder: Path) -> None:
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
    """The error for a compilation that ended without an answer (`code`; negative: a signal): XLA's own line, if
    there is one."""
    text = log.read_text(errors="replace")[-TAIL:]
    if (refused := flag_refusal(text)) is not None:
        reason = refused[1] if "Flag parsing failed" not in refused[1] else f"a value of one of {' '.join(flags)}"
        return UserError(f"this XLA refuses a flag: {reason}", remedy="leave it out, or see: pgle flags lint")
    fatal = FATAL.search(text)
    line = next((group for group in fatal.groups() if group), "") if fatal else ""
    if code == -9:
        return UserError("the compiler was killed, most likely for memory", where=log)
    last = line or next((row for row in reversed(text.splitlines()) if row.strip()), "no output")
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return UserError(f"the compiler crashed ({how}): {last.strip()[:300]}", remedy=f"the whole log: {log}")


def refused(answer: str, module: Path, log: Path) -> UserError:
    """The error for a module that XLA does not compile, by the first line of what XLA answers."""
    line = answer.strip().partition("\n")[0]
    if (dynamic := _DYNAMIC.search(line)) is not None:
        what = f"the sizes of its arrays are known only as it runs ({dynamic[0]})"
        return UserError(what, where=module, remedy="export or lower it with numbers in place of symbols")
    return UserError(f"XLA could not compile it: {line}", where=module, remedy=f"the whole log: {log}")


def memory_of(dump: Path) -> dict[str, int]:
    """Device memory of a scheduled module, an HloProto, by XLA's buffer assignment, in bytes of the GPU: argument,
    output (results that take no argument's place), temp, total (constants too); empty if absent in the dump."""
    from pgle.xla.hlo.proto import buffers_from_bytes  # and protobuf, which the worker's Python may lack

    plan = buffers_from_bytes(read_bytes(dump))
    if plan is None:
        return {}
    sizes = {"argument": plan.arguments_bytes, "output": plan.outputs_bytes, "temp": plan.temporary_bytes}
    return {**sizes, "total": plan.peak_bytes}


def _newest(paths: Iterable[Path]) -> Path | None:
    return max(paths, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)
