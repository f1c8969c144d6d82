"""A program that waits at its step makes what runs of its own make, and is started once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from pgle.run.capture.capture import Devices, capture_modules
from pgle.run.capture.captured import choose_module, modules_in
from pgle.run.capture.waiting import Switches, WaitingProgram
from pgle.xla.targets import load_target

PROGRAM = """
import jax, jax.numpy as jnp
with open("started", "a") as file:
    file.write("x")
@jax.checkpoint
def layer(x, w):
    return jnp.sin(x @ w)
def attend(q):
    scores = jnp.einsum("bqnh,bknh->bnqk", q, q).astype(jnp.float32)
    return jnp.einsum("bnqk,bknh->bqnh", jax.nn.softmax(scores).astype(q.dtype), q)
def loss(ws, x):
    x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, ws)
    return (attend(x.reshape(1, 16, 1, 16)) ** 2).astype(jnp.float32).mean()
@jax.jit
def train_step(ws, x):
    return ws - jax.grad(loss)(ws, x)
ws = jnp.ones((4, 16, 16), jnp.bfloat16)
for _ in range(3):
    ws = train_step(ws, jnp.ones((16, 16), jnp.bfloat16))
"""
BY_HAND = {"kind": "attention", "where": "by hand", "value": "cudnn"}
CHECKPOINT = {"kind": "remat", "where": "train.py:5", "value": "everything_saveable"}
UNROLL = {"kind": "unroll", "where": "train.py:12", "value": "2"}
HOW: dict[str, Any] = {
    "target": load_target("a100"),
    "devices": Devices(1),
    "quiet_s": 20,
}


WORDS = [sys.executable, "train.py"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working directory of the program."""
    here = tmp_path_factory.mktemp("waiting")
    (here / "train.py").write_text(PROGRAM)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(here)
        yield here


def captured(folder: Path, switches: Switches = ()) -> Path:
    """The step's module, by a run of its own."""
    found = capture_modules(
        WORDS, folder, until_step=True, output=DEVNULL, alternatives=switches, **HOW
    )
    return choose_module(found, "jit_train_step")


@pytest.fixture(scope="module")
def waiting(folder: Path) -> Iterator[WaitingProgram]:
    module = captured(folder / "now")
    program = WaitingProgram(WORDS, module=module, folder=folder / "waiting", **HOW)
    with closing(program):
        yield program


def test_a_program_is_run_once_and_makes_the_modules_of_runs_of_their_own(
    waiting: WaitingProgram, folder: Path
) -> None:
    switches = ([CHECKPOINT, UNROLL], [BY_HAND], [])
    made = []
    for number, chosen in enumerate(switches):
        waiting.begin(chosen, folder / f"made{number}")
    for number, chosen in enumerate(switches):
        place = folder / f"made{number}"
        assert waiting.make(chosen, place)
        made += [path for path in modules_in(place) if "train_step" in path.name]
    assert Path("started").read_text() == "xx"
    assert "cudnn" in made[1].read_text()
    own = captured(folder / "own", switches[0])
    texts = [path.read_text() for path in (made[0], own, made[2], waiting.module)]
    assert texts[0] == texts[1] != texts[2] == texts[3]


def test_values_are_compared_where_the_program_waits(
    waiting: WaitingProgram, folder: Path
) -> None:
    found = waiting.compare([BY_HAND], folder / "values")
    assert found is not None
    assert (found.why, found.seen, found.results) == ("", 1, 1)
    assert not found.differs
    assert waiting.make([UNROLL], folder / "later")


def test_a_program_that_makes_another_step_is_not_used(
    waiting: WaitingProgram, folder: Path
) -> None:
    other = folder / "other" / waiting.module.name
    other.parent.mkdir()
    other.write_text(waiting.module.read_text().replace("sine", "cosine"))
    program = WaitingProgram(WORDS, module=other, folder=folder / "again", **HOW)
    with closing(program):
        assert not program.make([UNROLL], folder / "never")
    assert not (folder / "never").exists()


def test_a_program_that_has_ended_is_started_again_for_what_is_asked_next(
    waiting: WaitingProgram, folder: Path
) -> None:
    assert waiting._child is not None
    waiting._child.kill()
    waiting._child.wait()
    assert waiting.make([UNROLL], folder / "renewed")


TWICE = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType
with open("started", "a") as file:
    file.write("x")
mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
x = jax.device_put(jnp.ones((2, 8)), jax.NamedSharding(mesh, jax.P("x")))
@jax.jit
def train_step(w, x):
    loss = lambda w: jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, w)[0].sum()
    return w - jax.grad(loss)(w)
w = jnp.ones((4, 8, 8))
for _ in range(3):
    w = train_step(w, x)
"""


def test_a_step_that_is_compiled_again_for_its_own_results_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TWICE)
    how = {**HOW, "devices": Devices(2)}
    found = capture_modules(
        WORDS, tmp_path / "now", until_step=True, output=DEVNULL, **how
    )
    names = [path for path in found if "train_step" in path.name]
    assert len(names) == 2
    assert choose_module(found, "jit_train_step") == names[1]
    folder = tmp_path / "waiting"
    with closing(WaitingProgram(WORDS, names[1], folder, **how)) as program:
        unroll = {"kind": "unroll", "where": "train.py:10", "value": "2"}
        assert program.make([unroll], tmp_path / "made")
    assert Path("started").read_text() == "xx"
