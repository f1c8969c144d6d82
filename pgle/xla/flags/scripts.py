"""The XLA flags in a launch script, with their lines.

A script may choose between flags and set values by variables. So pgle judges each flag alone:
whether the release knows the flag and accepts its value.
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
_COMMENT = re.compile(r"\A\s*//.*|(?:^|\s+)#.*")
_FILLED_IN = re.compile(r"[${}%<>`@+]|\A\Z")
"""Matches a value that a shell, Python or a template fills in. An empty value is built from
parts.
"""
_NOT_OF_XLA = ("LIBTPU_INIT_ARGS", "add_argument(")
"""Marks of lines with other flags: those of libtpu, which no jaxlib knows, or the program's
options.
"""

OF_NAMES = ("unknown", "removed", "too-new", "uncertain")
OF_VALUES = ("bad-value", "needs-value")
"""Codes of findings about a flag's name or value, which no other flag changes."""
_NAMES_FLAGS = (".py",)
"""Suffixes of files that name flags without values, in docstrings or to add a value later."""


@dataclass(frozen=True, slots=True)
class ScriptFlag:
    """A flag in a script."""

    line: int  # line number, from 1
    flag: Flag


@dataclass(frozen=True, slots=True)
class ScriptFinding:
    """A finding about a flag in a script."""

    path: str
    line: int
    finding: FlagFinding

    @property
    def place(self) -> str:
        """The file and line, as ``run.sh:3``."""
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class ScriptsLint:
    """The findings about the flags of scripts."""

    jaxlib: str  # the jaxlib release that was checked
    asked: bool  # as in `Lint`
    files: int
    flags: int
    findings: tuple[ScriptFinding, ...]  # in the order of the scripts

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return all(item.finding.level != "error" for item in self.findings)


def flags_in_script(text: str) -> tuple[ScriptFlag, ...]:
    """Return the flags in a text, in order.

    Flags in comments, flags of TPUs and beginnings of names (``--xla_gpu_*``) are left out.
    """
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if any(word in line for word in _NOT_OF_XLA):
            continue
        for match in _FLAG.finditer(_COMMENT.sub("", line, count=1)):
            name, value = match[1], match[2]
            if name.endswith("_") or name.startswith("xla_tpu_"):
                continue
            if value is not None:
                value = value.strip("\"'")
            found.append(ScriptFlag(number, Flag(name, value)))
    return tuple(found)


def findings_in(
    path: str,
    flags: Sequence[ScriptFlag],
    jaxlib: str,
    verdicts: Mapping[str, tuple[str, str]] | None = None,
) -> Iterator[ScriptFinding]:
    """Yield the findings of a release for each flag, with their places.

    Args:
        path: the script.
        flags: its flags.
        jaxlib: the release.
        verdicts: as in `lint`.
    """
    for item in flags:
        codes = _judged(path, item.flag)
        found = lint(FlagList((item.flag,)), jaxlib, verdicts)
        for finding in found.findings:
            if finding.code in codes:
                yield ScriptFinding(path, item.line, finding)


def _judged(path: str, flag: Flag) -> Sequence[str]:
    """Return the codes of findings that apply to a flag in a file."""
    if _is_filled_in(flag):
        return OF_NAMES
    if flag.value is None and path.endswith(_NAMES_FLAGS):
        return OF_NAMES
    return (*OF_NAMES, *OF_VALUES)


def _is_filled_in(flag: Flag) -> bool:
    """Whether the script computes the value at run time."""
    return flag.value is not None and _FILLED_IN.search(flag.value) is not None
