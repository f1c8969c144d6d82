"""Commands to begin with: files to start from, help for people and agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from pgle.api.answer import Answer, answer
from pgle.cli import options as opt
from pgle.cli.help import command
from pgle.cli.options import FOLDER
from pgle.report import start
from pgle.run.init import STARTERS, init


@command(
    opt.argument(
        "name", "slurm|k8s|github|gitlab|make|docker|rocm|skill", None, default=""
    ),
    opt.option(
        "-o --output folder",
        "Folder to write into.  [default: this one]",
        "DIR",
        FOLDER,
        default=".",
        show_default=False,
    ),
    opt.FORCE,
    opt.JSON,
)
def init_command(name: str, folder: Path, force: bool) -> Answer[Any]:
    """Write files to start from: job scripts, CI, a Makefile, a Dockerfile. Without a name, list
    them.

    The files are yours to edit. pgle overwrites none that exists.

    \b
    pgle init
    pgle init slurm
    pgle init github -o ~/my-project
    """
    if not name:
        purposes = {name: item.purpose for name, item in STARTERS.items()}
        page = start.starters_page(STARTERS)
        return answer("init", STARTERS, page, start.StartersDocument(purposes))
    written = init(name, folder, force=force)
    document = start.WrittenStarter(tuple(written), folder)
    return answer(
        "init", written, start.written_page(written, STARTERS[name], folder), document
    )


@command(
    opt.argument("words", "[COMMAND]", None, nargs=-1),
    context_settings={"ignore_unknown_options": True},
)
@click.pass_context
def help_command(ctx: click.Context, /, words: tuple[str, ...]) -> None:
    """Explain a command with all its options.

    \b
    pgle help
    pgle help convert
    """
    assert ctx.parent is not None
    ctx.parent.command.main([*words, "--help"], prog_name="pgle", standalone_mode=False)


@command(click.Argument(["shell"], type=click.Choice(["bash", "zsh", "fish"])))
@click.pass_context
def completion_command(ctx: click.Context, /, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    eval "$(pgle completion bash)"
    pgle completion fish > ~/.config/fish/completions/pgle.fish
    """
    found = get_completion_class(shell)
    assert found is not None and ctx.parent is not None
    click.echo(found(ctx.parent.command, {}, "pgle", "_PGLE_COMPLETE").source())


@command(
    opt.argument("folder", "[FOLDER]", FOLDER, default="."),
    opt.flag(
        "--programs",
        "Let rehearse, tune, scale and advise start programs in FOLDER.",
    ),
)
def mcp_command(folder: Path, programs: bool) -> None:
    """Serve pgle's answers to an agent: a server of the Model Context Protocol on stdin and stdout
    (extra 'mcp').

    FOLDER: the only folder that the tools read; they write nothing there. The tools are folder,
    analyze, verify, confirm, compare, predict, rehearse, flags_explain, tune, scale, advise and
    ranks. They take files of modules. With --programs four of them also take the command of a
    program, which can read and write whatever you can. Long calls report progress and can be
    cancelled.

    \b
    pgle mcp
    pgle mcp runs/
    pgle mcp --programs .
    """
    from pgle.mcp import serve

    serve(folder, programs=programs)
