"""The text of XLA_FLAGS as values and back, exactly as XLA reads it.

Rules of `xla/parse_flags_from_env.cc` and `xla/tsl/util/command_line_flags.cc` (openxla/xla), each
checked against jaxlib 0.10.2 and 0.12.0.1 by `tests/xla/test_flags_against_xla.py`:

* flags are separated by blanks, tabs and line ends; a quote counts only directly after ``=``, and
inside double quotes
  a backslash takes the next character as it is;
* the first word that does not begin with ``-`` ends parsing without a message;
* a text that does not begin with ``-`` is the name of a file that holds the flags, also one of
  blanks alone, over which XLA ends the program;
* the last occurrence of a flag wins, except for lists that accumulate (`ACCUMULATING`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from pgle.errors import UserError, cut
from pgle.masking import kept_argv

BLANKS = " \t\r\n"  # what separates flags

ACCUMULATING = frozenset({"xla_disable_hlo_passes", "xla_enable_hlo_passes_only"})
"""Lists to which every occurrence adds; measured with jaxlib 0.10.2 and 0.12.0.1."""

COMMAND_BUFFER = "xla_gpu_enable_command_buffer"
"""Its items ``+X`` and ``-X`` change the value before them; without a sign the value is
replaced.
"""

Level: TypeAlias = Literal["error", "warning", "note"]

_QUOTED = re.compile(
    r"""([A-Za-z0-9_-]*)=(?:"((?:\\.|[^"])*)"?|'([^']*)'?)""", re.DOTALL
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_WELL_FORMED = re.compile(r"--[A-Za-z0-9_]+\Z")


@dataclass(frozen=True, slots=True)
class FlagFinding:
    """Something to say about a flag."""

    # ``error`` where XLA aborts or the user's intention is lost, ``warning`` where it may be,
    # ``note`` else
    level: Level
    code: str  # a word for machines, such as ``unknown``, ``removed``, ``duplicate``, ``bare-word``
    flag: str  # the name it is about; empty where it is about the whole text
    message: str  # the fact, one clause
    remedy: str = ""  # what to do; may be empty

    def line(self) -> str:
        """One line: ``--flag: message; remedy``."""
        head = f"--{self.flag}: " if self.flag else ""
        return head + self.message + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag."""

    name: str  # without the two dashes; of a malformed flag (``-x``, ``--``) the unchanged text
    # without quotes; None for a bare flag, empty for ``--flag=``
    value: str | None = None

    @property
    def key(self) -> str:
        """The flag as it is written before the equals sign."""
        return f"--{self.name}" if _WELL_FORMED.match(f"--{self.name}") else self.name

    @property
    def word(self) -> str:
        """The flag as a word of a command line, its value as it is."""
        return self.key if self.value is None else f"{self.key}={self.value}"

    @property
    def text(self) -> str:
        """The flag as XLA_FLAGS text, quoted where the value needs it."""
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
    """What XLA makes of a text."""

    flags: tuple[Flag, ...] = ()  # in the order of the text, repetitions included
    text: str = ""  # the text itself
    # the rest of the text after the first bare word, which XLA never sees
    ignored: str = ""
    # the file that XLA reads instead, where the text does not begin with ``-``; `flags` is then
    # empty
    file: str = ""
    findings: tuple[FlagFinding, ...] = ()  # mistakes in the form of the text

    def effective(self) -> dict[str, str | None]:
        """The value that counts for each flag: the last, or all of them for a list that
        accumulates.
        """
        return effective(self.flags)

    def value(self, name: str) -> str | None:
        """The value that counts for `name`, ``true`` for a bare flag; None where it is not set."""
        values = self.effective()
        if name not in values:
            return None
        value = values[name]
        return "true" if value is None else value

    def is_true(self, name: str) -> bool | None:
        """A boolean flag as XLA reads it; None where it is not set or not a boolean."""
        return as_bool(self.value(name))


@dataclass(frozen=True, slots=True)
class FlagPlan:
    """How a run is to be started."""

    # our flags that are added; a user's flag with another value wins
    flags: tuple[Flag, ...]
    xla_flags: str  # the whole XLA_FLAGS, ours first and then the user's text unchanged
    # what gives way (``kept``), is left out or will go wrong, and what the user's text hides
    warnings: tuple[FlagFinding, ...]
    environment: Mapping[str, str] = field(
        default_factory=dict
    )  # variables to set where the user has not set them


def parse_flags(text: str) -> FlagList:
    """Read the text of XLA_FLAGS as XLA does. Never raises: the findings list the mistakes."""
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
    """A flag of a command line, ``--name=value``, where a value with blanks needs no quotes."""
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
    """XLA_FLAGS text of the flags; `parse_flags` gives them back."""
    return " ".join(flag.text for flag in flags)


def to_be_extended(text: str) -> str:
    """XLA_FLAGS for a program that may add flags to it at either end. Programs are written for an
    empty variable, so they may leave out the blank: ``flags + "--xla_a=1"``.
    """
    return f" {text} " if text else text


def kept_flags(text: str) -> str:
    """XLA_FLAGS, or the file that it names, with what looks like a credential masked."""
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
    """The value that counts for each flag name, in the order of first occurrence."""
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
    """Add our flags to the user's. The user's flags win and stay unchanged; a warning names each of
    ours that lost.

    Args:
        user: the user's flags. Where they name a file, pass what the file holds.
        ours: flags to add; of repeated ones the last counts.
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
    """Whether two values mean the same: booleans by meaning (bare, ``true``, ``1``), others by
    text.
    """
    one = True if first is None else as_bool(first)
    other = True if second is None else as_bool(second)
    return first == second if one is None else one == other


def as_bool(value: str | None) -> bool | None:
    """``true``/``1`` and ``false``/``0`` in any case; None for anything else."""
    words: Mapping[str, bool] = {"true": True, "1": True, "false": False, "0": False}
    return None if value is None else words.get(value.lower())


def _one(text: str, start: int) -> tuple[Flag, int]:
    """The flag that begins at `start`, and where it ends."""
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
"""Hyphens, dashes and minus signs of Unicode that a word processor or a web page puts in place of
``-``.
"""
_CURLED = re.compile("[\u2018-\u201f\u00ab\u00bb\u2032\u2033]")
"""Quotes of Unicode, which no shell and no XLA reads as quotes."""
_STRAIGHT = "'\""


def _plain(text: str) -> str:
    """The text with ASCII's dashes and without quotes of Unicode.

    A long dash at the beginning means ``--``.
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
    """What XLA makes of a text that does not begin with ``-``, and whether that was meant."""
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
    """Quotes in a flag that XLA takes for a part of the value, or that never end."""
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
    is_path = "/" in value  # an apostrophe and a dash may belong to its names
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
            message = f"'{flag.name}' has not the form --flag=value"
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
