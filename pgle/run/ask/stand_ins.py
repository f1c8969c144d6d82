"""Stand-ins for libraries of a toolkit that is not installed, so that XLA's plugin can be loaded to
compile: a compilation up to the schedule does not call them.

They are made from the plugin's list of symbols and kept in the user's cache. Only the compiling
process loads them; no search path contains them. A library that the loader finds is never replaced.
Standard library only, since that process may be another Python than ours.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from pgle.errors import UserError
from pgle.files import sha256, write_files
from pgle.run.ask.elf import Function, Needs, made_library, read_needs
from pgle.run.directory.directory import cache_directory
from pgle.xla.vendors import JaxPlugin

LABEL = (
    "Stand-in made by pgle for {}, which is not installed here. XLA's compiler needs it "
    "to be loaded, not to work: each of its functions returns an error."
)
README = """\
Stand-ins for {toolkit} libraries, made by pgle
===============================================

They let XLA's compiler be loaded on a machine without {toolkit}. No program but pgle's compiler
uses them, and nothing runs on them: each function returns an error. Delete this folder at any time.
"""


def load_with_stand_ins(
    path: Path, plugin: JaxPlugin, toolkit: str
) -> tuple[ctypes.CDLL, tuple[str, ...]]:
    """Load a plugin's library. Return it, and the names of libraries that stand-ins replace.

    Raises:
        OSError: it cannot be loaded, although no library is absent.
        UserError: stand-ins cannot be made here.
    """
    absent: dict[str, ctypes.CDLL] = {}
    needs: Needs | None = None
    while True:
        try:
            return ctypes.CDLL(str(path)), tuple(absent)
        except OSError as error:
            if not plugin.is_linked:
                raise
            needs = needs or read_needs(path)
            said = str(error)
            missing = [name for name in needs.libraries if said.startswith(f"{name}:")]
            if not missing or missing[0] in absent:
                raise
            made = _stand_in(needs, missing[0], plugin, toolkit, first=not absent)
            absent[missing[0]] = ctypes.CDLL(str(made))


def _stand_in(
    needs: Needs, name: str, plugin: JaxPlugin, toolkit: str, *, first: bool
) -> Path:
    """Make the file of a library's stand-in. The first stand-in also has the symbols that name no
    library.
    """
    symbols = dict(needs.symbols.get(name, {}))
    if first:
        symbols |= needs.symbols.get("", {})
    functions = [
        Function(symbol, _returned(symbol, plugin), version)
        for symbol, version in sorted(symbols.items())
    ]
    data = made_library(name, functions, LABEL.format(name))
    digest = sha256(data)[:16]
    folder = cache_directory() / f"stand-ins-{plugin.stem}"
    file = folder / digest / name
    if not (file.is_file() and file.read_bytes() == data):
        try:
            readme = README.format(toolkit=toolkit)
            write_files({file: data, folder / "README.txt": readme}, force=True)
        except UserError as error:
            remedy = f"install {toolkit}, or set XDG_CACHE_HOME to a folder that can be written"
            raise UserError(
                f"no stand-in for {name} can be written ({error.what})",
                where=folder,
                remedy=remedy,
            ) from None
    return file


def _returned(symbol: str, plugin: JaxPlugin) -> int:
    """Choose a function's return value: success, if the library registers code while it is
    loaded.
    """
    return 0 if symbol.startswith(plugin.registering) else plugin.absent_code
