"""How a command explains itself: options in groups, examples, and what every command has: -q,
-h.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import replace
from inspect import cleandoc
from pathlib import Path
from shlex import join
from shutil import which
from textwrap import wrap
from typing import Any

import click

from pgle.api.answer import Answer
from pgle.cli.configured import configured
from pgle.cli.parameters import check_inputs, check_places
from pgle.errors import cut
from pgle.report import text
from pgle.report.page import plain
from pgle.run.process import terminal

SECTIONS: dict[str, str] = {
    "Where the work is done": "executor",
    "GPU and topology": "target devices topology devices-per-host network",
    "What runs, and what is traced": (
        "window mode quiet-for python jaxlib jax yes runs percentile then-nsys cache"
    ),
    "XLA flags": "flag flags-file",
    "How costs and step times are taken": (
        "stat collective-stat all-executions fingerprint-names complete paired warmup "
        "steps pattern confidence same-within launch-spread history"
    ),
    "Limits (exit code 1 if one is not kept)": "fail-undecided require-faster max-loss-change "
    "min-time-coverage min-collectives",
    "Runs in A-B-B-A order": "abba",
    "Sizes": "vary fit measured",
    "Search": "budget",
    "Output": "all section label html github shell force json show-output quiet -h help",
}
"""The `--help` group of each option, by the option's name, the same in every command. Options
without a group come first. Groups have the order of this list, their options that of the command.
"""
_SECTION_OF: dict[str, str] = {}
for _section, _names in SECTIONS.items():
    _SECTION_OF |= dict.fromkeys(_names.split(), _section)
MATTERS = (
    "output profile from to hlo against target devices topology network run-dir capture "
    "tune fail-slower abba flag module stat vary fit programs all section json force"
)
"""The options that `-h` shows, in their order, the first `SHORT` that a command has; `--help` shows
all.
"""
SHORT, EXAMPLES = 8, 3


def _silence(ctx: click.Context, _: click.Parameter, quiet: bool) -> None:
    """Print the verdict of an answer alone, and on stderr only what ends the command.

    What a program prints is shown only if it fails.
    """
    if quiet:
        text.quiet = terminal.is_quiet = True
        ctx.call_on_close(lambda: setattr(text, "quiet", False))
        ctx.call_on_close(lambda: setattr(terminal, "is_quiet", False))
        nowhere = Path(os.devnull).open("w")  # noqa: SIM115 - closed with the context
        ctx.with_resource(nowhere)
        ctx.with_resource(redirect_stderr(nowhere))


_QUIET = click.Option(
    ["-q", "--quiet"],
    is_flag=True,
    expose_value=False,
    callback=_silence,
    is_eager=True,
    help="Print the verdict line only.",
)


def _brief(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    """Print one screen of help: usage, purpose, three examples, main options."""
    if asked and not ctx.resilient_parsing:
        formatter = ctx.make_formatter()
        ctx.command.format_usage(ctx, formatter)
        write_brief(ctx.command, ctx, formatter)
        click.echo(formatter.getvalue().rstrip("\n"), color=ctx.color)
        ctx.exit()


_BRIEF = click.Option(
    ["-h"],
    is_flag=True,
    expose_value=False,
    callback=_brief,
    is_eager=True,
    help="Show the options that matter, and exit.",
)


class Command(click.Command):
    """A command with grouped options; the lines of its docstring that begin with ``pgle`` are its
    examples.

    Its function returns a `pgle.api.Answer`, or None if it printed the result itself.
    """

    def __init__(self, *words: Any, **options: Any) -> None:
        options["context_settings"] = {
            **(options.get("context_settings") or {}),
            "help_option_names": ["--help"],
        }
        super().__init__(*words, **options)
        self.params += (_QUIET, _BRIEF)
        lines = cleandoc(self.help or "").split("\n")
        self.examples = [line for line in lines if line.startswith(("pgle ", "eval "))]
        self.help = "\n".join(
            line for line in lines if line not in self.examples
        ).rstrip("\b \n")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does. If an option is unknown and may be the program's, advise to put --
        before the program.
        """
        words = list(args)
        valued = set()
        for param in self.params:
            if isinstance(param, click.Option) and not param.is_flag:
                valued.update(param.opts)
        before = words[: words.index("--")] if "--" in words else []
        if before and before[-1] in valued and not ctx.resilient_parsing:
            # click would take -- as the option's value
            raise click.UsageError(
                f"Option '{before[-1]}' requires an argument, and -- begins the program",
                ctx,
            )
        try:
            return self._parsed(ctx, args)
        except click.MissingParameter:
            check_inputs(ctx)
            raise
        except click.NoSuchOption as error:
            begin = _program_at(words)
            takes_program = any(param.name == "words" for param in self.params)
            if begin is None or "--" in words or not takes_program:
                raise
            command = ctx.command_path.split()
            line = join([*command, *words[:begin], "--", *words[begin:]])
            raise click.UsageError(
                f"No such option: {error.option_name}; put -- before your program: {line}"
            ) from None

    def _parsed(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse. Values that the command line leaves out come from the project's configuration."""
        found = configured(self, ctx, args)
        if found is None:
            return super().parse_args(ctx, args)
        ctx.default_map = found.values()
        try:
            rest = super().parse_args(ctx, found.with_program(args))
        except click.BadParameter as error:
            raise found.error(ctx, error) or error from None
        ctx.meta["pgle.configured"] = found.said(ctx)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        """Check that every output file can be written, then run the command. Print its answer, and
        exit with the answer's code if its check failed.

        A notebook takes the answer instead (`ctx.obj`).
        """
        check_places(ctx)
        text.is_shown = ctx.obj is None
        try:
            answer: Answer[Any] | None = super().invoke(ctx)
        finally:
            text.is_shown = False
        if answer is None:
            return
        if said := ctx.meta.get("pgle.configured"):
            identity = (*answer.page.identity, said)
            answer = replace(answer, page=replace(answer.page, identity=identity))
        if ctx.meta["pgle.as_json"]:
            text.print_json(answer.document["schema"], answer.document)
            text.warn(answer.document.get("warnings", ()))
        elif ctx.obj is not None and not text.quiet:
            ctx.obj(answer)
        else:
            sections = ctx.meta.get("pgle.sections", ())
            if ctx.meta.get("pgle.everything"):
                sections = (plain.ALL,)
            plain.show(answer.page, sections=sections)
        ctx.exit(0 if answer.ok else answer.exit_code)

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the examples, then the options by group."""
        write_examples(self.examples, formatter)
        groups: dict[str, list[tuple[str, str]]] = {
            "Options": [],
            **{section: [] for section in SECTIONS},
        }
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if isinstance(param, click.Option) and record is not None:
                groups[_SECTION_OF.get(_long_name(param), "Options")].append(record)
        for section, records in groups.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records, col_max=min(30, formatter.width // 3))


def command(
    *params: click.Parameter, **options: Any
) -> Callable[[Callable[..., Any]], Command]:
    """Return a decorator that makes a function a `Command` with these parameters, in the order of
    `--help`.
    """
    return click.command(cls=Command, params=list(params), **options)


def write_brief(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Write what `-h` says below the usage, a line for each option."""
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text((command.help or "").split("\n\n")[0])
    examples = getattr(command, "examples", [])
    without_pipes = [example for example in examples if "|" not in example]
    write_examples(without_pipes[:EXAMPLES], formatter)
    by_name = {_long_name(param): param for param in command.params}
    matters = [by_name[name] for name in MATTERS.split() if name in by_name]
    records: list[tuple[str, str]] = []
    for param in matters[:SHORT]:
        record = param.get_help_record(ctx)
        if record is not None:
            name, help_text = record
            short = name.replace("INTEGER RANGE", "N")
            records.append((short, _first_clause(help_text)))
    if records:
        with formatter.section("Options"):
            names = max(len(name) for name, _ in records) + 4
            width = max(formatter.width - names, 20)
            lines = [(name, cut(clause, width)) for name, clause in records]
            formatter.write_dl(lines, col_max=names)
    formatter.write_paragraph()
    formatter.write_text(f"All options: {ctx.command_path} --help")


def _program_at(words: list[str]) -> int | None:
    """Where a program begins among the words of a command line; None if none is seen."""
    for at, word in enumerate(words):
        if which(word) or word.endswith((".py", ".sh")):
            return at
    return None


def _long_name(param: click.Parameter) -> str:
    """The long name of an option without its dashes: ``target``."""
    return max(param.opts, key=len).removeprefix("--")


def _first_clause(text: str) -> str:
    """The first clause of an option's help, without its default."""
    without_default = re.sub(r"\s*\[[^]]*\]$", "", text)
    clauses = re.split(r"(?<=[^.])[.;] |, (?:as|else|or) ", without_default)
    return clauses[0].rstrip(".")


class Commands(click.Group):
    """A group of commands; each is a `Command`."""

    command_class = Command


def write_examples(examples: list[str], formatter: click.HelpFormatter) -> None:
    """Write command lines that can be copied at any width. A long line continues after a
    backslash.
    """
    if not examples:
        return
    with formatter.section("Examples"):
        for example in examples:
            line, _, remark = example.partition("  # ")
            if remark:
                formatter.write_text(f"# {remark.strip()}")
            parts = wrap(
                line.rstrip(),
                max(formatter.width - 8, 20),
                break_long_words=False,
                break_on_hyphens=False,
            )
            indent = " " * formatter.current_indent
            formatter.write(indent + f" \\\n{indent}    ".join(parts) + "\n")
