"""A search and a table of sizes on a real Dask cluster are those of one machine, to the byte."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pgle

distributed = pytest.importorskip("distributed")
pytestmark = [pytest.mark.rehearse, pytest.mark.minutes]

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


def test_a_search_is_the_same(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = []
    for number, executor in enumerate(("processes", where)):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        found = pgle.tune(
            [*PROGRAM, "--devices", "8"],
            target="h100",
            devices=8,
            budget=3,
            cached=False,
            executor=executor,
            output="tuned",
        )
        documents.append(found.to_json())
    assert documents[0] == documents[1]


def test_sizes_are_the_same(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = []
    for number, executor in enumerate(("processes", where)):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        found = pgle.scale(
            [*PROGRAM, "--devices", "{devices}", "--batch", "{8*devices}"],
            (8, 16),
            cached=False,
            executor=executor,
            output="scaled",
        )
        documents.append(without_seconds(json.loads(found.to_json())))
    assert documents[0] == documents[1]
