"""An xplane file as planes and lines: where each part is in the file, and the small parts parsed.

Format: `tsl/profiler/protobuf/xplane.proto` of openxla/xla; planes and lines as XLA's GPU and CPU profilers name them
(`xla/tsl/profiler/utils/xplane_schema.cc`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from pgle.trace.table import ModuleKey, distinct
from pgle.trace.xplane.events import BYTES, REFERENCE, TEXT, VARINT, DamagedError, Stat, fields
from pgle.xla.protos import hlo_pb2, xplane_pb2

GPU_PREFIX = "/device:GPU:"
HOST_PLANE = "/host:CPU"
METADATA_PLANE = "/host:metadata"
SCOPE_PLANE = "/host:__ScopeRangeCallStack__"
ENVIRONMENT_PLANE = "Task Environment"
"""Holds what the process was started with, so perhaps secrets: nothing is taken but `PROFILE_START`."""

PROFILE_START = "profile_start_time"
"""The stat with the wall clock, in ns since 1970, that the times of all lines count from (`SetSessionTimestamps` in
`xla/tsl/profiler/utils/timestamp_utils.cc`)."""

_SPACE_FIELDS = {1: "planes", 2: "errors", 3: "warnings", 4: "hostnames"}
_PLANE_KINDS = {1: VARINT, 2: BYTES, 3: BYTES, 4: BYTES, 5: BYTES, 6: BYTES}
_LINES = 3
_FIRST = re.compile(rb"[\x12\x1a\x22]|\x0a(?:\x00|[\x80-\xff]{0,9}[\x01-\x7f](?:[\x08\x12\x1a\x22\x2a\x32]|$))")
"""A text or a plane, which is empty or begins with one of its fields."""


class NotXplaneError(ValueError):
    """The bytes are some other file."""


@dataclass(frozen=True)
class Plane:
    """One plane."""

    name: str  # ``/device:GPU:0``
    span: tuple[int, int]  # first and last byte + 1 in the file
    lines: tuple[tuple[int, int], ...]  # where its lines lie
    rest: xplane_pb2.XPlane  # everything but the lines; empty for the planes that are read otherwise or not at all

    @cached_property
    def stat_ids(self) -> Mapping[str, int]:
        """Stat metadata ids by name."""
        return {item.name: identity for identity, item in self.rest.stat_metadata.items()}

    def stat_value(self, name: str) -> int | None:
        """The integer value of a stat of the plane itself."""
        stat = self._stat(name)
        return None if stat is None else int(stat.int64_value or stat.uint64_value)

    def stat_word(self, name: str) -> str:
        """The string value of a stat of the plane itself; empty without."""
        stat = self._stat(name)
        return "" if stat is None else stat.str_value

    def _stat(self, name: str) -> xplane_pb2.XStat | None:
        names = self.rest.stat_metadata
        return next((stat for stat in self.rest.stats if names[stat.metadata_id].name == name), None)


@dataclass(frozen=True)
class Space:
    """One file: its planes, the host it was recorded on, and what the profiler complained of."""

    planes: tuple[Plane, ...]
    hostname: str
    messages: tuple[str, ...]


def may_begin(head: bytes) -> bool:
    """Whether a serialized XSpace may begin with these bytes."""
    return _FIRST.match(head) is not None


def read_space(data: bytes) -> Space:
    """The planes of a serialized XSpace.

    Raises:
        NotXplaneError: it is something else.
        DamagedError: it is cut short or overwritten.
    """
    planes: list[Plane] = []
    texts: dict[str, list[str]] = {name: [] for name in _SPACE_FIELDS.values()}
    try:
        for number, kind, start, end, _ in fields(data, 0, len(data)):
            if number not in _SPACE_FIELDS or kind != BYTES:
                raise NotXplaneError
            if number == 1:
                planes.append(_plane(data, start, end))
            else:
                texts[_SPACE_FIELDS[number]].append(data[start:end].decode(errors="replace"))
    except DamagedError:
        if not planes and not _begins_with_plane(data):
            raise NotXplaneError from None
        raise
    if not planes:
        raise NotXplaneError
    hostname = texts["hostnames"][0] if texts["hostnames"] else ""
    return Space(tuple(planes), hostname, tuple(texts["errors"] + texts["warnings"]))


def _begins_with_plane(data: bytes) -> bool:
    """Whether the first bytes begin an XPlane's id or name; other files that were cut short do not."""
    head = re.match(
        rb"\x0a[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?\x12.([/A-Z#])", data[:64], re.S
    )
    return head is not None


def _plane(data: bytes, start: int, end: int) -> Plane:
    name = ""
    lines: list[tuple[int, int]] = []
    rest: list[bytes] = []
    kept_from = start
    for number, kind, value, after, begin in fields(data, start, end):
        if _PLANE_KINDS.get(number, kind) != kind:
            raise NotXplaneError
        if number == 2:
            name = data[value:after].decode(errors="replace")
            if name in (ENVIRONMENT_PLANE, SCOPE_PLANE):
                return Plane(name, (start, end), (), xplane_pb2.XPlane())
        elif number == _LINES:
            lines.append((value, after))
            rest.append(data[kept_from:begin])
            kept_from = after
    rest.append(data[kept_from:end])
    try:
        return Plane(name, (start, end), tuple(lines), xplane_pb2.XPlane.FromString(b"".join(rest)))
    except DecodeError:
        raise DamagedError(f"the metadata of plane {name!r} at byte {start:,} cannot be read") from None


def profile_start_ns(space: Space, data: bytes) -> int | None:
    """The wall clock when the times of lines are 0, in ns since 1970; None where the profiler did not write it."""
    for plane in space.planes:
        if plane.name == ENVIRONMENT_PLANE:
            try:
                read = xplane_pb2.XPlane.FromString(data[slice(*plane.span)])
            except DecodeError:
                return None
            names = {item.id: item.name for item in read.stat_metadata.values()}
            found = (stat.uint64_value for stat in read.stats if names.get(stat.metadata_id) == PROFILE_START)
            return next((int(value) for value in found if value), None)
    return None


def embedded_hlo(plane: Plane) -> dict[ModuleKey, bytes]:
    """HloProtos of ``/host:metadata``: one per event metadata, in any of its stats; it is named ``MODULE(ID)``."""
    found: dict[ModuleKey, bytes] = {}
    for item in plane.rest.event_metadata.values():
        for stat in item.stats:
            if not stat.bytes_value:
                continue
            named = re.fullmatch(r"(.*)\((\d+)\)", item.name, re.S)
            if named is not None:
                found[ModuleKey(named[1], int(named[2]))] = stat.bytes_value
            else:
                try:
                    module = hlo_pb2.HloProto.FromString(stat.bytes_value).hlo_module
                except DecodeError:
                    continue
                found[ModuleKey(module.name or item.name, module.id or None)] = stat.bytes_value
    return found


T = TypeVar("T")
MAX_ID = 1 << 24  # bound on metadata ids, which index tables here; writers number them from 1


def code_of(codes: dict[T, int], key: T) -> int:
    """The running number of a key, a new one where it is new."""
    return codes.setdefault(key, len(codes))


@dataclass
class Strings:
    """String stats of one plane as codes: references are looked up once each."""

    plane: Plane
    codes: dict[str, int]
    table: npt.NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        largest = max(self.plane.rest.stat_metadata, default=0)
        if not 0 <= largest < MAX_ID:
            raise DamagedError(f"plane {self.plane.name!r} has stat metadata number {largest:,}")
        self.table = np.full(largest + 2, -2, np.int32)

    def codes_of(self, stat: Stat, data: bytes) -> npt.NDArray[np.int32]:
        """int32[n], -1 where the event has no such string."""
        out = np.full(len(stat.form), -1, np.int32)
        is_reference = stat.form == REFERENCE
        everywhere = bool(is_reference.all())
        references = np.minimum(stat.value if everywhere else stat.value[is_reference], len(self.table) - 1).clip(0)
        found: npt.NDArray[np.int32] = self.table[references]
        if (found == -2).any():
            for reference in distinct(references[found == -2]).tolist():
                name = self.plane.rest.stat_metadata[reference].name if reference < len(self.table) - 1 else ""
                self.table[reference] = code_of(self.codes, name) if name else -1
            found = self.table[references]
        if everywhere:
            return found
        out[is_reference] = found
        for i in np.flatnonzero(stat.form == TEXT).tolist():
            text = data[int(stat.value[i]) : int(stat.end[i])].decode(errors="replace")
            out[i] = code_of(self.codes, text) if text else -1
        return out
