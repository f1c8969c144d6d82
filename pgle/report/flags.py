"""Settings, presets, lints and thresholds as text and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.padding import Padding
from rich.text import Text

from pgle.errors import cut, many
from pgle.next import quoted
from pgle.report import json
from pgle.report.text import console, table
from pgle.xla.flags.catalogue import Setting, known_in
from pgle.xla.flags.lint import Lint
from pgle.xla.flags.presets import Preset
from pgle.xla.flags.record import effects_of
from pgle.xla.flags.text import Finding, format_flags
from pgle.xla.flags.thresholds import Thresholds

STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}

USERS_OWN = '"${XLA_FLAGS:+ $XLA_FLAGS}"'  # shell text that puts the flags already set behind ours, where they win


def setting_json(setting: Setting) -> dict[str, Any]:
    """A setting as JSON types."""
    record = [json.plain(effect) for effect in effects_of(setting.name)]
    return {**json.whole(setting, "lifetime"), "default": setting.default(), "record": record}


def settings_list(settings: Sequence[Setting], jaxlib: str) -> None:
    """Print settings, each with its default and presence in one jaxlib release, and its meaning below."""
    out = console()
    for item in settings:
        present = not item.is_flag or known_in(item.name, jaxlib)
        default = item.default(jaxlib) if present else None
        told = [] if default is None else ["default " + (cut(default, 24) or '""')]
        told += [] if present else [f"not in jaxlib {jaxlib}", *([f"use {item.use}"] if item.use else [])]
        told += [] if item.is_flag else [f"read by {item.reader}"]
        out.print(Text.assemble((item.name, "bold"), ("  " + ", ".join(told), "dim")))
        out.print(Padding(Text(item.meaning), (0, 0, 0, 4)))
    out.print(f"{many(len(settings), 'setting')}; 'pgle flags explain NAME' says more", soft_wrap=True)


def setting_text(setting: Setting) -> None:
    """Print everything about one setting."""
    rows: list[tuple[str, object]] = [("meaning", setting.meaning)]
    rows += [("read by", setting.reader), ("kind", setting.kind)]
    if setting.values:
        rows.append(("values", ", ".join(setting.values)))
    history = [f"{value or '(empty)'} from {start}" for start, value in setting.defaults]
    if len(history) == 1:
        history = [setting.defaults[0][1] or "(empty)"]
    if history:
        rows.append(("default", "; ".join(history)))
    if setting.is_flag:
        rows.append(("jaxlib", setting.lifetime))
    if setting.use:
        rows.append(("instead", setting.use))
    if setting.fingerprint:
        rows.append(("fingerprint", setting.fingerprint))
    if setting.stage:
        tried = f"; 'pgle tune' tries {', '.join(setting.tries)}" if setting.tries else ""
        rows.append(("decides", ("the schedule" if setting.stage == "schedule" else "what is scheduled") + tried))
    rows += [("interacts", name) for name in setting.interacts]
    rows += [("remark", remark) for remark in setting.remarks]
    rows += [("measured", f"{effect.line} {effect.note}".rstrip()) for effect in effects_of(setting.name)]
    rows.append(("source", "; ".join(setting.source)))
    console().print(table(("setting", setting.name), rows))


def lint_text(result: Lint) -> None:
    """Print a lint: each finding with its remedy, then a verdict."""
    out = console()
    how = f"jaxlib {result.jaxlib}" + (" (asked)" if result.asked else " (by the catalogue)")
    if result.findings:
        rows = [(Text(item.level, style=STYLES[item.level]), finding_text(item)) for item in result.findings]
        out.print(table(("level", "finding"), rows))
    errors = sum(finding.level == "error" for finding in result.findings)
    warnings = sum(finding.level == "warning" for finding in result.findings)
    out.print(f"{many(result.flags, 'flag')} held against {how}: {many(errors, 'error')}, {many(warnings, 'warning')}")


def finding_text(finding: Finding) -> Text:
    """A finding, its remedy on a line of its own."""
    text = Text(f"--{finding.flag}: {finding.message}" if finding.flag else finding.message)
    if finding.remedy:
        text.append(f"\n→ {finding.remedy}", style="dim")
    return text


def preset_lines(preset: Preset) -> Iterator[str]:
    """The lines to put into a shell: one ``export`` for XLA_FLAGS and one for each variable."""
    if preset.flags:
        yield f"export XLA_FLAGS={quoted(preset.xla_flags)}{USERS_OWN}"
    for name, value in preset.environment.items():
        yield f"export {name}={quoted(value)}"


def preset_reasons(preset: Preset) -> Iterator[str]:
    """Each setting of a preset with its reason and source."""
    for choice in preset.choices:
        text = choice.flag.text if choice.is_flag else f"{choice.name}={choice.value}"
        yield f"{text}: {choice.reason} ({choice.source})"


def preset_json(preset: Preset) -> dict[str, Any]:
    """A preset as JSON types."""
    return json.whole(preset, "xla_flags environment")


def presets_table(presets: Iterable[tuple[str, str]]) -> None:
    """Print the names of presets and what they are for."""
    console().print(table(("preset", "for"), presets))


def thresholds_json(result: Thresholds) -> dict[str, Any]:
    """Thresholds as JSON types."""
    return {**json.plain(result), "xla_flags": format_flags(item.flag for item in result.thresholds)}


def thresholds_text(result: Thresholds) -> None:
    """Print thresholds with how they were found, and the flags."""
    out = console()
    rows = [
        (item.kind, f"{item.layer_bytes:,}", f"{item.threshold_bytes:,}", item.layers or "–", item.collectives,
         f"{item.total_bytes:,}", item.how)
        for item in result.thresholds
    ]  # fmt: skip
    columns = ("collective", "bytes a layer", "threshold", "layers", "now", "bytes in all", "how the layer was found")
    out.print(Text(f"Module {result.module}: result bytes of a layer's collectives", style="bold"))
    out.print(table(columns, rows, right="bytes a layer|threshold|layers|now|bytes in all"))
    if result.thresholds:
        flags = format_flags(item.flag for item in result.thresholds)
        out.print(f"\nexport XLA_FLAGS={quoted(flags)}{USERS_OWN}", soft_wrap=True)
    for remark in result.remarks:
        out.print(Text(f"note: {remark}", style="dim"))
