"""The file of a history under many writers."""

import multiprocessing
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from pgle.errors import UserError
from pgle.run.history import add_entry, read_history
from pgle.steps.estimate import Entry

WRITERS, EACH = 8, 12
ROOT = Path(__file__).parents[2]


def entry(commit: str) -> Entry:
    record = {
        "time": "2026-01-01T00:00:00",
        "name": "n",
        "hardware": "h",
        "commit": commit,
        "median_s": 0.2,
    }
    return msgspec.convert(
        {
            **record,
            "spread": 0.01,
            "runs": 1,
            "steps": 60,
            "note": "",
            "simulated": False,
        },
        Entry,
    )


def write(path: Path, writer: int) -> None:
    for number in range(EACH):
        add_entry(path, entry(f"{writer}.{number}"))


def test_a_name_that_is_no_text_is_kept(tmp_path: Path) -> None:
    add_entry(tmp_path / "h.jsonl", entry("\udcff"))
    assert [item.commit for item in read_history(tmp_path / "h.jsonl")[0]] == ["\udcff"]


@pytest.mark.parametrize(
    ("name", "count"),
    [("runs", 10**400), ("runs", -1), ("steps", -1), ("steps", 10**400)],
)
def test_an_impossible_count_is_no_entry(name: str, count: int) -> None:
    record = {
        "time": "2026-01-01T00:00:00",
        "name": "n",
        "hardware": "h",
        "median_s": 0.2,
    }
    with pytest.raises(ValueError, match=rf"at `\$\.{name}`"):
        msgspec.convert({**record, name: count}, Entry)


def test_nothing_of_eight_writers_is_lost_or_torn(tmp_path: Path) -> None:
    path = tmp_path / "perf" / "h.jsonl"
    forked = multiprocessing.get_context(
        "forkserver"
    )  # from a process without threads, which imports once for all
    forked.set_forkserver_preload([__name__, "numpy", "pgle.run.history"])
    writers = [
        forked.Process(target=write, args=(path, writer)) for writer in range(WRITERS)
    ]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    entries, warnings = read_history(path)
    assert warnings == []
    assert sorted(item.commit for item in entries) == sorted(
        f"{w}.{n}" for w in range(WRITERS) for n in range(EACH)
    )
    assert [file.name for file in path.parent.iterdir()] == ["h.jsonl"]


def test_a_last_line_without_an_end_is_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    add_entry(path, entry("a"))
    path.write_bytes(path.read_bytes().rstrip())
    add_entry(path, entry("b"))
    assert [item.commit for item in read_history(path)[0]] == ["a", "b"]


@pytest.mark.parametrize(
    "content",
    [b"\x7fELF\xff\x00 not ours\n", b'{"step": 1, "step_time_s": 0.2}\n', b"notes\n"],
)
def test_a_file_of_another_kind_is_left_as_it_is(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "tool"
    path.write_bytes(content)
    path.chmod(0o755)
    with pytest.raises(UserError, match=r"is not .*; choose another --file"):
        add_entry(path, entry("a"))
    assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o755


def test_a_history_in_sqlite_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE steps (time, name)")
    before = path.read_bytes()
    with pytest.raises(UserError, match="is not text"):
        add_entry(path, entry("a"))
    assert path.read_bytes() == before


def test_a_folder_is_no_history(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a file"):
        add_entry(tmp_path, entry("a"))


def test_the_mode_of_a_history_stays(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    add_entry(path, entry("a"))
    path.chmod(0o664)
    add_entry(path, entry("b"))
    assert path.stat().st_mode & 0o777 == 0o664


def test_a_full_disk_leaves_no_empty_file(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: the process may create the file, and
    not fill it.
    """
    script = (
        "import resource, signal, sys; from pathlib import Path; from pgle.errors import UserError; "
        "from pgle.run.history import add_entry; from tests_entry import entry; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "try: add_entry(Path(sys.argv[1]), entry)\n"
        "except UserError as error: print(error)"
    )
    record = {"time": "t", "name": "n", "hardware": "h", "median_s": 0.2}
    (tmp_path / "tests_entry.py").write_text(
        f"from pgle.steps.estimate import Entry; entry = Entry(**{record})"
    )
    path = tmp_path / "perf" / "h.jsonl"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cannot be written" in done.stdout
    assert list(path.parent.iterdir()) == []


def test_an_entry_nested_without_end_is_one_warning(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    add_entry(path, entry("a"))
    path.write_text(path.read_text() + "[" * 100_000 + "\n")
    entries, warnings = read_history(path)
    assert [item.commit for item in entries] == ["a"]
    assert warnings == [f"{path}: entry 2 could not be read (nested too deep)"]


def test_a_pipe_is_no_history(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "h.jsonl")
    for use in (read_history, lambda path: add_entry(path, entry("a"))):
        with pytest.raises(UserError, match="is not a file"):
            use(tmp_path / "h.jsonl")
