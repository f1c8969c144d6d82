"""Shared libraries of Linux on x86-64: what a library needs from others, and how to make one
without a compiler.

Format: "System V Application Binary Interface", chapters 4 and 5, and its AMD64 supplement; symbol
versions as in the Linux Standard Base, "Symbol Versioning". Standard library only, since the
compiler's process may be another Python than ours.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from pgle.errors import UserError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SEGMENT = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_ENTRY = struct.Struct("<qQ")  # Elf64_Dyn
_NEED = struct.Struct("<HHIII")  # Elf64_Verneed
_NEED_VERSION = struct.Struct("<IHHII")  # Elf64_Vernaux
_VERSION = struct.Struct("<HHHHIII")  # Elf64_Verdef
_VERSION_NAME = struct.Struct("<II")  # Elf64_Verdaux
_NUMBER = struct.Struct("<H")  # version of a symbol

_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little endian, version 1
_X86_64, _SHARED = 62, 3
_GLOBAL, _FUNCTION = 1, 2
_READ, _WRITE, _EXECUTE = 4, 2, 1
_PAGE = 4096
_PROT = mmap.PROT_READ
_HIDDEN = 0x8000
_DEFINED = 1  # any section number; it only says that the symbol is defined

_SEGMENTS = 4
_CODE_AT = _HEADER.size + _SEGMENTS * _SEGMENT.size
_MOVE, _RETURN = b"\xb8", b"\xc3"  # mov eax, NUMBER; ret
_ALIGNED = 16


class _Section(IntEnum):
    """Types of sections."""

    DYNAMIC = 6
    SYMBOLS = 11
    NEEDED_VERSIONS = 0x6FFFFFFE
    SYMBOL_VERSIONS = 0x6FFFFFFF


class _Segment(IntEnum):
    """Types of segments."""

    LOAD = 1
    DYNAMIC = 2
    STACK = 0x6474E551


class _Tag(IntEnum):
    """Kinds of entries in the dynamic section."""

    NEEDED = 1
    HASHES = 4
    TEXTS = 5
    SYMBOLS = 6
    TEXTS_SIZE = 10
    SYMBOL_SIZE = 11
    SONAME = 14
    SYMBOL_VERSIONS = 0x6FFFFFF0
    VERSIONS = 0x6FFFFFFC
    VERSION_COUNT = 0x6FFFFFFD


_Data: TypeAlias = "bytes | mmap.mmap"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a shared library needs from others."""

    libraries: tuple[str, ...]  # libraries for the loader, in its order
    # required symbols with their versions, by the library that defines the version; ``""`` holds
    # symbols without a version, which any library may define
    symbols: Mapping[str, Mapping[str, str]]


def read_needs(path: Path) -> Needs:
    """Return what a shared library needs, except weak symbols, which a loader may leave undefined.

    Raises:
        UserError: the file is not a shared library for x86-64.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=_PROT) as data:
            return _needs(data)
    except (struct.error, IndexError, KeyError, ValueError):
        raise UserError(
            "not a shared library for Linux on x86-64",
            where=path,
            remedy="install the plugin again",
        ) from None


def _needs(data: _Data) -> Needs:
    header = _HEADER.unpack_from(data)
    if not header[0].startswith(_MAGIC) or header[2] != _X86_64:
        raise IndexError
    offset, size, count = header[6], header[11], header[12]
    sections = [_SECTION.unpack_from(data, offset + size * n) for n in range(count)]
    found = {section[1]: section for section in sections}
    dynamic, symbols = found[_Section.DYNAMIC], found[_Section.SYMBOLS]
    texts = sections[symbols[6]][4]
    libraries = [
        _text(data, sections[dynamic[6]][4] + value)
        for tag, value in _entries(data, dynamic)
        if tag == _Tag.NEEDED
    ]
    versions = (
        dict(_versions(data, found[_Section.NEEDED_VERSIONS], texts))
        if _Section.NEEDED_VERSIONS in found
        else {}
    )
    wanted: dict[str, dict[str, str]] = {}
    for number in range(1, symbols[5] // _SYMBOL.size):
        place = symbols[4] + number * _SYMBOL.size
        name, kind, _, section, _, _ = _SYMBOL.unpack_from(data, place)
        if section or kind >> 4 != _GLOBAL:
            continue
        library, version = "", ""
        if _Section.SYMBOL_VERSIONS in found:
            at = found[_Section.SYMBOL_VERSIONS][4] + _NUMBER.size * number
            (own,) = _NUMBER.unpack_from(data, at)
            library, version = versions.get(own & ~_HIDDEN, ("", ""))
        wanted.setdefault(library, {})[_text(data, texts + name)] = version
    return Needs(tuple(libraries), MappingProxyType(wanted))


def _entries(data: _Data, section: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (tag, value) of the dynamic section's entries."""
    for place in range(section[4], section[4] + section[5], _ENTRY.size):
        yield _ENTRY.unpack_from(data, place)


def _versions(
    data: _Data, section: Sequence[int], texts: int
) -> Iterator[tuple[int, tuple[str, str]]]:
    """The number of each version that is needed, the library that has it, and its name."""
    place = section[4]
    while True:
        _, count, library, first, following = _NEED.unpack_from(data, place)
        at = place + first
        for _ in range(count):
            _, _, number, name, step = _NEED_VERSION.unpack_from(data, at)
            yield number, (_text(data, texts + library), _text(data, texts + name))
            at += step
        if not following:
            return
        place += following


def _text(data: _Data, place: int) -> str:
    return data[place : data.find(b"\0", place)].decode()


@dataclass(frozen=True, slots=True)
class Function:
    """A function that only returns a number."""

    name: str
    returns: int  # 0 to 2^31 - 1
    version: str = ""  # version of the symbol; empty: none


def made_library(soname: str, functions: Sequence[Function], label: str) -> bytes:
    """Make a shared library; return the bytes of its ELF file.

    Args:
        soname: the name that other libraries use.
        functions: all functions of the library.
        label: a text for people who inspect the file.
    """
    texts = _Texts(label)
    soname_at = texts.add(soname)
    code = b""
    places: dict[int, int] = {}
    for value in sorted({function.returns for function in functions}):
        places[value] = _CODE_AT + len(code)
        code += (_MOVE + struct.pack("<i", value) + _RETURN).ljust(_ALIGNED, b"\xcc")
    symbols = bytes(_SYMBOL.size)
    kind = _GLOBAL << 4 | _FUNCTION
    for function in functions:
        name = texts.add(function.name)
        place = places[function.returns]
        symbol = {
            "name": name,
            "info": kind,
            "other": 0,
            "section": _DEFINED,
            "value": place,
            "size": _ALIGNED,
        }
        symbols += _SYMBOL.pack(*symbol.values())
    versions = sorted({function.version for function in functions} - {""})
    version_table = _version_table([soname, *versions], texts)
    parts = {
        _Tag.SYMBOLS: symbols,
        _Tag.HASHES: _hash_table([function.name for function in functions]),
        _Tag.SYMBOL_VERSIONS: _version_numbers(functions, versions),
        _Tag.VERSIONS: version_table,
        _Tag.TEXTS: texts.data,
    }
    entries = [
        (_Tag.SONAME, soname_at),
        (_Tag.TEXTS_SIZE, len(texts.data)),
        (_Tag.SYMBOL_SIZE, _SYMBOL.size),
        (_Tag.VERSION_COUNT, 1 + len(versions)),
    ]
    tables = code
    for tag, part in parts.items():
        entries.append((tag, _CODE_AT + len(tables)))
        tables += part.ljust(_up(len(part), _ALIGNED), b"\0")
    end = _CODE_AT + len(tables)
    dynamic_at = _up(end, _PAGE)
    dynamic = b"".join(_ENTRY.pack(*entry) for entry in (*entries, (0, 0)))
    size = len(dynamic)
    segments = (
        _segment(_Segment.LOAD, _READ | _EXECUTE, 0, end),
        _segment(_Segment.LOAD, _READ | _WRITE, dynamic_at, size),
        _segment(_Segment.DYNAMIC, _READ | _WRITE, dynamic_at, size),
        _segment(_Segment.STACK, _READ | _WRITE, 0, 0),
    )
    before = b"".join((_header(), *segments, tables))
    return before.ljust(dynamic_at, b"\0") + dynamic


def _up(size: int, unit: int) -> int:
    """Round a size up to whole units."""
    return -(-size // unit) * unit


def _version_numbers(functions: Sequence[Function], versions: Sequence[str]) -> bytes:
    """The number of each symbol's version: 1 is the library itself, 0 the first symbol's."""
    numbers = [0]
    for function in functions:
        named = function.version in versions
        numbers.append(2 + versions.index(function.version) if named else 1)
    return b"".join(_NUMBER.pack(number) for number in numbers)


def _version_table(names: Sequence[str], texts: _Texts) -> bytes:
    """The table of versions that a library defines. The first is the library itself."""
    found = b""
    for number, name in enumerate(names, 1):
        step = _VERSION.size + _VERSION_NAME.size
        following = 0 if number == len(names) else step
        version = {
            "version": 1,
            "is_base": int(number == 1),
            "index": number,
            "names": 1,
            "hash": _hash(name),
            "name_offset": _VERSION.size,
            "next_offset": following,
        }
        found += _VERSION.pack(*version.values())
        found += _VERSION_NAME.pack(texts.add(name), 0)
    return found


class _Texts:
    """Texts that end with a zero byte, and their offsets."""

    def __init__(self, label: str) -> None:
        self.data = b"\0" + label.encode() + b"\0"

    def add(self, text: str) -> int:
        """Add a text, and return its offset."""
        place = len(self.data)
        self.data += text.encode() + b"\0"
        return place


def _hash_table(names: Sequence[str]) -> bytes:
    """The hash table of symbols 1 to n: buckets, and the chain of each."""
    buckets = [0] * max(len(names), 1)
    chains = [0] * (len(names) + 1)
    for number, name in enumerate(names, 1):
        bucket = _hash(name) % len(buckets)
        chains[number] = buckets[bucket]
        buckets[bucket] = number
    words = (len(buckets), len(chains), *buckets, *chains)
    return struct.pack(f"<{len(words)}I", *words)


def _hash(name: str) -> int:
    """The ABI's hash of a symbol's name."""
    found = 0
    for byte in name.encode():
        found = (found << 4) + byte
        high = found & 0xF0000000
        found = (found ^ high >> 24) & ~high
    return found


def _header() -> bytes:
    """The header of a shared library with segments and no sections."""
    header = {
        "ident": _MAGIC.ljust(16, b"\0"),
        "type": _SHARED,
        "machine": _X86_64,
        "version": 1,
        "entry": 0,
        "segments_offset": _HEADER.size,
        "sections_offset": 0,
        "flags": 0,
        "header_size": _HEADER.size,
        "segment_size": _SEGMENT.size,
        "segments": _SEGMENTS,
        "section_size": _SECTION.size,
        "sections": 0,
        "names_section": 0,
    }
    return _HEADER.pack(*header.values())


def _segment(kind: int, access: int, place: int, size: int) -> bytes:
    """A segment whose offset in the file equals its address in memory."""
    segment = {
        "type": kind,
        "flags": access,
        "offset": place,
        "virtual_address": place,
        "physical_address": place,
        "file_size": size,
        "memory_size": size,
        "alignment": _PAGE,
    }
    return _SEGMENT.pack(*segment.values())
