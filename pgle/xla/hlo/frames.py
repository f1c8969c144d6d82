"""The source lines behind an instruction, read from a module's table of stack frames."""

from __future__ import annotations

from collections.abc import Iterator

_INSTALLED = ("/site-packages/", "/dist-packages/")
# folder of Python's library, which also holds installed packages
_OF_PYTHON = "/lib/python3"


class Frames:
    """Stack frames by number: the place of each frame, and the frame that called it."""

    def __init__(self) -> None:
        self._places: dict[int, str] = {}
        self._callers: dict[int, int] = {}

    def add(self, number: int, place: str, caller: int) -> None:
        """Add a frame.

        Args:
            number: the frame's number.
            place: file and line, ``/src/model.py:12``.
            caller: number of the calling frame; 0 if there is none.
        """
        self._places[number] = place
        self._callers[number] = caller

    def place(self, number: int) -> str:
        """Return file and line of a frame; empty if the number is unknown."""
        return self._places.get(number, "")

    def called_from(self, number: int) -> str:
        """Return the innermost line of the user's program that leads to a frame.

        It is empty if the frame itself is that line, or if all lines belong to libraries.
        """
        if not is_installed(self.place(number)):
            return ""
        own = (place for place in self._chain(number) if not is_installed(place))
        return next(own, "")

    def _chain(self, number: int) -> Iterator[str]:
        """Yield the places of a frame and of its callers."""
        seen: set[int] = set()
        while number in self._places and number not in seen:
            seen.add(number)
            yield self._places[number]
            number = self._callers[number]


def is_installed(place: str) -> bool:
    """Whether a place is in an installed package or in Python itself, or is no file
    (``<string>``).
    """
    if not place or place.startswith("<"):
        return True
    return any(folder in place for folder in (*_INSTALLED, _OF_PYTHON))


def in_package(place: str) -> str:
    """Return a place without its folders: ``train.py:41``.

    A place in an installed package keeps the package's folders: ``flax/linen/attention.py:132``.
    """
    for folder in _INSTALLED:
        _, found, rest = place.rpartition(folder)
        if found:
            return rest
    return place.rpartition("/")[2]
