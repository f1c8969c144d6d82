"""From the words of `pgle rehearse` to a rehearsal: a module file as it is, or a program whose modules are captured."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.errors import UserError
from pgle.run.launch.capture_modules import capture_modules, capture_warnings, choose_module
from pgle.run.rehearse.rehearse import Rehearsal, RehearseRequest, rehearse
from pgle.xla.targets import load_target

DEFAULT_DEVICES = 4
"""Virtual CPU devices for a captured program whose user names no topology."""

_MADE = ("captured", "rehearsal", "baseline", "profiled")
"""Folders that a rehearsal makes in the one it is given."""


@dataclass(frozen=True)
class RehearseCommand:
    """The command line.

    Attributes:
        words: one module file, or the words of a command.
        profile, target, topology, flags, job: as in `RehearseRequest`.
        devices: virtual devices for a command; None: those of the topology.
        out: folder; None: a temporary one, which is kept.
        choose: regular expression on captured file names.
        quiet_s: stop a command that has compiled nothing new for so long.
    """

    words: tuple[str, ...]
    profile: str | None
    target: str
    topology: str | None
    devices: int | None
    flags: tuple[str, ...]
    job: str | None
    out: str | None
    choose: str | None
    quiet_s: float


def run(command: RehearseCommand) -> Rehearsal:
    """Capture where needed, then rehearse."""
    target = load_target(command.target)
    with _folder(command.out) as out:
        module = _module(command, out)
        result = rehearse(
            RehearseRequest(
                module=module,
                target=target,
                out=out / "rehearsal" if module.is_relative_to(out) else out,
                profile=Path(command.profile) if command.profile else None,
                topology=command.topology,
                flags=command.flags,
                job=command.job,
            )
        )
    return replace(result, warnings=(*capture_warnings(module), *result.warnings))


@contextmanager
def _folder(named: str | None) -> Iterator[Path]:
    """The folder for all files, empty; after a failure nothing of ours stays in it unless the message points there.

    Raises:
        UserError: the user's folder is not empty.
    """
    out = Path(named) if named else Path(tempfile.mkdtemp(prefix="pgle-rehearsal-"))
    there_before = named is not None and out.exists()
    if there_before and any(out.iterdir()):
        raise UserError("is not an empty directory", where=out, remedy="choose a new one with -o DIR")
    try:
        yield out
    except BaseException as error:
        if str(out) not in str(error):
            for made in [out / name for name in _MADE] if named else [out]:
                shutil.rmtree(made, ignore_errors=True)
            if not there_before and out.is_dir() and not any(out.iterdir()):
                out.rmdir()
        raise


def _module(command: RehearseCommand, out: Path) -> Path:
    first = Path(command.words[0])
    if len(command.words) == 1 and first.is_file() and first.suffix != ".py":
        return first
    if len(command.words) == 1 and first.suffix in (".mlir", ".pb", ".xz", ".gz", ".txt", ".hlo", ".bin"):
        raise UserError("no such file", where=first, remedy="dump modules with JAX_DUMP_IR_TO=DIR")
    devices = command.devices or _devices(command.topology)
    captured = capture_modules(command.words, out / "captured", devices=devices, quiet_s=command.quiet_s)
    return choose_module(captured, command.choose)


def _devices(topology: str | None) -> int:
    if topology is None:
        return DEFAULT_DEVICES
    try:
        slices, hosts, devices = (int(part) for part in topology.split("x"))
    except ValueError:
        raise UserError("not of the form SxHxD", where=f"--topology {topology}", remedy="say 1x1x8") from None
    return slices * hosts * devices
