"""What a search for flags found and what it leads to, in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pgle.errors import many, printable
from pgle.next import typed
from pgle.report.text import duration
from pgle.run.experiment.directory import free
from pgle.run.experiment.onward import UNKNOWN
from pgle.run.tune.request import LESS, Proof, Tuning
from pgle.schedule.why_exposed import Reason, reasons
from pgle.tune.search import fits
from pgle.tune.trial import LITTLE, Trial, judge, stands
from pgle.xla.flags.record import effects_of, summary

COLUMNS = ("", "predicted step", "exposed", "change", "won", "temp memory")


def figures(trial: Trial, pgle: Trial) -> tuple[str, str, int, int]:
    """Step, mean change over worlds, worlds won, worlds."""
    judged = judge(trial.worlds_us, pgle.worlds_us)
    return duration(trial.step_us or 0.0), f"{judged.mean:+.1%}", judged.won, judged.of


def legend(found: Tuning) -> str:
    """The columns of the worlds in words."""
    of = len(found.pgle.trial.worlds_us)
    return (
        f"change: of the mean step over {of} worlds against 'the profile'; minus is shorter. In a world costs, "
        "latencies, contention and launch gaps differ as far as they are uncertain. won: in how many worlds the step "
        "is shorter. +: on top of the best before it. →: chosen"
    )


def row(found: Tuning, trial: Trial) -> tuple[str, ...]:
    """A trial as cells of `COLUMNS`."""
    tuned = found.tuned.trial
    best = found.proof is not None and trial.label == tuned.label
    name = f"→ {trial.label}" if best else trial.label
    if trial.step_us is None:
        return name, "does not compile", "", "", "", ""
    if trial.same_as:
        return name, f"as '{trial.same_as}'", "", "", "", ""
    step, mean, won, of = figures(trial, found.pgle.trial)
    same = trial is found.pgle.trial
    return (
        name,
        step,
        duration(trial.exposed_us),
        "–" if same else mean,
        "–" if same else f"{won}/{of}",
        "–" if trial.temp_bytes is None else f"{trial.temp_bytes / 2**30:.2f} GiB",
    )


def sentence(found: Tuning) -> str:
    """The verdict with its figures."""
    by = "predicted" if found.costs_are == "measured" else f"predicted, {found.costs_are} costs"
    prediction = found.pgle.prediction
    step, so_far = max(prediction.step_us, 1e-9), "" if found.complete else " so far"
    room = 1 - prediction.ceiling.step_us / step
    if found.verdict == "cannot-tell":
        return "Cannot tell: the length of a loop is unknown, so every predicted step is a lower bound."
    if found.verdict == "no-room":
        exposed = prediction.exposed_us / step
        return f"No room: {exposed:.2%} of the step is exposed, and hiding all would save {room:.2%} ({by})."
    if found.proof is None:
        return (
            f"Nothing better in {tried(found)}{so_far}: none is shorter by 0.5 %, and in nine of ten worlds; hiding "
            f"all communication would save {room:.1%} ({by})."
        )
    judged, unproven = found.proof.judged, "" if found.proof.used else ", but not proven"
    less = found.proof.in_less
    near = f" With {LESS:.0%} less memory it changes by {less.mean:+.1%}." if less is not None else ""
    return (
        f"Better{so_far}{unproven}: the step gets {-judged.mean:.1%} shorter than with the profile alone. "
        f"Over {judged.of} worlds it changes by {judged.best:+.1%} to {judged.worst:+.1%}, and is shorter in "
        f"{judged.won} ({by}; {modelled(found.tuned.trial)}).{near}"
    )


def tried(found: Tuning) -> str:
    """How many settings made another program, as progress counts them."""
    return many(sum(not trial.same_as for trial in found.trials), "trial")


def modelled(trial: Trial) -> str:
    """How many of its collectives have no measured time."""
    count = trial.modelled
    if not count:
        return "its collectives are those of the profile"
    return f"{count} of its collectives {'are' if count != 1 else 'is'} new, with modelled times"


def gains(found: Tuning) -> list[str]:
    """Each flag of the accepted setting: how much longer the step is without it, and what others measured."""
    tuned = found.tuned.trial
    lines = []
    for name, value in tuned.flags.items() if found.proof is not None else ():
        trial = found.without.get(name)
        if trial is None or trial.step_us is None:
            gives = ""
        else:
            gives = f"without it the step changes by {judge(trial.worlds_us, tuned.worlds_us).mean:+.1%}; "
        lines.append(f"  --{name}={value}: {gives}{public(name, value)}")
    return lines


def public(name: str, value: str) -> str:
    """What others measured for a flag, in short."""
    return f"public: {summary(effects_of(name, value))}"


def proven(proof: Proof) -> str:
    """Whether XLA took the profile under the accepted flags, with its line, and what the new profile covers."""
    head = (
        "proven by a whole compilation"
        if proof.used
        else "not proven: in a whole compilation XLA did not use enough of the profile"
    )
    moved = f"changes by {proof.change:+.2%}" if abs(proof.change) > 1e-4 else "is the same"
    same = f"against the trial its step {moved}"
    return f"{head} ({same}, the profile has costs for {proof.coverage:.1%} of it): {proof.why}"


def reasons_of(found: Tuning) -> tuple[Reason, ...]:
    """The collectives that stay exposed after all."""
    return reasons(found.pgle.module, found.collectives)


def why_exposed(found: Tuning) -> Sequence[str]:
    """Why communication stays exposed with the profile alone, in the program's own words, and what would help."""
    lines = []
    for item in reasons_of(found):
        words = [f"made by {item.made_by}"] if item.made_by else []
        words += [f"needed by {item.needed_by}"] if item.needed_by else []
        words += [f"in {item.loop}"] if item.loop else []
        about = f" ({'; '.join(words)})" if words else ""
        lines.append(
            f"  {printable(item.name)}, {duration(item.exposed_us)} exposed: {item.why}{printable(about)}. "
            f"Would help: {item.help}."
        )
    return lines


def advice(found: Tuning, out: Path) -> str:
    """What to do next, and what it would bring."""
    if found.proof is not None:
        return f"Next: {_measuring(found, '--flags-file', out / 'flags.txt')}"
    if not found.complete:
        return "Not known yet: the time limit ended the search. With a longer --time-limit the same command goes on."
    step = found.pgle.prediction.step_us
    saved = step - found.pgle.prediction.ceiling.step_us
    if found.verdict == "cannot-tell":
        return "Cannot tell: the length of a loop is unknown, so every predicted step is a lower bound."
    if found.verdict == "cannot-tell":
        return "Give the loop a constant length (jax.lax.scan, or fori_loop with constant bounds), then tune again."
    if found.verdict == "no-room":
        left = f"at most {duration(saved)} of the step's communication is left to hide"
        return f"Flags do not help here: {left}. {_instead(found, out)}"
    words = f"the changes of the program above would help, by up to {duration(saved)} of the step"
    if (over := _over_limit(found)) is not None:
        needs, shorter = (over.temp_bytes or 0) / 2**30, judge(over.worlds_us, found.pgle.trial.worlds_us)
        return (
            f"Nothing that helps fits into --memory-limit, {(found.request.memory_limit or 0) / 2**30:.2f} GiB: "
            f"'{over.label}' makes the step {-shorter.mean:.1%} shorter over the worlds, and needs {needs:.2f} GiB. "
            f"With a higher limit the same command goes on from these trials; else {words}."
        )
    if (near := promising(found)) is None:
        return f"Flags do not help here; {words}. {_instead(found, out)}"
    judged = judge(near.worlds_us, found.pgle.trial.worlds_us)
    others = "".join(f"\n  --{name}={value}: {public(name, value)}" for name, value in near.flags.items())
    return (
        f"Not sure enough to accept, and worth a measurement: '{near.label}' makes the step {-judged.mean:.1%} shorter "
        f"on average, and is shorter in {judged.won} of {judged.of} worlds.{others}\n"
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
    """The best that is shorter by half a per cent on average, but not in enough worlds; None if there is none."""
    pgle, limit = found.pgle.trial, found.request.memory_limit
    refused = tuple(line.partition(": ")[0] for line in found.refused)
    left = [trial for trial in found.trials if trial.step_us is not None and trial.label not in refused]
    within = [trial for trial in left if fits(trial, limit)]
    least_us, least_mean_us = ((1 - LITTLE) * (us or 0.0) for us in (pgle.step_us, pgle.mean_us))
    good = [item for item in within if (item.step_us or 0.0) <= least_us and item.mean_us <= least_mean_us]
    return min(good, key=lambda trial: trial.mean_us, default=None)


def _over_limit(found: Tuning) -> Trial | None:
    """The shortest that stands but for its memory; None where there is none."""
    pgle, limit = found.pgle.trial, found.request.memory_limit
    return min(
        (trial for trial in found.trials if stands(trial, pgle) and not fits(trial, limit)),
        key=lambda trial: trial.mean_us,
        default=None,
    )
