"""Work on a real Dask cluster of two workers: the same results, and one line if it cannot be."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from on_workers import alone, dies, dies_once, refuses, square, surroundings
from present import needs

import pgle
from pgle.api.profiles import convert
from pgle.errors import UserError
from pgle.requests.profiles import Convert
from pgle.run.process import dask_workers
from pgle.run.process.on_worker import Seen
from pgle.run.process.workers import workers

pytestmark = needs("distributed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster of two workers, each with two threads. A worker that was killed
    comes back, however long that takes: Dask gives it up after 15 s.
    """
    import dask
    import distributed

    settings = {
        "distributed.scheduler.allowed-failures": 1,
        "distributed.deploy.lost-worker-timeout": "1 hour",
        "temporary-directory": str(tmp_path_factory.mktemp("dask")),
    }
    with (
        dask.config.set(settings),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=2,
            dashboard_address=":0",
            silence_logs="CRITICAL",
        ) as made,
    ):
        yield made.scheduler_address


@pytest.fixture
def where(cluster: str) -> str:
    """That cluster as pgle names it, with both workers: an earlier test may have killed them."""
    import distributed

    with distributed.Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(2)
    return cluster.replace("tcp://", "dask://")


def test_results_have_the_places_of_their_values(where: str) -> None:
    with workers(where, 9) as found:
        results = dict(found.results(square, range(9)))
    assert results == {number: number * number for number in range(9)}


def test_a_worker_has_one_task_at_a_time(where: str) -> None:
    with workers(where, 8) as found:
        assert all(result for _, result in found.results(alone, range(8)))


def test_the_task_of_a_lost_worker_runs_again(where: str, tmp_path: Path) -> None:
    markers = [tmp_path / name for name in ("one", "two")]
    markers[0].touch()
    with workers(where, 2) as found:
        results = dict(found.results(dies_once, markers))
    assert results == {0: "one", 1: "two"}


def test_a_task_that_kills_workers_is_one_line(where: str) -> None:
    line = r"^--executor dask://\S+: workers were killed by one task, the last \S+, most likely"
    with pytest.raises(UserError, match=line), workers(where, 1) as found:
        list(found.results(dies, [1]))


def test_what_a_task_refuses_is_said_here(where: str) -> None:
    with (
        pytest.raises(UserError, match=r"^7: is not even; take another$"),
        workers(where, 1) as found,
    ):
        list(found.results(refuses, [7]))


def test_tasks_have_our_folder_and_flags_but_no_other_variable(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_latency_hiding_scheduler=true")
    monkeypatch.setenv("MY_TOKEN", "secret")
    with workers(where, 1) as found:
        ((_, (folder, variables)),) = found.results(
            surroundings, [("XLA_FLAGS", "MY_TOKEN")]
        )
    assert folder == str(tmp_path)
    assert variables == [os.environ["XLA_FLAGS"], None]


def test_another_version_is_refused_before_any_work(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {**dask_workers.versions(), "jaxlib": "0.4.38"}
    monkeypatch.setattr(dask_workers, "versions", lambda: ours)
    line = r"^--executor dask://\S+: worker \S+ has jaxlib \S+, this machine 0.4.38; install the"
    with pytest.raises(UserError, match=line), workers(where, 1):
        pass


def test_a_path_that_workers_do_not_see_is_refused(where: str, tmp_path: Path) -> None:
    lost = tmp_path / "rank0.sqlite"
    line = rf"worker \S+ does not see {lost}; put it on a file system that all machines share"
    with pytest.raises(UserError, match=line), workers(where, 1, Seen((lost,))):
        pass


def test_a_folder_of_the_same_name_is_another_folder(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every machine has a /tmp; the file that tells that it is ours is not there."""
    monkeypatch.setattr(dask_workers.Path, "exists", lambda path: True)
    line = rf"does not see the folder {tmp_path}; choose one that all machines share: -o DIR"
    monkeypatch.setattr(dask_workers, "_token", lambda folder: _gone(folder))
    with (
        pytest.raises(UserError, match=line),
        workers(where, 1, Seen(written=tmp_path)),
    ):
        pass


class _gone:  # noqa: N801 - stands in for a function
    def __init__(self, folder: Path | None) -> None:
        self.name = f"{folder}/.pgle-seen-gone"

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        pass


def test_no_scheduler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_workers, "CONNECT_S", 0.2)
    line = r"^--executor dask://127.0.0.1:9: no Dask scheduler answers; start it \(dask scheduler\)"
    with pytest.raises(UserError, match=line), workers("dask://127.0.0.1:9", 1):
        pass


def test_a_command_asks_for_the_scheduler_before_it_runs_the_program(
    tmp_path: Path,
) -> None:
    program = [sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'w')"]
    for answer in (pgle.advise, pgle.tune):
        with pytest.raises(UserError, match="no Dask scheduler answers"):
            answer(program, executor="dask://127.0.0.1:9", output=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_that_must_encrypt_without_certificates_is_one_line() -> None:
    import dask

    line = r"^--executor dask://127.0.0.1:9: Dask's configuration allows no connection \(TLS"
    settings = {"distributed.comm.require-encryption": True}
    with (
        dask.config.set(settings),
        pytest.raises(UserError, match=line),
        workers("dask://127.0.0.1:9", 1),
    ):
        pass


def test_a_place_that_is_none_is_refused() -> None:
    line = r"^executor: 'ray://head' is not a place for work; give processes, or dask://HOST:PORT"
    with pytest.raises(UserError, match=line):
        Convert((Path("a.sqlite"),), executor="ray://head")


def test_a_converted_profile_is_the_same_to_the_byte(
    where: str, testdata: Path, tmp_path: Path
) -> None:
    ranks = [testdata / "pax_fsdp4" / f"proc{number}.sqlite" for number in (0, 3)]
    made = []
    for executor in ("processes", where):
        out = tmp_path / "profile.pbtxt"
        convert(ranks, out, executor=executor, force=True)
        made.append([path.read_bytes() for path in sorted(tmp_path.iterdir())])
    assert made[0] == made[1]
