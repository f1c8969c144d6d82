"""Nothing installs pgle by name: whoever registers the name would run code on people's machines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INSTALLS = re.compile(
    r"\b(?:pip|uv|pipx|conda) (?:install|add|tool install)\b([^\n#`,]*)"
)
NAME = re.compile(r"[\'\"]*pgle(?:\[[\w-]+\]?)?[\'\"]*")
PLACES = ("README.md", "action.yml", "docs", "pgle", "scripts", ".github", "Makefile")
TEXTS = frozenset((".md", ".py", ".yml", ".yaml", ".sh", ".toml", ".sbatch", ""))


def texts() -> list[Path]:
    found = []
    for place in PLACES:
        path = ROOT / place
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        found += [each for each in files if each.is_file() and _is_text(each)]
    return found


def _is_text(path: Path) -> bool:
    return path.suffix in TEXTS or ".pgle" in path.suffix


def by_name(text: str) -> list[str]:
    """What a text installs under the name of pgle."""
    words = []
    for options in INSTALLS.findall(text):
        words += [word for word in options.split() if NAME.fullmatch(word)]
    return words


def test_nothing_installs_pgle_by_its_name() -> None:
    assert not [path for path in texts() if by_name(path.read_text())]


@pytest.mark.parametrize(
    "line",
    ["pip install pgle", "uv pip install 'pgle[mcp]'", "pip install -q pgle  # here"],
)
def test_the_name_is_found(line: str) -> None:
    assert by_name(line)


@pytest.mark.parametrize(
    "line",
    [
        "pip install .  # in a checkout of pgle",
        "pip install ./pgle",
        "pip install x.whl",
    ],
)
def test_a_path_is_no_name(line: str) -> None:
    assert not by_name(line)
