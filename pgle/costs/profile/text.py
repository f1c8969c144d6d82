"""The text form of a cost profile: ``costs { name: "all-gather-start.1" cost_us: 812.5 }``, one per line.

XLA reads it with C++ protobuf's TextFormat. What is usual goes through one regular expression; everything else that
TextFormat knows (single quotes, joined strings, escapes, lists, ``<>``) through protobuf's own Python parser, after a
check of the lexical rules where C++ is the stricter of the two. Compared with the compiler on some hundred odd texts,
nothing passes here that it refuses; of what it takes, only ``- 3`` (a blank after the sign), surrogate escapes and
names that are not UTF-8 do not pass.
Source of the grammar: https://protobuf.dev/reference/protobuf/textformat-spec/ and C++ ``io/tokenizer.h``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

Entry = tuple[str, float]  # name as written in the file, with any ``fingerprint::``, and µs

_BLANK = r"(?:[ \t\r\n\v\f]++|#[^\n]*+)*+"
_NUMBER = r"-?(?:(?:0|[1-9][0-9]*+)(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]++)?|inf|nan)(?![\w.])"
_USUAL = _BLANK.join(("", "costs", "{", "name", ":", r'"([^"\\\n\0]*+)"', "cost_us", ":", f"({_NUMBER})", "}", ""))
_OWN = rf'(?:costs \{{ name: "[^"\\\n\0]*+" cost_us: {_NUMBER} \}}\n)*+'
_ESCAPE = r"\\(?:[abfnrtv\\?'\"]|[0-7]{1,3}|[xX][0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U(?:000|0010)[0-9a-fA-F]{4,5})"
_TOKENS = (
    r"(?:[ \t\r\n\v\f]++|#[^\n]*+"
    rf"|\"(?:[^\"\\\n\0]|{_ESCAPE})*+\"|'(?:[^'\\\n\0]|{_ESCAPE})*+'"
    r"|(?!(?i:inf|infinity|nan)f\b)[A-Za-z_]\w*+"
    r"|0[xX][0-9a-fA-F]++(?![\w.])|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[fF]?(?![\w.])"
    r"|[][{}<>:;,/.-])*+"
)
"""Grammars of what is read; who only writes does without compiling them."""
_PLAIN = re.compile(r"[ !#-&(-\[\]-~]*", re.ASCII)


class TextSyntaxError(ValueError):
    """XLA would refuse the text; the message starts with ``LINE:COLUMN: ``."""


class TextNameError(TextSyntaxError):
    """XLA would read the text, but a name in it is not UTF-8."""


def encode_entries(entries: Iterable[Entry]) -> str:
    """Entries as text, one line each, ASCII only; floats in their shortest exact form.

    Raises:
        UnicodeEncodeError: a name is not valid Unicode.
    """
    return "".join(f'costs {{ name: "{_escape(name)}" cost_us: {cost_us!r} }}\n' for name, cost_us in entries)


def decode_entries(text: str) -> tuple[list[Entry], int]:
    """The entries of a profile in text form, and how many ``latencies`` it holds (XLA drops those).

    Raises:
        TextSyntaxError: XLA would refuse the text.
    """
    usual = _decode_usual(text)
    return (usual, 0) if usual is not None else _decode_any(text)


def _decode_any(text: str) -> tuple[list[Entry], int]:
    """What `decode_entries` returns, by protobuf's own parser."""
    from google.protobuf import text_format  # 5 ms, and hardly any profile needs it

    from pgle.xla.protos.profiled_instructions_pb2 import ProfiledInstructionsProto

    _check_tokens(text)
    message = ProfiledInstructionsProto()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        if " codec can't " in str(error):
            raise TextNameError(f"{str(error).split(' ')[0]}: a name is not UTF-8") from None
        raise TextSyntaxError(_one_line(str(error))) from None
    except (ValueError, UnicodeError, RecursionError) as error:
        raise TextSyntaxError(_one_line(f"1:1: {error}")) from None
    return [(cost.name, cost.cost_us) for cost in message.costs], len(message.latencies)


def _decode_usual(text: str) -> list[Entry] | None:
    """The entries where every one is spelled in the usual way, else None."""
    if re.fullmatch(_OWN, text, re.ASCII):  # as `encode_entries` writes it: three times as fast
        parts = f'{text}costs {{ name: "'.split('"')
        return [(name, float(rest[10:-17])) for name, rest in zip(parts[1:-1:2], parts[2::2], strict=True)]
    entries, end, usual = [], 0, re.compile(_USUAL, re.ASCII)
    while end < len(text):
        match = usual.match(text, end)  # never a search, which takes quadratic time in a run of blanks
        if match is None:
            return None
        entries.append((match[1], float(match[2])))
        end = match.end()
    return entries


def _check_tokens(text: str) -> None:
    """Raise where C++ finds no tokens in `text`; Python's parser lets Unicode blanks, ``+5`` and ``1_000`` pass."""
    match = re.match(_TOKENS, text, re.ASCII)
    end = 0 if match is None else match.end()
    if end < len(text):
        line = text.count("\n", 0, end) + 1
        column = end - text.rfind("\n", 0, end)
        raise TextSyntaxError(f"{line}:{column}: {_what(text[end:])}")


def _what(rest: str) -> str:
    """A name for text where no token can be."""
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
    """Python's ``1:7 : 'LINE': what`` as ``1:7: what`` and within reason."""
    message = re.sub(r"^(\d+:\d+) : ", r"\1: ", " ".join(message.split()))
    return message if len(message) < 160 else f"{message[:80]} … {message[-70:]}"
