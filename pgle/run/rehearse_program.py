"""Turn the words of `pgle rehearse` or `tune` into a module to compile: a file, or a program's
captured step.
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
from pgle.run.inputs.next_command import UNKNOWN, ProgramLaunch, launch_of, stage_left
from pgle.run.process.compilers import check_compiler, compiler_of
from pgle.run.process.efforts import EFFORTS, checked_effort
from pgle.run.process.flags import OF_CPUS, flags_with, user_flags
from pgle.run.process.memory import DEFAULT_FRACTION, memory_fraction
from pgle.run.process.process import check_program, program_of
from pgle.run.target import dump_in, gpu_of, target_named_by
from pgle.xla.flags.catalogue import (
    HOPPER_DEFAULT,
    LHS,
    PROFILE_PATH,
    known_in,
    release,
)
from pgle.xla.flags.presets import Mode, flags_for
from pgle.xla.flags.text import Flag, FlagList, format_flags, parse_flags, typed_flag
from pgle.xla.targets import Hardware, Target, find_hardware, load_target
from pgle.xla.vendors import Vendor

LHS_ON = f"--{LHS}=true"
NEAR = 0.03
"""Share of the memory limit that counts as near the limit. One public program, with 3.7 of 138.2
GiB (2.7 %) less, needed no more rematerialisation, and its step got several per cent shorter
(marin-community/marin, pull request 8070).
"""

LEAST_GIB = 0.1  # a smaller amount is not written in GiB

DEFAULT_TARGET = "h100"  # the GPU if nothing names one

OURS: Mapping[str, str] = {
    "xla_dump_to": "give the folder with -o",
    PROFILE_PATH: "give the profile with --profile",
}
"""Flags that a rehearsal sets itself, and what to do instead."""

MODEL_OPTIONS = "xla_gpu_analytical_latency_estimator_options"
OF_XLA = 8  # GPUs per host in XLA's model (openxla/xla `sol_gpu_cost_model.cc`)

UNKNOWN_FLAGS = (
    "what the program itself adds to XLA_FLAGS is not known, since pgle's hook did not see it; "
    "say --flag"
)
_ENDS_XLA = ("unknown", "removed", "too-new", "needs-value", "bad-value")
# oldest Python that can run pgle's part of the compiler's process
OLDEST_PYTHON = (3, 11)

_MODULE_SUFFIXES = (".mlir", ".pb", ".xz", ".gz", ".txt", ".hlo", ".bin")


@dataclass(frozen=True)
class RehearseRequest:
    """A module, and every setting of its compilations."""

    module: Path  # the module's file
    target: Target  # the GPU
    out: Path  # folder for dumps, profile and pictures; new or empty
    python: str  # the interpreter whose jaxlib compiles
    # the command; the other fields overrule it
    asked: ForCompiler = field(default_factory=ForCompiler)
    # flags from XLA_FLAGS and then from the command line, as text; later flags win
    flags: tuple[str, ...] = ()
    topology: str | None = None  # ``SxHxD``; None: one host
    profile: Path | None = None  # measured costs; None: estimates replace them
    # share of GPU memory that the job's allocator has; 0: no limit
    memory_fraction: float = DEFAULT_FRACTION
    # descriptions of the modules that were not chosen, largest first
    others: tuple[str, ...] = ()
    # why the module is not the step of its captured program; empty: it is
    no_step: str = ""
    # how the captured program failed by its own fault after the step; empty: it did not fail
    failed: str = ""
    # the captured program's exit code, if the capture cannot have caused its failure; else 0
    exit_code: int = 0
    facts: CapturedFacts = NOTHING_KNOWN  # facts about the captured program
    # whether the device count of the captured program is an assumption
    assumed: bool = False
    program: str = ""  # digest of the captured program, if it was run for this request
    warnings: tuple[str, ...] = ()  # one line each

    @property
    def hardware(self) -> Hardware:
        """The GPU, its hosts and its network, for all parts of the answer."""
        return find_hardware(
            self.target,
            topology=self.topology,
            network_gb_s=self.asked.network_gb_s,
        )

    @property
    def allocator_bytes(self) -> int:
        """Device memory of the job's allocator, in bytes; 0: no limit."""
        return int(self.memory_fraction * self.target.memory_bytes)

    def asked_for(self, devices: int) -> RehearseRequest:
        """Return this request with `devices` as the device count that the user asked for."""
        return replace(self, facts=replace(self.facts, devices=devices))

    def absolute(self) -> RehearseRequest:
        """Return this request with absolute paths, for a process in another folder."""
        profile = None if self.profile is None else self.profile.resolve()
        return replace(self, module=self.module.resolve(), profile=profile)

    @property
    def files_read(self) -> tuple[Path, ...]:
        """The files that every compiling machine needs: module, profile and interpreter."""
        read = (self.module, self.profile, Path(self.python))
        return tuple(path for path in read if path is not None)

    def compilation(self) -> CompileRequest:
        """Return the settings of all compilations, with LHS on unless the flags say otherwise."""
        return CompileRequest(
            module=partitioned(self.module),
            targets=self.target.texts,
            vendor=self.target.vendor.name,
            allocator_bytes=self.allocator_bytes,
            dump_dir=self.out,
            topology=self.topology,
            flags=(LHS_ON, *self.flags),
        )


LHS_BY_LEVEL = tuple(f"--jax_optimization_level=O{level}" for level in (1, 2, 3))


def has_default(request: RehearseRequest) -> bool:
    """Whether the user\'s flags alone give a schedule without LHS. This is so if neither the flags
    nor XLA\'s default for the GPU turn LHS on.
    """
    jaxlib = release(installed(request.python).jaxlib)
    asked = any(
        flag.startswith((LHS_ON.partition("=")[0], *LHS_BY_LEVEL))
        for flag in request.flags
    )
    is_modelled = request.target.vendor.is_modelled(request.target.architecture)
    return not asked and not (is_modelled and jaxlib >= release(HOPPER_DEFAULT[0]))


@dataclass(frozen=True)
class Understood:
    """A request to `rehearse` or `tune`, with everything that it implies."""

    # the request with modules, measured costs, flags, GPU and topology filled in
    asked: Rehearse
    # the original request, if it names a run directory; `asked` then names the directory's modules
    of_run: Rehearse | None = None
    # the program of a run directory whose stages ran on GPUs
    ran: CapturedProgram | None = None
    doubts: tuple[str, ...] = ()  # one line per unknown fact

    @property
    def typed(self) -> Rehearse:
        """The request as the user typed it."""
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
        """Whether the request names a run directory and keeps the settings of its run."""
        return self.of_run is not None and not self.of_run.next_words(Rehearse)

    @property
    def next_words(self) -> tuple[str, ...]:
        """The words for the next command."""
        words: tuple[str, ...] = self.typed.words
        return ("--", *kept_argv(words)) if is_program(words) else words


def run_named_by(words: Sequence[str]) -> RunDirectory | None:
    """Return the run directory that a command's only word names; None if it names something
    else.
    """
    run = RunDirectory(Path(words[0])) if len(words) == 1 else None
    return run if run is not None and run.is_recorded else None


def understood(given: Rehearse) -> Understood:
    """Complete a request with what its run directory or dump says.

    Settings in the request win. If nothing names a GPU, `DEFAULT_TARGET` is used.
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
    """Complete a request for a run directory with the settings of its profile stage.

    Args:
        given: the original request.
        run: the run directory.
        stage: the record of its profile stage.
        folder: the folder of the modules.
    """
    asked: dict[str, Any] = dict(stage.asked)
    hlo = run.stage("profile").rank().hlo
    described = sorted(hlo.glob("*.gpu_target_config.pbtxt"))
    description = str(described[0]) if described else None
    before = OnDevices(devices=asked.get("devices"), topology=asked.get("topology"))
    flags = given.flags
    # modules elsewhere already contain the program's own flags
    if folder == run.captured:
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
    """Complete a request with the GPU of its dump, if the request names no GPU.

    A named GPU of another generation than the dump's adds a doubt.
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
    """Return the program of a profile stage that ran on GPUs: its interpreter and the flags that
    jax read, without the flags that pgle added for the stage.
    """
    facts = stage.facts.get("hook", {})
    versions = facts.get("versions") or stage.versions
    own = list(parse_flags(stage.xla_flags).flags)
    given = parse_flags(stage.asked.get("XLA_FLAGS") or "")
    mode = cast(Mode, stage.mode or "sync")
    if not given.file:
        for added in flags_for(mode, stage.versions.get("jaxlib"), given).flags:
            if added in own:
                own.remove(added)  # only once: the user may have set this flag too
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
    """Return how pgle starts the program: as in its run directory, else by the words of the
    command.
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
    """Return the command that measures the program: the stage that its run directory lacks, else
    all stages in a new one.
    """
    how = launch_of_program(command)
    if how.run is not None:
        flags = command.typed.flags
        left = None if flags else stage_left(how.run)
        suffix = "flags" if flags else "again"
        return left or how.line("run", free(how.run.sibling(suffix)))
    folder = free(Path("runs/default"))
    if command.asked.profile:
        return how.line("perf", folder, "--profile", command.asked.profile)
    return how.line("run", folder)


def tune_line(command: Understood) -> Next | None:
    """Return the `pgle tune` command for these words; None if their run directory already has a
    search.
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
    """Return the `pgle advise` command for these words, with more options."""
    options = (*command.typed.next_words(Advise), *more)
    return Next.of("advise", *options, *command.next_words)


def is_program(words: Sequence[str]) -> bool:
    """Whether words start a program: several words, or one that is neither a folder nor a
    module.
    """
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
    """Decide all that precedes the first compilation. Yield the request as understood, and the
    request to compile; the output folder is open meanwhile.

    Args:
        given: the request.
        question: name of the file that allows a search to continue in its folder (see `opened`).
    """
    command = understood(given)
    asked, shape = command.asked, command.asked.shape
    # raises errors before a program runs for minutes
    target = load_target(command.target)
    Cache.of_user()  # raises an error for a bad cache limit
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
        # the program decides the number of devices
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
            # otherwise the account reports the idle devices
            if not request.facts.leaves_idle(own):
                warnings = (*remarks, *warnings)
        # once more: the program may have written files that its command line names
        if question:
            request = replace(request, program=_program_digest(asked.words))
        request = replace(request, profile=asked.profile, warnings=warnings)
        yield command, with_hosts_flag(request)


def _place_of_search(command: Understood) -> Path:
    """Return the folder of a search if the user names none: in its run directory, else the current
    folder.
    """
    run = Path() if command.of_run is None else Path(command.of_run.words[0])
    return run / "tuned"


def _program_digest(words: Sequence[str]) -> str:
    """Return a digest of a program and the files that its command line names; empty for anything
    else.
    """
    return sha256(json.dumps(program_of(words)).encode()) if is_program(words) else ""


SETTLED = ("devices", "topology", "flags", "module")
"""Fields that are recorded in their final form, or that the module contains."""


def asked_of_search(asked: ForCompiler, program: str, target: Target) -> Json:
    """Return what identifies a search before its module is known.

    Args:
        asked: the command.
        program: digest as in `RehearseRequest`. A search that continues uses the captured modules.
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
    """Return the modules of a file, of a folder of dumps, or of a program that is run for the
    capture.
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
    before_it_runs()  # the program may run for minutes
    if (out / "captured").is_dir() and (kept := modules_in(out / "captured")):
        # captured by the search that continues
        program = read_captured(out / "captured")
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
    """Choose the step among modules, the interpreter that compiles it, and the final flags.

    Args:
        modules: one file, or all modules of a program or folder.
        asked: the command. If it names no module, the program's step is chosen. Its flags come
            after
            XLA_FLAGS and the flags that the program sets itself.
        program: the program that compiled the modules; its environment compiles if possible.
        target: the GPU.
        out: the folder of the request.
        topology: the topology of the request.
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
    """Return the request with a flag that tells XLA's speed-of-light model the user's hosts and
    network.

    XLA assumes hosts of 8 GPUs and its own network speed. The flag is not added if that is right,
    if no collective can cross hosts, if the user set the flag, or if the jaxlib does not know the
    flag.
    """
    together = request.hardware.devices_per_host
    devices = devices_in(request.topology) if request.topology else math.inf
    options = {}
    if together != OF_XLA and devices > min(together, OF_XLA):
        options["gpus_per_node"] = f"{together}"
    if request.asked.names_network and devices > together:
        # in GB/s, despite the option's name
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
    """Return a warning if the need (bytes) is near the limit (bytes), so that a small change of
    memory changes XLA's decisions; else empty.
    """
    if abs(need - have) > NEAR * have:
        return ""
    return (
        f"{gib(need)} of {gib(have)} are needed, within {in_percent(NEAR, 0)} of the memory limit: "
        "the gain may turn, since XLA computes values again to stay below it"
    )


def gib(count: int) -> str:
    """Return bytes as a text in GiB."""
    if count < LEAST_GIB * 2**30:
        return f"{count / 2**20:.0f} MiB"
    return f"{count / 2**30:.1f} GiB"


def _compiling_python(
    program: CapturedProgram, vendor: Vendor
) -> tuple[str, tuple[str, ...]]:
    """Return the interpreter that compiles, and warnings. Use the program's own if it can compile
    for GPUs, else pgle's with a warning if the two differ.
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
    """Return the user's flags that apply, the captured program's `own` flags among them, and
    warnings.

    A flag of the program that the compiling jaxlib does not accept is dropped, since another jaxlib
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
