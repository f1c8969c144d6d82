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
_COMMENT = re.compile(r"\A\s*//.*|(?:^|\s+)#.*")
_FILLED_IN = re.compile(r"[${}%<>`@+]|\A\Z")
"""In a value that a shell, Python or a template fills in; an empty one is put together."""
_NOT_OF_XLA = ("LIBTPU_INIT_ARGS", "add_argument(")
"""In lines whose flags are those of libtpu, which no jaxlib knows, or a program's own options."""

OF_NAMES = ("unknown", "removed", "too-new", "uncertain")
OF_VALUES = ("bad-value", "needs-value")
"""Codes of findings that hold for a flag whatever others there are: about its name, its value."""
_NAMES_FLAGS = (".py",)
"""Files that name flags without values: in docstrings, and to add a value later."""


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
    """The flags in the order of a text, without those in comments, those of TPUs, and beginnings of
    names (``--xla_gpu_*``).
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
    """What a release says of each flag, at its place; `verdicts` as of `lint`."""
    for item in flags:
        codes = _judged(path, item.flag)
        found = lint(FlagList((item.flag,)), jaxlib, verdicts)
        for finding in found.findings:
            if finding.code in codes:
                yield ScriptFinding(path, item.line, finding)


def _judged(path: str, flag: Flag) -> Sequence[str]:
    """The codes of findings that hold for a flag in a file."""
    if _is_filled_in(flag):
        return OF_NAMES
    if flag.value is None and path.endswith(_NAMES_FLAGS):
        return OF_NAMES
    return (*OF_NAMES, *OF_VALUES)


def _is_filled_in(flag: Flag) -> bool:
    """Whether the value is known only when the script runs."""
    return flag.value is not None and _FILLED_IN.search(flag.value) is not None
