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
from pgle.run.rehearse.cache import Cache
from pgle.run.rehearse.compile import Compiler
from pgle.run.rehearse.rehearse import LHS
from pgle.run.rehearse.request import RehearsalRequest, RehearsalResult
from pgle.run.rehearse.session import Session
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

AT_ONCE = 2
"""Compilations side by side; each takes a core."""
SAME_STEP = 0.001
"""Ties between instructions may break otherwise; a step within this is the same."""


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
        cached: take compilations from the user's cache, and keep them there.
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
    cached: bool = True


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
    cache = Cache.of_user() if request.cached else None
    trusted = cache.trusted(request.setting.python) if cache else None
    with Compiler(request.setting.python, cache=cache) as compiler:
        bench = _Bench(request, compiler, Session(compiler, _base(request), request.out / "trials", trusted))
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
        disagree: tuple[str, ...] = ()
        if proof.trial is not None:
            disagree = _disagreement(tuned, proof.trial)
            tuned = proof.trial
            verdict = "better" if judge(tuned, pgle).accepted else "not-better"
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
            warnings=(*request.setting.warnings, *pgle.prediction.timeline.warnings, *_memory(pgle, tuned), *disagree),
        )


def _memory(pgle: Trial, tuned: Trial) -> tuple[str, ...]:
    if pgle.temp_bytes and tuned.temp_bytes and tuned.temp_bytes > 1.05 * pgle.temp_bytes:
        return (f"temporary memory grows by {tuned.temp_bytes / pgle.temp_bytes - 1:.0%}; --memory-limit bounds it",)
    return ()


def _disagreement(tuned: Trial, proof: Trial) -> tuple[str, ...]:
    """Where the whole compilation gave another step than the scheduling passes alone had."""
    if tuned.prediction is None or proof.prediction is None:
        return ()
    change = proof.prediction.step_us / max(tuned.prediction.step_us, 1e-9) - 1
    if abs(change) < SAME_STEP:
        return ()
    return (f"compiled whole, the step is {change:+.2%} of what the trial said; the whole compilation counts",)


def _base(request: TuneRequest) -> RehearsalRequest:
    """What all compilations share."""
    return RehearsalRequest(
        module=request.setting.module,
        target=request.target.text,
        portable_target=request.target.portable_text,
        dump_dir=request.out,
        topology=request.topology,
        flags=(LHS, *request.setting.flags),
    )


@dataclass(frozen=True)
class _Proof:
    trial: Trial | None = None
    coverage: Coverage | None = None
    used: bool | None = None
    why: str = ""
    written: tuple[Path, ...] = ()


@dataclass
class _Bench:
    """Compiles settings and simulates them."""

    request: TuneRequest
    compiler: Compiler
    session: Session
    modules: dict[str, Module] = field(default_factory=dict)
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
        result = self.session.schedule("no-profile", self.session.base.flags)
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
        self.pgle_module = self.modules[pgle.label]
        return baseline, pgle

    def trial(self, flags: Flags, label: str) -> Trial:
        """One setting: compiled for its names, priced, compiled with that profile, and simulated."""
        options = (*self.session.base.flags, *_options(flags))
        folder = _key(flags)
        try:
            named = self.session.schedule(f"{folder}/names", options)
            table = _table(named, read_module(named.after_optimizations))
            profile = priced(self._prices, table, estimator(table.module, self.hardware))
            path = self._profile_of(flags)
            write_files(profile_files(path, profile), force=True)
            result = self.session.schedule(f"{folder}/profile", options, path)
        except UserError as error:
            return Trial(flags, label, None, failure=str(error))
        module = self.modules[label] = read_module(result.after_optimizations)
        return self._judged(flags, label, result, module, profile)

    def _judged(self, flags: Flags, label: str, result: RehearsalResult, module: Module, profile: Profile) -> Trial:
        profile = replace(profile, provenance=self._given.provenance)
        prediction = predict(module, profile, self.hardware)
        program = program_of(module, profile, self.hardware, prediction.launch)
        shapes = {name: f"{item.opcode}:{item.shape}" for name, item in module.instructions.items()}
        model = contention_on(self.hardware)
        steps = tuple(step_in(world, program, shapes, prediction.launch, model) for world in self._worlds)
        return Trial(flags, label, prediction, steps, result.memory.get("temp"))

    def _profile_of(self, flags: Flags) -> Path:
        return self.session.folder / _key(flags) / "profile.pbtxt"

    def prove(self, tuned: Trial) -> _Proof:
        """The accepted flags compiled whole, confirmed by XLA's log and schedule, simulated again, and written down."""
        path = self._profile_of(tuned.flags)
        profile, base = read_profile(path), self.session.base
        flags = (*base.flags, *_options(tuned.flags))
        result = self.compiler.compile(replace(base, dump_dir=self.request.out / "proof", flags=flags, profile=path))
        module = read_module(result.after_optimizations)
        use = confirm(ConfirmRequest(str(result.log), schedule=result.schedule, profile=profile, whole=True)).main
        schedules = {} if result.schedule is None else {module.name: read_schedule_dump(result.schedule)}
        out = self.request.out
        files: dict[Path, bytes | str] = {out / "flags.txt": "\n".join(flags) + "\n"}
        files |= {Path(str(name)): data for name, data in profile_files(out / "profile.pbtxt", profile).items()}
        write_files(dict(files), force=True)
        again = self._judged(tuned.flags, tuned.label, result, module, profile)
        used = use.verdict is ProfileUse.USED
        return _Proof(again, cover(profile, [module], schedules), used, use.why, tuple(files))


def _options(flags: Flags) -> tuple[str, ...]:
    return tuple(f"--{name}={value}" for name, value in flags.items())


def _key(flags: Flags) -> str:
    """The folder of a setting."""
    return sha256(json.dumps(sorted(flags.items())).encode())[:12]


def _table(result: RehearsalResult, module: Module) -> LookupTable:
    schedule = None if result.schedule is None else read_schedule_dump(result.schedule)
    return LookupTable(module, schedule.module if schedule is not None else None)
