"""Shared libraries made without a compiler: the loader takes them, and what they need is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.run.ask.elf import Function, made_library, read_needs

FUNCTIONS = (
    Function("plain", returns=100),
    Function("versioned", returns=7, version="v_2.0"),
    Function("older", returns=0, version="v_1.0"),
)


@pytest.mark.parametrize(("name", "value"), [("plain", 100), ("versioned", 7)])
def test_a_made_library_is_loaded_and_its_functions_return_their_numbers(
    tmp_path: Path, name: str, value: int
) -> None:
    path = tmp_path / "libmade.so.1"
    path.write_bytes(made_library("libmade.so.1", FUNCTIONS, "a label"))
    code = f"import ctypes\nprint(getattr(ctypes.CDLL({str(path)!r}), {name!r})())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == value


def test_a_made_library_is_labelled() -> None:
    assert b"a label\0" in made_library("libmade.so.1", FUNCTIONS, "a label")


def test_what_a_library_of_this_machine_needs() -> None:
    import _ctypes

    needs = read_needs(Path(_ctypes.__file__))
    assert any(name.startswith("libc.so") for name in needs.libraries)
    libc = next(names for name, names in needs.symbols.items() if "libc.so" in name)
    assert all(version.startswith("GLIBC_") for version in libc.values())


@pytest.mark.parametrize(
    "data", [b"", b"no library", b"\x7fELF\x02\x01\x01" + bytes(80)]
)
def test_another_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "libother.so"
    path.write_bytes(data)
    with pytest.raises(UserError, match="not a shared library for Linux on x86-64"):
        read_needs(path)
