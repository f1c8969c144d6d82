"""The states of a program, and what a session asks the compiler for in each, without XLA."""

from __future__ import annotations

import re
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pgle.errors import UserError
from pgle.run.compiler import trust
from pgle.run.compiler.compile import ONLY, CompileRequest, CompileResult
from pgle.run.compiler.session import Session, same_schedule
from pgle.run.compiler.trust import TRANSITIONS, Event, State, Trust
from pgle.run.compiler.worker import UNSCHEDULED
from pgle.xla.hlo.schedule_dump import Statistics
from pgle.xla.targets import TABLE

ALL, EARLY, LATE = "all", "before scheduling", "from scheduling on"
"""The passes that a request asks for."""


def paths(state: State) -> list[tuple[State, ...]]:
    """All ways from a state to an end."""
    following = [new for (old, _), new in TRANSITIONS.items() if old is state]
    ways = [(state, *way) for new in following for way in paths(new)]
    return ways or [(state,)]


def test_a_program_begins_trusted_or_compiling_and_ends_equal_or_whole() -> None:
    assert State.first(is_trusted=True, is_limited=False) is State.TRUSTED
    for is_trusted, is_limited in ((True, True), (False, True), (False, False)):
        first = State.first(is_trusted=is_trusted, is_limited=is_limited)
        assert first is State.COMPILING
    begun, checked = State.COMPILING, State.CHECKING
    ways = [
        (begun, checked, State.EQUAL),
        (begun, checked, State.WHOLE),
        (begun, State.WHOLE),
    ]
    assert paths(State.COMPILING) == ways
    assert paths(State.TRUSTED) == [(State.TRUSTED, *way) for way in ways]


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_an_event_that_cannot_happen_in_a_state_is_an_error(
    state: State, event: Event
) -> None:
    if (state, event) in TRANSITIONS:
        assert state.after(event) is not state
        return
    with pytest.raises(KeyError):
        state.after(event)


def test_the_table_of_the_docstring_lists_these_transitions() -> None:
    rows = [line.split("|")[1:5] for line in (trust.__doc__ or "").splitlines()]
    found, state = {}, ""
    for row in (row for row in rows if len(row) == 4):
        state = row[0].strip(" `") or state
        for event, following in re.findall(r"`(\w+)` → `(\w+)`", row[3]):
            found[State[state], Event[event]] = State[following]
    assert found == TRANSITIONS


def test_trust_is_for_later_sessions_and_can_be_lost(tmp_path: Path) -> None:
    path = tmp_path / "trusted"
    first = Trust(path)
    assert not first.holds
    first.gain()
    assert Trust(path).holds
    first.lose()
    assert first.holds
    assert not Trust(path).holds


@dataclass(frozen=True)
class Made(CompileResult):
    """A compilation with what LHS believed of it."""

    cycles: float = 100.0
    by_lhs: bool = True

    @property
    def believed(self) -> dict[str, Statistics]:
        return {"main": Statistics(self.cycles, 0.0)} if self.by_lhs else {}

    @property
    def scheduled(self) -> Any:
        """One order, whatever made it."""
        return SimpleNamespace(computations=())


@dataclass
class PretendedCompiler:
    """Notes which passes are asked for; makes a schedule as long as `cycles` says for them."""

    cycles: dict[str, float] = field(default_factory=dict)
    keeps: bool = True  # the program before scheduling
    by_lhs: bool = True
    failing: tuple[str, ...] = ()  # passes that fail
    asked: list[str] = field(default_factory=list)

    def compile(
        self, request: CompileRequest, unscheduled: Future[int] | None = None
    ) -> Made:
        self.asked.append(request.passes)
        if request.passes in self.failing:
            raise UserError(f"no {request.passes}")
        request.dump_dir.mkdir(parents=True, exist_ok=True)
        after = request.dump_dir / UNSCHEDULED
        if self.keeps and request.passes != LATE:
            after.write_text("module")
        return Made(
            module_name="jit_f",
            num_devices=4,
            after_optimizations=after,
            schedule=None,
            log=request.dump_dir / "log",
            fingerprint=request.passes,
            compile_s=0.0,
            memory={},
            jaxlib="1",
            cycles=self.cycles.get(request.passes, 100.0),
            by_lhs=self.by_lhs,
        )


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step as long as the scheduler believes."""
    monkeypatch.setattr(
        Session, "predicted", lambda _, made: SimpleNamespace(step_us=made.cycles)
    )


def session_of(
    compiler: PretendedCompiler, folder: Path, *, trusted: bool = False
) -> Session:
    if trusted:
        (folder / "trusted").touch()
    base = CompileRequest(Path("m.mlir"), (), folder)
    hardware = TABLE["h100-sxm"]
    asked: Any = compiler
    return Session(asked, base, hardware, folder / "trusted")


def test_checked_passes_make_all_later_schedules(tmp_path: Path) -> None:
    compiler = PretendedCompiler()
    session = session_of(compiler, tmp_path)
    first = session.schedule("first", ["--a"])
    assert first.after_optimizations.parent.name == "first"
    assert session.schedule("again", ["--a"]) is first
    session.schedule("profiled", ["--a"], Path("profile"))
    assert compiler.asked == [ALL, LATE, LATE]
    session.schedule("other", ["--b"])  # another program; nothing is checked again
    assert compiler.asked[3:] == [EARLY, LATE]
    assert (tmp_path / "trusted").exists()


def test_a_program_without_lhs_says_nothing_of_others(tmp_path: Path) -> None:
    compiler = PretendedCompiler(by_lhs=False)
    session = session_of(compiler, tmp_path)
    session.schedule("first", ["--a"])
    session.schedule("again", ["--a"], Path("profile"))
    session.schedule("other", ["--b"])
    assert compiler.asked == [ALL, LATE, LATE, ALL, LATE]
    assert not (tmp_path / "trusted").exists()


def test_passes_that_gave_another_schedule_are_not_asked_again(tmp_path: Path) -> None:
    compiler = PretendedCompiler({LATE: 101.0})
    session = session_of(compiler, tmp_path)
    first = session.schedule("first", ["--a"])
    assert first.after_optimizations.parent.name == "all-passes"
    session.schedule("profiled", ["--a"], Path("profile"))
    assert compiler.asked == [ALL, LATE, ALL]
    assert not (tmp_path / "trusted").exists()


def test_a_cache_that_cannot_be_written_changes_no_state(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    compiler: Any = PretendedCompiler()
    base = CompileRequest(Path("m.mlir"), (), tmp_path)
    unwritable = tmp_path / "file" / "trusted"
    session = Session(compiler, base, TABLE["h100-sxm"], unwritable)
    session.schedule("first", ["--a"])
    session.schedule("profiled", ["--a"], Path("profile"))
    assert compiler.asked == [ALL, LATE, LATE]
    session.distrust()


def test_a_trusted_program_is_compiled_up_to_scheduling(tmp_path: Path) -> None:
    compiler = PretendedCompiler()
    session = session_of(compiler, tmp_path, trusted=True)
    session.schedule("first", ["--a"])
    session.schedule("profiled", ["--a"], Path("profile"))
    assert compiler.asked == [EARLY, LATE, LATE]


def test_a_trusted_program_that_xla_refuses_to_stop_is_checked(tmp_path: Path) -> None:
    compiler = PretendedCompiler(failing=(EARLY,))
    session_of(compiler, tmp_path, trusted=True).schedule("first", ["--a"])
    assert compiler.asked == [EARLY, ALL, LATE]


@pytest.mark.parametrize(
    ("compiler", "flag"),
    [
        (PretendedCompiler(keeps=False), "--a"),
        (PretendedCompiler(), f"{ONLY}scheduled-gpu-module"),
    ],
)
def test_a_program_that_cannot_be_scheduled_alone_is_compiled_whole(
    compiler: PretendedCompiler, flag: str, tmp_path: Path
) -> None:
    session = session_of(compiler, tmp_path)
    session.schedule("first", [flag])
    session.schedule("profiled", [flag], Path("profile"))
    assert compiler.asked == [ALL, ALL]


def test_a_failed_check_is_the_schedule_of_all_passes(tmp_path: Path) -> None:
    compiler = PretendedCompiler(failing=(LATE,))
    first = session_of(compiler, tmp_path).schedule("first", ["--a"])
    assert first.fingerprint == ALL


def test_a_failed_compilation_is_the_error_of_every_schedule(tmp_path: Path) -> None:
    session = session_of(PretendedCompiler(failing=(ALL,)), tmp_path)
    for profile in (None, Path("profile")):
        with pytest.raises(UserError, match="no all"):
            session.schedule("first", ["--a"], profile)


STEP = """HloModule jit_f, is_scheduled=true

ENTRY %main (x: f32[8]) -> (f32[8], f32[8]) {
  %x = f32[8]{0} parameter(0)
  FIRST
  SECOND
  ROOT %out = (f32[8]{0}, f32[8]{0}) tuple(%sine, %cosine)
}
"""
SINE = "%sine = f32[8]{0} sine(%x)"
COSINE = "%cosine = f32[8]{0} cosine(%x)"


def without_lhs(path: Path, first: str, second: str) -> CompileResult:
    """A step that LHS did not schedule."""
    path.write_text(STEP.replace("FIRST", first).replace("SECOND", second))
    return CompileResult("jit_f", 1, path, None, path, "", 0.0, {"total": 64}, "1")


def test_without_lhs_schedules_are_the_same_if_their_order_is(tmp_path: Path) -> None:
    one = without_lhs(tmp_path / "one.hlo", SINE, COSINE)
    same = without_lhs(tmp_path / "same.hlo", SINE, COSINE)
    other = without_lhs(tmp_path / "other.hlo", COSINE, SINE)
    assert same_schedule(one, same)
    assert not same_schedule(one, other)
