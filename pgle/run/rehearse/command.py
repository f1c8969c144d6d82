"""From the words of `pgle rehearse` to a rehearsal: a module file as it is, or a program whose modules are captured."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pgle.errors import UserError
from pgle.run.launch.capture_modules import capture_modules
from pgle.run.launch.captured import Program, modules_in, read_program
from pgle.run.rehearse.messages import devices_in
from pgle.run.rehearse.rehearse import Rehearsal, RehearseRequest, rehearse
from pgle.run.rehearse.request import OnPhase
from pgle.run.rehearse.settings import Setting, settle
from pgle.run.tune.quick import QuickLook, quick_look
from pgle.run.tune.request import TuneRequest
from pgle.schedule.predict import gain
from pgle.schedule.worth import WORTH_SHARE
from pgle.tune.search import no_room
from pgle.xla.targets import load_target

DEFAULT_DEVICES = 4
"""Virtual CPU devices for a captured program whose user names no topology."""

LOOK_S = 10.0
"""Rehearsals that took longer get no look at flags: it takes up to three times as long."""

_MODULE_SUFFIXES = (".mlir", ".pb", ".xz", ".gz", ".txt", ".hlo", ".bin")

_MADE = ("captured", "rehearsal", "all-passes", "default", "baseline", "profiled", "trials", "proof")
"""Folders that a rehearsal or a search for flags makes in the one it is given."""


@dataclass(frozen=True)
class RehearseCommand:
    """The command line.

    Attributes:
        words: one module file, a folder of dumps, or the words of a command.
        profile, target, topology, flags, job: as in `RehearseRequest`.
        devices: virtual devices for a command; None: those of the topology.
        out: folder; None: a temporary one, which is kept.
        choose: name of a module, or a regular expression on file names.
        quiet_s: stop a command that has compiled nothing new for so long.
        cached: as in `RehearseRequest`.
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
    cached: bool = True


def run(command: RehearseCommand, on_phase: OnPhase = lambda phase: None) -> Rehearsal:
    """Capture where needed, rehearse, and look at flags where the profile brings little and a look takes little."""
    with prepared(command) as (out, setting):
        began = time.monotonic()
        request = RehearseRequest(
            setting=setting,
            target=load_target(command.target),
            out=out / "rehearsal" if setting.module.is_relative_to(out) else out,
            profile=Path(command.profile) if command.profile else None,
            topology=command.topology,
            job=command.job,
            cached=command.cached,
        )
        found = replace(rehearse(request, on_phase), tune=_tune(command))
        if time.monotonic() - began > LOOK_S or not _leaves_room(found):
            return found
        return replace(found, look=_look(request))


def _leaves_room(found: Rehearsal) -> bool:
    """Whether the profile was used and brings little, and hiding more would bring something."""
    change = gain(found.baseline.prediction, found.profiled.prediction)
    return found.used and change.share < WORTH_SHARE and not no_room(found.profiled.prediction)


def _look(request: RehearseRequest) -> QuickLook | None:
    """What the strongest moves bring; the rehearsal stands whatever becomes of it."""
    try:
        return quick_look(
            TuneRequest(
                request.setting, request.target, request.out, request.profile, request.topology, worlds=0,
                cached=request.cached,
            )
        )  # fmt: skip
    except UserError:
        return None


def _tune(command: RehearseCommand) -> str:
    """The command line of `pgle tune` for the same words."""
    options = {"--profile": command.profile, "--target": command.target, "--topology": command.topology}
    named = [word for name, value in options.items() if value for word in (name, value)]
    if command.topology is None and command.devices:
        named += ["--devices", str(command.devices)]
    named += [word for flag in command.flags for word in ("--flag", flag)]
    is_program = len(command.words) > 1 or not Path(command.words[0]).exists()
    return shlex.join(["pgle", "tune", *named, *(["--"] if is_program else []), *command.words])


@contextmanager
def prepared(
    command: RehearseCommand, *, resumes: Callable[[Path], bool] = lambda out: False
) -> Iterator[tuple[Path, Setting]]:
    """The folder for all files, and everything that is decided before the first compilation.

    Args:
        command: the command line.
        resumes: whether a folder holds what can be gone on with; it is kept after a failure.
    """
    load_target(command.target)  # an unknown target is said before a program runs for minutes
    if command.topology:
        devices_in(command.topology)
    with _folder(command.out, resumes) as out:
        modules, program = _modules(command, out)
        yield out, settle(modules, command.choose, program, command.flags)


@contextmanager
def _folder(named: str | None, resumes: Callable[[Path], bool]) -> Iterator[Path]:
    """The folder for all files, empty; after a failure nothing of ours stays in it unless the message points there.

    Raises:
        UserError: the user's folder is none, is not empty, or another process is at work in it.
    """
    there_before = named is not None and Path(named).exists()
    out = Path(named) if named else Path(tempfile.mkdtemp(prefix="pgle-rehearsal-"))
    with _held(out):
        if there_before and any(out.iterdir()) and not resumes(out):
            raise UserError("is not an empty directory", where=out, remedy="choose a new one with -o DIR")
        try:
            yield out
        except BaseException as error:
            if str(out) not in str(error) and not resumes(out):
                for made in [out / name for name in _MADE] if named else [out]:
                    shutil.rmtree(made, ignore_errors=True)
                if not there_before and out.is_dir() and not any(out.iterdir()):
                    out.rmdir()
            raise


@contextmanager
def _held(out: Path) -> Iterator[None]:
    """The folder, made and kept from other processes that would use it too."""
    if out.exists() and not out.is_dir():
        raise UserError("is a file, a directory is needed", where=out, remedy="choose a new one with -o DIR")
    out.mkdir(parents=True, exist_ok=True)
    folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise UserError(
            "another pgle is at work in it", where=out, remedy="wait, or choose another with -o DIR"
        ) from None
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(folder)


def _modules(command: RehearseCommand, out: Path) -> tuple[Sequence[Path], Program]:
    """The modules of a file, of a folder of dumps, or of a program, which is run to capture them."""
    first = Path(command.words[0])
    if len(command.words) == 1:
        if first.is_dir():
            return modules_in(first, dumps=True), read_program(first)
        if first.suffix == ".py":
            raise UserError(
                "is a program, and a module is needed",
                where=first,
                remedy=f"have it run: pgle rehearse -- python {first}",
            )
        if first.is_file() and not _is_executable(first):
            return [first], Program()
        if first.suffix in _MODULE_SUFFIXES or not shutil.which(str(first)):
            raise UserError("no such file", where=first, remedy="dump modules with JAX_DUMP_IR_TO=DIR")
    if (out / "captured").is_dir() and (kept := modules_in(out / "captured")):
        return kept, read_program(out / "captured")  # of the search that goes on
    captured = capture_modules(
        command.words,
        out / "captured",
        devices=devices_in(command.topology) if command.topology else command.devices or DEFAULT_DEVICES,
        quiet_s=command.quiet_s,
        step_needed=command.choose is None,
    )
    return captured, read_program(out / "captured")


def _is_executable(path: Path) -> bool:
    with path.open("rb") as file:
        return os.access(path, os.X_OK) and file.read(4).startswith((b"#!", b"\x7fELF"))
