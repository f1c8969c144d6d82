"""What `pgle doctor` examines: programs, files, variables and limits, behind one value that tests
can replace.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from pgle.run.ask.amd_gpus import read_amd_gpus
from pgle.run.ask.jaxlib import Installed, installed
from pgle.run.ask.nsys import Nsys, find_nsys
from pgle.run.ask.programs import ran
from pgle.run.directory.manifest import Gpu

# seconds for one program: nvidia-smi is slow if the driver is not kept loaded, git if there are a
# million files
TIMEOUT_S = 20

SMI_FIELDS = ("name", "driver_version", "memory.total", "compute_cap", "uuid")
SMI_QUERY = (
    "nvidia-smi",
    f"--query-gpu={','.join(SMI_FIELDS)}",
    "--format=csv,noheader,nounits",
)

Level: TypeAlias = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """One check of the machine."""

    name: str  # name of the check, such as ``driver``
    # ``ok``; ``warn`` if something will fail or get worse; ``fail`` if a run will fail
    verdict: Level
    found: str  # what was found
    remedy: str = ""  # what to do; empty for ``ok``
    command: str = ""  # a command to copy that does it


# Makers of results without names, which `diagnose` adds: ok, warning, failure.
ok = partial(MachineCheck, "", "ok")
warn = partial(MachineCheck, "", "warn")
fail = partial(MachineCheck, "", "fail")

WITHOUT = "rehearse, convert, verify and the simulated capture work without"
"""What a machine without a GPU can do, as the end of a remedy."""


def _ask(argv: Sequence[str]) -> tuple[bool, str]:
    try:
        done = ran(argv, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False, f"it did not answer in {TIMEOUT_S} s"
    except FileNotFoundError:
        return False, ""
    except OSError as error:
        return False, f"it cannot be started ({error.strerror})"
    return done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return None


def _processes() -> frozenset[str]:
    names = (_read(str(path)) for path in Path("/proc").glob("[0-9]*/comm"))
    return frozenset(name.strip() for name in names if name)


def _existing(path: str) -> Path:
    here = Path(path).resolve()
    return next(folder for folder in (here, *here.parents) if folder.exists())


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine as the checks see it; by default this one."""

    installed: Installed  # the packages that the user's interpreter would import
    python: str = sys.executable  # the user's interpreter
    # whether a program ended well, and what it printed
    ask: Callable[[Sequence[str]], tuple[bool, str]] = _ask
    # text of a file, None where it cannot be read
    read: Callable[[str], str | None] = _read
    # path of a program, None if absent
    which: Callable[[str], str | None] = shutil.which
    # paths that match a pattern, sorted
    glob: Callable[[str], tuple[str, ...]] = lambda pattern: _glob(pattern)
    # variables
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    # names of all running processes
    processes: Callable[[], frozenset[str]] = _processes
    # free space on the disk that holds (or would hold) a path, and whether files can be made there
    free_bytes: Callable[[str], int] = lambda path: (
        shutil.disk_usage(_existing(path)).free
    )
    writable: Callable[[str], bool] = lambda path: os.access(
        _existing(path), os.W_OK | os.X_OK
    )
    # whether this process is root
    is_root: bool = field(default_factory=lambda: os.geteuid() == 0)
    nsys: Callable[[], Nsys | None] = find_nsys  # the nsys to use; None if absent


def this_machine(python: str | None = None) -> Machine:
    """Return this machine."""
    return Machine(installed(python), python or sys.executable)


def _glob(pattern: str) -> tuple[str, ...]:
    return tuple(sorted(map(str, Path("/").glob(pattern.lstrip("/")))))


def read_gpus(
    ask: Callable[[Sequence[str]], tuple[bool, str]] = _ask,
) -> tuple[Gpu, ...]:
    """Return the GPUs that nvidia-smi lists; empty if it is absent. `ask` as in `Machine`."""
    is_well, text = ask(SMI_QUERY)
    gpus: list[Gpu] = []
    for line in text.splitlines() if is_well else ():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(SMI_FIELDS):
            name, driver, memory, capability, uuid = cells
            memory_mib = int(memory) if memory.isdigit() else 0
            gpus.append(Gpu(name, driver, memory_mib, capability, uuid))
    return tuple(gpus)


def all_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of this machine, of all vendors."""
    return read_gpus() or read_amd_gpus(_read, _glob)


def git_commit() -> str:
    """Return the short commit of the working directory, with ``+`` if tracked files have changes.
    pgle reads nothing else from git, because addresses of remotes may hold credentials.

    Empty outside of a work tree, before its first commit, and if git is missing or does not answer.
    """
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        if commit and _git("status", "--porcelain", "--untracked-files=no"):
            return f"{commit}+"
        return commit
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*words: str) -> str:
    done = ran(
        ("git", *words),
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        # do not disturb the user's own git, which may run meanwhile
        env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def hardware_name() -> str:
    """Name the GPUs of this host for files and keys: ``8x-nvidia-h100-80gb-hbm3``, or
    ``no-gpu``.
    """
    gpus = all_gpus()
    if not gpus:
        return "no-gpu"
    slug = re.sub(r"[\W_]", "-", gpus[0].name.lower()).strip("-")
    return f"{len(gpus)}x-{slug}"
