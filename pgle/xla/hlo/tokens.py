"""Convert every HLO text that XLA's parser reads into the lines that XLA itself would print.

XLA reads tokens (openxla/xla `xla/hlo/parser/hlo_lexer.cc`). So line breaks, blanks, comments, the
order of attributes, operand shapes and most result shapes are free. Instructions and computations
may be nested. `text.py` reads the form that XLA prints, and calls this file for any other form.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pgle.errors import UserError
from pgle.xla.hlo.module import DEEPEST

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\r\n]*|/\*(?s:.*?)\*/)
    |(?P<text>"(?:[^"\\]|\\(?s:.))*"|'(?:[^'\\]|\\(?s:.))*')
    |(?P<mark>->|<=|\.\.\.|[=,:*\#+~(){}\[\]])
    |(?P<word>[0-9bf?]{2,}_[0-9io?]{2,}->[0-9bf?]{2,}|%?[A-Za-z_][\w.\-]*
        |-?[\d.?][\w.\-+?]*|-\w+)""",
    re.VERBOSE | re.ASCII,
)
_OPEN = {"(": ")", "[": "]", "{": "}"}
_CLOSE = frozenset(")]}")
_NAME = re.compile(r"%?[A-Za-z_][\w.\-]*", re.ASCII)
_LAST = ("metadata", "backend_config")  # XLA prints them after all others
# headings of the tables, in this order
TABLES = (
    "FileNames",
    "FunctionNames",
    "FileLocations",
    "StackFrames",
)
_FIRST_OPERAND = frozenset(
    (
        "abs",
        "acos",
        "acosh",
        "add",
        "and",
        "asin",
        "asinh",
        "atan2",
        "atanh",
        "bitcast",
        "cbrt",
        "ceil",
        "copy",
        "cos",
        "cosh",
        "count-leading-zeros",
        "divide",
        "erf",
        "exponential",
        "exponential-minus-one",
        "floor",
        "log",
        "log-plus-one",
        "logistic",
        "maximum",
        "minimum",
        "multiply",
        "negate",
        "not",
        "opt-barrier",
        "or",
        "popcnt",
        "power",
        "remainder",
        "round-nearest-afz",
        "round-nearest-even",
        "rsqrt",
        "shift-left",
        "shift-right-arithmetic",
        "shift-right-logical",
        "sign",
        "sine",
        "sinh",
        "sqrt",
        "subtract",
        "tan",
        "tanh",
        "xor",
    )
)
"""Opcodes whose result has the shape of their first operand."""


def printed(text: str) -> Iterator[str]:
    """Yield the lines of a module, one per instruction, with all names and shapes written out.

    Raises:
        UserError: the text ends too early, or XLA would not read it.
    """
    return _Reader(_tokens(text)).module()


def _tokens(text: str) -> list[str]:
    """Return the tokens of a text, without blanks and comments."""
    found: list[str] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            rest = text[at : at + 40].partition("\n")[0]
            raise UserError(f"not HLO text: '{rest}'")
        if match.lastgroup != "skip":
            found.append(match.group())
        at = match.end()
    return found


@dataclass(frozen=True, slots=True)
class _Line:
    """One instruction in printed form."""

    name: str
    shape: str
    text: str


@dataclass
class _Reader:
    """Reads tokens from left to right."""

    tokens: Sequence[str]
    at: int = 0
    # name and printed instructions of each computation
    computations: list[tuple[str, list[str]]] = field(default_factory=list)
    entry: str = ""

    def peek(self, further: int = 0) -> str:
        """Return the next token, or the one `further` behind it; empty at the end."""
        place = self.at + further
        return self.tokens[place] if place < len(self.tokens) else ""

    def take(self, *expected: str) -> str:
        """Take the next token. If tokens are expected, it must be one of them.

        Raises:
            UserError: the text ends here, or holds another token.
        """
        token = self.peek()
        if not token:
            raise UserError("HLO text is cut short", remedy="copy it again")
        if expected and token not in expected:
            before = " ".join(self.tokens[max(self.at - 3, 0) : self.at])
            raise UserError(
                f"not HLO text: '{expected[0]}' is missing behind '{before[-60:]}'"
            )
        self.at += 1
        return token

    def name(self) -> str:
        """Take a name, and return it without its percent sign."""
        token = self.take()
        if not _NAME.fullmatch(token):
            raise UserError(f"not HLO text: '{token[:40]}' is not a name")
        if self.peek() == ":":
            self.take()
        return token.lstrip("%")

    def module(self) -> Iterator[str]:
        """Yield the lines of the module."""
        header = ""
        if self.peek() == "HloModule":
            self.take()
            header = f"HloModule {self.name()}{self.attributes(is_inside=False)}"
        tables: list[str] = []
        for title in TABLES:
            tables += self.table(title)
        while self.peek():
            self.computation()
        if not self.computations:
            raise UserError("HLO text is cut short", remedy="copy it again")
        entry = self.entry or self.computations[-1][0]
        yield header or f"HloModule module_{entry}"
        yield from tables
        for name, lines in self.computations:
            entry_mark = "ENTRY " if name == self.entry else ""
            yield f"{entry_mark}%{name} {{"
            yield from lines
            yield "}"

    def table(self, title: str) -> Iterator[str]:
        """Yield the rows of a table of source files, functions, places or stack frames."""
        if self.peek() != title:
            return
        yield self.take()
        while self.peek().isdigit():
            yield f"{self.take()} {self.group()}"

    def computation(self) -> None:
        """Read one computation, and keep its lines."""
        is_entry = self.peek() == "ENTRY"
        if is_entry:
            self.take()
        name = self.name()
        if self.peek() == "(":
            self.group()
            self.take("->")
            self.shape()
        self.body(name)
        self.attributes(is_inside=False)
        if is_entry:
            self.entry = name

    def body(self, name: str, depth: int = 0) -> None:
        """Read the instructions of a computation."""
        self.take("{")
        shapes: dict[str, str] = {}
        lines: list[str] = []
        while self.peek() != "}":
            is_root = self.peek() == "ROOT"
            if is_root:
                self.take()
            own = self.name()
            self.take("=")
            if own in shapes:
                raise UserError(f"not HLO text: {own} is defined twice in {name}")
            line = self.instruction(own, shapes, lines, depth)
            shapes[own] = line.shape
            root_mark = "ROOT " if is_root else ""
            lines.append(f"  {root_mark}%{own} = {line.text}")
        self.take("}")
        self.computations.append((name, lines))

    def instruction(
        self, name: str, shapes: dict[str, str], lines: list[str], depth: int
    ) -> _Line:
        """Read an instruction from its equals sign on. Nested instructions are appended to
        `lines`.
        """
        if depth > DEEPEST:
            raise UserError(f"instructions of more than {DEEPEST} levels")
        shape = self.shape() if self.is_shape() else ""
        opcode = self.take()
        if opcode in ("constant", "parameter"):
            self.take("(")
            inside = self.literal()
        else:
            operands = self.operands(shapes, lines, depth)
            inside = ", ".join(f"%{operand}" for operand in operands)
        attributes = self.attributes(depth)
        if not shape:
            given = [shapes.get(operand.partition("#")[0], "") for operand in operands]
            shape = _inferred(opcode, given, attributes, name)
        return _Line(name, shape, f"{shape} {opcode}({inside}){attributes}")

    def literal(self) -> str:
        """Return the text up to the parenthesis that closes a constant, or the number of a
        parameter.
        """
        parts: list[str] = []
        while self.peek() != ")":
            parts.append(self.group() if self.peek() in _OPEN else self.take())
        self.take(")")
        return parts[0] if len(parts) == 1 and parts[0][:1] not in _OPEN else "{...}"

    def operands(
        self, shapes: dict[str, str], lines: list[str], depth: int
    ) -> list[str]:
        """Return the names of operands. Nested instructions get a name."""
        self.take("(")
        found: list[str] = []
        while self.peek() != ")":
            start = self.at
            if self.is_shape():
                self.shape()
            if self.peek(1) == "(":
                self.at = start
                found.append(self.nested(shapes, lines, depth + 1))
            else:
                name = self.name()
                while self.peek() == "#":
                    name += self.take() + self.take()
                found.append(name)
            if self.peek() != ")":
                self.take(",")
        self.take(")")
        return found

    def nested(self, shapes: dict[str, str], lines: list[str], depth: int) -> str:
        """Read a nested instruction, and return the name that XLA gives it."""
        name = f"nested.{len(shapes)}"
        while name in shapes:
            name += ".1"
        shapes[name] = ""
        line = self.instruction(name, shapes, lines, depth)
        shapes[name] = line.shape
        lines.append(f"  %{name} = {line.text}")
        return name

    def attributes(self, depth: int = 0, *, is_inside: bool = True) -> str:
        """Return attributes, each after a comma; metadata and the backend configuration come last.

        Args:
            depth: levels of instructions around them.
            is_inside: True for an instruction's attributes; False for those of a module or
                computation.
        """
        found: dict[str, str] = {}
        while self.peek() == ",":
            self.take()
            key = self.take()
            self.take("=")
            found[key] = self.attribute(depth, is_inside=is_inside)
        last = {key: found.pop(key) for key in _LAST if key in found}
        return "".join(
            f", {key}={value}" for key, value in (*found.items(), *last.items())
        )

    def attribute(self, depth: int, *, is_inside: bool) -> str:
        """Return the value of an attribute. A computation in its place gets a name."""
        if is_inside and self.is_body():
            name = f"_.{len(self.computations)}"
            self.body(name, depth + 1)
            return f"%{name}"
        parts = [self.group()]
        while self.peek() not in ("", ",", "}", ")", "ROOT") and self.peek(1) != "=":
            if not is_inside and self.is_computation():
                break
            parts.append(self.group())
        return _joined(parts)

    def is_body(self) -> bool:
        """Whether the instructions of a computation begin here."""
        if self.peek() != "{":
            return False
        if self.peek(1) == "ROOT":
            return True
        has_opcode = self.peek(4) == "(" or self.peek(3) == "("
        return self.peek(2) == "=" and (has_opcode or self.peek(4) == "[")

    def is_computation(self) -> bool:
        """Whether a table or a computation begins here: a heading, or a name before parameters or
        instructions.
        """
        if self.peek() in (*TABLES, "ENTRY"):
            return True
        return bool(_NAME.fullmatch(self.peek())) and self.peek(1) in ("{", "(", ":")

    def is_shape(self) -> bool:
        """Whether a shape begins here."""
        return self.peek() == "(" or (
            bool(_NAME.fullmatch(self.peek())) and self.peek(1) == "["
        )

    def shape(self, depth: int = 0) -> str:
        """Return a shape as XLA prints it, with its layout if one is stated.

        Args:
            depth: levels of tuples around it.
        """
        if depth > DEEPEST:
            raise UserError(f"tuples of more than {DEEPEST} levels")
        if self.peek() == "(":
            self.take("(")
            parts = []
            while self.peek() != ")":
                parts.append(self.shape(depth + 1))
                if self.peek() != ")":
                    self.take(",")
            self.take(")")
            return f"({', '.join(parts)})"
        dtype = self.take()
        text = dtype + self.group()
        behind = self.peek(1)
        if self.peek() == "{" and (behind.isdigit() or behind in ("}", ":")):
            text += self.group()
        return text

    def group(self) -> str:
        """Take the next token; if it opens a bracket, take all up to the closing one."""
        parts = [self.take()]
        expected = [_OPEN[parts[0]]] if parts[0] in _OPEN else []
        while expected:
            token = self.take()
            if token in _OPEN:
                expected.append(_OPEN[token])
            elif token in _CLOSE and token != expected.pop():
                raise UserError(f"not HLO text: '{token}' closes no bracket")
            parts.append(token)
        return _joined(parts)


def _joined(parts: Sequence[str]) -> str:
    """Join tokens to text, with blanks only between words and before the axes of a mesh."""
    text = ""
    for part in parts:
        both_words = _is_word(text[-1:]) and _is_word(part[:1])
        is_axes = part[:1] == "{" and text.startswith("mesh")
        if part[:1] == "'" and text[-1:] == "=":
            part = _double_quoted(part)
        text += f" {part}" if both_words or is_axes else part
    return text


def _is_word(character: str) -> bool:
    """Whether a character belongs to a word; False for an empty text."""
    return bool(character) and (character.isalnum() or character in "\"'_%-.?")


def _double_quoted(part: str) -> str:
    """Return a string in single quotes with double quotes."""
    inside = part[1:-1].replace('"', '\\"')
    return f'"{inside}"'


def _inferred(opcode: str, given: Sequence[str], attributes: str, name: str) -> str:
    """Return the shape of a result that the text leaves out.

    Raises:
        UserError: the operands' shapes do not determine it.
    """
    if opcode == "tuple":
        return f"({', '.join(given)})"
    if opcode == "get-tuple-element":
        number = re.search(r"\bindex=(\d+)", attributes)
        elements = _elements(given[0]) if given else []
        if number is not None and int(number[1]) < len(elements):
            return elements[int(number[1])]
    if opcode in _FIRST_OPERAND and given:
        return given[0]
    if opcode in ("compare", "is-finite") and given:
        return "pred" + given[0][given[0].find("[") :]
    if opcode in ("clamp", "select") and len(given) > 1:
        return given[1]
    raise UserError(
        f"the text leaves out the shape of {name} ({opcode})",
        remedy="print the module with result shapes",
    )


def _elements(shape: str) -> list[str]:
    """Return the shapes in a tuple."""
    if not shape.startswith("("):
        return []
    found, depth, start = [], 0, 1
    for at, character in enumerate(shape):
        depth += (character in "([{") - (character in ")]}")
        if (depth == 1 and character == ",") or (depth == 0 and character == ")"):
            found.append(shape[start:at].strip())
            start = at + 1
    return found
