"""HLO modules from files: one module, those of a folder, or all dumps of a program with LHS's view.

Protocol buffers and HLO text are imported only when a dump is read: the imports take a tenth of a
small conversion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pgle.errors import UserError, choices
from pgle.files import (
    AnyPath,
    as_path,
    check_listable,
    read_bytes,
    read_head,
    sha256,
)
from pgle.next import PROFILE, Next
from pgle.xla.hlo.module import MAX_HLO_BYTES, Module

_OPTIMIZED = re.compile(r"after_optimizations(\.hlo\.pb|\.txt)(\.xz|\.gz)?$")
_HLO_PROTO = re.compile(r"(\.hlo\.pb|\.hlo_proto\.pb)(\.xz|\.gz)?$")
_TEXT = re.compile(r"\.(txt|hlo)(\.xz|\.gz)?$")
_SCHEDULE = re.compile(r"\.schedule\.(txt|pb)(\.xz|\.gz)?$")


def is_hlo(path: AnyPath) -> bool:
    """Whether a name belongs to an HLO dump: protobuf or text."""
    return bool(
        _HLO_PROTO.search(path.name) or _TEXT.search(path.name)
    ) and not _SCHEDULE.search(path.name)


def read_module(path: AnyPath) -> Module:
    """Read one HLO module from a file: ``.hlo.pb``, text (``.txt``, ``.hlo``) or a schedule dump.

    The file may be compressed (``.xz``, ``.gz``).
    """
    if _SCHEDULE.search(path.name):
        # imports protocol buffers, which most answers do not need
        from pgle.xla.hlo.schedule_dump import read_schedule_dump

        return read_schedule_dump(path).module
    return _module(_read(path), path)


def _read(path: AnyPath) -> bytes:
    """Return the content of a file. A text that cannot be HLO raises after its head is read."""
    if _TEXT.search(path.name) and (head := read_head(path, 4096)):
        from pgle.xla.hlo.text import check_begin

        check_begin(head, str(path))
    return read_bytes(path, max_bytes=MAX_HLO_BYTES)


def _module(data: bytes, path: AnyPath) -> Module:
    """Read a module from a dump in text or binary form, by the name of the file."""
    if not data:
        raise UserError(
            "empty file", where=path, remedy="dump it again with --xla_dump_to"
        )
    if _TEXT.search(path.name):
        from pgle.xla.hlo.text import module_from_text

        number = re.match(r"module_(\d+)\.", path.name)
        return module_from_text(
            data, str(path), program_id=None if number is None else int(number.group(1))
        )
    from pgle.xla.hlo.proto import module_from_bytes

    return module_from_bytes(data, str(path))


def read_modules(path: AnyPath) -> tuple[Module, ...]:
    """Return the HLO modules of a file or of dump directories.

    Args:
        path: a file as for `read_module`, or a directory. In a directory, at any depth, each
            after-optimizations module is read once. The proto wins over text. If several processes
            compiled one module (name, program id and fingerprint), one dump is read.

    Returns:
        The modules in the order of their paths, dumps numbered ``module_9`` before ``module_10``.
    """
    if not path.is_dir():
        return (read_module(path),)
    chosen: dict[str, AnyPath] = {}
    for file in _files(path):
        stem = _TEXT.sub("", _HLO_PROTO.sub("", str(file)))
        if stem not in chosen or _HLO_PROTO.search(file.name):
            chosen[stem] = file
    if not chosen:
        raise UserError(
            "no HLO dump (*after_optimizations.hlo.pb or .txt) in this directory",
            where=path,
            remedy="run with XLA_FLAGS=--xla_dump_to=DIR --xla_dump_hlo_as_proto, "
            f"or use `{PROFILE}`",
        )
    modules: dict[tuple[str, int | None, str], Module] = {}
    seen: set[str] = set()
    for file in chosen.values():
        data = _read(file)
        digest = sha256(data)
        if digest in seen:
            continue
        seen.add(digest)
        module = _module(data, file)
        modules.setdefault(
            (module.name, module.program_id, module.fingerprint or digest), module
        )
    return tuple(modules.values())


def read_scheduled(path: AnyPath) -> list[Module]:
    """Return the modules of `read_modules` that hold a schedule for a GPU."""
    scheduled = [module for module in read_modules(path) if module.is_scheduled]
    found = [
        module
        for module in scheduled
        if ".cpu_after_optimizations" not in module.source
    ]
    if not found:
        what = (
            "compiled for CPUs, which says nothing of a GPU's schedule"
            if scheduled
            else "no module is scheduled yet"
        )
        source = as_path(scheduled[0].source).parent if scheduled else path
        raise UserError(
            what,
            where=path,
            remedy=f"compile it for a GPU: {Next.of('rehearse', source)}",
        )
    return found


def _files(folder: AnyPath) -> Iterable[AnyPath]:
    """Return the HLO files of a folder: optimized modules, or any ``.hlo.pb`` if there are none."""
    check_listable(folder)
    files: list[AnyPath] = [
        file
        for file in folder.rglob("*")
        if _HLO_PROTO.search(file.name) or _TEXT.search(file.name)
    ]
    optimized = [file for file in files if _OPTIMIZED.search(file.name)]
    others = [
        file
        for file in files
        if _HLO_PROTO.search(file.name) and ".before_" not in file.name
    ]
    return sorted(optimized or others, key=_numbered)


def _numbered(path: AnyPath) -> tuple[str, list[tuple[int, str]]]:
    """Return a key that orders the numbers in the names of files by value."""
    parts = re.split(r"(\d+)", path.name)
    return str(path.parent), [_sort_key(part) for part in parts]


def _sort_key(part: str) -> tuple[int, str]:
    """Return a key that orders numbers by value, and texts before them."""
    return (int(part), "") if part.isdigit() else (-1, part)


_FINGERPRINT = re.compile(
    rb"(?:\x0a\x16fingerprint_before_lhs\x12\x20|fingerprint_before_lhs=\")(?P<hex>[0-9a-f]{32})"
)


def fingerprint_of(dump: AnyPath) -> str:
    """Return the ``fingerprint_before_lhs`` of a dump, HloProto or HLO text; empty if it has none.

    It is found in the raw bytes (in a protobuf as map entry: key field 1, value field 2). So a dump
    of any size costs one search.
    """
    found = _FINGERPRINT.search(read_bytes(dump, max_bytes=MAX_HLO_BYTES))
    return found["hex"].decode() if found else ""


@dataclass(frozen=True)
class Dumps:
    """The HLO dumps of a program."""

    paths: tuple[AnyPath, ...] = ()  # the given files and directories
    # optimized modules in the order of their paths, perhaps of several processes
    modules: tuple[Module, ...] = ()
    # schedule dumps by module name
    schedules: Mapping[str, AnyPath] = field(default_factory=dict)

    def lhs_module(self, name: str) -> Module | None:
        """Return a module as LHS saw it, from its schedule dump; None if absent."""
        if name not in self.schedules:
            return None
        file = self.schedules[name]
        given = (module for module in self.modules if module.source == str(file))
        return next(given, None) or read_module(file)


def read_dumps(paths: Sequence[AnyPath]) -> Dumps:
    """Read the dumps in files and directories, and LHS's schedule dumps in their folders."""
    if not paths:
        return Dumps()
    from pgle.xla.hlo.schedule_dump import find_schedule_dumps

    modules: list[Module] = []
    for path in paths:
        modules += read_modules(path)
    schedules: dict[str, AnyPath] = {}
    for path in paths:
        schedules = {**find_schedule_dumps(path), **schedules}
    return Dumps(tuple(paths), tuple(modules), schedules)


def no_match(pattern: str, names: Iterable[str]) -> UserError:
    """Return the error for a ``--module`` pattern that matches no module of a dump."""
    remedy = choices(pattern, names)
    return UserError(
        "no module of the dump matches", where=f"--module {pattern}", remedy=remedy
    )
