"""The `pgle` program: a lazy list of commands, and the one place where errors become exit codes."""

from __future__ import annotations

import errno
import gc
import io
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from pgle import __version__
from pgle.errors import (
    UserError,
    WorkloadError,
    call_it,
    inert,
    named,
    one_line,
    suggestion,
)
from pgle.next import quoted, typed

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Measure": {
        "run": (
            "stages",
            "Run all stages on your program: profile, convert, baseline, verify, perf, compare.",
        ),
        "profile": (
            "stages",
            "Run a program with the flags of a profile run and capture a trace.",
        ),
        "convert": (
            "profiles",
            "Turn traces (nsys, JAX profiler) into a cost profile.",
        ),
        "perf": ("stages", "Run a program with a profile, and prove that XLA used it."),
        "init": (
            "start",
            "Write files to start from: Slurm, Kubernetes, GitHub, GitLab, make, Docker.",
        ),
        "auto": (
            "stages",
            "Run a program with JAX's AutoPGLE, and say whether it helped.",
        ),
    },
    "Check": {
        "doctor": (
            "stages",
            "Is this machine ready? GPUs, driver, jax, plugin, nsys, flags, caches.",
        ),
        "verify": (
            "profiles",
            "Before a run: does the profile fit the module? What will XLA find?",
        ),
        "confirm": ("logs", "After a run: did XLA use the profile? Reads its log."),
        "ranks": (
            "logs",
            "Do all ranks start their collectives in one order, or will the job hang?",
        ),
        "compare": ("steps", "Is it faster? Step times of two runs; a gate for CI."),
    },
    "Predict": {
        "rehearse": (
            "predictions",
            "Compile for GPUs that you do not have: what would a profile change?",
        ),
        "predict": (
            "predictions",
            "How long a step of a compiled module takes. Needs no compiler.",
        ),
        "scale": (
            "predictions",
            "How long a step takes at sizes that you do not have: 64, 512, 2048 GPUs.",
        ),
        "advise": (
            "predictions",
            "Which edits of the program make its step faster? The compiler tries them.",
        ),
        "tune": (
            "predictions",
            "Which XLA flags, with the profile, make a step fastest? Needs no GPU.",
        ),
    },
    "Improve": {
        "complete": ("profiles", "Fill the gaps of a profile."),
        "carry": (
            "profiles",
            "Use a profile for another jax, another size, an edited program.",
        ),
        "flags": (
            "flags",
            "Explain, lint and preset XLA, NCCL, CUDA and JAX settings.",
        ),
    },
    "Look": {
        "show": ("show", "What a profile or a trace holds."),
        "analyze": (
            "stages",
            "Where the time of a measured step goes, and what could be saved.",
        ),
        "report": (
            "stages",
            "One page on a run: verdict, timeline, findings, costs, step times.",
        ),
        "diff": ("show", "What changed between two profiles."),
        "history": ("steps", "Step times over months, and how much launches differ."),
    },
    "Help": {
        "completion": ("start", "Print the completion script of bash, zsh or fish."),
        "mcp": (
            "start",
            "Serve the answers to an agent, over the Model Context Protocol.",
        ),
        "help": ("start", "Explain a command with all its options."),
    },
}
"""Group → command → its file in `pgle.cli`, and its line in `pgle --help`. The click command is
`NAME_command` in that file, which is imported only when the command is used, so that `pgle --help`
stays instant.
"""
_ALL = dict(chain.from_iterable(commands.items() for commands in GROUPS.values()))
FILES = {name: file for name, (file, _) in _ALL.items()}
COMMANDS = {name: line for name, (_, line) in _ALL.items()}


_THREADS = "OPENBLAS_NUM_THREADS"


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """While a command is imported, keep numpy's OpenBLAS from starting threads, unless the user set
    a number.

    It starts one thread per core, and each spins for some 25 ms. On two cores that is half of the
    import's CPU time, and more on large login nodes. On busy cores it also costs wall time. The
    variable is restored afterwards, so that the user's program does not inherit it.
    """
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_THREADS]


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The command names, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command called `cmd_name`, or None."""
        if cmd_name not in COMMANDS:
            return None
        with one_blas_thread():
            home = import_module(f"pgle.cli.{FILES[cmd_name]}")
        command: click.Command = getattr(home, f"{cmd_name.replace('-', '_')}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does; suggest a similar name if there is none."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            unknown = f"no command called '{args[0]}'"
            near = suggestion(args[0], COMMANDS)
            ctx.fail(f"{unknown}; {near}" if near else unknown)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run as click does. If the reader of our output is gone (``pgle show … | head``), exit
        with 0, where click exits with 1.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _discard_output()
            return 0

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the groups of commands without importing them. All names share one column."""
        width = max(map(len, COMMANDS))
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(
                    [(name.ljust(width), COMMANDS[name]) for name in commands]
                )

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the names of commands, with their help lines."""
        from click.shell_completion import CompletionItem

        names = [name for name in COMMANDS if name.startswith(incomplete)]
        if not names:
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name, help=COMMANDS[name]) for name in names]


def _versions(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    """Print the versions of pgle, jax and Python, and end, if the user asks for them."""
    if not asked:
        return
    from importlib import metadata
    from platform import python_version

    from pgle.run.ask.jaxlib import PLUGIN_PACKAGES

    wanted = ("jax", "jaxlib", *PLUGIN_PACKAGES)
    found: dict[str, str] = {}
    for item in metadata.distributions():
        name = (item.name or "").lower()
        if name in wanted:
            found[name] = item.version
    others = [f"{name} {version}" for name, version in sorted(found.items())]
    versions = ", ".join(others or ["no jax"])
    click.echo(f"pgle {__version__}, {versions}, Python {python_version()}")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=(
        "'pgle COMMAND -h' is one screen, --help is all. 'pgle' alone names the next "
        "command for the files here."
    ),
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_versions,
    help="Versions of pgle, jax, its plugins for GPUs and Python.",
)
def group() -> None:
    """Measured costs for XLA's latency-hiding scheduler: each step one command, and each step
    proven.
    """


def main() -> NoReturn:
    """Run the command line. Exit codes: 0 success, 1 failed check, 2 bad usage or input, else the
    exit code of the user's program.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it: `>&-`
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            # for names that are not UTF-8, and for ASCII terminals
            stream.reconfigure(errors="backslashreplace")
    for number in ENDS.values():  # processes that we started must end with us
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _exit_by_signal)
    program = _program()
    if program != "pgle":
        call_it(program, COMMANDS)
    # our values have no cycles, and the default scans a million of them repeatedly
    gc.set_threshold(100_000, 50, 100)
    code = run(sys.argv[1:])
    # a traceback while the interpreter ends helps nobody
    for number in (signal.SIGINT, *ENDS.values()):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    gc.freeze()  # do not search every module for cycles before the process ends
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run `pgle ARGUMENTS` and return its exit code; an error is one line on stderr, with
    ``--json`` also an object.

    `pgle` alone prints what this folder holds, and the next command.
    """
    try:
        if arguments or "_PGLE_COMPLETE" in os.environ:
            code = group.main(arguments, prog_name="pgle", standalone_mode=False)
            return code if isinstance(code, int) else 0
        from pgle.api import known
        from pgle.report.page import plain

        plain.show(known.folder().page)
        return 0
    except BaseException as error:
        line, code = error_line(error)
        if line is None:
            return code
        own = arguments[: arguments.index("--")] if "--" in arguments else arguments
        if "--json" in own:
            from pgle.report import text

            parts = text.ErrorParts(
                what=_masked(getattr(error, "what", line)) or "",
                where=_masked(getattr(error, "where", None)),
                remedy=_masked(getattr(error, "remedy", None)),
            )
            document = text.ErrorDocument(parts, code)
            text.print_json("pgle.error/1", text.plain(document))
        _print_error(printable(line))
        return code


def printable(line: str) -> str:
    """Return an error as one line, with credentials masked."""
    return _masked(one_line(named(line))) or ""


def _print_error(line: str) -> None:
    """Print an error on stderr in one line. On a terminal it wraps between words."""
    if sys.stderr.isatty():
        from pgle.report import text

        text.say(line)
        return
    print(inert(f"pgle: {line}"), file=sys.stderr)


def _masked(text: str | None) -> str | None:
    """Mask credentials in a part of an error, because many people read CI logs."""
    from pgle.masking import kept_text

    return None if text is None else kept_text(text)


def _program() -> str:
    """Return how to start pgle again: ``pgle`` if the shell finds this program under that name,
    else its path.
    """
    started = sys.argv[0]
    # importing pathlib takes longer than all other imports here
    if os.path.basename(started) == "__main__.py":  # noqa: PTH119
        words = sys.orig_argv
        if "-m" in words:
            return typed(*words[: words.index("-m") + 2])
        return typed(words[0], started)
    found = shutil.which("pgle")
    is_found = found and os.path.realpath(found) == os.path.realpath(started)
    return "pgle" if is_found else quoted(started)


def error_line(error: BaseException) -> tuple[str | None, int]:
    """Return the message of an error, None if nothing is printed, and the exit code.

    Raises:
        BaseException: the error itself, if the interpreter must end, or if it is a bug of pgle and
            PGLE_DEBUG is set.
    """
    match error:
        case UserError() | WorkloadError():
            return str(error), error.exit_code
        case click.UsageError():
            if isinstance(error, _NO_ARGUMENTS):
                click.echo(error.ctx.get_help() if error.ctx else "")
                return None, 0
            message = error.format_message().rstrip(".")
            if error.ctx is None:
                return message, 2
            return f"{message}; try '{error.ctx.command_path} --help'", 2
        case click.ClickException():
            return error.format_message(), 2
        case KeyboardInterrupt() | click.Abort():
            return "interrupted", 130
        case SystemExit() if error.code in ENDS:
            return f"ended by {signal.Signals(ENDS[error.code]).name}", error.code
        case BrokenPipeError():  # the reader of our output went away, e.g. `pgle show | head`
            _discard_output()
            return None, 0
        case MemoryError():
            return "out of memory; give fewer inputs at once", 2
        case OSError() if error.filename:
            # a name is too long, or a folder denies access
            return f"{error.filename}: {error.strerror}; check the path", 2
        case FileNotFoundError() if not error.filename and not _has_working_directory():
            gone = "the working directory does not exist any more; cd to one that does"
            return gone, 2
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _discard_output()
            return f"the output cannot be written: {error.strerror}; free some space", 2
        case Exception() if not os.environ.get("PGLE_DEBUG"):
            return (
                f"internal error: {type(error).__name__}: {error}; set PGLE_DEBUG=1 to see where",
                2,
            )
    raise error


ENDS = {128 + number: number for number in (signal.SIGTERM, signal.SIGHUP)}
"""Exit codes, as in a shell, for signals that end pgle. Senders are scancel, timeout, kubelet and a
closed terminal.
"""
_NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())


def _has_working_directory() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - pathlib takes longer to import than all else here
    except OSError:
        return False
    return True


def _discard_output() -> None:
    """Discard pending output. Otherwise Python complains at exit that it cannot write it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_by_signal(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
