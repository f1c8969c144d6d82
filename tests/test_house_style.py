"""No line gets harder to read: `tests/helpers/house_style.py` says which rules hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from house_style import breaks, sources

import pgle

ROOT = Path(pgle.__file__).parent


def test_no_line_breaks_a_rule() -> None:
    found = [one for path in sources(ROOT) for one in breaks(path)]
    assert [f"{one.path}:{one.line}: {one.rule}" for one in found] == []


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("x = 1 if a else 2 if b else 3", "conditional in a conditional"),
        ("x = [1 if a else 2 for a in b]", "conditional in a comprehension"),
        ("x = f'{1 if a else 2}'", "conditional in an f-string"),
        ("x = [a for b in c for a in b]", "comprehension with two for"),
        ("a, b = f(), g()", "a, b = f(), g()"),
        ("x = 's' * (n > 1)", "text or list times a truth value"),
        ("f(1, 2, 3, 4, 5, 6)", "call with more than five positional arguments"),
        (f"x = {'+'.join('a' * 30)}", "statement of more than 40 nodes"),
        ("x = [a]  # fmt: skip", "fmt: skip"),
        (f"# {'x' * 100}", "line of more than 100 columns"),
    ],
)
def test_a_break_is_found(line: str, rule: str, tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(f"{line}\n")
    assert [one.rule for one in breaks(file)] == [rule]


@pytest.mark.parametrize(
    "line",
    ["x = 1 if a else 2", "a, b = c, d", "x = [a for a in b]", "f(1, 2, 3, 4, key=5)"],
)
def test_a_plain_line_breaks_nothing(line: str, tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(f"{line}\n")
    assert list(breaks(file)) == []


@pytest.mark.parametrize(
    "phrase", ["without a word", "no GPU's", "are no time", "is to be without"]
)
def test_no_text_has_an_unclear_phrase(phrase: str) -> None:
    files = [*sources(ROOT), *ROOT.rglob("*.toml")]
    assert [str(path) for path in files if phrase in path.read_text()] == []
