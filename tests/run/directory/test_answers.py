"""Folders of answers that nobody gave a place: a bounded number stays, in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgle.run.directory.directory import KEPT_ANSWERS, answers_place, forget, opened


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_of_the_folders_that_nobody_named_the_newest_stay():
    made = []
    for number in range(KEPT_ANSWERS + 3):
        with opened(None) as out:
            (out / "page.html").write_text("page")
        os.utime(out, (number, number))
        made.append(out)
    assert {path for path in made if path.exists()} == set(made[3:])
    assert set(answers_place().iterdir()) == set(made[3:])


def test_a_folder_in_which_a_process_works_stays():
    with opened(None) as working:
        os.utime(working, (0, 0))
        for _ in range(KEPT_ANSWERS + 1):
            with opened(None) as out:
                (out / "page.html").write_text("page")
        assert working.exists()


def test_a_folder_that_nobody_named_can_be_forgotten_and_one_that_was_named_stays(
    tmp_path: Path,
):
    with opened(None) as out:
        (out / "rehearsal").mkdir()
    forget(out / "rehearsal")
    assert not out.exists()
    with opened(str(tmp_path / "named")) as named:
        pass
    forget(named)
    assert named.exists()
