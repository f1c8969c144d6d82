"""Work in other processes and on a Dask cluster: the same results, and one line where something fails."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pgle.costs.profile.merge import MergeOptions
from pgle.errors import UserError
from pgle.run import convert
from pgle.run.convert import merge_files
from pgle.run.inputs import traces
from pgle.run.inputs.traces import read_traces
from pgle.run.process.process import PROCESSES, executor
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
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)


def test_processes_read_what_this_one_reads(ranks: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    here = read_traces(ranks)
    monkeypatch.setattr(traces, "PARALLEL_BYTES", 0)
    told: list[tuple[int, int]] = []
    assert same(read_traces(ranks, progress=lambda done, of: told.append((done, of))), here)
    assert told == [(1, 2), (2, 2)]


def test_processes_have_the_environment_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server starts once, and keeps the environment that it had then."""
    for value in ("first", "second"):
        monkeypatch.setenv("PGLE_TEST_VALUE", value)
        with executor(PROCESSES, 1) as pool:
            assert pool.submit(os.getenv, "PGLE_TEST_VALUE").result() == value


def test_processes_merge_what_this_one_merges(testdata: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = (testdata / "maxtext_pgle/llama2_70b_bf16_pgle_16vm.pbtxt").read_bytes()
    monkeypatch.chdir(tmp_path)
    names = [Path(f"rank{number}.pbtxt") for number in range(3)]
    for name in names:
        name.write_bytes(profile)
    merge_files(names, Path("here.pbtxt"), MergeOptions())
    monkeypatch.setattr(convert, "MANY", 2)
    monkeypatch.setattr(convert, "AT_A_TIME", 2)
    merge_files(names, Path("there.pbtxt"), MergeOptions())
    assert Path("there.pbtxt.json").read_bytes() == Path("here.pbtxt.json").read_bytes()
    names[1].write_text("costs")
    with pytest.raises(UserError, match=r"^rank1\.pbtxt: 1:"):
        merge_files(names, Path("bad.pbtxt"), MergeOptions())


def test_a_process_that_is_killed() -> None:
    killed = pytest.raises(UserError, match=r"processes was killed, most likely for memory; give fewer")
    with killed, executor(PROCESSES, 2) as pool:
        list(pool.map(die, [1, 2]))


def test_what_is_wrong_in_a_process_is_said_here() -> None:
    with pytest.raises(UserError, match=r"^7: is not even; take another$"), executor(PROCESSES, 1) as pool:
        list(pool.map(refuse, [7]))


def long_work(begun: Path, done: Path) -> None:
    begun.touch()
    time.sleep(20)
    done.touch()


def test_an_interrupt_ends_the_work_that_was_begun(tmp_path: Path) -> None:
    begun, done = tmp_path / "begun", tmp_path / "done"
    with pytest.raises(KeyboardInterrupt), executor(PROCESSES, 1) as pool:
        pool.submit(long_work, begun, done)
        while not begun.exists():
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert not done.exists()


@pytest.mark.parametrize("where", ["threads", "dask://", "head:8786"])
def test_a_word_that_is_no_executor(where: str) -> None:
    with pytest.raises(UserError, match=f"{where}: is neither 'processes' nor dask://HOST:PORT"), executor(where, 1):
        pass


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two workers of 600 MB each."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit="600MB", dashboard_address=None, host="127.0.0.1"
    ) as local:
        yield local.scheduler_address.replace("tcp://", "dask://")


def test_a_cluster_reads_what_this_process_reads(ranks: list[Path], cluster: str) -> None:
    assert same(read_traces(ranks, where=cluster), read_traces(ranks))


def test_what_is_wrong_on_a_cluster_is_said_here(tmp_path: Path, ranks: list[Path], cluster: str) -> None:
    bad = tmp_path / "rank1.sqlite"
    bad.write_bytes(b"SQLite format 3\0" + bytes(200))
    with pytest.raises(UserError, match=r"rank1.sqlite: "):
        read_traces([ranks[0], bad], where=cluster)


def test_a_cluster_works_in_the_folder_of_this_process(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with executor(cluster, 1) as pool:
        assert pool.submit(os.getcwd).result() == str(tmp_path)


def test_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("pgle.run.process.process.CONNECT_S", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        where = f"dask://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UserError, match=f"{where}: no Dask scheduler answers; is the"), executor(where, 1):
            pass
