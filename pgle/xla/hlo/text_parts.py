"""Parts of an HLO text line: shapes, attributes, device groups, escaped strings."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pgle.errors import UserError
from pgle.xla.hlo.module import Shape
from pgle.xla.hlo.replica_groups import Groups, iota_groups, iota_ids, mesh_groups

_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\](\{[^}]*\})?|token\[\]|\(|\)")
_MEMORY_SPACE = re.compile(r"S\((\d+)\)")
_ATTRIBUTE = re.compile(
    r"(?:^|, )(calls|to_apply|condition|body|branch_computations|true_computation|false_computation"
    r"|called_computations|select|scatter|control-predecessors|index|channel_id|custom_call_target|kind"
    r"|lhs_contracting_dims|is_host_transfer|source_target_pairs)="
    r'(\{(?:[^{}]|\{[^{}]*\})*\}|"(?:[^"\\]|\\.)*"|[^,\s]+)'
)
_LATENCY = re.compile(r'[{,]\s*latency_metadata="(\d+)"')
_FRONTEND = re.compile(r', frontend_attributes=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_SOURCE = re.compile(r'\bsource_file="((?:[^"\\]|\\.)*)"(?: source_line=(\d+))?')
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_SCHEDULING_NAME = re.compile(r'\bscheduling_name="([^"]*)"')
_GROUPS = re.compile(
    r"replica_groups=(\{(?:\{[^{}]*\},?)*\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?"
    r"|mesh\[[^\]]*\](?:, device_ids=\([^ ]*\))? \{[^}]*\})"
)
_IOTA = re.compile(r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[([^\]]*)\](?:, device_ids=\(([^ ]*)\))? \{([^}]*)\}")
_MESH_AXIS = re.compile(r"'?([^',=]+?)'?=(\d+)")
_AXIS_REF = re.compile(r"'?([^',:\s]+)'?(?::\((\d+)\)(\d+))?")
_CALLED = {
    "while": ("body", "condition"),
    "conditional": ("branch_computations", "true_computation", "false_computation"),
    "select-and-scatter": ("select", "scatter"),
}
DEEPEST = 100  # tuples within tuples; protocol buffers cannot nest deeper either
_CALLED_BY_OTHERS = ("calls", "to_apply", "called_computations")


def unescape(text: str) -> str:
    r"""A C-escaped string as XLA prints it: ``\'``, ``\"``, ``\\``, ``\n`` and octal bytes of UTF-8."""
    if "\\" not in text:
        return text
    try:
        return text.encode("latin-1").decode("unicode_escape").encode("latin-1").decode("utf-8")
    except UnicodeError:
        return text


def _integers(text: str | None) -> list[int]:
    return [int(part) for part in text.split(",")] if text else []


class ShapeTable:
    """Shapes by their text, made once each."""

    def __init__(self) -> None:
        self.known: dict[str, Shape] = {}

    def shape(self, text: str) -> Shape:
        """The shape of ``bf16[8,128]{1,0:T(8,128)S(5)}``, ``(f32[], /*index=1*/s32[4]{0})``, ``token[]``."""
        found = self.known.get(text)
        if found is None:
            found = self.known[text] = self._parse(text)
        return found

    def _parse(self, text: str) -> Shape:
        stack: list[list[Shape]] = [[]]
        for match in _ARRAY.finditer(text):
            token = match.group()
            if token == "(":
                stack.append([])
                if len(stack) > DEEPEST:
                    raise UserError(f"tuples of more than {DEEPEST} levels")
            elif token == ")":
                if len(stack) > 1:
                    elements = stack.pop()
                    stack[-1].append(Shape("tuple", (), tuple(elements)))
            else:
                stack[-1].append(_array(match))
        if len(stack) != 1 or len(stack[0]) != 1:
            raise UserError(f"'{text[:60]}' is no HLO shape")
        return stack[0][0]


def _array(match: re.Match[str]) -> Shape:
    dtype, dimensions, layout = match.groups()
    if dtype is None:
        return Shape("token")
    sizes = tuple([int(part.lstrip("<=") or 0) for part in dimensions.split(",")]) if dimensions else ()
    space = _MEMORY_SPACE.search(layout) if layout and "S(" in layout else None
    return Shape(dtype, sizes, (), 0 if space is None else int(space.group(1)))


class Attributes:
    """What follows the operands of an instruction.

    Attributes:
        values: raw text by attribute name.
        op_name: of the metadata.
        scheduling_name: of the metadata.
        metadata: its raw text.
        replica_groups: raw text, empty where absent.
        backend_config: JSON text or string.
        latency_ns: as in `Instruction`.
    """

    __slots__ = ("backend_config", "latency_ns", "metadata", "op_name", "replica_groups", "scheduling_name", "values")

    def __init__(self, tail: str) -> None:
        body, _, config = tail.partition(", backend_config=")
        self.backend_config = unescape(config[1:].rpartition('"')[0]) if config.startswith('"') else config
        body, _, metadata = body.partition(", metadata={")
        self.metadata = metadata
        self.op_name = self.scheduling_name = self.replica_groups = ""
        if metadata:
            named = _OP_NAME.search(metadata)
            self.op_name = "" if named is None else unescape(named[1])
            known = _SCHEDULING_NAME.search(metadata) if "scheduling_name" in metadata else None
            self.scheduling_name = "" if known is None else known[1]
        self.latency_ns: int | None = None
        self.values: dict[str, str] = {}
        if len(body) > 2:
            if "frontend_attributes={" in body:
                stated = _LATENCY.search(body)
                self.latency_ns = None if stated is None else int(stated[1])
                body = _FRONTEND.sub("", body)
            self.values = dict(_ATTRIBUTE.findall(body))
            if "replica_groups=" in body:
                groups = _GROUPS.search(body)
                self.replica_groups = "" if groups is None else groups.group(1)

    def source(self, frames: Mapping[str, str]) -> str:
        """File and line; `frames` has them for stack frames, by number."""
        if not self.op_name:
            return ""
        known = _SOURCE.search(self.metadata)
        if known is not None:
            return f"{unescape(known[1])}:{known[2] or 0}"
        frame = _FRAME.search(self.metadata)
        return "" if frame is None else frames.get(frame[1], "")

    def called(self, opcode: str) -> tuple[str, ...]:
        """The called computations in the order of the proto."""
        if not self.values:
            return ()
        return tuple(name for key in _CALLED.get(opcode, _CALLED_BY_OTHERS) for name in self.names(key))

    def names(self, key: str) -> tuple[str, ...]:
        """``%a`` or ``{%a, %b}`` as names."""
        value = self.values.get(key)
        if not value:
            return ()
        return tuple(name.strip().lstrip("%") for name in value.strip("{}").split(",") if name.strip())

    def number(self, key: str) -> int | None:
        """A whole number; None where absent."""
        value = self.values.get(key, "")
        return int(value) if value.isdigit() else None

    def numbers(self, key: str) -> tuple[int, ...]:
        """``{0,2}`` as numbers."""
        return tuple(_integers(self.values.get(key, "").strip("{}")))

    def pairs(self, key: str) -> tuple[tuple[int, int], ...]:
        """``{{0,1},{1,0}}`` as pairs."""
        value = self.values.get(key)
        return () if value is None else tuple((int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", value))

    def text(self, key: str) -> str:
        """A quoted string without its quotes."""
        return unescape(self.values.get(key, "")[1:-1])


def groups_from_text(text: str) -> Groups:
    """``{{0,1},{2,3}}``, ``[2,4]<=[4,2]T(1,0)`` or ``mesh['x'=2,'y'=4] {'y':(1)2}`` as device groups."""
    if text.startswith("{"):
        return tuple(tuple(_integers(group)) for group in re.findall(r"\{([\d,]+)\}", text))
    mesh = _MESH.fullmatch(text)
    if mesh is None:
        iota = _IOTA.fullmatch(text)
        if iota is None:
            raise UserError(f"replica groups '{text[:60]}' are of no known form")
        shape = _integers(iota.group(1))
        return iota_groups(shape[0], shape[-1], _integers(iota.group(2)), _integers(iota.group(3)))
    sizes = [(name, int(size)) for name, size in _MESH_AXIS.findall(mesh.group(1))]
    order = [name for name, _ in sizes]
    refs = [
        (order.index(name), (int(pre), int(size)) if pre else None)
        for name, pre, size in _AXIS_REF.findall(mesh.group(3))
        if name in order
    ]
    return mesh_groups([size for _, size in sizes], _mesh_ids(mesh.group(2)), refs)


def _mesh_ids(text: str | None) -> list[int]:
    iota = None if text is None else _IOTA.fullmatch(text)
    if iota is None:
        return _integers(text)
    return iota_ids(_integers(iota.group(1)), _integers(iota.group(3)))
