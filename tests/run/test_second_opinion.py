"""A program that compiles with one choice of kernels only is not compiled again as if that were a
second opinion.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pgle.costs.profile.value import Origin, Profile
from pgle.errors import UserError
from pgle.requests.predictions import Scale
from pgle.run import scale
from pgle.run.alternative_steps import StepMaker, Tried
from pgle.run.compiler.compile import CompileRequest
from pgle.run.compiler.session import Session
from pgle.run.second_compilation import control, fp8_choice_warning
from pgle.run.tune import Bench, Simulated
from pgle.scale.answer import ScaleRow
from pgle.schedule.control import hangs_on_choice
from pgle.tune.search import Trial

FLAG = "--xla_gpu_enable_triton_gemm=false"
ONLY = f"without a GPU the program compiles with {FLAG} only"
UNCHECKED = f"not checked by a second compilation: {ONLY}"
PREDICTED: Any = SimpleNamespace(
    program=SimpleNamespace(
        ops=[SimpleNamespace(kind="matmul", origin=Origin.ESTIMATED)]
    )
)


@dataclass
class OneSession(Session):
    """A session whose program has known detours, by whether `FLAG` is among the flags."""

    detours: dict[bool, tuple[str, ...]] = field(default_factory=dict)
    fails: str = ""  # XLA's error if `FLAG` is among the flags
    scheduled: list[str] = field(default_factory=list)

    def without_profile(self, name: str, flags: Any) -> Any:
        def result() -> Any:
            if self.fails and FLAG in flags:
                raise UserError(self.fails)
            return SimpleNamespace(detours=self.detours.get(FLAG in flags, ()))

        return SimpleNamespace(result=result)

    def schedule(self, name: str, flags: Any, profile: Path | None = None) -> Any:
        self.scheduled.append(name)
        dtypes = [SimpleNamespace(shape=SimpleNamespace(dtype="f8e4m3fn"))]
        return SimpleNamespace(scheduled=SimpleNamespace(walk=lambda: iter(dtypes)))


def session(fails: str = "", **detours: tuple[str, ...]) -> OneSession:
    """A session whose program has detours in the first or in the second compilation."""
    by_flag = {name == "second": flags for name, flags in detours.items()}
    base = CompileRequest(Path(), (), Path())
    made = OneSession(cast(Any, None), base, cast(Any, None))
    made.detours, made.fails = by_flag, fails
    return made


@pytest.mark.parametrize("needy", ["first", "second"])
def test_a_session_has_no_flags_for_a_second_opinion_that_would_be_the_first(
    needy: str,
) -> None:
    with pytest.raises(UserError, match=ONLY):
        session(**{needy: (FLAG,)}).with_other_kernels("again", ())


def test_other_detours_do_not_prevent_a_second_opinion() -> None:
    sorts = ("--xla_gpu_enable_cub_radix_sort=false",)
    found = session(first=sorts, second=sorts).with_other_kernels("again", ("--a=1",))
    assert found == ("--a=1", FLAG)


def test_a_second_compilation_that_fails_names_its_flag() -> None:
    with pytest.raises(UserError, match=f"does not compile with {FLAG}: broken"):
        session(fails="broken").with_other_kernels("again", ())


def test_rehearse_and_tune_without_a_gain_say_that_one_compilation_decides() -> None:
    only = session(first=(FLAG,))
    found = control(only, (), FLAG, lambda: pytest.fail("scheduled again"))
    assert (found.schedules, found.failure) == (None, UNCHECKED)


def test_advise_prices_a_step_once() -> None:
    only = session(first=(FLAG,))
    tried = Tried(cast(Any, None), PREDICTED, None)
    maker = StepMaker(*cast(Any, (None, None)), Path())
    found = maker._controlled(only, "now", (), tried)
    assert (found.control, found.failure, only.scheduled) == (None, UNCHECKED, [])


def test_tune_judges_a_setting_by_one_compilation() -> None:
    only = session(first=(FLAG,))
    worlds = {"profile": (100.0,) * 3, "setting": (90.0,) * 3}
    alone, tried = (
        Simulated(
            Trial({}, name, worlds_us=us), cast(Any, None), PREDICTED, Profile(())
        )
        for name, us in worlds.items()
    )
    bench: Any = SimpleNamespace(
        pgle=alone,
        session=only,
        options=lambda flags: (),
        folder_of=lambda flags: Path("trial"),
        schedule=lambda setting: pytest.fail("scheduled again"),
    )
    found = Bench.controlled(bench, tried)
    assert found is not None
    assert found.answer.share == pytest.approx(0.1)
    assert (found.other, found.failure) == (None, UNCHECKED)


def test_tune_does_not_look_for_fp8_products_again() -> None:
    only = session(first=(FLAG,))
    made = only.schedule("first", ())
    assert fp8_choice_warning(only, made) == ""
    assert only.scheduled == ["first"]


def test_scale_has_one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only = session(first=(FLAG,))
    asked: Any = SimpleNamespace(
        compilation=lambda: only.base, python="", hardware=None
    )
    row = ScaleRow(8)
    assert hangs_on_choice([PREDICTED])
    monkeypatch.setattr(scale, "session_with", lambda *_, **__: only)
    monkeypatch.setattr(scale, "_made", lambda *_: None)
    monkeypatch.setattr(scale, "_account", lambda *_: None)
    monkeypatch.setattr(scale, "_priced", lambda *_: (row, PREDICTED))
    monkeypatch.setattr(scale, "hardware_of", lambda _: None)
    request = Scale(("step.mlir",), cached=False, output=tmp_path)
    found, _ = scale._with_profile(request, row, asked, None)
    assert found.control is not None
    assert (found.control.row, found.control.failure) == (None, UNCHECKED)
    assert only.scheduled == ["baseline"]
