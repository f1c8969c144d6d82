"""Files are written whole or not at all, and refusals say where."""

import gzip
import lzma
import os
import random
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pgle import files
from pgle.errors import UserError
from pgle.files import (
    FREE_BYTES,
    as_path,
    check_absent,
    content_digest,
    open_bytes,
    read_bytes,
    sha256,
    write_files,
)
from pgle.xla.hlo.dumps import read_modules


def test_nothing_is_written_where_one_of_the_files_is_a_directory(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match="b: is a directory"):
        write_files({tmp_path / "a": "1", tmp_path / "b": "2"}, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_full_disk_leaves_no_folders(tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(
        UserError,
        match=r"a/x: cannot be written \(No space left on device\); free some space",
    ):
        write_files({tmp_path / "a/x": "1", tmp_path / "a/b/c/y": "2"})
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file: is a file, not a directory"):
        check_absent(tmp_path / "file" / "deep" / "x.pbtxt", force=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="no permission"):
        check_absent(tmp_path / "x.pbtxt", force=False)


def test_an_error_while_writing_names_the_file_and_not_the_temporary_one(
    tmp_path, monkeypatch
):
    path = tmp_path / "x"
    monkeypatch.setattr(
        Path,
        "replace",
        lambda self, target: (_ for _ in ()).throw(OSError(5, "I/O error", str(self))),
    )
    with pytest.raises(UserError, match=r"/x: cannot be written \(I/O error\)"):
        write_files({path: "1"}, force=True)
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
    done = subprocess.run(
        [sys.executable, "-c", asked, path], capture_output=True, text=True, check=False
    )
    assert done.stdout == "b'abc'\n"


def test_a_file_of_several_pieces_is_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("pgle.files._PIECE_BYTES", 2)
    path = tmp_path / "x"
    path.write_bytes(b"abcde")
    assert read_bytes(path, max_bytes=5) == b"abcde"
    with pytest.raises(UserError, match="larger than 4 bytes"):
        read_bytes(path, max_bytes=4)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("pgle.files._Bounded.readinto", lambda *_: pytest.fail("read"))
    path = tmp_path / "sparse.xplane.pb"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="larger than 8,589,934,592 bytes"):
        read_bytes(path)


def archive(path, content: bytes, repeated: int):
    with (
        lzma.open(path, "wb", preset=0)
        if path.suffix == ".xz"
        else gzip.open(path, "wb", 1) as file
    ):
        for _ in range(repeated):
            file.write(content)
    return path


@pytest.mark.parametrize("name", ["module.hlo.pb.xz", "steps.jsonl.gz"])
def test_an_archive_made_to_fill_the_memory_is_refused_early(tmp_path, name):
    bomb = archive(tmp_path / name, bytes(1 << 20), 128)
    with (
        open_bytes(bomb) as file,
        pytest.raises(
            UserError, match="times larger; if you trust it, unpack it first"
        ),
    ):
        for _ in range(128):
            file.read(1 << 20)
    with open_bytes(bomb) as file:
        assert file.read(4) == bytes(4)


@pytest.mark.parametrize("name", ["module.hlo.pb.xz", "steps.jsonl.gz"])
def test_an_archive_of_ordinary_text_is_read_whole_however_large(tmp_path, name):
    lines = b"".join(
        b'{"step": %d, "step_time_s": 0.2}\n' % number for number in range(40_000)
    )
    assert (
        len(read_bytes(archive(tmp_path / name, lines, 40)))
        == 40 * len(lines)
        > FREE_BYTES
    )


def test_a_cut_archive_is_named_damaged(tmp_path):
    whole = archive(tmp_path / "x.gz", b"abc" * 1000, 1)
    whole.write_bytes(whole.read_bytes()[:-10])
    with pytest.raises(UserError, match="damaged archive"):
        read_bytes(whole)


def test_pipes_devices_and_sockets_are_refused_without_being_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    for path, kind in (
        (tmp_path / "pipe", "pipe"),
        (tmp_path / "socket", "socket"),
        (Path("/dev/zero"), "device"),
    ):
        with pytest.raises(UserError, match=f"is a {kind}, a file is needed"):
            read_bytes(path)
    listener.close()


def test_a_pipe_is_read_only_if_a_shell_has_opened_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="is a pipe, a file is needed"):
        files.check_file(tmp_path / "pipe", pipe=True)
    reading, writing = os.pipe()
    files.check_file(Path(f"/dev/fd/{reading}"), pipe=True)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"\x1b[32mstep 1\x1b[0m\r\n" * 100, True),
        (b"\x00step 1: 0.2 s\n" * 100, True),
        ("étape 1, Schritt 2, 步骤 3\n".encode() * 100, True),
        ("étape 1\n".encode("latin-1") * 100, True),
        ("步骤 1\n".encode("gb18030") * 100, True),
        (random.Random(0).randbytes(4096), False),
        (bytes(100), False),
    ],
    ids=["colours", "few zeros", "utf-8", "latin-1", "gb18030", "random", "zeros"],
)
def test_text_is_known_by_its_few_control_characters(
    head: bytes, expected: bool
) -> None:
    assert files.is_text(head) is expected


def test_of_processes_that_write_one_file_exactly_one_succeeds(tmp_path):
    path = tmp_path / "x"
    writers = []
    for number in range(8):
        if (child := os.fork()) == 0:
            try:
                write_files({path: str(number), tmp_path / "y": str(number)})
                os._exit(0)
            except UserError as error:
                os._exit(1 if "already exists" in str(error) else 2)
        writers.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in writers]
    assert sorted(codes) == [0, *[1] * 7]
    assert path.read_text() == (tmp_path / "y").read_text() == str(codes.index(0))
    assert sorted(item.name for item in tmp_path.iterdir()) == ["x", "y"]


def test_a_file_that_comes_between_the_look_and_the_writing_stays(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("pgle.files.check_absent", lambda *_, **__: None)
    (tmp_path / "b").write_text("theirs")
    with pytest.raises(UserError, match="b: already exists"):
        write_files({tmp_path / "a": "1", tmp_path / "b": "1"})
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("b", "theirs")
    ]


def test_without_hard_links_a_file_that_comes_between_stays_too(tmp_path, monkeypatch):
    monkeypatch.setattr("pgle.files.check_absent", lambda *_, **__: None)
    monkeypatch.setattr(
        Path,
        "hardlink_to",
        lambda *_: (_ for _ in ()).throw(PermissionError(1, "not here")),
    )
    write_files({tmp_path / "a": "1"})
    with pytest.raises(UserError, match="a: already exists"):
        write_files({tmp_path / "a": "2"})
    assert (tmp_path / "a").read_text() == "1"


def test_a_link_to_nothing_is_refused_and_a_link_to_a_file_stays_a_link(tmp_path):
    nothing, link = tmp_path / "nothing", tmp_path / "link"
    nothing.symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match="is a link to nothing"):
        write_files({nothing: "1"}, force=True)
    (tmp_path / "target").write_text("old")
    link.symlink_to("target")
    write_files({link: "new"}, force=True)
    assert link.is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_force_does_not_overwrite_an_input_or_a_device(tmp_path):
    (tmp_path / "in.pb").write_text("input")
    (tmp_path / "alias.pb").hardlink_to(tmp_path / "in.pb")
    with pytest.raises(UserError, match="is an input too"):
        write_files(
            {tmp_path / "alias.pb": "1"}, force=True, inputs=[tmp_path / "in.pb"]
        )
    with pytest.raises(UserError, match="is a device"):
        write_files({Path("/dev/null"): "1"}, force=True)


def test_a_large_file_of_zeros_is_refused_by_its_head(tmp_path):
    path = tmp_path / "step.xplane.pb"
    path.touch()
    os.truncate(path, 6 << 30)  # sparse; read whole it is killed for its memory
    with pytest.raises(UserError, match=r"step\.xplane\.pb: begins with zeros"):
        read_bytes(path)


def test_a_limit_on_the_size_of_files_is_told_from_a_full_disk(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))
    try:
        with pytest.raises(
            UserError,
            match=r"cannot be written \(File too large\); raise the limit .* ulimit -f",
        ):
            write_files({tmp_path / "a": "123456789"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not any(tmp_path.iterdir())


def test_a_pipe_that_comes_in_place_of_a_file_is_not_waited_for(tmp_path, monkeypatch):
    path = tmp_path / "x"
    os.mkfifo(path)
    monkeypatch.setattr(
        files, "check_file", lambda *_, **__: None
    )  # it was a file a moment ago
    assert read_bytes(path) == b""


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")]
)
def test_what_is_no_file_of_ours_is_not_read(tmp_path, make):
    make(tmp_path / "x")
    assert files.read_kept(tmp_path / "x") is None


def test_a_digest_is_of_a_file_and_of_no_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"abc")
    assert content_digest(tmp_path / "pipe") == ("", 0)
    assert content_digest(tmp_path / "file") == (sha256(b"abc"), 3)


def test_a_folder_that_nobody_may_list_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def iterdir(folder: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", iterdir)
    with pytest.raises(UserError, match=r"cannot be read \(Permission denied\)"):
        read_modules(tmp_path)
