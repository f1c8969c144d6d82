"""Every verdict and every code of a finding stands in the page that explains it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pgle
from pgle.run.ask.jaxlib import Status
from pgle.xla.log.verdict import ProfileUse

SOURCES = sorted(Path(pgle.__file__).parent.rglob("*.py"))
DOCS = Path(pgle.__file__).parent.parent / "docs"
LEVELS = ("error", "warning", "note")
ROW = 6  # of a finding that holds under a condition: the condition, then its fields


def fields(node: ast.AST) -> list[ast.expr]:
    """The level, the code and the other fields of a finding; empty if the node is none."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "FlagFinding":
        return node.args
    if isinstance(node, ast.Tuple) and len(node.elts) == ROW:
        return node.elts[1:]
    return []


def codes() -> Iterator[str]:
    """The codes of findings that the source names."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            level, code, *_ = [*fields(node), None, None]
            is_finding = isinstance(level, ast.Constant) and level.value in LEVELS
            if is_finding and isinstance(code, ast.Constant):
                yield str(code.value)


def test_every_code_of_lint_is_explained() -> None:
    found = {*codes(), *get_args(Status)} - {"known"}
    assert len(found) > 15
    text = (DOCS / "flags.md").read_text()
    assert [code for code in sorted(found) if f"`{code}`" not in text] == []


def test_every_verdict_on_a_log_is_explained() -> None:
    text = (DOCS / "troubleshooting.md").read_text()
    assert [use for use in ProfileUse if f"| `{use}` |" not in text] == []
