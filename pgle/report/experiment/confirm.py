"""The verdict on a log, as text and JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rich.text import Text

from pgle.errors import cut, many, some
from pgle.report import json
from pgle.report.text import console, printable, show_rest, table, warn
from pgle.xla.log.module_verdict import ModuleVerdict, ProfileUse
from pgle.xla.log.verdict import LogVerdict

SCHEMA = "pgle.confirm/1"
MAX_ROWS = 20
MAX_NAMES = 8
MAX_MODULE = 40

_DONE = re.compile(r"-done(\.\d+)*$")

_STYLES = {
    ProfileUse.USED: "green",
    ProfileUse.PARTLY_USED: "yellow",
    ProfileUse.USED_WITHOUT_MATCHES: "yellow",
    ProfileUse.CANNOT_TELL: "yellow",
    ProfileUse.NOT_USED: "red",
    ProfileUse.WRONG_FORMAT: "red",
}


def show(verdict: LogVerdict) -> None:
    """Print a table of modules, then the verdict on the main one with its proof and remedy."""
    out = console()
    shown = verdict.modules[:MAX_ROWS]
    out.print(
        table(
            ("module", "verdict", "XLA found", "XLA missed", "line", "proof"),
            _rows(shown),
            right="XLA found|XLA missed|line",
        )
    )
    show_rest(out, len(verdict.modules) - MAX_ROWS, "more modules")
    if verdict.sub_modules:
        out.print(
            f"not shown: {many(verdict.sub_modules, 'module')} of the kernel autotuner and of fusions", style="dim"
        )
    for path, times in sorted(verdict.reads.items(), key=lambda item: -item[1])[:3]:
        out.print(Text(f"{printable(path)} was read for {many(times, 'module')}"), style="dim", soft_wrap=True)
    if len(verdict.ranks) > 1:
        out.print(Text(printable(f"ranks: {_ranks_text(verdict.ranks)}")), soft_wrap=True)
    out.print()
    for line in main_lines(verdict.main):
        out.print(Text(printable(line)), soft_wrap=True)
    warn(verdict.warnings)


def main_lines(main: ModuleVerdict) -> list[str]:
    """The verdict on one module in a few lines: what and why, the proof, what is missing, what to do."""
    lines = [f"{name_of(main)}: {main.verdict}: {main.why}"]
    if main.line is not None:
        lines.append(f"  line {main.line}: {main.proof}")
    if lacking := [name for name in main.missing_names if not _DONE.search(name)]:
        lines.append(f"  XLA missed: {some(lacking, MAX_NAMES)}")
    if note := _uncounted(main):
        lines.append(f"  {note}")
    if main.remedy:
        lines.append(f"  {'note' if main.verdict is ProfileUse.USED else 'to do'}: {main.remedy}")
    return lines


def _ranks_text(ranks: Mapping[str, ProfileUse]) -> str:
    parts = []
    for use in dict.fromkeys(ranks.values()):
        names = [rank or "(no label)" for rank, verdict in ranks.items() if verdict is use]
        parts.append(f"{use} on {some(names, MAX_NAMES)}")
    return "; ".join(parts)


def _uncounted(main: ModuleVerdict) -> str:
    """Why XLA's own numbers are others; empty where they are not."""
    if main.wanted is None or main.found is None:
        return ""
    counted = main.found + (main.missing or 0)
    if (main.found, counted) == (main.covered, main.wanted):
        return ""
    also = [f"{main.mismatched} of those found are costs of other instructions of that name"] if main.mismatched else []
    if counted != main.wanted:
        also.append("it counts dones and loop conditions too, which need no cost, and asynchronous fusions twice")
    return f"XLA's log counts {main.found} found and {main.missing or 0} missed: {', and '.join(also)}" if also else ""


def name_of(item: ModuleVerdict) -> str:
    """The module's name, or what to call one that the log never names."""
    return item.module or "(module not named)"


def show_json(verdict: LogVerdict) -> None:
    """Print the object `pgle.confirm/1`; `used` is whether the main module used the profile."""
    json.show(
        SCHEMA,
        {
            "used": verdict.main.verdict is ProfileUse.USED,
            **json.picked(verdict, "main modules ranks sub_modules reads warnings"),
        },
    )


def _rows(items: Sequence[ModuleVerdict]) -> list[tuple[object, ...]]:
    names = [cut(f"{name_of(item)}{f' ×{item.times}' if item.times > 1 else ''}", MAX_MODULE) for item in items]
    verdicts = max((len(item.verdict) for item in items), default=0)
    # "XLA found", "XLA missed" and "line" take some 30 columns with their gaps
    width = console().width - max(map(len, names), default=0) - verdicts - 42
    return [
        (
            name,
            Text(str(item.verdict), style=_STYLES[item.verdict]),
            "–" if item.found is None else item.found,
            "–" if item.missing is None else item.missing,
            "–" if item.line is None else item.line,
            cut(printable(item.proof), width),
        )
        for name, item in zip(names, items, strict=True)
    ]
