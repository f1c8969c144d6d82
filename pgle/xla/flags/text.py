"""Parse the text of XLA_FLAGS into values and write it back, exactly as XLA reads it.

The rules come from `xla/parse_flags_from_env.cc` and `xla/tsl/util/command_line_flags.cc`
(openxla/xla). `tests/xla/test_flags_against_xla.py` checks each against jaxlib 0.10.2 and 0.12.0.1:

* Blanks, tabs and line ends separate flags. A quote counts only directly after ``=``. Inside double
quotes a backslash takes the next character unchanged.
* The first word that does not begin with ``-`` ends parsing without a message.
* A text that does not begin with ``-`` is the name of a file that holds the flags. So is a text of
blanks alone; XLA then ends the program.
* The last occurrence of a flag wins, except for lists that accumulate (`ACCUMULATING`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from pgle.errors import UserError, cut
from pgle.masking import kept_argv

BLANKS = " \t\r\n"  # characters that separate flags

ACCUMULATING = frozenset({"xla_disable_hlo_passes", "xla_enable_hlo_passes_only"})
"""Lists to which every occurrence adds (measured with jaxlib 0.10.2 and 0.12.0.1)."""

COMMAND_BUFFER = "xla_gpu_enable_command_buffer"
"""An item ``+X`` or ``-X`` of this flag changes the value before it. An item without a sign
replaces it.
"""

Level: TypeAlias = Literal["error", "warning", "note"]

_QUOTED = re.compile(
    r"""([A-Za-z0-9_-]*)=(?:"((?:\\.|[^"])*)"?|'([^']*)'?)""", re.DOTALL
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_WELL_FORMED = re.compile(r"--[A-Za-z0-9_]+\Z")


@dataclass(frozen=True, slots=True)
class FlagFinding:
    """A remark about a flag."""

    # ``error`` if XLA aborts or ignores the user's intention, ``warning`` if it may, else ``note``
    level: Level
    code: str  # a word for machines, such as ``unknown``, ``removed``, ``duplicate``, ``bare-word``
    flag: str  # name of the flag; empty if the remark is about the whole text
    message: str  # the fact, one clause
    remedy: str = ""  # what to do; may be empty

    def line(self) -> str:
        """Return the remark as one line: ``--flag: message; remedy``."""
        head = f"--{self.flag}: " if self.flag else ""
        return head + self.message + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag."""

    # name without the two dashes; for a malformed flag (``-x``, ``--``) the unchanged text
    name: str
    # without quotes; None for a bare flag, empty for ``--flag=``
    value: str | None = None

    @property
    def key(self) -> str:
        """The flag as written before the equals sign."""
        return f"--{self.name}" if _WELL_FORMED.match(f"--{self.name}") else self.name

    @property
    def word(self) -> str:
        """The flag as one word of a command line, with its value unchanged."""
        return self.key if self.value is None else f"{self.key}={self.value}"

    @property
    def text(self) -> str:
        """The flag as XLA_FLAGS text, quoted if the value needs it."""
        value = self.value or ""
        if value[:1] in ("'", '"') or any(blank in value for blank in BLANKS):
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'{self.key}="{escaped}"'
        return self.word

    @property
    def is_well_formed(self) -> bool:
        """Whether it has the form ``--name`` or ``--name=value``."""
        return _WELL_FORMED.match(self.key) is not None


@dataclass(frozen=True, slots=True)
class FlagList:
    """The flags that XLA reads from a text."""

    flags: tuple[Flag, ...] = ()  # in the order of the text, with repetitions
    text: str = ""  # the text itself
    ignored: str = ""  # the text from the first bare word on, which XLA ignores
    # the file that XLA reads instead if the text does not begin with ``-``; `flags` is then empty
    file: str = ""
    findings: tuple[FlagFinding, ...] = ()  # mistakes in the form of the text

    def effective(self) -> dict[str, str | None]:
        """Return the value of each flag that XLA uses: the last, or all items of a list that
        accumulates.
        """
        return effective(self.flags)

    def value(self, name: str) -> str | None:
        """Return the value of `name` that XLA uses, ``true`` for a bare flag; None if it is not
        set.
        """
        values = self.effective()
        if name not in values:
            return None
        value = values[name]
        return "true" if value is None else value

    def is_true(self, name: str) -> bool | None:
        """Return a boolean flag as XLA reads it; None if it is not set or not a boolean."""
        return as_bool(self.value(name))


@dataclass(frozen=True, slots=True)
class FlagPlan:
    """The flags and variables to start a run with."""

    # pgle's flags that are added; the user's value of a flag wins
    flags: tuple[Flag, ...]
    xla_flags: str  # the whole XLA_FLAGS: pgle's flags, then the user's text unchanged
    # findings about flags of pgle that lost (``kept``) or are left out, about likely failures, and
    # about the user's text
    warnings: tuple[FlagFinding, ...]
    # environment variables to set unless the user has set them
    environment: Mapping[str, str] = field(default_factory=dict)


def parse_flags(text: str) -> FlagList:
    """Read the text of XLA_FLAGS as XLA does. It never raises: the findings list the mistakes."""
    stripped = text.lstrip(BLANKS)
    if not text:
        return FlagList()
    if not stripped:
        return FlagList(text=text, findings=(_BLANK,))
    if not stripped.startswith("-"):
        # XLA opens the unchanged text, blanks included.
        return FlagList(text=text, file=text, findings=(_taken_for_a_file(stripped),))
    flags: list[Flag] = []
    quotes: list[FlagFinding] = []
    at = len(text) - len(stripped)
    while at < len(text) and text[at] == "-":
        start = at
        flag, at = _one(text, start)
        flags.append(flag)
        quotes += _quotes(flag, text[start:at])
        while at < len(text) and text[at] in BLANKS:
            at += 1
    ignored = text[at:]
    return FlagList(
        tuple(flags),
        text,
        ignored,
        findings=(*_malformed(flags), *quotes, *_bare_word(ignored)),
    )


def typed_flag(text: str) -> Flag:
    """Return a flag from a command line, ``--name=value``. A value with blanks needs no quotes
    there.

    Raises:
        UserError: the text does not begin with ``--``.
    """
    name, equals, value = text.partition("=")
    if not name.startswith("--"):
        raise UserError(
            "does not begin with --",
            where=f"--flag {text}",
            remedy="write --flag=--name=value",
        )
    whole = parse_flags(text)
    if len(whole.flags) == 1 and not whole.ignored:
        return whole.flags[0]
    return Flag(name[2:], value if equals else None)


def format_flags(flags: Iterable[Flag]) -> str:
    """Return the flags as XLA_FLAGS text, which `parse_flags` reads back."""
    return " ".join(flag.text for flag in flags)


def to_be_extended(text: str) -> str:
    """Return XLA_FLAGS for a program that may add flags at either end.

    Programs are written for an empty variable, so they may leave out the blank: ``flags +
    "--xla_a=1"``.
    """
    return f" {text} " if text else text


def kept_flags(text: str) -> str:
    """Return XLA_FLAGS, or the name of its file, with likely credentials masked."""
    parsed = parse_flags(text)
    if parsed.file:
        return " ".join(kept_argv([parsed.file]))
    words = kept_argv([flag.word for flag in parsed.flags])
    flags = []
    for flag, word in zip(parsed.flags, words, strict=True):
        _, equals, value = word.partition("=")
        flags.append(replace(flag, value=value) if equals else flag)
    return " ".join(
        [*(flag.text for flag in flags), *kept_argv(parsed.ignored.split())]
    )


def effective(flags: Iterable[Flag]) -> dict[str, str | None]:
    """Return the value of each flag that XLA uses, in the order of first occurrence."""
    values: dict[str, str | None] = {}
    for flag in flags:
        before = values.get(flag.name)
        joins = flag.name in ACCUMULATING or (
            flag.name == COMMAND_BUFFER and (flag.value or "").startswith(("+", "-"))
        )
        if joins and before and flag.value:
            values[flag.name] = f"{before},{flag.value}"
        elif not (joins and before):
            values[flag.name] = flag.value
    return values


def merge_flags(user: FlagList, ours: Sequence[Flag]) -> FlagPlan:
    """Add pgle's flags to the user's. The user's flags win and stay unchanged.

    A warning names each of pgle's flags that lost.

    Args:
        user: the user's flags. If they name a file, pass its content.
        ours: flags to add; the last of repeated flags counts.
    """
    values = user.effective()
    added: list[Flag] = []
    findings: list[FlagFinding] = []
    for name, value in effective(ours).items():
        flag = Flag(name, value)
        if name in ACCUMULATING:
            present = set((values.get(name) or "").split(","))
            missing = [
                item
                for item in (value or "").split(",")
                if item and item not in present
            ]
            if missing:
                added.append(Flag(name, ",".join(missing)))
        elif name not in values:
            added.append(flag)
        elif not same_value(values[name], value):
            theirs = Flag(name, values[name]).text
            message = f"yours stays ({theirs}); pgle would have set {flag.text}"
            findings.append(FlagFinding("warning", "kept", name, message))
    parts = [format_flags(added), user.text.strip(BLANKS)]
    return FlagPlan(
        tuple(added),
        " ".join(part for part in parts if part),
        (*findings, *user.findings),
    )


def same_value(first: str | None, second: str | None) -> bool:
    """Whether two values mean the same. Booleans are compared by meaning (bare, ``true``, ``1``),
    other values as text.
    """
    one = True if first is None else as_bool(first)
    other = True if second is None else as_bool(second)
    return first == second if one is None else one == other


def as_bool(value: str | None) -> bool | None:
    """Return True for ``true``/``1`` and False for ``false``/``0`` in any case; None for anything
    else.
    """
    words: Mapping[str, bool] = {"true": True, "1": True, "false": False, "0": False}
    return None if value is None else words.get(value.lower())


def _one(text: str, start: int) -> tuple[Flag, int]:
    """Return the flag that begins at `start`, and where it ends."""
    if found := _QUOTED.match(text, start):
        key, double, single = found.groups()
        return Flag(
            _name(key), single if double is None else _ESCAPED.sub(r"\1", double)
        ), found.end()
    end = start
    while end < len(text) and text[end] not in BLANKS:
        end += 1
    key, equals, plain = text[start:end].partition("=")
    return Flag(_name(key), plain if equals else None), end


def _name(key: str) -> str:
    return key[2:] if _WELL_FORMED.match(key) else key


_DASHES = re.compile("[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]")
"""Unicode's hyphens, dashes and minus signs that a word processor or web page may put in place of
``-``.
"""
_CURLED = re.compile("[\u2018-\u201f\u00ab\u00bb\u2032\u2033]")
"""Unicode's quotes, which no shell and no XLA reads as quotes."""
_STRAIGHT = "'\""


def _plain(text: str) -> str:
    """Replace Unicode's dashes by ASCII's, and remove Unicode's quotes.

    A long dash at the beginning becomes ``--``.
    """
    text = _CURLED.sub("", text)
    if found := re.match(f"(?:{_DASHES.pattern}|-)+", text):
        text = "--" + text[found.end() :]
    return _DASHES.sub("-", text)


_BLANK = FlagFinding(
    "error",
    "file",
    "",
    "holds only blanks: XLA takes them for the name of a file and ends the program",
    "unset XLA_FLAGS, or make it empty",
)


def _taken_for_a_file(text: str) -> FlagFinding:
    """Return a finding on a text that does not begin with ``-``, which XLA takes for the name of a
    file.
    """
    file = "XLA takes it for the name of a file that holds the flags"
    if _DASHES.match(text):
        message = f"begins with '{text[0]}', which is not the ASCII hyphen: {file}"
        return FlagFinding(
            "error", "dash", "", message, f"write {cut(_plain(text), 60)}"
        )
    inner = text.strip(_STRAIGHT)
    is_quoted = text[0] in _STRAIGHT or _CURLED.match(text) is not None
    if is_quoted and _plain(inner).startswith("--"):
        message = f"begins with the quote {text[0]}, which no shell removed: {file}"
        return FlagFinding(
            "error", "quote", "", message, "remove the quotes around flags"
        )
    return FlagFinding("warning", "file", "", f"does not begin with '-': {file}")


def _quotes(flag: Flag, raw: str) -> Iterator[FlagFinding]:
    """Yield findings on quotes or dashes that XLA takes for a part of the value, and on quotes that
    never end.
    """
    value = raw.partition("=")[2]
    if value[:1] in _STRAIGHT and value:
        closed = len(value) > 1 and value.endswith(value[0])
        escaped = value.endswith('\\"') and not value.endswith('\\\\"')
        if not closed or (value[0] == '"' and escaped):
            message = (
                f"the quote {value[0]} is never closed: XLA reads all that "
                "follows as its value"
            )
            yield FlagFinding("warning", "quote", flag.name, message, "close the quote")
        return
    if not flag.is_well_formed:
        return
    odd = next((char for char in value if char in _STRAIGHT or _CURLED.match(char)), "")
    dash = _DASHES.search(value)
    is_path = "/" in value  # names of files may hold an apostrophe or a dash
    if odd and (not is_path or value.count(odd) > 1):
        fixed = Flag(
            flag.name, _CURLED.sub("", value).translate({39: None, 34: None})
        ).text
        message = f"the quote {odd} is a part of the value: XLA reads quotes only right after '='"
        yield FlagFinding("warning", "quote", flag.name, message, f"write {fixed}")
    elif dash and not is_path:
        fixed = Flag(flag.name, _DASHES.sub("-", value)).text
        message = f"the value holds '{dash[0]}', which is not the ASCII hyphen"
        yield FlagFinding("warning", "dash", flag.name, message, f"write {fixed}")


def _malformed(flags: Sequence[Flag]) -> Iterator[FlagFinding]:
    for flag in flags:
        if flag.name == "--":
            message = "'--' makes XLA reject every flag after it"
            yield FlagFinding("error", "malformed", "", message, "remove it")
        elif not flag.is_well_formed:
            plain = _plain(flag.name).lstrip("-").lower()
            name = plain.replace("-", "_").split(":")[0].strip(_STRAIGHT)
            hint = f"write --{name}=VALUE" if name else "remove it"
            message = f"'{flag.name}' does not have the form --flag=value"
            yield FlagFinding("error", "malformed", "", message, hint)


def _bare_word(ignored: str) -> Iterator[FlagFinding]:
    if not ignored:
        return
    word, *lost = ignored.split()
    tail = (
        f", so {len(lost)} more ({cut(' '.join(lost), 60)}) are ignored" if lost else ""
    )
    message = f"the bare word '{word}' ends parsing without a message{tail}"
    remedy = "write --flag=value without blanks, or quote: --flag='a b'"
    yield FlagFinding("error", "bare-word", "", message, remedy)
