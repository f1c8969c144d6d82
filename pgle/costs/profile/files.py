"""Read and write cost profiles: the text and binary forms that XLA reads, and a sidecar with what
they cannot hold.

XLA reads text with C++ protobuf's TextFormat. pgle reads usual text with one regular expression.
Protobuf's Python parser reads everything else that TextFormat allows: single quotes, joined
strings, escapes, lists, ``<>``. C++ has stricter lexical rules than Python, so pgle checks them
first. About a hundred odd texts were compared with the compiler: pgle accepts none that XLA
refuses. XLA accepts three things that pgle refuses: ``- 3`` (a blank after the sign), surrogate
escapes, and names that are not UTF-8. Sources of the grammar:
https://protobuf.dev/reference/protobuf/textformat-spec/ and C++ ``io/tokenizer.h``.

XLA does not check a profile. If it cannot read a file, or does not know its suffix, it writes at
most one log line and continues without the profile. So pgle refuses files that XLA would not read,
and gives the reason. Format: ``ProfiledInstructionsProto`` of ``profiled_instructions.proto``
(openxla/xla, third_party/tsl/tsl/profiler).

The sidecar is ``PROFILE.json``:

    {"schema": "pgle.profile/1", "sha256": of the profile file,
     "provenance": {…}, "warnings": […], "costs": [{"name": "all-gather-start.1", "kind":
     "collective", "opcode": "all-gather", "shape": "bf16[4096,512]",
                "samples": 18, "min_us": 801.2, "max_us": 830.9, "spread": 0.02, "trace_name":
                "all-gather.4", "origin": "measured"}, …]}

It has one record per entry of the profile, in the same order, one per line. Unknown fields (empty
or 0) are left out. Fields of other releases are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from pgle.costs.profile.value import (
    Cost,
    CostKind,
    Entry,
    Origin,
    Profile,
    Time,
    split_name,
)
from pgle.errors import UserError
from pgle.files import AnyPath, read_bytes, sha256
from pgle.next import CONVERT, CONVERT_ALL, SHOW
from pgle.trace.unread import check_is_read

if TYPE_CHECKING:
    from pgle.xla.protos.profiled_instructions_pb2 import ProfiledInstructionsProto

SUFFIXES = (".pbtxt", ".pb")
"""The suffixes that XLA recognises, case-sensitive. Since jaxlib 0.5.1 XLA ignores any other name
without a message.
"""

# Room for four million costs; the largest published profiles hold fewer than a thousand.
MAX_PROFILE_BYTES = 256 << 20

_FINGERPRINT_FILE = re.compile(r"([0-9a-f]{32})(\.pbtxt|\.pb)")
_BOM = b"\xef\xbb\xbf"


def read_profile(path: AnyPath) -> Profile:
    """Read a profile from a ``.pbtxt`` or ``.pb`` file, and its sidecar ``PATH.json`` if that
    describes this file.

    A directory is read as XLA reads it: for each module ``FINGERPRINT.pbtxt``, or
    ``FINGERPRINT.pb`` if there is no text.

    Raises:
        UserError: XLA would not read the file, or it holds no cost. The message says what XLA would
            have done.
    """
    if path.is_dir():
        return _read_directory(path)
    if not path.exists():
        raise UserError("no such file", where=path, remedy="check the path")
    check_is_read(path)
    check_suffix(
        path, remedy=f"rename it if it is a profile; a trace becomes one by `{CONVERT}`"
    )
    data = read_bytes(path, max_bytes=MAX_PROFILE_BYTES)
    sidecar = sidecar_path(path)
    text = (
        read_bytes(sidecar, max_bytes=8 * MAX_PROFILE_BYTES)
        if sidecar.exists()
        else None
    )
    return decode_profile(data, path, text)


def decode_profile(
    data: bytes, where: AnyPath, sidecar: bytes | None = None
) -> Profile:
    """Decode the bytes of a profile and of its sidecar. The suffix of `where` selects text or
    binary.

    Raises:
        UserError: XLA would not read it, or it holds no cost.
    """
    if not data:
        raise UserError(
            "empty file, which XLA takes for a profile without costs",
            where=where,
            remedy=_AGAIN,
        )
    entries, warnings = (
        _decode_text(data, where)
        if where.suffix == ".pbtxt"
        else _decode_binary(data, where)
    )
    if not entries:
        raise UserError(
            "holds no costs; XLA would log that it uses the file, and find none",
            where=where,
            remedy=_AGAIN,
        )
    if sidecar is not None:
        try:
            profile = described(entries, data, sidecar)
            return replace(profile, warnings=(*warnings, *profile.warnings))
        except SidecarError as error:
            warnings.append(f"{sidecar_path(where)}: {error}; its details are ignored")
    return Profile(_costs(entries), warnings=tuple(warnings))


def encode_profile(profile: Profile, suffix: str) -> bytes:
    """Encode a profile in the form of `suffix`, one of `SUFFIXES`: ASCII text with one cost per
    line, or binary. Equal profiles give equal bytes.

    Raises:
        UserError: a cost is not a time; XLA would use it unchanged.
    """
    for cost in profile.costs:
        if not cost.is_valid:
            what = (
                f"the cost of {cost.full_name} is {cost.cost_us} µs, which is not a time, so the "
                "profile is not written"
            )
            raise UserError(what, remedy=f"see what it was made from: {SHOW}")
    if suffix == ".pbtxt":
        return encode_entries(
            (cost.full_name, cost.cost_us) for cost in profile.costs
        ).encode()
    from pgle.xla.protos.profiled_instructions_pb2 import ProfiledInstructionsProto

    message = ProfiledInstructionsProto()
    for cost in profile.costs:
        message.costs.add(name=cost.full_name, cost_us=cost.cost_us)
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def profile_files(path: AnyPath, profile: Profile) -> dict[AnyPath, bytes | str]:
    """Return the bytes to write for a profile, by path: the file in the form of its suffix, and the
    sidecar.

    Raises:
        UserError: XLA would ignore a file of that name, or a cost is not a time.
    """
    check_suffix(path)
    data = encode_profile(profile, path.suffix)
    return {path: data, sidecar_path(path): sidecar(profile, data)}


def sidecar_path(path: AnyPath) -> AnyPath:
    """Return the path of a profile's sidecar: ``PATH.json``."""
    return path.with_name(f"{path.name}.json")


def check_suffix(path: AnyPath, *, remedy: str = "") -> None:
    """Raise `UserError` if XLA would ignore a profile of that name.

    Args:
        remedy: what to do; empty for "name it STEM.pbtxt".
    """
    if path.suffix in SUFFIXES:
        return
    stem = path.name
    for _ in path.suffixes:
        stem = stem.removesuffix(PurePath(stem).suffix)
    raise UserError(
        "not a .pbtxt or .pb file; XLA ignores profiles of any other name without a message",
        where=path,
        remedy=remedy or f"name it {stem}.pbtxt",
    )


_AGAIN = f"write it again with `{CONVERT}`"


def _costs(entries: Iterable[Entry]) -> tuple[Cost, ...]:
    """Return the costs of a profile's entries. A name may begin with a fingerprint."""
    rest = Cost("", 0.0, origin=Origin.UNKNOWN)[3:]
    costs = []
    for written, cost_us in entries:
        if "::" in written:
            fingerprint, name = split_name(written)
            costs.append(Cost(name, cost_us, fingerprint, *rest))
        else:
            costs.append(Cost(written, cost_us, "", *rest))
    return tuple(costs)


_REFUSED = "XLA would not parse it and would run without a profile"


def _decode_text(data: bytes, where: AnyPath) -> tuple[Sequence[Entry], list[str]]:
    """Return the entries of a text profile, and warnings."""
    if data.startswith(_BOM):
        raise UserError(
            f"begins with a byte order mark: {_REFUSED}",
            where=where,
            remedy="save it without BOM",
        )
    try:
        return decode_entries(data.decode()), []
    except ValueError as error:
        message = _message(data)
        if message is not None and _is_whole(message):
            raise _named_wrongly("binary", where, ".pb") from None
        if isinstance(error, TextNameError):
            raise UserError(
                f"{error}, so no instruction is called that", where=where, remedy=_AGAIN
            ) from None
        reason = (
            f"not text (byte {error.start})"
            if isinstance(error, UnicodeDecodeError)
            else str(error)
        )
        raise UserError(f"{reason} ({_REFUSED})", where=where, remedy=_AGAIN) from None


def _decode_binary(data: bytes, where: AnyPath) -> tuple[Sequence[Entry], list[str]]:
    """Return the entries of a binary profile, and warnings."""
    message = _message(data)
    if message is None:
        with suppress(ValueError):
            if decode_entries(data.decode()):
                raise _named_wrongly("text", where, ".pbtxt")
        raise UserError(
            f"damaged or truncated profile: {_REFUSED}", where=where, remedy=_AGAIN
        )
    is_whole = _is_whole(message)
    entries = [(cost.name, cost.cost_us) for cost in message.costs]
    if is_whole:
        return entries, []
    # The first field of an HLO module is a name, too, but such a message has no costs.
    if not any(name and cost_us for name, cost_us in entries):
        what = (
            "another kind of protocol buffer, not a cost profile (XLA would take it for an "
            "empty one)"
        )
        raise UserError(
            what, where=where, remedy=f"if it is a trace, give it to `{CONVERT}`"
        )
    note = f"{where}: holds fields that are not a cost profile's; XLA ignores them"
    return entries, [note]


def _named_wrongly(form: str, where: AnyPath, suffix: str) -> UserError:
    """Return the error for a profile whose suffix belongs to the other form."""
    what = f"{form} profile in a {where.suffix} file: {_REFUSED}"
    return UserError(what, where=where, remedy=f"rename it to {where.stem}{suffix}")


def _message(data: bytes) -> ProfiledInstructionsProto | None:
    """Parse the bytes of a binary profile. Return None if they are not a protocol buffer."""
    # text profiles do not need it, and it adds 6 ms to each command's start
    from google.protobuf.message import (
        DecodeError,
    )

    from pgle.xla.protos.profiled_instructions_pb2 import ProfiledInstructionsProto

    with suppress(DecodeError):
        message: ProfiledInstructionsProto = ProfiledInstructionsProto.FromString(data)
        return message
    return None


def _is_whole(message: ProfiledInstructionsProto) -> bool:
    """Whether the message is a cost profile without unknown fields.

    With unknown fields allowed, almost any bytes parse.
    """
    size = message.ByteSize()
    message.DiscardUnknownFields()
    return bool(message.ByteSize() == size)


def _read_directory(path: AnyPath) -> Profile:
    """Read the profiles in a directory that are named after fingerprints."""
    found: dict[str, AnyPath] = {}
    for file in sorted(path.iterdir(), key=lambda item: item.name):
        match = _FINGERPRINT_FILE.fullmatch(file.name)
        if match is not None and (match[1] not in found or match[2] == ".pbtxt"):
            found[match[1]] = file
    if not found:
        what = (
            "no profile in this directory: XLA looks for a file named after a module's "
            "fingerprint"
        )
        itself = "the profile file itself"
        of_run = path / "profile.pbtxt"
        if of_run.is_file():
            itself += f", {of_run}"
        raise UserError(what, where=path, remedy=f"name {itself}, or `{CONVERT_ALL}`")
    costs: list[Cost] = []
    warnings: list[str] = []
    provenance: dict[str, object] = {}
    for fingerprint, file in found.items():
        profile = read_profile(file)
        costs += (
            cost._replace(fingerprint=cost.fingerprint or fingerprint)
            for cost in profile.costs
        )
        warnings += profile.warnings
        provenance[file.name] = dict(profile.provenance)
    return Profile(tuple(costs), provenance, tuple(warnings))


_BLANK = r"(?:[ \t\r\n\v\f]++|#[^\n]*+)*+"
_NUMBER = (
    r"-?(?:(?:0|[1-9][0-9]*+)(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]++)?|inf|nan)(?![\w.])"
)
_USUAL = _BLANK.join(
    (
        "",
        "costs",
        "{",
        "name",
        ":",
        r'"([^"\\\n\0]*+)"',
        "cost_us",
        ":",
        f"({_NUMBER})",
        "}",
        "",
    )
)
_OWN = rf'(?:costs \{{ name: "[^"\\\n\0]*+" cost_us: {_NUMBER} \}}\n)*+'
_ESCAPE = (
    r"\\(?:[abfnrtv\\?'\"]|[0-7]{1,3}|[xX][0-9a-fA-F]{1,2}"
    r"|u[0-9a-fA-F]{4}|U(?:000|0010)[0-9a-fA-F]{4,5})"
)
_TOKENS = (
    r"(?:[ \t\r\n\v\f]++|#[^\n]*+"
    rf"|\"(?:[^\"\\\n\0]|{_ESCAPE})*+\"|'(?:[^'\\\n\0]|{_ESCAPE})*+'"
    r"|(?!(?i:inf|infinity|nan)f\b)[A-Za-z_]\w*+"
    r"|0[xX][0-9a-fA-F]++(?![\w.])"
    r"|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[fF]?(?![\w.])"
    r"|[][{}<>:;,/.-])*+"
)
"""Grammars for reading. They are compiled when first needed, because a writer needs none."""
_PLAIN = re.compile(r"[ !#-&(-\[\]-~]*", re.ASCII)


class TextSyntaxError(ValueError):
    """XLA would refuse the text. The message starts with ``LINE:COLUMN: ``."""


class TextNameError(TextSyntaxError):
    """XLA would read the text, but a name in it is not UTF-8."""


def encode_entries(entries: Iterable[Entry]) -> str:
    """Return entries as ASCII text, one line each. Floats have their shortest exact form.

    Raises:
        UnicodeEncodeError: a name is not valid Unicode.
    """
    return "".join(
        f'costs {{ name: "{_escape(name)}" cost_us: {cost_us!r} }}\n'
        for name, cost_us in entries
    )


def decode_entries(text: str) -> list[Entry]:
    """Return the entries of a profile in text form.

    Raises:
        TextSyntaxError: XLA would refuse the text.
    """
    usual = _decode_usual(text)
    return usual if usual is not None else _decode_any(text)


def _decode_any(text: str) -> list[Entry]:
    """Do the same as `decode_entries` with protobuf's own parser."""
    # takes 5 ms, and hardly any profile needs it
    from google.protobuf import text_format

    from pgle.xla.protos.profiled_instructions_pb2 import ProfiledInstructionsProto

    _check_tokens(text)
    message = ProfiledInstructionsProto()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        if " codec can't " in str(error):
            raise TextNameError(
                f"{str(error).split(' ')[0]}: a name is not UTF-8"
            ) from None
        raise TextSyntaxError(_one_line(str(error))) from None
    except (ValueError, UnicodeError, RecursionError) as error:
        raise TextSyntaxError(_one_line(f"1:1: {error}")) from None
    return [(cost.name, cost.cost_us) for cost in message.costs]


def _decode_usual(text: str) -> list[Entry] | None:
    """Return the entries if each is spelled in the usual way, else None."""
    if re.fullmatch(_OWN, text, re.ASCII):
        # written by `encode_entries`: splitting is three times as fast as matching
        parts = f'{text}costs {{ name: "'.split('"')
        return [
            (name, float(rest[10:-17]))
            for name, rest in zip(parts[1:-1:2], parts[2::2], strict=True)
        ]
    entries = []
    end = 0
    usual = re.compile(_USUAL, re.ASCII)
    while end < len(text):
        # not a search, which takes quadratic time in a run of blanks
        match = usual.match(text, end)
        if match is None:
            return None
        entries.append((match[1], float(match[2])))
        end = match.end()
    return entries


def _check_tokens(text: str) -> None:
    """Raise `TextSyntaxError` if C++ would find an invalid token in `text`.

    Python's parser accepts Unicode blanks, ``+5`` and ``1_000``; C++ does not.
    """
    match = re.match(_TOKENS, text, re.ASCII)
    end = 0 if match is None else match.end()
    if end < len(text):
        line = text.count("\n", 0, end) + 1
        column = end - text.rfind("\n", 0, end)
        raise TextSyntaxError(f"{line}:{column}: {_what(text[end:])}")


def _what(rest: str) -> str:
    """Name the text at a place where no token can start."""
    if rest[0] in "\"'":
        return "string that does not end on its line, or with an invalid escape"
    if rest[0].isdigit():
        return f"malformed number {rest.split(maxsplit=1)[0][:20]!r}"
    return f"unexpected character {rest[0]!r}"


def _escape(name: str) -> str:
    if _PLAIN.fullmatch(name):
        return name
    from google.protobuf import text_encoding

    return text_encoding.CEscape(name.encode(), as_utf8=False)


def _one_line(message: str) -> str:
    """Turn Python's ``1:7 : 'LINE': what`` into ``1:7: 'LINE': what``, and shorten it to less than
    160 characters.
    """
    message = re.sub(r"^(\d+:\d+) : ", r"\1: ", " ".join(message.split()))
    return message if len(message) < 160 else f"{message[:80]} … {message[-70:]}"


SCHEMA = "pgle.profile/1"

# More samples than any measurement takes; sums over all ranks stay within 64 bits.
Samples = Annotated[int, Meta(ge=0, lt=1 << 40)]


class SidecarError(ValueError):
    """The sidecar cannot be used. The message says why."""


class CostRecord(Struct, kw_only=True, gc=False):
    """Facts about one entry; the fields are those of `Cost`."""

    name: str  # with its ``fingerprint::``, if any
    kind: CostKind = CostKind.UNKNOWN
    opcode: str = ""
    shape: str = ""
    samples: Samples = 0
    min_us: float = 0.0
    max_us: float = 0.0
    spread: float = 0.0
    slowest_us: Time | None = None
    trace_name: str = ""
    origin: Origin  # always present


_KNOWN = Cost._fields[Cost._fields.index("kind") :]
_known_of = attrgetter(*_KNOWN)


class _Module(Struct):
    name: str = ""
    fingerprints: list[str] = []
    rank_ids: list[int] = []
    executions_used: int | None = None
    executions_seen: int | None = None
    devices: int | None = None


class _Provenance(Struct):
    """The types of provenance values that later code relies on. A value may be missing."""

    tool: str = ""
    stat: str = ""
    collective_stat: str = ""
    inputs: list[dict[str, Any]] = []
    modules: list[_Module] = []
    completed: list[dict[str, Any]] = []


class _Head(Struct):
    schema: Any = ""
    sha256: Any = ""


class _Sidecar(_Head, kw_only=True):
    costs: list[CostRecord]
    provenance: dict[str, Any] = {}
    warnings: list[str] = []


def sidecar(profile: Profile, data: bytes) -> str:
    """Return the sidecar of a profile as JSON text. Equal input gives equal text.

    Args:
        data: the bytes of the profile file.
    """
    head = {
        "schema": SCHEMA,
        "sha256": sha256(data),
        "provenance": profile.provenance,
        "warnings": profile.warnings,
    }
    records: list[dict[str, object]] = [
        {"name": cost.full_name}
        | {
            name: value
            for name, value in zip(_KNOWN, cost[-len(_KNOWN) :], strict=True)
            if value
        }
        for cost in profile.costs
    ]
    text = msgspec.json.format(_encoded(head), indent=2).decode()
    lines = msgspec.json.format(msgspec.json.encode(records), indent=0).decode()[1:-1]
    # inside a JSON string the quotes are escaped, so this matches only between records
    lines = lines.replace('}, {"name": ', '},\n    {"name": ')
    return f'{text[:-2]},\n  "costs": [\n    {lines}\n  ]\n}}\n'


_NO_UTF8 = re.compile("[\ud800-\udfff]")


def _encoded(head: dict[str, Any]) -> bytes:
    """Return an object as JSON. Surrogates in texts, as in file names that are not UTF-8, are
    escaped.
    """
    try:
        return msgspec.json.encode(head, enc_hook=str)
    except UnicodeEncodeError:
        text = json.dumps(head, ensure_ascii=False, default=str)
        return _NO_UTF8.sub(lambda odd: rf"\\u{ord(odd[0]):04x}", text).encode()


def described(entries: Sequence[Entry], data: bytes, text: bytes) -> Profile:
    """Return the profile of these entries, with the facts of its sidecar.

    Args:
        data: the bytes of the profile file.
        text: the sidecar.

    Raises:
        SidecarError: `text` is not a sidecar, describes another profile, or is damaged.
    """
    head, found = _parsed(text)
    if head.schema != SCHEMA:
        raise SidecarError(f"not a sidecar of schema {SCHEMA}")
    if head.sha256 != sha256(data):
        raise SidecarError(
            "describes another version of the profile (its sha256 differs)"
        )
    if found is None or [record.name for record in found.costs] != [
        name for name, _ in entries
    ]:
        raise SidecarError("damaged")
    costs = []
    for (written, cost_us), record in zip(entries, found.costs, strict=True):
        fingerprint, name = split_name(written) if "::" in written else ("", written)
        costs.append(Cost._make((name, cost_us, fingerprint, *_known_of(record))))
    return Profile(tuple(costs), found.provenance, tuple(found.warnings))


def _parsed(text: bytes) -> tuple[_Head, _Sidecar | None]:
    """Return a sidecar's head, and the whole sidecar, or None if it is damaged."""
    # the second comes from names that are not UTF-8
    not_json = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
    with suppress(*not_json):
        found = msgspec.json.decode(text, type=_Sidecar)
        msgspec.convert(found.provenance, _Provenance)
        return found, found
    try:
        return msgspec.json.decode(text, type=_Head), None
    except msgspec.ValidationError:
        return _Head(), None
    except not_json:
        raise SidecarError("not JSON") from None
