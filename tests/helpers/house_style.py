"""How lines of pgle read: `python tests/helpers/house_style.py [PATH...]` lists what breaks a rule,
by file and line.

The rules are measured on Python's syntax tree, since a limit on lines is met by packing them. A
node is an expression or a statement; annotations do not count.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MOST_NODES_OF_A_STATEMENT = 40
MOST_POSITIONAL = 5
SIMPLE = (
    ast.Assign,
    ast.AugAssign,
    ast.AnnAssign,
    ast.Return,
    ast.Expr,
    ast.Raise,
    ast.Assert,
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DISPLAYS = (ast.Tuple, ast.List, ast.Dict, ast.Set)
TRUTH_VALUES = (ast.Compare, ast.BoolOp)
WITHOUT_CONDITIONALS = (
    (ast.IfExp, "a conditional"),
    (COMPREHENSIONS, "a comprehension"),
    (ast.JoinedStr, "an f-string"),
)


@dataclass(frozen=True)
class Break:
    """A place that breaks a rule."""

    path: Path
    line: int
    rule: str


class _WithoutAnnotations(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        self.generic_visit(node)
        node.annotation = ast.Constant(0)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.returns = None
        return node


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file, without annotations."""
    tree = _WithoutAnnotations().visit(ast.parse(path.read_text(encoding="utf-8")))
    assert isinstance(tree, ast.Module)
    return tree


def syntax_nodes(tree: ast.AST) -> int:
    """How many expressions and statements there are in a tree, itself included."""
    return sum(isinstance(node, ast.expr | ast.stmt) for node in ast.walk(tree))


def breaks(path: Path) -> Iterator[Break]:
    """The places of a file that break a rule, in no order."""
    tree = parsed(path)
    tables = set(_tables(tree))
    for node in ast.walk(tree):
        for rule in _broken(node):
            yield Break(path, node.lineno, rule)
        if isinstance(node, SIMPLE) and node not in tables:
            size = syntax_nodes(node)
            if size > MOST_NODES_OF_A_STATEMENT:
                yield Break(path, node.lineno, "statement of more than 40 nodes")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if "fmt: skip" in line:
            yield Break(path, number, "fmt: skip")
        if len(line) > 100:
            yield Break(path, number, "line of more than 100 columns")


def _tables(tree: ast.Module) -> Iterator[ast.stmt]:
    """The constants of a module or class that list values: a table is as long as it is."""
    places = [
        tree,
        *(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)),
    ]
    for place in places:
        for statement in place.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and _lists(
                statement.value
            ):
                yield statement


def _lists(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return any(isinstance(argument, DISPLAYS) for argument in value.args)
    return isinstance(value, DISPLAYS)


def _broken(node: ast.AST) -> Iterator[str]:
    for kinds, place in WITHOUT_CONDITIONALS:
        if isinstance(node, kinds) and _holds_conditional(node):
            yield f"conditional in {place}"
    if isinstance(node, COMPREHENSIONS) and len(node.generators) > 1:
        yield "comprehension with two for"
    if isinstance(node, ast.Assign) and _is_parallel(node):
        yield "a, b = f(), g()"
    if isinstance(node, ast.BinOp) and _is_conditional_repetition(node):
        yield "text or list times a truth value"
    if isinstance(node, ast.Call):
        positional = [
            value for value in node.args if not isinstance(value, ast.Starred)
        ]
        if len(positional) > MOST_POSITIONAL:
            yield "call with more than five positional arguments"


def _holds_conditional(node: ast.AST) -> bool:
    inner = (child for child in ast.walk(node) if child is not node)
    return any(isinstance(child, ast.IfExp) for child in inner)


def _is_parallel(node: ast.Assign) -> bool:
    if not isinstance(node.value, ast.Tuple) or not isinstance(
        node.targets[0], ast.Tuple
    ):
        return False
    return any(isinstance(child, ast.Call) for child in ast.walk(node.value))


def _is_conditional_repetition(node: ast.BinOp) -> bool:
    if not isinstance(node.op, ast.Mult):
        return False
    return _is_repetition(node.left, node.right) or _is_repetition(
        node.right, node.left
    )


def _is_repetition(repeated: ast.expr, times: ast.expr) -> bool:
    is_text = isinstance(repeated, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(repeated, ast.Constant) and isinstance(repeated.value, str | bytes)
    )
    is_negation = isinstance(times, ast.UnaryOp) and isinstance(times.op, ast.Not)
    is_bool = isinstance(times, ast.Call) and ast.unparse(times.func) == "bool"
    return is_text and (isinstance(times, TRUTH_VALUES) or is_negation or is_bool)


def sources(folder: Path) -> list[Path]:
    """The files of a folder that people write."""
    return sorted(path for path in folder.rglob("*.py") if "_pb2" not in path.name)


def main() -> None:
    """List the breaks of the files and folders that are named, then their number by rule."""
    places = [Path(word) for word in sys.argv[1:]] or [Path("pgle")]
    files = [
        file
        for place in places
        for file in ([place] if place.is_file() else sources(place))
    ]
    found = [one for file in files for one in breaks(file)]
    for one in sorted(found, key=lambda one: (one.path, one.line)):
        print(f"{one.path}:{one.line}: {one.rule}")
    print(
        *(
            f"{count:5} {rule}"
            for rule, count in Counter(one.rule for one in found).most_common()
        ),
        sep="\n",
    )


if __name__ == "__main__":
    main()
