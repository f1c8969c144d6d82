"""A search and a table of sizes on a real Dask cluster are those of one machine, to the byte."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import advised_program
import pytest
from present import needs

import pgle
from pgle.api.answer import Answer

pytestmark = [needs("distributed"), pytest.mark.rehearse, pytest.mark.minutes]

PROGRAM = [
    sys.executable,
    "-m",
    "pgle.workloads",
    "fsdp",
    "--layers",
    "2",
    "--compile-only",
]


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster of two workers."""
    import dask
    import distributed

    place = str(tmp_path_factory.mktemp("dask"))
    with (
        dask.config.set({"temporary-directory": place}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
    ):
        yield cluster.scheduler_address.replace("tcp://", "dask://")


def without_seconds(document: Any) -> str:
    """A document as text, without what a clock says."""
    if isinstance(document, dict):
        document = {
            name: without_seconds(value)
            for name, value in document.items()
            if name != "wall_s"
        }
    if isinstance(document, list):
        document = [without_seconds(value) for value in document]
    return json.dumps(document)


Ask = Callable[[str], Answer[Any]]
"""From an executor to an answer, in the folder of the process."""


def both(ask: Ask, where: str, tmp_path: Path, patch: pytest.MonkeyPatch) -> list[str]:
    """The documents of an answer by processes of this machine and by a cluster."""
    documents = []
    for number, executor in enumerate(("processes", where)):
        folder = tmp_path / str(number)
        folder.mkdir()
        patch.chdir(folder)
        documents.append(without_seconds(json.loads(ask(executor).to_json())))
    return [
        text.replace(str(tmp_path / "1"), str(tmp_path / "0")) for text in documents
    ]


def test_a_search_is_the_same(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(executor: str) -> Answer[Any]:
        return pgle.tune(
            [*PROGRAM, "--devices", "8"],
            target="h100",
            devices=8,
            budget=3,
            cached=False,
            executor=executor,
            output="tuned",
        )

    here, there = both(ask, where, tmp_path, monkeypatch)
    assert here == there


def test_sizes_are_the_same(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(executor: str) -> Answer[Any]:
        return pgle.scale(
            [*PROGRAM, "--devices", "{devices}", "--batch", "{8*devices}"],
            (8, 16),
            cached=False,
            executor=executor,
            output="scaled",
        )

    here, there = both(ask, where, tmp_path, monkeypatch)
    assert here == there


def test_alternatives_are_the_same(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(executor: str) -> Answer[Any]:
        return pgle.advise(
            [sys.executable, advised_program.__file__],
            target="a100",
            devices=1,
            budget=2,
            cached=False,
            executor=executor,
            output="advised",
        )

    here, there = both(ask, where, tmp_path, monkeypatch)
    assert here == there
