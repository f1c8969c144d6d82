"""Stand-ins for ROCm's libraries: only absent ones, and only where the plugin itself is loaded."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from pgle.run.ask import stand_ins
from pgle.run.ask.elf import Needs
from pgle.run.ask.stand_ins import load_with_stand_ins
from pgle.xla.vendors import AMD, NVIDIA

NEEDS = Needs(
    ("libamdhip64.so.7", "libc.so.6"),
    {
        "libamdhip64.so.7": {"hipMalloc": "hip_4.2", "__hipRegister": "hip_4.2"},
        "": {"rccl": ""},
    },
)


class Loader:
    """A loader that finds some libraries, and takes what it is given by path."""

    def __init__(self, absent: set[str]) -> None:
        self.absent = absent
        self.loaded: list[str] = []

    def __call__(self, path: str) -> object:
        name = Path(path).name
        missing = sorted(self.absent - {Path(item).name for item in self.loaded})
        if name == "plugin.so" and missing:
            raise OSError(f"{missing[0]}: cannot open shared object file")
        self.loaded.append(path)
        return object()


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Loader:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(stand_ins, "read_needs", lambda path: NEEDS)
    made = Loader({"libamdhip64.so.7"})
    monkeypatch.setattr(ctypes, "CDLL", made)
    return made


def test_an_absent_library_gets_a_stand_in_from_the_cache(
    loader: Loader, tmp_path: Path
) -> None:
    _, absent = load_with_stand_ins(Path("/env/plugin.so"), AMD.plugin, "ROCm")
    assert absent == ("libamdhip64.so.7",)
    made, plugin = loader.loaded
    assert Path(made).is_relative_to(tmp_path) and plugin == "/env/plugin.so"
    readme = tmp_path / "pgle/stand-ins-rocm/README.txt"
    assert "made by pgle" in readme.read_text()


def test_where_rocm_is_installed_nothing_is_made(
    loader: Loader, tmp_path: Path
) -> None:
    loader.absent = set()
    _, absent = load_with_stand_ins(Path("/env/plugin.so"), AMD.plugin, "ROCm")
    assert not absent
    assert not list(tmp_path.rglob("*.so*"))


def test_no_search_path_leads_to_stand_ins(loader: Loader, tmp_path: Path) -> None:
    before = dict(os.environ)
    load_with_stand_ins(Path("/env/plugin.so"), AMD.plugin, "ROCm")
    assert dict(os.environ) == before


def test_a_plugin_that_needs_no_toolkit_gets_none(loader: Loader) -> None:
    with pytest.raises(OSError, match="libamdhip64"):
        load_with_stand_ins(Path("/env/plugin.so"), NVIDIA.plugin, "CUDA")


def test_what_registers_code_succeeds_and_all_else_finds_no_device() -> None:
    assert stand_ins._returned("__hipRegister", AMD.plugin) == 0
    assert stand_ins._returned("hipMalloc", AMD.plugin) == 100
