"""`pgle tune`: the flags and the profile that make a step fastest, searched with the real compiler and no GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from pgle.costs.fit.coverage import Coverage, cover
from pgle.costs.fit.estimate import estimate_profile, estimator
from pgle.costs.fit.lookup import LookupTable
from pgle.costs.profile.files import profile_files, read_profile
from pgle.costs.profile.value import Profile
from pgle.errors import UserError
from pgle.files import sha256, write_files
from pgle.run.confirm import ConfirmRequest, confirm
from pgle.run.rehearse.compile import Compiler, RehearsalRequest, RehearsalResult
from pgle.run.rehearse.settings import Setting
from pgle.schedule.contention import contention_on
from pgle.schedule.moves import Placement, placements
from pgle.schedule.predict import predict, program_of
from pgle.tune.moves import Flags, axes
from pgle.tune.prices import Prices, priced, prices_of
from pgle.tune.search import Judged, Trial, best, judge, no_room, search
from pgle.tune.worlds import World, step_in, worlds
from pgle.xla.flags.text import parse_flags
from pgle.xla.hardware import Hardware, find_hardware
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.reader import read_module
from pgle.xla.hlo.schedule_dump import read_schedule_dump
from pgle.xla.log.reasons import ProfileUse
from pgle.xla.targets import Target

LHS = "--xla_gpu_enable_latency_hiding_scheduler=true"
AT_ONCE = 2
"""Compilations side by side; each takes a core."""


@dataclass(frozen=True)
class TuneRequest:
    """What to tune.

    Attributes:
        setting: the module, the jaxlib that compiles it, and the user's flags, which stay.
        target: the GPU.
        out: folder, new or empty.
        profile: measured costs; None: estimates.
        topology: ``SxHxD``; None: one host.
        budget: trials at most.
        memory_limit: of temporary device memory, bytes; None: none.
        worlds: how many.
        seed: of the worlds.
    """

    setting: Setting
    target: Target
    out: Path
    profile: Path | None = None
    topology: str | None = None
    budget: int = 20
    memory_limit: int | None = None
    worlds: int = 20
    seed: int = 0


@dataclass(frozen=True)
class Tuning:
    """What the search found.

    Attributes:
        verdict: ``better``, ``no-room`` or ``not-better``.
        module: name of the module.
        baseline: LHS without a profile, the user's own flags.
        pgle: the same flags with the profile.
        tuned: the best setting; `pgle` where nothing is better.
        judged: `tuned` against `pgle` over the worlds.
        trials: all, in order.
        collectives: of the `pgle` schedule, where they stand and why they stay exposed.
        costs_are: ``measured``, ``estimated`` or ``mixed``: of the program as it is; new collectives are modelled.
        coverage: of the new module by the new profile; None where nothing is better.
        used: whether XLA used the new profile, by its log and schedule; None where nothing is better.
        why: the line that proves it.
        written: files.
        jaxlib: that compiled.
        warnings: one line each.
    """

    verdict: str
    module: str
    baseline: Trial
    pgle: Trial
    tuned: Trial
    judged: Judged
    trials: tuple[Trial, ...]
    collectives: tuple[Placement, ...]
    costs_are: str
    coverage: Coverage | None
    used: bool | None
    why: str
    written: tuple[Path, ...]
    jaxlib: str
    warnings: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether something was found and proven, or there was nothing to find."""
        return self.verdict != "better" or bool(self.used)


def tune(request: TuneRequest, *, on_trial: Callable[[int, Trial], None] = lambda number, trial: None) -> Tuning:
    """Search, judge, prove.

    Args:
        request: what to tune.
        on_trial: called after each trial with the number of trials done.

    Raises:
        UserError: an input is bad, or the program does not compile.
    """
    with Compiler(request.setting.python) as compiler:
        bench = _Bench(request, compiler)
        baseline, pgle = bench.start()
        module, jaxlib = bench.module, bench.jaxlib
        trials: list[Trial] = []

        def attempt(settings: Sequence[tuple[Flags, str]]) -> Sequence[Trial]:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                done = list(pool.map(lambda item: bench.trial(*item), settings))
            for trial in done:
                trials.append(trial)
                on_trial(len(trials), trial)
            return done

        verdict, tuned = "no-room", pgle
        if not no_room(pgle):
            given = [flag.name for flag in parse_flags(" ".join(request.setting.flags)).flags]
            search(pgle, axes(module, jaxlib, given), attempt, budget=request.budget, memory_limit=request.memory_limit)
            tuned = best(pgle, trials, request.memory_limit)
            verdict = "better" if judge(tuned, pgle).accepted else "not-better"
            tuned = tuned if verdict == "better" else pgle
        proof = bench.prove(tuned) if verdict == "better" else _Proof()
        assert pgle.prediction is not None
        return Tuning(
            verdict=verdict,
            module=module.name,
            baseline=baseline,
            pgle=pgle,
            tuned=tuned,
            judged=judge(tuned, pgle),
            trials=tuple(trials),
            collectives=tuple(placements(bench.pgle_module, pgle.prediction.timeline, request.setting.flags).values()),
            costs_are=pgle.prediction.costs_are if request.profile is not None else "estimated",
            coverage=proof.coverage,
            used=proof.used,
            why=proof.why,
            written=proof.written,
            jaxlib=jaxlib,
            warnings=(*request.setting.warnings, *pgle.prediction.timeline.warnings, *_memory(pgle, tuned)),
        )


def _memory(pgle: Trial, tuned: Trial) -> tuple[str, ...]:
    if pgle.temp_bytes and tuned.temp_bytes and tuned.temp_bytes > 1.05 * pgle.temp_bytes:
        return (f"temporary memory grows by {tuned.temp_bytes / pgle.temp_bytes - 1:.0%}; --memory-limit bounds it",)
    return ()


@dataclass(frozen=True)
class _Proof:
    coverage: Coverage | None = None
    used: bool | None = None
    why: str = ""
    written: tuple[Path, ...] = ()


@dataclass
class _Bench:
    """Compiles settings and simulates them."""

    request: TuneRequest
    compiler: Compiler
    module: Module = field(init=False)
    pgle_module: Module = field(init=False)
    jaxlib: str = ""
    _prices: Prices = field(init=False)
    _given: Profile = field(init=False)
    _worlds: tuple[World, ...] = ()

    @property
    def hardware(self) -> Hardware:
        return find_hardware(self.request.target)

    def start(self) -> tuple[Trial, Trial]:
        """LHS alone and with the profile, by the user's own flags."""
        request = self.request
        self._worlds = worlds(request.worlds, request.seed)
        given = read_profile(request.profile) if request.profile is not None else None
        result = self._compile({}, "without a profile", None)
        self.jaxlib, self.module = result.jaxlib, read_module(result.after_optimizations)
        table = _table(result, self.module)
        estimate = estimator(table.module, self.hardware)
        profile = given or estimate_profile(table.module, self.hardware)
        if not table.costs(profile):
            remedy = "is it of this program, with these flags? 'pgle verify' shows what matches"
            raise UserError("has no cost of any instruction here", where=request.profile, remedy=remedy)
        self._prices = prices_of(table, profile, estimate)
        self._given = profile
        baseline = self._judged({}, "no profile", result, self.module, priced(self._prices, table, estimate))
        pgle = self.trial({}, "the profile")
        if pgle.prediction is None:
            raise UserError(f"does not compile with the profile: {pgle.failure}", where=request.setting.module)
        self.pgle_module = read_module(self._folder({}, "profile") / "scheduled.hlo.pb")
        return baseline, pgle

    def trial(self, flags: Flags, label: str) -> Trial:
        """One setting: compiled for its names, priced, compiled with that profile, and simulated."""
        try:
            named = self._compile(flags, "names", None)
            module = read_module(named.after_optimizations)
            table = _table(named, module)
            profile = priced(self._prices, table, estimator(table.module, self.hardware))
            path = self._folder(flags, "profile.pbtxt")
            write_files(profile_files(path, profile), force=True)
            result = self._compile(flags, "profile", path)
        except UserError as error:
            return Trial(flags, label, None, failure=str(error))
        (self._folder(flags, "profile") / "scheduled.hlo.pb").write_bytes(result.after_optimizations.read_bytes())
        return self._judged(flags, label, result, read_module(result.after_optimizations), profile)

    def _judged(self, flags: Flags, label: str, result: RehearsalResult, module: Module, profile: Profile) -> Trial:
        profile = replace(profile, provenance=self._given.provenance)
        prediction = predict(module, profile, self.hardware)
        program = program_of(module, profile, self.hardware, prediction.launch)
        shapes = {name: f"{item.opcode}:{item.shape}" for name, item in module.instructions.items()}
        model = contention_on(self.hardware)
        steps = tuple(step_in(world, program, shapes, prediction.launch, model) for world in self._worlds)
        return Trial(flags, label, prediction, steps, result.memory.get("temp"))

    def _compile(self, flags: Flags, kind: str, profile: Path | None) -> RehearsalResult:
        request = self.request
        return self.compiler.compile(
            RehearsalRequest(
                module=request.setting.module,
                target=request.target.text,
                portable_target=request.target.portable_text,
                dump_dir=self._fresh(flags, kind),
                topology=request.topology,
                flags=(LHS, *request.setting.flags, *(f"--{name}={value}" for name, value in flags.items())),
                profile=profile,
            )
        )

    def _folder(self, flags: Flags, name: str) -> Path:
        key = sha256(json.dumps(sorted(flags.items())).encode())[:12]
        folder = self.request.out / "trials" / key
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def _fresh(self, flags: Flags, kind: str) -> Path:
        folder = self._folder(flags, kind)
        number = 1
        while folder.exists():
            number += 1
            folder = self._folder(flags, f"{kind}-{number}")
        return folder

    def prove(self, tuned: Trial) -> _Proof:
        """The accepted flags compiled once more, confirmed by XLA's log and schedule, and written down."""
        path = self._folder(tuned.flags, "profile.pbtxt")
        profile = read_profile(path)
        result = self._compile(tuned.flags, "proof", path)
        module = read_module(result.after_optimizations)
        use = confirm(ConfirmRequest(str(result.log), schedule=result.schedule, profile=profile, whole=True)).main
        schedules = {} if result.schedule is None else {module.name: read_schedule_dump(result.schedule)}
        out = self.request.out
        flags = [LHS, *self.request.setting.flags, *(f"--{name}={value}" for name, value in tuned.flags.items())]
        files: dict[Path, bytes | str] = {out / "flags.txt": "\n".join(flags) + "\n"}
        files |= {Path(str(name)): data for name, data in profile_files(out / "profile.pbtxt", profile).items()}
        write_files(dict(files), force=True)
        return _Proof(cover(profile, [module], schedules), use.verdict is ProfileUse.USED, use.why, tuple(files))


def _table(result: RehearsalResult, module: Module) -> LookupTable:
    schedule = None if result.schedule is None else read_schedule_dump(result.schedule)
    return LookupTable(module, schedule.module if schedule is not None else None)
