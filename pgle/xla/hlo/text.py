"""Read HLO modules from text, as ``--xla_dump_to`` and `Compiled.as_text` print them, in one pass
over the lines.

Text holds less than the proto. It has no ids. jaxlib 0.12 leaves out get-tuple-elements and writes
``%name#1``; these become instructions called ``name#1``. The grammar follows
`xla/hlo/parser/hlo_parser.cc`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from pgle.errors import UserError
from pgle.xla.hlo.check import checked, groups_in
from pgle.xla.hlo.frames import Frames
from pgle.xla.hlo.module import DEEPEST, MAPPED, Computation, Instruction, Module, Shape
from pgle.xla.hlo.replica_groups import (
    PAIRS_OF_SEND,
    STATED,
    Shards,
    integers,
    shards_from_text,
)
from pgle.xla.hlo.tokens import TABLES, printed

_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\](\{[^}]*\})?|token\[\]|\(|\)")
_MEMORY_SPACE = re.compile(r"S\((\d+)\)")
_ATTRIBUTE = re.compile(
    r"(?:^|, )(calls|to_apply|condition|body|branch_computations|true_computation|false_computation"
    r"|called_computations|select|scatter|control-predecessors|index|channel_id|custom_call_target"
    r"|kind|lhs_contracting_dims|is_host_transfer|source_target_pairs|direction"
    r"|operand_precision|algorithm|fft_length|dimensions|iota_dimension|slice|window)="
    r'(\{(?:[^{}]|\{[^{}]*\})*\}|"(?:[^"\\]|\\.)*"|[^,\s]+)'
)
_LATENCY = re.compile(r'[{,]\s*latency_metadata="(\d+)"')
_FRONTEND = re.compile(r', frontend_attributes=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
_OP_NAME = re.compile(r'\bop_name="((?:[^"\\]|\\.)*)"')
_SOURCE = re.compile(r'\bsource_file="((?:[^"\\]|\\.)*)"(?: source_line=(\d+))?')
_FRAME = re.compile(r"\bstack_frame_id=(\d+)")
_SHARDING = re.compile(r"\bsharding=\{((?:[^{}]|\{[^{}]*\})*)\}")
_SCHEDULING_NAME = re.compile(r'\bscheduling_name="([^"]*)"')
_SCALAR = re.compile(r"(?:pred|[su]\d+)\[\](?:\{[^}]*\})?")
_ROW = re.compile(r"[su]32\[\d+\]")
_CALLED = {
    "while": ("body", "condition"),
    "conditional": ("branch_computations", "true_computation", "false_computation"),
    "select-and-scatter": ("select", "scatter"),
}
_CALLED_BY_OTHERS = ("calls", "to_apply", "called_computations")


_ESCAPED = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_LETTERS = dict(zip(b"abfnrtv", b"\a\b\f\n\r\t\v", strict=True))


def unescape(text: str) -> str:
    r"""Decode a C-escaped string as XLA prints it: ``\'``, ``\"``, ``\\``, ``\n``, and octal bytes
    of UTF-8.
    """
    if "\\" not in text:
        return text

    def plain(match: re.Match[bytes]) -> bytes:
        """Return the bytes that an escape stands for."""
        octal, hexadecimal, letter = match.groups()
        if letter:
            return bytes([_LETTERS.get(letter[0], letter[0])])
        number = int(octal, 8) if octal else int(hexadecimal, 16)
        return bytes([number & 0xFF])

    try:
        return _ESCAPED.sub(plain, text.encode()).decode()
    except UnicodeError:
        return text


def shape_of(text: str) -> Shape:
    """Return the shape in ``bf16[8,128]{1,0:T(8,128)S(5)}``, ``(f32[], /*index=1*/s32[4]{0})`` or
    ``token[]``.

    Raises:
        UserError: the text is not one shape.
    """
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
        raise UserError(f"'{text[:60]}' is not an HLO shape")
    return stack[0][0]


def _array(match: re.Match[str]) -> Shape:
    """Return the shape of an array or a token."""
    dtype, dimensions, layout = match.groups()
    if dtype is None:
        return Shape("token")
    sizes = (
        tuple([int(part.lstrip("<=") or 0) for part in dimensions.split(",")])
        if dimensions
        else ()
    )
    space = _MEMORY_SPACE.search(layout) if layout and "S(" in layout else None
    return Shape(
        dtype,
        sizes,
        memory_space=0 if space is None else int(space.group(1)),
        minor_to_major=integers(layout and layout[1:-1].partition(":")[0]),
    )


def _sizes(value: str) -> tuple[int, ...]:
    """Return the integers in ``{0,1}``."""
    return integers(value.strip("{}"))


def _names(value: str) -> tuple[str, ...]:
    """Return the names in ``%a`` or ``{%a, %b}``."""
    return tuple(
        [
            name.strip().lstrip("%")
            for name in value.strip("{}").split(",")
            if name.strip()
        ]
    )


def _constant(text: str) -> int | None:
    """Return the value of an integer literal; None if it is left out or something else."""
    text = text.strip()
    if text in ("true", "false"):
        return int(text == "true")
    return int(text) if re.fullmatch(r"-?\d{1,20}", text) else None


def _number(value: str) -> int | None:
    """Return a number; None for anything else."""
    return int(value) if value.isdigit() else None


def _highest(value: str) -> str:
    """Return the higher precision in ``{high,highest}``; empty for the default."""
    return next(
        (word for word in ("highest", "high") if word in value.strip("{}").split(",")),
        "",
    )


def _slices(value: str) -> tuple[tuple[int, int, int], ...]:
    """Return start, limit and stride of each slice in ``{[0:4], [8:64:2]}``."""
    found = re.findall(r"\[\s*(\d+):(\d+)(?::(\d+))?\s*\]", value)
    return tuple(
        [(int(start), int(limit), int(stride or 1)) for start, limit, stride in found]
    )


def _windows(value: str) -> tuple[tuple[int, int], ...]:
    """Return size and stride of the windows in ``{size=1x3 stride=1x2 pad=0_0x0_1}``; XLA leaves
    out strides of 1.
    """
    stated = dict(re.findall(r"(size|stride)=(\d[\dx]*)", value))
    sizes = stated.get("size", "").split("x") if "size" in stated else []
    strides = stated["stride"].split("x") if "stride" in stated else ["1"] * len(sizes)
    return tuple([(int(a), int(b)) for a, b in zip(sizes, strides, strict=False)])


_FIELDS: Mapping[str, tuple[str, str, Callable[[str], Any]]] = {
    "control-predecessors": ("control_predecessors", "", _names),
    "channel_id": ("channel_id", "", _number),
    "source_target_pairs": (
        "source_target_pairs",
        "",
        lambda value: tuple(
            (int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", value)
        ),
    ),
    "custom_call_target": (
        "custom_call_target",
        "",
        lambda value: unescape(value[1:-1]),
    ),
    "is_host_transfer": ("is_host_transfer", "", lambda value: value == "true"),
    "kind": ("fusion_kind", "fusion", str),
    "direction": ("direction", "compare", str),
    "lhs_contracting_dims": ("dot_lhs_contracting", "dot", _sizes),
    "operand_precision": ("precision", "", _highest),
    "algorithm": ("precision", "", lambda value: "" if value == "unset" else value),
    "slice": ("slices", "slice", _slices),
    "window": ("windows", "reduce-window", _windows),
    "iota_dimension": ("dimensions", "iota", lambda value: (int(value),)),
    "fft_length": ("fft_length", "fft", _sizes),
    "index": ("tuple_index", "get-tuple-element", _number),
}
"""By attribute: the field of `Instruction`, the only opcode that has it (empty for all), and the
function that reads it.
"""


_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) ?(?:\(.*)?\{$", re.DOTALL)
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([^\s=]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\(")
_OPERAND = re.compile(r"%([\w.\-]+)((?:#\d+)*)")
_BARE_OPERAND = re.compile(r"([\w.\-]+)((?:#\d+)*)(?=, |$)")
_DEVICES = re.compile(r"(num_partitions|replica_count)=(\d+)")
_FINGERPRINT = re.compile(r'fingerprint_before_lhs="([0-9a-f]+)"')
_FILE = re.compile(r'(\d+) "((?:[^"\\]|\\.)*)"$')
_PLACE = re.compile(r"(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)")
_FRAME_LINE = re.compile(
    r"(\d+) \{file_location_id=(\d+)\b(?:.*?\bparent_frame_id=(\d+))?"
)


def module_from_text(
    data: bytes, source: str, *, program_id: int | None = None
) -> Module:
    """Return a module from HLO text.

    Args:
        data: UTF-8 text that begins with ``HloModule``.
        program_id: the id, if the file name has it; text does not.

    Raises:
        UserError: the text is not HLO, or cut short.
    """
    check_begin(data, source)
    try:
        parser = _read_lines(data, source) or _read_tokens(data, source)
    except UserError as error:
        remedy = error.remedy or "dump it again"
        raise UserError(error.what, where=source, remedy=remedy) from None
    try:
        return parser.module(program_id)
    except ValueError:  # a number has thousands of digits
        what = "not HLO text: its first line holds a malformed number"
        raise UserError(what, where=source, remedy="dump it again") from None


def _read_lines(data: bytes, source: str) -> _Parser | None:
    """Read a text in the form that XLA prints; None if it has another form."""
    parser = _Parser(source)
    # lines one by one, because all together take as much memory as the text
    for line in io.TextIOWrapper(io.BytesIO(data), "utf-8", "replace"):
        if not _fed(parser, line.rstrip(), data):
            return None
    return parser if parser.computations or parser.name else None


def _read_tokens(data: bytes, source: str) -> _Parser:
    """Read a text in any form that XLA's parser accepts."""
    parser = _Parser(source)
    for line in printed(data.decode("utf-8", "replace")):
        if not _fed(parser, line, data):
            raise _not_hlo(line, data)
    return parser


def _fed(parser: _Parser, line: str, data: bytes) -> bool:
    """Whether the parser accepts a line."""
    try:
        return parser.feed(line)
    except ValueError:
        raise _not_hlo(line, data) from None


def _not_hlo(line: str, data: bytes) -> UserError:
    """Return the error for a line that is no HLO."""
    return UserError(f"not HLO text: '{line.strip()[:60]}'", remedy=_remedy(data))


_COMMENTS = rb"(?:\s|//[^\n]*(?:\n|\Z)|/\*(?:.*?\*/|.*\Z))*"
_BEGIN = re.compile(
    _COMMENTS
    + rb"(?:HloModule\s|ENTRY\s|%?[A-Za-z_][\w.-]*\s*[{]|%[A-Za-z_][\w.-]*\s*\(|\Z)",
    re.DOTALL,
)


def check_begin(data: bytes, source: str) -> None:
    """Raise `UserError` if HLO text cannot begin with these bytes."""
    if not data.strip() or not _BEGIN.match(data[:4096]):
        raise UserError(
            "not HLO text (it does not begin with HloModule)",
            where=source,
            remedy=_remedy(data),
        )


def _remedy(data: bytes) -> str:
    """Return what to do about a text that is no HLO."""
    if b"\0" in data[:4096]:
        return "it looks like a protocol buffer: name it .hlo.pb"
    return "pass an after_optimizations .txt or .hlo.pb of --xla_dump_to"


def _module_name(header: str) -> str:
    """Return the name of the module in its first line."""
    return header.removeprefix("HloModule ").split(",")[0].strip().lstrip("%")


class _Parser:
    """Turns lines into computations. Its state is the computation being read."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.header = ""
        self.entry = ""
        self.computations: dict[str, Computation] = {}
        self.fused: set[str] = set()
        self.called: set[str] = set()
        self.shape = cache(shape_of)  # shapes repeat often, and so do groups
        self.groups = cache(groups_in)
        self.name = ""
        self.root = ""
        self.items: dict[str, Instruction] = {}
        self.files: dict[str, str] = {}
        self.places: dict[str, str] = {}
        self.frames = Frames()
        # by computation and parameter number
        self.shards: dict[tuple[str, int], Shards] = {}

    def feed(self, line: str) -> bool:
        """Read a line without trailing blanks. Return False if XLA prints no such line."""
        if not line or line.startswith("//"):
            return True
        if not self.name:
            return self._outside(line)
        if line[0] == "}":
            self._close()
            return line == "}" or line.startswith("}, execution_thread=")
        match = _INSTRUCTION.match(line)
        return (
            match is not None
            and not _is_unusual(line)
            and self._instruction(line, match)
        )

    def _outside(self, line: str) -> bool:
        """Read a line between computations."""
        if line.startswith("HloModule "):
            is_first = not self.header
            self.header = line
            return is_first and not _is_unusual(line)
        if line.endswith("{") and (match := _COMPUTATION.match(line)):
            self.name = match.group(2)
            if match.group(1):
                self.entry = self.name
            return not _is_unusual(line)
        if line[0].isdigit():
            self._table_row(line)
            return True
        return line in TABLES

    def _table_row(self, line: str) -> None:
        """Read a row of the tables of files, functions, places and stack frames. Rows of functions
        are dropped.
        """
        if match := _PLACE.match(line):
            self.places[match[1]] = f"{self.files.get(match[2], '')}:{match[3]}"
        elif match := _FRAME_LINE.match(line):
            place = self.places.get(match[2], "")
            self.frames.add(int(match[1]), place, int(match[3] or 0))
        elif (match := _FILE.match(line)) and match[1] not in self.files:
            # functions follow, and count from 1 again
            self.files[match[1]] = unescape(match[2])

    def _close(self) -> None:
        """End the computation being read, and check that its names exist."""
        items = tuple(self.items.values())
        if not items:
            raise UserError(f"computation {self.name} has no instruction")
        for item in items:
            for name in (*item.operands, *item.control_predecessors):
                if name not in self.items:
                    raise UserError(
                        f"%{item.name} refers to %{name}, which is not in its computation"
                    )
            self.called.update(item.called)
        self.computations[self.name] = Computation(
            self.name, items, self.root or items[-1].name
        )
        self.name, self.root, self.items = "", "", {}

    def _instruction(self, line: str, match: re.Match[str]) -> bool:
        """Read an instruction. Return False if it does not end on this line, or is not in XLA's
        order.
        """
        is_root, name, shape_text, opcode = match.groups()
        inside, tail = _split_operands(line, match.end())
        if (
            _is_open(line, tail)
            or _is_nested(opcode, inside, tail)
            or _is_reordered(tail)
        ):
            return False
        if name in self.items:
            raise UserError(f"%{name} is defined twice in {self.name}")
        operands = () if opcode in ("constant", "parameter") else self._operands(inside)
        if is_root:
            self.root = name
        stated = self._attributes(opcode, tail)
        called = stated.get("called", ())
        if "-" in opcode:
            opcode = self._opcode(opcode, called, operands)
        if opcode == "fusion":
            self.fused.update(called)
        elif opcode == "parameter" and inside.isdigit():
            stated["parameter_number"] = int(inside)
            if found := _SHARDING.search(tail):
                self.shards[self.name, int(inside)] = shards_from_text(found[1])
        elif opcode == "constant" and _SCALAR.fullmatch(shape_text):
            stated["constant"] = _constant(inside)
        elif opcode == "constant" and _ROW.match(shape_text):
            stated["row"] = tuple(map(int, re.findall(r"-?\d{1,10}", inside)))
        self.items[name] = Instruction(
            name, opcode, self.shape(shape_text), self.name, operands, **stated
        )
        return True

    def _attributes(self, opcode: str, tail: str) -> dict[str, Any]:
        """Return the attributes of an instruction, by field of `Instruction`; most instructions
        have only metadata.
        """
        stated: dict[str, Any] = {}
        body, _, config = tail.partition(", backend_config=")
        if config:
            stated["backend_config"] = (
                unescape(config[1:].rpartition('"')[0])
                if config.startswith('"')
                else config
            )
        body, _, metadata = body.partition(", metadata={")
        if metadata:
            if (named := _OP_NAME.search(metadata)) and named[1]:
                stated["op_name"] = unescape(named[1])
                stated |= self._sources(metadata)
            if "scheduling_name" in metadata and (
                known := _SCHEDULING_NAME.search(metadata)
            ):
                stated["scheduling_name"] = known[1]
        if len(body) <= 2:
            return stated
        if "frontend_attributes={" in body:
            if latency := _LATENCY.search(body):
                stated["latency_ns"] = int(latency[1])
            if pairs := PAIRS_OF_SEND.search(body):
                stated["source_target_pairs"] = self.groups(pairs[1])
            body = _FRONTEND.sub("", body)
        values = dict(_ATTRIBUTE.findall(body))
        for key, value in values.items():
            field, only, read = _FIELDS.get(key, ("", "", str))
            if field and only in ("", opcode):
                stated[field] = read(value)
        keys = _CALLED.get(opcode, _CALLED_BY_OTHERS)  # in the order of the proto
        if opcode in MAPPED and "dimensions" in values:
            stated["dimensions"] = _sizes(values["dimensions"])
        called: list[str] = []
        for key in keys:
            if key in values:
                called += _names(values[key])
        stated["called"] = tuple(called)
        if "replica_groups=" in body and (groups := STATED.search(body)):
            stated["replica_groups"] = self.groups(groups[1])
        return stated

    def _sources(self, metadata: str) -> dict[str, str]:
        """Return the file and line of an instruction. Newer releases store them in tables at the
        beginning of the text.
        """
        frame = _FRAME.search(metadata)
        number = 0 if frame is None else int(frame[1])
        source = self.frames.place(number)
        if known := _SOURCE.search(metadata):
            source = f"{unescape(known[1])}:{known[2] or 0}"
        return {"source": source, "called_from": self.frames.called_from(number)}

    def _opcode(
        self, opcode: str, called: tuple[str, ...], operands: tuple[str, ...]
    ) -> str:
        """Return the opcode of the proto. Some releases print ``all-gather-start`` for
        ``async-start``.
        """
        base, _, step = opcode.rpartition("-")
        if step not in ("start", "update", "done") or base in (
            "async",
            "copy",
            "send",
            "recv",
        ):
            return opcode
        start = self.items.get(operands[0]) if operands else None
        if (step == "start" and called and base != "all-reduce") or (
            start and start.opcode == "async-start"
        ):
            return f"async-{step}"
        return opcode

    def _operands(self, inside: str) -> tuple[str, ...]:
        if not inside:
            return ()
        pattern = _OPERAND if "%" in inside else _BARE_OPERAND
        if "#" not in inside:
            return tuple([name for name, _ in pattern.findall(inside)])
        # an empty path leads to the operand itself
        found = [self._element(name, path) for name, path in pattern.findall(inside)]
        return tuple(found)

    def _element(self, name: str, path: str) -> str:
        """Return the name of the element ``name#1``. Make the get-tuple-elements that the text
        leaves out.
        """
        for part in path.split("#")[1:]:
            element = f"{name}#{part}"
            if element not in self.items:
                index = int(part)
                elements = self.items[name].shape.elements if name in self.items else ()
                if index >= len(elements):
                    raise UserError(f"%{element} is not an element of a tuple")
                self.items[element] = Instruction(
                    element,
                    "get-tuple-element",
                    elements[index],
                    self.name,
                    (name,),
                    tuple_index=index,
                )
            name = element
        return name

    def _last(self) -> str:
        """Return the name of the last computation, which is the entry if none is marked.

        Empty if the text ends before the entry.
        """
        computation = list(self.computations.values())[-1]
        root = next(
            item for item in computation.instructions if item.name == computation.root
        )
        _, _, stated = self.header.partition("->")
        stated = re.sub(r"/\*.*?\*/|\{[^{}]*\}|\s", "", stated)
        is_whole = not stated or stated.startswith(str(root.shape).replace(" ", ""))
        return computation.name if is_whole else ""

    def _shards(self) -> tuple[Shards, ...]:
        """Return the shards of each parameter of the entry, as in `Module.shards`."""
        numbers = {at for name, at in self.shards if name == self.entry}
        count = max(numbers, default=-1) + 1
        return tuple([self.shards.get((self.entry, at), ()) for at in range(count)])

    def module(self, program_id: int | None) -> Module:
        """Return the module after its last line."""
        if not self.entry and self.computations:
            self.entry = self._last()
        if (
            self.name
            or self.entry not in self.computations
            or not self.called <= self.computations.keys()
        ):
            raise UserError(
                "HLO text is cut short", where=self.source, remedy="copy it again"
            )
        # the first of each counts, because later attributes may hold any text
        devices = dict(reversed(_DEVICES.findall(self.header)))
        found = _FINGERPRINT.search(self.header)
        fingerprint = "" if found is None else found[1]
        computations = {
            name: replace(item, is_fusion=name in self.fused)
            for name, item in self.computations.items()
        }
        donated = frozenset(map(int, _ALIAS.findall(self.header)))
        shards = self._shards()
        name = _module_name(self.header) or f"module_{self.entry}"
        module = Module(
            name=name,
            program_id=program_id,
            fingerprint=fingerprint,
            entry=self.entry,
            computations=computations,
            is_scheduled="is_scheduled=true" in self.header,
            num_partitions=int(devices.get("num_partitions", 1)),
            num_replicas=int(devices.get("replica_count", 1)),
            source=self.source,
            donated=donated,
            shards=shards,
        )
        return checked(module)


_ALIAS = re.compile(r"\{[\d, ]*\}: \((\d{1,9}), \{")
"""A result that takes the memory of a parameter: ``{1}: (3, {}, may-alias)`` in
``input_output_alias``.
"""


_CALL = re.compile(r"[a-z]\s*\(")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_COMMENT = re.compile(r"//|/\*(?!index=\d+\*/)")
_LAST = (", metadata=", ", backend_config=")  # XLA prints them last, in this order
_BEHIND = re.compile(r"[}\"], [a-z_-]+=")


def _is_unusual(line: str) -> bool:
    """Whether a line holds text in single quotes, or comments other than XLA's numbers in
    tuples.
    """
    if "/" not in line and "='" not in line:
        return False
    plain = _STRING.sub("", line)
    return "='" in plain or bool(_COMMENT.search(plain))


def _is_open(line: str, tail: str) -> bool:
    """Whether an instruction continues on the next line, inside its operands or a string."""
    if line.endswith(",") or (not tail and not line.endswith(")")):
        return True
    return line.count('"') % 2 == 1 and '"' in _STRING.sub("", line)


def _is_nested(opcode: str, inside: str, tail: str) -> bool:
    """Whether operands or attributes hold instructions."""
    if opcode != "constant" and "(" in inside and _CALL.search(inside):
        return True
    # a configuration may be MLIR, which has equals signs
    attributes, _, _ = tail.partition(_LAST[1])
    return " = " in attributes and " = " in _STRING.sub("", attributes)


def _is_reordered(tail: str) -> bool:
    """Whether attributes follow the metadata or the backend configuration, or a bracket is still
    open.
    """
    at = min((at for key in _LAST if (at := tail.find(key)) >= 0), default=-1)
    if at < 0:
        return False
    behind = tail[at:]
    is_plain = (
        behind.count("{") == behind.count("}") and len(_BEHIND.findall(behind)) == 0
    )
    if is_plain:
        return False
    behind = _STRING.sub('""', behind)
    if behind.startswith(_LAST[0]):
        behind = behind.replace(_LAST[1], "", 1)
    return behind.count("{") != behind.count("}") or bool(_BEHIND.search(behind[1:]))


def _split_operands(line: str, start: int) -> tuple[str, str]:
    """Return the text between the parentheses of an instruction, and the text after them."""
    end = line.find(")", start)
    if end < 0:
        return line[start:], ""
    inside = line[start:end]
    if "(" in inside or '"' in inside:  # operands with tuple shapes, or a literal
        depth, end = 1, start
        quoted = False
        while end < len(line):
            character = line[end]
            if character == '"' and line[end - 1] != "\\":
                quoted = not quoted
            elif not quoted:
                depth += (character == "(") - (character == ")")
                if depth == 0:
                    break
            end += 1
        inside = line[start:end]
    return inside, line[end + 1 :]  # also empty if the last parenthesis is missing
