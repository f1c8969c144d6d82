"""Whether XLA used a profile, as a page and as JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pgle.errors import cut, many, shown, some
from pgle.next import Commands, to_way
from pgle.report.page.figures import Unit
from pgle.report.page.value import (
    Cell,
    Column,
    Page,
    Part,
    Prose,
    Section,
    Table,
    Tone,
    Value,
    table,
)
from pgle.report.text import Document
from pgle.xla.log.verdict import LogVerdict, ModuleVerdict, ProfileUse

MAX_NAMES = 4
PROOF = 96  # characters of the log line that proves it; `--section modules` shows all

_DONE = re.compile(r"-done(\.\d+)*$")
_USE_WORDS = {
    ProfileUse.USED: "profile used",
    ProfileUse.PARTLY_USED: "profile partly used",
    ProfileUse.USED_WITHOUT_MATCHES: "profile read, but no name matches",
    ProfileUse.ENDED: "the program ended, though the scheduler took the profile",
    ProfileUse.DIFFERENT: "the ranks used different profiles",
    ProfileUse.NOT_USED: "profile not used",
    ProfileUse.WRONG_FORMAT: "profile not readable",
    ProfileUse.CANNOT_TELL: "cannot tell whether the profile was used",
}
USE_TONES: dict[ProfileUse, Tone] = {
    ProfileUse.USED: "good",
    ProfileUse.PARTLY_USED: "warn",
    ProfileUse.USED_WITHOUT_MATCHES: "warn",
    ProfileUse.CANNOT_TELL: "warn",
    ProfileUse.ENDED: "bad",
    ProfileUse.DIFFERENT: "bad",
    ProfileUse.NOT_USED: "bad",
    ProfileUse.WRONG_FORMAT: "bad",
}


def confirm_page(log: str, verdict: LogVerdict, following: Commands = ()) -> Page:
    """The main module: whether it used the profile, and why; the other modules in a section."""
    main = verdict.main
    notes = (_ranks_line(verdict.ranks), *main_lines(main), _others_line(verdict))
    lines = (Prose(shown(line)) for line in _log_lines(verdict))
    modules: tuple[Part, ...] = (_module_rows(verdict.modules), *lines)
    return Page(
        title=f"pgle confirm {log}",
        identity=(log,),
        verdict=shown(use_line(main)),
        tone=USE_TONES[main.verdict],
        notes=tuple(map(shown, notes)),
        sections=(Section("modules", "Modules", modules),),
        way=to_way(following),
        warnings=tuple(verdict.warnings),
    )


def _others_line(verdict: LogVerdict) -> str:
    """Count the other modules by their use of the profile; empty if there are none."""
    others = verdict.modules[1:]
    if not others:
        return ""
    uses = Counter(item.verdict for item in others)
    counts = [f"{uses[use]} {use.replace('-', ' ')}" for use in ProfileUse if uses[use]]
    modules = many(len(others), "other module")
    return f"{modules}: {', '.join(counts)} (--section modules)"


def _log_lines(verdict: LogVerdict) -> Iterator[str]:
    """Say what the verdict ignores, and for how many modules XLA read each profile."""
    if verdict.sub_modules:
        modules = many(verdict.sub_modules, "module")
        yield f"{modules} of the kernel autotuner and of fusions are left out."
    for path, times in verdict.reads.items():
        yield f"{path} was read for {many(times, 'module')}."


def use_line(main: ModuleVerdict) -> str:
    """``jit_train_step: profile used (36 of 36 instructions)``."""
    counted = ""
    if main.wanted and main.covered is not None:
        counted = f" ({main.covered:,} of {main.wanted:,} instructions)"
    return f"{name_of(main)}: {_USE_WORDS[main.verdict]}{counted}"


def main_lines(main: ModuleVerdict) -> Iterator[str]:
    """Yield the reason, the proof, the gaps and the remedy: the lines below `use_line`."""
    yield main.why
    if main.line is not None:
        yield cut(f"line {main.line}: {main.proof}", PROOF)
    yield from _counted_by_xla(main)
    if lacking := [name for name in main.missing_names if not _DONE.search(name)]:
        yield f"XLA missed: {some(lacking, MAX_NAMES)}"
    if main.remedy:
        label = "note" if main.verdict is ProfileUse.USED else "to do"
        yield f"{label}: {main.remedy}"


def _counted_by_xla(main: ModuleVerdict) -> Iterator[str]:
    """If XLA's log has other counts than `use_line`, say why."""
    if main.found is None or main.covered is None or main.found == main.covered:
        return
    yield (
        f"XLA's {main.found:,} count asynchronous instructions twice and some that no "
        f"schedule needs; pgle counts each of the {main.wanted:,} once."
    )


def _ranks_line(ranks: Mapping[str, ProfileUse]) -> str:
    """``ranks: used on rank0, rank1; not-used on rank2``; empty for one rank."""
    if len(ranks) < 2:
        return ""
    by_use: dict[ProfileUse, list[str]] = {}
    for rank, use in ranks.items():
        by_use.setdefault(use, []).append(rank or "(no label)")
    parts = [f"{use} on {some(names, MAX_NAMES)}" for use, names in by_use.items()]
    return f"ranks: {'; '.join(parts)}"


def name_of(item: ModuleVerdict) -> str:
    """Return the module's name, or a text if the log never names it."""
    return item.module or "(module not named)"


def _module_rows(items: Sequence[ModuleVerdict]) -> Table:
    heads = (
        "module",
        "verdict",
        Column("XLA found", Unit.COUNT),
        Column("XLA missed", Unit.COUNT),
        "line",
        "proof",
    )
    return table(heads, map(_module_row, items))


def _module_row(item: ModuleVerdict) -> tuple[Value, ...]:
    """A row for a module: what XLA did with the profile, how many names it found, the log line."""
    times = f" ×{item.times}" if item.times > 1 else ""
    return (
        shown(f"{name_of(item)}{times}"),
        Cell(str(item.verdict), USE_TONES[item.verdict]),
        item.found,
        item.missing,
        "" if item.line is None else str(item.line),
        shown(item.proof),
    )


class ConfirmDocument(Document):
    """``pgle.confirm/1``; `used` is whether the main module used the profile."""

    used: bool
    main: ModuleVerdict
    modules: tuple[ModuleVerdict, ...]
    ranks: Mapping[str, ProfileUse]
    sub_modules: int
    reads: Mapping[str, int]
    warnings: tuple[str, ...]


def confirm_document(verdict: LogVerdict) -> ConfirmDocument:
    """The verdict on a log."""
    used = verdict.main.verdict is ProfileUse.USED
    return ConfirmDocument.of_value(verdict, used=used)
