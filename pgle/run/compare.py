"""`pgle compare` as a function: paths or commands in, the comparison and its checks out; and the
file of a history.

With ``--abba`` it runs both sides in ABBA order, so that drift (clocks, neighbours, storage) falls
on both alike. A history is a file of JSON lines to keep in a repository.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import msgspec

from pgle.account.value import Basis, TimedSteps
from pgle.errors import UserError, WorkloadError
from pgle.files import TextLines, check_file, read_bytes, sha256, write_files
from pgle.masking import kept_argv
from pgle.next import Next
from pgle.requests.steps import CompareRuns, Comparing
from pgle.run.ask.machine import all_gpus
from pgle.run.directory.directory import COMPARED, PROGRAM_FILES, RunDirectory, free
from pgle.run.directory.manifest import StageRecord, extend_manifest, now, read_manifest
from pgle.run.inputs.next_command import COMPARE, is_compared, stage_left
from pgle.run.inputs.step_times import read_runs, read_side
from pgle.run.process.process import last_line, launch, named_files
from pgle.steps.compare import Comparison, LimitCheck, Limits, compare, gate, stage_path
from pgle.steps.estimate import (
    Assumptions,
    Entry,
    given_spread,
    make_trends,
    measured_spread,
)
from pgle.steps.series import Rules, Side, check_runs
from pgle.xla.flags.text import kept_flags


@dataclass(frozen=True)
class CompareRequest:
    """What to compare."""

    words: tuple[
        str, ...
    ]  # BASE and NEW; one folder that holds both; or, with `rounds`, the command or commands
    base: tuple[str, ...] = ()  # more runs of BASE
    new: tuple[str, ...] = ()  # more runs of NEW
    rules: Rules = field(default_factory=Rules)  # which steps to leave out
    assumptions: Assumptions = field(default_factory=Assumptions)  # of the statistics
    limits: Limits = field(default_factory=Limits)  # of the gate
    pattern: str | None = None  # regular expression for console logs
    rounds: int = 0  # rounds of ABBA; 0: only read
    profile: Path | None = None  # cost profile of side B, with `rounds`
    run_dir: Path = Path("runs/abba")  # folder of the ABBA runs
    labels: tuple[str, str] = ("", "")  # names of the sides; empty: from the paths
    history: Path | None = None  # file of a history that shows how much launches differ


def request_of(
    asked: Comparing,
    words: tuple[str, ...] = (),
    base: tuple[str, ...] = (),
    new: tuple[str, ...] = (),
) -> CompareRequest:
    """What to compare, by what was asked of two sides: as in `CompareRequest`."""
    if asked.fail_undecided and asked.fail_slower is None:
        remedy = "add --fail-slower 2%"
        raise UserError("needs a bound", where="--fail-undecided", remedy=remedy)
    first, last = asked.window or (None, None)
    return CompareRequest(
        words,
        base,
        new,
        rules=Rules(asked.warmup, first, last),
        assumptions=Assumptions(
            asked.confidence,
            asked.same_within,
            paired=asked.paired,
            launch_spread=given_spread(asked.launch_spread),
        ),
        limits=Limits(
            fail_slower=asked.fail_slower,
            fail_undecided=asked.fail_undecided,
            require_faster=asked.require_faster,
            max_loss_change=asked.max_loss_change,
        ),
        pattern=asked.pattern,
        labels=asked.labels,
        history=asked.history,
    )


def request_of_command(asked: CompareRuns) -> CompareRequest:
    """What to compare, by a command line."""
    return replace(
        request_of(asked, asked.words, asked.base, asked.new),
        rounds=asked.rounds,
        profile=asked.profile,
        run_dir=asked.run_dir,
    )


def run_compare(
    request: CompareRequest, tell: Callable[[str], None] = lambda line: None
) -> tuple[Comparison, tuple[LimitCheck, ...]]:
    """Read (or first run) both sides, compare, and hold the result against the limits.

    `tell` gets one line before each ABBA run. Raises `WorkloadError` if the command of one failed.
    """
    base, new, paired = _paths(request, tell)
    assumptions = replace(
        request.assumptions, paired=paired or request.assumptions.paired
    )
    labels = [
        label or fallback
        for label, fallback in zip(request.labels, _labels(base, new), strict=True)
    ]
    one, two = (
        read_side(label, paths, rules=request.rules, pattern=request.pattern)
        for label, paths in zip(labels, (base, new), strict=True)
    )
    return judged(one, two, replace(request, assumptions=assumptions))


def judged(
    one: Side, two: Side, request: CompareRequest
) -> tuple[Comparison, tuple[LimitCheck, ...]]:
    """Compare two sides, and hold the result against the limits."""
    assumptions = request.assumptions
    if request.history is not None and assumptions.launch_spread is None:
        check_runs((*one.runs, *two.runs))
        trends = make_trends(read_history(request.history)[0])
        source = str(request.history)
        spread = measured_spread(
            trends, one.median_s, simulated=one.simulated, source=source
        )
        assumptions = replace(assumptions, launch_spread=spread)
    found = compare(one, two, assumptions)
    return found, gate(found, request.limits)


def timed_steps(run: RunDirectory) -> TimedSteps | None:
    """What the timed steps of a run directory say; None unless all its stages are there and their
    step times were compared.
    """
    if stage_left(run) is not None:
        return None
    try:
        found, _ = run_compare(CompareRequest((str(run.path),)))
    except UserError:  # the comparison itself says why
        return None
    return timed_of(found)


def timed_of(found: Comparison) -> TimedSteps:
    """A comparison of baseline and performance run, as an account has it."""
    low, high = found.ci
    return TimedSteps(
        base_us=found.base.median_s * 1e6,
        step_us=found.new.median_s * 1e6,
        change=found.change,
        least=low - 1,
        most=high - 1,
        verdict=found.verdict,
        basis=Basis.SIMULATED if found.simulated else Basis.MEASURED,
    )


def compared_run(found: Comparison) -> RunDirectory | None:
    """The run directory whose baseline and performance run were compared; None if these were other
    runs.
    """
    runs = (*found.base.runs, *found.new.runs)
    stages = [Path(stage_path(one.series.source)) for one in runs]
    run = RunDirectory(stages[0].parent)
    compared = [run.stage(name).path for name in COMPARED]
    return run if run.is_recorded and stages == compared else None


def record_comparison(run: RunDirectory, found: Comparison) -> None:
    """Keep in the manifest that the step times were compared; where it cannot be written, they were
    none the less.
    """
    facts = {"verdict": found.verdict.value, "change": found.change}
    with suppress(UserError, OSError):
        if not is_compared(read_manifest(run.path)):
            extend_manifest(
                run.path,
                StageRecord(
                    COMPARE, started=now(), ended=now(), exit_code=0, facts=facts
                ),
            )


def _paths(
    request: CompareRequest, tell: Callable[[str], None]
) -> tuple[list[str], list[str], bool]:
    """The paths of both sides and whether they come in pairs."""
    words = request.words
    if request.rounds:
        return *_run_abba(request, tell), True
    if len(words) == 1 and not request.base and not request.new:
        folder = Path(words[0])
        if (folder / PLAN).is_file():
            return *_sides(folder), True
        if all((folder / stage).is_dir() for stage in COMPARED):
            return [str(folder / COMPARED[0])], [str(folder / COMPARED[1])], False
    if len(words) not in (0, 2):
        what = f"two sides are needed, {len(words)} given"
        raise UserError(
            what,
            remedy="pgle compare BASE NEW; further runs of a side with --base and --new",
        )
    base, new = [*words[:1], *request.base], [*words[1:], *request.new]
    if not base or not new:
        raise UserError(
            "two sides are needed",
            remedy="pgle compare BASE NEW, or --base PATH … --new PATH …",
        )
    return base, new, False


def _labels(base: list[str], new: list[str]) -> tuple[str, str]:
    """Short names of the sides: the last part of the path in which they differ."""
    for one, two in zip(
        reversed(Path(base[0]).parts), reversed(Path(new[0]).parts), strict=False
    ):
        if one != two and len(one) <= 24 and len(two) <= 24:
            letters = [RUN.fullmatch(name) for name in (one, two)]
            return ("A", "B") if all(letters) else (one, two)
    return "base", "new"


PLAN = "abba.json"
OWN = ("", "")  # a run's folder itself has step times; else the folders of its stages
RUN = re.compile(r"\d\d+-([AB])(?:\.\d+)?")  # folder of a run


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is run, as `PLAN` in its folder keeps it."""

    schema: Literal["pgle.abba/1"] = "pgle.abba/1"
    base: tuple[str, ...] = ()  # command A, masked
    new: tuple[str, ...] = ()  # command B
    inside: tuple[
        str, str
    ]  # where in a run's folder step times lie, for A and B; empty: in the folder itself
    # SHA-256 of the files that decide what runs, by the word that names them, and XLA's flags
    inputs: dict[str, str] = {}
    finished: tuple[
        str, ...
    ]  # folders of the runs so far, in order; run 2 i and run 2 i + 1 are a pair

    def __post_init__(self) -> None:
        runs = [match for match in map(RUN.fullmatch, self.finished) if match]
        letters = [match[1] for match in runs]
        is_known = len(runs) == len(self.finished) and self.inside in (OWN, COMPARED)
        is_paired = all(
            {first, second} == {"A", "B"}
            for first, second in zip(letters[::2], letters[1::2], strict=False)
        )
        if not is_known or not is_paired:
            raise ValueError("no plan of pgle")


def _run_abba(
    request: CompareRequest, tell: Callable[[str], None]
) -> tuple[list[str], list[str]]:
    """Run what has not been run yet, in rounds of ABBA and BAAB; the folders with the step times of
    A and B, in pairs.

    ``{run}`` in a command is the run's folder, as is PGLE_RUN_DIR in its environment. What it
    prints is kept in ``output.log`` there. The same request continues where it stopped. Step times
    that cannot be read end all, so that no hours go by for runs that cannot be compared.
    """
    commands, inside = _commands(request)
    base, new = map(kept_argv, commands)
    plan = _Plan(
        base=base, new=new, inside=inside, inputs=_inputs(commands), finished=()
    )
    letters = "".join(("ABBA", "BAAB")[turn % 2] for turn in range(request.rounds))
    with RunDirectory(request.run_dir).held():
        finished = _finished(request.run_dir, plan)[: len(letters)]
        for number, letter in enumerate(letters[len(finished) :], len(finished) + 1):
            folder = free(
                request.run_dir / f"{number:02d}-{letter}", "."
            )  # a run that failed may have left one
            tell(f"run {number} of {len(letters)} ({letter}): {folder}")
            _run(commands[letter == "B"], folder, f"run {number} ({letter})")
            read_runs(str(folder / inside[letter == "B"]), pattern=request.pattern)
            finished.append(folder.name)
            plan = msgspec.structs.replace(plan, finished=tuple(finished))
            text = json.dumps(msgspec.to_builtins(plan), indent=2) + "\n"
            write_files({request.run_dir / PLAN: text}, force=True)
        return _sides(request.run_dir)


def _commands(
    request: CompareRequest,
) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], tuple[str, str]]:
    """The two commands of ``A… --vs B…``; with a profile one, without (A) and with it (B); and
    `_Plan.inside`.

    That runs by `pgle perf`, which sets the flags and confirms the use.
    """
    words, profile = request.words, request.profile
    if profile is None:
        where = [place for place, word in enumerate(words) if word == "--vs"]
        if len(where) != 1 or where[0] in (0, len(words) - 1):
            remedy = (
                "pgle compare --abba 3 -- COMMAND_A --vs COMMAND_B, or --profile PROFILE "
                "-- COMMAND"
            )
            raise UserError("needs two commands", where="--abba", remedy=remedy)
        return (words[: where[0]], words[where[0] + 1 :]), OWN
    if not words:
        raise UserError(
            "needs a command",
            where="--abba",
            remedy="pgle compare --abba 3 --profile P -- COMMAND",
        )
    if not profile.is_file():
        raise UserError(
            "no such file", where=profile, remedy="make it with pgle convert"
        )
    perf = (sys.executable, "-m", "pgle", "perf", "--run-dir", "{run}")
    base = (*perf, "--baseline", "--", *words)
    new = (*perf, "--profile", str(profile.resolve()), "--", *words)
    return (base, new), COMPARED


def _inputs(commands: Iterable[Sequence[str]]) -> dict[str, str]:
    """What `_Plan.inputs` keeps of the commands and of XLA_FLAGS."""
    words = sorted(chain.from_iterable(map(named_files, commands)))
    found = {
        word: sha256(read_bytes(Path(word)))
        for word in words
        if word.endswith((*PROGRAM_FILES, ".pbtxt", ".pb"))
    }
    return {**found, "XLA_FLAGS": kept_flags(os.environ.get("XLA_FLAGS", ""))}


def _sides(folder: Path) -> tuple[list[str], list[str]]:
    """The folders with step times of a finished or unfinished ABBA folder: A's and B's, whole pairs
    only.
    """
    plan = _load(folder)
    names, inside = plan.finished, plan.inside
    pairs = [
        sorted(names[i : i + 2], key=lambda name: name.split("-")[1])
        for i in range(0, len(names) - 1, 2)
    ]
    found = tuple(
        [str(folder / pair[side] / inside[side]) for pair in pairs] for side in (0, 1)
    )
    if not found[0]:
        raise UserError(
            "holds no finished pair of runs",
            where=folder,
            remedy="run pgle compare --abba again",
        )
    return found[0], found[1]


def _load(folder: Path) -> _Plan:
    try:
        return msgspec.convert(json.loads(read_bytes(folder / PLAN)), _Plan)
    except (ValueError, RecursionError):
        remedy = "choose another --run-dir"
        raise UserError(
            "is not a plan of pgle compare --abba", where=folder / PLAN, remedy=remedy
        ) from None


def _finished(folder: Path, plan: _Plan) -> list[str]:
    """The runs that a folder holds of this plan."""
    if not (folder / PLAN).exists():
        return []
    kept = _load(folder)
    remedy = "choose another --run-dir"
    if (kept.base, kept.new) != (plan.base, plan.new):
        raise UserError("holds runs of other commands", where=folder, remedy=remedy)
    before = kept.inputs
    names = {**plan.inputs, **before} if before else {}
    changed = [name for name in names if before.get(name) != plan.inputs.get(name)]
    if changed:
        what = f"holds runs of another state of the program: {changed[0]} has changed since"
        raise UserError(what, where=folder, remedy=remedy)
    return list(kept.finished)


def _run(command: Sequence[str], folder: Path, name: str) -> None:
    """Run a command; raises `WorkloadError` with its exit code if it failed: finished runs are
    kept.
    """
    words = [word.replace("{run}", str(folder)) for word in command]
    folder.mkdir(parents=True)
    log = folder / "output.log"
    code = launch(
        words,
        {**os.environ, "PGLE_RUN_DIR": str(folder)},
        log,
        is_shown=False,
        has_stdin=False,
    )
    if code:
        reason = f": {last[:200]}" if (last := last_line(log)) else ""
        what = f"{name} ended with code {code}{reason}; see {log}"
        raise WorkloadError(
            code, f"{what}; mend it, then the same command continues with this run"
        )


_OTHER = "choose another --file"


def add_entry(path: Path, entry: Entry) -> None:
    """Append an entry; a missing file is made. Another kind of file is left as it is."""
    is_new = not path.exists()
    line = (
        json.dumps(asdict(entry), ensure_ascii=False).encode(errors="backslashreplace")
        + b"\n"
    )
    if not is_new and not path.is_file():
        raise UserError("is not a file", where=path, remedy=_OTHER)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as file:
            with suppress(OSError):  # some file systems cannot lock
                fcntl.flock(file, fcntl.LOCK_EX)
            size = os.fstat(file.fileno()).st_size
            if size:
                read_history(path)  # refuses any other file
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            try:
                if file.write(line) < len(line):
                    raise OSError("the disk is full")
            except OSError:
                file.truncate(size)
                raise
    except OSError as error:
        with suppress(OSError):
            if is_new and path.stat().st_size == 0:
                path.unlink()
        raise UserError(
            f"cannot be written ({error.strerror or error})", where=path, remedy=_OTHER
        ) from None


def read_history(path: Path) -> tuple[list[Entry], list[str]]:
    """The entries in the order kept, and a line for each that cannot be read."""
    words = ("add", "RUN", "--file", path, "--name", "NAME")
    add_to = Next.of("history", *words)
    if not path.exists():
        raise UserError("no such history", where=path, remedy=add_to)
    if not path.is_file():
        raise UserError("is not a file", where=path, remedy=_OTHER)
    check_file(path)
    entries: list[Entry] = []
    warnings: list[str] = []
    for number, line in enumerate(
        TextLines(path, f"a history is JSON lines; {_OTHER}"), 1
    ):
        if not line.strip():
            continue
        try:
            entries.append(msgspec.convert(json.loads(line), Entry, strict=False))
        except (ValueError, RecursionError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else error
            warnings.append(f"{path}: entry {number} could not be read ({reason})")
    if warnings and not entries:
        raise UserError("is not a history of pgle", where=path, remedy=_OTHER)
    if not entries:
        raise UserError("holds no entry", where=path, remedy=add_to)
    return entries, warnings


def hardware_name() -> str:
    """The GPUs of this host as a name for files and keys, such as ``8x-nvidia-h100-80gb-hbm3``;
    ``no-gpu``.
    """
    gpus = all_gpus()
    if not gpus:
        return "no-gpu"
    slug = re.sub(r"[\W_]", "-", gpus[0].name.lower()).strip("-")
    return f"{len(gpus)}x-{slug}"
