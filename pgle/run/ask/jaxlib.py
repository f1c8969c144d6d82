"""What an interpreter has installed: its jax, the flags that its jaxlib accepts, and how to repair
its GPU plugin.

Standard library only, since the compiler's process may be another Python than ours.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from pgle.errors import UserError
from pgle.files import check_file, read_kept, write_files
from pgle.next import Next
from pgle.run.ask.programs import last_line, ran
from pgle.run.directory.directory import cache_directory
from pgle.xla.flags.catalogue import Lint, lint, release
from pgle.xla.flags.scripts import (
    ScriptFinding,
    ScriptsLint,
    findings_in,
    flags_in_script,
)
from pgle.xla.flags.text import Flag, FlagList
from pgle.xla.log.messages import flag_refusal
from pgle.xla.vendors import NVIDIA, VENDORS, JaxPlugin, Vendor

_PLUGINS = [vendor.plugin for vendor in VENDORS.values()]

PLUGIN_PACKAGES = tuple(chain.from_iterable(each.all_packages for each in _PLUGINS))
"""The packages of all vendors' plugins."""

PACKAGES = (
    "jax",
    "jaxlib",
    *PLUGIN_PACKAGES,
    *chain.from_iterable(
        dict(sorted(each.runtimes.items())).values() for each in _PLUGINS
    ),
    "numpy",
    "protobuf",
    "flax",
)
"""The packages whose versions decide how a program compiles and runs."""

# seconds for the child, which usually needs one; a slow network file system may take a hundred
# times as long
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Installed:
    """The packages that an interpreter would import."""

    # by package (``python`` too), without missing packages
    versions: Mapping[str, str]
    jaxlib_at: str = ""  # the folder with jaxlib; empty if absent

    @property
    def jaxlib(self) -> str:
        """The version of jaxlib; empty if absent."""
        return self.versions.get("jaxlib", "")

    @property
    def built_ns(self) -> int:
        """When its jaxlib was installed, in ns. This distinguishes builds of one version, such as
        nightly ones.
        """
        at = Path(self.jaxlib_at) / "jaxlib" / "version.py"
        return at.stat().st_mtime_ns if at.is_file() else 0

    @property
    def changed_ns(self) -> int:
        """When a package was last installed or removed next to jaxlib, in ns; 0: unknown."""
        at = Path(self.jaxlib_at)
        return at.stat().st_mtime_ns if self.jaxlib_at and at.is_dir() else 0

    def plugins_of(self, vendor: Vendor) -> Mapping[str, str]:
        """The packages of a vendor's plugin and their versions."""
        return {
            name: version
            for name, version in self.versions.items()
            if name in vendor.plugin.all_packages
        }


_INSTALLED: dict[str, tuple[int, Installed]] = {}
"""By interpreter: when its package folder last changed, and what it would import."""


def installed(python: str | None = None) -> Installed:
    """Return the versions that `python` (default: ours) would import, without importing them.
    Another interpreter is asked once, and again after a package was installed or removed.
    """
    if python is None or python == sys.executable:
        return Installed(*versions(PACKAGES))
    changed_ns, found = _INSTALLED.get(python, (0, None))
    if found is None or changed_ns != found.changed_ns or not changed_ns:
        found = _asked(python)
        _INSTALLED[python] = found.changed_ns, found
    return found


def _asked(python: str) -> Installed:
    """Ask another interpreter for the versions that it would import."""
    code = (
        "from __future__ import annotations\n"
        f"import json, sys\n{inspect.getsource(versions)}\n"
        "print(json.dumps(versions(sys.argv[1:])))"
    )
    return Installed(*_answers(python, code, "", PACKAGES, count=2))


def versions(packages: Sequence[str]) -> tuple[dict[str, str], str]:
    """Return the versions that this interpreter would import, its own version, and jaxlib's folder.

    Other interpreters run the source of this function, so it uses only Python 3.9's standard
    library.
    """
    import platform
    from importlib import metadata

    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if "jaxlib" not in found:
        return found, ""
    return found, str(metadata.distribution("jaxlib").locate_file(""))


def _answers(
    python: str, code: str, stdin: str, arguments: Sequence[str] = (), *, count: int
) -> list[Any]:
    """Run code in an interpreter. Return the JSON list of `count` items in its last line."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("XLA_FLAGS", "PGLE_HOOK")
    }
    environment |= {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "1"}
    try:
        words = [python, "-c", code, *arguments]
        done = ran(words, input=stdin, env=environment, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"did not answer within {TIMEOUT_S} s", where=python, remedy="try again"
        ) from None
    except OSError as error:
        raise UserError(
            f"cannot be run ({error.strerror})",
            where=python,
            remedy="pass --python PATH",
        ) from None
    if done.returncode != 0:
        last = last_line(done.stderr, "no message")
        raise UserError(
            f"cannot ask jaxlib about flags ({last})",
            where=python,
            remedy="does 'import jaxlib' work?",
        )
    found = None
    # a sitecustomize may print before
    with suppress(ValueError, IndexError, RecursionError):
        found = json.loads(done.stdout.strip().splitlines()[-1])
    if not isinstance(found, list) or len(found) != count:
        raise UserError(
            "does not answer as a Python",
            where=python,
            remedy="name a Python interpreter in its place",
        )
    return found


# Check flags without risk for this process. XLA ends the process on an unknown flag or a bad value,
# and reads XLA_FLAGS once in a process. So one child imports jaxlib (CPU only, half a second) and
# forks for each flag; a fork that crashes costs four milliseconds. The CPU build also registers the
# GPU flags, so this needs neither a GPU nor the CUDA plugin. Answers are cached per jaxlib in the
# user's cache directory.

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
    """jaxlib's answer about one flag."""

    # ``known``; ``unknown`` or ``bad-value``, which end a process; ``failed`` if it ended for
    # another reason
    status: Status
    message: str = ""  # XLA's own line about it; empty for ``known``


@dataclass(frozen=True, slots=True)
class Probe:
    """jaxlib's answers about several flags, by the flag's text, such as
    ``--xla_dump_to=/tmp/d``.
    """

    jaxlib: str
    verdicts: Mapping[str, FlagAnswer]


def probe(flags: Iterable[Flag], python: str | None = None) -> Probe:
    """Ask the jaxlib of `python` (default: ours) about each flag with its value; malformed ones are
    asked as they are.
    """
    executable = python or sys.executable
    found = installed(executable)
    if not found.jaxlib:
        raise UserError(
            "has no jaxlib",
            where=executable,
            remedy="name the Python of your program, --python PATH",
        )
    store = cache_directory() / f"flags-{found.jaxlib}-{found.built_ns}.json"
    kept = {}
    # ask if the cached answer is absent or damaged
    with suppress(ValueError, TypeError, AttributeError, RecursionError):
        entries = json.loads(read_kept(store) or b"")
        kept = {key: FlagAnswer(*entry) for key, entry in entries.items()}
    texts = list(dict.fromkeys(flag.text for flag in flags))
    new = [text for text in texts if _key(text) not in kept]
    if new:
        answers = _answers(executable, PROBE_CHILD, json.dumps(new), count=len(new))
        kept |= {
            _key(text): answer(*output)
            for text, output in zip(new, answers, strict=True)
        }
        # if the cache is not writable, the next call takes a second longer
        with suppress(UserError):
            write_files(
                {store: json.dumps(dict(sorted(kept.items())), indent=0) + "\n"},
                force=True,
            )
    return Probe(found.jaxlib, {text: kept[_key(text)] for text in texts})


def answer(exit_code: int, output: str) -> FlagAnswer:
    """Interpret a fork's exit code and stderr."""
    refused = flag_refusal(output)
    if refused is not None and (exit_code != 0 or refused[0] == "bad-value"):
        return FlagAnswer(*refused)
    if exit_code == 0:
        return FlagAnswer("known")
    lines = [line.split("] ", 1)[-1].strip() for line in output.splitlines()]
    return FlagAnswer(
        "failed", next((line for line in lines if line), f"ended with {exit_code}")
    )


def _key(text: str) -> str:
    """The key under which an answer is cached. All paths share one key, because XLA accepts any
    text as a path.
    """
    name, equals, value = text.partition("=")
    return f"{name}=PATH" if equals and "/" in value else text


def lint_flags(
    flags: FlagList, *, python: str | None, jaxlib: str | None = None
) -> Lint:
    """Find problems of flags, by the catalogue for a jaxlib release, or by the jaxlib of `python`
    (default: ours).
    """
    if jaxlib is not None:
        return lint(flags, jaxlib)
    asked = probe(flags.flags, python)
    return lint(flags, asked.jaxlib, asked.verdicts)


def lint_scripts(
    paths: Sequence[Path], *, jaxlib: str | None, python: str | None
) -> ScriptsLint:
    """Find problems of the flags in scripts, as `lint_flags` does."""
    named = {}
    for path in paths:
        check_file(path)
        text = path.read_text(encoding="utf-8", errors="replace")
        named[path] = flags_in_script(text)
    verdicts = None
    release = jaxlib or installed(python).jaxlib
    if jaxlib is None:
        flags = [item.flag for item in chain.from_iterable(named.values())]
        verdicts = probe(tuple(dict.fromkeys(flags)), python).verdicts
    found: list[ScriptFinding] = []
    for path, items in named.items():
        found += findings_in(str(path), items, release, verdicts)
    return ScriptsLint(
        jaxlib=release,
        asked=jaxlib is None,
        files=len(paths),
        flags=sum(map(len, named.values())),
        findings=tuple(dict.fromkeys(found)),
    )


# jax's GPU plugin: which wheels the installed jax needs, and the command that repairs a missing,
# duplicate or old plugin. The command changes no jax and adds no second plugin: it names wheels
# with versions, without dependencies.


@dataclass(frozen=True, slots=True)
class Repair:
    """A problem of the plugin, and its repair."""

    what: str  # the problem, as a clause
    fails: bool  # whether jax cannot run on GPUs; else only rehearsals fail
    line: str  # the command that repairs it


def repair(
    versions: Mapping[str, str],
    python: str = sys.executable,
    vendor: Vendor = NVIDIA,
) -> Repair | None:
    """Return how to repair the plugin of an environment; None if it works.

    Args:
        versions: versions of its installed packages: jaxlib, the plugin's wheels, CUDA's runtime.
        python: its interpreter.
        vendor: whose plugin.
    """
    plugin = vendor.plugin
    jaxlib = versions.get("jaxlib", "")
    if not jaxlib:
        return None
    majors = [
        major
        for major in sorted(plugin.majors)
        if any(name in versions for name in plugin.packages(major))
    ]
    if majors:
        kept = _kept(plugin, majors, versions)
    else:
        kept = wanted_major(plugin, jaxlib)
    wheels = plugin.packages(kept)
    if len(majors) > 1:
        surplus = [
            name
            for name in sorted(versions)
            if name in plugin.all_packages and name not in wheels
        ]
        pip = _pip(python, "uninstall")
        line = Next((*pip, *(() if pip[0] == "uv" else ("-y",)), *surplus))
        what = f"two {vendor.toolkit} versions, of which jax can load one"
        return Repair(what, True, str(line))
    absent = [name for name in wheels if name not in versions]
    wanted = plugin.version_for(jaxlib)
    if not majors:
        what = "none is installed"
    elif absent:
        what = f"{absent[0]} is missing"
    elif not all(plugin.fits(versions[name], jaxlib) for name in wheels):
        what = f"not of jaxlib {jaxlib}, so jax leaves it out"
    else:
        return None
    line = Next(
        (
            *_pip(python, "install"),
            "--no-deps",
            *(f"{name}=={wanted}" for name in wheels),
        )
    )
    return Repair(what, bool(majors), str(line))


def install_command(vendor: Vendor) -> str:
    """Return the command that installs what this interpreter needs to compile for GPUs."""
    mended = repair(versions(PACKAGES)[0], vendor=vendor)
    if mended:
        return mended.line
    wheels = vendor.plugin.packages(max(vendor.plugin.majors))
    return str(Next((*_pip(sys.executable, "install"), *wheels)))


def wanted_major(plugin: JaxPlugin, jaxlib: str) -> int:
    """Return the first toolkit major version that a jaxlib has a plugin for, else the last."""
    at = release(jaxlib)
    fitting = (major for major, since in plugin.majors.items() if at >= release(since))
    *_, last = plugin.majors
    return next(fitting, last)


def _kept(plugin: JaxPlugin, majors: list[int], versions: Mapping[str, str]) -> int:
    """Choose one of several plugins: the one whose runtime is installed, else the one of jaxlib's
    version, else the older.
    """
    jaxlib = versions.get("jaxlib", "")
    running = [major for major in majors if plugin.runtimes.get(major) in versions]
    fitting = [
        major
        for major in majors
        if all(
            plugin.fits(versions.get(name, ""), jaxlib)
            for name in plugin.packages(major)
        )
    ]
    only = (found[0] for found in (running, fitting) if len(found) == 1)
    return next(only, majors[0])


def _pip(python: str, verb: str) -> tuple[str, ...]:
    """Return an interpreter's pip command; uv if it has no pip, as in uv's own environments."""
    if not any(Path(python).parent.glob("pip*")) and shutil.which("uv"):
        return "uv", "pip", verb, "--python", python
    return python, "-m", "pip", verb
