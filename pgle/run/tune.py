"""`pgle tune` as a function: the flags and the profile that make a step fastest, searched with the real compiler.

How a flag gets to its line in the answer. `axes` (`pgle/tune/moves.py`) makes settings of the catalogue's flags, and
`search` (`search.py`) asks for them one axis at a time. `_Search.attempt` here answers from the record, or from
`Bench.trial` (`trials.py`), which compiles a setting and simulates it in all worlds (`worlds.py`). `holds_up`
(`trial.py`) accepts it. `_Search.prove` compiles the best once more, whole.
`pgle/report/schedules/tune.py` words the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from pgle.costs.estimate.ranges import assumed_warnings
from pgle.costs.lookup.coverage import cover
from pgle.costs.profile.files import profile_files
from pgle.errors import UserError
from pgle.files import write_files
from pgle.run.compiler.request import OnPhase
from pgle.run.confirm import confirm_compiled
from pgle.run.directory.out import emptied
from pgle.run.inputs.next_command import Launch
from pgle.run.rehearse import near_limit
from pgle.run.trials import AT_ONCE, FOUND, Bench, Record, Scheduled, TuneRequest, check, open_bench
from pgle.schedule.compare import Placement, placements
from pgle.steps.gate import change
from pgle.tune.search import PROGRESS, best, fits, no_room, search, without_one
from pgle.tune.trial import Flags, Judged, Trial, holds_up, judge
from pgle.xla.flags.text import FOUND_BY_SEARCH
from pgle.xla.log.module_verdict import ProfileUse

SAME_STEP, SAME_MEMORY = 0.001, 0.01
"""Ties between instructions may break otherwise; a step, and temporary memory, within this are the same."""

CLOSE = 0.1
"""Part of the memory limit. A setting that needs all but so much of it is judged in less memory too."""
LESS = 0.05
"""Part of the memory limit that is then taken away. XLA itself keeps as much free when it plans
(`--xla_gpu_memory_limit_slop_factor=95`), and what a job holds besides is not in XLA's plan."""


@dataclass(frozen=True)
class Proof:
    """An accepted setting compiled whole."""

    scheduled: Scheduled  # its schedule, by all passes
    judged: Judged  # it against the profile alone, over the worlds of the search
    # it against the profile alone if the job has a little less memory (`LESS`); None if both need much less than it has
    in_less: Judged | None
    accepted: bool  # whether it is better by the rule of the search, and not longer in less memory
    used: bool  # whether XLA used the new profile, by its log and schedule
    why: str  # the line that proves it
    coverage: float  # share of the new module's time that the new profile has a cost for
    change: float  # its step against the trial's, as a share; 0 if both ways to compile agree
    memory_change: float  # the same of its temporary memory
    written: tuple[Path, ...] = ()  # files

    @property
    def agrees(self) -> bool:
        """Whether step and memory equal the trial's."""
        return abs(self.change) < SAME_STEP and abs(self.memory_change) < SAME_MEMORY


@dataclass(frozen=True)
class Tuning:
    """What the search found."""

    request: TuneRequest  # what was tuned
    verdict: str  # ``better``, ``no-room``, ``not-better``, or ``cannot-tell``: every step is a lower bound
    baseline: Scheduled  # LHS without a profile, the user's own flags
    pgle: Scheduled  # the same flags with the profile
    proof: Proof | None  # of the best setting; None where nothing is better
    trials: tuple[Trial, ...]  # all, in order
    without: dict[str, Trial]  # the best setting without each of its flags, by flag
    refused: tuple[str, ...]  # settings that the worlds of the search accepted, and the proof did not, with why
    collectives: tuple[Placement, ...]  # of the `pgle` schedule, where they stand and why they stay exposed
    costs_are: str  # ``measured``, ``estimated`` or ``mixed``: of the program as it is; new collectives are modelled
    jaxlib: str  # that compiled
    resumed: int = 0  # trials that an earlier search had made
    complete: bool = True  # False where the time limit ended the search
    launch: Launch = field(default_factory=Launch)  # how pgle runs the program whose module this is
    warnings: tuple[str, ...] = field(default=())  # one line each

    @property
    def tuned(self) -> Scheduled:
        """The best setting; `pgle` where nothing is better."""
        return self.pgle if self.proof is None else self.proof.scheduled

    @property
    def good(self) -> bool:
        """Whether something was found and proven, or there was nothing to find."""
        return self.verdict != "cannot-tell" and (self.proof is None or self.proof.used)


PROOFS = 3  # settings at most that are compiled whole, where those before did not stand

OnTrial = Callable[[Trial, Trial], None]
"""Called with each trial and the trial of the profile alone; first with the latter twice."""


def tune(
    request: TuneRequest,
    *,
    on_trial: OnTrial = lambda trial, pgle: None,
    on_phase: OnPhase = lambda phase: None,
) -> Tuning:
    """Search, judge, prove.

    Args:
        request: what to tune.
        on_trial: called after each trial.
        on_phase: hears what compilations are at.

    Raises:
        UserError: an input is bad, the program does not compile, or `request.out` holds another search.
    """
    check(request)  # before anything is compiled
    began = time.monotonic()
    with open_bench(request, on_phase) as bench:
        if request.time_limit_s is not None:
            bench.until = began + request.time_limit_s
        try:
            bench.start()
        except UserError as error:
            if not bench.is_late:
                raise
            what = "the time limit ended the search before the program was compiled as it is"
            raise UserError(what, where=error.where, remedy="give it a longer --time-limit") from None
        on_trial(bench.pgle.trial, bench.pgle.trial)
        unknown = bench.pgle.trial.lower_bound
        room = not unknown and not no_room(bench.pgle.prediction)
        found = _Search(request, bench, Record(request, bench.jaxlib), on_trial)
        proof = found.run() if room else None
        if proof is None:
            found.forget()
        without = found.without(proof) if proof is not None and found.complete else {}
    pgle = bench.pgle
    return Tuning(
        request=request,
        verdict="cannot-tell" if unknown else "no-room" if not room else "not-better" if proof is None else "better",
        baseline=bench.baseline,
        pgle=pgle,
        proof=proof,
        trials=tuple(found.trials),
        without=without,
        refused=tuple(found.refused),
        collectives=tuple(placements(pgle.module, pgle.prediction.timeline, request.setting.flags).values()),
        costs_are=pgle.prediction.costs_are if request.profile is not None else "estimated",
        jaxlib=bench.jaxlib,
        resumed=found.record.resumed,
        complete=found.complete,
        warnings=(
            *_ended_early(found),
            *request.setting.warnings,
            *([bench.carried] if bench.carried else ()),
            *pgle.prediction.timeline.warnings,
            *assumed_warnings(pgle.module, request.hardware, is_named=request.network_gb_s is not None),
            *_warnings(request, pgle, proof),
        ),
    )


class _Search:
    """The trials of one search, from the record where they are on it."""

    def __init__(self, request: TuneRequest, bench: Bench, record: Record, on_trial: OnTrial) -> None:
        self.request = request
        self.bench = bench
        self.record = record
        self.on_trial = on_trial
        self.trials: list[Trial] = []
        self.refused: list[str] = []
        self.complete = True  # False once the time limit left out a trial

    @property
    def pgle(self) -> Trial:
        """The profile alone, which settings have to beat."""
        return self.bench.pgle.trial

    def run(self) -> Proof | None:
        """Search, then prove the best; where the proof does not stand, the next best."""
        request, pgle = self.request, self.pgle
        ceiling, moves = self.bench.pgle.prediction.ceiling.step_us, self.bench.axes()
        search(pgle, ceiling, moves, self.attempt, budget=request.budget, memory_limit=request.memory_limit)
        left = self._standing()
        self.bench.unhurried()  # a proof takes what it takes
        for _ in range(PROOFS):
            trial = best(pgle, left, request.memory_limit)
            if trial is pgle:
                return None
            proof = self.prove(self._simplified(trial) if self.complete else trial)
            if proof.accepted:
                return replace(proof, written=self.write(proof))
            left.remove(trial)
            self.trials[self.trials.index(trial)] = proof.scheduled.trial  # its figures by a whole compilation
            self.refused.append(_refusal(proof))
        return None

    def _simplified(self, trial: Trial) -> Trial:
        """The same without the flags that give nothing, as presets have them."""
        alone = self._aside(without_one(trial))
        idle = [name for name, other in zip(trial.flags, alone, strict=False) if self._is_as_good(other, trial)]
        for names in (idle, *([name] for name in idle)):  # one by one only where they cannot go together
            rest = {flag: value for flag, value in trial.flags.items() if flag not in names}
            if rest and len(rest) < len(trial.flags):
                other = self._aside([(rest, f"without {', '.join(names)}")])[0]
                if self._is_as_good(other, trial):
                    trial = replace(other, label=trial.label, same_as="")
        return trial

    def _is_as_good(self, other: Trial, trial: Trial) -> bool:
        return other.mean_us <= trial.mean_us * (1 + PROGRESS) and self._is_better(other)

    def _aside(self, settings: Sequence[tuple[Flags, str]]) -> list[Trial]:
        """Trials outside the search, which are not shown among its own."""
        before = len(self.trials)
        found = self.attempt(settings)
        del self.trials[before:]
        return found

    def _standing(self) -> list[Trial]:
        return [trial for trial in self.trials if self._is_better(trial)]

    def attempt(self, settings: Sequence[tuple[Flags, str]]) -> list[Trial]:
        """Trials of these flags, several at once; without those that the time limit ended or left out."""
        with ThreadPoolExecutor(AT_ONCE) as threads:
            made = [trial for trial in threads.map(self._tried, settings) if trial is not None]
        done = []
        for trial in made:
            is_new = self.record.known(trial.flags) is None
            if trial.failure and self.bench.is_late:  # it was ended, and is tried when the search continues
                self.complete = False
                continue
            if is_new:
                trial = self._told_apart(trial)
                self.record.add(trial)
            done.append(trial)
            self.trials.append(trial)
            self.on_trial(trial, self.pgle)
        return done

    def _tried(self, setting: tuple[Flags, str]) -> Trial | None:
        """From the record, or made; None where it is too late for that."""
        flags, label = setting
        known = self.record.known(flags)
        if known is not None:
            return replace(known, label=label)
        if self.bench.is_late:
            self.complete = False
            return None
        return self.bench.trial(flags, label)

    def _told_apart(self, trial: Trial) -> Trial:
        """A trial, or what it says that it is the same as: compiled at the same time, or elsewhere."""
        earlier = (self.pgle, *self.trials)
        alike = (other for other in earlier if (other.program, other.worlds_us) == (trial.program, trial.worlds_us))
        twin = next((other for other in alike if trial.program and not other.same_as), None)
        return trial if trial.same_as or twin is None else replace(trial, same_as=twin.label)

    def prove(self, trial: Trial) -> Proof:
        """A setting compiled whole, confirmed by XLA's log and schedule, simulated again."""
        bench = self.bench
        tried = bench.schedule(trial.flags, trial.label)
        folder = self.request.out / "proof"
        emptied(folder)
        path = bench.folder_of(trial.flags) / "profile.pbtxt"
        wanted = replace(bench.session.base, dump_dir=folder, flags=bench.options(trial.flags), profile=path)
        result = bench.session.compiler.compile(wanted)
        module = result.scheduled
        found = bench.judged(trial.flags, trial.label, result, module, tried.profile, tried.trial.modelled)
        use = confirm_compiled(result.log, result.lhs, tried.profile)
        schedules = {} if result.lhs is None else {module.name: result.lhs}
        is_better = self._is_better(found.trial) and fits(found.trial, self.request.memory_limit)
        in_less = self.in_less_memory(found.trial) if is_better else None
        proof = Proof(
            scheduled=found,
            judged=judge(found.trial.worlds_us, self.pgle.worlds_us),
            in_less=in_less,
            accepted=is_better and (in_less is None or in_less.mean < 0),
            used=use.verdict is ProfileUse.USED,
            why=use.why,
            coverage=min(
                (item.time.value or 0.0 for item in cover(tried.profile, [module], schedules).main), default=0.0
            ),
            change=_change(found.trial.step_us, trial.step_us),
            memory_change=_change(found.trial.temp_bytes, trial.temp_bytes),
        )
        if proof.agrees or bench.session.is_distrusted:
            return proof
        bench.session.distrust()
        self.record.forget()
        bench.start()
        return replace(self.prove(trial), change=proof.change, memory_change=proof.memory_change)

    def in_less_memory(self, trial: Trial) -> Judged | None:
        """The setting against the profile alone with a little less memory; None if both need much less than there is.

        Memory decides what XLA computes again, and so the sign of a change; no plan knows the last per cent of it.
        """
        have = self.bench.session.base.allocator_bytes
        if not have or max(trial.memory_bytes or 0, self.pgle.memory_bytes or 0) < (1 - CLOSE) * have:
            return None
        after, before = self.bench.in_less_memory(trial, LESS)
        return judge(after.worlds_us, before.worlds_us)

    def _is_better(self, trial: Trial) -> bool:
        return all(holds_up(trial, side.trial) for side in (self.bench.baseline, self.bench.pgle))

    def without(self, proof: Proof) -> dict[str, Trial]:
        """The accepted setting without each of its flags."""
        found = self._aside(without_one(proof.scheduled.trial))
        return dict(zip(proof.scheduled.trial.flags, found, strict=False))

    def write(self, proof: Proof) -> tuple[Path, ...]:
        """``flags.txt`` and the profile that goes with it."""
        out = self.request.out
        own, all_ = self.bench.options({}), self.bench.options(proof.scheduled.trial.flags)
        files: dict[Path, bytes | str] = {
            out / "flags.txt": "\n".join((*own, FOUND_BY_SEARCH, *all_[len(own) :])) + "\n"
        }
        again = profile_files(out / "profile.pbtxt", proof.scheduled.profile)
        files |= {Path(str(name)): data for name, data in again.items()}
        write_files(dict(files), force=True)
        return tuple(files)

    def forget(self) -> None:
        """Delete what an earlier search in this folder had found, by another limit: it does not stand by this one."""
        for name in FOUND:
            (self.request.out / name).unlink(missing_ok=True)


def _ended_early(search: _Search) -> list[str]:
    if search.complete:
        return []
    made = sum(not trial.same_as for trial in search.trials)
    what = f"the time limit ended the search after {made} of at most {search.request.budget} trials"
    return [f"{what}: this is the best so far; the same command with a longer --time-limit, or none, continues"]


def _change(after: float | None, before: float | None) -> float:
    return after / before - 1 if after and before else 0.0


def _refusal(proof: Proof) -> str:
    """Why a setting that the trials accepted did not stand."""
    label = proof.scheduled.trial.label
    if proof.in_less is not None and proof.in_less.mean >= 0:
        return f"{label}: if the job has {LESS:.0%} less memory, the step changes by {proof.in_less.mean:+.1%}"
    won = f"{proof.judged.won} of {proof.judged.of} variations of the costs"
    return f"{label}: compiled whole, the step changes by {proof.change:+.2%} and is shorter in {won} only"


def _warnings(request: TuneRequest, pgle: Scheduled, proof: Proof | None) -> list[str]:
    tuned = pgle.trial if proof is None else proof.scheduled.trial
    have = int(request.setting.memory_fraction * request.target.memory_bytes)
    lines = near_limit(tuned.memory_bytes, have) if tuned.memory_bytes and have else []
    if proof is None:
        return lines
    before, after = pgle.trial.temp_bytes, proof.scheduled.trial.temp_bytes
    if before and after and after > 1.05 * before:
        lines.append(f"temporary memory grows by {after / before - 1:.0%}; --memory-limit bounds it")
    if not proof.agrees:
        lines.append(
            f"trials end at the schedule; compiled to the end, the step differs by {change(proof.change)} and "
            f"temporary memory by {change(proof.memory_change)}; the verdict has those figures"
        )
    return lines
