"""A page's timeline as its script reads it: JSON with whole nanoseconds, compressed to a text."""

from __future__ import annotations

import base64
import binascii
import zlib
from itertools import accumulate

import msgspec

from pgle.errors import UserError

MOST_BYTES = 1 << 30
"""Most bytes of an unpacked timeline. The largest that a page draws, with 400,000 bars, has about
20 MB.
"""


class SceneLane(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bars that do not overlap."""

    label: str  # empty: continues the lane before
    start: tuple[int, ...]  # ns, each from the start of the previous bar
    duration: tuple[int, ...]
    name: tuple[int, ...]  # index into `Scene.names`
    count: tuple[int, ...] = ()  # executions in each bar; empty: one each

    @property
    def starts(self) -> tuple[int, ...]:
        """Return the start of each bar, in nanoseconds from the start of the panel."""
        return tuple(accumulate(self.start))


class SceneSpan(msgspec.Struct, frozen=True, rename="camel"):
    """A step or a loop."""

    label: str
    start: int
    end: int
    depth: int
    # iterations drawn as one, and the part of the span that they take
    folded: int
    folded_start: int
    folded_end: int


class ScenePanel(msgspec.Struct, frozen=True):
    """A device or a schedule."""

    label: str
    note: str  # origin of its times
    facts: str  # summary of its step
    length: int
    open: bool  # whether the page shows its lanes at first
    rows: int  # executions in all lanes
    spans: tuple[SceneSpan, ...]
    lanes: tuple[SceneLane, ...]


class Scene(msgspec.Struct, frozen=True):
    """A timeline. Its names are printable, and the page uses them only as text."""

    first: int  # length of the part that the page shows first, in ns; 0: all
    texts: tuple[str, ...]
    # for each name: style, sync, then eight indices into `texts`
    names: tuple[tuple[int, int, int, int, int, int, int, int, int, int], ...]
    panels: tuple[ScenePanel, ...]


def packed(scene: Scene) -> str:
    """Compress the scene with zlib, and encode it in base64."""
    return base64.b64encode(zlib.compress(msgspec.json.encode(scene), 9)).decode()


def read_scene(data: str) -> Scene:
    """Read the scene of a timeline.

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
