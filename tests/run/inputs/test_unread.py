"""Files that pgle does not read: each error says what the file is and what to give."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from pgle.cli.main import run

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:5e29\nsize 7186\n"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("show", "p.pbtxt"),
        ("analyze", "h.xplane.pb"),
        ("analyze", "r.sqlite"),
        ("analyze", "r.nsys-rep"),
        ("confirm", "run.log"),
        ("predict", "m.hlo"),
    ],
)
def test_a_git_lfs_pointer_is_named(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(POINTER)
    assert run([command, str(tmp_path / name)]) == 2
    assert (
        "a Git LFS pointer, not the file itself; run: git lfs pull"
        in capsys.readouterr().err
    )


def test_the_viewer_file_names_the_xplane_next_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "h.trace.json.gz").write_bytes(gzip.compress(b"{}"))
    (tmp_path / "h.xplane.pb").write_bytes(b"")
    assert run(["analyze", str(tmp_path / "h.trace.json.gz")]) == 2
    assert f"give {tmp_path / 'h.xplane.pb'}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["r.parquet", "r.arrow", "r.h5"])
def test_other_tables_of_nsys_have_a_remedy(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert run(["analyze", str(tmp_path / name)]) == 2
    assert "nsys export --type sqlite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "name", "what"),
    [
        ("show", "h.trace.json.gz", "the profiler's file for viewers, not the trace"),
        ("compare", "h.trace.json", "the profiler's file for viewers, not the trace"),
        ("show", "r.parquet", "a table of nsys as parquet"),
        ("compare", "r.h5", "a table of nsys as h5"),
        ("diff", "r.arrow", "a table of nsys as arrow"),
    ],
)
def test_commands_of_other_inputs_name_the_same_causes(
    command: str,
    name: str,
    what: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"{}") if name.endswith(".gz") else b"x")
    inputs = [str(path)] if command == "show" else [str(path), str(path)]
    assert run([command, *inputs]) == 2
    assert what in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("show", "p.pbtxt"),
        ("analyze", "t.zip"),
        ("analyze", "logs.tar.gz"),
        ("confirm", "run.log"),
        ("predict", "m.hlo"),
        ("compare", "a.csv"),
    ],
)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_is_named(
    kind: str,
    command: str,
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "x.sqlite").write_bytes(b"SQLite format 3\0")
    made = Path(shutil.make_archive(str(tmp_path / "made"), kind, tmp_path, "x.sqlite"))
    data = made.read_bytes()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    words = [command, str(path), *([str(path)] if command == "compare" else [])]
    assert run(words) == 2
    assert "an archive of files" in capsys.readouterr().err
