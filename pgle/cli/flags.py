"""`pgle flags`: settings listed, explained, checked, preset."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from pgle.api import known
from pgle.api.answer import Answer, answer
from pgle.cli import options as opt
from pgle.cli.help import Commands
from pgle.errors import printable
from pgle.report import flags as report
from pgle.report import next_steps, text
from pgle.run.ask.jaxlib import installed, lint_flags, lint_scripts
from pgle.run.process.flags import read_flag_file, user_flags
from pgle.xla.flags.catalogue import catalogue, known_flags
from pgle.xla.flags.presets import preset, presets
from pgle.xla.flags.text import parse_flags

_AS_TYPED = {"ignore_unknown_options": True}


@click.group(cls=Commands)
def flags_command() -> None:
    """List, explain, lint and preset XLA, NCCL, CUDA and JAX settings."""


@flags_command.command(
    "list",
    short_help="List settings, or only the ones that match a word.",
    params=[
        click.Argument(["pattern"], default=""),
        opt.JAXLIB,
        *opt.PAGE,
    ],
)
def list_(pattern: str, jaxlib: str | None) -> Answer[Any]:
    """List the settings whose name or meaning contains PATTERN; without PATTERN all that pgle
    describes.

    \b
    pgle flags list collective
    """
    release = jaxlib or installed().jaxlib or known_flags().releases[-1]
    wanted = pattern.lower()
    found = [
        item
        for item in catalogue().values()
        if wanted in item.name.lower() or wanted in item.meaning.lower()
    ]
    settings = tuple(map(report.setting_document, found))
    document = report.ListDocument(release, settings)
    return answer("flags", found, report.list_page(found, release, pattern), document)


@flags_command.command(
    context_settings=_AS_TYPED,
    short_help="Explain one setting.",
    params=[
        click.Argument(["name"], type=click.UNPROCESSED),
        *opt.PAGE,
    ],
)
@click.pass_context
def explain(ctx: click.Context, /, name: str) -> Answer[Any]:
    """Explain one setting: meaning, values, defaults by release, what replaced it, traps, source.

    \b
    pgle flags explain xla_gpu_all_gather_combine_threshold_bytes
    """
    found = known.flags_explain(name)
    record = [
        section.key for section in found.page.sections if section.key == report.RECORD
    ]
    ctx.meta["pgle.sections"] = (*record, *ctx.meta["pgle.sections"])
    return found


@flags_command.command(
    context_settings=_AS_TYPED,
    short_help="Check XLA flags against a jaxlib.",
    params=[
        click.Argument(["flags"], nargs=-1, type=click.UNPROCESSED),
        opt.option(
            "--file",
            "Read the flags from a file, as XLA does for XLA_FLAGS=PATH.",
            "PATH",
        ),
        opt.JAXLIB,
        opt.PYTHON,
        *opt.PAGE,
    ],
)
def lint(
    flags: tuple[str, ...], file: str | None, jaxlib: str | None, python: str | None
) -> Answer[Any]:
    """Check FLAGS (default: XLA_FLAGS of the environment) against a jaxlib, without crashing. Exit
    code 1 on errors.

    Unknown, removed and misspelt flags, bad values, repetitions, contradictions, flags without
    effect, words that end parsing. The installed jaxlib itself is asked, in a child process; with
    --jaxlib VERSION the catalogue answers.

    \b
    pgle flags lint
    pgle flags lint --jaxlib 0.11.1 -- --xla_gpu_enable_pipelined_all_gather=true
    """
    if file is not None:
        parsed = read_flag_file(file)
    else:
        parsed = parse_flags(" ".join(flags)) if flags else user_flags(os.environ)
    result = lint_flags(parsed, jaxlib=jaxlib, python=python)
    clean = all(finding.level == "note" for finding in result.findings)
    page = report.lint_page(result, next_steps.after_lint(flags, file, clean=clean))
    document = report.LintDocument(result.ok, result)
    return answer("flags", result, page, document, result.ok)


@flags_command.command(
    "lint-scripts",
    short_help="Check the XLA flags in launch scripts.",
    params=[
        click.Argument(["scripts"], nargs=-1, required=True, type=opt.PATH),
        opt.JAXLIB,
        opt.PYTHON,
        *opt.PAGE,
    ],
)
def of_scripts(
    scripts: tuple[Path, ...], jaxlib: str | None, python: str | None
) -> Answer[Any]:
    """Check the XLA flags that SCRIPTS name, each for itself: unknown, removed and misspelt ones,
    bad values. Exit code 1 on errors. It is the hook `pgle-flags` of pre-commit.

    Comments are left out, flags of TPUs, and values that a variable fills in.

    \b
    pgle flags lint-scripts jobs/*.sbatch --jaxlib 0.10.2
    """
    found = lint_scripts(scripts, jaxlib=jaxlib, python=python)
    document = report.ScriptsLintDocument(found.ok, found)
    return answer("flags", found, report.scripts_page(found), document, found.ok)


@flags_command.command(
    "preset",
    short_help="Print a named set of settings.",
    params=[
        click.Argument(["name"], default=""),
        opt.JAXLIB,
        opt.PYTHON,
        opt.option("--profile", "The cost profile, for pgle-perf.", "FILE", default=""),
        opt.flag("--shell", "Print only the export lines, for eval."),
        *opt.PAGE,
    ],
)
@click.pass_context
def preset_(
    ctx: click.Context,
    /,
    name: str,
    jaxlib: str | None,
    python: str | None,
    profile: str,
    shell: bool,
) -> Answer[Any] | None:
    """Print the settings of preset NAME as an export line, with reasons; without NAME list the
    presets.

    \b
    pgle flags preset fsdp
    eval "$(pgle flags preset fsdp --shell)"
    """
    if not name:
        rows = [(item, purpose) for item, (purpose, _) in presets().items()]
        document = report.PresetsDocument(dict(rows))
        return answer("flags", rows, report.presets_page(rows), document)
    found = preset(name, jaxlib or installed(python).jaxlib or None, profile=profile)
    if ctx.meta["pgle.as_json"]:
        exported = report.ExportedPreset(found, found.xla_flags, found.environment)
        text.print_json("pgle.flags/1", text.plain(report.PresetDocument(exported)))
        return None
    text.warn(finding.line() for finding in found.findings)
    lines = [
        *report.preset_lines(found),
        *(() if shell else (f"# {line}" for line in report.preset_reasons(found))),
    ]
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))
    return None
