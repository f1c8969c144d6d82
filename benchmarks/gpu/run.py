"""Run the parts in order of worth within a budget of time: ``python -m benchmarks.gpu.run --out
FOLDER --budget 8m``.

Each part is a process. It writes its archive anew after each row, so a kill at any moment leaves
what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.gpu.results import Header, Results, private_words, scrub, write_whole

LEAST_S = 15.0  # a part does not begin with less
GRACE_S = 3.0  # between asking a part to end and ending it
RESERVE_S = (
    20.0  # of the budget: the start, the end of a part that is out of time, the summary
)
SUMMARY = "summary.json"
UNITS = {"s": 1.0, "m": 60.0}
PASSED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "LANG",
    "LC_ALL",
    "CUDA_VISIBLE_DEVICES",
    "PYTHONPATH",
)
"""Variables that parts have of this environment; none is recorded."""
PROGRAM = ("-m", "benchmarks.gpu.run")  # that runs a part
DEVICE = "/dev/nvidia0"
ASK_JAX = "import jax; found = jax.devices('gpu'); print(found[0].device_kind)"


@dataclass(frozen=True)
class Part:
    """Something to measure."""

    name: str  # of its archive
    limit_s: float  # seconds that it may take
    module: str  # where its function is
    function: str = "run"  # takes a `Bench` and the `Results`


PARTS = (
    Part("chain", 110, "benchmarks.gpu.chain", "prove"),
    Part("steps", 150, "benchmarks.gpu.suites", "steps"),
    Part("kernels", 120, "benchmarks.gpu.suites", "kernels"),
    Part("offload", 120, "benchmarks.gpu.chain", "offload"),
    Part("records", 80, "benchmarks.gpu.records"),
    Part("rehearsals", 120, "benchmarks.gpu.rehearsals"),
)
"""In order of worth. Six archives, the summary and a file that a kill left unfinished are eight."""


@dataclass(frozen=True)
class Outcome:
    """How a part ended."""

    name: str
    ended: str  # ``complete``, ``out of time``, ``failed`` or ``not begun``
    seconds: float
    archive_bytes: int  # 0 if it left none
    last_words: tuple[str, ...] = ()  # the end of what a failed part printed


@dataclass(frozen=True)
class Machine:
    """The GPU, by two names."""

    target: str  # pgle's
    chip: str = ""  # the driver's; empty: it is simulated

    @property
    def simulated(self) -> bool:
        """Whether there is no GPU."""
        return not self.chip


@dataclass(frozen=True)
class Request:
    """The command line."""

    out: Path
    budget_s: float
    parts: tuple[Part, ...]
    machine: Machine


def seconds(text: str) -> float:
    """A duration such as ``8m`` or ``90s``."""
    unit = UNITS.get(text[-1:])
    try:
        found = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no duration: write 8m or 90s"
        ) from None
    if found <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: write 8m or 90s")
    return found


def run(request: Request, say: Callable[[str], None]) -> tuple[Outcome, ...]:
    """Run the parts, and keep a summary of those that ended."""
    end_s = time.monotonic() + request.budget_s - RESERVE_S
    request.out.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="gpu-", ignore_cleanup_errors=True) as work:
        for part in request.parts:
            left_s = end_s - time.monotonic()
            if left_s < LEAST_S:
                outcomes.append(Outcome(part.name, "not begun", 0.0, 0))
                continue
            outcomes.append(
                _run_part(part, request, Path(work), min(part.limit_s, left_s))
            )
            say(_line(outcomes[-1]))
            document = {
                "simulated": request.machine.simulated,
                "parts": [asdict(each) for each in outcomes],
            }
            text = json.dumps(document, indent=1).encode()
            write_whole(request.out / SUMMARY, scrub(text, private_words()))
    return tuple(outcomes)


def _line(outcome: Outcome) -> str:
    kib = outcome.archive_bytes / 1024
    last = f" · {outcome.last_words[-1]}" if outcome.last_words else ""
    return f"{outcome.name:12}{outcome.ended:14}{outcome.seconds:5.0f} s {kib:9,.0f} KiB{last}"


def _run_part(part: Part, request: Request, work: Path, limit_s: float) -> Outcome:
    """Run a part in a process of its own, and end it at its limit with all that it started."""
    archive = request.out / f"{part.name}.zip"
    archive.unlink(missing_ok=True)
    place = work / part.name
    place.mkdir()
    words = (
        "--part",
        part.name,
        "--runner",
        str(os.getpid()),
        "--out",
        str(request.out.resolve()),
        "--work",
        str(place),
    )
    gpu = ("--target", request.machine.target, "--chip", request.machine.chip)
    command = (sys.executable, *PROGRAM, *words, *gpu)
    log = work / f"{part.name}.log"
    begin_s = time.monotonic()
    with log.open("wb") as stream:
        child = subprocess.Popen(
            command,
            env=_environment(work),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = child.wait(limit_s)
            ended = "failed" if code else "complete"
        except subprocess.TimeoutExpired:
            ended = "out of time"
        finally:
            _end(child)
    size = archive.stat().st_size if archive.is_file() else 0
    said = (
        log.read_text(errors="replace").splitlines()[-5:] if ended == "failed" else []
    )
    return Outcome(part.name, ended, time.monotonic() - begin_s, size, tuple(said))


def _environment(work: Path) -> dict[str, str]:
    """The environment of a part: nothing of the user's but where programs and libraries are."""
    passed = {name: os.environ[name] for name in PASSED if name in os.environ}
    private = "\n".join({str(Path.home()), os.environ.get("USER", "")})
    own = {"HOME": str(work), "TMPDIR": str(work), "PGLE_GPU_WORK": str(work)}
    return passed | own | {"PGLE_GPU_PRIVATE": private, "PYTHONDONTWRITEBYTECODE": "1"}


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a part and what it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            continue
    child.wait()


def run_here(part: Part, runner: int, out: Path, work: Path, machine: Machine) -> None:
    """Run a part in this process, which ends with its runner.

    Args:
        part: what to run.
        runner: process that started this one; it may be gone already.
        out: folder of the archives.
        work: folder for what is not kept.
        machine: where it runs.
    """
    from importlib import import_module

    from benchmarks.gpu.bench import Bench

    threading.Thread(target=_end_with, args=(runner,), daemon=True).start()
    header = Header(
        part.name, machine.simulated, machine.target, machine.chip, _versions()
    )
    bench = Bench(machine.simulated, machine.target, work, out)
    results = Results(out / f"{part.name}.zip", header)
    results.write(complete=False)
    function = getattr(import_module(part.module), part.function)
    function(bench, results)
    results.write(complete=True)


def _end_with(runner: int) -> None:
    """End this process and its group when the runner is gone."""
    while os.getppid() == runner:
        time.sleep(0.5)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _versions() -> str:
    """Versions of what compiles and runs."""
    from pgle.run.ask.jaxlib import versions

    named = (
        "jax",
        "jaxlib",
        "jax-cuda13-plugin",
        "jax-cuda12-plugin",
        "nvidia-cudnn-cu13",
    )
    found, _ = versions(named)
    return ", ".join(f"{name} {version}" for name, version in found.items())


def find_machine(capture: str, target: str) -> Machine:
    """The GPU of this machine; a simulated `target` if that is asked for or there is no GPU."""
    chip = "" if capture == "simulated" else _chip()
    return Machine(target_of(chip) if chip else target, chip)


def _chip() -> str:
    """What the driver calls the first GPU, or jax if there is no nvidia-smi; empty if there is no
    GPU.
    """
    from pgle.run.ask.machine import read_gpus

    gpus = read_gpus()
    if gpus:
        return gpus[0].name
    if not Path(DEVICE).exists():
        return ""
    done = subprocess.run(
        (sys.executable, "-c", ASK_JAX),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout.strip()


def target_of(chip: str) -> str:
    """pgle's name for a GPU, by the name that the driver gives it; an H100 if it is not known."""
    from pgle.xla.targets import ALIASES

    words = chip.lower().replace("-", " ").split()
    return next((word for word in words if word in ALIASES), "h100")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns 1 if a part failed or none was measured."""
    names = {part.name: part for part in PARTS}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument(
        "--budget", type=seconds, default=480.0, help="8m or 90s; less runs fewer parts"
    )
    parser.add_argument("--parts", default=",".join(names), help="names, with commas")
    parser.add_argument("--capture", choices=("auto", "simulated"), default="auto")
    parser.add_argument("--target", default="h100", help="the GPU to simulate")
    parser.add_argument("--chip", help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--runner", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.part:
        run_here(
            names[given.part],
            given.runner,
            out=given.out,
            work=given.work,
            machine=Machine(given.target, given.chip),
        )
        return 0
    unknown = sorted(set(given.parts.split(",")) - set(names))
    if unknown:
        parser.error(f"no part {unknown[0]!r}: choose {', '.join(names)}")
    chosen = tuple(names[name] for name in given.parts.split(","))
    signal.signal(signal.SIGTERM, _stop)
    machine = find_machine(given.capture, given.target)
    print(f"GPU: {machine.chip or f'{machine.target}, simulated'}", flush=True)
    request = Request(given.out, given.budget, chosen, machine)
    outcomes = run(request, lambda line: print(line, flush=True))
    failed = any(outcome.ended == "failed" for outcome in outcomes)
    return 1 if failed or not any(outcome.archive_bytes for outcome in outcomes) else 0


def _stop(number: int, _frame: object) -> None:
    """A signal ends the part that runs, too: `_run_part` does that on its way out."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
