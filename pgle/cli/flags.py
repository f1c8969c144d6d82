"""`pgle flags`: list, explain, lint, preset, thresholds."""

from __future__ import annotations

import os
import sys

import click

from pgle.cli.help import Group
from pgle.cli.options import jaxlib_option, page_options, python_option
from pgle.cli.paths import PATH
from pgle.errors import printable
from pgle.files import AnyPath
from pgle.report import flags as report
from pgle.report import text
from pgle.report.page.terminal import show
from pgle.report.text import warn
from pgle.run.ask.flag_probe import installed, lint_flags
from pgle.run.process.environment import read_flag_file, user_flags
from pgle.xla.flags.catalogue import catalogue, find, known_flags
from pgle.xla.flags.presets import preset, preset_names, purpose
from pgle.xla.flags.text import parse_flags
from pgle.xla.flags.thresholds import combine_thresholds, main_module


@click.group(cls=Group)
def command() -> None:
    """List, explain, lint and preset XLA, NCCL, CUDA and JAX settings."""


@command.command("list", short_help="List settings, or those that match a word.")
@click.argument("pattern", default="")
@jaxlib_option
@page_options
def list_(pattern: str, jaxlib: str | None, sections: tuple[str, ...], as_json: bool) -> None:
    """List the settings whose name or meaning contains PATTERN; without PATTERN all that pgle describes.

    \b
    pgle flags list collective
    """
    release = jaxlib or installed().jaxlib or known_flags().releases[-1]
    wanted = pattern.lower()
    found = [item for item in catalogue().values() if wanted in item.name.lower() or wanted in item.meaning.lower()]
    if as_json:
        text.show("pgle.flags/1", {"jaxlib": release, "settings": [report.setting_json(item) for item in found]})
    else:
        show(report.list_page(found, release, pattern), sections=sections)


@command.command(context_settings={"ignore_unknown_options": True}, short_help="Explain one setting.")
@click.argument("name", type=click.UNPROCESSED)
@page_options
def explain(name: str, sections: tuple[str, ...], as_json: bool) -> None:
    """Explain one setting: meaning, values, defaults by release, what replaced it, traps, source.

    \b
    pgle flags explain xla_gpu_all_gather_combine_threshold_bytes
    """
    setting = find(name)
    if as_json:
        text.show("pgle.flags/1", {"setting": report.setting_json(setting)})
    else:
        page = report.setting_page(setting)
        record = [section.key for section in page.sections if section.key == report.RECORD]
        show(page, sections=(*record, *sections))


@command.command(context_settings={"ignore_unknown_options": True}, short_help="Check XLA flags against a jaxlib.")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
@click.option("--file", "file", metavar="PATH", help="Read the flags from a file, as XLA does for XLA_FLAGS=PATH.")
@jaxlib_option
@python_option
@page_options
@click.pass_context
def lint(
    ctx: click.Context, flags: tuple[str, ...], file: str | None, jaxlib: str | None, python: str | None,
    sections: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Check FLAGS (default: XLA_FLAGS of the environment) against a jaxlib, without crashing. Exit code 1 on errors.

    Unknown, removed and misspelt flags, bad values, repetitions, contradictions, flags without effect, words that end
    parsing. The installed jaxlib itself is asked, in a child process; with --jaxlib VERSION the catalogue answers.

    \b
    pgle flags lint
    pgle flags lint --jaxlib 0.11.1 -- --xla_gpu_enable_pipelined_all_gather=true
    """
    if file is not None:
        parsed = read_flag_file(file)
    else:
        parsed = parse_flags(" ".join(flags)) if flags else user_flags(os.environ)
    result = lint_flags(parsed, jaxlib=jaxlib, python=python)
    if as_json:
        text.show("pgle.flags/1", {"ok": result.ok, **text.plain(result)})
    else:
        from pgle.report.next_steps import after_lint

        clean = all(finding.level == "note" for finding in result.findings)
        show(report.lint_page(result, after_lint(flags, file, clean=clean)), sections=sections)
    ctx.exit(0 if result.ok else 1)


@command.command("preset", short_help="Print a named set of settings.")
@click.argument("name", default="")
@jaxlib_option
@python_option
@click.option("--profile", default="", metavar="FILE", help="The cost profile, for pgle-perf.")
@click.option("--shell", is_flag=True, help="Print only the export lines, for eval.")
@page_options
def preset_(
    name: str,
    jaxlib: str | None,
    python: str | None,
    profile: str,
    shell: bool,
    sections: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print the settings of preset NAME as an export line, with reasons; without NAME list the presets.

    \b
    pgle flags preset fsdp
    eval "$(pgle flags preset fsdp --shell)"
    """
    if not name:
        rows = [(item, purpose(item)) for item in preset_names()]
        if as_json:
            text.show("pgle.flags/1", {"presets": dict(rows)})
        else:
            show(report.presets_page(rows), sections=sections)
        return
    found = preset(name, jaxlib or installed(python).jaxlib or None, profile=profile)
    if as_json:
        text.show("pgle.flags/1", {"preset": report.preset_json(found)})
        return
    warn(finding.line() for finding in found.findings)
    lines = [*report.preset_lines(found), *(() if shell else (f"# {line}" for line in report.preset_reasons(found)))]
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))


@command.command(short_help="Compute combine thresholds from a module.")
@click.option(
    "--hlo",
    required=True,
    type=PATH,
    metavar="PATH",
    help="Dump: .hlo.pb, .txt, or a directory, whose module with most collectives counts.",
)
@page_options
def thresholds(hlo: AnyPath, sections: tuple[str, ...], as_json: bool) -> None:
    """Compute combine thresholds from a module: what a layer gathers and scatters.

    \b
    pgle flags thresholds --hlo dump/
    """
    from pgle.xla.hlo.reader import read_modules

    result = combine_thresholds(main_module(read_modules(hlo)))
    if as_json:
        text.show("pgle.flags/1", report.thresholds_json(result))
    else:
        show(report.thresholds_page(result), sections=sections)
