"""The verdict on a log, as a page and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pgle.errors import cut, many, shown, some
from pgle.report import text
from pgle.report.page.value import Cell, Page, Prose, Section, Table, Tone, table
from pgle.xla.log.verdict import LogVerdict, ModuleVerdict, ProfileUse

SCHEMA = "pgle.confirm/1"
MAX_NAMES = 4
STALE = ", but it was made for another compilation"
PROOF = 96  # characters of the line that proves it; `--section modules` has all

_DONE = re.compile(r"-done(\.\d+)*$")
_WORDS = {
    ProfileUse.USED: "profile used",
    ProfileUse.PARTLY_USED: "profile partly used",
    ProfileUse.USED_WITHOUT_MATCHES: "profile read, but no name matches",
    ProfileUse.NOT_USED: "profile not used",
    ProfileUse.WRONG_FORMAT: "profile not readable",
    ProfileUse.CANNOT_TELL: "cannot tell whether the profile was used",
}
TONES: dict[ProfileUse, Tone] = {
    ProfileUse.USED: "good", ProfileUse.PARTLY_USED: "warn", ProfileUse.USED_WITHOUT_MATCHES: "warn",
    ProfileUse.CANNOT_TELL: "warn", ProfileUse.NOT_USED: "bad", ProfileUse.WRONG_FORMAT: "bad",
}  # fmt: skip


def confirm_page(log: str, verdict: LogVerdict, following: Sequence[str] = ()) -> Page:
    """The main module: whether it used the profile, and why; the other modules in a section."""
    main, others = verdict.main, verdict.modules[1:]
    uses = {use: [item for item in others if item.verdict is use] for use in ProfileUse}
    notes = list(main_lines(main))
    if len(verdict.ranks) > 1:
        notes.insert(0, f"ranks: {_ranks_text(verdict.ranks)}")
    if others:
        counts = ", ".join(f"{len(items)} {use.replace('-', ' ')}" for use, items in uses.items() if items)
        notes.append(f"{many(len(others), 'other module')}: {counts} (--section modules)")
    lines = (
        f"{many(verdict.sub_modules, 'module')} of the kernel autotuner and of fusions are left out."
        if verdict.sub_modules else "",
        *(f"{path} was read for {many(times, 'module')}." for path, times in verdict.reads.items()),
    )  # fmt: skip
    return Page(
        title=f"pgle confirm {log}",
        identity=(log,),
        verdict=shown(f"{use_line(main)}{STALE if is_stale(main) else ''}"),
        tone="warn" if is_stale(main) else TONES[main.verdict],
        notes=tuple(map(shown, notes)),
        sections=(Section("modules", "Modules", (_modules(verdict.modules), *(Prose(shown(x)) for x in lines if x))),),
        next=tuple(following),
        warnings=tuple(verdict.warnings),
    )


def use_line(main: ModuleVerdict) -> str:
    """``jit_train_step: profile used (36 of 36 instructions)``."""
    counted = f" ({main.covered:,} of {main.wanted:,} instructions)" if main.wanted and main.covered is not None else ""
    return f"{name_of(main)}: {_WORDS[main.verdict]}{counted}"


def is_stale(main: ModuleVerdict) -> bool:
    """Whether XLA used a profile of which it says that it may not fit."""
    return main.verdict is ProfileUse.USED and bool(main.remedy)


def main_lines(main: ModuleVerdict) -> Iterator[str]:
    """What follows `use_line`: the reason, the proof, the gaps, the remedy."""
    yield main.why
    if main.line is not None:
        yield cut(f"line {main.line}: {main.proof}", PROOF)
    if lacking := [name for name in main.missing_names if not _DONE.search(name)]:
        yield f"XLA missed: {some(lacking, MAX_NAMES)}"
    if note := _uncounted(main):
        yield note
    if main.remedy:
        yield f"{'note' if main.verdict is ProfileUse.USED else 'to do'}: {main.remedy}"


def _ranks_text(ranks: Mapping[str, ProfileUse]) -> str:
    parts = []
    for use in dict.fromkeys(ranks.values()):
        names = [rank or "(no label)" for rank, verdict in ranks.items() if verdict is use]
        parts.append(f"{use} on {some(names, MAX_NAMES)}")
    return "; ".join(parts)


def _uncounted(main: ModuleVerdict) -> str:
    """Why XLA's own numbers are others; empty if they are not."""
    if main.wanted is None or main.found is None:
        return ""
    counted = main.found + (main.missing or 0)
    if (main.found, counted) == (main.covered, main.wanted):
        return ""
    also = [f"{main.mismatched} of those found are costs of other instructions of that name"] if main.mismatched else []
    if counted != main.wanted:
        also.append("it counts dones and loop conditions too, which need no cost, and asynchronous fusions twice")
    return f"XLA's log counts {main.found} found and {main.missing or 0} missed: {', '.join(also)}" if also else ""


def name_of(item: ModuleVerdict) -> str:
    """The module's name, or what to call one that the log never names."""
    return item.module or "(module not named)"


def document(verdict: LogVerdict) -> dict[str, object]:
    """``pgle.confirm/1`` without its name; `used` is whether the main module used the profile."""
    return {
        "used": verdict.main.verdict is ProfileUse.USED,
        **text.picked(verdict, "main modules ranks sub_modules reads warnings"),
    }


def _modules(items: Sequence[ModuleVerdict]) -> Table:
    rows = (
        (shown(f"{name_of(item)}{f' ×{item.times}' if item.times > 1 else ''}"),
         Cell(str(item.verdict), TONES[item.verdict]), item.found, item.missing,
         "" if item.line is None else str(item.line), shown(item.proof))
        for item in items
    )  # fmt: skip
    return table("module | verdict | XLA found (count) | XLA missed (count) | line | proof", rows)
