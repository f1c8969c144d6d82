"""What runs on a worker of another machine: a look at its versions and paths, and tasks.

A task runs in the folder of the process that asks for it, with its flags. A worker process has one
task at a time, so that a task may change both.
"""

from __future__ import annotations

import os
import pickle
import platform
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import pgle
from pgle.errors import UserError
from pgle.masking import is_credential

T = TypeVar("T")
R = TypeVar("R")

TRAVELS = (
    *("XLA_", "JAX_", "PGLE_", "NCCL_"),
    *("TF_CPP_", "TF_XLA_", "TF_CUDA_", "TF_CUDNN_", "TF_GPU_"),
)
"""What variables begin with that a task has as this machine has them, if they do not look like
credentials. Others are the worker's own: Dask does not encrypt by itself. TF_ alone is Terraform's
prefix, too.
"""
ALWAYS = ("XLA_FLAGS", "PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""Variables that travel as they are: flags decide the answer, and programs and folders are the same
everywhere.
"""
SWITCHES = ("0", "1")
"""Values that are no credential, whatever the name: JAX_COMPILER_ENABLE_REMAT_PASS=1."""


SAME_VERSIONS = "install the same versions in both environments"


@dataclass(frozen=True)
class Seen:
    """What each machine must see as this one does."""

    read: tuple[Path, ...] = ()  # files and folders that tasks read
    written: Path | None = None  # a folder that tasks write into


@dataclass(frozen=True)
class Asker:
    """What a task takes over from the process that asks for it."""

    folder: str
    environment: Mapping[str, str]  # only variables that travel
    versions: Mapping[str, str]

    @classmethod
    def here(cls) -> Asker:
        """This process."""
        return cls(str(Path.cwd()), travelling(os.environ), versions())


@dataclass(frozen=True)
class Look:
    """What a worker is and sees."""

    versions: Mapping[str, str]
    missing: tuple[str, ...]  # paths that are not there


def look(paths: Sequence[str]) -> Look:
    """This process, and which of the paths it does not see."""
    missing = tuple(path for path in paths if not Path(path).exists())
    return Look(versions(), missing)


@cache
def versions() -> Mapping[str, str]:
    """What decides an answer, by name; ``none`` if it is not installed."""
    found = {"Python": platform.python_version(), "pgle": pgle.__version__}
    for name in ("jax", "jaxlib"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """The first version that differs, in words; empty if all agree."""
    for name, version in ours.items():
        if theirs.get(name) != version:
            return f"{name} {theirs.get(name)}, this machine {version}"
    return ""


_ONE_TASK = threading.Lock()


_kept: dict[bytes, Any] = {}  # what tasks share, by its request; one at most
_open = ExitStack()  # closes it


def kept_for(request: T, opened: Callable[[T], AbstractContextManager[R]]) -> R:
    """Return what all tasks of a request share in this process, a worker.

    The first task opens it. It is closed before that of another request is opened, and when no
    more tasks come.

    Args:
        request: can be pickled.
        opened: can be imported.
    """
    key = pickle.dumps((opened, request))
    if key not in _kept:
        _release()
        _kept[key] = _open.enter_context(opened(request))
    return _kept[key]  # type: ignore[no-any-return]


def _release() -> None:
    _kept.clear()
    _open.close()


def end_work() -> None:
    """End what tasks have kept in this process."""
    with _ONE_TASK:
        _release()


def check_jaxlib(python: str, own: str, asked: str) -> None:
    """Refuse a worker whose interpreter compiles with another jaxlib than the asking process."""
    if own != asked:
        raise UserError(
            f"{python} compiles with jaxlib {own} on a worker, {asked} here",
            where="--executor",
            remedy=SAME_VERSIONS,
        )


def run_task(asker: Asker, function: Callable[[T], R], value: T) -> R:
    """A task, in the folder and environment of the process that asks for it."""
    with _ONE_TASK:
        if wrong := difference(versions(), asker.versions):
            raise UserError(
                f"a worker has {wrong}", where="--executor", remedy=SAME_VERSIONS
            )
        with _as(asker):
            return function(value)


@contextmanager
def _as(asker: Asker) -> Iterator[None]:
    before = dict(os.environ)
    folder = Path.cwd()
    for name in travelling(before):
        del os.environ[name]
    os.environ.update(asker.environment)
    os.chdir(asker.folder)
    try:
        yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(before)


def travelling(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a task has as the machine that asks for it."""
    return {name: value for name, value in environ.items() if _travels(name, value)}


def _travels(name: str, value: str) -> bool:
    if name in ALWAYS:
        return True
    if not name.startswith(TRAVELS):
        return False
    return value in SWITCHES or not is_credential(name, value)
