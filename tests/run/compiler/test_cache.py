"""Kept compilations: found by content, bounded in size, and none where they are damaged."""

from __future__ import annotations

import os
import random
import sys
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pgle.errors import UserError
from pgle.run.compiler.cache import Cache, Compiled, key_of
from pgle.run.compiler.compile import Compiler, CompileRequest
from pgle.run.compiler.worker import LOG
from pgle.xla.protos import hlo_pb2

NAMES = {"@FOLDER@": "/here"}
ANSWER = Compiled("jit_f", 4, 2.5, "0.10.2")


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / "xla.log").write_text("dumped to /here")
    (folder / "m.hlo.pb").write_bytes(b"/here \x00\xff")
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 1 << 20)


def test_what_is_kept_comes_back_with_other_paths_in_its_texts(
    cache: Cache, dumps: Path, tmp_path: Path
) -> None:
    cache.store("k", dumps, NAMES, ANSWER)
    there = tmp_path / "there"
    there.mkdir()
    assert cache.load("k", there, {"@FOLDER@": "/there"}) == ANSWER
    assert (there / "xla.log").read_text() == "dumped to /there"
    assert (there / "m.hlo.pb").read_bytes() == b"/here \x00\xff"


def test_nothing_is_there_at_first(cache: Cache, dumps: Path) -> None:
    assert cache.load("k", dumps, NAMES) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:80] + b"xx" + data[82:],
        lambda data: zlib.compress(
            zlib.decompress(data).replace(b"xla.log", b"../logs")
        ),
        lambda data: zlib.compress(
            zlib.decompress(data).replace(b"xla.log", b"xla.lo\x80")
        ),
    ],
)
def test_a_damaged_file_counts_as_none(
    cache: Cache, dumps: Path, tmp_path: Path, damage
) -> None:
    cache.store("k", dumps, NAMES, ANSWER)
    (path,) = cache.folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    there = tmp_path / "there"
    there.mkdir()
    assert cache.load("k", there, NAMES) is None
    assert not any(there.iterdir())


def test_the_least_recently_used_go_first(
    cache: Cache, dumps: Path, tmp_path: Path
) -> None:
    for age, key in enumerate("abc"):
        cache.store(key, dumps, NAMES, ANSWER)
        os.utime(cache.folder / key, (age, age))
    cache.load("a", dumps, NAMES)
    size = (cache.folder / "a").stat().st_size
    Cache(cache.folder, 2 * size).store("d", dumps, NAMES, ANSWER)
    assert sorted(path.name for path in cache.folder.iterdir()) == ["a", "d"]


def test_what_is_kept_stays_below_the_users_bound_and_the_newest_stays(
    dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGLE_CACHE_MIB", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    cache, draw = Cache.of_user(), random.Random(0)
    for number in range(6):
        (dumps / MODULE).write_bytes(
            draw.randbytes(300_000)
        )  # which nothing compresses
        cache.store(f"k{number}", dumps, NAMES, ANSWER)
        kept = {path.name: path.stat().st_size for path in cache.folder.iterdir()}
        assert sum(kept.values()) <= 1 << 20
        assert f"k{number}" in kept
    assert len(kept) == 3
    (dumps / MODULE).write_bytes(draw.randbytes(2 << 20))  # more than the bound
    cache.store("large", dumps, NAMES, ANSWER)
    assert {path.name for path in cache.folder.iterdir()} == set(kept)


def test_a_limit_of_nothing_keeps_nothing(dumps: Path, tmp_path: Path) -> None:
    Cache(tmp_path / "cache", 0).store("k", dumps, NAMES, ANSWER)
    assert not (tmp_path / "cache").exists()
    assert Cache(tmp_path / "cache", 0).trusted(sys.executable, "nvidia") is None


def test_the_limit_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGLE_CACHE_MIB", "2G")
    with pytest.raises(
        UserError,
        match=r"PGLE_CACHE_MIB=2G: is not a number of mebibytes; 0 keeps nothing",
    ):
        Cache.of_user()


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "m.mlir"
    path.write_text("module @m {}")
    return path


def test_the_key_is_of_the_content(module: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "other.mlir"
    elsewhere.write_text("module @m {}")
    one, two = (
        key_of(sys.executable, path, ("--xla_x=1",), None, {})
        for path in (module, elsewhere)
    )
    assert one == two
    elsewhere.write_text("module @n {}")
    assert key_of(sys.executable, elsewhere, ("--xla_x=1",), None, {}) != one


def test_files_that_flags_name_count_with_their_content(
    module: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table.pbtxt"
    keys = set()
    for text in ("a", "b"):
        table.write_text(text)
        keys.add(key_of(sys.executable, module, (f"--xla_table={table}",), None, {}))
        keys.add(key_of(sys.executable, module, (), table, {}))
    assert len(keys) == 4


def test_a_value_that_no_path_can_be_is_a_value(module: Path) -> None:
    assert key_of(sys.executable, module, (f"--xla_passes={'x,' * 3000}",), None, {})


MODULE = "module_0001.jit_f.sm_9.0a_gpu_after_optimizations.hlo.pb"


def scheduled() -> bytes:
    """A module of one parameter, with its schedule, as XLA dumps it."""
    dump = hlo_pb2.HloProto()
    dump.hlo_module.name = "jit_f"
    dump.hlo_module.entry_computation_id = 1
    entry = dump.hlo_module.computations.add(name="main", id=1, root_id=1)
    entry.instructions.add(name="p", opcode="parameter", id=1).shape.element_type = 11
    dump.hlo_module.schedule.sequences[1].instruction_ids.append(1)
    return dump.SerializeToString()


def replaced(**fields: object) -> dict[str, Any]:
    """What the compiler's process says, with other values."""
    return {**msgspec.to_builtins(ANSWER), **fields}


class Pretended(Compiler):
    """Answers as the compiler's process does; `edit` is what the user does meanwhile."""

    edit = ""

    def _ask(
        self, request: CompileRequest, folder: Path, unscheduled: object
    ) -> dict[str, Any]:
        (folder / MODULE).write_bytes(scheduled())
        (folder / LOG).write_text("log of XLA")
        if self.edit:
            request.module.write_text(self.edit)
        return msgspec.to_builtins(ANSWER)


def is_kept(compiler: Compiler, module: Path, folder: Path) -> bool:
    folder.mkdir()
    return compiler.compile(CompileRequest(module, ("target",), folder)).is_cached


def test_what_was_compiled_while_the_module_was_edited_is_not_kept(
    cache: Cache, tmp_path: Path
) -> None:
    module = tmp_path / "m.mlir"
    module.write_text("one")
    compiler = Pretended(cache=cache)
    compiler.edit = "two"
    is_kept(compiler, module, tmp_path / "a")
    module.write_text("one")
    assert not is_kept(compiler, module, tmp_path / "b")
    compiler.edit = ""
    is_kept(compiler, module, tmp_path / "c")
    assert is_kept(compiler, module, tmp_path / "d")


@pytest.mark.parametrize(
    "entry",
    [
        [],
        {},
        {"answer": {"module_name": 1}, "files": {}},
        {"answer": [], "files": {}},
        {"answer": ANSWER, "files": {MODULE: scheduled()}},  # and no log of XLA
        {"answer": replaced(jaxlib="x"), "files": {MODULE: scheduled(), LOG: b""}},
        {"answer": replaced(num_devices=-1), "files": {MODULE: scheduled(), LOG: b""}},
        {"answer": replaced(compile_s=1e308), "files": {MODULE: scheduled(), LOG: b""}},
    ],
)
def test_an_entry_that_does_not_say_all_is_compiled_again(
    cache: Cache, tmp_path: Path, entry: object
) -> None:
    module = tmp_path / "m.mlir"
    module.write_text("one")
    compiler = Pretended(cache=cache)
    is_kept(compiler, module, tmp_path / "a")
    (path,) = cache.folder.iterdir()
    path.write_bytes(zlib.compress(msgspec.msgpack.encode(entry)))
    assert not is_kept(compiler, module, tmp_path / "b")
    left = sorted(item.name for item in (tmp_path / "b").iterdir())
    assert left == sorted([MODULE, LOG])


def test_an_entry_without_its_module_is_compiled_again(
    cache: Cache, tmp_path: Path
) -> None:
    module = tmp_path / "m.mlir"
    module.write_text("one")
    compiler = Pretended(cache=cache)
    is_kept(compiler, module, tmp_path / "a")
    (path,) = cache.folder.iterdir()
    path.write_bytes(
        zlib.compress(
            msgspec.msgpack.encode({"answer": ANSWER, "files": {"other.txt": b"x"}})
        )
    )
    assert not is_kept(compiler, module, tmp_path / "b")
    left = sorted(item.name for item in (tmp_path / "b").iterdir())
    assert left == sorted([MODULE, LOG])


def test_a_flag_without_a_value_reads_no_folder(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ("--xla_disable_hlo_passes=", f"--xla_dump_to={tmp_path}")
    before = key_of(sys.executable, module, flags, None, {})
    (tmp_path / "checkpoint").write_text("weights")
    assert key_of(sys.executable, module, flags, None, {}) == before


def test_a_folder_of_profiles_counts_with_the_profiles_in_it(
    module: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir()
    keys = set()
    for cost in (1, 2):
        (folder / "a.pbtxt").write_text(f'costs {{ name: "x" cost_us: {cost} }}')
        (folder / "notes.txt").write_text(str(cost))
        keys.add(key_of(sys.executable, module, (), folder, {}))
    assert len(keys) == 2


def test_an_entry_whose_module_nobody_can_read_is_compiled_again_and_replaced(
    cache: Cache, tmp_path: Path
) -> None:
    module = tmp_path / "m.mlir"
    module.write_text("one")
    compiler = Pretended(cache=cache)
    is_kept(compiler, module, tmp_path / "a")
    (path,) = cache.folder.iterdir()
    entry = {"answer": ANSWER, "files": {MODULE: b"\xff" * 99}}
    path.write_bytes(zlib.compress(msgspec.msgpack.encode(entry)))
    assert not is_kept(compiler, module, tmp_path / "b")
    assert is_kept(compiler, module, tmp_path / "c")


@pytest.mark.parametrize(
    "kind", ["pipe", "folder", "link to a device", "link to itself"]
)
def test_what_is_no_file_in_place_of_an_entry_counts_as_none(
    cache: Cache, tmp_path: Path, kind: str
) -> None:
    module = tmp_path / "m.mlir"
    module.write_text("one")
    compiler = Pretended(cache=cache)
    is_kept(compiler, module, tmp_path / "a")
    (path,) = cache.folder.iterdir()
    path.unlink()
    make = {
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "link to a device": lambda: path.symlink_to("/dev/zero"),
        "link to itself": lambda: path.symlink_to(path),
    }
    make[kind]()
    assert not is_kept(compiler, module, tmp_path / "b")


def test_an_entry_larger_than_the_bound_is_not_read(
    cache: Cache, dumps: Path, tmp_path: Path
) -> None:
    path = cache.folder / "key"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.write(b"x")
        file.truncate(1 << 40)
    assert cache.load("key", tmp_path, {}) is None


def test_dumps_that_somebody_removes_while_xla_compiles_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = msgspec.structs.asdict(ANSWER)
    monkeypatch.setattr(Compiler, "_ask", lambda *_: answered)
    module = tmp_path / "m.mlir"
    module.write_text("module @m {}")
    request = CompileRequest(module, (), tmp_path / "out")
    with pytest.raises(UserError, match="compiled module of jit_f has been removed"):
        Compiler().compile(request)
