"""The `pgle` program: a lazy list of commands, and the one place where errors become exit codes."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import NoReturn

import click

from pgle import __version__
from pgle.errors import UserError, WorkloadError, one_line, suggestion

# Name → one line for `pgle --help`. The module `pgle.cli.NAME` holds the click command `command`; it is imported
# only when the command is used, so that `pgle --help` stays instant.
COMMANDS: dict[str, str] = {
    "run": "All stages on your command: profile, convert, verify, baseline, perf, compare; resumable.",
    "profile": "Run a command with the flags of a profile run and capture a trace.",
    "convert": "Turn traces (nsys, JAX profiler) into a cost profile.",
    "verify": "Hold a profile against an HLO module: coverage, missing names, what XLA will assume.",
    "perf": "Run a command with a profile and confirm that XLA used it.",
    "confirm": "Read an XLA log: was the profile used, by which module, and what proves it.",
    "compare": "Compare step times of two runs; fail on a slowdown.",
    "rehearse": "Compile for a GPU without one: what would the profile change?",
    "tune": "Find the flags that, with the profile, make a step fastest; no GPU needed.",
    "perf-table": "From traces the measured tables that XLA's own cost model reads.",
    "analyze": "Where the time of a measured step goes, and what could be saved.",
    "predict": "What a step of a scheduled module takes, with no compiler and no GPU.",
    "show": "Show a profile (costliest instructions, kinds, dispersion) or what a trace holds.",
    "diff": "Compare two profiles: what changed and by how much.",
    "merge": "Merge profiles of ranks or runs.",
    "complete": "Fill the gaps of a profile from same-shape instructions and estimates.",
    "auto": "Run a command with JAX's AutoPGLE, and hand the result over to nsys.",
    "flags": "List, explain, lint and preset XLA, NCCL, CUDA and JAX settings.",
    "history": "Keep step times over time; trend and change points.",
    "doctor": "Check GPUs, driver, jax, nsys, CUPTI, flags, caches and permissions.",
}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The command names, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command called `cmd_name`, or None."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"pgle.cli.{cmd_name.replace('-', '_')}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a suggestion where no command has that name."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail("; ".join(filter(None, (f"no command called '{args[0]}'", suggestion(args[0], COMMANDS)))))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, written from `COMMANDS` without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="pgle")
def group() -> None:
    """Measured costs for XLA's latency-hiding scheduler: profile, convert, verify, relaunch, confirm, compare."""


def main() -> NoReturn:
    """Run the command line. Exit codes: 0 good, 1 the check failed, 2 bad usage or input, else the workload's own."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: `>&-`
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):  # for odd names and ASCII
            stream.reconfigure(errors="backslashreplace")
    for number in (signal.SIGTERM, signal.SIGHUP):  # scancel, timeout, kubelet: what we started must end with us
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _ended)
    code = run(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a traceback of the interpreter's end helps nobody
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run `pgle ARGUMENTS` and return its exit code; errors are one line on stderr."""
    try:
        code = group.main(arguments or ["--help"], prog_name="pgle", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (UserError, WorkloadError) as error:
        return _fail(str(error), error.exit_code)
    except getattr(click.exceptions, "NoArgsIsHelpError", ()) as error:
        click.echo(error.ctx.get_help())
        return 0
    except click.UsageError as error:
        usage = "" if error.ctx is None else f"; try '{error.ctx.command_path} --help'"
        return _fail(f"{error.format_message().rstrip('.')}{usage}", 2)
    except click.ClickException as error:
        return _fail(error.format_message(), 2)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output went away, e.g. `pgle show | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        return _fail("out of memory; give fewer inputs at once, then `pgle merge` the profiles", 2)
    except Exception as error:
        if isinstance(error, OSError) and error.filename:  # a name that is too long, a folder without permission
            return _fail(f"{error.filename}: {error.strerror}; check the path", 2)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _fail(f"the output cannot be written: {error.strerror}; free some space", 2)
        if os.environ.get("PGLE_DEBUG"):
            raise
        return _fail(f"internal error: {type(error).__name__}: {error}; set PGLE_DEBUG=1 to see where", 2)


def _ended(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _fail(line: str, code: int) -> int:
    print(f"pgle: {one_line(line)}", file=sys.stderr)
    return code
