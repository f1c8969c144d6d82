"""Cost profiles as files: the text and binary forms that XLA reads, and the sidecar with what they cannot say.

XLA reads it with C++ protobuf's TextFormat. What is usual goes through one regular expression; everything else that
TextFormat knows (single quotes, joined strings, escapes, lists, ``<>``) through protobuf's own Python parser, after a
check of the lexical rules where C++ is the stricter of the two. Compared with the compiler on some hundred odd texts,
nothing passes here that it refuses; of what it takes, only ``- 3`` (a blank after the sign), surrogate escapes and
names that are not UTF-8 do not pass.
Source of the grammar: https://protobuf.dev/reference/protobuf/textformat-spec/ and C++ ``io/tokenizer.h``.

XLA does not check a profile. If it cannot read a file, or does not know its suffix, it writes at most one log line and
continues without the profile. So pgle refuses files that XLA would not read, and gives the reason.
Format: ``ProfiledInstructionsProto`` of ``profiled_instructions.proto`` (openxla/xla, third_party/tsl/tsl/profiler).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from pgle.costs.profile.sidecar import Sidecar, SidecarError, described, read_sidecar, sidecar
from pgle.costs.profile.text import Entry, TextNameError, TextSyntaxError, decode_entries, encode_entries
from pgle.costs.profile.value import Cost, Ends, Origin, Profile, join_name, split_name
from pgle.errors import UserError
from pgle.files import AnyPath, read_bytes
from pgle.next import CONVERT, CONVERT_ALL, SHOW

if TYPE_CHECKING:
    from pgle.xla.protos.profiled_instructions_pb2 import ProfiledInstructionsProto


SUFFIXES = (".pbtxt", ".pb")
"""What XLA recognises, case-sensitively; since jaxlib 0.5.1 any other name is ignored without a message."""

MAX_PROFILE_BYTES = 256 << 20  # four million costs; the largest published profiles hold under a thousand.

_FINGERPRINT_FILE = re.compile(r"([0-9a-f]{32})(\.pbtxt|\.pb)")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class ProfileFile:
    """A profile and its sidecar as read."""

    path: AnyPath  # of the profile
    entries: Sequence[Entry]  # what it holds
    sidecar: Sidecar | None  # what the sidecar says; None where there is none, or none of this profile
    warnings: tuple[str, ...]  # one line each, without the sidecar's warnings


def read_profile(path: AnyPath) -> Profile:
    """The profile in a ``.pbtxt`` or ``.pb`` file, with its sidecar ``PATH.json`` where that belongs to it.

    A directory is read as XLA reads one: ``FINGERPRINT.pbtxt``, else ``FINGERPRINT.pb``, each for its own module.

    Raises:
        UserError: XLA would not read it, or it holds no cost; the message says what XLA would have done.
    """
    return _read_directory(path) if path.is_dir() else profile_of(read_file(path))


def profile_of(file: ProfileFile) -> Profile:
    """A file as a value."""
    costs = _costs(file.entries)
    if file.sidecar is None:
        return Profile(costs, warnings=file.warnings)
    try:
        profile = described(costs, file.sidecar)
    except SidecarError as error:
        return Profile(costs, warnings=(*file.warnings, _left_aside(file.path, error)))
    return replace(profile, warnings=(*file.warnings, *profile.warnings))


def read_file(path: AnyPath) -> ProfileFile:
    """What `read_profile` makes a `Profile` of, of a single file.

    Raises:
        UserError: as there.
    """
    if not path.exists():
        raise UserError("no such file", where=path, remedy="check the path")
    check_suffix(path, remedy=f"rename it if it is a profile; a trace becomes one by `{CONVERT}`")
    data = read_bytes(path, max_bytes=MAX_PROFILE_BYTES)
    file = decode_profile(data, path)
    sidecar = sidecar_path(path)
    if not sidecar.exists():
        return file
    try:
        found = read_sidecar(file.entries, data, read_bytes(sidecar, max_bytes=8 * MAX_PROFILE_BYTES))
    except SidecarError as error:
        return replace(file, warnings=(*file.warnings, _left_aside(path, error)))
    return replace(file, sidecar=found)


def _left_aside(path: AnyPath, error: SidecarError) -> str:
    return f"{sidecar_path(path)}: {error}; its details are left aside"


def decode_profile(data: bytes, where: AnyPath) -> ProfileFile:
    """What the bytes of a file hold, without sidecar; the suffix of `where` says which form.

    Raises:
        UserError: XLA would not read it, or it holds no cost.
    """
    if not data:
        raise UserError("empty file, which XLA takes for a profile without costs", where=where, remedy=_AGAIN)
    entries, notes = _decode_text(data, where) if where.suffix == ".pbtxt" else _decode_binary(data, where)
    if not entries:
        raise UserError("holds no costs; XLA would say it uses it and find nothing", where=where, remedy=_AGAIN)
    return ProfileFile(where, entries, None, tuple(notes))


def encode_profile(profile: Profile, suffix: str) -> bytes:
    """The form that `suffix` (one of `SUFFIXES`) names: text, one cost per line, ASCII; or binary. Equal profiles give
    equal bytes.

    Raises:
        UserError: a cost is negative, not finite or over `MAX_COST_US`; XLA would take it as it is.
    """
    for cost in profile.costs:
        if not cost.is_valid:
            what = f"the cost of {cost.full_name} is {cost.cost_us} µs, which is no time, so the profile is not written"
            raise UserError(what, remedy=f"see what it was made from: {SHOW}")
    if suffix == ".pbtxt":
        return encode_entries((cost.full_name, cost.cost_us) for cost in profile.costs).encode()
    from pgle.xla.protos.profiled_instructions_pb2 import ProfiledInstructionsProto

    message = ProfiledInstructionsProto()
    for cost in profile.costs:
        message.costs.add(name=cost.full_name, cost_us=cost.cost_us)
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def profile_files(path: AnyPath, profile: Profile) -> dict[AnyPath, bytes | str]:
    """What to write for a profile: the file itself in the form its suffix names, and its sidecar.

    Raises:
        UserError: XLA would ignore a file of that name, or a cost is no time.
    """
    check_suffix(path)
    data = encode_profile(profile, path.suffix)
    return {path: data, sidecar_path(path): sidecar(profile, data)}


def sidecar_path(path: AnyPath) -> AnyPath:
    """The path of a profile's sidecar: ``PATH.json``."""
    return path.with_name(f"{path.name}.json")


def check_suffix(path: AnyPath, *, remedy: str = "") -> None:
    """Raise `UserError` where XLA would not recognise a file of that name as a profile."""
    if path.suffix in SUFFIXES:
        return
    stem = path.name
    for _ in path.suffixes:
        stem = stem.removesuffix(PurePath(stem).suffix)
    raise UserError(
        "not a .pbtxt or .pb file; XLA ignores profiles of any other name, without a word",
        where=path,
        remedy=remedy or f"name it {stem}.pbtxt",
    )


_AGAIN = f"write it again with `{CONVERT}`"


def _costs(entries: Iterable[Entry]) -> tuple[Cost, ...]:
    rest = Cost("", 0.0, origin=Origin.UNKNOWN)[3:]
    return tuple([
        Cost(written, cost_us, "", *rest)
        if "::" not in written
        else Cost(split_name(written)[1], cost_us, split_name(written)[0], *rest)
        for written, cost_us in entries
    ])  # fmt: skip


def _decode_text(data: bytes, where: AnyPath) -> tuple[Sequence[Entry], list[str]]:
    refused = "XLA would not parse it and would go on without a profile"
    if data.startswith(_BOM):
        raise UserError(f"begins with a byte order mark: {refused}", where=where, remedy="save it without BOM")
    try:
        text = data.decode()
        entries, latencies = decode_entries(text)
    except (UnicodeDecodeError, TextSyntaxError) as error:
        if _binary(data) is not None:
            remedy = f"rename it to {where.stem}.pb"
            raise UserError(f"binary profile in a .pbtxt file: {refused}", where=where, remedy=remedy) from None
        if isinstance(error, TextNameError):
            raise UserError(f"{error}, so no instruction is called that", where=where, remedy=_AGAIN) from None
        reason = str(error) if isinstance(error, TextSyntaxError) else f"not text (byte {error.start})"
        raise UserError(f"{reason} ({refused})", where=where, remedy=_AGAIN) from None
    return entries, [f"{where}: {latencies} latencies, which XLA drops"] if latencies else []


def _decode_binary(data: bytes, where: AnyPath) -> tuple[Sequence[Entry], list[str]]:
    message = _parse_binary(data)
    if message is None:
        refused = "XLA would not parse it and would go on without a profile"
        if not _is_text(data):
            raise UserError(f"damaged or truncated profile: {refused}", where=where, remedy=_AGAIN)
        remedy = f"rename it to {where.stem}.pbtxt"
        raise UserError(f"text profile in a .pb file: {refused}", where=where, remedy=remedy)
    known, entries = _binary(data), [(cost.name, cost.cost_us) for cost in message.costs]
    if known is None and not any(name and cost_us for name, cost_us in entries):  # an HLO module has a name first
        what = "another kind of protocol buffer, not a cost profile (XLA would take it for an empty one)"
        raise UserError(what, where=where, remedy=f"if it is a trace, give it to `{CONVERT}`")
    notes = [] if known is not None else [f"{where}: holds fields that are not a cost profile's; XLA ignores them"]
    if message.latencies:
        notes.append(f"{where}: {len(message.latencies)} latencies, which XLA drops")
    return entries, notes


def _is_text(data: bytes) -> bool:
    """Whether `data` is a profile in text form."""
    try:
        return bool(decode_entries(data.decode())[0])
    except (UnicodeDecodeError, TextSyntaxError):
        return False


def _parse_binary(data: bytes) -> ProfiledInstructionsProto | None:
    from google.protobuf.message import DecodeError  # text profiles do without: 6 ms of every command's start

    from pgle.xla.protos.profiled_instructions_pb2 import ProfiledInstructionsProto

    message = ProfiledInstructionsProto()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    return message


def _binary(data: bytes) -> ProfiledInstructionsProto | None:
    """The message where `data` is nothing but a cost profile: almost any bytes parse when unknown fields may be."""
    message = _parse_binary(data)
    if message is None:
        return None
    size = message.ByteSize()
    message.DiscardUnknownFields()
    return message if message.ByteSize() == size else None


def _read_directory(path: AnyPath) -> Profile:
    found: dict[str, AnyPath] = {}
    for file in sorted(path.iterdir(), key=lambda item: item.name):
        match = _FINGERPRINT_FILE.fullmatch(file.name)
        if match is not None and (match[1] not in found or match[2] == ".pbtxt"):
            found[match[1]] = file
    if not found:
        what = "no FINGERPRINT.pbtxt or FINGERPRINT.pb in this directory"
        of_run = path / "profile.pbtxt"
        itself = f"the profile file itself{f', {of_run}' if of_run.is_file() else ''}"
        raise UserError(what, where=path, remedy=f"name {itself}, or `{CONVERT_ALL}`")
    costs: list[Cost] = []
    warnings: list[str] = []
    provenance: dict[str, object] = {}
    occurrences: dict[str, Mapping[str, float]] = {}
    ends: dict[str, tuple[Ends, ...]] = {}
    for fingerprint, file in found.items():
        profile = read_profile(file)
        costs += (cost._replace(fingerprint=cost.fingerprint or fingerprint) for cost in profile.costs)
        warnings += profile.warnings
        provenance[file.name] = dict(profile.provenance)
        for name, table in profile.occurrences.items():
            occurrences[name if "::" in name else join_name(fingerprint, name)] = table
        ends |= {meant_for or fingerprint: table for meant_for, table in profile.ends.items()}
    return Profile(tuple(costs), provenance, tuple(warnings), occurrences, ends)
