"""Settings of XLA, NCCL, CUDA and JAX as pages: lists, explanations, lint, presets. Also the table
that a flag takes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pgle.errors import many
from pgle.next import Commands, Next, quoted, to_way
from pgle.report.page.figures import Unit
from pgle.report.page.value import (
    Cell,
    Column,
    Page,
    Prose,
    Section,
    Table,
    Tone,
    Value,
    table,
)
from pgle.report.text import Document, flat
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
    from pgle.xla.flags.scripts import ScriptsLint
    from pgle.xla.flags.text import FlagFinding

LEVELS: dict[str, Tone] = {"error": "bad", "warning": "warn", "note": "soft"}
RECORD = "record"  # the section of `setting_page` that the first screen repeats
HEADING = "Step time as others measured it (− is shorter; notes: --section reports)"
LISTED = 30  # settings on the first screen
REPORTS = 3  # published measurements on the first screen
# shell text that puts the flags already set after ours, so that they win
USERS_OWN = '"${XLA_FLAGS:+ $XLA_FLAGS}"'
_THREAD = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)")


class SettingDocument(Document):
    """A setting, its default in the newest jaxlib, and what others measured."""

    setting: KnownSetting = flat()
    lifetime: str
    default: str | None
    record: tuple[Effect, ...]


class ListDocument(Document):
    """``pgle.flags/1`` of `pgle flags list`."""

    jaxlib: str
    settings: tuple[SettingDocument, ...]


class ExplainDocument(Document):
    """``pgle.flags/1`` of `pgle flags explain`."""

    setting: SettingDocument


class LintDocument(Document):
    """``pgle.flags/1`` of `pgle flags lint`."""

    ok: bool
    found: Lint = flat()


class ScriptsLintDocument(Document):
    """``pgle.flags/1`` of `pgle flags lint-scripts`."""

    ok: bool
    found: ScriptsLint = flat()


class PresetsDocument(Document):
    """``pgle.flags/1`` of `pgle flags preset` without a name: each preset and its purpose."""

    presets: Mapping[str, str]


class ExportedPreset(Document):
    """A preset, and what it sets."""

    preset: Preset = flat()
    xla_flags: str
    environment: Mapping[str, str]


class PresetDocument(Document):
    """``pgle.flags/1`` of `pgle flags preset`."""

    preset: ExportedPreset


def setting_document(setting: KnownSetting) -> SettingDocument:
    """Return a setting with its default and its published effects."""
    return SettingDocument(
        setting=setting,
        lifetime=setting.lifetime,
        default=setting.default(),
        record=effects_of(setting.name),
    )


def list_page(settings: Sequence[KnownSetting], jaxlib: str, pattern: str) -> Page:
    """Settings with their meaning, and whether a release of jaxlib has them."""
    rows = [_listed(item, jaxlib) for item in settings]
    named = settings[0].name if len(settings) == 1 else "NAME"
    holds = f"name or meaning holds '{pattern}'" if pattern else ""
    return Page(
        title="pgle flags list",
        identity=(f"jaxlib {jaxlib}", holds),
        verdict=many(len(settings), "setting"),
        table=table(("setting", "meaning"), rows, shown=LISTED),
        way=to_way([Next.of("flags", "explain", named)]),
    )


def _listed(item: KnownSetting, jaxlib: str) -> tuple[Value, ...]:
    """The name of a setting and its meaning, with the program that reads it, or why it was
    removed.
    """
    if not item.is_flag:
        return item.name, f"{item.meaning} Read by {item.reader}."
    if known_in(item.name, jaxlib):
        return item.name, item.meaning
    remedy = f": use {item.use}" if item.use else ""
    return item.name, f"{item.meaning} Not in jaxlib {jaxlib}{remedy}."


def setting_page(setting: KnownSetting) -> Page:
    """Show everything about one setting: facts in the table, published measurements in the section
    `RECORD`.
    """
    effects = effects_of(setting.name)
    reader = "" if setting.is_flag else f"read by {setting.reader}"
    lines = (f"{item.line} {item.note}".rstrip() for item in effects)
    sections = (
        Section(RECORD, HEADING, (_record(effects),)),
        Section("reports", "The reports", tuple(map(Prose, lines))),
    )
    return Page(
        title=f"{setting.name} · pgle flags explain",
        identity=(setting.name, setting.kind, reader),
        verdict=setting.meaning,
        table=table(("", ""), _facts(setting), shown=99),
        sections=sections,
        way=to_way([_next(setting)]),
    )


def _facts(setting: KnownSetting) -> Iterator[tuple[str, str]]:
    """Yield names and values of what is known."""
    facts = {
        "default": _defaults(setting),
        "values": ", ".join(setting.values),
        "jaxlib": _releases(setting),
        "use instead": setting.use,
        "profile": _fingerprint(setting),
        "decides": _decides(setting),
        "interacts": ", ".join(setting.interacts),
    }
    yield from (fact for fact in facts.items() if fact[1])
    for place, remark in enumerate(setting.remarks):
        yield "" if place else "remark", remark
    yield "source", "; ".join(setting.source)


def _defaults(setting: KnownSetting) -> str:
    """Return ``false from 0.4.31; true from 0.7.0``; the value alone if it never changed."""
    values = [value or "(empty)" for _, value in setting.defaults]
    if len(values) == 1:
        return values[0]
    starts = [start for start, _ in setting.defaults]
    changes = zip(values, starts, strict=True)
    return "; ".join(f"{value} from {start}" for value, start in changes)


def _releases(setting: KnownSetting) -> str:
    """The releases that know a flag; empty if all do."""
    is_everywhere = not setting.is_flag or setting.lifetime == "all"
    return "" if is_everywhere else setting.lifetime


def _fingerprint(setting: KnownSetting) -> str:
    """Whether a profile stays valid under another value; empty if unknown."""
    if not setting.fingerprint:
        return ""
    if setting.fingerprint == "changes":
        return "changes the module's fingerprint: set it in the profile run too"
    return "keeps the module's fingerprint: a profile stays valid"


def _decides(setting: KnownSetting) -> str:
    """The stage of the compiler that reads a setting; empty if unknown."""
    if not setting.stage:
        return ""
    what = "the schedule" if setting.stage == "schedule" else "what is scheduled"
    if not setting.tries:
        return what
    return f"{what} (pgle tune tries {', '.join(setting.tries)})"


def _record(effects: Sequence[Effect]) -> Table:
    """What others measured when they changed a flag."""
    heads = ("change", "program", "GPUs", Column("more flags", Unit.COUNT), "source")
    return table(heads, map(_effect, effects), shown=REPORTS)


def _effect(item: Effect) -> tuple[Value, ...]:
    """A row for a published measurement of a flag."""
    others = len(item.set) - 1 or None
    source = _THREAD.sub(r"\1#\2", item.source)
    return item.readings, item.program, item.gpus, others, source


def _next(setting: KnownSetting) -> Next:
    """The command that tries another value. A setting that was renamed is explained under its
    new name.
    """
    if setting.use:
        return Next.of("flags", "explain", setting.use)
    if not setting.stage:
        return Next.of("flags", "lint")
    flag = f"--flag=--{setting.name}={_value_to_try(setting)}"
    return Next.of("rehearse", flag, "--", "COMMAND")


def _value_to_try(setting: KnownSetting) -> str:
    """A value to try, or a word that the user replaces."""
    if setting.tries:
        return setting.tries[0]
    return "true" if setting.kind == "bool" else "VALUE"


def lint_page(result: Lint, following: Commands = ()) -> Page:
    """The problems of some flags, worst first, with remedies."""
    findings = table(("level", "finding", "what to do"), map(_found, result.findings))
    return Page(
        title="pgle flags lint",
        identity=(many(result.flags, "flag"), _release(result)),
        verdict=_verdict(result.findings),
        tone=_tone(result.findings),
        table=findings,
        way=to_way(following or (_explanation(result.findings),)),
    )


def scripts_page(result: ScriptsLint) -> Page:
    """The problems of flags in scripts, with their places."""
    findings = [item.finding for item in result.findings]
    rows = [(item.place, *_found(item.finding)) for item in result.findings]
    given = f"{many(result.flags, 'flag')} in {many(result.files, 'script')}"
    return Page(
        title="pgle flags lint-scripts",
        identity=(given, _release(result)),
        verdict=_verdict(findings),
        tone=_tone(findings),
        table=table(("where", "level", "finding", "what to do"), rows),
        way=to_way((_explanation(findings),)),
    )


def _release(result: Lint | ScriptsLint) -> str:
    by = "asked" if result.asked else "catalogue"
    return f"jaxlib {result.jaxlib} ({by})"


def _verdict(findings: Iterable[FlagFinding]) -> str:
    levels = Counter(finding.level for finding in findings)
    return f"{many(levels['error'], 'error')}, {many(levels['warning'], 'warning')}"


def _tone(findings: Iterable[FlagFinding]) -> Tone:
    levels = {finding.level for finding in findings}
    if "error" in levels:
        return "bad"
    return "warn" if "warning" in levels else "good"


def _explanation(findings: Iterable[FlagFinding]) -> Next:
    """The command that explains the first flag with a problem, or lists all flags."""
    for finding in findings:
        if finding.flag in catalogue():
            return Next.of("flags", "explain", finding.flag)
    return Next.of("flags", "list")


def _found(finding: FlagFinding) -> tuple[Value, ...]:
    """A row for a finding: how bad it is, what it is, and what to do."""
    level = Cell(finding.level, LEVELS[finding.level])
    about = f"--{finding.flag}: " if finding.flag else ""
    return level, f"{about}{finding.message}", finding.remedy


def preset_lines(preset: Preset) -> Iterator[str]:
    """The lines to put into a shell: one ``export`` for XLA_FLAGS and one for each variable."""
    if preset.flags:
        yield f"export XLA_FLAGS={quoted(preset.xla_flags)}{USERS_OWN}"
    for name, value in preset.environment.items():
        yield f"export {name}={quoted(value)}"


def preset_reasons(preset: Preset) -> Iterator[str]:
    """Each setting of a preset with its reason and source."""
    for choice in preset.choices:
        written = f"{choice.name}={choice.value}"
        if choice.is_flag:
            written = choice.flag.text
        yield f"{written}: {choice.reason} ({choice.source})"


def presets_page(rows: Sequence[tuple[str, str]]) -> Page:
    """The names of presets and their purposes."""
    return Page(
        title="pgle flags preset",
        identity=(many(len(rows), "preset"),),
        verdict="Named sets of settings",
        table=table(("preset", "for"), rows, shown=99),
        way=to_way([Next.of("flags", "preset", "recommended")]),
    )
