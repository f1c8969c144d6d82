"""Work in other processes: the same results, and one line where something fails."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from pgle.errors import UserError
from pgle.run.inputs import traces
from pgle.run.inputs.traces import read_traces
from pgle.run.process.process import executor
from pgle.trace.table import Trace


def die(_: int) -> None:
    os._exit(9)


def refuse(number: int) -> None:
    raise UserError("is not even", where=str(number), remedy="take another")


@pytest.fixture
def ranks(testdata: Path) -> list[Path]:
    return [testdata / "pax_fsdp4" / f"proc{number}.sqlite" for number in (0, 3)]


def same(one: Trace, other: Trace) -> bool:
    columns = ("start_ns", "duration_ns", "instruction", "device")
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in columns
    )


def test_processes_read_what_this_one_reads(
    ranks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = read_traces(ranks)
    monkeypatch.setattr(traces, "PARALLEL_BYTES", 0)
    told: list[tuple[int, int]] = []
    assert same(
        read_traces(ranks, progress=lambda done, of: told.append((done, of))), here
    )
    assert told == [(1, 2), (2, 2)]


def test_processes_have_the_environment_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server starts once, and keeps the environment that it had then."""
    for value in ("first", "second"):
        monkeypatch.setenv("PGLE_TEST_VALUE", value)
        with executor(1) as pool:
            assert pool.submit(os.getenv, "PGLE_TEST_VALUE").result() == value


def test_a_process_that_is_killed() -> None:
    killed = pytest.raises(
        UserError, match=r"processes was killed, most likely for memory; give fewer"
    )
    with killed, executor(2) as pool:
        list(pool.map(die, [1, 2]))


def test_what_is_wrong_in_a_process_is_said_here() -> None:
    with (
        pytest.raises(UserError, match=r"^7: is not even; take another$"),
        executor(1) as pool,
    ):
        list(pool.map(refuse, [7]))


def long_work(begun: Path, done: Path) -> None:
    begun.touch()
    time.sleep(20)
    done.touch()


def test_an_interrupt_ends_the_work_that_was_begun(tmp_path: Path) -> None:
    begun, done = tmp_path / "begun", tmp_path / "done"
    with pytest.raises(KeyboardInterrupt), executor(1) as pool:
        pool.submit(long_work, begun, done)
        while not begun.exists():
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert not done.exists()
