"""The lines of the program that made an instruction, read from a module's table of stack frames."""

from __future__ import annotations

from collections.abc import Iterator

_INSTALLED = ("/site-packages/", "/dist-packages/")
_OF_PYTHON = "/lib/python3"  # its library; packages are in a folder of it


class Frames:
    """Stack frames by number: the place of each, and the frame that called it."""

    def __init__(self) -> None:
        self._places: dict[int, str] = {}
        self._callers: dict[int, int] = {}

    def add(self, number: int, place: str, caller: int) -> None:
        """Add a frame.

        Args:
            place: file and line, ``/src/model.py:12``.
            caller: the number of the frame that called it; 0: none did.
        """
        self._places[number] = place
        self._callers[number] = caller

    def place(self, number: int) -> str:
        """File and line of a frame; empty if there is none of the number."""
        return self._places.get(number, "")

    def called_from(self, number: int) -> str:
        """The innermost line that leads to a frame and is no library's; empty if it is the frame's
        own, or if all are a library's.
        """
        if not is_installed(self.place(number)):
            return ""
        own = (place for place in self._chain(number) if not is_installed(place))
        return next(own, "")

    def _chain(self, number: int) -> Iterator[str]:
        """The places of a frame and of its callers."""
        seen: set[int] = set()
        while number in self._places and number not in seen:
            seen.add(number)
            yield self._places[number]
            number = self._callers[number]


def is_installed(place: str) -> bool:
    """Whether a file is of an installed package or Python's own, or no file (``<string>``)."""
    if not place or place.startswith("<"):
        return True
    return any(folder in place for folder in (*_INSTALLED, _OF_PYTHON))


def in_package(place: str) -> str:
    """A place without its folders: ``train.py:41``. One in an installed package keeps those of the
    package: ``flax/linen/attention.py:132``.
    """
    for folder in _INSTALLED:
        _, found, rest = place.rpartition(folder)
        if found:
            return rest
    return place.rpartition("/")[2]
