"""Ask the installed jaxlib which flags and values it takes, without risking this process.

XLA ends the process on an unknown flag or a bad value, and reads XLA_FLAGS once in a process. So one child imports
jaxlib (CPU only, half a second) and forks for each flag; a fork that ends badly costs four milliseconds. The CPU build
registers the GPU flags too, so neither a GPU nor the CUDA plugin is needed. Answers are kept per jaxlib under the
user's cache directory.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from pgle.errors import UserError
from pgle.files import write_files
from pgle.run.ask.plugins import PACKAGES, versions
from pgle.xla.flags.catalogue import Lint, lint
from pgle.xla.flags.text import Flag, FlagList
from pgle.xla.log.events import flag_refusal

TIMEOUT_S = 120  # for the child, which needs about a second; a cold network file system may need a hundred times that

Status: TypeAlias = Literal["known", "unknown", "bad-value", "failed"]

PROBE_CHILD = """
import json, os, resource, sys
texts = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    from jaxlib.xla_client import CompileOptions as read_flags
except ImportError:
    import jax
    read_flags = jax.devices
answers = []
for text in texts:
    inward, outward = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(inward)
        os.dup2(outward, 2)
        os.environ["XLA_FLAGS"] = text
        try:
            read_flags()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(3)
        os._exit(0)
    os.close(outward)
    with os.fdopen(inward, "rb") as pipe:
        output = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    answers.append([code, output[:4000].decode(errors="replace")])
print(json.dumps(answers))
"""


class FlagAnswer(NamedTuple):
    """What jaxlib makes of one flag."""

    # ``known``; ``unknown`` and ``bad-value``, on which XLA ends the process; ``failed`` where it ended otherwise
    status: Status
    message: str = ""  # XLA's own line about it; empty for ``known``


@dataclass(frozen=True, slots=True)
class Probe:
    """What a release of jaxlib makes of several flags: verdicts by a flag's text, such as ``--xla_dump_to=/tmp/d``."""

    jaxlib: str
    verdicts: Mapping[str, FlagAnswer]


@dataclass(frozen=True, slots=True)
class Installed:
    """What an interpreter would import."""

    versions: Mapping[str, str]  # by package (``python`` too); missing packages are absent
    jaxlib_at: str = ""  # the folder jaxlib is installed in; empty where it is not

    @property
    def jaxlib(self) -> str:
        """The version of jaxlib; empty if absent."""
        return self.versions.get("jaxlib", "")

    @property
    def built_ns(self) -> int:
        """When its jaxlib was installed, which tells apart builds that share a version, such as nightly ones."""
        at = Path(self.jaxlib_at) / "jaxlib" / "version.py"
        return at.stat().st_mtime_ns if at.is_file() else 0

    @property
    def plugins(self) -> Mapping[str, str]:
        """The CUDA plugin packages and their versions."""
        return {name: version for name, version in self.versions.items() if name.startswith("jax-cuda")}


def installed(python: str | None = None) -> Installed:
    """The versions that `python` (default: ours) would import, without importing them.

    Raises:
        UserError: there is no such interpreter, or it does not run.
    """
    if python is None or python == sys.executable:
        return Installed(*versions(PACKAGES))
    code = f"import json, sys\n{inspect.getsource(versions)}\nprint(json.dumps(versions(sys.argv[1:])))"
    return Installed(*json.loads(_child(python, f"from __future__ import annotations\n{code}", "", PACKAGES)))


def probe(flags: Iterable[Flag], python: str | None = None) -> Probe:
    """Ask the jaxlib of `python` (default: ours) about each flag with its value; malformed ones are asked as they
    stand.

    Raises:
        UserError: the interpreter does not run or has no jaxlib.
    """
    executable = python or sys.executable
    found = installed(executable)
    if not found.jaxlib:
        raise UserError("has no jaxlib", where=executable, remedy="name the Python of your program, --python PATH")
    store = cache_directory() / f"flags-{found.jaxlib}-{found.built_ns}.json"
    kept = _read(store)
    texts = list(dict.fromkeys(flag.text for flag in flags))
    new = [text for text in texts if _key(text) not in kept]
    if new:
        answers = json.loads(_child(executable, PROBE_CHILD, json.dumps(new)))
        kept |= {_key(text): answer(*output) for text, output in zip(new, answers, strict=True)}
        _write(store, kept)
    return Probe(found.jaxlib, {text: kept[_key(text)] for text in texts})


def answer(exit_code: int, output: str) -> FlagAnswer:
    """What a fork's exit code and stderr mean."""
    refused = flag_refusal(output)
    if refused is not None and (exit_code != 0 or refused[0] == "bad-value"):
        return FlagAnswer(*refused)
    if exit_code == 0:
        return FlagAnswer("known")
    lines = [line.split("] ", 1)[-1].strip() for line in output.splitlines()]
    return FlagAnswer("failed", next((line for line in lines if line), f"ended with {exit_code}"))


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/pgle``, by default ``~/.cache/pgle``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pgle"


def _key(text: str) -> str:
    """The text under which an answer is kept: paths are any path, since XLA takes every text for one."""
    name, equals, value = text.partition("=")
    return f"{name}=PATH" if equals and "/" in value else text


def _read(store: Path) -> dict[str, FlagAnswer]:
    try:
        entries = json.loads(store.read_text(encoding="utf-8"))
        return {key: FlagAnswer(*entry) for key, entry in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # absent or damaged: ask again


def _write(store: Path, kept: Mapping[str, FlagAnswer]) -> None:
    try:
        write_files({store: json.dumps(dict(sorted(kept.items())), indent=0) + "\n"}, force=True)
    except UserError:
        return  # a home that cannot be written costs a second next time, nothing else


def _child(python: str, code: str, stdin: str, arguments: Sequence[str] = ()) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "PGLE_HOOK")}
    environment |= {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "1"}
    try:
        done = subprocess.run(
            [python, "-c", code, *arguments],
            input=stdin,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"did not answer within {TIMEOUT_S} s", where=python, remedy="try again") from None
    except OSError as error:
        raise UserError(f"cannot be run ({error.strerror})", where=python, remedy="pass --python PATH") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"cannot ask jaxlib about flags ({last})", where=python, remedy="does 'import jaxlib' work?")
    return (done.stdout.strip().splitlines() or [""])[-1]  # what a site's sitecustomize prints comes before


def lint_flags(flags: FlagList, *, jaxlib: str | None = None, python: str | None = None) -> Lint:
    """Problems of the flags by the catalogue, for a release of jaxlib, or by the jaxlib of `python` (default:
    ours).

    Raises:
        UserError: the interpreter has no jaxlib, or `jaxlib` is no version.
    """
    if jaxlib is not None:
        return lint(flags, jaxlib)
    asked = probe(flags.flags, python)
    return lint(flags, asked.jaxlib, asked.verdicts)
