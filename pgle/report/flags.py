"""Settings of XLA, NCCL, CUDA and JAX as pages: lists, explanations, lint, presets; and the table
that a flag takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pgle.errors import many
from pgle.next import Commands, Next, quoted, to_way
from pgle.report import text
from pgle.report.page.value import Cell, Page, Prose, Section, Table, Tone, Value, table
from pgle.xla.flags.catalogue import (
    Effect,
    KnownSetting,
    catalogue,
    effects_of,
    known_in,
)

if TYPE_CHECKING:
    from pgle.xla.flags.catalogue import Lint
    from pgle.xla.flags.presets import Preset
    from pgle.xla.flags.text import FlagFinding

LEVELS: dict[str, Tone] = {"error": "bad", "warning": "warn", "note": "soft"}
RECORD = "record"  # the section of `setting_page` that the first screen has too
HEADING = "Step time as others measured it (− is shorter; notes: --section reports)"
LISTED = 30  # settings on the first screen
REPORTS = 3  # published measurements on the first screen
# shell text that puts the flags already set behind ours, where they win
USERS_OWN = '"${XLA_FLAGS:+ $XLA_FLAGS}"'
_THREAD = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)")


def setting_json(setting: KnownSetting) -> dict[str, Any]:
    """A setting as JSON types."""
    record = effects_of(setting.name)
    return {
        **text.whole(setting, "lifetime"),
        "default": setting.default(),
        "record": record,
    }


def list_page(settings: Sequence[KnownSetting], jaxlib: str, pattern: str) -> Page:
    """Settings with their meaning, and whether a release of jaxlib has them."""
    rows = [_listed(item, jaxlib) for item in settings]
    named = settings[0].name if len(settings) == 1 else "NAME"
    return Page(
        title="pgle flags list",
        identity=(
            f"jaxlib {jaxlib}",
            *([f"name or meaning holds '{pattern}'"] if pattern else []),
        ),
        verdict=many(len(settings), "setting"),
        table=table("setting | meaning", rows, shown=LISTED),
        way=to_way([Next.of("flags", "explain", named)]),
    )


def _listed(item: KnownSetting, jaxlib: str) -> tuple[Value, ...]:
    present = not item.is_flag or known_in(item.name, jaxlib)
    gone = (
        ""
        if present
        else f" Not in jaxlib {jaxlib}{f': use {item.use}' if item.use else ''}."
    )
    reader = "" if item.is_flag else f" Read by {item.reader}."
    return item.name, f"{item.meaning}{gone}{reader}"


def setting_page(setting: KnownSetting) -> Page:
    """Everything about one setting: facts in the table, published measurements in the section
    `RECORD`.
    """
    effects = effects_of(setting.name)
    return Page(
        title=f"{setting.name} · pgle flags explain",
        identity=(
            setting.name,
            setting.kind,
            *([] if setting.is_flag else [f"read by {setting.reader}"]),
        ),
        verdict=setting.meaning,
        table=table(" | ", _facts(setting), shown=99),
        sections=(
            Section(RECORD, HEADING, (_record(effects),)),
            Section(
                "reports",
                "The reports",
                tuple(Prose(f"{item.line} {item.note}".rstrip()) for item in effects),
            ),
        ),
        way=to_way([_next(setting)]),
    )


def _facts(setting: KnownSetting) -> Iterator[tuple[str, str]]:
    history = [
        f"{value or '(empty)'} from {start}" for start, value in setting.defaults
    ]
    if len(history) == 1:
        history = [setting.defaults[0][1] or "(empty)"]
    yield from [("default", "; ".join(history))] if history else []
    yield from [("values", ", ".join(setting.values))] if setting.values else []
    yield from (
        [("jaxlib", setting.lifetime)]
        if setting.is_flag and setting.lifetime != "all"
        else []
    )
    yield from [("use instead", setting.use)] if setting.use else []
    if setting.fingerprint:
        kept = "keeps the module's fingerprint: a profile stays valid"
        changed = "changes the module's fingerprint: set it in the profile run too"
        yield "profile", changed if setting.fingerprint == "changes" else kept
    if setting.stage:
        tried = (
            f" (pgle tune tries {', '.join(setting.tries)})" if setting.tries else ""
        )
        yield (
            "decides",
            ("the schedule" if setting.stage == "schedule" else "what is scheduled")
            + tried,
        )
    yield from (
        [("interacts", ", ".join(setting.interacts))] if setting.interacts else []
    )
    yield from (
        ("remark" if place == 0 else "", remark)
        for place, remark in enumerate(setting.remarks)
    )
    yield "source", "; ".join(setting.source)


def _record(effects: Sequence[Effect]) -> Table:
    rows = (
        (
            item.readings,
            item.program,
            item.gpus,
            len(item.set) - 1 or None,
            _THREAD.sub(r"\1#\2", item.source),
        )
        for item in effects
    )
    return table(
        "change | program | GPUs | more flags (count) | source", rows, shown=REPORTS
    )


def _next(setting: KnownSetting) -> Next:
    if setting.use:
        return Next.of("flags", "explain", setting.use)
    if setting.stage:
        value = (
            setting.tries[0]
            if setting.tries
            else "true"
            if setting.kind == "bool"
            else "VALUE"
        )
        return Next.of("rehearse", f"--flag=--{setting.name}={value}", "--", "COMMAND")
    return Next.of("flags", "lint")


def lint_page(result: Lint, following: Commands = ()) -> Page:
    """The problems of some flags, worst first, with remedies."""
    errors = sum(finding.level == "error" for finding in result.findings)
    warnings = sum(finding.level == "warning" for finding in result.findings)
    named = next(
        (item.flag for item in result.findings if item.flag in catalogue()), ""
    )
    other = Next.of("flags", "explain", named) if named else Next.of("flags", "list")
    return Page(
        title="pgle flags lint",
        identity=(
            many(result.flags, "flag"),
            f"jaxlib {result.jaxlib} {'(asked)' if result.asked else '(catalogue)'}",
        ),
        verdict=f"{many(errors, 'error')}, {many(warnings, 'warning')}",
        tone="bad" if errors else "warn" if warnings else "good",
        table=table("level | finding | what to do", map(_found, result.findings)),
        way=to_way(following or (other,)),
    )


def _found(finding: FlagFinding) -> tuple[Value, ...]:
    level = Cell(finding.level, LEVELS[finding.level])
    return (
        level,
        f"--{finding.flag}: {finding.message}" if finding.flag else finding.message,
        finding.remedy,
    )


def preset_lines(preset: Preset) -> Iterator[str]:
    """The lines to put into a shell: one ``export`` for XLA_FLAGS and one for each variable."""
    if preset.flags:
        yield f"export XLA_FLAGS={quoted(preset.xla_flags)}{USERS_OWN}"
    for name, value in preset.environment.items():
        yield f"export {name}={quoted(value)}"


def preset_reasons(preset: Preset) -> Iterator[str]:
    """Each setting of a preset with its reason and source."""
    for choice in preset.choices:
        written = (
            choice.flag.text if choice.is_flag else f"{choice.name}={choice.value}"
        )
        yield f"{written}: {choice.reason} ({choice.source})"


def presets_page(rows: Sequence[tuple[str, str]]) -> Page:
    """The names of presets and what they are for."""
    return Page(
        title="pgle flags preset",
        identity=(many(len(rows), "preset"),),
        verdict="Named sets of settings",
        table=table("preset | for", rows, shown=99),
        way=to_way([Next.of("flags", "preset", "recommended")]),
    )
