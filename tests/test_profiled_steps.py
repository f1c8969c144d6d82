"""A training loop that no command watches traces its own steps."""

import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import pgle


@jax.jit
def train_step(w: jax.Array, x: jax.Array) -> jax.Array:
    return w - 1e-3 * jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) @ w.T - x) ** 2))(w)


def loop(steps: int, fails_at: int | None = None) -> None:
    w, x = jnp.ones((256, 512)), jnp.ones((64, 256))
    for number in range(steps):
        with pgle.step(number):
            w = train_step(w, x)
            if number == fails_at:
                raise ZeroDivisionError


@pytest.mark.skipif(
    jax.__version_info__ < (0, 7), reason="traces of CPUs by jax 0.6.2 hold no kernels"
)
@pytest.mark.filterwarnings("error")
def test_trace_costs_and_hlo_lie_together(tmp_path: Path) -> None:
    with pgle.profiled_steps(tmp_path / "run", first=2, count=5) as found:
        loop(9)
    assert found.answer is not None
    window = found.answer.result.measured.costs[0].window
    assert window.seen == 5
    (hlo,) = (tmp_path / "run" / "hlo").iterdir()
    assert "jit_train_step" in hlo.name
    checked = pgle.verify(tmp_path / "run" / "profile.pbtxt", tmp_path / "run" / "hlo")
    assert checked.ok
    assert checked["modules"][0]["coverage"]["count"] == 1.0
    assert (
        pgle.analyze(tmp_path / "run" / "trace")["steps"]
        == found.answer["modules"][0]["executions_used"]
    )


def test_too_few_steps_are_a_warning(tmp_path: Path) -> None:
    few = pytest.warns(
        UserWarning, match="the window opens after 5 steps, and pgle.step marked 3"
    )
    with few, pgle.profiled_steps(tmp_path / "run") as found:
        loop(3)
    assert found.answer is None


def test_an_exception_of_the_program_closes_the_window(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        pgle.profiled_steps(tmp_path / "run", first=1) as found,
    ):
        loop(9, fails_at=3)
    assert found.answer is None
    assert not (tmp_path / "run" / "profile.pbtxt").exists()
    jax.profiler.start_trace(str(tmp_path / "other"))  # no session is left open
    jax.profiler.stop_trace()


def test_a_session_of_the_programs_own_is_left_alone(tmp_path: Path) -> None:
    jax.profiler.start_trace(str(tmp_path / "own"))
    with (
        pytest.warns(UserWarning, match="JAX's profiler did not start"),
        pgle.profiled_steps(tmp_path / "run", first=1),
    ):
        loop(4)
    jax.profiler.stop_trace()


def test_under_a_command_it_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    hook = SimpleNamespace(
        begin_step=lambda number, source: seen.append(number), leave_step=lambda: None
    )
    monkeypatch.setitem(sys.modules, "pgle_hook", SimpleNamespace(active=lambda: hook))  # type: ignore[arg-type]
    with warnings.catch_warnings(), pgle.profiled_steps(tmp_path / "run") as found:
        warnings.simplefilter("error")
        loop(8)
    assert seen == list(range(8))
    assert found.answer is None
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("first", "count"), [(-1, 5), (5, 0)])
def test_a_window_has_steps(first: int, count: int, tmp_path: Path) -> None:
    window = pgle.profiled_steps(tmp_path / "run", first=first, count=count)
    with pytest.raises(pgle.UserError, match="out of range"), window:
        pass


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with (
        pytest.raises(pgle.UserError, match="is not an empty folder"),
        pgle.profiled_steps(tmp_path),
    ):
        pass
