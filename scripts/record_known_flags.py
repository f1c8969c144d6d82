"""Write pgle/xla/data/flags_known.tsv: every flag that several jaxlib releases take, and the kind
of its value.

    for v in 0.9.2 0.10.2; do pip install --no-deps --target /tmp/jaxlib/$v jaxlib==$v; done
    python scripts/record_known_flags.py /tmp/jaxlib/* > pgle/xla/data/flags_known.tsv

Each argument is a folder that holds one jaxlib; numpy and ml_dtypes come from the Python that runs
this. Names are taken from the strings of the library and offered to the XLA inside it, so that the
answer is XLA's own. A release takes half a minute.
"""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from pgle.run.ask.jaxlib import installed, probe
from pgle.xla.flags.catalogue import release
from pgle.xla.flags.text import Flag

SMALLEST_LIBRARY = 1 << 20


def names_in(folder: Path) -> set[str]:
    """Everything in the shared libraries that could be the name of a flag."""
    names: set[str] = set()
    for library in (folder / "jaxlib").glob("*.so"):
        if library.stat().st_size >= SMALLEST_LIBRARY:
            with (
                library.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            ):
                names |= {
                    name.decode()
                    for name in re.findall(rb"xla_[a-z0-9_]{3,100}", content)
                }
    return names


def kinds(names: Iterable[str]) -> dict[str, str]:
    """The kind of value of each name that is a flag, told by which values XLA takes."""
    wanted = sorted(names)
    trials = {None: "bare", "pgle x": "text", "0.5": "real", "7": "seven", "2": "two"}
    said = probe([Flag(name, value) for name in wanted for value in trials]).verdicts
    found: dict[str, str] = {}
    for name in wanted:
        takes = {
            word: said[Flag(name, value).text].status for value, word in trials.items()
        }
        if takes["text"] == "unknown":
            continue
        known = {word for word, status in takes.items() if status == "known"}
        order = (("bare", "bool"), ("text", "string"), ("real", "float"))
        number = "int" if {"seven", "two"} <= known else "choice"
        found[name] = next((kind for word, kind in order if word in known), number)
    return found


def table(recorded: dict[str, dict[str, str]]) -> str:
    """The file: a line of releases, then a line for each flag with the spans of releases that know
    it.
    """
    releases = sorted(recorded, key=release)
    lines = [
        "# Every flag that jaxlib takes in XLA_FLAGS, found by offering it to the XLA inside each published wheel:",
        "# name, kind of value, releases that know it. Written by scripts/record_known_flags.py; do not edit.",
        "releases\t" + " ".join(releases),
    ]
    for name in sorted({name for flags in recorded.values() for name in flags}):
        spans: list[list[str]] = []
        for before, version in zip([None, *releases], releases, strict=False):
            if name not in recorded[version]:
                continue
            if spans and spans[-1][-1] == before:
                spans[-1].append(version)
            else:
                spans.append([version])
        kind = next(
            recorded[version][name]
            for version in reversed(releases)
            if name in recorded[version]
        )
        text = ",".join(
            span[0] if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans
        )
        lines.append(f"{name}\t{kind}\t{text}")
    return "\n".join(lines) + "\n"


def main(folders: list[str]) -> int:
    """Record all folders, each in a process of its own; ``--one FOLDER`` prints one release."""
    if folders[:1] == ["--one"]:
        found = kinds(names_in(Path(folders[1])))
        print(
            installed().jaxlib,
            *(f"{name}={kind}" for name, kind in found.items()),
            sep="\n",
        )
        return 0
    recorded: dict[str, dict[str, str]] = {}
    for folder in folders:
        child = [sys.executable, __file__, "--one", folder]
        done = subprocess.run(
            child,
            env={**os.environ, "PYTHONPATH": folder},
            stdout=subprocess.PIPE,
            check=True,
        )
        version, *flags = done.stdout.decode().split()
        recorded[version] = dict(flag.split("=") for flag in flags)
    sys.stdout.write(table(recorded))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
