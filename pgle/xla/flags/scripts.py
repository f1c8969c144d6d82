"""The XLA flags that a launch script names, with their lines.

A script may choose between flags, and set values by variables. So only what holds for each flag
alone is judged: whether the release knows it, and takes its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pgle.xla.flags.catalogue import lint
from pgle.xla.flags.text import Flag, FlagFinding, FlagList

_FLAG = re.compile(
    r"""(?<![\w-])--(xla_\w+)(?:=("[^"\n]*"|'[^'\n]*'|[^\s"'\\;),]*))?"""
)
_COMMENT = re.compile(r"\s*(#|//)")
_FILLED_IN = re.compile(r"[${}%<>]")
"""In a value that a shell, Python or a template fills in."""

OF_NAMES = ("unknown", "removed", "too-new", "uncertain")
OF_VALUES = ("bad-value", "needs-value")
"""Codes of findings that hold for a flag whatever others there are: about its name, its value."""


@dataclass(frozen=True, slots=True)
class ScriptFlag:
    """A flag in a script."""

    line: int  # from 1
    flag: Flag


@dataclass(frozen=True, slots=True)
class ScriptFinding:
    """Something to say about a flag in a script."""

    path: str
    line: int
    finding: FlagFinding

    @property
    def place(self) -> str:
        """``run.sh:3``."""
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class ScriptsLint:
    """The remarks on the flags of scripts."""

    jaxlib: str  # the release that they were checked for
    asked: bool  # as of `Lint`
    files: int
    flags: int
    findings: tuple[ScriptFinding, ...]  # in the order of the scripts

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return all(item.finding.level != "error" for item in self.findings)


def flags_in_script(text: str) -> tuple[ScriptFlag, ...]:
    """The flags in the order of a text, without those in lines of comments."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if _COMMENT.match(line):
            continue
        for match in _FLAG.finditer(line):
            value = match[2]
            if value is not None:
                value = value.strip("\"'")
            found.append(ScriptFlag(number, Flag(match[1], value)))
    return tuple(found)


def findings_in(
    path: str,
    flags: Sequence[ScriptFlag],
    jaxlib: str,
    verdicts: Mapping[str, tuple[str, str]] | None = None,
) -> Iterator[ScriptFinding]:
    """What a release says of each flag, at its place; `verdicts` as of `lint`."""
    for item in flags:
        codes = OF_NAMES if _is_filled_in(item.flag) else (*OF_NAMES, *OF_VALUES)
        found = lint(FlagList((item.flag,)), jaxlib, verdicts)
        for finding in found.findings:
            if finding.code in codes:
                yield ScriptFinding(path, item.line, finding)


def _is_filled_in(flag: Flag) -> bool:
    """Whether the value is known only when the script runs."""
    return flag.value is not None and _FILLED_IN.search(flag.value) is not None
