"""From the words of `pgle rehearse` or `tune` to what is compiled: a module file, or the captured
step of a program.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from pgle.costs.profile.files import read_profile
from pgle.errors import UserError
from pgle.files import read_bytes, read_head, sha256
from pgle.masking import kept_argv
from pgle.next import Next
from pgle.run.ask.jaxlib import PLUGIN_PACKAGES, installed, lint_flags, repair
from pgle.run.capture.capture import capture_modules, devices_for
from pgle.run.capture.captured import (
    CapturedProgram,
    candidates,
    capture_warnings,
    choose_module,
    modules_in,
    no_step,
    own_exit_code,
    partitioned,
    program_failure,
    read_captured,
    topology_of_step,
)
from pgle.run.compiler.compile import CompileRequest, devices_in
from pgle.run.directory.directory import RunDirectory, check_question, free, opened
from pgle.run.directory.manifest import (
    StageRecord,
    changed_import,
    imported_files,
    read_manifest,
)
from pgle.run.inputs.next_command import (
    UNKNOWN,
    ProgramLaunch,
    following,
    launch_of,
    tune,
)
from pgle.run.process.compilers import check_compiler, compiler_of
from pgle.run.process.efforts import EFFORTS, checked_effort
from pgle.run.process.flags import OF_CPUS, flags_with, user_flags
from pgle.run.process.memory import DEFAULT_FRACTION, memory_fraction
from pgle.run.process.process import check_program, program_of
from pgle.run.target import dump_in, gpu_of, target_named_by
from pgle.xla.flags.catalogue import LHS, PROFILE_PATH, known_in
from pgle.xla.flags.presets import Mode, flags_for
from pgle.xla.flags.text import FlagList, format_flags, parse_flags, typed_flag
from pgle.xla.targets import Hardware, Target, find_hardware, load_target
from pgle.xla.vendors import Vendor

LHS_ON = f"--{LHS}=true"
NEAR = 0.03
"""Part of the memory limit. On one public program 3.7 GiB less of 138.2 (2.7 %) ended
rematerialisation, and the step got shorter by several per cent (marin-community/marin, pull request
8070).
"""

DEFAULT_TARGET = "h100"  # the GPU that is meant where none is named

OURS: Mapping[str, str] = {
    "xla_dump_to": "give the folder with -o",
    PROFILE_PATH: "give the profile with --profile",
}
"""Flags that a rehearsal sets itself, and what to do instead."""

MODEL_OPTIONS = "xla_gpu_analytical_latency_estimator_options"
OF_XLA = (
    8  # GPUs of a host, as XLA's model assumes (openxla/xla `sol_gpu_cost_model.cc`)
)

_ENDS_XLA = ("unknown", "removed", "too-new", "needs-value", "bad-value")
OLDEST_PYTHON = (3, 11)  # that can run pgle's half of the compiler's process

_MODULE_SUFFIXES = (".mlir", ".pb", ".xz", ".gz", ".txt", ".hlo", ".bin")


@dataclass(frozen=True)
class RehearseRequest:
    """A module, and all that is decided of its compilations before the first."""

    module: Path  # the file
    target: Target  # the GPU
    out: Path  # folder for dumps, profile and pictures; new or empty
    python: str  # the interpreter whose jaxlib compiles
    flags: tuple[
        str, ...
    ] = ()  # of the user, from XLA_FLAGS and from the command line, as text; the later wins
    topology: str | None = None  # ``SxHxD``; None: one host
    network_gb_s: float | None = (
        None  # network bandwidth per GPU and direction; None: the target's
    )
    profile: Path | None = None  # measured costs; None: estimates stand in for them
    cached: bool = True  # take compilations from the user's cache, and keep them there
    # part of the GPU's memory that the job's allocator has; 0: it has no limit
    memory_fraction: float = DEFAULT_FRACTION
    others: tuple[
        str, ...
    ] = ()  # the other modules, which were not chosen, in words, the largest first
    no_step: str = ""  # why the module is no step of its captured program
    # how its captured program failed, by a fault of its own, after its step; empty: it did not
    failed: str = ""
    # of that program, if the capture cannot have caused its fault; else 0
    exit_code: int = 0
    assumed: bool = False  # nobody names how many devices the captured program has
    program: str = ""  # a digest of the captured program, if it was run for the request
    warnings: tuple[str, ...] = ()  # one line each

    @property
    def hardware(self) -> Hardware:
        """The GPU, its hosts and its network: one value for the whole answer."""
        return find_hardware(
            self.target, topology=self.topology, network_gb_s=self.network_gb_s
        )

    @property
    def allocator_bytes(self) -> int:
        """Device memory that the job's allocator has; 0: it has no limit."""
        return int(self.memory_fraction * self.target.memory_bytes)

    def compilation(self) -> CompileRequest:
        """What all its compilations share, with LHS on unless the flags say otherwise."""
        return CompileRequest(
            module=partitioned(self.module),
            targets=self.target.texts,
            vendor=self.target.vendor.name,
            allocator_bytes=self.allocator_bytes,
            dump_dir=self.out,
            topology=self.topology,
            flags=(LHS_ON, *self.flags),
        )


@dataclass(frozen=True)
class RehearseCommand:
    """The command line."""

    # one module file, a folder of dumps, a run directory, or the words of a command
    words: tuple[str, ...]
    # profile, topology, flags, cached, network_gb_s: as in `RehearseRequest`
    profile: str | None = None
    # the GPU by name, or its description; empty: the run directory's, else `DEFAULT_TARGET`
    target: str = ""
    topology: str | None = (
        None  # of a command None: as many devices as XLA_FLAGS say, or `DEFAULT_DEVICES`
    )
    flags: tuple[str, ...] = ()
    out: str | None = None  # folder; None: one of `answers_place`
    choose: str | None = None  # name of a module, or a regular expression on file names
    quiet_s: float = 20.0  # stop a command that has compiled nothing new for so long
    cached: bool = True
    network_gb_s: float | None = None
    # the command line as it was, where its words are the modules of a run directory
    typed: RehearseCommand | None = None
    ran: CapturedProgram | None = (
        None  # the program of a run directory whose stages ran for real
    )
    doubts: tuple[str, ...] = ()  # its unknowns, one line each


def of_run(given: RehearseCommand) -> RehearseCommand:
    """A command line that names a run directory, as one that names its modules, measured costs,
    flags, GPU, topology.

    Args:
        given: the command line; what it says wins. One that names no run directory is returned as
            it is, with the target to use if none was named.
    """
    run = RunDirectory(Path(given.words[0]))
    if len(given.words) != 1 or not run.is_recorded:
        return _of_dump(given)
    places = (run.captured, run.stage("profile").rank().ir)
    folder = next((path for path in places if path.is_dir() and modules_in(path)), None)
    stage = read_manifest(run.path).last("profile")
    if folder is None or stage is None:
        remedy = "profile first: pgle profile -- COMMAND; or give a module's file"
        raise UserError(
            "holds no module of a profile stage", where=run.path, remedy=remedy
        )
    asked: dict[str, Any] = dict(stage.asked)
    described = sorted(
        run.stage("profile").rank().hlo.glob("*.gpu_target_config.pbtxt")
    )
    shape = asked.get("topology") or (
        f"1x1x{asked['devices']}" if asked.get("devices") else None
    )
    flags = tuple(
        format_flags([flag]) for flag in parse_flags(asked.get("XLA_FLAGS") or "").flags
    )
    profile, is_real = run.found_profile, folder != run.captured
    unknown = is_real and "xla_flags" not in stage.facts.get("hook", {})
    what = "what the program itself adds to XLA_FLAGS is not known, since pgle's hook did not see it; say --flag"
    return replace(
        given,
        words=(str(folder),),
        profile=given.profile or (str(profile) if profile else None),
        target=given.target
        or asked.get("target")
        or (str(described[0]) if described else DEFAULT_TARGET),
        topology=given.topology or shape,
        flags=given.flags if is_real else (*flags, *given.flags),
        ran=_ran(stage) if is_real else None,
        doubts=(what,) if unknown else (),
        choose=given.choose or asked.get("choose"),
        typed=given,
    )


def _of_dump(given: RehearseCommand) -> RehearseCommand:
    """A command line with the GPU of its dump if it names none.

    If it names one of another generation than the dump's, it has a doubt.
    """
    if is_program(given.words):
        return replace(given, target=given.target or DEFAULT_TARGET)
    source = dump_in(Path(given.words[0]))
    if given.target:
        doubt = gpu_of(source, load_target(given.target)).doubt
        return replace(given, doubts=(*given.doubts, *filter(None, [doubt])))
    named = target_named_by(source)
    return replace(given, target=named or DEFAULT_TARGET)


def _ran(stage: StageRecord) -> CapturedProgram:
    """The program of a profile stage that ran for real: its interpreter, and its flags as jax read
    them, without those that pgle had added for the stage.
    """
    facts = stage.facts.get("hook", {})
    versions = facts.get("versions") or stage.versions
    own = list(parse_flags(stage.xla_flags).flags)
    given = parse_flags(stage.asked.get("XLA_FLAGS") or "")
    mode = cast(Mode, stage.mode or "sync")
    for added in (
        flags_for(mode, stage.versions.get("jaxlib"), given).flags
        if not given.file
        else ()
    ):
        if added in own:
            own.remove(added)  # once: the user's own stays
    return CapturedProgram(
        python=facts.get("executable", ""),
        version=tuple(
            int(part) for part in re.findall(r"\d+", versions.get("python", ""))
        ),
        jaxlib=versions.get("jaxlib", ""),
        plugin="executable" in facts
        and any(name in PLUGIN_PACKAGES for name in versions),
        xla_flags=format_flags(own),
    )


def launch(command: RehearseCommand) -> ProgramLaunch:
    """How pgle runs the program of a command line: as in its run directory, else as it was
    named.
    """
    if command.typed is not None:
        return launch_of(RunDirectory(Path(command.typed.words[0]))).with_flags(
            command.typed.flags
        )
    options = _named(command, "target", "topology", "network_gb_s", "choose")
    if command.topology and "--devices" not in options:
        options += ["--devices", str(devices_in(command.topology))]
    options += [f"--flag={flag}" for flag in command.flags]
    return ProgramLaunch(
        command.words if is_program(command.words) else UNKNOWN, tuple(options)
    )


def measure(command: RehearseCommand) -> Next:
    """The command line that measures the program of a rehearsal: the next stage of its run
    directory, else all.
    """
    how = launch(command)
    if how.run is not None:
        there = how.run.path.with_name(f"{how.run.path.name}-flags")
        return (
            how.line("run", free(there))
            if command.typed and command.typed.flags
            else following(how.run)
        )
    folder = free(Path("runs/default"))
    return (
        how.line("perf", folder, "--profile", command.profile)
        if command.profile
        else how.line("run", folder)
    )


def tune_line(command: RehearseCommand) -> Next | None:
    """The command line of `pgle tune` for the same words; None if it was searched for in their run
    directory.
    """
    given = command.typed or command
    if (
        command.typed
        and not given.flags
        and not tune(RunDirectory(Path(given.words[0])))
    ):
        return None
    options = _named(given, "profile", "target", "topology", "network_gb_s", "choose")
    flags = [word for flag in given.flags for word in ("--flag", flag)]
    folder = free(Path(given.words[0]) / "tuned" if command.typed else Path("tuned"))
    words = ("--", *kept_argv(given.words)) if is_program(given.words) else given.words
    return Next.of("tune", *options, *flags, "-o", folder, *words)


def _named(command: RehearseCommand, *names: str) -> list[str]:
    """Options that have a value, as words; the devices of one host as it is shorter."""
    words = []
    for name in names:
        value = getattr(command, name)
        if name == "topology" and value and value.startswith("1x1x"):
            words += ["--devices", value.removeprefix("1x1x")]
        elif name == "network_gb_s" and value:
            words += ["--network", f"{value:g}"]
        elif value:
            words += [f"--{name}", value]
    return words


def is_program(words: Sequence[str]) -> bool:
    """Whether words start a program: several, or one that is no folder and no module."""
    first = Path(words[0])
    if len(words) > 1 or not first.exists():
        return True
    if not first.is_file():
        return False
    return first.suffix in (".py", ".sh") or read_head(first, 4).startswith(
        (b"#!", b"\x7fELF")
    )


@contextmanager
def prepared(
    command: RehearseCommand, *, question: str = ""
) -> Iterator[tuple[RehearseCommand, RehearseRequest]]:
    """A command line with what it means in full, and everything that is decided before the first
    compilation; of `opened`, the file that lets a folder be continued with.
    """
    command = of_run(command)
    target = load_target(
        command.target
    )  # an unknown target fails before a program runs for minutes
    if command.topology:
        devices_in(command.topology)
    profile = Path(command.profile) if command.profile else None
    if profile is not None:
        read_profile(profile)
    if command.flags and is_program(command.words):
        checked_flags(
            command.flags,
            compiler_of(command.words, target.vendor)[0] or sys.executable,
            "",
        )
    with opened(command.out, question) as out:

        def before_it_runs() -> None:
            if question:
                known = asked_of_search(
                    _program_digest(command.words),
                    profile,
                    target,
                    command.network_gb_s,
                )
                check_question(out / question, known, "the trials of another search")

        modules, program = _modules(command, out, before_it_runs)
        request = settle(
            modules,
            command.choose,
            program,
            command.flags,
            target=target,
            out=out,
            topology=command.topology,
            network_gb_s=command.network_gb_s,
        )
        warnings = (*command.doubts, *request.warnings)
        if is_program(command.words) or (
            command.typed and command.topology
        ):  # the program decides its devices
            devices = devices_for(None, topology=command.topology)
            topology, remarks = topology_of_step(
                request.module, command.topology or f"1x1x{devices.count}"
            )
            request = replace(request, assumed=devices.assumed and not command.typed)
            request = replace(request, topology=topology) if remarks else request
            warnings = (*remarks, *warnings)
        if (
            question
        ):  # anew, since the program may have written files that its command line names
            request = replace(request, program=_program_digest(command.words))
        request = replace(
            request, profile=profile, cached=command.cached, warnings=warnings
        )
        yield command, told_of_hosts(request)


def _program_digest(words: Sequence[str]) -> str:
    """Of a program and the files that its command line names; empty for anything else."""
    return sha256(json.dumps(program_of(words)).encode()) if is_program(words) else ""


def asked_of_search(
    program: str, profile: Path | None, target: Target, network_gb_s: float | None
) -> dict[str, Any]:
    """What a search is of, as far as it is known before its module is; `program` is that of
    `RehearseRequest`.
    """
    return {
        "program": program,  # of which a search that continues takes the modules that were captured
        "profile": sha256(read_bytes(profile)) if profile else "",
        "target": sha256(target.text.encode()),
        "network_gb_s": network_gb_s,
    }


def _modules(
    command: RehearseCommand, out: Path, before_it_runs: Callable[[], None]
) -> tuple[Sequence[Path], CapturedProgram]:
    """The modules of a file, of a folder of dumps, or of a program, which is run to capture
    them.
    """
    first = Path(command.words[0])
    if len(command.words) == 1:
        if first.is_dir():
            return modules_in(first, dumps=True), command.ran or read_captured(first)
        if not first.exists() and (
            first.suffix in _MODULE_SUFFIXES or shutil.which(command.words[0]) is None
        ):
            remedy = "dump modules with JAX_DUMP_IR_TO=DIR, or name a run directory; put -- before a program"
            raise UserError("no such file or folder", where=first, remedy=remedy)
        if not is_program(command.words):
            return [first], CapturedProgram()
        check_program(command.words)
    before_it_runs()  # it may run for minutes
    if (out / "captured").is_dir() and (kept := modules_in(out / "captured")):
        program = read_captured(out / "captured")  # of the search that continues
        if changed := changed_import(imported_files(program.sources)):
            what = f"holds the trials of another search ({changed})"
            raise UserError(what, where=out, remedy="choose a new folder with -o DIR")
        return kept, program
    check_compiler(command.words, load_target(command.target).vendor, by_name=True)
    captured = capture_modules(
        command.words,
        out / "captured",
        target=load_target(command.target),
        devices=devices_for(None, topology=command.topology),
        quiet_s=command.quiet_s,
        choose=command.choose,
    )
    return captured, read_captured(out / "captured")


def settle(
    modules: Sequence[Path],
    choose: str | None,
    program: CapturedProgram,
    flags: Sequence[str],
    *,
    target: Target,
    out: Path,
    topology: str | None = None,
    network_gb_s: float | None = None,
) -> RehearseRequest:
    """The step among some modules, what compiles it, and the flags that count.

    Args:
        modules: one file, or all of a program or folder.
        choose: which, as in `choose_module`; None: the program's step.
        program: that compiled them; its environment compiles where it can.
        flags: from the command line, after XLA_FLAGS and the flags that the program sets itself.
        target, out, topology, network_gb_s: of the request.
    """
    module = (
        choose_module(modules, choose) if len(modules) > 1 or choose else modules[0]
    )
    vendor = target.vendor
    python, warnings = _compiling_python(program, vendor)
    kept, more = checked_flags(flags, python, program.flags_of(module))
    doubt = repair(installed(python).versions, python, vendor)
    if doubt and doubt.fails:
        warnings = (
            *warnings,
            f"the {vendor.toolkit} plugin: {doubt.what}; {doubt.line}",
        )
    return RehearseRequest(
        module,
        target,
        out,
        python,
        kept,
        topology,
        network_gb_s,
        memory_fraction=memory_fraction(os.environ),
        others=tuple(candidates([path for path in modules if path != module])),
        no_step="" if choose else no_step(module),
        failed=program_failure(module),
        exit_code=own_exit_code(module),
        warnings=(*capture_warnings(module), *warnings, *more),
    )


def told_of_hosts(request: RehearseRequest) -> RehearseRequest:
    """The request with a flag by which XLA's speed-of-light model, too, knows the hosts and the
    network of the user.

    XLA assumes hosts of 8 GPUs and a network of its own. Nothing changes if that is right, if no
    collective can cross hosts, if the user has set the flag, or if the jaxlib does not know it.
    """
    together = request.hardware.devices_per_host
    devices = devices_in(request.topology) if request.topology else math.inf
    options = (
        {"gpus_per_node": f"{together}"}
        if together != OF_XLA and devices > min(together, OF_XLA)
        else {}
    )
    if request.network_gb_s and devices > together:
        options["nic_speed_gbps"] = (
            f"{request.network_gb_s:g}"  # in GB/s, whatever its name says
        )
    given = any(typed_flag(flag).name == MODEL_OPTIONS for flag in request.flags)
    if (
        not options
        or given
        or known_in(MODEL_OPTIONS, installed(request.python).jaxlib) is False
    ):
        return request
    flag = f"--{MODEL_OPTIONS}={','.join(f'{name}={value}' for name, value in options.items())}"
    line = f"XLA's own cost model gets your topology and network by {flag}; give your job the same flag"
    return replace(
        request, flags=(*request.flags, flag), warnings=(*request.warnings, line)
    )


def near_limit(need: int, have: int) -> str:
    """Whether the need is so near the limit (bytes) that a small change of memory changes what XLA
    makes of a program.
    """
    if abs(need - have) > NEAR * have:
        return ""
    return (
        f"{gib(need)} of {gib(have)} are needed, within {NEAR:.0%} of the memory limit: the gain may turn, since XLA "
        "computes values again to stay below it"
    )


def gib(count: int) -> str:
    """Bytes in words."""
    return f"{count / 2**30:.1f} GiB"


def _compiling_python(
    program: CapturedProgram, vendor: Vendor
) -> tuple[str, tuple[str, ...]]:
    """The program's own interpreter where that can compile for GPUs, else ours, with a warning
    where they differ.
    """
    is_new = program.version >= OLDEST_PYTHON
    if program.plugin and is_new and shutil.which(program.python):
        return program.python, ()
    ours = installed().jaxlib
    if not program.python or program.jaxlib == ours:
        return sys.executable, ()
    mended = repair({"jaxlib": program.jaxlib}, program.python, vendor)
    if not program.plugin:
        why, remedy = (
            f"has no {vendor.toolkit} plugin",
            mended.line if mended else "install one there",
        )
    elif not is_new:
        why, remedy = (
            f"is Python {'.'.join(map(str, program.version))}",
            "use Python 3.11 or newer there",
        )
    else:
        why, remedy = (
            "is not on this machine",
            f"compile where jaxlib {program.jaxlib} is",
        )
    what = f"the program runs jaxlib {program.jaxlib} ({program.python} {why}), and pgle's jaxlib {ours} compiles here"
    return sys.executable, (f"{what}: releases differ by several per cent; {remedy}",)


def checked_flags(
    given: Sequence[str], python: str, own: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The user's flags that count, what a captured program asks of XLA by its `own` too, and
    warnings.

    A flag that the program sets and the jaxlib that compiles does not take is left out: another one
    ran the program.
    """
    environment, warnings = [], []
    for flag in flags_with(own):
        if flag.name in OURS:
            warnings.append(
                f"--{flag.name} of XLA_FLAGS is left out; {OURS[flag.name]}"
            )
        elif flag.name not in OF_CPUS and not flag.name.startswith("xla_dump_"):
            environment.append(flag)
    typed = [typed_flag(text) for text in given]
    for flag in typed:
        if flag.name in OURS:
            raise UserError(
                "rehearse sets this flag itself",
                where=f"--flag {flag.word}",
                remedy=OURS[flag.name],
            )
        if flag.name in EFFORTS:
            checked_effort(flag, f"--flag {flag.word}")
    if not environment and not typed:
        return (), tuple(warnings)
    of_xla = tuple(flag for flag in (*environment, *typed) if flag.name not in EFFORTS)
    found = lint_flags(FlagList(of_xla), python=python).findings
    errors = [finding for finding in found if finding.level == "error"]
    ours = {flag.name for flag in (*user_flags().flags, *typed)}
    for finding in errors:
        if finding.code in _ENDS_XLA and finding.flag in ours:
            where = (
                "--flag"
                if any(flag.name == finding.flag for flag in typed)
                else "XLA_FLAGS:"
            )
            remedy = finding.remedy or "see: pgle flags lint"
            raise UserError(
                finding.message, where=f"{where} --{finding.flag}", remedy=remedy
            )
    unknown = {finding.flag for finding in errors if finding.code in _ENDS_XLA}
    warnings += [
        f"{finding.line()}{' (left out)' * (finding.flag in unknown)}"
        for finding in errors
    ]
    return tuple(
        flag.word for flag in (*environment, *typed) if flag.name not in unknown
    ), tuple(warnings)
