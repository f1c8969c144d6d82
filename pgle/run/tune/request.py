"""What is tuned, and what the search found."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pgle.costs.profile.value import Profile
from pgle.run.experiment.onward import Launch
from pgle.run.rehearse.settings import Setting
from pgle.schedule.moves import Placement
from pgle.schedule.predict import Prediction
from pgle.tune.trial import Judged, Trial
from pgle.xla.hlo.module import Module
from pgle.xla.targets import Target


@dataclass(frozen=True)
class TuneRequest:
    """What to tune.

    Attributes:
        setting: the module, the jaxlib that compiles it, and the user's flags, which stay.
        target: the GPU.
        out: folder, new or empty, or with the record of the same search, which then goes on.
        profile: measured costs; None: estimates.
        topology: ``SxHxD``; None: one host.
        budget: trials at most.
        memory_limit: of temporary device memory, bytes; None: none.
        worlds: how many.
        seed: of the worlds.
        shape: after the flags, look for costs that lead the scheduler to a better schedule (`pgle.tune.shape`).
        executor: where trials run (`pgle.run.executor`); empty: this process, which forks a compiler for each.
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
    shape: bool = False
    executor: str = ""
    cached: bool = True


@dataclass(frozen=True)
class Scheduled:
    """One setting with its schedule.

    Attributes:
        trial: its figures.
        module: scheduled.
        prediction: of its step.
        profile: the costs that XLA was given, and that the prediction stands on.
    """

    trial: Trial
    module: Module
    prediction: Prediction
    profile: Profile


@dataclass(frozen=True)
class Proof:
    """An accepted setting compiled whole.

    Attributes:
        scheduled: its schedule, by all passes.
        judged: it against the profile alone, over the worlds of the search.
        harder: the same over the harder worlds.
        accepted: whether it stands in both.
        used: whether XLA used the new profile, by its log and schedule.
        why: the line that proves it.
        coverage: share of the new module's time that the new profile has a cost for.
        change: its step against that of the trial, as a share; 0 where both ways to compile agree.
        written: files.
    """

    scheduled: Scheduled
    judged: Judged
    harder: Judged
    accepted: bool
    used: bool
    why: str
    coverage: float
    change: float
    written: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Tuning:
    """What the search found.

    Attributes:
        verdict: ``better``, ``no-room`` or ``not-better``.
        baseline: LHS without a profile, the user's own flags.
        pgle: the same flags with the profile.
        proof: of the best setting; None where nothing is better.
        trials: all, in order.
        without: the best setting without each of its flags, by flag.
        refused: settings that the worlds of the search accepted, and the proof did not, with why.
        collectives: of the `pgle` schedule, where they stand and why they stay exposed.
        costs_are: ``measured``, ``estimated`` or ``mixed``: of the program as it is; new collectives are modelled.
        jaxlib: that compiled.
        resumed: trials that an earlier search had made.
        launch: how pgle runs the program whose module this is.
        warnings: one line each.
    """

    verdict: str
    baseline: Scheduled
    pgle: Scheduled
    proof: Proof | None
    trials: tuple[Trial, ...]
    without: dict[str, Trial]
    refused: tuple[str, ...]
    collectives: tuple[Placement, ...]
    costs_are: str
    jaxlib: str
    resumed: int = 0
    launch: Launch = field(default_factory=Launch)
    warnings: tuple[str, ...] = field(default=())

    @property
    def tuned(self) -> Scheduled:
        """The best setting; `pgle` where nothing is better."""
        return self.pgle if self.proof is None else self.proof.scheduled

    @property
    def good(self) -> bool:
        """Whether something was found and proven, or there was nothing to find."""
        return self.proof is None or self.proof.used
