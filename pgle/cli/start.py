"""Commands to begin with: is this machine ready, files to start from, help for people, shells and agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pgle import api
from pgle.api import Answer
from pgle.cli import options as opt
from pgle.cli.help import command
from pgle.cli.paths import FOLDER


@command(
    opt.flag("--fix", "Show the command that mends jax's CUDA plugin: missing, double or old."),
    opt.flag("--yes", "With --fix: run it. jax itself is never moved."),
    opt.flag("--prove", "Run the whole chain on a small program, and say what each link proves."),
    opt.run_dir(None, "Where runs are to be kept; with --prove: a new folder.  [default: ., with --prove runs/proof]"),
    opt.CAPTURE, opt.TARGET, opt.PYTHON, *opt.PAGE,
)  # fmt: skip
def doctor_command(
    fix: bool, yes: bool, prove: bool, run_dir: Path | None, capture: Any, target: str,
    python: str | None,
) -> Answer[Any]:  # fmt: skip
    """Check GPUs, driver, jax, its CUDA plugin, nsys, CUPTI, flags, caches and permissions.

    Exit code 1 where something fails; warnings are allowed. With --prove the installed versions do not count, but what
    works: a small program is profiled, converted, verified, run with its profile, confirmed and compared, on the GPUs
    of this machine or, where there are none, on the simulated GPU.

    \b
    pgle doctor
    pgle doctor --fix --yes
    pgle doctor --prove
    pgle doctor --python /path/to/env/bin/python
    """
    from pgle.report import start as report
    from pgle.report import text
    from pgle.report.text import say
    from pgle.run import doctor
    from pgle.run.ask.machine import this_machine

    if prove:
        proof = doctor.prove(run_dir or Path("runs/proof"), capture, target, say)
        return api.answer("proof", proof, report.proof_page(proof), {"ok": proof.ok, **text.plain(proof)}, proof.ok)
    machine = this_machine(python)
    if fix:
        mended = doctor.mend(machine, yes=yes)
        line = mended.repair.line if mended.repair else ""
        document = {"ok": mended.ok, "command": line, **text.plain(mended)}
        return api.answer("fix", mended, report.mended_page(mended), document, mended.ok)
    diagnosis = doctor.diagnose(machine, str(run_dir or "."))
    page = report.doctor_page(diagnosis)
    return api.answer("doctor", diagnosis, page, report.doctor_document(diagnosis), diagnosis.ok)


@command(
    opt.argument("name", "slurm|k8s|github|gitlab|make|docker", None, default=""),
    opt.option("-o --output folder", "Folder to write into.  [default: this one]", "DIR", FOLDER, default=".",
               show_default=False),
    opt.FORCE, opt.JSON,
)  # fmt: skip
def init_command(name: str, folder: Path, force: bool) -> Answer[Any]:
    """Write files to start from: job scripts, CI, a Makefile, a Dockerfile. Without a name, list them.

    They are plain files of yours from then on; nothing that exists is overwritten.

    \b
    pgle init
    pgle init slurm
    pgle init github -o ~/my-project
    """
    from pgle.report import start as report
    from pgle.run.init import STARTERS, init

    if not name:
        purposes = {name: item.purpose for name, item in STARTERS.items()}
        return api.answer("init", STARTERS, report.starters_page(STARTERS), {"starters": purposes})
    written = init(name, folder, force=force)
    document = {"written": written, "folder": folder, "next": STARTERS[name].following}
    return api.answer("init", written, report.written_page(written, STARTERS[name], folder), document)


@command(opt.argument("words", "[COMMAND]", None, nargs=-1), context_settings={"ignore_unknown_options": True})
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
def completion_command(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    eval "$(pgle completion bash)"
    pgle completion fish > ~/.config/fish/completions/pgle.fish
    """
    from click.shell_completion import get_completion_class

    from pgle.cli.main import group

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(group, {}, "pgle", "_PGLE_COMPLETE").source())


@command(opt.argument("folder", "[FOLDER]", FOLDER, default="."))
def mcp_command(folder: Path) -> None:
    """Serve the answers to an agent: a server of the Model Context Protocol on stdin and stdout (extra 'mcp').

    FOLDER: the tools read only from it. They write nothing there. The tools are folder, analyze, verify,
    confirm, compare, predict, rehearse and flags_explain. Long calls report what they do, and can be cancelled.

    \b
    pgle mcp
    pgle mcp runs/
    """
    from pgle.mcp import serve

    serve(folder)
