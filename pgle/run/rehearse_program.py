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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from attrs import evolve

from pgle.account.captured_program import NOTHING_KNOWN, CapturedFacts
from pgle.costs.profile.files import read_profile
from pgle.errors import UserError, in_percent
from pgle.files import Json, read_bytes, read_head, sha256
from pgle.masking import kept_argv
from pgle.next import Next
from pgle.requests.predictions import Advise, Rehearse, Tune
from pgle.requests.shared import Flags, ForCompiler, OnDevices
from pgle.requests.stages import Stage
from pgle.run.ask.jaxlib import PLUGIN_PACKAGES, installed, lint_flags, repair
from pgle.run.capture.capture import capture_modules, devices_for
from pgle.run.capture.captured import (
    CapturedProgram,
    candidates,
    capture_warnings,
    choose_module,
    devices_of,
    modules_in,
    no_step,
    own_exit_code,
    partitioned,
    program_failure,
    read_captured,
    recompiled,
    topology_of_step,
)
from pgle.run.compiler.cache import Cache
from pgle.run.compiler.compile import CompileRequest, devices_in
from pgle.run.directory.directory import RunDirectory, check_question, free, opened
from pgle.run.directory.manifest import (
    StageRecord,
    changed_import,
    imported_files,
    read_manifest,
)
from pgle.run.inputs.found_flags import tune
from pgle.run.inputs.next_command import UNKNOWN, ProgramLaunch, following, launch_of
from pgle.run.process.compilers import check_compiler, compiler_of
from pgle.run.process.efforts import EFFORTS, checked_effort
from pgle.run.process.flags import OF_CPUS, flags_with, user_flags
from pgle.run.process.memory import DEFAULT_FRACTION, memory_fraction
from pgle.run.process.process import check_program, program_of
from pgle.run.target import dump_in, gpu_of, target_named_by
from pgle.xla.flags.catalogue import LHS, PROFILE_PATH, known_in
from pgle.xla.flags.presets import Mode, flags_for
from pgle.xla.flags.text import Flag, FlagList, format_flags, parse_flags, typed_flag
from pgle.xla.targets import Hardware, Target, find_hardware, load_target
from pgle.xla.vendors import Vendor

LHS_ON = f"--{LHS}=true"
NEAR = 0.03
"""Part of the memory limit. On one public program 3.7 GiB less of 138.2 (2.7 %) ended
rematerialisation, and the step got shorter by several per cent (marin-community/marin, pull request
8070).
"""

LEAST_GIB = 0.1  # that is written as GiB

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

UNKNOWN_FLAGS = (
    "what the program itself adds to XLA_FLAGS is not known, since pgle's hook did not see it; "
    "say --flag"
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
    # the command; what else is here is settled, whatever it says
    asked: ForCompiler = field(default_factory=ForCompiler)
    # of the user, from XLA_FLAGS and from the command line, as text; the later wins
    flags: tuple[str, ...] = ()
    topology: str | None = None  # ``SxHxD``; None: one host
    profile: Path | None = None  # measured costs; None: estimates replace them
    # part of the GPU's memory that the job's allocator has; 0: it has no limit
    memory_fraction: float = DEFAULT_FRACTION
    # the other modules, which were not chosen, in words, the largest first
    others: tuple[str, ...] = ()
    no_step: str = ""  # why the module is no step of its captured program
    # how its captured program failed, by a fault of its own, after its step; empty: it did not
    failed: str = ""
    # of that program, if the capture cannot have caused its fault; else 0
    exit_code: int = 0
    facts: CapturedFacts = NOTHING_KNOWN  # of that program
    assumed: bool = False  # nobody names how many devices the captured program has
    program: str = ""  # a digest of the captured program, if it was run for the request
    warnings: tuple[str, ...] = ()  # one line each

    @property
    def hardware(self) -> Hardware:
        """The GPU, its hosts and its network: one value for the whole answer."""
        return find_hardware(
            self.target,
            topology=self.topology,
            network_gb_s=self.asked.network_gb_s,
        )

    @property
    def allocator_bytes(self) -> int:
        """Device memory that the job's allocator has; 0: it has no limit."""
        return int(self.memory_fraction * self.target.memory_bytes)

    def asked_for(self, devices: int) -> RehearseRequest:
        """The request with the devices that the user asked for."""
        return replace(self, facts=replace(self.facts, devices=devices))

    def absolute(self) -> RehearseRequest:
        """The same for a process in another folder."""
        profile = None if self.profile is None else self.profile.resolve()
        return replace(self, module=self.module.resolve(), profile=profile)

    @property
    def files_read(self) -> tuple[Path, ...]:
        """What each machine that compiles it must have: module, profile and interpreter."""
        read = (self.module, self.profile, Path(self.python))
        return tuple(path for path in read if path is not None)

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
class Understood:
    """What `rehearse` or `tune` was asked, with what that means in full."""

    asked: Rehearse  # by modules, measured costs, flags, GPU and topology
    # as it was asked, if it names a run directory, whose modules `asked` names
    of_run: Rehearse | None = None
    # the program of a run directory whose stages ran for real
    ran: CapturedProgram | None = None
    doubts: tuple[str, ...] = ()  # its unknowns, one line each

    @property
    def typed(self) -> Rehearse:
        """As it was asked."""
        return self.of_run or self.asked

    @property
    def target(self) -> str:
        """The GPU by name, or its description."""
        return self.asked.target or DEFAULT_TARGET

    @property
    def is_program(self) -> bool:
        """Whether the words start a program."""
        return is_program(self.asked.words)

    @property
    def is_as_it_ran(self) -> bool:
        """Whether it names a run directory and asks for nothing else than what was run there."""
        return self.of_run is not None and not self.of_run.next_words(Rehearse)

    @property
    def next_words(self) -> tuple[str, ...]:
        """The words for the next command."""
        words: tuple[str, ...] = self.typed.words
        return ("--", *kept_argv(words)) if is_program(words) else words


def run_named_by(words: Sequence[str]) -> RunDirectory | None:
    """The run directory that the only word of a command names; None if it names something else."""
    run = RunDirectory(Path(words[0])) if len(words) == 1 else None
    return run if run is not None and run.is_recorded else None


def understood(given: Rehearse) -> Understood:
    """What was asked, with what a run directory or a dump that it names says of it.

    What is asked in words wins; a GPU that nothing names is `DEFAULT_TARGET`.
    """
    given = given.of_shape(given.shape)
    run = run_named_by(given.words)
    if run is None:
        return _of_dump(given)
    places = (run.captured, run.stage("profile").rank().ir)
    folder = next((path for path in places if path.is_dir() and modules_in(path)), None)
    stage = read_manifest(run.path).last("profile")
    if folder is None or stage is None:
        raise UserError(
            "holds no module of a profile stage",
            where=run.path,
            remedy="profile first: pgle profile -- COMMAND; or give a module's file",
        )
    is_real = folder != run.captured
    unknown = is_real and "xla_flags" not in stage.facts.get("hook", {})
    return Understood(
        _of_stage(given, run, stage, folder),
        of_run=given,
        ran=_ran(stage) if is_real else None,
        doubts=(UNKNOWN_FLAGS,) if unknown else (),
    )


def _of_stage(
    given: Rehearse, run: RunDirectory, stage: StageRecord, folder: Path
) -> Rehearse:
    """What was asked of a run directory, by what its profile stage was asked.

    Args:
        given: as it was asked.
        run: the run directory.
        stage: its profile stage.
        folder: of the modules.
    """
    asked: dict[str, Any] = dict(stage.asked)
    hlo = run.stage("profile").rank().hlo
    described = sorted(hlo.glob("*.gpu_target_config.pbtxt"))
    description = str(described[0]) if described else None
    before = OnDevices(devices=asked.get("devices"), topology=asked.get("topology"))
    flags = given.flags
    if folder == run.captured:  # else they are in what the program's own flags are
        recorded = parse_flags(asked.get("XLA_FLAGS") or "").flags
        flags = (*(format_flags([flag]) for flag in recorded), *flags)
    found = evolve(
        given,
        step=(str(folder),),
        profile=given.profile or run.found_profile,
        target=given.target or asked.get("target") or description or DEFAULT_TARGET,
        flags=flags,
        module=given.module or asked.get("choose"),
    )
    return found.of_shape(given.shape or before.shape)


def _of_dump(given: Rehearse) -> Understood:
    """What was asked, with the GPU of its dump if it names none.

    If it names one of another generation than the dump's, there is a doubt.
    """
    if is_program(given.words):
        return Understood(evolve(given, target=given.target or DEFAULT_TARGET))
    source = dump_in(Path(given.words[0]))
    if given.target:
        doubt = gpu_of(source, load_target(given.target)).doubt
        return Understood(given, doubts=(doubt,) if doubt else ())
    named = target_named_by(source)
    return Understood(evolve(given, target=named or DEFAULT_TARGET))


def _ran(stage: StageRecord) -> CapturedProgram:
    """The program of a profile stage that ran for real: its interpreter, and its flags as jax read
    them, without those that pgle had added for the stage.
    """
    facts = stage.facts.get("hook", {})
    versions = facts.get("versions") or stage.versions
    own = list(parse_flags(stage.xla_flags).flags)
    given = parse_flags(stage.asked.get("XLA_FLAGS") or "")
    mode = cast(Mode, stage.mode or "sync")
    if not given.file:
        for added in flags_for(mode, stage.versions.get("jaxlib"), given).flags:
            if added in own:
                own.remove(added)  # once: the user's own stays
    version = map(int, re.findall(r"\d+", versions.get("python", "")))
    has_plugin = any(name in PLUGIN_PACKAGES for name in versions)
    return CapturedProgram(
        python=facts.get("executable", ""),
        version=tuple(version),
        jaxlib=versions.get("jaxlib", ""),
        plugin="executable" in facts and has_plugin,
        xla_flags=format_flags(own),
    )


def launch_of_program(command: Understood) -> ProgramLaunch:
    """How pgle runs the program of a command line: as in its run directory, else as it was
    named.
    """
    asked = command.asked
    if command.of_run is not None:
        run = RunDirectory(Path(command.of_run.words[0]))
        return launch_of(run).with_flags(command.of_run.flags)
    options = asked.next_words(Stage, without="flags")
    if asked.topology:
        options += ["--devices", str(devices_in(asked.topology))]
    words = asked.words if command.is_program else UNKNOWN
    return ProgramLaunch(words, tuple(options)).with_flags(asked.flags)


def measure_line(command: Understood) -> Next:
    """The command line that measures the program of a rehearsal: the next stage of its run
    directory, else all.
    """
    how = launch_of_program(command)
    if how.run is not None:
        there = how.run.path.with_name(f"{how.run.path.name}-flags")
        if command.typed.flags:
            return how.line("run", free(there))
        return following(how.run)
    folder = free(Path("runs/default"))
    if command.asked.profile:
        return how.line("perf", folder, "--profile", command.asked.profile)
    return how.line("run", folder)


def tune_line(command: Understood) -> Next | None:
    """The command line of `pgle tune` for the same words; None if it was searched for in their run
    directory.
    """
    given = command.typed
    place = Path(given.words[0])
    is_run = command.of_run is not None
    if is_run and not given.flags and not tune(RunDirectory(place)):
        return None
    options = given.next_words(Tune, without="flags")
    flags = given.next_words(Flags)
    folder = free(place / "tuned" if is_run else Path("tuned"))
    return Next.of("tune", *options, *flags, "-o", folder, *command.next_words)


def advise_line(command: Understood, *more: object) -> Next:
    """The command line of `pgle advise` for the same words, with more options."""
    options = (*command.typed.next_words(Advise), *more)
    return Next.of("advise", *options, *command.next_words)


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
    given: Rehearse, *, question: str = ""
) -> Iterator[tuple[Understood, RehearseRequest]]:
    """What was asked with what it means in full, and everything that is decided before the first
    compilation; of `opened`, the file that lets a folder be continued with.
    """
    command = understood(given)
    asked, shape = command.asked, command.asked.shape
    target = load_target(command.target)  # fails before a program runs for minutes
    Cache.of_user()  # so does its limit
    if shape:
        devices_in(shape)
    if asked.profile is not None:
        read_profile(asked.profile)
    if asked.flags and command.is_program:
        python = compiler_of(asked.words, target.vendor)[0] or sys.executable
        checked_flags(asked.flags, python, "")
    named = asked.output
    if named is None and question:
        named = _place_of_search(command)
    with opened(None if named is None else str(named), question) as out:

        def before_it_runs() -> None:
            if question:
                known = asked_of_search(asked, _program_digest(asked.words), target)
                check_question(out / question, known, "the trials of another search")

        modules, program = _modules(command, out, before_it_runs)
        request = settle(modules, asked, program, target, out, topology=shape)
        warnings = (*command.doubts, *request.warnings)
        # the program decides its devices
        if command.is_program or (command.of_run and shape):
            devices = devices_for(None, topology=shape)
            had = shape or f"1x1x{devices.count}"
            topology, remarks = topology_of_step(request.module, had)
            is_assumed = devices.assumed and command.of_run is None
            request = replace(request, assumed=is_assumed)
            if not is_assumed:
                request = request.asked_for(devices_in(had))
            request = replace(request, topology=topology) if remarks else request
            own = devices_of(request.module) or devices.count
            if not request.facts.leaves_idle(own):  # else the account says it
                warnings = (*remarks, *warnings)
        if (
            question
        ):  # anew: the program may have written files that its command line names
            request = replace(request, program=_program_digest(asked.words))
        request = replace(request, profile=asked.profile, warnings=warnings)
        yield command, with_hosts_flag(request)


def _place_of_search(command: Understood) -> Path:
    """Where a search is kept if the user does not say: in its run directory, else here."""
    run = Path() if command.of_run is None else Path(command.of_run.words[0])
    return run / "tuned"


def _program_digest(words: Sequence[str]) -> str:
    """Of a program and the files that its command line names; empty for anything else."""
    return sha256(json.dumps(program_of(words)).encode()) if is_program(words) else ""


SETTLED = ("devices", "topology", "flags", "module")
"""What is recorded as it was settled, or is in the module."""


def asked_of_search(asked: ForCompiler, program: str, target: Target) -> Json:
    """What a search is of, as far as it is known before its module is.

    Args:
        asked: the command.
        program: of `RehearseRequest`; a search that continues takes the modules that were captured.
        target: the GPU.
    """
    question = asked.question()
    profile = question.pop("profile", None)
    known = {
        "program": program,
        "profile": sha256(read_bytes(Path(profile))) if profile else "",
        "target": sha256(target.text.encode()),
    }
    return known | {
        name: value
        for name, value in question.items()
        if name not in known and name not in SETTLED
    }


def _modules(
    command: Understood, out: Path, before_it_runs: Callable[[], None]
) -> tuple[Sequence[Path], CapturedProgram]:
    """The modules of a file, of a folder of dumps, or of a program, which is run to capture
    them.
    """
    asked = command.asked
    first = Path(asked.words[0])
    if len(asked.words) == 1:
        if first.is_dir():
            return modules_in(first, dumps=True), command.ran or read_captured(first)
        if not first.exists() and (
            first.suffix in _MODULE_SUFFIXES or shutil.which(asked.words[0]) is None
        ):
            remedy = (
                "dump modules with JAX_DUMP_IR_TO=DIR, or name a run directory; put -- "
                "before a program"
            )
            raise UserError("no such file or folder", where=first, remedy=remedy)
        if not command.is_program:
            return [first], CapturedProgram()
        check_program(asked.words)
    before_it_runs()  # it may run for minutes
    if (out / "captured").is_dir() and (kept := modules_in(out / "captured")):
        program = read_captured(out / "captured")  # of the search that continues
        if changed := changed_import(imported_files(program.sources)):
            raise UserError(
                f"holds the trials of another search ({changed})",
                where=out,
                remedy="choose a new folder with -o DIR",
            )
        return kept, program
    vendor = load_target(command.target).vendor
    check_compiler(asked.words, vendor, by_name=True)
    captured = capture_modules(
        asked.words,
        out / "captured",
        target=load_target(command.target),
        devices=devices_for(None, topology=asked.shape),
        quiet_s=asked.quiet_s,
        choose=asked.module,
    )
    return captured, read_captured(out / "captured")


def settle(
    modules: Sequence[Path],
    asked: ForCompiler,
    program: CapturedProgram,
    target: Target,
    out: Path,
    *,
    topology: str | None = None,
) -> RehearseRequest:
    """The step among some modules, what compiles it, and the flags that count.

    Args:
        modules: one file, or all of a program or folder.
        asked: the command; without `module` the program's step is taken, and its flags come after
            XLA_FLAGS and the flags that the program sets itself.
        program: that compiled them; its environment compiles where it can.
        target, out, topology: of the request.
    """
    choose = asked.module
    module = (
        choose_module(modules, choose) if len(modules) > 1 or choose else modules[0]
    )
    vendor = target.vendor
    python, warnings = _compiling_python(program, vendor)
    kept, more = checked_flags(asked.flags, python, program.flags_of(module))
    doubt = repair(installed(python).versions, python, vendor)
    if doubt and doubt.fails:
        warnings = (
            *warnings,
            f"the {vendor.toolkit} plugin: {doubt.what}; {doubt.line}",
        )
    facts = CapturedFacts(recompiled=recompiled(module))
    said = [line for line in capture_warnings(module) if line not in facts.words]
    others = candidates([path for path in modules if path != module])
    return RehearseRequest(
        module,
        target,
        out,
        python,
        asked,
        flags=kept,
        topology=topology,
        memory_fraction=memory_fraction(os.environ),
        others=tuple(others),
        no_step="" if choose else no_step(module),
        failed=program_failure(module),
        exit_code=own_exit_code(module),
        facts=facts,
        warnings=(*said, *warnings, *more),
    )


def with_hosts_flag(request: RehearseRequest) -> RehearseRequest:
    """The request with a flag by which XLA's speed-of-light model, too, knows the hosts and the
    network of the user.

    XLA assumes hosts of 8 GPUs and a network of its own. Nothing changes if that is right, if no
    collective can cross hosts, if the user has set the flag, or if the jaxlib does not know it.
    """
    together = request.hardware.devices_per_host
    devices = devices_in(request.topology) if request.topology else math.inf
    options = {}
    if together != OF_XLA and devices > min(together, OF_XLA):
        options["gpus_per_node"] = f"{together}"
    if request.asked.names_network and devices > together:
        # in GB/s, whatever its name says
        options["nic_speed_gbps"] = f"{request.hardware.nic_gb_s:g}"
    given = any(typed_flag(flag).name == MODEL_OPTIONS for flag in request.flags)
    if not options or given:
        return request
    if known_in(MODEL_OPTIONS, installed(request.python).jaxlib) is False:
        return request
    pairs = [f"{name}={value}" for name, value in options.items()]
    flag = f"--{MODEL_OPTIONS}={','.join(pairs)}"
    line = (
        f"XLA's own cost model gets your topology and network by {flag}; give your job the "
        "same flag"
    )
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
        f"{gib(need)} of {gib(have)} are needed, within {in_percent(NEAR, 0)} of the memory limit: "
        "the gain may turn, since XLA computes values again to stay below it"
    )


def gib(count: int) -> str:
    """Bytes in words."""
    if count < LEAST_GIB * 2**30:
        return f"{count / 2**20:.0f} MiB"
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
        why = f"has no {vendor.toolkit} plugin"
        remedy = mended.line if mended else "install one there"
    elif not is_new:
        why = f"is Python {'.'.join(map(str, program.version))}"
        remedy = "use Python 3.11 or newer there"
    else:
        why = "is not on this machine"
        remedy = f"compile where jaxlib {program.jaxlib} is"
    what = (
        f"the program runs jaxlib {program.jaxlib} ({program.python} {why}), and pgle's "
        f"jaxlib {ours} compiles here"
    )
    return sys.executable, (f"{what}: releases differ by several per cent; {remedy}",)


def checked_flags(
    given: Sequence[str], python: str, own: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The user's flags that count, what a captured program asks of XLA by its `own` too, and
    warnings.

    A flag that the program sets and the jaxlib that compiles does not take is left out: another one
    ran the program.
    """
    environment: list[Flag] = []
    warnings: list[str] = []
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
            is_typed = any(flag.name == finding.flag for flag in typed)
            where = "--flag" if is_typed else "XLA_FLAGS:"
            remedy = finding.remedy or "see: pgle flags lint"
            raise UserError(
                finding.message, where=f"{where} --{finding.flag}", remedy=remedy
            )
    unknown = {finding.flag for finding in errors if finding.code in _ENDS_XLA}
    for finding in errors:
        left_out = " (left out)" if finding.flag in unknown else ""
        warnings.append(f"{finding.line()}{left_out}")
    return tuple(
        flag.word for flag in (*environment, *typed) if flag.name not in unknown
    ), tuple(warnings)
