"""Code that runs on a worker of another machine: a check of its versions and paths, and tasks.

A task runs with the folder and flags of the process that asks for it. A worker process runs one
task at a time, because a task changes both.
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
"""Prefixes of the variables that a task takes over from this machine, unless they look like
credentials. All others are the worker's own, because Dask does not encrypt by default. ``TF_``
alone is also Terraform's prefix.
"""
ALWAYS = ("XLA_FLAGS", "PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""Variables that are sent unchanged. Flags decide the answer, and programs and folders are the same
everywhere.
"""
SWITCHES = ("0", "1")
"""Values that are never credentials, whatever the name: JAX_COMPILER_ENABLE_REMAT_PASS=1."""


SAME_VERSIONS = "install the same versions in both environments"


@dataclass(frozen=True)
class Seen:
    """Paths that every machine must see as this one does."""

    read: tuple[Path, ...] = ()  # files and folders that tasks read
    written: Path | None = None  # a folder that tasks write into


@dataclass(frozen=True)
class Asker:
    """The settings that a task takes over from the process that asks for it."""

    folder: str
    environment: Mapping[str, str]  # only the variables that are sent
    versions: Mapping[str, str]

    @classmethod
    def here(cls) -> Asker:
        """Make the `Asker` of this process."""
        return cls(str(Path.cwd()), travelling(os.environ), versions())


@dataclass(frozen=True)
class Look:
    """The versions and paths that a worker has."""

    versions: Mapping[str, str]
    missing: tuple[str, ...]  # paths that do not exist there


def look(paths: Sequence[str]) -> Look:
    """Return this process's versions, and which of the paths it does not see."""
    missing = tuple(path for path in paths if not Path(path).exists())
    return Look(versions(), missing)


@cache
def versions() -> Mapping[str, str]:
    """Return the versions that decide an answer, by name; ``none`` if not installed."""
    found = {"Python": platform.python_version(), "pgle": pgle.__version__}
    for name in ("jax", "jaxlib"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Name the first version that differs; empty if all agree."""
    for name, version in ours.items():
        if theirs.get(name) != version:
            return f"{name} {theirs.get(name)}, this machine {version}"
    return ""


_ONE_TASK = threading.Lock()


_kept: dict[bytes, Any] = {}  # by request, what its tasks share; one request at most
_open = ExitStack()  # closes the shared value


def kept_for(request: T, opened: Callable[[T], AbstractContextManager[R]]) -> R:
    """Return what all tasks of a request share in this worker process.

    The first task opens it. It is closed before another request opens its own, and when no more
    tasks come.

    Args:
        request: identifies the request; must be picklable.
        opened: opens the shared value; must be importable.
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
    """Close what tasks have kept in this process."""
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
    """Run a task with the folder and environment of the process that asks for it."""
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
    """Return the variables that tasks take over from this machine."""
    return {name: value for name, value in environ.items() if _travels(name, value)}


def _travels(name: str, value: str) -> bool:
    if name in ALWAYS:
        return True
    if not name.startswith(TRAVELS):
        return False
    return value in SWITCHES or not is_credential(name, value)
