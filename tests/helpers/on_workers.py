"""Functions that tests let workers run; processes import them by name."""

import os
import threading
from pathlib import Path

from pgle.errors import UserError


def square(number: int) -> int:
    return number * number


def dies_once(marker: Path) -> str:
    """What a task returns whose first worker dies."""
    if not marker.exists():
        marker.touch()
        os._exit(9)
    return marker.name


def dies(_: int) -> None:
    os._exit(9)


def refuses(number: int) -> None:
    raise UserError("is not even", where=str(number), remedy="take another")


def surroundings(names: tuple[str, ...]) -> tuple[str, list[str | None]]:
    """The folder and some variables of a task."""
    return str(Path.cwd()), [os.environ.get(name) for name in names]


_running = threading.Semaphore(1)


def alone(_: int) -> bool:
    """Whether no other task runs in this process meanwhile."""
    if not _running.acquire(blocking=False):
        return False
    try:
        return threading.Event().wait(0.02) is False
    finally:
        _running.release()
