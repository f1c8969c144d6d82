"""What is tuned, and what the search found."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pgle.costs.profile.value import Profile
from pgle.run.experiment.next_command import Launch
from pgle.run.rehearse.settings import Setting
from pgle.schedule.moves import Placement
from pgle.schedule.predict import Prediction
from pgle.tune.trial import Judged, Trial
from pgle.xla.hardware import Hardware, find_hardware
from pgle.xla.hlo.module import Module
from pgle.xla.targets import Target

SAME_STEP, SAME_MEMORY = 0.001, 0.01
"""Ties between instructions may break otherwise; a step, and temporary memory, within this are the same."""

CLOSE = 0.1
"""Part of the memory limit. A setting that needs all but so much of it is judged in less memory too."""
LESS = 0.05
"""Part of the memory limit that is then taken away. XLA itself keeps as much free when it plans
(`--xla_gpu_memory_limit_slop_factor=95`), and what a job holds besides is not in XLA's plan."""

FOUND = ("flags.txt", "profile.pbtxt", "profile.pbtxt.json")
"""Files of what a search found, in its folder."""


@dataclass(frozen=True)
class TuneRequest:
    """What to tune."""

    setting: Setting  # the module, the jaxlib that compiles it, and the user's flags, which stay
    target: Target  # the GPU
    out: Path  # folder, new or empty, or with the record of the same search, which then continues
    profile: Path | None = None  # measured costs; None: estimates
    topology: str | None = None  # ``SxHxD``; None: one host
    budget: int = 20  # trials at most
    time_limit_s: float | None = None  # begin no trial after so long, and end those at work; None: none
    memory_limit: int | None = None  # of temporary device memory, bytes; None: none
    worlds: int = 20  # how many
    seed: int = 0  # of the worlds
    executor: str = ""  # where trials run (`pgle.run.executor`); empty: this process, which forks a compiler for each
    cached: bool = True  # take compilations from the user's cache, and keep them there
    network_gb_s: float | None = None  # network bandwidth per GPU and direction; None: the target's

    @property
    def hardware(self) -> Hardware:
        """The GPU, its hosts and its network: one value for the whole answer."""
        topology = self.setting.topology or self.topology
        return find_hardware(self.target, topology=topology, network_gb_s=self.network_gb_s)


@dataclass(frozen=True)
class Scheduled:
    """One setting with its schedule."""

    trial: Trial  # its figures
    module: Module  # scheduled
    prediction: Prediction  # of its step
    profile: Profile  # the costs that XLA was given, and that the prediction uses


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
