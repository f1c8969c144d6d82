"""What a search for flags leads to: a measurement of what it found, a closer look where it found nothing."""

from __future__ import annotations

from pathlib import Path

from pgle.report.text import duration
from pgle.run.experiment.directory import free
from pgle.run.experiment.onward import UNKNOWN, typed
from pgle.run.tune.request import Tuning
from pgle.tune.trial import Trial, judge


def advice(found: Tuning, out: Path) -> str:
    """What to do next, and what it would bring."""
    if found.proof is not None:
        return f"Next: {_measuring(found, '--flags-file', out / 'flags.txt')}"
    step = found.pgle.prediction.step_us
    saved = step - found.pgle.prediction.ceiling.step_us
    if found.verdict == "no-room":
        left = f"at most {duration(saved)} of the step's communication is left to hide"
        return f"Flags do not help here: {left}. {_instead(found, out)}"
    words = f"the changes of the program above would help, by up to {duration(saved)} of the step"
    if (near := promising(found)) is None:
        return f"Flags do not help here; {words}. {_instead(found, out)}"
    won, shorter = judge(near.harder_us, found.pgle.trial.harder_us), judge(near.worlds_us, found.pgle.trial.worlds_us)
    return (
        f"Not safe enough to accept, and worth a measurement: '{near.label}' makes the step {-shorter.mean:.1%} "
        f"shorter over the worlds, and wins in {won.won} of {won.of} where contention is doubled: "
        f"{_measuring(found, *(f'--flag=--{name}={value}' for name, value in near.flags.items()))}\nElse {words}."
    )


def _instead(found: Tuning, out: Path) -> str:
    """Where flags do not help: where the time goes, or that it be measured where it was not."""
    launch = found.launch
    if launch.run is not None:
        perf = launch.run.stage("perf").path
        return f"Where its time goes:\n  {typed('pgle', 'analyze', perf if perf.is_dir() else launch.run.path)}"
    if found.costs_are != "measured" and launch.words != UNKNOWN:
        return f"Measured costs make this sure:\n  {launch.line('run', free(Path('runs/default')))}"
    return f"The whole of it as one page:\n  {typed('pgle', 'report', out, '-o', free(out / 'report.html'))}"


def _measuring(found: Tuning, *flags: object) -> str:
    """The commands that measure the program under new flags, and compare it with a run without them."""
    launch = found.launch
    before = launch.run.path if launch.run is not None else free(Path("runs/untuned"))
    after = free(before.with_name("tuned" if launch.run is None else f"{before.name}-tuned"))
    lines = [] if launch.run is not None and launch.run.stage("perf").path.exists() else [launch.line("run", before)]
    lines += [launch.line("run", after, *flags), typed("pgle", "compare", before / "perf", after / "perf")]
    return "\n  ".join(("profile again under these flags and compare on the GPUs, the only real proof:", *lines))


def promising(found: Tuning) -> Trial | None:
    """The best that wins in the worlds, and not in the harder ones; None where there is none."""
    before = found.pgle.trial.worlds_us
    good = [trial for trial in found.trials if trial.step_us is not None and judge(trial.worlds_us, before).accepted]
    return min(good, key=lambda trial: judge(trial.worlds_us, before).mean, default=None)
