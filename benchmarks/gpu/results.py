"""The result of a part: rows and recordings in one archive, which is whole at every moment."""

from __future__ import annotations

import io
import json
import lzma
import os
import re
import socket
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pgle.run.ask.jax_private import without_fields

MOST_BYTES = 16 << 20
"""Of an archive. A recording that would make it larger is left out and named."""

QUICK = 1  # preset of xz: a trace takes a seventh of the time of the usual one
SPARE = 1 << 20  # bytes for the rows
MOST_RECORDING = 256 << 20  # bytes of a recording before compression
RESULT = "result.json"
LEAST_WORD = 6  # shorter words may be parts of others
COMMON = {"localhost", "root", "/root", "/usr", "/usr/local", "/", ""}
"""What says nothing of a machine."""
HOSTNAMES = 4  # field of an XSpace (tsl/profiler/protobuf/xplane.proto)


@dataclass(frozen=True)
class Row:
    """One thing that was measured."""

    name: str  # unique in its part
    kind: str = ""  # rows of one kind are summed up together
    us: float | None = (
        None  # median, microseconds per execution; None if it was not measured
    )
    range_us: tuple[float, float] | None = (
        None  # the least and the most of its measurements
    )
    how: str = ""  # how it was measured
    memory_bytes: int | None = (
        None  # peak of the device while it ran; None: an earlier row's is higher
    )
    planned_bytes: int | None = None  # what XLA planned for one execution
    base: str = ""  # the row of which this is an edit
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""  # one line; empty if it was measured


@dataclass(frozen=True)
class Header:
    """What all rows of an archive have in common."""

    part: str
    simulated: bool  # whether the times are of the simulated GPU
    target: str  # name of the GPU by which pgle knows it
    chip: str  # name of the GPU as the driver gives it
    jax: str  # versions of jax and what it brings, in words


class Results:
    """Collects rows, and writes the archive whole after each."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path, self.header = path, header
        self.rows: list[Row] = []
        self.recordings: dict[str, bytes] = {}
        self.left_out: set[str] = set()
        self.private = private_words()

    def add(self, row: Row, recordings: Mapping[str, bytes] | None = None) -> None:
        """Keep a row with its recordings, by file name, and write the archive."""
        self.rows.append(row)
        for name, data in (recordings or {}).items():
            self.keep(name, data)
        self.write(complete=False)

    def keep(self, name: str, data: bytes, most_bytes: int = MOST_BYTES) -> None:
        """Compress a recording, or leave it out if the archive becomes too large; `write` writes
        it.
        """
        name = scrub(name.encode(), self.private).decode()
        packed = (
            b""
            if len(data) > MOST_RECORDING
            else lzma.compress(self._scrubbed(name, data), preset=QUICK)
        )
        others = {
            kept: each for kept, each in self.recordings.items() if kept != f"{name}.xz"
        }
        there = sum(map(len, others.values()))
        if not packed or there + len(packed) > most_bytes - SPARE:
            self.left_out.add(name)
        else:
            self.recordings[f"{name}.xz"] = packed

    def _scrubbed(self, name: str, data: bytes) -> bytes:
        return scrub(data, self.private, is_xplane=name.endswith(".xplane.pb"))

    def write(self, *, complete: bool) -> None:
        """Write what there is under a temporary name, and rename it."""
        document = asdict(self.header) | {
            "complete": complete,
            "rows": [asdict(row) for row in self.rows],
            "left_out": sorted(self.left_out),
        }
        text = scrub(json.dumps(document, indent=1).encode(), self.private)
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(zipfile.ZipInfo(RESULT), text)
            for name, data in self.recordings.items():
                archive.writestr(zipfile.ZipInfo(name), data)
        write_whole(self.path, stream.getvalue())


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is either the old one or the new one at every moment."""
    temporary = path.with_name("unfinished.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


@dataclass(frozen=True)
class Archive:
    """A result as it is read."""

    header: Header
    rows: tuple[Row, ...]
    complete: bool  # whether the part came to its end
    recordings: Mapping[str, bytes]  # decompressed, by file name


def read_archive(path: Path) -> Archive:
    """Read an archive that `Results` wrote."""
    with zipfile.ZipFile(path) as archive:
        document = json.loads(archive.read(RESULT))
        names = [name for name in archive.namelist() if name.endswith(".xz")]
        recordings = {
            name.removesuffix(".xz"): lzma.decompress(archive.read(name))
            for name in names
        }
    header = Header(**{name: document[name] for name in Header.__dataclass_fields__})
    rows = tuple(_row(**row) for row in document["rows"])
    return Archive(header, rows, document["complete"], recordings)


def _row(range_us: list[float] | None = None, **others: Any) -> Row:
    """A row as JSON has it."""
    least_and_most = None if range_us is None else (range_us[0], range_us[1])
    return Row(range_us=least_and_most, **others)


def private_words() -> tuple[bytes, ...]:
    """Names of this machine, of its user and of its folders: what no result may hold, the longest
    first.
    """
    host = socket.gethostname()
    words = {host, host.split(".")[0], sys.prefix, str(Path.home()), str(Path.cwd())}
    words |= {os.environ.get(name, "") for name in ("USER", "LOGNAME", "PGLE_GPU_WORK")}
    words |= set(os.environ.get("PGLE_GPU_PRIVATE", "").split("\n"))
    longest_first = sorted(words - COMMON, key=len, reverse=True)
    return tuple(word.encode() for word in longest_first if word)


def scrub(data: bytes, private: tuple[bytes, ...], *, is_xplane: bool = False) -> bytes:
    """Put x in the place of private words. Lengths stay, so protocol buffers can still be read.

    In text a short word counts only if it is not part of another. In binary data what precedes a
    word may be its length, and short words may be there by chance: only an xplane's list of hosts
    is known to hold them.
    """
    is_text = b"\0" not in data
    if is_xplane:
        data = without_fields(data, {HOSTNAMES: None})
    for word in private:
        pattern = re.escape(word)
        if len(word) < LEAST_WORD and not is_text:
            continue
        if len(word) < LEAST_WORD:
            pattern = rb"(?<![A-Za-z0-9])" + pattern + rb"(?![A-Za-z0-9])"
        data = re.sub(pattern, b"x" * len(word), data)
    return data
