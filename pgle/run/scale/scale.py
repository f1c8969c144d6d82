"""`pgle scale` as a function: every size and variant of a program, side by side, and what that says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from pathlib import Path

from pgle.run.executor import PROCESSES, executor
from pgle.run.launch.environment import check_compiler
from pgle.run.launch.process import check_program
from pgle.run.scale.row import RowRequest, make_row
from pgle.scale.answer import Answer, answer
from pgle.scale.plan import Trial, check_names, trials
from pgle.scale.row import Row
from pgle.xla.hardware import find_hardware
from pgle.xla.targets import load_target

OnRow = Callable[[Row, int, int], None]
"""Called with each row, how many are there, and how many there will be."""


@dataclass(frozen=True)
class ScaleRequest:
    """What is asked."""

    words: tuple[str, ...]  # the command, with placeholders
    devices: tuple[int, ...]  # sizes
    out: Path  # folder for all rows
    vary: Mapping[str, Sequence[str]] = field(default_factory=dict)
    target: str = "h100"
    per_host: int | None = None  # GPUs that share NVLink; None: as the target usually has
    network_gb_s: float | None = None  # per GPU and direction; None: as the target usually has, which is said
    profile: Path | None = None
    flags: tuple[str, ...] = ()
    choose: str | None = None
    quiet_s: float = 20.0
    executor: str = PROCESSES
    cached: bool = True


@dataclass(frozen=True)
class Scaling:
    """What was found."""

    request: ScaleRequest
    rows: tuple[Row, ...]  # in the order of the request
    answer: Answer
    per_host: int
    network_gb_s: float


def scale(request: ScaleRequest, on_row: OnRow = lambda row, done, total: None) -> Scaling:
    """Make all rows and judge them.

    Raises:
        UserError: the command, a size or a placeholder is bad.
    """
    hardware = find_hardware(
        load_target(request.target), devices_per_host=request.per_host, network_gb_s=request.network_gb_s
    )
    check_names(request.words, request.vary)
    check_program(request.words)
    check_compiler(request.words, by_name=True)
    wanted = trials(request.devices, hardware.devices_per_host, request.vary)
    rows = _rows(request, wanted, on_row)
    return Scaling(request, rows, answer(rows), hardware.devices_per_host, hardware.nic_gb_s)


def _rows(request: ScaleRequest, wanted: Sequence[Trial], on_row: OnRow) -> tuple[Row, ...]:
    """The rows, side by side, the largest first, since they take longest."""
    found: dict[Trial, Row] = {}
    with executor(request.executor, len(wanted)) as pool:
        ordered = sorted(wanted, key=lambda trial: -trial.devices)
        begun = {pool.submit(make_row, _request(request, trial)): trial for trial in ordered}
        for done in as_completed(begun):
            found[begun[done]] = done.result()
            on_row(done.result(), len(found), len(wanted))
    return tuple(found[trial] for trial in wanted)


def _request(request: ScaleRequest, trial: Trial) -> RowRequest:
    return RowRequest(
        trial=trial,
        words=request.words,
        is_program=True,
        target=request.target,
        folder=request.out.resolve() / "rows" / trial.name,
        profile=request.profile,
        network_gb_s=request.network_gb_s,
        flags=request.flags,
        choose=request.choose,
        quiet_s=request.quiet_s,
        cached=request.cached,
    )
