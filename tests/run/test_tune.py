"""The proof of a setting, on compilations that are made up: which of them its figures are of."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import recorded

from pgle.cli.main import run
from pgle.costs.profile.value import Profile
from pgle.errors import UserError
from pgle.report.text import Line
from pgle.report.tune import announced
from pgle.run import tune
from pgle.run.compiler.compile import Compiler, CompileRequest
from pgle.run.tune import Bench as RealBench
from pgle.run.tune import Simulated, check
from pgle.tune.search import Trial
from pgle.xla.log.verdict import ProfileUse

FLAGS = {"a": "on"}


def scheduled(step_us: float, temp_bytes: int) -> Any:
    trial = Trial(FLAGS, "a", step_us, worlds_us=(step_us,) * 10, temp_bytes=temp_bytes)
    return Simulated(trial, None, None, Profile(()))  # type: ignore[arg-type]


class Bench:
    """The profile alone takes 100 µs by the scheduling passes, and 98 by all passes."""

    in_less_memory = RealBench.in_less_memory

    def controlled(self, found: object) -> None:
        """Every product has a measured cost."""

    def __init__(
        self, alone: tuple[float, int], by_all: tuple[float, int], out: Path = Path()
    ) -> None:
        self.alone, self.by_all = alone, by_all
        self.request = SimpleNamespace(out=out)
        self.session = self
        self.base = CompileRequest(Path(), (), Path())
        self.baseline = self.pgle = scheduled(100.0, 1000)
        self.done: list[str] = []
        self._is_whole = False

    compile_whole: Any = RealBench.compile_whole

    def distrust(self) -> None:
        self.done.append("distrust")

    def schedule(self, *_: Any) -> Any:
        return scheduled(*self.alone)

    def whole(self, tried: Any, _: Path, *, profile: bool = True) -> tuple[Any, Any]:
        is_side = tried in (self.baseline, self.pgle)
        self.done += ["whole"] * is_side
        made = scheduled(98.0, 1000) if is_side else scheduled(*self.by_all)
        return made, SimpleNamespace(
            scheduled=SimpleNamespace(name="m"), lhs=None, log=Path()
        )

    def options(self, _: Any) -> tuple[str, ...]:
        return ()


def test_what_a_search_wrote_is_written_anew_when_it_is_gone_on_with(
    tmp_path: Path,
) -> None:
    search = tune._Search(Bench((95.0, 1), (95.0, 1), tmp_path), lambda *_: None)  # type: ignore[arg-type]
    proof: Any = SimpleNamespace(scheduled=scheduled(95.0, 1))
    assert search.write(proof) == search.write(proof)
    assert (tmp_path / "flags.txt").exists()


@pytest.mark.parametrize("name", ["flags.txt", "profile.pbtxt.json", "timeline.html"])
def test_what_cannot_be_written_is_said_before_the_search(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(
        UserError, match=f"{name}: is a directory, a file is to be written"
    ):
        tune.tune(SimpleNamespace(out=tmp_path))  # type: ignore[arg-type]


@pytest.mark.parametrize("free", [0, 1 << 30])
def test_a_full_device_ends_the_search_and_is_no_fault_of_a_setting(
    free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_profile(*_: Any) -> None:
        raise UserError("empty file")

    monkeypatch.setattr(
        "pgle.run.tune.shutil.disk_usage", lambda _: SimpleNamespace(free=free)
    )
    bench: Any = RealBench.__new__(RealBench)
    bench.session = SimpleNamespace(
        base=SimpleNamespace(flags=(), dump_dir=tmp_path),
        without_profile=without_profile,
    )
    with nullcontext() if free else pytest.raises(UserError, match="empty file"):
        assert bench.trial((FLAGS, "a")).trial.failure == "empty file"


def prove(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    used = SimpleNamespace(verdict=ProfileUse.USED, why="")
    monkeypatch.setattr(tune, "confirm_compiled", lambda *_: used)
    monkeypatch.setattr(tune, "cover", lambda *_: SimpleNamespace(main=[]))
    bench.request.out = tmp_path
    search = tune._Search(bench, lambda *_: None)  # type: ignore[arg-type]
    return search.prove(scheduled(*bench.alone).trial)


@pytest.mark.parametrize(
    ("alone", "whole"), [((90.0, 1000), (95.0, 1000)), ((95.0, 1000), (95.0, 1100))]
)
def test_where_a_whole_compilation_differs_the_proof_is_of_whole_compilations(
    alone: tuple[float, int],
    whole: tuple[float, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(alone, whole)
    proof = prove(bench, tmp_path, monkeypatch)
    assert [side.trial.step_us for side in (bench.baseline, bench.pgle)] == [98.0, 98.0]
    assert not proof.agrees
    assert proof.scheduled.trial.step_us == 95.0
    assert proof.judged.mean == pytest.approx(95 / 98 - 1)
    prove(bench, tmp_path, monkeypatch)
    assert bench.done == [
        "distrust",
        "whole",
        "whole",
    ]  # once, however many settings differ


def test_where_both_agree_the_sides_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench((95.0, 1000), (95.0, 1000))
    proof = prove(bench, tmp_path, monkeypatch)
    assert bench.pgle.trial.step_us == 100.0
    assert proof.agrees
    assert proof.judged.mean == pytest.approx(95 / 100 - 1)


def test_the_line_counts_trials_and_names_the_best_and_what_the_rest_takes() -> None:
    line = Line("compiling", since=0.0)
    pgle = scheduled(100.0, 1).trial
    better, worse = (
        replace(scheduled(95.0, 1).trial, label="b"),
        scheduled(105.0, 1).trial,
    )
    with announced(line, 20) as announce:
        for done in (
            pgle,
            worse,
            replace(better, same_as="a"),
            better,
            replace(worse, label="without b"),
        ):
            announce(done, pgle)
    assert (
        line.text(30.0)
        == "trial 2 of 20 · best −5.0 % (b) · compiling · 30 s, about 270 s left"
    )


@pytest.mark.parametrize(
    ("needs", "less_us", "accepted"),
    [(80, None, True), (95, 104.0, False), (95, 94.0, True)],
)
def test_near_the_memory_limit_a_setting_must_gain_with_less_memory_too(
    needs: int,
    less_us: float | None,
    accepted: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 100 bytes, with 5 % less, where the profile alone takes 102 µs."""

    class Near(Bench):
        def __init__(self) -> None:
            super().__init__((90.0, 1000), (90.0, 1000))
            self.base = replace(self.base, allocator_bytes=100)

        def schedule(self, setting: Any = None, *_: Any) -> Any:
            if self.base.allocator_bytes == 100:
                return scheduled(90.0, 1000)
            limits.append(self.base.allocator_bytes)
            return scheduled((less_us or 0.0) if len(limits) == 1 else 102.0, 1000)

        def whole(self, *given: Any, **how: Any) -> tuple[Any, Any]:
            found, result = super().whole(*given, **how)
            return replace(
                found, trial=replace(found.trial, memory_bytes=needs)
            ), result

    limits: list[int] = []
    bench = Near()
    assert prove(bench, tmp_path, monkeypatch).accepted is accepted
    assert limits == ([] if less_us is None else [95, 95])
    assert bench.base.allocator_bytes == 100


@pytest.mark.parametrize("name", ["trials", "proof"])
def test_a_link_in_the_folder_is_not_followed(tmp_path: Path, name: str) -> None:
    precious, out = tmp_path / "precious", tmp_path / "out"
    precious.mkdir()
    out.mkdir()
    (out / name).symlink_to(precious)
    with pytest.raises(
        UserError,
        match=f"{name}: was not made by pgle, which would replace it; move it away",
    ):
        check(SimpleNamespace(out=out))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [SystemExit(143), KeyboardInterrupt()],
    ids=lambda error: type(error).__name__,
)
def test_a_search_that_a_signal_ends_says_what_is_best_so_far(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    pgle, trial = (
        scheduled(100.0, 1).trial,
        replace(scheduled(90.0, 1).trial, flags={"xla_f": "7"}),
    )
    with pytest.raises(type(error)), announced(Line("compiling"), 20) as announce:
        for done in (pgle, replace(trial, worlds_us=pgle.worlds_us), trial):
            announce(done, pgle)
        raise error
    best, how = capsys.readouterr().err.splitlines()
    assert "best so far: --xla_f=7, −10.0 %" in best
    assert "run the same command again to continue" in how


def answers_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run([*words, recorded.PROGRAM, "--no-cache", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_after_a_search_in_vain_a_profile_pays_as_the_rehearsal_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def compiled(compiler: Any, request: Any, folder: Path, other: object) -> Any:
        if folder.name == "profile":  # as its schedule is in a rehearsal
            request = replace(request, flags=(*request.flags, "combine"))
        return recorded.answer(compiler, request, folder, other)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Compiler, "_ask", compiled)
    monkeypatch.setattr(tune._Search, "run", lambda *_: None)
    target = ("--target", "a100")
    rehearsed = answers_of(capsys, "rehearse", *target)
    tuned = answers_of(capsys, "tune", *target)
    profiles = [
        [
            item
            for item in found["account"]["opportunities"]
            if item["kind"] == "profile"
        ]
        for found in (rehearsed, tuned)
    ]
    assert profiles[0]
    assert profiles[1] == profiles[0]
    assert tuned["account"]["step_us"] == rehearsed["account"]["step_us"]
    assert tuned["next"].split("\n")[-1].strip() == rehearsed["next"]
