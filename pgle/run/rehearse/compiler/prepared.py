"""A module that is compiled once and continued from a stage: what exists of it, and what is still being made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pgle.run.rehearse.compiler.dumps import BEFORE
from pgle.run.rehearse.compiler.request import RehearsalResult

T = TypeVar("T")


@dataclass(frozen=True)
class Stopped:
    """A module as it was before a stage."""

    path: Path
    devices: int  # that it is compiled for


@dataclass(frozen=True)
class Prepared:
    """A module compiled with certain flags, or about to be: it is there before its own schedule is."""

    flags: tuple[str, ...]  # all of them
    whole: Future[RehearsalResult]  # with all passes and without a profile
    module: Stopped | None  # before scheduling; None where only whole compilations are to be trusted
    # the schedule that the scheduling passes alone make of it, where that is tried; None where it is another
    check: Future[RehearsalResult | None] | None = None
    is_from_combining: bool = False  # from where it was before combining

    @property
    def fused(self) -> Stopped | None:
        """The module as it was before combining, where that was kept."""
        path = self.module and self.module.path.with_name(BEFORE["combining"])
        return Stopped(path, self.module.devices) if self.module and path and path.exists() else None

    @property
    def agrees(self) -> bool:
        """Whether the scheduling passes alone may be trusted; waits until that is known."""
        return self.module is not None and (self.check is None or self.check.result() is not None)


def begun(work: Callable[[], T]) -> Future[T]:
    """What a function returns that runs in parallel; a process that ends does not wait for it."""
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found


def done(value: T) -> Future[T]:
    """What has been returned already."""
    found: Future[T] = Future()
    found.set_result(value)
    return found
