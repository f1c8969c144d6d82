"""Files are written whole or not at all, and refusals say where."""

import gzip
import lzma
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.files import FREE_BYTES, as_path, check_absent, open_bytes, read_bytes, write_files


def test_nothing_is_written_where_one_of_the_files_is_a_directory(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match="b: is a directory"):
        write_files({tmp_path / "a": "1", tmp_path / "b": "2"}, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file: is a file, not a directory"):
        check_absent(tmp_path / "file" / "deep" / "x.pbtxt", force=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="no permission"):
        check_absent(tmp_path / "x.pbtxt", force=False)


def test_an_error_while_writing_names_the_file_and_not_the_temporary_one(tmp_path, monkeypatch):
    path = tmp_path / "x"
    monkeypatch.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError(5, "I/O error", str(self))))
    with pytest.raises(UserError, match=r"/x: cannot be written \(I/O error\)"):
        write_files({path: "1"})
    assert list(tmp_path.iterdir()) == []


def test_a_name_as_long_as_file_systems_allow_can_be_written(tmp_path):
    path = tmp_path / ("x" * 255)
    write_files({path: "1"})
    assert path.read_text() == "1"


@pytest.mark.parametrize("text", ["", "nosuch://host/file"])
def test_a_path_that_cannot_be_is_refused(text):
    with pytest.raises(UserError):
        as_path(text)


def test_reading_reserves_no_more_memory_than_the_file_needs(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    asked = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); "
    asked += "from pathlib import Path; from pgle.files import read_bytes; print(read_bytes(Path(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", asked, path], capture_output=True, text=True, check=False)
    assert done.stdout == "b'abc'\n"


def test_a_file_of_several_pieces_is_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("pgle.files._PIECE_BYTES", 2)
    path = tmp_path / "x"
    path.write_bytes(b"abcde")
    assert read_bytes(path, max_bytes=5) == b"abcde"
    with pytest.raises(UserError, match="larger than 4 bytes"):
        read_bytes(path, max_bytes=4)


def archive(path, content: bytes, repeated: int):
    opener = {".xz": lzma.open, ".gz": gzip.open}[path.suffix]
    with opener(path, "wb") as file:
        for _ in range(repeated):
            file.write(content)
    return path


@pytest.mark.parametrize("name", ["module.hlo.pb.xz", "steps.jsonl.gz"])
def test_an_archive_made_to_fill_the_memory_is_refused_early(tmp_path, name):
    bomb = archive(tmp_path / name, bytes(1 << 20), 128)
    with open_bytes(bomb) as file, pytest.raises(UserError, match="400 times larger; if you trust it, unpack it first"):
        for _ in range(128):
            file.read(1 << 20)
    with open_bytes(bomb) as file:
        assert file.read(4) == bytes(4)


@pytest.mark.parametrize("name", ["module.hlo.pb.xz", "steps.jsonl.gz"])
def test_an_archive_of_ordinary_text_is_read_whole_however_large(tmp_path, name):
    lines = b"".join(b'{"step": %d, "step_time_s": 0.2}\n' % number for number in range(40_000))
    assert len(read_bytes(archive(tmp_path / name, lines, 40))) == 40 * len(lines) > FREE_BYTES


def test_a_cut_archive_is_named_damaged(tmp_path):
    whole = archive(tmp_path / "x.gz", b"abc" * 1000, 1)
    whole.write_bytes(whole.read_bytes()[:-10])
    with pytest.raises(UserError, match="damaged archive"):
        read_bytes(whole)


def test_pipes_devices_and_sockets_are_refused_without_being_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    for path, kind in ((tmp_path / "pipe", "pipe"), (tmp_path / "socket", "socket"), (Path("/dev/zero"), "device")):
        with pytest.raises(UserError, match=f"is a {kind}, a file is needed"):
            read_bytes(path)
    listener.close()
