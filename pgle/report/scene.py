"""The timeline of a page as its script reads it: JSON of whole nanoseconds, packed into a text."""

from __future__ import annotations

import base64
import binascii
import zlib
from itertools import accumulate

import msgspec

from pgle.errors import UserError

MOST_BYTES = 1 << 30
"""Of an unpacked timeline; one of 400,000 bars, the most that a page draws, has some 20 MB."""


class SceneLane(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bars that do not overlap."""

    label: str  # empty: the lane belongs to the one before
    start: tuple[int, ...]  # each from the start of the bar before
    duration: tuple[int, ...]
    name: tuple[int, ...]  # index into `Scene.names`
    count: tuple[int, ...] = ()  # executions of a bar; empty: one of each

    @property
    def starts(self) -> tuple[int, ...]:
        """Nanoseconds from the start of the panel to the start of each bar."""
        return tuple(accumulate(self.start))


class SceneSpan(msgspec.Struct, frozen=True, rename="camel"):
    """A step or a loop."""

    label: str
    start: int
    end: int
    depth: int
    # iterations that are drawn as one, and the part that they take
    folded: int
    folded_start: int
    folded_end: int


class ScenePanel(msgspec.Struct, frozen=True):
    """A device or a schedule."""

    label: str
    note: str  # what its times are
    facts: str  # its step in words
    length: int
    open: bool  # whether the page shows its lanes at first
    rows: int  # executions in all lanes
    spans: tuple[SceneSpan, ...]
    lanes: tuple[SceneLane, ...]


class Scene(msgspec.Struct, frozen=True):
    """A timeline. Its names are printable, and only ever become text in the page."""

    first: int  # the part of time that is seen first; 0: all
    texts: tuple[str, ...]
    # of each: style, sync, then eight indices into `texts`
    names: tuple[tuple[int, int, int, int, int, int, int, int, int, int], ...]
    panels: tuple[ScenePanel, ...]


def packed(scene: Scene) -> str:
    """zlib and base64 of the scene."""
    return base64.b64encode(zlib.compress(msgspec.json.encode(scene), 9)).decode()


def read_scene(data: str) -> Scene:
    """The scene of a timeline.

    Raises:
        UserError: the data is damaged.
    """
    unpacking = zlib.decompressobj()
    try:
        found = base64.b64decode(data, validate=True)
        text = unpacking.decompress(found, MOST_BYTES)
        if not unpacking.eof:
            raise ValueError("cut short, or too large")
        return msgspec.json.decode(text, type=Scene)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise UserError(
            "the timeline of the page is damaged", remedy="write the page again"
        ) from error
