"""Commands to begin with: is this machine ready, and files to start from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pgle.cli.help import Command
from pgle.cli.options import (
    capture_option,
    force_option,
    json_option,
    page_options,
    python_option,
    run_dir_option,
    target_option,
)
from pgle.cli.paths import FOLDER, Out

if TYPE_CHECKING:
    from pgle.files import AnyPath


@click.command(cls=Command)
@click.option("--fix", is_flag=True, help="Show the command that mends jax's CUDA plugin: missing, double or old.")
@click.option("--yes", is_flag=True, help="With --fix: run it. jax itself is never moved.")
@click.option("--prove", is_flag=True, help="Run the whole chain on a small program, and say what each link proves.")
@click.option("--bundle", type=Out("", ".tar.gz", ".tgz"), metavar="FILE.tar.gz",
              help="With --prove: pack its small files to attach to a report.")  # fmt: skip
@run_dir_option(None, "Where runs are to be kept; with --prove: a new folder.  [default: ., with --prove runs/proof]")
@capture_option
@target_option
@python_option
@page_options
@click.pass_context
def doctor_command(
    ctx: click.Context,
    /,
    fix: bool,
    yes: bool,
    prove: bool,
    bundle: AnyPath | None,
    run_dir: Path | None,
    capture: Any,
    target: str,
    python: str | None,
    sections: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check GPUs, driver, jax, its CUDA plugin, nsys, CUPTI, flags, caches and permissions.

    Exit code 1 where something fails; warnings are allowed. With --prove what counts is not what is installed but what
    works: a small program is profiled, converted, verified, run with its profile, confirmed and compared, on the GPUs
    of this machine or, where there are none, on the simulated GPU.

    \b
    pgle doctor
    pgle doctor --fix --yes
    pgle doctor --prove --bundle proof.tar.gz
    pgle doctor --python /path/to/env/bin/python
    """
    from pgle.report import text
    from pgle.report.experiment import doctor as report
    from pgle.report.page.terminal import show
    from pgle.report.text import say
    from pgle.run.ask.machine import this_machine
    from pgle.run.doctor import doctor
    from pgle.run.doctor.prove import prove as prove_chain

    if prove:
        proof = prove_chain(run_dir or Path("runs/proof"), capture, target, say, bundle)
        if as_json:
            text.show("pgle.proof/1", {"ok": proof.ok, **text.plain(proof)})
        else:
            show(report.proof_page(proof), sections=sections)
        ctx.exit(0 if proof.ok else 1)
    machine = this_machine(python)
    if fix:
        mended = doctor.mend(machine, yes=yes)
        if as_json:
            line = mended.repair.line if mended.repair else ""
            text.show("pgle.fix/1", {"ok": mended.ok, "command": line, **text.plain(mended)})
        else:
            show(report.mended_page(mended), sections=sections)
        ctx.exit(0 if mended.ok else 1)
    diagnosis = doctor.diagnose(machine, str(run_dir or "."))
    if as_json:
        text.show("pgle.doctor/1", report.doctor_json(diagnosis))
    else:
        show(report.doctor_page(diagnosis), sections=sections)
    ctx.exit(0 if diagnosis.ok else 1)


@click.command(cls=Command)
@click.argument("name", metavar="slurm|k8s|github|gitlab|make|docker", default="")
@click.option("-o", "--output", "folder", type=FOLDER, default=".", metavar="DIR",
              help="Folder to write into.  [default: this one]")  # fmt: skip
@force_option
@json_option
def init_command(name: str, folder: Path, force: bool, as_json: bool) -> None:
    """Write files to start from: job scripts, CI, a Makefile, a Dockerfile. Without a name, list them.

    They are plain files of yours from then on; nothing that exists is overwritten.

    \b
    pgle init
    pgle init slurm
    pgle init github -o ~/my-project
    """
    from pgle.report.experiment import begin as report
    from pgle.report.page.terminal import show
    from pgle.run.init import STARTERS, init

    if not name:
        if as_json:
            report.list_starters_json(STARTERS)
        else:
            show(report.starters_page(STARTERS))
        return
    written = init(name, folder, force=force)
    if as_json:
        report.show_json(written, STARTERS[name], folder)
    else:
        show(report.written_page(written, STARTERS[name], folder))


@click.command(cls=Command, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, metavar="[COMMAND]")
@click.pass_context
def help_command(ctx: click.Context, /, words: tuple[str, ...]) -> None:
    """Explain a command with all its options.

    \b
    pgle help
    pgle help convert
    """
    assert ctx.parent is not None
    ctx.parent.command.main([*words, "--help"], prog_name="pgle", standalone_mode=False)


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
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
